"""Scan planning: find the lake files and log ranges with the rows of a read snapshot. Every reader plans here.

A plan depends only on the state in its read snapshot, because the table's cached state advances with each read and
write. Pruning skips files and segments without matching rows. In a primary-key table it never skips changes, because a
newer row that the filter rejects still replaces an older row that it accepts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace

from streamhouse_spark.config.table_properties import ADOPTED
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import SnapshotExpiredError
from streamhouse_spark.expressions.filters import Projection
from streamhouse_spark.expressions.predicates import ALWAYS_TRUE, Node
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.lake.snapshot_history import require_metadata
from streamhouse_spark.lake.types import LakeScan, ScanFile
from streamhouse_spark.log.data_skipping import prune_buckets, segment_may_match
from streamhouse_spark.log.deletion_vectors import (
    NO_FILE_ROWS,
    FileRows,
    unapplied_deletes,
    unapplied_file_deletes,
    union_deleted_file_rows,
)
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.segments.scan import LogSplit, filter_segments, plan_range, plan_snapshot
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.read_snapshot import (
    ReadSnapshot,
    require_initial_snapshot,
    require_recorded,
    require_visible_snapshot,
)
from streamhouse_spark.read.scan_tasks import KeyedScanTask, LakeScanTask, LogScanTask, MergeColumns, ScanPlan, ScanTask
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table_handle import TableHandle


@dataclass(frozen=True, slots=True)
class Pruning:
    """Skips manifests, files and segments by their metadata. Without a filter it skips none."""

    node: Node = ALWAYS_TRUE
    """The filter, with the column names of the state. Every row of the result satisfies it."""
    skipped: list[Segment] = field(default_factory=list, compare=False)
    """The segments that were skipped, for metrics. May contain duplicates."""

    @property
    def num_skipped(self) -> int:
        return len({(segment.bucket, segment.base_offset) for segment in self.skipped})

    def buckets(self, state: TableState) -> frozenset[int] | None:
        """Return the buckets that may have matching rows, by equality on the bucket key; None for all buckets."""
        properties = state.parsed  # the key may have another name in this state
        key = properties.bucket_key
        column = state.schema.find(key[0]) if len(key) == 1 else None
        return prune_buckets(self.node, column, state.num_buckets, properties.datalake_format)

    def prune(self, state: TableState, split: LogSplit) -> LogSplit:
        """Return the split without the segments that surely have no matching rows."""
        return filter_segments(split, lambda segment: self.keeps_segment(state, segment, split.offsets))

    def keeps_segment(self, state: TableState, segment: Segment, offsets: OffsetRange) -> bool:
        if self.node is ALWAYS_TRUE or segment_may_match(state, segment, offsets, self.node):
            return True
        self.skipped.append(segment)
        return False


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """The columns and the filter of a read."""

    columns: tuple[str, ...] | None
    """The table columns to read, at least one; None for all."""
    pruning: Pruning = Pruning()
    statistics_of: tuple[str, ...] = ()
    """Columns whose lake file statistics are needed, in addition to the columns of the filter."""
    names_rows: bool = False
    """Whether row ids are read, also of rows without an offset."""

    @classmethod
    def of(cls, projection: Projection) -> ScanRequest:
        return cls(projection.read_columns, Pruning(projection.node))

    def schema(self, state: TableState) -> TableSchema:
        return state.schema if self.columns is None else state.schema.select(self.columns)


@dataclass(frozen=True, slots=True)
class ScanSources:
    """The lake files and log ranges of a scan, which contain each row of the result exactly once."""

    state: TableState
    schema: TableSchema
    """The table columns to read, in the order of the result."""
    lake: LakeScan | None = None
    """Files that another engine may read itself. Rows at their ``deleted_positions`` are not part of the result."""
    tasks: tuple[ScanTask, ...] = ()
    """Scan tasks of all other rows: lake files first, then key-value snapshots, then the log."""
    are_exact: bool = True
    """Whether the tasks return exactly as many rows as their metadata count."""
    keyed: MergeColumns | None = None
    """Set for the rows of a primary-key table."""

    def plan_without_tasks(self, table: TableHandle) -> ScanPlan:
        """Return the plan without tasks."""
        projection = self.lake.projection if self.lake is not None else None
        return ScanPlan(table.name, table.uuid, self.schema, (), projection, self.keyed)

    def plan(self, table: TableHandle) -> ScanPlan:
        """Return a plan that reads everything as scan tasks."""
        return replace(
            self.plan_without_tasks(table), tasks=(*plan_lake_tasks(self.lake.files if self.lake else ()), *self.tasks)
        )

    def count_rows(self) -> int | None:
        """Count the rows of the result by metadata, or return None if that requires reading."""
        files = self.lake.files if self.lake is not None else ()
        of_files = [file.num_live for file in files]
        splits = [task.split for task in self.tasks if isinstance(task, LogScanTask)]
        if not self.are_exact or len(splits) < len(self.tasks) or None in of_files:
            return None
        return sum(count or 0 for count in of_files) + sum(split.num_rows for split in splits)


def plan_lake_tasks(files: Iterable[ScanFile]) -> Iterator[LakeScanTask]:
    """Return the scan tasks of lake files."""
    return (
        LakeScanTask(split, file.bucket, deleted_positions=file.deleted_positions)
        for file in files
        for split in file.splits()
    )


def plan_scan(table: TableHandle, snapshot: ReadSnapshot, request: ScanRequest) -> ScanSources:
    """Plan a scan of a read snapshot.

    Raises `SnapshotExpiredError` if the lake snapshot has expired, or if another engine replaced it.
    """
    allowed = request.pruning.buckets(snapshot.state)
    if allowed is not None:
        hot = {bucket: offsets for bucket, offsets in snapshot.hot.items() if bucket in allowed}
        bases = {bucket: base for bucket, base in snapshot.bases.items() if bucket in allowed}
        snapshot = replace(snapshot, hot=hot, bases=bases)
    if snapshot.state.primary_key:
        return _plan_keyed(table, snapshot, request)
    lake = scan_tiered_snapshot(table, snapshot, request) if snapshot.lake is not None else None
    lake, lake_tasks = _exclude_deleted_rows(table, snapshot, lake, names_rows=request.names_rows)
    splits = [plan_range(snapshot.state, bucket, offsets) for bucket, offsets in snapshot.hot.items()]
    log_tasks = prune_tasks(snapshot.state, map(LogScanTask, splits), request.pruning)
    return ScanSources(snapshot.state, request.schema(snapshot.state), lake, (*lake_tasks, *log_tasks))


def _exclude_deleted_rows(
    table: TableHandle, snapshot: ReadSnapshot, lake: LakeScan | None, *, names_rows: bool
) -> tuple[LakeScan | None, tuple[LakeScanTask, ...]]:
    """Attach pending deletes to the lake files that still contain the rows.

    Returns scan tasks for files of which only the offsets of the deleted rows are known, not the positions, because
    other engines cannot skip rows by offset. With ``names_rows``, files whose rows are identified by file and position
    become scan tasks too.
    """
    deleted, deleted_in_files = deleted_offsets(snapshot), deleted_file_rows(snapshot)
    if lake is None or not (deleted or deleted_in_files or names_rows):
        return lake, ()
    if deleted_in_files:
        _require_files(table, snapshot, deleted_in_files)
    from streamhouse_spark.lake.parquet.file_writer import parse_file_offsets  # few reads need to write files

    places = file_positions(table, snapshot, lake) if names_rows else {}
    names = StorageFiles(table.storage)
    tasks, files = [], []
    deleted_elsewhere = _deleted_without_offsets(table, snapshot, lake, deleted)
    folder = f"{names.name_of(snapshot.state.lake_location)}/"
    for file in lake.files:
        name, place = names.name_of(file.location), places.get(file.location)
        rows = deleted if parse_file_offsets(file.location) is not None else deleted_elsewhere
        rows = rows if file.bucket is None else {b: runs for b, runs in rows.items() if b == file.bucket}
        deleted_positions = deleted_in_files.get(name) if deleted_in_files else None
        if rows and ADOPTED not in snapshot.state.properties and name.startswith(folder):
            rows, positions = _split_deleted_rows(file, rows)
            deleted_positions = (
                positions if deleted_positions is None else OffsetSet.merged([deleted_positions, positions])
            )
        if rows or place is not None:
            tasks += [
                LakeScanTask(split, file.bucket, rows, deleted_positions or None, place) for split in file.splits()
            ]
        else:
            files.append(replace(file, deleted_positions=deleted_positions) if deleted_positions else file)
    return replace(lake, files=tuple(files)), tuple(tasks)


def _split_deleted_rows(file: ScanFile, deleted: Mapping[int, OffsetSet]) -> tuple[Mapping[int, OffsetSet], OffsetSet]:
    """Return the deleted rows of a file by offset if only its footer has their positions, else their positions.

    The name of a file contains its offset range, if the table wrote it. If the range has as many offsets as the file
    has rows, positions are computed from offsets.
    """
    from streamhouse_spark.lake.parquet.file_writer import parse_file_offsets

    named = parse_file_offsets(file.location)
    if named is None:
        return deleted, OffsetSet.merged([])
    bucket, offsets = named
    in_file = deleted[bucket].within(offsets) if bucket in deleted else OffsetSet.merged([])
    if len(offsets) != file.num_rows or file.merge is not None:
        return ({bucket: in_file} if in_file else {}), OffsetSet.merged([])
    return {}, OffsetSet(in_file.starts - offsets.start, in_file.lengths)


def _deleted_without_offsets(
    table: TableHandle, snapshot: ReadSnapshot, lake: LakeScan, deleted: Mapping[int, OffsetSet]
) -> Mapping[int, OffsetSet]:
    """Return the deleted rows that are in no file with offsets. Files of other engines may contain them."""
    from streamhouse_spark.lake.parquet.file_writer import parse_file_offsets

    if snapshot.lake is None or not deleted or all(parse_file_offsets(file.location) for file in lake.files):
        return deleted
    in_lake = table.open_lake().with_state(snapshot.state).find_rows_with_offsets(snapshot.lake.snapshot_id, deleted)
    left = {bucket: runs.without(in_lake[bucket]) for bucket, runs in deleted.items()}
    return {bucket: runs for bucket, runs in left.items() if runs}


def file_positions(table: TableHandle, snapshot: ReadSnapshot, lake: LakeScan) -> Mapping[str, int]:
    """Return location → position among all files of the lake snapshot, which identifies rows without offsets.

    Empty if every file of the scan has offsets, or the lake format has no such positions. Also empty for a fallback
    snapshot, because row ids refer to the tiered snapshot of the state.
    """
    from streamhouse_spark.lake.parquet.file_writer import parse_file_offsets

    state, tiered = snapshot.state, snapshot.lake
    has_offsets = ADOPTED not in state.properties and all(parse_file_offsets(file.location) for file in lake.files)
    if tiered is None or state.lake is None or tiered.snapshot_id != state.lake.snapshot_id or has_offsets:
        return {}
    all_files = table.open_lake().with_state(state).list_named_files(tiered.snapshot_id)
    return {location: place for place, location in enumerate(all_files)}


def deleted_file_rows(snapshot: ReadSnapshot) -> FileRows:
    """Return deleted rows of lake files that the lake snapshot still contains.

    Raises `SnapshotExpiredError` if the snapshot may have other files than the snapshot from which the rows were
    deleted.
    """
    tiered, state = snapshot.lake, snapshot.state
    if tiered is None or not state.deletions:
        return NO_FILE_ROWS
    deletions = unapplied_file_deletes(state.deletions, tiered.applied_through)
    for deletion in deletions:
        if not state.has_same_lake_files(deletion.snapshot_id, tiered.snapshot_id):
            raise SnapshotExpiredError(
                f"{state.name}: commit {deletion.commit} deleted rows of lake snapshot {deletion.snapshot_id}, which "
                f"may be in other files of snapshot {tiered.snapshot_id}, because another engine rewrote files; tier "
                "the table to delete the rows in the lake"
            )
    return union_deleted_file_rows(deletions)


def _require_files(table: TableHandle, snapshot: ReadSnapshot, files: FileRows) -> None:
    """Require that the lake snapshot has the files of deleted rows, unless another engine reused its id.

    Raises `SnapshotExpiredError`, because the rows may then be in other files.
    """
    assert snapshot.lake is not None
    lake, snapshot_id = table.open_lake().with_state(snapshot.state), snapshot.lake.snapshot_id
    replaceable = lake.capabilities.snapshot_replacement
    if replaceable is None or replaceable.snapshot_identity(snapshot_id) is None:
        return
    names = StorageFiles(table.storage)
    if lost := files.keys() - set(map(names.name_of, lake.list_named_files(snapshot_id))):
        raise SnapshotExpiredError(
            f"{snapshot.state.name}: rows of {min(lost)} were deleted, but another engine replaced lake snapshot "
            f"{snapshot_id} by one without this file; tier the table to delete the rows in the lake"
        )


def deleted_offsets(snapshot: ReadSnapshot) -> Mapping[int, OffsetSet]:
    """Return bucket → deleted rows that the lake snapshot still contains."""
    tiered = snapshot.lake
    if tiered is None or not snapshot.state.deletions:
        return {}
    left = unapplied_deletes(snapshot.state.deletions, tiered.applied_through, tiered.offsets)
    below = {bucket: runs.within(OffsetRange(0, tiered.offsets.get(bucket, 0))) for bucket, runs in left.items()}
    return {bucket: runs for bucket, runs in below.items() if runs}


def prune_tasks(state: TableState, tasks: Iterable[ScanTask], pruning: Pruning) -> Iterator[ScanTask]:
    """Skip log segments without matching rows, and log tasks without segments."""
    for task in tasks:
        if not isinstance(task, LogScanTask):
            yield task
        elif (split := pruning.prune(state, task.split)).segments:
            yield LogScanTask(split)


# -- primary-key tables -----------------------------------------------------------------------------------------------


def _plan_keyed(table: TableHandle, snapshot: ReadSnapshot, request: ScanRequest) -> ScanSources:
    """Plan a scan of a primary-key table.

    Lake files of buckets with changes become scan tasks that merge them. Other lake files need no merge.
    """
    state, schema = snapshot.state, request.schema(snapshot.state)
    tails = tuple(plan_range(state, bucket, offsets) for bucket, offsets in snapshot.hot.items())
    keyed = MergeColumns(_with_key(state, schema), state.primary_key, tails, state.attempt)
    changed: set[int | None] = {tail.bucket for tail in tails}
    if changed:
        changed.add(None)  # a file of unknown bucket may belong to any bucket
    lake, merged_files = None, []
    if snapshot.lake is not None:
        lake = scan_tiered_snapshot(table, snapshot, replace(request, columns=keyed.schema.names))
        merged_files = [file for file in lake.files if file.bucket in changed]
        lake = replace(lake, files=tuple(file for file in lake.files if file.bucket not in changed))
    bases = [plan_snapshot(state, base) for base in snapshot.bases.values()]
    tasks = (
        *(KeyedScanTask(file.bucket, split, split.size_bytes) for file in merged_files for split in file.splits()),
        *(KeyedScanTask(base.bucket, None, base.size_bytes, base) for base in bases),
        *(KeyedScanTask(tail.bucket, None, tail.size_bytes) for tail in tails),
    )
    return ScanSources(state, schema, lake, tasks, are_exact=not tails, keyed=keyed)


def _with_key(state: TableState, schema: TableSchema) -> TableSchema:
    """Return the columns of the schema and of the primary key, in the table's order."""
    names = {*schema.names, *state.primary_key}
    if len(names) == len(state.schema.names):
        return state.schema
    return TableSchema(tuple(c for c in state.schema.columns if c.name in names))


