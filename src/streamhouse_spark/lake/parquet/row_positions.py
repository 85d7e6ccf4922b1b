"""Rows of a data file by their row numbers, and rows that are equal to rows of a replaced file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.core.arrow_rows import drop_rows
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.expressions.predicates import ALWAYS_TRUE, Node
from streamhouse_spark.expressions.row_masks import mask_possible_rows, mask_rows_to_keep
from streamhouse_spark.lake.parquet.parquet_io import FileAccess
from streamhouse_spark.lake.parquet.reader import (
    NO_POSITIONS,
    FilesAt,
    OpenedSplit,
    Positions,
    RowGroups,
    deleted_rows_within,
    open_split,
)
from streamhouse_spark.lake.types import LakeProjection, LakeSplit
from streamhouse_spark.schema.variant import cast_rows

Numbers = npt.NDArray[np.int64]

Codes = npt.NDArray[np.int64]


def read_numbered(
    files: FileAccess,
    split: LakeSplit,
    projection: LakeProjection,
    *,
    node: Node = ALWAYS_TRUE,
    deleted: Positions = NO_POSITIONS,
) -> Iterator[tuple[Numbers, pa.RecordBatch]]:
    """Yield the batches of `read_split`, each with the row numbers in the file. Raises the errors of `read_split`.

    Skips row groups that cannot match ``node`` by their footer or their rows, and large runs of rows that do not match.
    """
    with open_split(files, split) as opened:
        columns = opened.columns(projection)
        chosen = _groups_to_read(opened, projection, node, opened.row_groups(columns, node))
        deleted_positions = opened.find_deleted_positions(files, chosen, deleted)
        for position, batch in opened.rows(columns, chosen):
            dropped = deleted_rows_within(deleted_positions, position, batch.num_rows)
            possible = mask_rows_to_keep(node, batch)
            if possible is None and not len(dropped):
                yield chosen.row_numbers(position, batch.num_rows), batch
                continue
            is_live = np.ones(batch.num_rows, np.bool_) if possible is None else possible
            is_live[dropped] = False
            if is_live.any():
                yield chosen.row_numbers(position, batch.num_rows)[is_live], drop_rows(batch, ~is_live)


def _groups_to_read(opened: OpenedSplit, projection: LakeProjection, node: Node, chosen: RowGroups) -> RowGroups:
    """Return the row groups with a row that may match, by reading the filter's columns first."""
    names = node.columns().intersection(projection.schema.names)
    if not 0 < len(names) < len(projection.schema.columns):
        return chosen
    filter_columns = projection.of_columns(names)
    if mask_possible_rows(node, pa.RecordBatch.from_pylist([], schema=filter_columns.schema.arrow)) is None:
        return chosen  # the filter, such as an Arrow expression, is not evaluated here
    hits = np.zeros(len(chosen.indexes), np.bool_)
    for position, batch in opened.rows(opened.columns(filter_columns), chosen):
        possible = mask_possible_rows(node, batch)
        rows = np.arange(batch.num_rows) if possible is None else np.flatnonzero(possible)
        hits[chosen.groups_of(position + rows)] = True
    return chosen.select(hits)


def read_rows_at(
    files_at: FilesAt, files: Mapping[str, LakeSplit], runs_at: Mapping[str, OffsetSet], projection: LakeProjection
) -> pa.Table:
    """Return the live rows at positions, which count from the start of the file, not of the split.

    ``files`` and ``runs_at`` are keyed by file name. Raises `SnapshotExpiredError` if a file is missing.
    """
    parts = [projection.schema.arrow.empty_table()]
    for name, runs in runs_at.items():
        positions, split = runs.offsets(), files[name]
        for numbers, batch in read_numbered(files_at(split.location), split, projection):
            chosen = batch.filter(pa.array(np.isin(numbers, positions, assume_unique=True)))
            parts.append(pa.Table.from_batches([chosen]))
    return pa.concat_tables(parts)


def find_equal_rows(
    files_at: FilesAt, newer: Iterable[tuple[str, LakeSplit]], rows: pa.Table, projection: LakeProjection
) -> Iterator[tuple[str, Positions]]:
    """Yield file names with positions of rows that are equal to ``rows`` in all columns: one per row of ``rows``.

    If more rows are equal, those of the first files are returned.
    """
    unmatched = RowMultiset(rows)
    for name, split in newer:
        if not unmatched.num_unmatched:
            return
        numbered = read_numbered(files_at(split.location), split, projection)
        hits = [numbers[unmatched.take_matches(batch)] for numbers, batch in numbered]
        if sum(map(len, hits)):
            yield name, np.concatenate(hits)


