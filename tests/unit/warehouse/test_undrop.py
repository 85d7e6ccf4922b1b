"""Bringing dropped tables back: whole, under either name, against cleaning, creators and a crash at every call."""

from __future__ import annotations

import pyarrow as pa
import pytest

from faults.sim import SimIds
from kit.rows import ids
from kit.tables import TableCase, tier
from streamhouse_spark import StorageError, TableExistsError, TableNotFoundError, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.log.catalog import name_changes, names
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS
from streamhouse_spark.log.low_watermark import DROPPED_WATERMARK, read_low_watermark
from streamhouse_spark.storage.memory import MemoryStorage

NAME = "sales.orders"


@pytest.fixture
def wh(clock):
    world = World(clock, SimIds(7))
    return Warehouse("", storage=MemoryStorage(world), world=world)


TABLE = TableCase(
    NAME, "id BIGINT, text STRING", primary_key=["id"], buckets=2, rows=[{"id": i, "text": "a"} for i in range(10)]
)


def test_all_of_it_comes_back(tmp_path):
    wh = Warehouse(str(tmp_path / "wh"))
    made = wh.create_table(NAME, "id BIGINT, text STRING", primary_key=["id"], buckets=2)
    made.upsert([{"id": i, "text": "a"} for i in range(10)])
    tier(made)
    made.upsert([{"id": 3, "text": "later"}, {"id": 10, "text": "new"}])
    before, ends = made.to_arrow().sort_by("id"), made.state.ends
    wh.drop_table(NAME)
    assert [(t.name, t.uuid, t.rows) for t in wh.dropped_tables()] == [(NAME, made.uuid, 13)]  # changes
    back = wh.undrop_table(NAME)
    assert wh.tables() == [NAME]
    assert wh.dropped_tables() == []
    assert back.uuid == made.uuid
    assert back.state.ends == ends
    assert back.to_arrow().sort_by("id") == before
    assert back.lake.to_arrow().num_rows == 10
    assert back.lookup([3])["text"].to_pylist() == ["later"]
    back.upsert([{"id": 11, "text": "on"}])
    tier(back)
    assert sorted(back.lake.to_arrow()["id"].to_pylist()) == list(range(12))
    wh.drop_table(NAME)
    assert ids(wh.undrop_table(NAME)) == list(range(12))


def test_whoever_had_the_table_open_goes_on(wh, table):
    writer = Warehouse("", storage=wh.storage, world=wh.world).table(NAME)
    wh.drop_table(NAME)
    with pytest.raises(TableNotFoundError, match="dropped"):
        writer.upsert([{"id": 20}])
    wh.undrop_table(NAME)
    writer.upsert([{"id": 20}])
    assert ids(wh.table(NAME)) == [*range(10), 20]


def test_a_database_comes_back_with_its_table(wh, table):
    wh.drop_database("sales", cascade=True)
    assert not wh.database_exists("sales")
    assert ids(wh.undrop_table(NAME)) == list(range(10))
    assert wh.databases() == ["sales"]


class TestNames:
    def test_an_undrop_under_a_taken_name_needs_another(self, wh, table):
        wh.drop_table(NAME)
        wh.create_table(NAME, "a INT").append([{"a": 1}])
        with pytest.raises(TableExistsError, match="to="):
            wh.undrop_table(NAME)
        assert ids(wh.undrop_table(NAME, to="sales.before")) == list(range(10))
        assert wh.tables() == ["sales.before", "sales.orders"]
        assert wh.table(NAME).to_arrow().to_pylist() == [{"a": 1}]
        wh.drop_table(NAME)
        with pytest.raises(TableExistsError, match="choose another name"):
            wh.undrop_table(NAME, to="sales.before")
        assert wh.undrop_table(NAME).to_arrow().to_pylist() == [{"a": 1}]

    def test_an_undrop_of_several_restores_the_named_one(self, wh, table, clock):
        wh.drop_table(NAME)
        clock.advance(1000)
        second = wh.create_table(NAME, "a INT")
        wh.drop_table(NAME)
        assert [t.uuid for t in wh.dropped_tables()] == [second.uuid, table.uuid]
        with pytest.raises(TableNotFoundError, match=f"dropped tables with this name: {second.uuid}, {table.uuid}"):
            wh.undrop_table(NAME, uuid="nope")
        assert wh.undrop_table(NAME).uuid == second.uuid
        assert wh.undrop_table(NAME, uuid=table.uuid, to="sales.first").uuid == table.uuid

    @pytest.mark.parametrize(
        ("name", "match"), [("sales.order", "did you mean sales.orders"), ("x.y", "dropped tables: sales.orders")]
    )
    def test_an_undrop_of_an_unknown_table_is_rejected(self, wh, table, name, match):
        wh.drop_table(NAME)
        with pytest.raises(TableNotFoundError, match=match):
            wh.undrop_table(name)

    def test_a_table_that_is_there(self, wh, table):
        with pytest.raises(TableExistsError, match="exists"):
            wh.undrop_table(NAME)


