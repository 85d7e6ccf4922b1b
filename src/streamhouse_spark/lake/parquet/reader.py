# ruff: noqa: A002 - `filter` is what pyarrow, and so every reader of this package, calls it
"""Reads of data files with Arrow: matching row groups, columns by field id, position deletes, and offsets.

The rows of the selected row groups form one sequence. `RowGroups` maps positions in it to row numbers of the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core import arrow_rows
from streamhouse_spark.core.arrow_rows import combine_small_chunks, take_rows
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import (
    CorruptDataError,
    ObjectNotFoundError,
    OffsetsTrimmedError,
    SnapshotExpiredError,
    count_of,
)
from streamhouse_spark.expressions.predicates import (
    ALWAYS_TRUE,
    ONLY_NULLS,
    UNKNOWN_BOUNDS,
    Bounds,
    Node,
    family_of,
    may_match,
    to_comparable,
)
from streamhouse_spark.lake.parquet.file_columns import TABLE_KEY, FileColumns
from streamhouse_spark.lake.parquet.footer_checksum import is_whole, read_checked_footer
from streamhouse_spark.lake.parquet.parquet_io import FileAccess
from streamhouse_spark.lake.types import FieldNames, Filter, LakeProjection, LakeSplit, LiveFile

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from streamhouse_spark.lake.parquet.parquet_source import ParquetSource

Numbers = npt.NDArray[np.int64]

_MICROSECONDS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
_STATISTICS_ERRORS = (pa.ArrowException, OverflowError, ValueError, TypeError, ArithmeticError)
"""Errors of Arrow and Python for statistics that have no valid value."""

BUCKET_KEY = "streamhouse.bucket"
OFFSETS_KEY = "streamhouse.offsets"
SORTED_BY_KEY = "streamhouse.sorted-by"
"""Footer key with the field ids of the primary key, if the rows are sorted by it."""
DELETED_KEY = "streamhouse.deleted"
"""Footer key with the number of positions in a position delete file. Missing positions would restore rows."""
BATCH_ROWS = 1 << 16
BATCH_BYTES_MAX = 128 << 20
Positions = npt.NDArray[np.int64]
NO_POSITIONS: Final[Positions] = np.zeros(0, np.int64)
FilesAt = Callable[[str], FileAccess]
"""Returns the access to the files near a location."""
_DAMAGE = (pa.ArrowException, ValueError, OSError)
"""Errors of Arrow for bytes that are not the expected Parquet."""


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Ascending row groups of a file."""

    indexes: tuple[int, ...]
    first_rows: Numbers
    """The row number in the file of each group's first row."""
    starts: Numbers
    """The position of each group's first row in the sequence, followed by the number of all rows."""

    @classmethod
    def of(cls, sizes: Sequence[int], indexes: Sequence[int]) -> RowGroups:
        """Select row groups of a file whose groups have these ``sizes`` in rows."""
        first_rows = np.cumsum([0, *sizes], dtype=np.int64)
        chosen = np.asarray(indexes, np.int64)
        lengths = first_rows[chosen + 1] - first_rows[chosen]
        return cls(tuple(indexes), first_rows[chosen], np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))

    @property
    def num_rows(self) -> int:
        return int(self.starts[-1])

    def select(self, is_kept: npt.NDArray[np.bool_]) -> RowGroups:
        """Return the groups for which ``is_kept``."""
        lengths = np.diff(self.starts)[is_kept]
        indexes = tuple(np.asarray(self.indexes)[is_kept].tolist())
        return RowGroups(indexes, self.first_rows[is_kept], np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))

    def row_numbers(self, position: int, num_rows: int) -> Numbers:
        """Return the row numbers in the file of ``num_rows`` rows of the sequence, starting at ``position``."""
        numbers = np.arange(position, position + num_rows, dtype=np.int64)
        if not num_rows:
            return numbers
        shifts = self.first_rows - self.starts[:-1]
        first, last = self.groups_of(numbers[[0, -1]])
        return numbers + (shifts[first] if first == last else shifts[self.groups_of(numbers)])

    def groups_of(self, positions: Numbers) -> Numbers:
        """Return, for each position, where its group is in ``indexes``."""
        groups: Numbers = np.searchsorted(self.starts, positions, side="right") - 1
        return groups

    def positions_of(self, row_numbers: Numbers) -> Numbers:
        """Return the positions of rows with these ascending row numbers, without rows of other groups."""
        if not len(row_numbers) or not self.indexes:
            return np.zeros(0, np.int64)
        group = np.searchsorted(self.first_rows, row_numbers, side="right") - 1
        positions: Numbers = row_numbers - self.first_rows[group] + self.starts[group]
        return positions[(group >= 0) & (positions < self.starts[group + 1])]


