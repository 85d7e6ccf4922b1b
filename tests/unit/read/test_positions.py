"""Positions that readers keep themselves: of a tail and of a consumer, in a table that is restored meanwhile."""

from __future__ import annotations

import json

import pytest

import streamhouse_spark as sh
from streamhouse_spark import LogPosition
from streamhouse_spark.errors import CorruptDataError, DifferentHistoryError, FormatVersionError, InvalidOptionError
from unit.restored_place import Place


@pytest.fixture(params=["local", "memory"])
def place(request, tmp_path, clock):
    return Place(request.param, tmp_path, clock)


@pytest.fixture
def table(place):
    table = place.open().create_table("d.t", "id BIGINT")
    table.append([{"id": 1}])
    return table


def kept(position):
    """As a process that was started again reads it."""
    return LogPosition.from_json(json.loads(json.dumps(position.to_json())))


def read(table, start):
    tail = table.tail(start, until_ms=0)
    return [i for batch in tail for i in batch["id"].to_pylist()], tail.position


class TestTail:
    def test_goes_on_behind_the_last_batch(self, place, table):
        table.append([{"id": 2}])
        tail = table.tail("earliest", until_ms=0)
        assert dict(tail.position) == {0: 0}
        assert next(tail)["id"].to_pylist() == [1]
        position = kept(tail.position)
        tail.close()
        table.append([{"id": 3}])
        assert read(place.open().table("d.t"), position)[0] == [2, 3]

    @pytest.mark.parametrize("num_others", [0, 1, 5, 40])
    def test_another_history_is_an_error_that_names_the_way_on(self, place, table, num_others):
        backup = place.backup()
        for i in (2, 3):
            table.append([{"id": i}])
        ids, position = read(table, "earliest")
        assert ids == [1, 2, 3]
        place.restore(backup)
        table = place.open().table("d.t")
        for i in range(num_others):
            table.append([{"id": 100 + i}])
        with pytest.raises(DifferentHistoryError, match=r"restored.*position\.moved_to"):
            table.tail(kept(position), until_ms=0)
        moved = kept(position).moved_to(table.refresh())
        assert read(table, moved)[0] == [100 + i for i in range(2, num_others)]
        assert read(table, "earliest")[0] == [1, *(100 + i for i in range(num_others))]

    def test_a_position_from_before_the_backup_counts(self, place, table):
        _, position = read(table, "earliest")
        backup = place.backup()
        table.append([{"id": 2}])
        place.restore(backup)
        table = place.open().table("d.t")
        for i in range(3, 30):
            table.append([{"id": i}])
        assert read(table, kept(position))[0] == list(range(3, 30))

    def test_of_a_table_that_was_made_again(self, place, table):
        _, position = read(table, "earliest")
        wh = place.open()
        wh.drop_table("d.t")
        again = wh.create_table("d.t", "id BIGINT")
        again.append([{"id": 5}])
        with pytest.raises(DifferentHistoryError, match="the table was replaced"):
            again.tail(kept(position))

    @pytest.mark.parametrize("num_others", [1, 5])
    def test_a_tail_that_runs_ends(self, place, table, num_others):
        backup = place.backup()
        table.append([{"id": 2}])
        running = place.open().table("d.t").tail("earliest", until_ms=0)
        assert next(running)["id"].to_pylist() == [1]
        assert next(running)["id"].to_pylist() == [2]
        place.restore(backup)
        other = place.open().table("d.t")
        for i in range(num_others):
            other.append([{"id": 100 + i}])
        place.clock.advance(120_000)
        with pytest.raises((DifferentHistoryError, CorruptDataError)):
            list(running)

    def test_what_is_no_position(self):
        good = {"version": 1, "table": "u", "offsets": {"0": 1}, "history": [3, "a"]}
        assert LogPosition.from_json(good).to_json() == good
        for bad in ({}, {**good, "offsets": [1]}, {**good, "history": [1]}, {**good, "history": "ab"}, None, []):
            with pytest.raises(InvalidOptionError, match="position"):
                LogPosition.from_json(bad)
        with pytest.raises(FormatVersionError, match="version 2"):
            LogPosition.from_json({**good, "version": 2})
        assert sh.LogPosition is LogPosition


class TestConsumers:
    def test_keep_the_record_of_their_position(self, place, table):
        _, position = read(table, "earliest")
        table.append([{"id": 2}])
        table.move_consumer("me", position)
        table.log.checkpoint(table.refresh())
        found = place.open().table("d.t").consumer_position("me")
        assert found.to_json() == position.to_json()
        assert read(table, found)[0] == [2]
        assert table.consumer_position("you") is None

    def test_plain_offsets_are_of_the_newest_rows(self, table):
        table.move_consumer("me", {0: 1})
        assert table.consumer_position("me").history == table.state.anchors.rows

    def test_a_position_of_another_history_is_refused(self, place, table):
        backup = place.backup()
        table.append([{"id": 2}])
        _, position = read(table, "earliest")
        place.restore(backup)
        table = place.open().table("d.t")
        table.move_consumer("me", {0: 1})
        table.append([{"id": 100}])
        version = table.refresh().version
        with pytest.raises(DifferentHistoryError, match=r"consumer 'me' .*Nothing was written.*moved_to"):
            table.move_consumer("me", kept(position))
        assert table.refresh().version == version
        table.move_consumer("me", kept(position).moved_to(table.state))
        assert table.consumer_position("me").to_json() == LogPosition.of(table.state, {0: 2}).to_json()

    def test_older_records_and_checkpoints_name_none(self, place, table, monkeypatch):
        from streamhouse_spark.log import consumers
        from streamhouse_spark.log.actions import CommitConsumerOffset

        monkeypatch.setattr(
            consumers, "CommitConsumerOffset", lambda name, offsets, _=None: CommitConsumerOffset(name, offsets)
        )
        table.move_consumer("old", {0: 1})
        table.log.checkpoint(table.refresh())
        found = place.open().table("d.t").consumer_position("old")
        assert (dict(found), found.history) == ({0: 1}, None)
        assert read(table, found)[0] == []
