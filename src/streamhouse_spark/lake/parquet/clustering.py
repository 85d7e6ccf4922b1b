"""Clustering of a log table's lake, in any format: files that each hold a range of a sort order.

Rewrites files of a bucket and partition, each as the rows between two cut points of a `SortOrder`, so that their bounds
allow data skipping. Within a file rows keep their offset order, and the footer holds their offsets. Files written
together are a *cluster*: their names end with the marks of the order and the cluster. A cluster is rewritten only with
about as many new bytes, so that a row is rewritten a few times in its life.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from streamhouse_spark.core.arrow_chunking import combine_small_chunks, take_rows
from streamhouse_spark.core.clock import Ids
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.lake.model.values import LakeFile, LakeProjection, LakeSplit, WriteContext
from streamhouse_spark.lake.parquet.bucket_writer import LANES_MAX, Int64Array, write_lanes
from streamhouse_spark.lake.parquet.compaction import CompactGroup, StoredFile
from streamhouse_spark.lake.parquet.file_writer import FileSpec, parse_cluster_mark, parse_file_offsets
from streamhouse_spark.lake.parquet.parquet_io import FileAccess
from streamhouse_spark.lake.parquet.reader import BATCH_ROWS, RowCursor, read_split
from streamhouse_spark.lake.parquet.zorder import SortOrder, ZOrderRanks

CLUSTERED_FILE_BYTES: Final = 32 << 20
"""Target size of a clustered file. It is small, because tight bounds matter more than length."""
CLUSTER_BYTES_MAX: Final = 1 << 30
CLUSTER_ROWS_MAX: Final = 1 << 25
"""Row limit of a cluster: their offsets are in memory while it is written."""
_SAMPLE_ROWS: Final = 1 << 18
_GROWTH: Final = 2
"""A cluster is rewritten together with at least half its bytes."""
_WINDOW_OFFSETS_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Clustering:
    """A sort order, and the size of the files laid out by it."""

    order: SortOrder
    mark: str
    """See `SortOrder.mark`."""
    file_bytes: int = CLUSTERED_FILE_BYTES

    def num_lanes(self, size_bytes: int) -> int:
        return max(1, min(LANES_MAX, -(-size_bytes // self.file_bytes)))


def plan_clusters(
    stored: Sequence[StoredFile], how: Clustering, group_of: Callable[[Sequence[StoredFile]], CompactGroup | None]
) -> Iterator[CompactGroup]:
    """Return the groups of files to rewrite, each of one bucket and partition.

    Takes files outside this order's clusters, and clusters that are small next to them. Skips files of other engines,
    and a single file that would become one file. ``group_of`` reads the footers of a group, and returns None if one is
    not of the table.
    """
    by_place: dict[tuple[object, ...], list[StoredFile]] = {}
    for file in stored:
        named = parse_file_offsets(file.location)
        if named is not None:
            by_place.setdefault((named[0], *file.place), []).append(file)
    for files in by_place.values():
        for chosen in _choose_files(files, how):
            needs_rewrite = len(chosen) > 1 or how.num_lanes(chosen[0].size_bytes) > 1
            group = group_of(chosen) if needs_rewrite else None
            if group is not None:
                yield group


def _choose_files(files: Sequence[StoredFile], how: Clustering) -> Iterator[list[StoredFile]]:
    fresh: list[StoredFile] = []
    clusters: dict[str, list[StoredFile]] = {}
    for file in files:
        marks = parse_cluster_mark(file.location)
        (clusters.setdefault(marks[1], []) if marks and marks[0] == how.mark else fresh).append(file)
    if not fresh:
        return
    parts = list(_cut_by_size(fresh))
    last = parts[-1]
    for cluster in sorted(clusters.values(), key=_total_bytes):
        together = [*last, *cluster]
        if _total_bytes(cluster) <= _GROWTH * _total_bytes(last) and _fits_cluster(together):
            last = together
    yield from [*parts[:-1], last]


def _cut_by_size(fresh: list[StoredFile]) -> Iterator[list[StoredFile]]:
    """Cut files in offset order into runs that fit a cluster."""
    part: list[StoredFile] = []
    for file in sorted(fresh, key=lambda f: _start_offset(f.location)):
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
    how: Clustering,
    group: CompactGroup,
    context: WriteContext,
    spec: FileSpec,
    projection: LakeProjection,
    files: FileAccess,
    ids: Ids,
) -> list[LakeFile]:
    """Write the group's rows as files of one range of the order each, with their offsets in the footers.

    Reads the order's columns once for the cut points, then all columns. Memory is bounded by one batch per file, the
    offsets of the group's rows, and the writer's buffer. Returns no file for a group whose rows are all deleted.
    """
    if not group.num_rows:
        return []
    sample = _sample_rows(group, projection.of_columns(how.order.columns), files)
    ranks = ZOrderRanks(how.order, sample)
    cuts = ranks.lane_bounds(sample, how.num_lanes(group.size_bytes))

    def batches() -> Iterator[tuple[pa.RecordBatch, Int64Array, Int64Array]]:
        for rows, offsets in _sort_by_offset(group, projection, files):
            yield rows, offsets, np.searchsorted(cuts, ranks.of(rows), side="right")

    ranges = [file.runs.range for file in group.files if file.runs]
    offsets = OffsetRange(min(r.start for r in ranges), max(r.end for r in ranges))
    # A file may exceed the target somewhat, so that no small remainder is left.
    roomy = replace(context, target_file_bytes=2 * how.file_bytes)
    mark = f"_{how.mark}_{ids.new_uuid()[:8]}"
    return write_lanes(roomy, spec, files, ids, group.bucket, offsets, mark, batches())


def _sample_rows(group: CompactGroup, projection: LakeProjection, files: FileAccess) -> pa.Table:
    step = max(1, group.num_rows // _SAMPLE_ROWS)
    batches = (batch for stored in group.stored for batch in read_split(files, _split(stored), projection))
    samples = [batch.take(pa.array(np.arange(0, batch.num_rows, step))) for batch in batches]
    return pa.Table.from_batches(samples, schema=projection.schema.arrow)


def _sort_by_offset(
    group: CompactGroup, projection: LakeProjection, files: FileAccess
) -> Iterator[tuple[pa.RecordBatch, Int64Array]]:
    """Yield the rows with their offsets, ascending, about `BATCH_ROWS` at a time. Files may interleave."""
    waiting = [
        RowCursor(file.runs, read_split(files, _split(stored), projection), projection.schema.arrow)
        for file, stored in zip(group.files, group.stored, strict=True)
        if file.runs
    ]
    waiting.sort(key=lambda cursor: cursor.runs.range.start, reverse=True)
    begin, end = waiting[-1].runs.range.start, max(cursor.runs.range.end for cursor in waiting)
    width = min(max((end - begin) * BATCH_ROWS // group.num_rows, BATCH_ROWS), _WINDOW_OFFSETS_MAX)
    open_files: list[RowCursor] = []
    while begin < end:
        window = OffsetRange(begin, min(begin + width, end))
        while waiting and waiting[-1].runs.range.start < window.end:
            open_files.append(waiting.pop())
        pieces = [(cursor.runs.within(window), cursor) for cursor in open_files]
        pieces = [(runs, cursor) for runs, cursor in pieces if runs]
        if pieces:
            offsets = np.concatenate([runs.offsets() for runs, _ in pieces])
            rows = pa.concat_tables([cursor.take(runs.num_rows) for runs, cursor in pieces])
            if len(pieces) > 1:
                order = np.argsort(offsets, kind="stable")
                rows, offsets = take_rows(rows, order, distinct=True), offsets[order]
            done = 0
            for batch in combine_small_chunks(rows).to_batches():
                yield batch, offsets[done : done + batch.num_rows]
                done += batch.num_rows
        open_files = [cursor for cursor in open_files if cursor.runs.range.end > window.end]
        begin = window.end if open_files or not waiting else max(window.end, waiting[-1].runs.range.start)


def _split(stored: StoredFile) -> LakeSplit:
    return LakeSplit(stored.location, stored.size_bytes, stored.num_rows, position_deletes=stored.deletes)
