# ruff: noqa: A002 - `filter` is what pyarrow, and so every reader of this package, calls it
"""Reads a split of a lake: one data file, or files of a primary-key table that are merged by key."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.arrow_rows import combine_chunks, select_matching_rows, take_rows
from streamhouse_spark.errors import CorruptDataError
from streamhouse_spark.expressions.predicates import ALWAYS_TRUE, Node
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.keys.key_codec import as_numbers, encode_keys
from streamhouse_spark.keys.keyed_batch import sort_by_key
from streamhouse_spark.lake.parquet import reader as parquet_read
from streamhouse_spark.lake.parquet.parquet_io import FileAccess
from streamhouse_spark.lake.parquet.reader import BATCH_ROWS, NO_POSITIONS, Positions, read_row_groups, read_sort_fields
from streamhouse_spark.lake.types import Filter, LakeProjection, LakeSplit, LiveFile, MergedFile, MergedFiles
from streamhouse_spark.schema.table_schema import Column, TableSchema

RUN_BYTES_MAX = 128 << 20
"""Maximum bytes that are sorted in memory together."""


class KeyMergedFiles:
    """The live rows of several files, merged by key. The row in the latest file wins; only other engines write equal
    keys.

    Memory is bounded by one row group per file that is sorted by key, as the package's files are. Other files are first
    split into sorted runs (`split_into_sorted_runs`), which are spilled to the local disk if they are large.
    """

    def __init__(
        self,
        files: FileAccess,
        oldest_first: Sequence[LiveFile],
        projection: LakeProjection,
        key_ids: Sequence[int],
        key_indexes: Sequence[int],
    ) -> None:
        """``key_indexes`` are the indexes of the columns ``key_ids`` in the projection."""
        self._files = files
        self._oldest_first = oldest_first
        self._projection = projection
        self._order = ",".join(map(str, key_ids))
        self._key_indexes = key_indexes
        self.num_read = 0
        self.num_returned = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the merged rows. Raises `CorruptDataError` if a file is not sorted as its footer claims."""
        with TemporaryDirectory(prefix="streamhouse-merge-") as folder:
            cursors = [
                KeyCursor(run, self._key_indexes, file.location)
                for file in self._oldest_first
                for run in self._sorted_sequences(file, Path(folder))
            ]
            for parts in _read_by_key(cursors):
                for rows in self._merge([rows for rows, _ in parts]):
                    self.num_returned += rows.num_rows
                    yield rows

    def _sorted_sequences(self, file: LiveFile, folder: Path) -> Sequence[Iterator[pa.RecordBatch]]:
        """Return the rows as sequences of ascending keys. A later sequence has the newer row of a key."""
        batches = self._count_rows(read_row_groups(self._files, file, self._projection))
        if read_sort_fields(self._files, file.location) == self._order:
            return [batches]
        return split_into_sorted_runs(batches, self._merge_batch, folder, BATCH_ROWS)

    def _count_rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.num_read += batch.num_rows
            yield batch

    def _merge_batch(self, parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """Return `_merge` of a few rows as one batch."""
        merged = list(self._merge(parts))
        schema = self._projection.schema.arrow
        if not merged:
            return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        return merged[0] if len(merged) == 1 else pa.concat_batches(merged)

    def _merge(self, parts: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Merge rows by key. The last row of a key wins."""
        if not parts:
            return
        if len(parts) == 1 and _is_ascending(self._keys(parts[0])):
            yield parts[0]
            return
        rows = pa.Table.from_batches(parts, self._projection.schema.arrow)
        keys = encode_keys([combine_chunks(rows.column(index)) for index in self._key_indexes])
        order, is_first = sort_by_key(keys)
        ends = np.append(np.flatnonzero(is_first)[1:], len(order)) - 1
        yield from take_rows(rows, order[ends], distinct=True).to_batches()

    def _keys(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        return encode_keys([rows.column(index) for index in self._key_indexes])


class KeyCursor:
    """A reader of one file with ascending keys."""

    def __init__(self, batches: Iterator[pa.RecordBatch], key_indexes: Sequence[int], location: str) -> None:
        self._batches = batches
        self._key_indexes = key_indexes
        self._location = location
        self._rows: pa.RecordBatch | None = None
        self._keys: pa.BinaryArray = pa.array([], pa.binary())
        self.last_key = b""

    def has_rows(self) -> bool:
        while self._rows is None or not self._rows.num_rows:
            self._rows = next(self._batches, None)
            if self._rows is None:
                return False
            if self._rows.num_rows:
                self._keys = encode_keys([self._rows.column(index) for index in self._key_indexes])
                if not _is_ascending(self._keys) or self._keys[0].as_py() <= self.last_key:
                    raise CorruptDataError(
                        f"lake file {self._location} is not sorted by the primary key, as its metadata claims; "
                        "restore it, or rebuild the lake from the log (streamhouse retier)"
                    )
                self.last_key = self._keys[-1].as_py()
        return True

    def take(self, bound: bytes) -> tuple[pa.RecordBatch, pa.BinaryArray]:
        """Return and consume the rows up to the key ``bound``, with their keys. Loaded rows must reach ``bound``."""
        assert self._rows is not None
        end = bisect_right(range(len(self._keys)), bound, key=lambda i: self._keys[i].as_py())
        rows, keys = self._rows.slice(0, end), self._keys.slice(0, end)
        self._rows, self._keys = self._rows.slice(end), self._keys.slice(end)
        return rows, keys


def _read_by_key(cursors: Sequence[KeyCursor]) -> Iterator[list[tuple[pa.RecordBatch, pa.BinaryArray]]]:
    """Yield the next rows of the cursors with their keys, up to a key that all cursors have loaded."""
    while cursors := [cursor for cursor in cursors if cursor.has_rows()]:
        bound = min(cursor.last_key for cursor in cursors)
        parts = [cursor.take(bound) for cursor in cursors]
        yield [part for part in parts if part[0].num_rows]


def _is_ascending(keys: pa.BinaryArray) -> bool:
    """Return whether the keys strictly ascend."""
    numbers = as_numbers(keys)
    if numbers is not None:
        return bool((numbers[1:] > numbers[:-1]).all())
    is_larger = pc.greater(keys.slice(1), keys.slice(0, max(0, len(keys) - 1)))
    return pc.all(is_larger).as_py() is not False


def split_into_sorted_runs(
    batches: Iterable[pa.RecordBatch],
    sort: Callable[[Sequence[pa.RecordBatch]], pa.RecordBatch],
    folder: Path,
    batch_rows: int,
) -> list[Iterator[pa.RecordBatch]]:
    """Split rows into runs, in order. Each run is sorted by ``sort`` and returned in batches of ``batch_rows``.

    A single run stays in memory. Several runs are written to files in ``folder`` and memory-mapped.
    """
    runs: list[Iterator[pa.RecordBatch]] = []
    waiting: list[pa.RecordBatch] = []
    num_bytes = 0
    for batch in batches:
        if waiting and num_bytes + batch.nbytes > RUN_BYTES_MAX:
            runs.append(_spill(sort(waiting), folder, batch_rows))
            waiting, num_bytes = [], 0
        waiting.append(batch)
        num_bytes += batch.nbytes
    if not waiting:
        return runs
    last = sort(waiting)
    runs.append(_spill(last, folder, batch_rows) if runs else _slice_rows(last, batch_rows))
    return runs


def _slice_rows(rows: pa.RecordBatch, batch_rows: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, rows.num_rows, batch_rows):
        yield rows.slice(start, batch_rows)


def _spill(rows: pa.RecordBatch, folder: Path, batch_rows: int) -> Iterator[pa.RecordBatch]:
    path = folder / f"{len(list(folder.iterdir())):06}.arrow"
    with pa.ipc.new_file(str(path), rows.schema) as writer:
        for batch in _slice_rows(rows, batch_rows):
            writer.write_batch(batch)
    return _map_file(path)


def _map_file(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as file:
        reader = pa.ipc.open_file(file)
        for position in range(reader.num_record_batches):
            yield reader.get_batch(position)


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
    """Yield the rows of a split, with exactly the projection's columns and types.

    Rows are in file order, or in key order without duplicates for merged files. Row groups and the positions
    ``deleted`` of a plain file are skipped as in `parquet.reader.read_split`. Merged files are read completely, because
    a row that does not match the filter may replace an older row. Memory is bounded by a batch, or for merged files by
    one row group of each file. Raises `SnapshotExpiredError` for a missing file, and `CorruptDataError`.
    """
    if split.merge is None:
        yield from parquet_read.read_split(
            files, split, projection, filter=filter, node=node, deleted=deleted, threads=threads
        )
        return
    merged = SequenceMergedFiles(files, split.merge, projection)
    for rows in merged.batches():
        columns = rows.select(list(range(len(projection.schema.columns))))
        # A row that does not match the filter still replaces an older row, so the filter is applied last.
        if filter is not None:
            yield from select_matching_rows(pa.Table.from_batches([columns]), filter).to_batches()
        elif columns.num_rows:
            yield columns


class SequenceMergedFiles:
    """Primary-key files merged by key. The row with the largest sequence number wins, and is omitted if it is a delete.

    Reads the files together in key order, so memory is bounded by one row group of each.
    """

    def __init__(self, files: FileAccess, merge: MergedFiles, projection: LakeProjection) -> None:
        self._files = files
        self._merge = merge
        self.projection = _add_columns(projection, merge.by)
        """The projection to read: requested columns, then missing ones of key, sequence number and change type."""
        fields = list(self.projection.field_ids)
        *key, self._sequence, self._kind = (fields.index(field_id) for field_id in merge.by.field_ids)
        self._key_indexes = key
        self.num_read = 0
        self.num_tied = 0
        """Number of keys whose largest sequence number two rows have, so that the latest row is unknown."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the merged rows. Raises `CorruptDataError` if a file is not sorted by the key."""
        cursors = [KeyCursor(self._read_rows(file), self._key_indexes, file.location) for file in self._merge.files]
        for parts in _read_by_key(cursors):
            for rows in self._keep_newest(parts):
                if rows.num_rows:
                    yield rows

    def _read_rows(self, file: MergedFile) -> Iterator[pa.RecordBatch]:
        live = LiveFile(file.location, file.size_bytes, file.num_rows, 0, ())
        for batch in read_row_groups(self._files, live, self.projection, file.field_names):
            if any(batch.column(index).null_count for index in (*self._key_indexes, self._sequence, self._kind)):
                raise CorruptDataError(
                    f"lake file {file.location} has rows without a key, sequence number or change type; restore it, or "
                    "rewrite it with the engine that wrote it"
                )
            self.num_read += batch.num_rows
            yield batch

    def _keep_newest(self, parts: Sequence[tuple[pa.RecordBatch, pa.BinaryArray]]) -> Iterator[pa.RecordBatch]:
        """Yield the latest row of each key in key order, without deletes."""
        if len(parts) == 1:
            yield _drop_deletions(parts[0][0], self._kind)
            return
        keys = pa.concat_arrays([keys for _, keys in parts])
        sequences = np.concatenate([rows.column(self._sequence).to_numpy() for rows, _ in parts])
        by_age = np.argsort(sequences, kind="stable")
        order, is_first = sort_by_key(keys.take(pa.array(by_age)))
        ends = np.append(np.flatnonzero(is_first)[1:], len(order)) - 1
        older = by_age[order[np.maximum(ends - 1, 0)]]
        is_tied = ~is_first[ends] & (sequences[older] == sequences[by_age[order[ends]]])
        self.num_tied += int(np.count_nonzero(is_tied))
        rows_of_parts = pa.Table.from_batches([rows for rows, _ in parts])
        for rows in take_rows(rows_of_parts, by_age[order[ends]], distinct=True).to_batches():
            yield _drop_deletions(rows, self._kind)


def _add_columns(projection: LakeProjection, by: LakeProjection) -> LakeProjection:
    """Return the projection followed by missing columns of the other. Columns are equal by field."""
    missing = [i for i, field_id in enumerate(by.field_ids) if field_id not in projection.field_ids]
    # Ids and names have no meaning here, and may clash: a column may have had the name of another column.
    names_in_use = {name.casefold() for name in projection.schema.names}
    names = [by.schema.names[i] for i in missing]
    names = [f"_KEY_{name}" if name.casefold() in names_in_use else name for name in names]
    columns = (*projection.schema.columns, *(by.schema.columns[i] for i in missing))
    named = (*projection.schema.names, *names)
    renumbered = tuple(Column(i, n, c.type, c.nullable) for i, (n, c) in enumerate(zip(named, columns, strict=True)))
    return LakeProjection(
        TableSchema(renumbered),
        (*projection.field_ids, *(by.field_ids[i] for i in missing)),
        (*projection.lake_names, *(by.lake_names[i] for i in missing)),
        (*projection.inner, *(None for _ in missing)) if projection.inner else (),
        (*projection.first_names, *(() for _ in missing)) if projection.first_names else (),
    )


def _drop_deletions(rows: pa.RecordBatch, kind_index: int) -> pa.RecordBatch:
    kinds = rows.column(kind_index).to_numpy()
    is_live = (kinds == np.int8(ChangeType.INSERT)) | (kinds == np.int8(ChangeType.UPDATE_AFTER))
    return rows if is_live.all() else rows.filter(pa.array(is_live))
