"""Rows of Arrow tables: size-bounded chunks, selection, grouping and sorting.

An Arrow array of texts has 32-bit offsets and holds at most 2 GiB; a chunked array has no limit. All code that gathers
rows of a batch uses this module, so that no array approaches the limit. A slice has at least one row, so it is larger
than `SLICE_BYTES_MAX` if the row is. Input rows are limited to `ROW_BYTES_MAX`. Two rows of this size, such as the rows
before and after an update, still fit into an array.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

SLICE_BYTES_MAX = 256 << 20
"""Maximum bytes of rows that are combined into one array. Tests set a smaller value."""
ROW_BYTES_MAX = 512 << 20
"""Maximum bytes of a row in all columns."""
KEY_ROWS_BYTES_MAX = 1 << 30
"""Maximum bytes of all rows of one primary key in a batch, including the stored row."""
KEYS_BYTES_MAX = 1 << 30
"""Maximum bytes of the primary keys of a batch for one bucket."""
STEP_ROWS = 1 << 16
"""Rows that are measured together, unless a cut is near."""

Column: TypeAlias = pa.Array | pa.ChunkedArray
Sizes = npt.NDArray[np.int64]
Places = npt.NDArray[np.int64]
NO_PLACES: Final[Places] = np.zeros(0, np.int64)
_SLICE_ROWS_MIN: Final = 4096
"""Slices of this average number of rows are cheaper than a copy."""


def is_any_text(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(data_type) or types.is_large_string(data_type) or types.is_string_view(data_type))


def is_any_binary(data_type: pa.DataType) -> bool:
    types = pa.types
    kinds = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
    return any(is_kind(data_type) for is_kind in kinds)


def is_any_list(data_type: pa.DataType) -> bool:
    types = pa.types
    kinds = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    return any(is_kind(data_type) for is_kind in kinds)


def cut_by_size(sizes: Sizes, bytes_max: int | None = None) -> Iterator[tuple[int, int]]:
    """Cut rows into ranges of at most ``bytes_max`` bytes (default `SLICE_BYTES_MAX`). Each has at least one row."""
    limit = SLICE_BYTES_MAX if bytes_max is None else bytes_max
    ends = np.cumsum(sizes)
    start, done = 0, 0
    while start < len(sizes):
        end = max(start + 1, int(np.searchsorted(ends, done + limit, side="right")))
        yield start, end
        start, done = end, int(ends[end - 1])


def estimate_row_bytes(column: Column) -> Sizes:
    """Return an upper bound on the bytes of each value in an array."""
    if isinstance(column, pa.ChunkedArray):
        return np.concatenate([np.zeros(0, np.int64), *map(estimate_row_bytes, column.chunks)])
    sizes: Sizes = np.maximum(_value_bytes(column), 1)
    return sizes


def table_row_bytes(rows: pa.Table | pa.RecordBatch) -> Sizes:
    """Return the sum of `estimate_row_bytes` of all columns, with only one array in memory."""
    fixed_columns = [column for column in rows.columns if _is_fixed(column.type)]
    sizes = np.full(rows.num_rows, sum(_fixed_bytes(column.type) for column in fixed_columns), np.int64)
    for column in rows.columns:
        if not _is_fixed(column.type):
            start = 0
            for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
                sizes[start : start + len(chunk)] += estimate_row_bytes(chunk)
                start += len(chunk)
    return sizes


def slice_by_size(rows: pa.Table, bytes_max: int | None = None) -> Iterator[pa.Table]:
    """Cut the rows into zero-copy slices; see `cut_by_size`. Single rows are measured only near a cut."""
    limit = SLICE_BYTES_MAX if bytes_max is None else bytes_max
    if rows.nbytes <= limit:
        yield rows
        return
    start, done, pending_bytes = 0, 0, 0
    for step, step_bytes in _iter_sized_batches(rows):
        if pending_bytes + step_bytes > limit:
            # All rows after the last cut count as one row before the rows of the step.
            sizes = np.append(pending_bytes, table_row_bytes(step))
            ranges = list(cut_by_size(sizes, limit))
            for _, end in ranges[:-1]:
                if end > 1 or done > start:
                    yield rows.slice(start, done + end - 1 - start)
                start = done + end - 1
            pending_bytes = int(sizes[slice(*ranges[-1])].sum())
        else:
            pending_bytes += step_bytes
        done += step.num_rows
    yield rows.slice(start)


def may_have_large_row(rows: pa.Table) -> bool:
    """Return whether a row may exceed `ROW_BYTES_MAX`, without measuring single rows."""
    return rows.nbytes > ROW_BYTES_MAX and any(size > ROW_BYTES_MAX for _, size in _iter_sized_batches(rows))


def _iter_sized_batches(rows: pa.Table) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield zero-copy batches with their sizes. Arrow computes the sizes fast for most types."""
    may_repeat = any(map(_may_repeat, rows.schema.types))
    for step in rows.to_batches(max_chunksize=STEP_ROWS):
        yield step, int(table_row_bytes(step).sum()) if may_repeat else step.nbytes