def select_matching_groups(
    footer: pq.FileMetaData, indexes: Sequence[int], columns: FileColumns, node: Node
) -> list[int]:
    """Return the row groups that may match the filter, which uses the names of ``columns``.

    Missing statistics match any filter. A column that the file does not have is null.
    """
    missing = {name: ONLY_NULLS for name, stored in columns.stored.items() if stored is None}
    bounded = _columns_with_bounds(footer, columns, node.columns())
    groups = []
    for index in indexes:
        group = footer.row_group(index)
        bounds = {name: _bounds(group.column(leaf), kind) for name, (leaf, kind) in bounded.items()}
        if may_match(node, missing | bounds):
            groups.append(index)
    return groups


def _columns_with_bounds(
    footer: pq.FileMetaData, columns: FileColumns, names: Collection[str]
) -> Mapping[str, tuple[int, pa.DataType]]:
    """Return the columns whose footer statistics compare like the table's values, with their leaf index and type."""
    if not names:
        return {}
    paths = [footer.schema.column(leaf).path for leaf in range(len(footer.schema))]
    leaf_of = {path: leaf for leaf, path in enumerate(paths)}
    for path, number in Counter(paths).items():
        if number > 1:  # a column "a.b" next to a field "b" of a column "a"
            del leaf_of[path]
    type_of = {field.name: field.type for field in columns.schema}
    return {
        name: (leaf_of[stored.name], stored.type)
        for name, stored in columns.stored.items()
        if name in names
        and stored is not None
        and stored.name in leaf_of
        and _is_comparable(stored.type, type_of[name])
    }


def _is_comparable(stored: pa.DataType, target: pa.DataType) -> bool:
    """Return whether a cast to the table's type preserves the order of values and their filter semantics."""
    types = pa.types
    if family_of(stored) is None or family_of(stored) != family_of(target):
        return False
    if types.is_decimal(stored) or types.is_decimal(target):
        return types.is_decimal(stored) and types.is_decimal(target) and bool(stored.scale == target.scale)
    if types.is_timestamp(stored):
        return stored.unit in _MICROSECONDS and bool(target.unit == "us")
    return stored.equals(target) or bool(stored.bit_width < target.bit_width)


def _bounds(chunk: pq.ColumnChunkMetaData, stored: pa.DataType) -> Bounds:
    statistics = chunk.statistics
    if statistics is None:
        return UNKNOWN_BOUNDS
    nulls = statistics.null_count if statistics.has_null_count else None
    low, high = _low_and_high(statistics, stored, is_integer=chunk.physical_type in ("INT32", "INT64"))
    return Bounds(
        low,
        high,
        may_be_null=nulls != 0,
        may_have_value=nulls is None or nulls < chunk.num_values,
        may_be_nan=pa.types.is_floating(stored),  # writers exclude NaN from statistics and do not count it
    )


