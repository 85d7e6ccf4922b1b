"""Reads of an Iceberg table's snapshots; see `LakeTable`. They load Iceberg's library, which the latest snapshot alone
does not need.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from streamhouse_spark.errors import LakeMismatchError, SnapshotExpiredError
from streamhouse_spark.lake.iceberg.evolution import iceberg_columns
from streamhouse_spark.lake.iceberg.offsets import describe_snapshot, log_time_ms, newest_offsets, offsets_at
from streamhouse_spark.lake.iceberg.scan import projection, require_snapshot, snapshot_schema
from streamhouse_spark.lake.iceberg.scan_files import columns_same_by_name, scan_files
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.lake.model.scan_files import LakeScan
from streamhouse_spark.lake.model.values import LakePlan, LakeSnapshot
from streamhouse_spark.lake.reader import identity_projection
from streamhouse_spark.lake.timestamp_correction import latest_ms
from streamhouse_spark.query.predicates import Node
from streamhouse_spark.schema.table_schema import TableSchema


def snapshot(place: IcebergTableBinding, snapshot_id: int) -> LakeSnapshot:
    metadata = _metadata_with_snapshots(place)
    return _describe_snapshot(place, metadata, require_snapshot(metadata, snapshot_id))


def snapshot_by_name(place: IcebergTableBinding, name: str) -> LakeSnapshot:
    metadata = _metadata_with_snapshots(place)
    snapshot = metadata.snapshot_by_name(name)
    if snapshot is None:
        raise SnapshotExpiredError(
            f"lake table {metadata.location} has no tag or branch '{name}'; there are {', '.join(metadata.refs)}"
        )
    return _describe_snapshot(place, metadata, snapshot)


def snapshot_as_of(place: IcebergTableBinding, timestamp_ms: int) -> LakeSnapshot:
    metadata = _metadata_with_snapshots(place)
    times_ms = latest_ms([log_time_ms(metadata, entry) for entry in metadata.snapshot_log])
    entries = [e for e, time_ms in zip(metadata.snapshot_log, times_ms, strict=True) if time_ms <= timestamp_ms]
    if not entries:
        first = min(times_ms, default=None)
        raise SnapshotExpiredError(
            f"lake table {metadata.location} has no snapshot from {timestamp_ms} ms or before; the oldest that is "
            f"kept is from {first} ms; choose a later time"
        )
    # The last in log order: while a clock is slow, all snapshots get the time of their predecessor.
    return _describe_snapshot(place, metadata, require_snapshot(metadata, entries[-1].snapshot_id))


def _metadata_with_snapshots(place: IcebergTableBinding) -> TableMetadata:
    table = place.find()
    if table is None:
        raise _no_table(place, "no snapshots")
    return table.metadata


def plan_read(
    place: IcebergTableBinding,
    snapshot_id: int | None,
    columns: Sequence[str] | None,
    node: Node,
    schema: TableSchema | None,
) -> LakePlan:
    table = place.find()
    if table is None and snapshot_id is None:
        return LakePlan(None, identity_projection(schema or place.spec.schema, columns), ())
    if table is None:
        raise _no_table(place, f"no snapshot {snapshot_id}")
    metadata = table.metadata
    snapshot = metadata.current_snapshot() if snapshot_id is None else require_snapshot(metadata, snapshot_id)
    lake = metadata.schema() if snapshot is None or snapshot_id is None else snapshot_schema(metadata, snapshot)
    mapping = iceberg_columns(metadata, place.spec)
    how = projection(lake, mapping, place.spec.schema, columns, schema)
    if snapshot is None:
        return LakePlan(None, how, ())
    every = projection(lake, mapping, place.spec.schema, None, schema)
    files = scan_files(table, snapshot, every, place.spec.num_buckets, node=node)
    splits = tuple(split for file in files for split in file.splits())
    return LakePlan(_describe_snapshot(place, metadata, snapshot), how, splits)


def scan_snapshot(
    place: IcebergTableBinding,
    snapshot_id: int,
    columns: Sequence[str],
    schema: TableSchema,
    statistics_of: Sequence[str],
    node: Node,
    buckets: Collection[int] | None,
) -> LakeScan:
    table = place.find()
    if table is None:
        raise _no_table(place, f"no snapshot {snapshot_id}")
    snapshot = require_snapshot(table.metadata, snapshot_id)
    lake = snapshot_schema(table.metadata, snapshot)
    mapping = iceberg_columns(table.metadata, place.spec)
    how = projection(lake, mapping, place.spec.schema, columns, schema)
    every = projection(lake, mapping, place.spec.schema, None, schema)
    files = scan_files(table, snapshot, every, place.spec.num_buckets, statistics_of, node, buckets)
    same = columns_same_by_name(table.metadata, how, place.spec.schemas)
    return LakeScan(_describe_snapshot(place, table.metadata, snapshot), how, files, same)


def _no_table(place: IcebergTableBinding, consequence: str) -> SnapshotExpiredError:
    return SnapshotExpiredError(
        f"{place.spec.path} has no lake table, so {consequence}: there is no {place.missing_metadata(0)}; "
        "tier it first, or if it was tiered, restore that"
    )


def _describe_snapshot(place: IcebergTableBinding, metadata: TableMetadata, snapshot: Snapshot) -> LakeSnapshot:
    uuid = place.spec.table_uuid
    try:
        offsets = offsets_at(metadata, snapshot, uuid)
    except LakeMismatchError:
        if snapshot.snapshot_id == metadata.current_snapshot_id:
            raise
        return describe_snapshot(snapshot, None)  # of a former owner of the lake
    if offsets is None and snapshot.snapshot_id == metadata.current_snapshot_id:
        offsets = newest_offsets(metadata, uuid)
    return describe_snapshot(snapshot, offsets)
