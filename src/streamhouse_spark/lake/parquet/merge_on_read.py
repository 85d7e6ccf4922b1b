# ruff: noqa: A002 - `filter` is what pyarrow, and so every reader of this package, calls it
"""Reads of any split of a lake: a plain data file, or primary-key files merged while they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from streamhouse_spark.core.arrow_chunking import take_rows
from streamhouse_spark.errors import CorruptDataError
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.keys.keyed_batch import sort_by_key
from streamhouse_spark.lake.model.data_files import LiveFile
from streamhouse_spark.lake.model.values import Filter, LakeProjection, LakeSplit, MergedFile, MergedFiles
from streamhouse_spark.lake.parquet import reader as parquet_read
from streamhouse_spark.lake.parquet.parquet_io import FileAccess
from streamhouse_spark.lake.parquet.reader import NO_POSITIONS, Positions, read_row_groups
from streamhouse_spark.lake.parquet.sorted_merge import KeyCursor
from streamhouse_spark.query.predicates import ALWAYS_TRUE, Node
from streamhouse_spark.query.row_selection import select_matching_rows
from streamhouse_spark.schema.table_schema import Column, TableSchema


def read_split(
    files: FileAccess,
    split: LakeSplit,
    projection: LakeProjection,
    *,
    filter: Filter = None,
    node: Node = ALWAYS_TRUE,
    deleted: Positions = NO_POSITIONS,
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a split, with exactly the projection's columns and types.

    Rows come in file order, or in key order without duplicates for merged files. A plain file is pruned by ``node``,
    the tree of a filter, and by its positions ``deleted``. Merged files are not: a row that does not match the filter
    may still replace an older one. Memory is bounded by a batch, for merged files by one row group of each. Raises
    `SnapshotExpiredError` if a file is missing, `CorruptDataError` if it cannot be read.
    """
    if split.merge is None:
        yield from parquet_read.read_split(files, split, projection, filter=filter, node=node, deleted=deleted)
        return
    merged = NewestRows(files, split.merge, projection)
    for rows in merged.batches():
        columns = rows.select(list(range(len(projection.schema.columns))))
        # A row that does not match the filter still replaces an older one, so the filter comes last.
        if filter is not None:
            yield from select_matching_rows(pa.Table.from_batches([columns]), filter).to_batches()
        elif columns.num_rows:
            yield columns


def read_whole(
    files: FileAccess,
    split: LakeSplit,
    projection: LakeProjection,
    *,
    filter: Filter = None,
    node: Node = ALWAYS_TRUE,
    deleted: Positions = NO_POSITIONS,
) -> pa.Table:
    """Read the rows of `read_split` at once; a plain file with all of Arrow's threads."""
    if split.merge is None:
        return parquet_read.read_whole(files, split, projection, filter=filter, node=node, deleted=deleted)
    return pa.Table.from_batches(read_split(files, split, projection, filter=filter), schema=projection.schema.arrow)


class NewestRows:
    """Primary-key files merged into one sequence: per key the row with the largest sequence number, unless it is a
    delete.

    Reads the files in parallel in key order, so memory is bounded by one row group of each.
    """

    def __init__(self, files: FileAccess, merge: MergedFiles, projection: LakeProjection) -> None:
        self._files = files
        self._merge = merge
        self.projection = _add_columns(projection, merge.by)
        """The projection to read: the requested columns, then missing columns of the key, sequence and kind."""
        fields = list(self.projection.field_ids)
        *key, self._sequence, self._kind = (fields.index(field_id) for field_id in merge.by.field_ids)
        self._key_places = key
        self.num_read = 0
        self.num_tied = 0
        """Number of keys whose largest sequence number two rows share, so that the latest row is unknown."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the merged rows. Raises `CorruptDataError` if a file is not sorted by the key."""
        cursors = [KeyCursor(self._read_rows(file), self._key_places, file.location) for file in self._merge.files]
        while cursors := [cursor for cursor in cursors if cursor.has_rows()]:
            bound = min(cursor.last_key for cursor in cursors)
            parts = [cursor.take_with_keys(bound) for cursor in cursors]
            for rows in self._keep_newest([part for part in parts if part[0].num_rows]):
                if rows.num_rows:
                    yield rows

    def _read_rows(self, file: MergedFile) -> Iterator[pa.RecordBatch]:
        live = LiveFile(file.location, file.size_bytes, file.num_rows, 0, ())
        for batch in read_row_groups(self._files, live, self.projection, file.field_names):
            if any(batch.column(place).null_count for place in (*self._key_places, self._sequence, self._kind)):
                raise CorruptDataError(
                    f"lake file {file.location} has rows without a key, a sequence number or a kind; restore it, or "
                    "rewrite it with the engine that wrote it"
                )
            self.num_read += batch.num_rows
            yield batch

    def _keep_newest(self, parts: Sequence[tuple[pa.RecordBatch, pa.BinaryArray]]) -> Iterator[pa.RecordBatch]:
        """Return the latest row of each key, in key order, without deletes."""
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
    # Ids and names are not needed here, and may clash: a column may have had the name of another.
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


def _drop_deletions(rows: pa.RecordBatch, kind_place: int) -> pa.RecordBatch:
    kinds = rows.column(kind_place).to_numpy()
    is_live = (kinds == np.int8(ChangeType.INSERT)) | (kinds == np.int8(ChangeType.UPDATE_AFTER))
    return rows if is_live.all() else rows.filter(pa.array(is_live))