def slice_for_cast(array: pa.Array) -> list[pa.Array]:
    """Cut a user's column into slices that can be cast to a type with 32-bit offsets."""
    if is_small_column(array, SLICE_BYTES_MAX):
        return [array]
    return [array.slice(start, end - start) for start, end in cut_by_size(estimate_row_bytes(array))] or [array]


def is_small_column(column: Column, bytes_max: int) -> bool:
    """Return whether a column certainly has at most ``bytes_max``, without measuring single values."""
    return not _may_repeat(column.type) and column.nbytes <= bytes_max


def combine_small_chunks(rows: pa.Table) -> pa.Table:
    """Return the rows in few chunks."""
    parts = [part.combine_chunks() for part in slice_by_size(rows)]
    return parts[0] if len(parts) == 1 else pa.concat_tables(parts)


def take_values(column: Column, places: Places, *, distinct: bool = False) -> Column:
    """Take the values at the indices ``places``, null for -1, as one array or in chunks of `SLICE_BYTES_MAX`.

    Single values are not measured if the indices are ``distinct``.
    """
    if _fits_into_slice(column, places, distinct=distinct):
        return combine_chunks(column).take(_as_indices(places))
    sizes = np.append(estimate_row_bytes(column), 1)  # the last entry is for index -1
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    firsts = np.cumsum([0, *(len(chunk) for chunk in chunks)])[:-1]
    parts = [
        _take_from_chunks(chunks, firsts, places[start:end], column.type) for start, end in cut_by_size(sizes[places])
    ]
    return parts[0] if len(parts) == 1 else pa.chunked_array(parts, type=column.type)


