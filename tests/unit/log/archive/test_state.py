"""What a state knows of its change archive, in records and checkpoints."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streamhouse_spark import FormatVersionError
from streamhouse_spark.log import checkpoint as checkpoint_module
from streamhouse_spark.log.actions import NO_ARCHIVE, Archive, ArchivePage, ResetLake, SetArchive, pages_between
from streamhouse_spark.log.checkpoint import read_checkpoint, write_checkpoint

PAGES = (
    ArchivePage("a", 5, {0: 4}, 4, 400, 10, 20, 20_000),
    ArchivePage("b", 8, {0: 6, 1: 7}, 5, 500, 20, 30, 30_000, level=1),
)
HELD = Archive(PAGES, {0: 2, 1: 4}, 3)


def test_it_reads_back():
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
    assert HELD.joins({0: 6, 1: 7})
    assert HELD.joins({0: 0, 1: 0})
    assert not HELD.joins({0: 7, 1: 7})
    assert not NO_ARCHIVE.joins({0: 0})


def test_pages_of_a_bucket():
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
