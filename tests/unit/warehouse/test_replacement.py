"""Another table takes the place of one under its name: at once, once, whoever dies or comes by meanwhile."""

from __future__ import annotations

import pytest

from kit.round_trips import RemoteStorage
from kit.warehouses import open_warehouse
from streamhouse_spark import (
    CommitConflictError,
    OffsetsTrimmedError,
    SnapshotExpiredError,
    TableExistsError,
    TableNotFoundError,
)
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.log.actions import Drop
from streamhouse_spark.log.catalog import name_changes
from streamhouse_spark.log.checkpoint import as_stored
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.warehouse.creation import make_create_action
from streamhouse_spark.warehouse.replacement import abandon_table, publish_table, stage_table

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)
PATH = TablePath("d", "t")
HOUR_MS = 3600 * 1000
NEW = "number BIGINT, day INT"


@pytest.fixture
def old(wh):
    table = wh.create_table("d.t", "id BIGINT")
    table.append([{"id": 1}])
    return table


def staged(wh):
    table = stage_table(wh, PATH, make_create_action(PATH, NEW, (), ("day",), None, {}))
    table.append([{"number": 7, "day": 1}])
    return table


def unsettled(monkeypatch):
    """The process dies behind the commit point, before the name's pointer moves."""
    monkeypatch.setattr(name_changes, "update_replaced_name", lambda *_: None)


def test_the_name_means_the_new_table(wh, old, other_process):
    new = staged(wh)
    assert other_process().table("d.t").uuid == old.uuid, "before, nobody sees it"
    assert wh.tables() == ["d.t"]
    publish_table(wh, PATH, new.uuid, old.uuid)
    for warehouse in (wh, other_process()):
        found = warehouse.table("d.t")
        assert (found.uuid, found.partition_by, found.to_arrow().to_pylist()) == (
            new.uuid,
            ("day",),
            [{"number": 7, "day": 1}],
        )
        assert warehouse.tables() == ["d.t"]
    with pytest.raises(TableNotFoundError):
        old.append([{"id": 2}])
    assert as_stored(old.log.refresh()).successor == new.uuid


def test_the_old_table_comes_back_under_another_name(wh, old, monkeypatch):
    new = staged(wh)
    with monkeypatch.context() as patched:
        unsettled(patched)
        publish_table(wh, PATH, new.uuid, old.uuid)
    with pytest.raises(TableExistsError):
        wh.undrop_table("d.t", uuid=old.uuid)
    back = wh.undrop_table("d.t", uuid=old.uuid, to="d.old")
    assert back.to_arrow().to_pylist() == [{"id": 1}]
    assert wh.table("d.t").uuid == new.uuid
    assert sorted(wh.tables()) == ["d.old", "d.t"]


class TestBeforeThePointerFollows:
    @pytest.fixture(autouse=True)
    def published(self, wh, old, monkeypatch):
        self.new = staged(wh)
        with monkeypatch.context() as patched:
            unsettled(patched)
            publish_table(wh, PATH, self.new.uuid, old.uuid)

    def test_everybody_finds_the_new_table(self, other_process):
        assert other_process().table("d.t").uuid == self.new.uuid
        assert other_process().tables() == ["d.t"]
        with pytest.raises(TableExistsError):
            other_process().create_table("d.t", "id BIGINT")
        assert other_process().create_table("d.t", "id BIGINT", if_not_exists=True).uuid == self.new.uuid

    def test_it_can_be_replaced_again(self, wh, other_process):
        newer = staged(wh)
        publish_table(wh, PATH, newer.uuid, self.new.uuid)
        assert other_process().table("d.t").uuid == newer.uuid

    def test_it_can_be_renamed_and_the_name_is_free(self, wh, other_process):
        wh.rename_table("d.t", "d.u")
        assert other_process().table("d.u").uuid == self.new.uuid
        with pytest.raises(TableNotFoundError):
            other_process().table("d.t")
        assert other_process().create_table("d.t", "id BIGINT").uuid != self.new.uuid

    def test_it_can_be_dropped(self, wh, other_process):
        wh.drop_table("d.t")
        assert other_process().tables() == []
        other_process().create_table("d.t", "id BIGINT")

    def test_cleaning_keeps_a_table_that_its_pointer_does_not_name_yet(self, wh, old, clock, other_process):
        for _ in range(6):
            clock.advance(30 * HOUR_MS)
            other_process().clean_dropped()
        assert other_process().table("d.t").to_arrow().to_pylist() == [{"number": 7, "day": 1}]
        with pytest.raises(TableNotFoundError):
            CommitLog(wh.storage, old.uuid, wh.world).refresh()


