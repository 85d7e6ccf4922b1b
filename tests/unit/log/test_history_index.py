"""The history that a position belongs to."""

import itertools

import pytest

from streamhouse_spark import CorruptDataError
from streamhouse_spark.log.history_index import EMPTY_INDEX, SPACING, HistoryIndex, HistoryPoint, HistoryRelation


def history(length, *, forked_at=None, rows=lambda number: True):
    """The anchors after so many records; from ``forked_at`` on they are others."""
    found = EMPTY_INDEX
    for number in range(1, length + 1):
        found = found.with_point(mark(number, forked_at), has_rows=rows(number))
    return found


def mark(number, forked_at=None):
    return HistoryPoint(number, f"b{number}" if forked_at is not None and number >= forked_at else f"a{number}")


def test_the_newest_are_all_known_and_older_ones_are_thinned_out():
    found = history(100_000)
    numbers = [m.number for m in found.marks]
    assert numbers[-SPACING:] == list(range(100_000 - SPACING + 1, 100_001))
    assert len(numbers) < 160
    pairs = itertools.pairwise(numbers[:-SPACING])
    assert all(later - earlier <= (100_000 - later) / 4 + 1 for earlier, later in pairs), "small against their age"


def test_anchors_do_not_depend_on_where_a_process_began_to_read():
    whole = history(1000)
    opened = HistoryIndex.from_json(history(640).to_json())
    for number in range(641, 1001):
        opened = opened.with_point(mark(number), has_rows=True)
    assert opened == whole


def test_a_checkpoint_from_before_there_were_anchors_knows_no_history():
    assert HistoryIndex.from_json(None).relation(mark(5)) is HistoryRelation.UNKNOWN


@pytest.mark.parametrize("forked_at", [2, 50, 99, 100])
def test_a_record_of_another_history_is_told_where_its_number_is_kept(forked_at):
    ours = history(120, forked_at=forked_at)
    assert ours.relation(mark(112)) is HistoryRelation.OTHER
    assert ours.relation(mark(112, forked_at)) is HistoryRelation.SAME
    assert ours.relation(mark(121)) is HistoryRelation.UNKNOWN, "newer than the newest"


def test_rows_name_the_newest_record_that_moved_them():
    found = history(300, rows=lambda number: number == 7)
    assert found.rows == mark(7)
    assert found.relation(mark(7)) is HistoryRelation.SAME, "however old it is"
    assert found.relation(mark(7, forked_at=3)) is HistoryRelation.OTHER


def test_a_record_has_to_follow_the_newest():
    ours = history(10)
    ours.require_followed_by("a10", "d.t", "0" * 32)
    ours.require_followed_by(None, "d.t", "0" * 32)
    EMPTY_INDEX.require_followed_by("a10", "d.t", "0" * 32)
    with pytest.raises(
        CorruptDataError,
        match=r"record 11 of d.t follows attempt b10, but record 10 is attempt a10.*commits and.*with number 11",
    ):
        ours.require_followed_by("b10", "d.t", "0" * 32)