def take_rows(rows: pa.Table, places: Places, *, distinct: bool = False) -> pa.Table:
    """Take rows: `take_values` of each column."""
    columns = [take_values(column, places, distinct=distinct) for column in rows.columns]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def combine_chunks(column: Column) -> pa.Array:
    """Return a column of at most a few slices as one array."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def combine_if_small(column: pa.ChunkedArray) -> Column:
    """Return the column as one array if it fits into a slice, otherwise in few chunks."""
    if column.num_chunks == 1 or column.nbytes <= SLICE_BYTES_MAX:
        return combine_chunks(column)
    return combine_small_chunks(pa.table([column], names=["column"])).column(0)


def concat_columns(parts: Iterable[Column], data_type: pa.DataType) -> pa.ChunkedArray:
    """Concatenate columns, without a copy."""
    chunks: list[pa.Array] = []
    for part in parts:
        chunks += part.chunks if isinstance(part, pa.ChunkedArray) else [part]
    return pa.chunked_array(chunks, type=data_type)


def cut_binaries_by_size(values: Sequence[bytes | None]) -> Iterator[tuple[int, int]]:
    """Cut binary values into ranges; see `cut_by_size`."""
    return cut_by_size(value_lengths(values))


def value_lengths(values: Sequence[bytes | None]) -> Sizes:
    return np.fromiter(map(len, [value or b"" for value in values]), np.int64, len(values))


def _fits_into_slice(column: Column, places: Places, *, distinct: bool) -> bool:
    """Return whether the values at ``places`` fit into one array of `SLICE_BYTES_MAX`."""
    if not _is_variable(column.type):
        return True
    if column.nbytes > SLICE_BYTES_MAX:
        return False
    if distinct or column.nbytes * len(places) <= SLICE_BYTES_MAX:
        return True
    return int(np.append(estimate_row_bytes(column), 1)[places].sum()) <= SLICE_BYTES_MAX


def _as_indices(places: Places) -> pa.Array:
    absent = places < 0
    return pa.array(places, mask=absent) if absent.any() else pa.array(places)


def _take_from_chunks(chunks: Sequence[pa.Array], firsts: Places, places: Places, data_type: pa.DataType) -> pa.Array:
    """Return the values at the indices. They are taken from each chunk, then reordered."""
    owners = np.where(places < 0, -1, np.searchsorted(firsts, places, side="right") - 1)
    order = np.argsort(owners, kind="stable")
    chunk_numbers, starts = np.unique(owners[order], return_index=True)
    parts = []
    for owner, chunk_places in zip(chunk_numbers.tolist(), np.split(places[order], starts[1:]), strict=True):
        if owner < 0:
            parts.append(pa.nulls(len(chunk_places), data_type))
        else:
            parts.append(chunks[owner].take(pa.array(chunk_places - firsts[owner])))
    if len(parts) == 1:
        return parts[0]
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return pa.concat_arrays(parts).take(pa.array(back))


def _value_bytes(array: pa.Array) -> Sizes:
    data_type, types = array.type, pa.types
    if isinstance(data_type, pa.BaseExtensionType):
        return _value_bytes(array.storage)
    if types.is_string_view(data_type) or types.is_binary_view(data_type):
        array = array.cast(pa.large_string() if types.is_string_view(data_type) else pa.large_binary())
        return _value_bytes(array)
    if _is_bytes(data_type):
        lengths: Sizes = pc.binary_length(array).fill_null(0).to_numpy().astype(np.int64)
        return lengths + 4
    if types.is_dictionary(data_type):
        words = np.append(estimate_row_bytes(array.dictionary), 1)
        of_words: Sizes = words[array.indices.cast(pa.int64()).fill_null(-1).to_numpy()]
        return of_words
    if types.is_run_end_encoded(data_type):
        values = pa.array(estimate_row_bytes(array.values))
        runs = pa.RunEndEncodedArray.from_arrays(array.run_ends, values)
        of_runs: Sizes = pc.run_end_decode(runs).to_numpy()[array.offset : array.offset + len(array)]
        return of_runs
    if types.is_struct(data_type):
        return sum(map(estimate_row_bytes, array.flatten()), start=np.ones(len(array), np.int64))
    if types.is_map(data_type):
        bounds = array.offsets.to_numpy().astype(np.int64)
        first, last = int(bounds[0]), int(bounds[-1])
        inner = estimate_row_bytes(array.keys.slice(first, last - first)) + estimate_row_bytes(
            array.items.slice(first, last - first)
        )
        return _list_row_bytes(inner, np.diff(bounds))
    if is_any_list(data_type):
        return _list_row_bytes(
            estimate_row_bytes(array.flatten()), pc.list_value_length(array).fill_null(0).to_numpy().astype(np.int64)
        )
    return np.full(len(array), _fixed_bytes(data_type), np.int64)


def _fixed_bytes(data_type: pa.DataType) -> int:
    """Return the bytes per value of a fixed-width type."""
    return 8 if pa.types.is_null(data_type) else max(-(-data_type.bit_width // 8), 1)


def _is_fixed(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_primitive(data_type) or types.is_decimal(data_type) or types.is_null(data_type))


def _list_row_bytes(inner: Sizes, counts: Sizes) -> Sizes:
    """Return the bytes of lists, given their lengths and the bytes of their elements."""
    until = np.concatenate([np.zeros(1, np.int64), np.cumsum(inner)])
    ends = np.cumsum(counts)
    sizes: Sizes = until[ends] - until[ends - counts] + 4
    return sizes


def _is_bytes(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(data_type)
        or types.is_large_string(data_type)
        or types.is_binary(data_type)
        or types.is_large_binary(data_type)
    )


def _may_repeat(data_type: pa.DataType) -> bool:
    """Return whether an array of the type can represent more bytes than it stores."""
    types = pa.types
    if isinstance(data_type, pa.BaseExtensionType):
        return _may_repeat(data_type.storage_type)
    if types.is_dictionary(data_type) or types.is_run_end_encoded(data_type):
        return True
    views = (types.is_string_view, types.is_binary_view, types.is_list_view, types.is_large_list_view)
    if any(is_kind(data_type) for is_kind in views):
        return True
    return types.is_nested(data_type) and any(
        _may_repeat(data_type.field(place).type) for place in range(data_type.num_fields)
    )


def _is_variable(data_type: pa.DataType) -> bool:
    return _is_bytes(data_type) or pa.types.is_nested(data_type)


def distinct_rows(rows: pa.Table) -> pa.Table:
    """Return the distinct rows, in no particular order."""
    numbers = _numbers(rows)
    groups = _with_numbered_names(rows).group_by(numbers, use_threads=False).aggregate([])
    return groups.select(numbers).rename_columns(rows.column_names)


def sum_by_group(rows: pa.Table, by: Sequence[str]) -> pa.Table:
    """Return the columns ``by`` and the sums of the other columns, one row per group. A sum with a null is null."""
    summed_names = [name for name in rows.column_names if name not in by]
    selected = rows.select([*by, *summed_names])
    keys, summed = (_numbers(selected)[: len(by)], _numbers(selected)[len(by) :])
    keep_nulls = pc.ScalarAggregateOptions(skip_nulls=False)
    groups = (
        _with_numbered_names(selected)
        .group_by(keys, use_threads=False)
        .aggregate([(n, "sum", keep_nulls) for n in summed])
    )
    return groups.select([*keys, *(f"{number}_sum" for number in summed)]).rename_columns([*by, *summed_names])


def sort_rows(rows: pa.Table, by: Sequence[str]) -> pa.Table:
    """Sort the rows by the columns ``by``, ascending, nulls last."""
    keys = [(str(rows.column_names.index(name)), "ascending") for name in by]
    return _with_numbered_names(rows).sort_by(keys).rename_columns(rows.column_names)


def _numbers(rows: pa.Table) -> list[str]:
    return [str(place) for place in range(rows.num_columns)]


def _with_numbered_names(rows: pa.Table) -> pa.Table:
    """Name the columns by their numbers, because column names may be duplicates."""
    return rows.rename_columns(_numbers(rows))


def evaluate_filter(rows: pa.Table, filter_: pc.Expression) -> pa.ChunkedArray:
    """Return the filter's value for each row.

    The calling thread evaluates the filter. `pyarrow.Table.filter` would use threads of Arrow, which may release rows
    in Python's memory during interpreter shutdown. They then request the GIL, which aborts the process: a command
    exited with code 134 after it had printed its result (Arrow issue 34314).
    """
    from pyarrow import acero  # imports pandas if installed

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(rows))
    plan = acero.Declaration("project", acero.ProjectNodeOptions([filter_], ["is_wanted"]), [source])
    return plan.to_table(use_threads=False).column(0)


def select_matching_rows(rows: pa.Table, filter_: pc.Expression, deleted_places: Places = NO_PLACES) -> pa.Table:
    """Return the rows for which the filter is true, in order, without the rows at ``deleted_places``."""
    matches = combine_chunks(evaluate_filter(rows, filter_))
    if not pa.types.is_boolean(matches.type):
        raise pa.ArrowTypeError(f"Filter expression must evaluate to bool, but {filter_} evaluates to {matches.type}")
    if len(deleted_places):
        matches = pc.and_(matches, live_mask(rows.num_rows, deleted_places))
    selected, begin = [], 0
    for batch in rows.to_batches():
        selected.append(_select_batch(batch, matches.slice(begin, batch.num_rows)))
        begin += batch.num_rows
    return pa.Table.from_batches(selected, rows.schema)


def slice_live_rows(batch: pa.RecordBatch, deleted_places: Places) -> list[pa.RecordBatch] | None:
    """Return the rows not at ``deleted_places`` as zero-copy slices; None if the slices are so short that a copy is
    cheaper.
    """
    if not len(deleted_places):
        return [batch] if batch.num_rows else []
    starts = np.concatenate([NO_PLACES, [0], deleted_places + 1])
    ends = np.concatenate([deleted_places, [batch.num_rows]])
    is_nonempty = ends > starts
    if np.count_nonzero(is_nonempty) * _SLICE_ROWS_MIN > batch.num_rows:
        return None
    parts = zip(starts[is_nonempty].tolist(), ends[is_nonempty].tolist(), strict=True)
    return [batch.slice(start, end - start) for start, end in parts]


def copy_live_rows(batch: pa.RecordBatch, deleted_places: Places) -> pa.RecordBatch:
    """Return a copy of the rows not at ``deleted_places``, in order."""
    return _select_batch(batch, live_mask(batch.num_rows, deleted_places)) if len(deleted_places) else batch


def live_mask(num_rows: int, deleted_places: Places) -> pa.BooleanArray:
    """Return for each row whether it is not at ``deleted_places``."""
    is_live = np.ones(num_rows, np.bool_)
    is_live[deleted_places] = False
    return _boolean_array(is_live)


def drop_rows(batch: pa.RecordBatch, dropped: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """Return the rows that are not ``dropped``, in order."""
    if not dropped.any():
        return batch
    return _select_batch(batch, _boolean_array(~dropped))


def _select_batch(batch: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    columns = [column.filter(mask) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema) if columns else batch.filter(mask)


def _boolean_array(is_live: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    """Return a boolean array, ten times faster than `pyarrow.array`."""
    data = pa.py_buffer(np.packbits(is_live, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(is_live), [None, data], 0)