class TestCleaning:
    def test_what_is_buried_stays_dropped(self, wh, table, clock):
        wh.drop_table(NAME)
        clock.advance(GRACE_MS + 1)
        wh.clean_dropped()
        assert wh.dropped_tables() == []
        with pytest.raises(TableNotFoundError, match="no dropped table"):
            wh.undrop_table(NAME)

    def test_what_came_back_is_not_cleaned(self, wh, table, clock):
        wh.drop_table(NAME)
        clock.advance(GRACE_MS - 1)
        wh.clean_dropped()
        wh.undrop_table(NAME)
        for _ in range(3):
            clock.advance(GRACE_MS + 1)
            assert wh.clean_dropped().deleted == []
        assert ids(wh.table(NAME)) == list(range(10))

    @pytest.mark.parametrize("first", ["undrop", "clean"])
    def test_a_race_has_one_winner(self, wh, table, clock, monkeypatch, first):
        """Each of the two looks, then the other one goes through, then it commits."""
        wh.drop_table(NAME)
        clock.advance(GRACE_MS + 1)
        other = Warehouse("", storage=wh.storage, world=wh.world)
        commit, begun = type(table.log).commit, []

        def late(log, plan, **kwargs):
            if not begun:
                begun.append(log)
                other.clean_dropped() if first == "clean" else other.undrop_table(NAME)
            return commit(log, plan, **kwargs)

        if first == "clean":
            monkeypatch.setattr(name_changes, "free_name", lambda *_: True)
            monkeypatch.setattr(type(table.log), "commit", late)
            with pytest.raises(TableNotFoundError):
                wh.undrop_table(NAME)
            assert read_low_watermark(wh.storage, table.uuid, 1).number == DROPPED_WATERMARK
            assert wh.tables() == []
        else:
            monkeypatch.setattr(type(table.log), "commit", late)
            wh.clean_dropped()
            assert read_low_watermark(wh.storage, table.uuid, 1) is None
            assert ids(wh.table(NAME)) == list(range(10))
        assert begun


def test_a_creator_that_takes_the_name_meanwhile_has_it(wh, table, monkeypatch):
    """The undropper has put the pointer and sleeps; somebody creates a table of that name; then it wakes up."""
    wh.drop_table(NAME)
    other = Warehouse("", storage=wh.storage, world=wh.world)
    point, created = names.put_name_pointer, []

    def slow(storage, path, previous, uuid, world, **kwargs):
        done = point(storage, path, previous, uuid, world, **kwargs)
        if not created and uuid == table.uuid:
            created.append(True)
            other.create_table(NAME, "a INT").append([{"a": 1}])
        return done

    monkeypatch.setattr(names, "put_name_pointer", slow)
    with pytest.raises(TableExistsError, match="cannot be restored"):
        wh.undrop_table(NAME)
    assert created
    assert wh.table(NAME).to_arrow() == pa.table({"a": pa.array([1], pa.int32())})
    assert [t.uuid for t in wh.dropped_tables()] == [table.uuid]
    assert ids(wh.undrop_table(NAME, to="sales.old")) == list(range(10))


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_failure_at_every_write(wh, table, lost):
    """The table is dropped or there, and trying again brings it back, once."""
    storage, failed = wh.storage, 0
    for number in range(12):
        wh.drop_table(NAME)
        put, calls = storage.put_if_absent, []

        def failing(key, data, put=put, calls=calls, number=number):
            calls.append(key)
            if len(calls) != number + 1:
                return put(key, data)
            if lost == "answer":
                put(key, data)
            raise StorageError(f"cut off at {key}")

        storage.put_if_absent = failing
        try:
            wh.undrop_table(NAME)
        except StorageError:
            failed += 1
        finally:
            storage.put_if_absent = put
        if not wh.exists(NAME):
            wh.undrop_table(NAME)
        assert wh.tables() == [NAME]
        assert ids(wh.table(NAME)) == list(range(10))
        assert wh.dropped_tables() == []
        if len(calls) <= number:
            break
    assert number > 1
    assert failed or lost == "answer"


def test_an_undropped_table_has_an_undrop_record(wh, table):
    wh.drop_table(NAME)
    wh.undrop_table(NAME, to="sales.again")
    pointer = names.resolve(wh.storage, TablePath("sales", "again"))
    assert pointer.uuid == table.uuid
    assert wh.table("sales.again").inspect.commits()["actions"].to_pylist()[-1] == "undrop"