def _low_and_high(statistics: pq.Statistics, stored: pa.DataType, *, is_integer: bool) -> tuple[Any, Any]:
    """Return the minimum and maximum in the form of `Bounds`, or None if unknown."""
    if not statistics.has_min_max:
        return None, None
    types = pa.types
    try:
        if types.is_timestamp(stored) and is_integer:
            return statistics.min_raw * _MICROSECONDS[stored.unit], statistics.max_raw * _MICROSECONDS[stored.unit]
        if types.is_date(stored) and is_integer:
            return statistics.min_raw, statistics.max_raw
        if types.is_decimal(stored) and is_integer:
            return Decimal(statistics.min_raw).scaleb(-stored.scale), Decimal(statistics.max_raw).scaleb(-stored.scale)
        low, high = statistics.min, statistics.max
    except _STATISTICS_ERRORS:
        return None, None
    if low != low or high != high:  # noqa: PLR0124 - some writers include NaN
        return None, None
    return to_comparable(low), to_comparable(high)


def read_split(
    files: FileAccess,
    split: LakeSplit,
    projection: LakeProjection,
    *,
    filter: Filter = None,
    node: Node = ALWAYS_TRUE,
    deleted: Positions = NO_POSITIONS,
    threads: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split in file order, with exactly the projection's columns and types.

    Skips row groups that cannot match the filter ``node``, and the rows at the ascending, distinct positions
    ``deleted``. With ``threads``, Arrow decodes in all its threads. Raises `SnapshotExpiredError` if the file is
    missing, and `CorruptDataError` if it cannot be read.
    """
    with open_split(files, split) as opened:
        columns = opened.columns(projection)
        chosen = opened.row_groups(columns, node)
        deleted_positions = opened.find_deleted_positions(files, chosen, deleted)
        for position, rows in opened.rows(columns, chosen, threads=threads):
            dropped = deleted_rows_within(deleted_positions, position, rows.num_rows)
            parts = arrow_rows.slice_live_rows(rows, dropped)
            if filter is not None and parts is None:
                yield from arrow_rows.select_matching_rows(pa.Table.from_batches([rows]), filter, dropped).to_batches()
            elif filter is not None and parts:
                yield from arrow_rows.select_matching_rows(pa.Table.from_batches(parts), filter).to_batches()
            elif parts is None:
                yield arrow_rows.copy_live_rows(rows, dropped)
            elif parts:
                yield from parts


class OpenedSplit:
    """A split whose file is open."""

    def __init__(self, file: ParquetSource, split: LakeSplit) -> None:
        self._file = file
        self._split = split
        self._groups = range(file.num_row_groups) if split.row_groups is None else range(*split.row_groups)
        _require_rows(file, split, self._groups)

    def columns(self, projection: LakeProjection) -> FileColumns:
        return FileColumns(self._file, self._split.location, projection, self._split.field_names)

    def row_groups(self, columns: FileColumns, node: Node) -> RowGroups:
        """Return the row groups of the split that may match the filter, which uses the names of the columns."""
        footer = self._file.metadata
        matching = self._groups if node is ALWAYS_TRUE else select_matching_groups(footer, self._groups, columns, node)
        return RowGroups.of([footer.row_group(i).num_rows for i in range(footer.num_row_groups)], list(matching))

    def find_deleted_positions(
        self, files: FileAccess, chosen: RowGroups, deleted: Positions = NO_POSITIONS
    ) -> Positions:
        """Return the positions, in the sequence of these row groups, of deleted rows and of row numbers ``deleted``."""
        if not chosen.num_rows:
            return NO_POSITIONS
        row_numbers = read_deleted_positions(files, self._split.location, self._split.position_deletes)
        return chosen.positions_of(_union_positions(row_numbers, deleted))

    def rows(
        self, columns: FileColumns, chosen: RowGroups, *, threads: bool = False
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield all rows of these row groups as batches, each with the position of its first row in their sequence."""
        position = 0
        if not chosen.indexes:
            return
        for batch in _batches(self._file, self._split.location, list(chosen.indexes), columns.names, threads=threads):
            yield position, columns.project(batch)
            position += batch.num_rows


@contextmanager
def open_split(files: FileAccess, split: LakeSplit) -> Iterator[OpenedSplit]:
    """Open the file of a split. Raises the errors of `read_split`."""
    with _open_file(files, split.location) as file:
        yield OpenedSplit(file, split)


def read_row_groups(
    files: FileAccess, file: LiveFile, projection: LakeProjection, field_names: FieldNames = ()
) -> Iterator[pa.RecordBatch]:
    """Yield the live rows of a file in file order. Memory is bounded by one row group."""
    with _open_file(files, file.location) as opened:
        _require_rows(opened, LakeSplit(file.location, file.size_bytes, file.num_rows), range(0))
        num_groups = opened.num_row_groups
    for group in range(num_groups):
        part, deletes = (group, group + 1), file.deletes
        split = LakeSplit(file.location, file.size_bytes, file.num_rows, part, deletes, field_names=field_names)
        yield from read_split(files, split, projection)


def num_rows_in(files: FileAccess, location: str) -> int:
    """Return the number of rows in a file, including deleted rows."""
    with _open_file(files, location) as file:
        return int(file.metadata.num_rows)


def owner_of(files: FileAccess, location: str) -> str | None:
    """Return the uuid of the table that wrote the file, or None for a file of another engine."""
    with _open_file(files, location) as file:
        table_uuid = (file.metadata.metadata or {}).get(TABLE_KEY.encode())
    return None if table_uuid is None else str(table_uuid, "utf-8", "replace")


def read_sort_fields(files: FileAccess, location: str) -> str | None:
    """Return the field ids of the file's sort order from its footer, or None for a file of another engine."""
    with _open_file(files, location) as file:
        fields = (file.metadata.metadata or {}).get(SORTED_BY_KEY.encode())
    return None if fields is None else str(fields, "utf-8", "replace")


def has_whole_footer(files: FileAccess, location: str) -> bool:
    """Return whether the file has a checksum of footer and page index, as the package's files do.

    Raises `CorruptDataError` if the checksum does not match, and `SnapshotExpiredError` if the file is missing.
    """
    try:
        with files.open_input(location) as source:
            return is_whole(source, location)
    except ObjectNotFoundError as error:
        raise _expired_error(location) from error
    except _DAMAGE as error:
        raise _damaged_error(location, error) from error


def _require_rows(file: pq.ParquetFile, split: LakeSplit, groups: range) -> None:
    """Require that the footer has all rows. Nothing else detects a truncated footer, which has fewer rows."""
    counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    is_whole = sum(counts) == file.metadata.num_rows and groups.stop <= len(counts)
    if not is_whole or (split.row_groups is None and sum(counts) != split.num_rows):
        raise CorruptDataError(
            f"lake file {split.location} has {count_of(sum(counts), 'row')} in {count_of(len(counts), 'row group')}, "
            f"expected {split.num_rows}; restore it, or rebuild the lake from the log (streamhouse retier)"
        )


def _open_file(files: FileAccess, location: str, *, dictionaries: Sequence[str] = ()) -> ParquetSource:
    """Open the file. Verifies each page and footer that has a checksum, as all files of the package have."""
    from streamhouse_spark.lake.parquet.parquet_source import ParquetSource  # it imports pyarrow.parquet

    try:
        source = files.open_input(location)
        return ParquetSource(
            source,
            metadata=read_checked_footer(source, location),
            pre_buffer=True,
            page_checksum_verification=True,
            read_dictionary=list(dictionaries),
        )
    except ObjectNotFoundError as error:
        raise _expired_error(location) from error
    except _DAMAGE as error:
        raise _damaged_error(location, error) from error


def _batches(
    file: ParquetSource, location: str, groups: list[int], names: list[str], *, threads: bool = False
) -> Iterator[pa.RecordBatch]:
    expected = sum(file.metadata.row_group(i).num_rows for i in groups)
    batches = file.batches(_batch_rows(file, groups), groups, names, threads=threads)
    while True:
        try:
            batch = next(batches, None)
        except ObjectNotFoundError as error:
            raise _expired_error(location) from error
        except _DAMAGE as error:
            raise _damaged_error(location, error) from error
        if batch is None:
            break
        expected -= batch.num_rows
        yield batch
    if expected:
        raise CorruptDataError(
            f"lake file {location}: {count_of(expected, 'row')} of its row groups are missing; restore it, "
            "or rebuild the lake from the log (streamhouse retier)"
        )


def _batch_rows(file: pq.ParquetFile, groups: list[int]) -> int:
    """Return the rows per batch. Arrow fails on lists and structs with more than 2 GiB of text in a batch."""
    row_groups = [file.metadata.row_group(i) for i in groups]
    row_bytes = max((group.total_byte_size // max(1, group.num_rows) for group in row_groups), default=0)
    return max(1, min(BATCH_ROWS, BATCH_BYTES_MAX // max(1, row_bytes)))


def _expired_error(location: str) -> SnapshotExpiredError:
    return SnapshotExpiredError(
        f"lake file {location} no longer exists, because its snapshot expired during the read; retry the query. If the "
        "error persists, it was lost: restore it, or rebuild the lake from the log (streamhouse retier)"
    )


def _damaged_error(location: str, error: Exception) -> CorruptDataError:
    return CorruptDataError(
        f"cannot read lake file {location}: {error}; restore it, or rebuild the lake from the log (streamhouse retier)"
    )


# -- deleted positions ------------------------------------------------------------------------------------------------


def read_deleted_positions(files: FileAccess, location: str, deletes: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the ascending, distinct row numbers that position delete files delete from a data file."""
    positions = [_positions_in(files, delete, location) for delete in deletes]
    if len(positions) == 1 and bool((positions[0][1:] > positions[0][:-1]).all()):
        return positions[0]
    return np.unique(np.concatenate(positions)) if positions else np.zeros(0, np.int64)


def _union_positions(positions: Positions, more: Positions) -> Positions:
    """Return the union of ascending, distinct positions. This is ten times as fast as `numpy.union1d`."""
    if not len(positions) or not len(more):
        return positions if len(positions) else more
    every = np.concatenate([positions, more])
    every.sort(kind="stable")  # merges the two runs
    united: Positions = every[np.concatenate([[True], every[1:] != every[:-1]])]
    return united


def _positions_in(files: FileAccess, delete: str, location: str) -> npt.NDArray[np.int64]:
    try:
        with _open_file(files, delete, dictionaries=("file_path",)) as file:
            is_own = _names_only(files, file, location)
            table = file.read(columns=["pos"] if is_own else ["file_path", "pos"])
            written = (file.metadata.metadata or {}).get(DELETED_KEY.encode())
        if not is_own:
            paths = table["file_path"].combine_chunks()
            table = table.filter(pc.equal(paths.indices, _index_of(files, paths.dictionary, location)))
        positions: npt.NDArray[np.int64] = table["pos"].cast(pa.int64()).to_numpy()
    except ObjectNotFoundError as error:
        raise _expired_error(delete) from error
    except (*_DAMAGE, KeyError) as error:
        raise _damaged_error(delete, error) from error
    if written is not None and written != str(len(positions)).encode():
        raise CorruptDataError(
            f"lake file {delete} has {len(positions)} positions of {location}, expected {written!r}; restore it, "
            "or rebuild the lake from the log (streamhouse retier)"
        )
    return positions


def _index_of(files: FileAccess, names: pa.StringArray, location: str) -> int:
    """Return the index of a data file in ``names``, or -1 if it is missing."""
    index = pc.index_in(pa.array([location]), names)[0].as_py()
    if index is None:
        index = next((i for i, name in enumerate(names.to_pylist()) if files.is_named(name, location)), -1)
    return int(index)


def _names_only(files: FileAccess, file: pq.ParquetFile, location: str) -> bool:
    """Return whether the footer proves that all positions belong to this data file."""
    column = file.schema_arrow.get_field_index("file_path")
    for i in range(file.num_row_groups):
        statistics = file.metadata.row_group(i).column(column).statistics
        if (
            statistics is None
            or not statistics.has_min_max
            or statistics.min != statistics.max
            or not files.is_named(statistics.min, location)
        ):
            return False
    return True


def deleted_rows_within(deleted: Positions, position: int, num_rows: int) -> Positions:
    """Return which of ``num_rows`` rows that start at ``position`` are deleted, relative to ``position``."""
    first, last = deleted.searchsorted([position, position + num_rows])
    return deleted[first:last] - position


# -- offsets ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileWithOffsets:
    """A data file with its bucket and the offsets of its rows."""

    location: str
    bucket: int
    runs: OffsetSet


def read_file_offsets(files: FileAccess, location: str, writers: Collection[str]) -> FileWithOffsets | None:
    """Return the offsets of a file from its footer, or None for a file of another engine or not of ``writers``."""
    with _open_file(files, location) as file:
        metadata = file.metadata.metadata or {}
        num_rows = file.metadata.num_rows
    bucket, runs_text = metadata.get(BUCKET_KEY.encode()), metadata.get(OFFSETS_KEY.encode())
    writer = str(metadata.get(TABLE_KEY.encode(), b""), "utf-8", "replace")
    if bucket is None or runs_text is None or writer not in writers:
        return None
    runs = OffsetSet.from_text(runs_text, where=location)
    if runs.num_rows != num_rows:
        raise CorruptDataError(
            f"lake file {location} has {count_of(num_rows, 'row')}, expected {count_of(runs.num_rows, 'offset')}; "
            "restore it, or rebuild the lake from the log (streamhouse retier)"
        )
    return FileWithOffsets(location, int(bucket), runs)


def read_offsets(
    files_at: FilesAt,
    candidates: Sequence[FileWithOffsets],
    bucket: int,
    offsets: OffsetRange,
    projection: LakeProjection,
    locations: Collection[str] | None = None,
    *,
    may_lack: bool = False,
) -> Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch]]:
    """Yield the rows of a range with their offsets, in offset order. Memory is bounded by one batch per open file.

    Reads only files in ``locations``. Raises `OffsetsTrimmedError` before the first row unless the candidate files
    together have each offset exactly once, or with ``may_lack`` at most once.
    """
    parts = [(file, file.runs.within(offsets)) for file in candidates if file.bucket == bucket]
    parts = [(file, runs) for file, runs in parts if runs.num_rows]
    runs = [runs for _, runs in parts]
    if not (may_lack and OffsetSet.merged(runs).num_rows == sum(part.num_rows for part in runs)):
        _require_cover(runs, bucket, offsets)
    if locations is not None:
        parts = [(file, runs) for file, runs in parts if file.location in locations]
    return read_in_offset_order(files_at, parts, offsets, projection)


def _require_cover(parts: Sequence[OffsetSet], bucket: int, offsets: OffsetRange) -> None:
    starts = np.concatenate([np.zeros(0, np.int64), *(p.starts for p in parts)])
    lengths = np.concatenate([np.zeros(0, np.int64), *(p.lengths for p in parts)])
    order = np.argsort(starts)
    ends = (starts + lengths)[order]
    begins = starts[order]
    boundaries = np.concatenate([begins, [offsets.end]]) == np.concatenate([[offsets.start], ends])
    if not bool(boundaries.all()):
        first = int(np.flatnonzero(~boundaries)[0])
        at = int(ends[first - 1]) if first else offsets.start
        raise OffsetsTrimmedError(
            f"bucket {bucket}: the lake's files no longer have exactly the offsets {offsets} from {at}, because a "
            "partition was dropped, or another engine rewrote or deleted rows; start later, or set "
            "failOnDataLoss=false to skip them"
        )


def read_in_offset_order(
    files_at: FilesAt, parts: list[tuple[FileWithOffsets, OffsetSet]], offsets: OffsetRange, projection: LakeProjection
) -> Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch]]:
    """Yield the rows of several files at ``offsets``, in offset order. Each row is in one file."""
    cursors = [_make_cursor(files_at(file.location), file, runs, projection) for file, runs in parts]
    return merge_by_offset(cursors, offsets, BATCH_ROWS)


def merge_by_offset(
    cursors: Iterable[RowCursor], offsets: OffsetRange, window_offsets: int
) -> Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch]]:
    """Yield the rows of cursors in offset order, from one window of offsets at a time. Cursors may interleave."""
    waiting = sorted(cursors, key=lambda cursor: cursor.runs.range.start, reverse=True)
    active: list[RowCursor] = []
    begin = offsets.start
    while begin < offsets.end and (waiting or active):
        window = OffsetRange(begin, min(begin + window_offsets, offsets.end))
        while waiting and waiting[-1].runs.range.start < window.end:
            active.append(waiting.pop())
        pieces = [(cursor.runs.within(window), cursor) for cursor in active]
        if pieces := [(runs, cursor) for runs, cursor in pieces if runs]:
            yield from _read_window(pieces)
        active = [cursor for cursor in active if cursor.runs.range.end > window.end]
        begin = window.end if active or not waiting else max(window.end, waiting[-1].runs.range.start)


def _read_window(pieces: list[tuple[OffsetSet, RowCursor]]) -> Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch]]:
    """Read the next rows of each cursor, and yield them together in offset order."""
    rows = pa.concat_tables([cursor.take(runs.num_rows) for runs, cursor in pieces])
    offsets = np.concatenate([runs.offsets() for runs, _ in pieces])
    if len(pieces) > 1:
        order = np.argsort(offsets, kind="stable")
        rows, offsets = take_rows(rows, order, distinct=True), offsets[order]
    begin = 0
    for batch in combine_small_chunks(rows).to_batches():
        yield offsets[begin : begin + batch.num_rows], batch
        begin += batch.num_rows


class RowCursor:
    """A reader of a row stream whose rows have the offsets ``runs``."""

    def __init__(self, runs: OffsetSet, rows: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
        self.runs = runs
        self._schema = schema
        self._rows = rows
        self._left: list[pa.RecordBatch] = []

    def take(self, num_rows: int) -> pa.Table:
        tables, count = [], 0
        while count < num_rows:
            batch = self._left.pop() if self._left else next(self._rows)
            if count + batch.num_rows > num_rows:
                num_taken = num_rows - count
                self._left.append(batch.slice(num_taken))
                batch = batch.slice(0, num_taken)
            tables.append(batch)
            count += batch.num_rows
        return pa.Table.from_batches(tables, schema=self._schema)


def _make_cursor(files: FileAccess, file: FileWithOffsets, runs: OffsetSet, projection: LakeProjection) -> RowCursor:
    """Return a cursor over the rows of a file at these offsets."""
    first, last = file.runs.rows_of(runs.range)
    return RowCursor(runs, _read_rows_between(files, file.location, projection, first, last), projection.schema.arrow)


def _read_rows_between(
    files: FileAccess, location: str, projection: LakeProjection, first: int, last: int
) -> Iterator[pa.RecordBatch]:
    with _open_file(files, location) as file:
        columns = FileColumns(file, location, projection)
        ends = np.cumsum([file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)])
        group_first = int(np.searchsorted(ends, first, side="right"))
        group_last = int(np.searchsorted(ends, last, side="left")) + 1
        position = int(ends[group_first - 1]) if group_first else 0
        for batch in _batches(file, location, list(range(group_first, group_last)), columns.names):
            start, end = max(first - position, 0), min(last - position, batch.num_rows)
            position += batch.num_rows
            if end > start:
                yield columns.project(batch.slice(start, end - start))