class TestConflicts:
    def test_of_two_replacements_one_happens(self, wh, old):
        first, second = staged(wh), staged(wh)
        publish_table(wh, PATH, first.uuid, old.uuid)
        with pytest.raises(CommitConflictError, match="concurrently dropped, renamed or replaced"):
            publish_table(wh, PATH, second.uuid, old.uuid)
        assert wh.table("d.t").uuid == first.uuid
        abandon_table(wh, second.uuid, old.uuid)
        assert second.log.refresh().dropped
        abandon_table(wh, first.uuid, old.uuid)
        assert wh.table("d.t").uuid == first.uuid, "what was published stays"

    def test_a_table_that_was_dropped_or_renamed(self, wh, old):
        new = staged(wh)
        wh.rename_table("d.t", "d.u")
        with pytest.raises(CommitConflictError, match="renamed"):
            publish_table(wh, PATH, new.uuid, old.uuid)
        wh.drop_table("d.u")
        with pytest.raises(CommitConflictError, match="dropped"):
            publish_table(wh, PATH, new.uuid, old.uuid)
        assert wh.tables() == []

    def test_a_replacement_that_waited_too_long_is_a_conflict(self, wh, old, clock):
        new = staged(wh)
        clock.advance(30 * HOUR_MS)
        wh.clean_dropped()
        with pytest.raises(CommitConflictError, match="was cleaned up before it replaced"):
            publish_table(wh, PATH, new.uuid, old.uuid)
        assert wh.table("d.t").uuid == old.uuid

    def test_one_that_waited_is_young_again(self, wh, old, clock, other_process, monkeypatch):
        new = staged(wh)
        clock.advance(30 * HOUR_MS)
        right, times = CommitLog.commit, iter(range(1))

        def commit(log, plan, **how):
            if log.table_uuid == old.uuid:
                for _ in times:
                    other_process().clean_dropped()
            return right(log, plan, **how)

        monkeypatch.setattr(CommitLog, "commit", commit)
        publish_table(wh, PATH, new.uuid, old.uuid)
        assert wh.table("d.t").uuid == new.uuid

    def test_a_plain_drop_has_no_successor(self, wh, old):
        wh.drop_table("d.t")
        assert old.log.refresh().successor is None
        assert Drop() == Drop(None)


class TestTheTimeBefore:
    """A read as of a time reads the table that had the name then."""

    @pytest.fixture
    def times(self, wh, old, clock):
        """Times before, while the new table is filled, and behind."""
        before = wh.storage.now_ms()
        clock.advance(1000)
        new = staged(wh)
        clock.advance(1000)
        while_filled = wh.storage.now_ms()
        old.append([{"id": 2}])
        clock.advance(1000)
        publish_table(wh, PATH, new.uuid, old.uuid)
        clock.advance(1000)
        return before, while_filled, wh.storage.now_ms()

    def test_it_has_rows_and_columns_of_the_old_table(self, times, other_process):
        table = other_process().table("d.t")
        rows = [table.to_arrow(as_of_timestamp_ms=time).to_pylist() for time in times]
        assert rows == [[{"id": 1}], [{"id": 1}, {"id": 2}], [{"number": 7, "day": 1}]]

    def test_a_second_replacement_is_passed(self, wh, times, clock, other_process):
        clock.advance(1000)
        third = stage_table(wh, PATH, make_create_action(PATH, "name STRING", (), (), None, {}))
        publish_table(wh, PATH, third.uuid, wh.table("d.t").uuid)
        table = other_process().table("d.t")
        rows = [table.to_arrow(as_of_timestamp_ms=time).to_pylist() for time in times]
        assert rows == [[{"id": 1}], [{"id": 1}, {"id": 2}], [{"number": 7, "day": 1}]]
        assert table.to_arrow().schema.names == ["name"]

    def test_before_the_pointer_follows(self, wh, old, clock, monkeypatch, other_process):
        before = wh.storage.now_ms()
        clock.advance(1000)
        new = staged(wh)
        with monkeypatch.context() as patched:
            unsettled(patched)
            publish_table(wh, PATH, new.uuid, old.uuid)
        assert other_process().table("d.t").to_arrow(as_of_timestamp_ms=before).to_pylist() == [{"id": 1}]

    def test_an_old_table_that_came_back_is_read_by_its_own_name(self, wh, old, times):
        wh.undrop_table("d.t", uuid=old.uuid, to="d.old")
        with pytest.raises(OffsetsTrimmedError, match="created later"):
            wh.table("d.t").to_arrow(as_of_timestamp_ms=times[0])
        assert wh.table("d.old").to_arrow(as_of_timestamp_ms=times[0]).to_pylist() == [{"id": 1}]

    def test_behind_the_grace_it_is_gone(self, wh, times, clock):
        clock.advance(30 * HOUR_MS)
        wh.clean_dropped()
        with pytest.raises((SnapshotExpiredError, OffsetsTrimmedError)):
            wh.table("d.t").to_arrow(as_of_timestamp_ms=times[0])
        assert wh.table("d.t").to_arrow(as_of_timestamp_ms=times[2]).to_pylist() == [{"number": 7, "day": 1}]

    def test_a_read_before_a_replacement_takes_few_round_trips(self, store, times, clock):
        """A time of now reads two pointers, and the end of the old table's log; an earlier one its state and rows."""
        far = RemoteStorage(store)
        table = open_warehouse(far, 77, clock).table("d.t")
        depths = {}
        for name, time in zip(("before", "while filled", "now"), times, strict=True):
            with far.measured() as cost:
                table.to_arrow(as_of_timestamp_ms=time)
            depths[name] = cost.depth
        assert depths["now"] <= 6
        assert depths["before"] <= 15
        assert depths["while filled"] <= 15
