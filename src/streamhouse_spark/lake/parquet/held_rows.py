"""Rows that data files hold at some offsets, whether a snapshot marks them as deleted or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from streamhouse_spark.core.offset_ranges import OffsetRuns
from streamhouse_spark.errors import OffsetsTrimmedError
from streamhouse_spark.lake.model.values import LakeProjection
from streamhouse_spark.lake.parquet.reader import FilesAt, OffsetFile, Positions, read_in_offset_order


def read_held_rows(
    files_at: FilesAt, candidates: Sequence[OffsetFile], bucket: int, rows: OffsetRuns, projection: LakeProjection
) -> Iterator[tuple[Positions, pa.RecordBatch]]:
    """Read the rows with their offsets, in offset order; rows of the same files between them may be among the answer.

    Memory is bounded by a batch per open file. Raises `OffsetsTrimmedError` before the first row unless the files hold
    each of the offsets, and exactly once.
    """
    shared = [(file, file.runs.common(rows)) for file in candidates if file.bucket == bucket]
    shared = [(file, runs) for file, runs in shared if runs]
    offsets = OffsetRuns.merged([runs for _, runs in shared])
    if offsets.num_rows != rows.num_rows or offsets.num_rows != sum(runs.num_rows for _, runs in shared):
        raise OffsetsTrimmedError(
            f"bucket {bucket}: {rows.num_rows} rows in offsets {rows.range} were asked for, the lake's files "
            f"hold {offsets.num_rows} of them; run the query again, and if it ends so too, begin later"
        )
    parts = [(file, file.runs.within(runs.range)) for file, runs in shared]
    return read_in_offset_order(files_at, parts, rows.range, projection)
