"""Pages of the change archive: runs of offsets by commit, and the archive in records and checkpoints."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from streamhouse_spark import CorruptDataError, FormatVersionError
from streamhouse_spark.log import checkpoint as checkpoint_module
from streamhouse_spark.log.actions import NO_ARCHIVE, Archive, ArchivePage, ResetLake, SetArchive, pages_between
from streamhouse_spark.log.archive.pages import CommitRows
from streamhouse_spark.log.checkpoint import read_checkpoint, write_checkpoint

RUNS = [(1, 0, 3, 7, 70, 0), (0, 4, 9, 8, 80, 1), (0, 0, 4, 5, 50, 0)]


def of(runs) -> CommitRows:
    return CommitRows(*np.array(runs, np.int64).reshape(len(runs), 6).T).sorted()


def listed(rows: CommitRows) -> list[tuple[int, ...]]:
    columns = (rows.buckets, rows.starts, rows.ends, rows.versions, rows.times_us, rows.grouped)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_they_are_by_bucket_and_offset():
    assert listed(of(RUNS)) == sorted(RUNS)


@pytest.mark.parametrize("runs", [RUNS, RUNS[:1], []])
def test_runs_of_offsets_come_back_from_bytes(runs):
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


PAGES = (
    ArchivePage("a", 5, {0: 4}, 4, 400, 10, 20, 20_000),
    ArchivePage("b", 8, {0: 6, 1: 7}, 5, 500, 20, 30, 30_000, level=1),
)
HELD = Archive(PAGES, {0: 2, 1: 4}, 3)


def test_an_archive_comes_back_from_json():
    assert Archive.from_json(HELD.to_json()) == HELD
    action = SetArchive(HELD, ("k",))
    assert SetArchive.from_json(action.to_json()) == action


def test_its_ends_are_those_of_the_newest_page_with_changes_of_a_bucket():
    assert [HELD.end(bucket) for bucket in (0, 1, 2)] == [6, 7, 0]
    assert HELD.last_commit == 8
    assert replace(HELD, pages=PAGES[:1]).end(1) == 4
    assert NO_ARCHIVE.last_commit == 0
    assert not NO_ARCHIVE


def test_it_joins_a_log_without_a_gap():
    assert HELD.is_contiguous_with({0: 6, 1: 7})
    assert HELD.is_contiguous_with({0: 0, 1: 0})
    assert not HELD.is_contiguous_with({0: 7, 1: 7})
    assert not NO_ARCHIVE.is_contiguous_with({0: 0})


def test_pages_of_a_bucket_are_found_in_order():
    assert [(page.uuid, *offsets) for page, *offsets in pages_between(HELD, 0)] == [("a", 2, 4), ("b", 4, 6)]
    assert [(page.uuid, *offsets) for page, *offsets in pages_between(HELD, 1)] == [("b", 4, 7)]
    assert list(pages_between(HELD, 2)) == []


@pytest.fixture
def table(wh):
    table = wh.create_table("t", "id BIGINT", primary_key=["id"], buckets=2)
    table.upsert([{"id": n} for n in range(20)])
    table.log.commit(lambda _state, _ms: (SetArchive(HELD, ("tables/k",)),))
    return table


def test_a_record_sets_it_and_marks_what_went(table):
    state = table.refresh()
    assert state.archive == HELD
    assert set(state.condemned) == {"tables/k"}


def test_a_checkpoint_has_it_which_older_versions_refuse(table, store, monkeypatch):
    write_checkpoint(store, table.refresh())
    assert read_checkpoint(store, table.uuid, table.state.version) == table.state
    monkeypatch.setattr(checkpoint_module, "NEWEST_VERSION", checkpoint_module.FIELDS_VERSION)
    with pytest.raises(FormatVersionError, match="upgrade"):
        read_checkpoint(store, table.uuid, table.state.version)


def test_it_ends_where_rows_are_given_up(table):
    table.log.commit(lambda _state, _ms: (ResetLake("lake/other"),))
    assert table.refresh().archive == HELD
    table.log.commit(lambda state, _ms: (ResetLake("lake/third", state.ends),))
    assert not table.refresh().archive
