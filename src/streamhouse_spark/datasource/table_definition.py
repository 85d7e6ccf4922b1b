"""Properties and partitioning of a table in the form that Spark shows, and in CREATE TABLE.

DESCRIBE EXTENDED and SHOW TBLPROPERTIES also show read-only properties. Those under ``status.`` describe the state of
the table, those under ``openlineage.`` are the table's names in events of OpenLineage's Spark listener. CREATE TABLE
ignores them, because the output of SHOW CREATE TABLE contains them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from streamhouse_spark.config.table_properties import BUCKET_COUNT_MAX
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import join_names
from streamhouse_spark.core.warehouse_layout import NAME_PROPERTY, NAMESPACE_PROPERTY, PROPERTY_PREFIX, dataset_name
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.system_tables import bucket_lags
from streamhouse_spark.table_handle import TableHandle, log_url

PROVIDER = "streamhouse"
SHOWN_PREFIXES = ("status.", PROPERTY_PREFIX)
"""Prefixes of read-only properties."""


def describe_properties(table: TableHandle) -> dict[str, str]:
    """Return all properties to show, from the last read state, without a store request."""
    state, dataset = table.state, dataset_name(table.storage.url, table.name)
    shown = {
        **state.properties,
        "provider": PROVIDER,
        "location": log_url(table),
        "is_managed_location": "true",  # SHOW CREATE TABLE then omits the location
        "status.uuid": state.table_uuid,
        "status.commit": str(state.version),
        "status.buckets": str(state.num_buckets),
        "status.log.start-offsets": _offsets_json({bucket: log.start for bucket, log in state.buckets.items()}),
        "status.log.end-offsets": _offsets_json(state.ends),
        NAMESPACE_PROPERTY: dataset.namespace,
        NAME_PROPERTY: dataset.name,
    }
    if not state.has_lake:
        return shown
    return {
        **shown,
        "status.lake.format": state.parsed.datalake_format,
        "status.lake.location": f"{table.storage.url}/{state.lake_location}",
        "status.lake.snapshot": str(state.lake.snapshot_id) if state.lake else "none",
        "status.lake.offsets": _offsets_json({bucket: state.lake_offset(bucket) for bucket in state.buckets}),
        "status.lake.lag-rows": str(sum(bucket_lags(state).values())),
    }


def _offsets_json(offsets: Mapping[int, int]) -> str:
    return json.dumps({str(bucket): offset for bucket, offset in sorted(offsets.items())})


@dataclass(frozen=True, slots=True)
class Partitioning:
    """Parsed ``PARTITIONED BY (dt, days(ts), bucket(4, id))``."""

    fields: tuple[str, ...] = ()
    """Partition columns and transforms, as text for `parse_field`."""
    properties: Mapping[str, str] | None = None
    """Table properties that the bucket transform sets."""


def parse_partitioning(transforms: Sequence[Mapping[str, Any]]) -> Partitioning:
    """Parse Spark's transforms. Raises `InvalidOptionError` for an unsupported transform."""
    fields: list[str] = []
    properties: dict[str, str] = {}
    for transform in transforms:
        kind, columns = str(transform["transform"]), transform["columns"]
        if kind == "identity":
            fields.append(_column_name(transform))
        elif kind == "bucket" and not properties:
            if not columns or len(transform["arguments"]) != 1:
                raise _unsupported_error(transform, "expected a number and columns, such as bucket(4, id)")
            count = transform["arguments"][0]
            if not str(count).lstrip("-").isdecimal() or not 1 <= int(count) <= BUCKET_COUNT_MAX:
                raise _unsupported_error(transform, f"found {count} buckets, expected 1 to {BUCKET_COUNT_MAX}")
            key = join_names([_column_name(transform, place) for place in range(len(columns))])
            properties = {"bucket.num": str(count), "bucket.key": key}
        elif kind == "bucket":
            raise _unsupported_error(transform, "found a second bucket transform, expected one; omit it")
        elif kind == "cluster_by":
            raise InvalidOptionError(
                f"CLUSTER BY {_format_transform(transform).removeprefix(kind)} is not supported; use "
                "PARTITIONED BY (bucket(4, id)), or set bucket.num and bucket.key"
            )
        elif len(columns) == 1:
            arguments = [*map(str, transform.get("arguments") or ()), join_names([_column_name(transform)])]
            fields.append(f"{kind}({', '.join(arguments)})")
        else:
            reason = f"found {len(columns)} columns, expected one, such as days(ts) or truncate(4, name)"
            raise _unsupported_error(transform, reason)
    return Partitioning(tuple(fields), properties or None)


def _column_name(transform: Mapping[str, Any], place: int = 0) -> str:
    path = transform["columns"][place]
    if len(path) != 1:
        raise _unsupported_error(transform, "found a field of a struct, expected a column; create a column for it")
    return str(path[0])


def _unsupported_error(transform: Mapping[str, Any], reason: str) -> InvalidOptionError:
    return InvalidOptionError(f"PARTITIONED BY {_format_transform(transform)}: {reason}")


def _format_transform(transform: Mapping[str, Any]) -> str:
    columns = [".".join(str(part) for part in path) for path in transform.get("columns") or ()]
    inside = ", ".join([*map(str, transform.get("arguments") or ()), *columns])
    return f"{transform['transform']}({inside})"


def format_partitioning(state: TableState) -> list[dict[str, Any]]:
    """Return the partitioning of a state in the form that `parse_partitioning` parses."""
    transforms: list[dict[str, Any]] = [
        {"transform": field.transform, "columns": [[field.column]], "arguments": [field.width] if field.width else []}
        for field in state.parsed.partition_fields
    ]
    key = state.parsed.bucket_key
    if key:
        columns = [[name] for name in key]
        transforms.append({"transform": "bucket", "columns": columns, "arguments": [state.num_buckets]})
    return transforms
