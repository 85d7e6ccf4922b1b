"""Rows of a data file with their row numbers, from the row groups that can match."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.lake.model.values import LakeProjection, LakeSplit
from streamhouse_spark.lake.parquet.parquet_io import FileAccess
from streamhouse_spark.lake.parquet.reader import (
    NO_POSITIONS,
    OpenedSplit,
    Positions,
    deleted_places_within,
    open_split,
)
from streamhouse_spark.lake.parquet.row_groups import RowGroups
from streamhouse_spark.query.predicates import ALWAYS_TRUE
from streamhouse_spark.query.row_mask import RowMask
from streamhouse_spark.query.row_selection import drop_rows

Numbers = npt.NDArray[np.int64]


def read_numbered(
    files: FileAccess,
    split: LakeSplit,
    projection: LakeProjection,
    *,
    mask: RowMask | None = None,
    deleted: Positions = NO_POSITIONS,
) -> Iterator[tuple[Numbers, pa.RecordBatch]]:
    """Read the batches of `read_split`, each with the row numbers in the file.

    Skips row groups that cannot match by the footer or the mask, and large runs of rows that the mask excludes. Raises
    as `read_split` does.
    """
    with open_split(files, split) as opened:
        columns = opened.columns(projection)
        chosen = opened.row_groups(columns, ALWAYS_TRUE if mask is None else mask.node)
        if mask is not None:
            chosen = _groups_to_read(opened, projection, mask, chosen)
        deleted_places = opened.find_deleted_places(files, chosen, deleted)
        for place, batch in opened.rows(columns, chosen):
            dropped = deleted_places_within(deleted_places, place, batch.num_rows)
            possible = None if mask is None else mask.matches(batch)
            if possible is None and not len(dropped):
                yield chosen.numbers(place, batch.num_rows), batch
                continue
            is_live = np.ones(batch.num_rows, np.bool_) if possible is None else possible
            is_live[dropped] = False
            if is_live.any():
                yield chosen.numbers(place, batch.num_rows)[is_live], drop_rows(batch, ~is_live)


def _groups_to_read(opened: OpenedSplit, projection: LakeProjection, mask: RowMask, chosen: RowGroups) -> RowGroups:
    """Return the row groups with a row that may match. Reads the filter's columns first."""
    names = mask.columns.intersection(projection.schema.names)
    if not 0 < len(names) < len(projection.schema.columns):
        return chosen
    filter_columns = projection.of_columns(names)
    if mask.of(_empty_batch(filter_columns.schema.arrow)) is None:  # e.g. an Arrow expression: every row may match
        return chosen
    hits = np.zeros(len(chosen.places), np.bool_)
    for place, batch in opened.rows(opened.columns(filter_columns), chosen):
        possible = mask.of(batch)
        rows = np.arange(batch.num_rows) if possible is None else np.flatnonzero(possible)
        hits[chosen.groups_of(place + rows)] = True
    return chosen.select(hits)


def _empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
