"""Properties of a table in Spark: its own, and status properties under ``status.``.

DESCRIBE EXTENDED and SHOW TBLPROPERTIES show the status properties. They cannot be set, and CREATE TABLE ignores them,
because SHOW CREATE TABLE prints them. The same applies to ``openlineage.``, the names that OpenLineage's Spark listener
gives the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from streamhouse_spark.handle import TableHandle, log_url
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.metrics.openlineage_names import NAME_PROPERTY, NAMESPACE_PROPERTY, PROPERTY_PREFIX, dataset_name
from streamhouse_spark.read.system_tables import bucket_lags

PROVIDER = "streamhouse"
SHOWN_PREFIXES = ("status.", PROPERTY_PREFIX)
"""Prefixes of properties that are shown but cannot be set."""


def describe_properties(table: TableHandle) -> dict[str, str]:
    """Return all shown properties of the last read state, without a store request."""
    state = table.state
    shown = {
        **state.properties,
        "provider": PROVIDER,
        "location": log_url(table),
        "is_managed_location": "true",  # SHOW CREATE TABLE then omits the location
        **_log_status(state),
        **_openlineage_names(table),
    }
    return {**shown, **_lake_status(table, state)} if state.has_lake else shown


def _log_status(state: TableState) -> dict[str, str]:
    return {
        "status.uuid": state.table_uuid,
        "status.commit": str(state.version),
        "status.buckets": str(state.num_buckets),
        "status.log.start-offsets": _offsets_json({bucket: log.start for bucket, log in state.buckets.items()}),
        "status.log.end-offsets": _offsets_json(state.ends),
    }


def _openlineage_names(table: TableHandle) -> dict[str, str]:
    dataset = dataset_name(table.storage.url, table.name)
    return {NAMESPACE_PROPERTY: dataset.namespace, NAME_PROPERTY: dataset.name}


def _lake_status(table: TableHandle, state: TableState) -> dict[str, str]:
    return {
        "status.lake.format": state.parsed.datalake_format,
        "status.lake.location": f"{table.storage.url}/{state.lake_location}",
        "status.lake.snapshot": str(state.lake.snapshot_id) if state.lake else "none",
        "status.lake.offsets": _offsets_json({bucket: state.lake_offset(bucket) for bucket in state.buckets}),
        "status.lake.lag-rows": str(sum(bucket_lags(state).values())),
    }


def _offsets_json(offsets: Mapping[int, int]) -> str:
    return json.dumps({str(bucket): offset for bucket, offset in sorted(offsets.items())})
