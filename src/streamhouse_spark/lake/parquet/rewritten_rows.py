"""Deleted rows of data files that another engine replaced, and equal rows in the files that came instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.core.offset_ranges import OffsetRuns
from streamhouse_spark.lake.model.values import LakeProjection, LakeSplit
from streamhouse_spark.lake.parquet.reader import FilesAt
from streamhouse_spark.lake.parquet.row_matching import RowMultiset
from streamhouse_spark.lake.parquet.row_positions import read_numbered

Positions = npt.NDArray[np.int64]


def read_rows_at(
    files_at: FilesAt, files: Mapping[str, LakeSplit], runs_at: Mapping[str, OffsetRuns], projection: LakeProjection
) -> pa.Table:
    """Read the rows at positions of whole files, each under its name, but for those that are deleted there.

    Raises `SnapshotExpiredError` where a file is gone.
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
    """Find rows that equal some of these by all columns, as often as they are there, in files with their names.

    Of more equal rows than are wanted, those of the first files are found.
    """
    left = RowMultiset(rows)
    for name, split in newer:
        if not left.num_left:
            return
        numbered = read_numbered(files_at(split.location), split, projection)
        hits = [numbers[left.take_matches(batch)] for numbers, batch in numbered]
        if sum(map(len, hits)):
            yield name, np.concatenate(hits)
