"""The smallest parts of a scan, and how many rows each of them surely has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.datasource.scan.input_splits import _arrow_split, split_parquet_file
from streamhouse_spark.lake.types import LakeSplit, ScanFile
from streamhouse_spark.read.scan_tasks import LakeScanTask

SPLIT = LakeSplit("data/a.parquet", 100, 10, bucket=1)
GONE = OffsetSet.dense(2, 3)


@pytest.mark.parametrize("piece", [LakeScanTask(SPLIT, 1, {1: GONE}), LakeScanTask(SPLIT, 1, {}, GONE)])
def test_a_limit_does_not_count_on_a_file_with_deleted_rows(piece):
    assert not _arrow_split(piece, 1, 1.0, are_exact=True).is_exact
    assert _arrow_split(LakeScanTask(SPLIT, 1, place=4), 1, 1.0, are_exact=True).is_exact
    assert type(piece).from_json(piece.to_json()) == piece


def test_places_of_files_travel():
    piece = LakeScanTask(SPLIT, None, {}, GONE, 0)
    assert type(piece).from_json(piece.to_json()) == piece


def test_a_limit_does_not_count_on_a_file_with_positions_that_the_plan_names():
    file = ScanFile("data/a.parquet", 100, 10, bucket=1)
    [whole] = split_parquet_file(file, "file:///a", 1.0, 1000)
    [less] = split_parquet_file(replace(file, deleted_positions=GONE), "file:///a", 1.0, 1000)
    assert whole.is_exact
    assert not less.is_exact
