"""Row ids of lake rows in row-level statements.

Rows without offsets are identified by file and position in the snapshot that was read. If another lake snapshot was
recorded since, rows with offsets are located again, because another engine may have rewritten their files without
offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field, replace
from typing import Final, TypeVar

import pyarrow as pa

from streamhouse_spark.config.table_properties import ADOPTED
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import CommitConflictError, InvalidOptionError, SnapshotExpiredError
from streamhouse_spark.lake.base import LakeTable
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.lake.parquet.row_positions import read_numbered
from streamhouse_spark.log.deletion_vectors import FileRows, count_rows, union_deleted_file_rows
from streamhouse_spark.log.read_version import ReadVersion, changed_since_read_error
from streamhouse_spark.log.segments.metadata_columns import NO_PLACE, Int64Array, offsets_by_bucket, positions_by_file
from streamhouse_spark.log.state import TableState
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table_handle import TableHandle

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RowLocations:
    """Rows of a log table."""

    rows: Mapping[int, OffsetSet]
    """Bucket → offsets."""
    files: FileRows = field(default_factory=dict)
    """Lake file name → positions of rows without offsets."""

    @property
    def num_rows(self) -> int:
        return count_rows(self.rows) + count_rows(self.files)


NO_ROWS: Final = RowLocations({})


def take_read_version(table: TableHandle, state: TableState) -> ReadVersion:
    """Return the read version of a statement, with which `locate_rows` detects a replaced lake snapshot."""
    read = ReadVersion.of(state)
    if state.lake is None or state.primary_key:
        return read
    return replace(read, lake_mark=_snapshot_mark(table.open_lake().with_state(state), state.lake.snapshot_id))


def _snapshot_mark(lake: LakeTable, snapshot_id: int) -> str | None:
    """Return the mark that distinguishes a snapshot from a replacement with the same id, if the format has marks."""
    replaceable = lake.capabilities.snapshot_replacement
    return None if replaceable is None else replaceable.snapshot_identity(snapshot_id)


def locate_row_ids(table: TableHandle, state: TableState, read: ReadVersion, ids: Int64Array) -> RowLocations:
    """Return the rows with these ids. ``read`` was taken before the rows were read.

    Raises the errors of `require_row_ids` and `locate_rows`.
    """
    require_row_ids(state.name, ids)
    return RowLocations(offsets_by_bucket(ids), locate_rows(table, state, read, positions_by_file(ids)))


def require_row_ids(table: str, ids: Int64Array) -> None:
    """Require that every id identifies a row. Raises `InvalidOptionError`."""
    if (ids == NO_PLACE).any():
        raise InvalidOptionError(
            f"table {table}: some rows have no offsets, because they were adopted or written by another engine, and "
            "the read used a fallback snapshot, in which they have no row ids; nothing was written: run the statement "
            "again, or change the rows in the lake with that engine"
        )


def locate_rows(table: TableHandle, state: TableState, read: ReadVersion, places: Mapping[int, OffsetSet]) -> FileRows:
    """Return rows by file name, given by the places of their files. Raises the errors of `file_names_at`."""
    names = file_names_at(table, state, read, places)
    return {names[place]: positions for place, positions in places.items()}


def file_names_at(
    table: TableHandle, state: TableState, read: ReadVersion, places: Collection[int]
) -> Mapping[int, str]:
    """Return place → file name. A place is the position of a file among all files of the snapshot that was read.

    Raises `SnapshotExpiredError`, and `CommitConflictError` if another engine replaced the snapshot.
    """
    if not places:
        return {}
    snapshot_id = read.lake_snapshot_id
    assert snapshot_id is not None
    names, lake = StorageFiles(table.storage), table.open_lake().with_state(state)
    all_files = lake.list_named_files(snapshot_id)
    if _snapshot_mark(lake, snapshot_id) != read.lake_mark:
        raise changed_since_read_error(state, f"another engine replaced lake snapshot {snapshot_id}")
    return {place: names.name_of(all_files[place]) for place in places}


def read_lake_file(
    table: TableHandle, schema: TableSchema, snapshot_id: int, name: str
) -> Iterator[tuple[Int64Array, pa.RecordBatch]]:
    """Read a data file of a lake snapshot by name: batches of rows, with their positions.

    Raises `SnapshotExpiredError` if the snapshot does not exist, or another engine replaced it by one without the file.
    """
    lake, names = table.open_lake().with_schema(schema), StorageFiles(table.storage)
    plan = lake.plan_read(snapshot_id=snapshot_id, schema=schema)
    splits = [split for split in plan.splits if names.name_of(split.location) == name]
    if not splits:
        raise SnapshotExpiredError(
            f"lake file {name} of {table.name} with deleted rows is not in lake snapshot {snapshot_id}, which another "
            "engine replaced; compare two versions of the table instead"
        )
    for split in splits:
        yield from read_numbered(lake.binding.files_at(split.location), split, plan.projection)


def require_same_files(state: TableState, read: ReadVersion, files: FileRows) -> None:
    """Require that the rows still exist at the positions at which they were read.

    Raises `CommitConflictError` if a concurrent writer deleted a row, or if the lake snapshot of the state may have
    other files than the snapshot that was read.
    """
    lake = state.lake.snapshot_id if state.lake is not None else None
    if not state.has_same_lake_files(read.lake_snapshot_id, lake):
        raise changed_since_read_error(
            state, f"it read lake snapshot {read.lake_snapshot_id}, and {lake} may have other files"
        )
    deleted_rows = union_deleted_file_rows(state.deletions)
    for name, runs in files.items():
        if name in deleted_rows and (common := deleted_rows[name].common(runs)):
            raise changed_since_read_error(
                state, f"a concurrent writer deleted the row at position {common.range.start} of {name}"
            )


# -- rows with offsets, in a lake with other writers ------------------------------------------------------------------


class LakeSnapshotChangedError(CommitConflictError):
    """A lake snapshot was recorded after rows were read, in which their offsets have not been located yet."""

    def __init__(self, state: TableState) -> None:
        super().__init__(f"{state.name}: another lake snapshot was recorded since the rows were read")
        self.state = state


class OffsetsUnavailableError(CommitConflictError):
    """Rows that were read with offsets have lost them."""


def require_located(state: TableState, read: ReadVersion, rows: Mapping[int, OffsetSet]) -> None:
    """Require that tiered rows were read from the recorded lake snapshot, or located in it.

    Raises `LakeSnapshotChangedError`.
    """
    lake = state.lake
    if lake is None or lake.snapshot_id == read.lake_snapshot_id or lake.snapshot_id in read.checked_snapshots:
        return
    if _tiered_rows(state, rows):
        raise LakeSnapshotChangedError(state)


def retry_with_relocated_rows(
    table: TableHandle,
    rows: Callable[[], Mapping[int, OffsetSet]],
    read: ReadVersion,
    commit: Callable[[ReadVersion], _T],
) -> _T:
    """Return the result of ``commit``, which deletes rows by offset and calls `require_located`.

    If another lake snapshot was recorded, locates the rows in it and calls ``commit`` again with a new read version.
    ``rows`` returns the rows of the last call. Rows are located between the commit attempts, so that other writers need
    not wait. Raises the errors of ``commit``, and `OffsetsUnavailableError` if nothing was written.
    """
    while True:
        try:
            return commit(read)
        except LakeSnapshotChangedError as error:
            state = error.state
        assert state.lake is not None
        if not lake_has_offsets(table, state, rows()):
            raise OffsetsUnavailableError(
                f"{state.name} changed while an operation that had read its rows was running: in lake snapshot "
                f"{state.lake.snapshot_id} some rows have lost their offsets, because another engine rewrote or "
                "dropped their files; nothing was written, run it again",
                condition="COMMIT_CONFLICT",
            )
        read = replace(read, checked_snapshots=read.checked_snapshots | {state.lake.snapshot_id})


def lake_has_offsets(table: TableHandle, state: TableState, rows: Mapping[int, OffsetSet]) -> bool:
    """Return whether the recorded lake snapshot still has the tiered part of the rows at their offsets.

    If this package wrote all files, the file names are sufficient. Raises `SnapshotExpiredError`.
    """
    from streamhouse_spark.lake.parquet.file_writer import parse_file_offsets

    tiered_rows = _tiered_rows(state, rows)
    if state.lake is None or not tiered_rows:
        return True
    lake = table.open_lake().with_state(state)
    if ADOPTED not in state.properties and all(map(parse_file_offsets, lake.list_named_files(state.lake.snapshot_id))):
        return True
    return count_rows(lake.find_rows_with_offsets(state.lake.snapshot_id, tiered_rows)) == count_rows(tiered_rows)


def _tiered_rows(state: TableState, rows: Mapping[int, OffsetSet]) -> dict[int, OffsetSet]:
    tiered_rows = {bucket: runs.within(OffsetRange(0, state.lake_offset(bucket))) for bucket, runs in rows.items()}
    return {bucket: runs for bucket, runs in tiered_rows.items() if runs}
