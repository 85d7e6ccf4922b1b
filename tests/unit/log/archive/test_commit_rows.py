"""Runs of offsets by commit: as bytes and back, and bytes that another program wrote."""

from __future__ import annotations

import numpy as np
import pytest

from streamhouse_spark import CorruptDataError
from streamhouse_spark.log.archive.pages import CommitRows

RUNS = [(1, 0, 3, 7, 70, 0), (0, 4, 9, 8, 80, 1), (0, 0, 4, 5, 50, 0)]


def of(runs) -> CommitRows:
    return CommitRows(*np.array(runs, np.int64).reshape(len(runs), 6).T).sorted()


def listed(rows: CommitRows) -> list[tuple[int, ...]]:
    columns = (rows.buckets, rows.starts, rows.ends, rows.versions, rows.times_us, rows.grouped)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_they_are_by_bucket_and_offset():
    assert listed(of(RUNS)) == sorted(RUNS)


@pytest.mark.parametrize("runs", [RUNS, RUNS[:1], []])
def test_they_read_back(runs):
    assert listed(CommitRows.from_bytes(memoryview(of(runs).to_bytes()), "a page")) == sorted(runs)


def test_parts_are_joined_and_chosen_by_commit():
    joined = CommitRows.joined([of(RUNS[:1]), of([]), of(RUNS[1:])])
    assert listed(joined) == sorted(RUNS)
    assert listed(joined.between(7, 8)) == sorted(RUNS[:2])
    assert listed(CommitRows.joined([])) == []


def test_commits_of_few_rows_take_few_bytes():
    """Ten commits a second to one of four buckets, of ten changes each."""
    count = np.arange(20_000, dtype=np.int64)
    starts = count // 4 * 10
    rows = CommitRows(count % 4, starts, starts + 10, count, count * 100_123, count * 0).sorted()
    assert len(rows.to_bytes()) / len(count) < 2


@pytest.mark.parametrize("data", [b"\x05" + bytes(7), (3).to_bytes(8, "little") + b"no compressed bytes"])
def test_other_bytes_are_refused(data):
    with pytest.raises(CorruptDataError, match="a page: the commits of its changes are damaged"):
        CommitRows.from_bytes(memoryview(data), "a page")