class RowMultiset:
    """A multiset of rows, with the number of unmatched occurrences of each row."""

    def __init__(self, rows: pa.Table) -> None:
        codes = encode_rows(rows)
        _, first, counts = np.unique(codes, return_index=True, return_counts=True)
        self._rows = rows.take(pa.array(first))
        self._counts = counts.astype(np.int64)

    @property
    def num_unmatched(self) -> int:
        return int(self._counts.sum())

    def take_matches(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return which rows of a batch match a remaining occurrence each, and remove these occurrences."""
        num_rows = self._rows.num_rows
        rows = cast_rows(pa.Table.from_batches([batch]), self._rows.schema)
        codes = encode_rows(pa.concat_tables([self._rows, rows]))
        row_of_code = np.full(int(codes.max(initial=-1)) + 1, -1, np.int64)
        row_of_code[codes[:num_rows]] = np.arange(num_rows)
        candidates = row_of_code[codes[num_rows:]]
        hits = np.flatnonzero(candidates >= 0)
        order = hits[np.argsort(candidates[hits], kind="stable")]
        ordered = candidates[order]
        nth = np.arange(len(order)) - np.searchsorted(ordered, ordered, side="left")
        matched = order[nth < self._counts[ordered]]
        self._counts -= np.bincount(candidates[matched], minlength=num_rows)
        is_match = np.zeros(batch.num_rows, np.bool_)
        is_match[matched] = True
        return is_match


def encode_rows(rows: pa.Table) -> Codes:
    """Return a number from 0 for each row. Two numbers are equal exactly if the rows are equal."""
    codes = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        codes = _combine_codes(codes, _encode(_combine_chunks(column)))
    return codes


def _encode(values: pa.Array) -> Codes:
    """Return a number for each value. Null is a value, NaN equals NaN, and zeros of different sign differ."""
    if isinstance(values, pa.ExtensionArray):
        return _encode(values.storage)
    kind = values.type
    if pa.types.is_struct(kind):
        codes = np.zeros(len(values), np.int64)
        for child in values.flatten():
            codes = _combine_codes(codes, _encode(child))
        return _encode_nulls(codes, values)
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _encode_nulls(_encode_lists(values), values)
    if pa.types.is_fixed_size_list(kind):
        return _encode(values.cast(pa.list_(kind.value_type)))
    if pa.types.is_floating(kind):
        return _encode_nulls(_encode_floats(values), values)
    if pa.types.is_null(kind):
        return np.zeros(len(values), np.int64)
    plain = values if pa.types.is_dictionary(kind) else values.dictionary_encode()
    numbers: Codes = plain.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False) + 1
    return numbers


def _encode_floats(values: pa.Array) -> Codes:
    numbers = values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False).copy()
    numbers[np.isnan(numbers)] = np.nan
    return _renumber(numbers.view(np.int64))


def _encode_lists(values: pa.Array) -> Codes:
    """Encode each list as one binary value, from the numbers of its elements."""
    as_lists = values.cast(pa.list_(values.type.value_type)) if pa.types.is_large_list(values.type) else values
    offsets = as_lists.offsets.cast(pa.int64()).to_numpy()
    if pa.types.is_map(values.type):
        inner = _combine_codes(_encode(as_lists.keys), _encode(as_lists.items))
    else:
        inner = _encode(as_lists.values)
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets * 8)), pa.py_buffer(np.ascontiguousarray(inner))]
    data = pa.Array.from_buffers(pa.large_binary(), len(values), buffers)
    return _encode(data)


def _encode_nulls(codes: Codes, values: pa.Array) -> Codes:
    """Reserve a separate number for null."""
    return np.where(values.is_valid().to_numpy(zero_copy_only=False), codes + 1, 0) if values.null_count else codes + 1


def _combine_codes(left: Codes, right: Codes) -> Codes:
    """Return a number for each pair."""
    return _renumber(_renumber(left) * (int(right.max(initial=0)) + 1) + right)


def _renumber(codes: Codes) -> Codes:
    dense: Codes = np.unique(codes, return_inverse=True)[1].astype(np.int64).reshape(-1)
    return dense


def _combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
