"""Clustering of a log table's lake, in any format: each file has a range of a sort order.

Rewrites the files of a bucket and partition so that each file has the rows between two cut points of a `SortOrder`. Its
bounds then allow data skipping. Within a file, rows keep their offset order, and the footer contains their offsets.
Files that are written together are a *cluster*: their names end with the marks of the order and of the cluster. A
cluster is rewritten only together with about as many new bytes, so that a row is rewritten only a few times.

The order has columns in sequence, or interleaved columns as ``zorder(a, b)``. The rank of a value is the number of cut
points that are not above it. The ranks of a row's columns are concatenated, or for a z-order interleaved bitwise
(Morton, 1966). Cut points come from a sample of the rows, which they divide evenly for any distribution. Null ranks
with the lowest values, NaN with the highest.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import parse_names
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.lake.parquet.bucket_writer import LANES_MAX, Int64Array, write_clustered_files
from streamhouse_spark.lake.parquet.compaction import CompactGroup, StoredFile
from streamhouse_spark.lake.parquet.file_writer import FileOutput, parse_clustered_file_name, parse_file_offsets
from streamhouse_spark.lake.parquet.parquet_io import FileAccess
from streamhouse_spark.lake.parquet.reader import BATCH_ROWS, RowCursor, merge_by_offset, read_split
from streamhouse_spark.lake.types import LakeFile, LakeProjection
from streamhouse_spark.schema.ddl import type_name
from streamhouse_spark.schema.partitioning import split_fields
from streamhouse_spark.schema.table_schema import TableSchema

COLUMNS_MAX: Final = 8
_BITS_MAX: Final = 12
"""Bits per column. Bounds of files cannot use more than 4,095 cut points."""
_ZORDER: Final = re.compile(r"\s*zorder\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)
_PLAIN: Final = re.compile(r"\w+")


CLUSTERED_FILE_BYTES: Final = 32 << 20
"""Target size of a clustered file. Small files have tight bounds, which matter more than a small number of files."""
CLUSTER_BYTES_MAX: Final = 1 << 30
CLUSTER_ROWS_MAX: Final = 1 << 25
"""Maximum rows of a cluster. Their offsets are in memory while it is written."""
_SAMPLE_ROWS: Final = 1 << 18
_GROWTH: Final = 2
"""A cluster is rewritten together with new files of at least half its bytes."""
_WINDOW_OFFSETS_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SortOrder:
    """Terms in sequence. Each term is one column, or several interleaved columns."""

    terms: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        """Return the order as text that `parse_sort_order` accepts."""
        quoted = [[n if _PLAIN.fullmatch(n) else f"`{n.replace('`', '``')}`" for n in term] for term in self.terms]
        texts = map(", ".join, quoted)
        return ", ".join(
            text if len(term) == 1 else f"zorder({text})" for term, text in zip(self.terms, texts, strict=True)
        )

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column for term in self.terms for column in term)

    def fingerprint(self, schema: TableSchema) -> str:
        """Return 8 hexadecimal digits that identify this order, independent of the current column names."""
        ids = [[schema.column(column).id for column in term] for term in self.terms]
        return hashlib.sha256(str(ids).encode()).hexdigest()[:8]


def parse_sort_order(text: str, schema: TableSchema) -> SortOrder:
    """Parse an order such as ``a, zorder(b, c)``.

    Raises `SchemaMismatchError` for an unknown column, and `InvalidOptionError` for an unordered or repeated column,
    and for no columns or too many.
    """
    terms = []
    for piece in split_fields(text):
        call = None if schema.find(piece) else _ZORDER.fullmatch(piece)
        names = parse_names(call[1] if call else piece)
        if call is None and len(names) == 1 and re.search(r"\s(asc|desc|nulls)\b", piece, re.IGNORECASE):
            raise InvalidOptionError(
                f"order_by {text!r}: {piece!r} has a direction, which bounds of files do not have; specify only the "
                "column"
            )
        if not names or (call is None and len(names) > 1):
            raise InvalidOptionError(f"order_by {text!r}: found {piece!r}, expected a, b or zorder(a, b)")
        terms.append(tuple(schema.column(name).name for name in names))
    order = SortOrder(tuple(terms))
    if not 1 <= len(order.columns) <= COLUMNS_MAX:
        raise InvalidOptionError(f"order_by {text!r} has {len(order.columns)} columns, expected 1 to {COLUMNS_MAX}")
    for name in order.columns:
        column = schema.column(name)
        if order.columns.count(name) > 1:
            raise InvalidOptionError(f"order_by {text!r}: column '{name}' is repeated; remove the repetition")
        if pa.types.is_nested(column.type):
            raise InvalidOptionError(
                f"order_by {text!r}: column '{name}' has type {type_name(column.type)}, which has no order; remove it"
            )
    return order


class ZOrderRanks:
    """Ranks rows by a sort order with cut points of a sample. Ranks ascend in the order."""

    def __init__(self, order: SortOrder, sample: pa.Table) -> None:
        self._order = order
        self._bits = min(_BITS_MAX, 62 // len(order.columns))
        self._cuts = {name: _cut_points(sample[name], (1 << self._bits) - 1) for name in order.columns}

    def of(self, rows: pa.RecordBatch | pa.Table) -> Int64Array:
        """Return the rank of each row."""
        z_values = np.zeros(rows.num_rows, dtype=np.int64)
        for term in self._order.terms:
            ranks = [self._rank(name, rows) for name in term]
            z_values = (z_values << (self._bits * len(term))) | _interleave_bits(ranks, self._bits)
        return z_values

    def _rank(self, name: str, rows: pa.RecordBatch | pa.Table) -> Int64Array:
        """Return ranks below 2 ** bits. Their first bit halves the cut points, as a z-order requires."""
        cuts = self._cuts[name]
        return _count_cuts_below(cuts, rows.column(name)) << (self._bits - len(cuts).bit_length())

    def range_bounds(self, sample: pa.Table, num_lanes: int) -> Int64Array:
        """Return at most ``num_lanes`` - 1 ascending ranks that divide the rows of the sample about evenly."""
        numbers = np.sort(self.of(sample))
        at = (np.arange(1, num_lanes) * len(numbers)) // num_lanes
        return np.unique(numbers[at]) if len(numbers) else numbers


def _cut_points(values: pa.ChunkedArray, cuts_max: int) -> pa.Array:
    distinct = pc.unique(values.combine_chunks()).drop_null()
    ordered = distinct.take(pc.sort_indices(distinct))
    if len(ordered) <= cuts_max:
        return ordered[1:]  # no value is below the first
    present = values.combine_chunks().drop_null()
    ordered = present.take(pc.sort_indices(present))
    cuts = pc.unique(ordered.take(pa.array((np.arange(1, cuts_max + 1) * len(ordered)) // (cuts_max + 1))))
    return cuts.take(pc.sort_indices(cuts))


def _count_cuts_below(cuts: pa.Array, values: pa.Array | pa.ChunkedArray) -> Int64Array:
    """Return, for each value, the number of cut points not above it, and 0 for null. Supports any ordered type."""
    column = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    with_cuts = pa.concat_arrays([cuts, column.cast(cuts.type)])
    order = pc.sort_indices(with_cuts).to_numpy()  # the sort is stable: a cut precedes equal values
    is_cut = order < len(cuts)
    ranks = np.empty(len(with_cuts), dtype=np.int64)
    ranks[order] = np.cumsum(is_cut)
    ranks[len(cuts) :][column.is_null().to_numpy(zero_copy_only=False)] = 0  # the sort puts nulls last
    return ranks[len(cuts) :]


def _interleave_bits(ranks: Sequence[Int64Array], bits: int) -> Int64Array:
    if len(ranks) == 1:
        return ranks[0]
    interleaved = np.zeros(len(ranks[0]), dtype=np.int64)
    for bit in range(bits - 1, -1, -1):
        for rank in ranks:
            interleaved = (interleaved << 1) | ((rank >> bit) & 1)
    return interleaved


@dataclass(frozen=True, slots=True)
class Clustering:
    """A sort order, and the target size of the files in it."""

    order: SortOrder
    fingerprint: str
    """See `SortOrder.fingerprint`."""
    file_bytes: int = CLUSTERED_FILE_BYTES

    def num_lanes(self, size_bytes: int) -> int:
        return max(1, min(LANES_MAX, -(-size_bytes // self.file_bytes)))


def plan_clusters(
    stored: Sequence[StoredFile],
    clustering: Clustering,
    make_group: Callable[[Sequence[StoredFile]], CompactGroup | None],
) -> Iterator[CompactGroup]:
    """Yield the groups of files to rewrite, each of one bucket and partition.

    Selects files outside the clusters of this order, and clusters that are small compared with these files. Skips files
    of other engines, and a single file that would remain one file. ``make_group`` reads the footers of a group, and
    returns None
    if the table did not write one of the files.
    """
    by_partition: dict[tuple[object, ...], list[StoredFile]] = {}
    for file in stored:
        named = parse_file_offsets(file.location)
        if named is not None:
            by_partition.setdefault((named[0], *file.partition), []).append(file)
    for files in by_partition.values():
        for chosen in _choose_files(files, clustering):
            needs_rewrite = len(chosen) > 1 or clustering.num_lanes(chosen[0].size_bytes) > 1
            group = make_group(chosen) if needs_rewrite else None
            if group is not None:
                yield group


def _choose_files(files: Sequence[StoredFile], clustering: Clustering) -> Iterator[list[StoredFile]]:
    unclustered: list[StoredFile] = []
    clusters: dict[str, list[StoredFile]] = {}
    for file in files:
        marks = parse_clustered_file_name(file.location)
        (clusters.setdefault(marks[1], []) if marks and marks[0] == clustering.fingerprint else unclustered).append(
            file
        )
    if not unclustered:
        return
    parts = list(_cut_by_size(unclustered))
    last = parts[-1]
    for cluster in sorted(clusters.values(), key=_total_bytes):
        together = [*last, *cluster]
        if _total_bytes(cluster) <= _GROWTH * _total_bytes(last) and _fits_cluster(together):
            last = together
    yield from [*parts[:-1], last]


def _cut_by_size(unclustered: list[StoredFile]) -> Iterator[list[StoredFile]]:
    """Split files, in offset order, into runs that fit a cluster."""
    part: list[StoredFile] = []
    for file in sorted(unclustered, key=lambda f: _start_offset(f.location)):
        if part and not _fits_cluster([*part, file]):
            yield part
            part = []
        part.append(file)
    yield part


def _start_offset(location: str) -> int:
    named = parse_file_offsets(location)
    return named[1].start if named else 0


def _fits_cluster(files: Sequence[StoredFile]) -> bool:
    return _total_bytes(files) <= CLUSTER_BYTES_MAX and sum(file.num_rows for file in files) <= CLUSTER_ROWS_MAX


def _total_bytes(files: Sequence[StoredFile]) -> int:
    return sum(file.size_bytes for file in files)


# -- writing ----------------------------------------------------------------------------------------------------------


def write_cluster(
    clustering: Clustering, group: CompactGroup, output: FileOutput, projection: LakeProjection
) -> list[LakeFile]:
    """Write the group's rows as files of one range of the order each, with their offsets in the footers.

    Reads the order's columns once for the cut points, then all columns. Memory is bounded by one batch per file, the
    offsets of the group's rows, and the writer's buffer. Returns no file for a group whose rows are all deleted.
    """
    if not group.num_rows:
        return []
    sample = _sample_rows(group, projection.of_columns(clustering.order.columns), output.files)
    ranks = ZOrderRanks(clustering.order, sample)
    cuts = ranks.range_bounds(sample, clustering.num_lanes(group.size_bytes))

    files = [
        RowCursor(file.runs, read_split(output.files, split, projection), projection.schema.arrow)
        for file, split in zip(group.files, group.splits(), strict=True)
        if file.runs
    ]
    ranges = [cursor.runs.range for cursor in files]
    offsets = OffsetRange(min(r.start for r in ranges), max(r.end for r in ranges))
    window_offsets = min(max(len(offsets) * BATCH_ROWS // group.num_rows, BATCH_ROWS), _WINDOW_OFFSETS_MAX)

    def batches() -> Iterator[tuple[pa.RecordBatch, Int64Array, Int64Array]]:
        for row_offsets, rows in merge_by_offset(files, offsets, window_offsets):
            yield rows, row_offsets, np.searchsorted(cuts, ranks.of(rows), side="right")

    # A file may exceed the target, so that no small remainder is left.
    roomy = replace(output, context=replace(output.context, target_file_bytes=2 * clustering.file_bytes))
    mark = f"_{clustering.fingerprint}_{output.ids.new_uuid()[:8]}"
    return write_clustered_files(roomy, group.bucket, offsets, mark, batches())


def _sample_rows(group: CompactGroup, projection: LakeProjection, files: FileAccess) -> pa.Table:
    step = max(1, group.num_rows // _SAMPLE_ROWS)
    batches = (batch for split in group.splits() for batch in read_split(files, split, projection))
    samples = [batch.take(pa.array(np.arange(0, batch.num_rows, step))) for batch in batches]
    return pa.Table.from_batches(samples, schema=projection.schema.arrow)
