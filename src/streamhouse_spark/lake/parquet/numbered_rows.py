"""Rows of a data file with their numbers in it, of the row groups that can hold a wanted row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.lake.model.values import LakeProjection, LakeSplit
from streamhouse_spark.lake.parquet.access import FileAccess
from streamhouse_spark.lake.parquet.reader import deleted_positions, dropped_rows, read_split, row_group_starts
from streamhouse_spark.query.row_mask import RowMask
from streamhouse_spark.query.row_selection import without

Numbers = npt.NDArray[np.int64]


def read_numbered(
    files: FileAccess, split: LakeSplit, projection: LakeProjection, *, mask: RowMask | None = None
) -> Iterator[tuple[Numbers, pa.RecordBatch]]:
    """Read the batches of `read_split`, each with the row numbers in the file.

    Row groups are left out for which the mask tells that no filter wants a row of them. Raises as `read_split`.
    """
    starts = row_group_starts(files, split.location)
    deleted = deleted_positions(files, split.location, split.position_deletes)
    split = replace(split, position_deletes=())
    for part in [split] if mask is None else _possible(files, split, projection, mask, starts):
        position = int(starts[part.row_groups[0] if part.row_groups else 0])
        for batch in read_split(files, part, projection):
            gone = dropped_rows(deleted, position, batch.num_rows)
            numbers = np.arange(position, position + batch.num_rows)
            position += batch.num_rows
            if gone is None:
                yield numbers, batch
            elif not gone.all():
                yield numbers[~gone], without(batch, gone)


def _possible(
    files: FileAccess, split: LakeSplit, projection: LakeProjection, mask: RowMask, starts: Numbers
) -> list[LakeSplit]:
    """Return the parts of the split with a row that the filter may want, told by its columns, which are read first."""
    names = mask.columns.intersection(projection.schema.names)
    if not 0 < len(names) < len(projection.schema.columns):
        return [split]
    looked_at = projection.of_columns(names)
    position = int(starts[split.row_groups[0] if split.row_groups else 0])
    hits = np.zeros(len(starts) - 1, np.bool_)
    for batch in read_split(files, split, looked_at):
        possible = mask.of(batch)
        rows = np.arange(batch.num_rows) if possible is None else np.flatnonzero(possible)
        hits[np.searchsorted(starts, position + rows, side="right") - 1] = True
        position += batch.num_rows
    edges = np.flatnonzero(np.diff(np.concatenate([[False], hits, [False]])))
    return [replace(split, row_groups=(int(start), int(end))) for start, end in edges.reshape(-1, 2)]
