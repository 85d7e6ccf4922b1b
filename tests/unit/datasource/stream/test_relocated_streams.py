"""Streams that began at a warehouse, and go on at the place where it was moved, or at its copy."""

import shutil

import pytest

from faults.sim import sim_world
from property.stream_driver import Query
from streamhouse_spark import StreamhouseError, Warehouse, relocate
from streamhouse_spark.storage.local import LocalStorage


@pytest.fixture
def query(tmp_path):
    table = Warehouse(str(tmp_path / "wh")).create_table("d.t", "id BIGINT")
    table.append([{"id": 1}])
    begun = Query("d.t")
    begun.run(Warehouse(str(tmp_path / "wh")))
    return begun


def ids(query):
    return [row["id"] for row in query.rows]


def test_a_stream_of_the_original_is_refused_at_the_copy(query, tmp_path):
    shutil.copytree(tmp_path / "wh", tmp_path / "copy")
    copy = Warehouse(str(tmp_path / "copy"))
    relocate(copy, copy=True)
    copy = Warehouse(str(tmp_path / "copy"))
    copy.table("d.t").append([{"id": 2}])
    with pytest.raises(StreamhouseError, match="checkpointLocation"):
        query.run(copy)
    assert ids(query) == [1]
    anew = Query("d.t")
    anew.run(copy)
    assert ids(anew) == [1, 2]


def test_a_stream_of_a_table_is_refused_at_its_clone(query, tmp_path):
    warehouse = Warehouse(str(tmp_path / "wh"))
    warehouse.clone_table("d.t", "d.c")
    warehouse.drop_table("d.t")
    warehouse.rename_table("d.c", "d.t")
    with pytest.raises(StreamhouseError, match="checkpointLocation"):
        query.run(warehouse)
    anew = Query("d.t")
    anew.run(warehouse)
    assert ids(anew) == [1]


def test_a_stream_goes_on_where_the_warehouse_was_moved_to(query, tmp_path):
    shutil.move(tmp_path / "wh", tmp_path / "moved")
    moved = Warehouse(str(tmp_path / "moved"))
    relocate(moved)
    moved.table("d.t").append([{"id": 2}])
    query.run(moved)
    assert ids(query) == [1, 2]


def test_logs_of_the_original_go_from_the_copy_a_day_later(tmp_path, clock):
    def at(folder):
        world = sim_world(len(folder), clock)
        storage = LocalStorage(str(tmp_path / folder), fsync=False, world=world)
        return Warehouse(str(tmp_path / folder), storage=storage, world=world)

    table = at("wh").create_table("d.t", "id BIGINT")
    table.append([{"id": 1}])
    former = tmp_path / "copy/tables" / table.uuid
    shutil.copytree(tmp_path / "wh", tmp_path / "copy")
    relocate(at("copy"), copy=True)

    def files():
        return [path for path in former.rglob("*") if path.is_file() and not path.name.endswith(".lock")]

    before = files()
    assert before
    clock.advance(23 * 3_600_000)
    at("copy").clean_dropped()
    assert files() == before
    for _ in range(3):
        clock.advance(25 * 3_600_000)
        at("copy").clean_dropped()
    assert [path.parent.name for path in files()] == ["floors"], "what says that the log is gone for good"
    assert at("copy").table("d.t").to_arrow().num_rows == 1
