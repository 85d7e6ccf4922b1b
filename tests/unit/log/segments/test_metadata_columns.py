"""Identities of rows: one number tells bucket and offset, or file and position, and is never null."""

from __future__ import annotations

import numpy as np
import pytest

from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.log.segments.metadata_columns import (
    FILES_MAX,
    NO_PLACE,
    OFFSETS_MAX,
    POSITIONS_MAX,
    file_row_ids,
    offsets_by_bucket,
    positions_by_file,
    row_ids,
)


def array(*numbers):
    return np.array(numbers, np.int64)


def test_rows_of_the_log_and_of_files_are_told_apart():
    ids = np.concatenate(
        [
            row_ids(3, array(5, 6, OFFSETS_MAX - 1)),
            file_row_ids(0, array(0, 1)),
            row_ids(0, array(0)),
            file_row_ids(FILES_MAX - 1, array(7, POSITIONS_MAX - 1, 7)),
            row_ids(65_535, array(1)),
        ]
    )
    assert NO_PLACE not in ids
    assert len(np.unique(ids)) == len(ids) - 1
    mixed = np.random.default_rng(1).permutation(ids)
    assert offsets_by_bucket(mixed) == {
        0: OffsetSet.dense(0, 1),
        3: OffsetSet.of(array(5, 6, OFFSETS_MAX - 1)),
        65_535: OffsetSet.dense(1, 1),
    }
    assert positions_by_file(mixed) == {
        0: OffsetSet.dense(0, 2),
        FILES_MAX - 1: OffsetSet.of(array(7, POSITIONS_MAX - 1)),
    }


def test_no_row_ids_give_no_offsets_or_positions():
    assert offsets_by_bucket(array()) == positions_by_file(array()) == {}
    assert offsets_by_bucket(array(NO_PLACE)) == positions_by_file(array(NO_PLACE)) == {}


@pytest.mark.parametrize(
    "beyond",
    [
        lambda: row_ids(0, array(OFFSETS_MAX)),
        lambda: file_row_ids(FILES_MAX, array(0)),
        lambda: file_row_ids(0, array(POSITIONS_MAX)),
    ],
)
def test_what_cannot_be_told(beyond):
    with pytest.raises(ValueError, match="not fit into a row id"):
        beyond()
