"""OpenLineage events of tiering rounds, from a table to its lake.

A round with rows to write is a run. It starts with START and ends with COMPLETE, FAIL, or ABORT if another service won
the commit race. The failure of a listener is logged, and never fails a round.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import dataset_name
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.lake.tiering.job import TieringReport
from streamhouse_spark.table.table import Table

logger = logging.getLogger(__name__)

LineageListener = Callable[[Mapping[str, Any]], None]
"""Receives an event as OpenLineage JSON."""
Kind = Literal["START", "COMPLETE", "FAIL", "ABORT"]
PRODUCER: Final = f"urn:streamhouse-spark:{sys.modules['streamhouse_spark'].__version__}"
_SCHEMA: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS: Final = "https://openlineage.io/spec/facets"
_TIMEOUT_S: Final = 10


@dataclass(slots=True)
class RoundEventEmitter:
    """Emits the events of a round, which becomes a run once it has rows to write."""

    listener: LineageListener
    table: Table
    world: World
    run_id: str | None = None

    def emit_start(self) -> None:
        """Emit START when the round begins to write. Idempotent."""
        if self.run_id is None:
            self.run_id = str(uuid.UUID(self.world.ids.new_uuid()))
            self._emit("START")

    def emit_end(self, report: TieringReport) -> None:
        if self.run_id is not None:
            self._emit("COMPLETE" if report.snapshots else "ABORT", report=report)

    def emit_abort(self) -> None:
        if self.run_id is not None:
            self._emit("ABORT")

    def emit_failure(self, error: BaseException) -> None:
        if self.run_id is not None:
            self._emit("FAIL", error=error)

    def _emit(self, kind: Kind, *, report: TieringReport | None = None, error: BaseException | None = None) -> None:
        assert self.run_id is not None
        try:
            self.listener(build_event(self.table, kind, self.run_id, self.world.clock.now_ms(), report, error))
        except Exception as problem:  # noqa: BLE001 - a failing listener must not fail the round
            logger.warning("cannot deliver an OpenLineage event of %s: %s", self.table.name, problem)


def build_event(
    table: Table,
    kind: Kind,
    run_id: str,
    time_ms: int,
    report: TieringReport | None = None,
    error: BaseException | None = None,
) -> dict[str, Any]:
    """Return the event of a round, with names and columns of the table's cached state."""
    state, url = table.state, table.storage.url
    source, lake = dataset_name(url, table.name), dataset_name(url, state.lake_location)
    columns = [{"name": field.name, "type": str(field.type)} for field in state.schema.arrow]
    schema = {"schema": _facet("1-1-1/SchemaDatasetFacet", fields=columns)}
    storage = _facet("1-0-1/StorageDatasetFacet", storageLayer=state.parsed.datalake_format, fileFormat="parquet")
    output: dict[str, Any] = {"namespace": lake.namespace, "name": lake.name, "facets": {**schema, "storage": storage}}
    if report is not None and report.snapshots:
        version = _facet("1-0-1/DatasetVersionDatasetFacet", datasetVersion=str(report.snapshots[-1]))
        output["facets"]["version"] = version
        counts = {"rowCount": report.rows, "size": report.size_bytes, "fileCount": report.files}
        written = _facet("1-0-2/OutputStatisticsOutputDatasetFacet", **counts)
        output["outputFacets"] = {"outputStatistics": written}
    run_facets = {} if error is None else {"errorMessage": _error_facet(error)}
    job = _facet("2-0-3/JobTypeJobFacet", processingType="BATCH", integration="STREAMHOUSE", jobType="JOB")
    return {
        "eventType": kind,
        "eventTime": dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC).isoformat(timespec="milliseconds"),
        "producer": PRODUCER,
        "schemaURL": _SCHEMA,
        "run": {"runId": run_id, "facets": run_facets},
        "job": {"namespace": source.namespace, "name": f"tier {table.name}", "facets": {"jobType": job}},
        "inputs": [{"namespace": source.namespace, "name": source.name, "facets": schema}],
        "outputs": [output],
    }


def _error_facet(error: BaseException) -> dict[str, Any]:
    text = str(error).partition("\n")[0]
    return _facet("1-0-1/ErrorMessageRunFacet", message=text, programmingLanguage="Python")


def _facet(schema: str, **fields: Any) -> dict[str, Any]:
    name = schema.partition("/")[2]
    return {"_producer": PRODUCER, "_schemaURL": f"{_FACETS}/{schema}.json#/$defs/{name}", **fields}


def create_listener(target: str, token: str | None = None) -> LineageListener:
    """Return a listener that posts events to a URL, with an optional bearer token, or appends them to a file as lines.

    Raises `InvalidOptionError` for a file that is not writable, or a URL of another protocol.
    """
    scheme, separator, _ = target.partition("://")
    if not separator:
        return _append_to_file(Path(target))
    if scheme not in ("http", "https"):
        raise InvalidOptionError(f"--lineage is {target}, expected a file, or a URL that starts with http or https")
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def post(event: Mapping[str, Any]) -> None:
        request = urllib.request.Request(target, json.dumps(event).encode(), headers, method="POST")  # noqa: S310 - as said
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310 - as before
            response.read()

    return post


def _append_to_file(file: Path) -> LineageListener:
    try:
        file.open("a").close()
    except (OSError, ValueError) as error:
        raise InvalidOptionError(
            f"cannot write to the --lineage file {file}: {error}; specify a writable file"
        ) from error

    def append(event: Mapping[str, Any]) -> None:
        with file.open("a", encoding="utf-8") as lines:
            lines.write(f"{json.dumps(event)}\n")

    return append
