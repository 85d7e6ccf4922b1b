"""Description of one table: its columns, last rounds, readers and writers."""

from __future__ import annotations

import datetime as dt
from itertools import pairwise
from typing import Any

from streamhouse_spark.config.view_definition import VIEW, view_facts
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.lifecycle.tiering_failures import list_failures
from streamhouse_spark.table.table import Table


def describe_table(table: Table) -> dict[str, Any]:
    """Describe the state that was read last, without storage requests."""
    state = table.state
    columns = [{"name": f.name, "type": str(f.type), "nullable": f.nullable} for f in table.schema]
    return {
        "table": table.name,
        "version": state.version,
        "primary_key": list(state.primary_key),
        "partition_by": list(state.parsed.partitioned_by),
        "columns": columns,
        "buckets": state.num_buckets,
        "properties": {key: value for key, value in state.properties.items() if key != VIEW},
        "rounds": _describe_rounds(state),
        "readers": _describe_readers(state),
        "writers": _describe_writers(state),
        "view": view_facts(state.properties, table.name),
    }


def describe_failures(table: Table) -> dict[str, Any]:
    """Describe the failed rounds on record, latest first, with one storage request."""
    failures = [failure.to_json(table.state) for failure in list_failures(table.storage, table.uuid)]
    for entry in failures:
        entry |= {"first_at": _format_time(entry.pop("first_ms")), "last_at": _format_time(entry.pop("last_ms"))}
    return {"failed_rounds": failures}


def _describe_rounds(state: TableState) -> list[dict[str, Any]]:
    """Return the tiering rounds whose snapshots the log knows, latest first, with the rows of each."""
    rounds = []
    for before, after in pairwise(state.lake_history):
        rows = sum(max(0, end - before.offsets.get(bucket, 0)) for bucket, end in after.offsets.items())
        rounds.append({"snapshot_id": str(after.snapshot_id), "recorded_at": _format_time(after.time_ms), "rows": rows})
    return rounds[::-1]


def _describe_readers(state: TableState) -> list[dict[str, Any]]:
    """Return the consumers that report their positions, such as streams with a ``consumerId``."""
    ends = state.ends
    return [
        {
            "consumer": name,
            "lag_rows": sum(max(0, end - entry.offsets.get(bucket, 0)) for bucket, end in ends.items()),
            "seen_at": _format_time(entry.time_ms),
        }
        for name, entry in sorted(state.consumers.items())
    ]


def _describe_writers(state: TableState) -> list[dict[str, Any]]:
    """Return the writers whose last version is on record, such as streams; latest first."""
    newest = sorted(state.transactions.items(), key=lambda item: (-item[1].time_ms, item[0]))
    return [
        {"writer": name, "version": entry.version, "wrote_at": _format_time(entry.time_ms)} for name, entry in newest
    ]


def _format_time(time_ms: int) -> str:
    return dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