# -- the lake ---------------------------------------------------------------------------------------------------------


def scan_tiered_snapshot(table: TableHandle, snapshot: ReadSnapshot, request: ScanRequest) -> LakeScan:
    """Return the lake files of a read snapshot. Raises `SnapshotExpiredError`; see `plan_scan`."""
    assert snapshot.lake is not None
    scan = scan_lake(table, snapshot.state, snapshot.lake.snapshot_id, request)
    require_recorded(snapshot.state, snapshot.lake, scan.snapshot)
    return scan


def scan_lake(table: TableHandle, state: TableState, snapshot_id: int, request: ScanRequest) -> LakeScan:
    """Return the files of a lake snapshot, mapped to the columns of the state. Raises `SnapshotExpiredError`."""
    allowed = request.pruning.buckets(state)
    scan = table.open_lake(state).scan_files(
        snapshot_id=snapshot_id,
        columns=request.schema(state).names,
        schema=state.schema,
        statistics_of=request.statistics_of,
        node=request.pruning.node,
        buckets=allowed,
    )
    if allowed is None:
        return scan
    return replace(scan, files=tuple(file for file in scan.files if file.bucket is None or file.bucket in allowed))


def plan_lake(
    table: TableHandle,
    state: TableState,
    projection: Projection,
    *,
    as_of_snapshot: int | None = None,
    as_of_timestamp_ms: int | None = None,
) -> ScanPlan:
    """Plan a read of the lake alone: of a snapshot by id or time, by default of the latest.

    The plan has no tasks before the first tiering round. Raises `SnapshotExpiredError`.
    """
    schema = ScanRequest.of(projection).schema(state)
    lake = table.open_lake().with_state(state)
    if as_of_timestamp_ms is not None:
        as_of_snapshot = lake.snapshot_as_of(as_of_timestamp_ms).id
    require_visible_snapshot(state, as_of_snapshot)
    plan = lake.plan_read(snapshot_id=as_of_snapshot, columns=schema.names, node=projection.node, schema=state.schema)
    require_initial_snapshot(state, plan.snapshot)
    if as_of_snapshot is None:
        require_metadata(state, lake, plan.snapshot)
    tasks = tuple(LakeScanTask(split, split.bucket) for split in plan.splits)
    return ScanPlan(table.name, table.uuid, schema, tasks, plan.projection)
