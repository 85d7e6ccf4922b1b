"""Tables, views and warehouses travel to other processes: by name, uuid and settings, and read when they are used."""

from __future__ import annotations

import multiprocessing
import pickle

import pytest

from kit.tables import tier
from streamhouse_spark import TableNotFoundError, Warehouse
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.storage.local import LocalStorage


def travelled(thing):
    return pickle.loads(pickle.dumps(thing))


@pytest.fixture
def wh(warehouse_path):
    return Warehouse(warehouse_path, {"s3.secret-access-key": "canary-4711"})


@pytest.fixture
def table(wh):
    table = wh.create_table("t", "id INT, day INT", partition_by=["day"])
    table.append([{"id": 1, "day": 1}])
    tier(table)
    table.append([{"id": 2, "day": 2}])
    return table


@pytest.fixture
def keyed(wh, own_cache):
    table = wh.create_table("k", "id INT, v INT", primary_key=["id"])
    table.upsert([{"id": 1, "v": 1}])
    return table


def test_a_table_reads_and_writes_on_the_other_side(table, keyed):
    again = travelled(table)
    assert (again.name, again.uuid, dict(again.settings)) == (table.name, table.uuid, dict(table.settings))
    again.append([{"id": 3, "day": 3}])
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2, 3]
    other = travelled(keyed)
    other.upsert([{"id": 2, "v": 2}])
    assert keyed.lookup([2])["v"].to_pylist() == [2]
    travelled(keyed.keyed).upsert([{"id": 3, "v": 3}])
    assert keyed.lookup_one(3) == {"id": 3, "v": 3}


def test_a_pickled_warehouse_is_the_same_warehouse(wh, table):
    again = travelled(wh)
    assert again.tables() == ["default.t"]
    assert dict(again.settings) == dict(wh.settings)


@pytest.mark.parametrize("suffix", ["", "$lake", "$changelog", "$buckets", "$commits", "$partitions", "$lake$files"])
def test_pickled_views_read_the_same_rows(wh, table, suffix):
    view = wh.view(f"t{suffix}")
    assert travelled(view).to_arrow().equals(view.to_arrow())
    assert travelled(view).schema == view.schema
    assert travelled(view.scan(limit=1)).to_arrow().equals(view.scan(limit=1).to_arrow())


def test_pickled_handles_read_the_same_rows(table, wh, keyed):
    assert travelled(table.lake).to_arrow()["id"].to_pylist() == [1]
    assert travelled(table.inspect).buckets().equals(table.inspect.buckets())
    assert travelled(wh.view("k$binlog")).to_arrow().num_rows == 1


@pytest.mark.parametrize("handle", [lambda t: t, lambda t: t.lake, lambda t: t.inspect])
def test_nothing_is_read_before_it_is_used(table, handle, monkeypatch):
    packed = pickle.dumps(handle(table))

    def read(*_):
        pytest.fail("something was read")

    monkeypatch.setattr(CommitLog, "refresh", read)
    monkeypatch.setattr(LocalStorage, "read", read)
    pickle.loads(packed)


def test_nothing_travels_that_the_settings_do_not_hold(table):
    assert len(pickle.dumps(table)) < 1000
    assert b"canary" in pickle.dumps(table)  # the settings are what makes it readable there
    assert "canary" not in repr(travelled(table))


def test_a_table_that_was_dropped_is_an_error_by_its_uuid(wh, table):
    packed = pickle.dumps(table)
    wh.drop_table("t")
    wh.create_table("t", "id INT, day INT")
    for call in (lambda t: t.append([{"id": 9, "day": 9}]), lambda t: t.to_arrow(), lambda t: t.inspect.buckets()):
        with pytest.raises(TableNotFoundError, match="was dropped"):
            call(pickle.loads(packed))
    assert wh.table("t").to_arrow().num_rows == 0


def test_a_renamed_table_has_its_new_name(wh, table):
    packed = pickle.dumps(table)
    wh.rename_table("t", "u")
    again = pickle.loads(packed)
    again.append([{"id": 9, "day": 9}])
    assert again.refresh().name == again.name == "default.u"


def append_there(table, number):
    table.append([{"id": number, "day": number}])


@pytest.mark.long
def test_processes_of_a_pool_write_to_one_table(table):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.starmap(append_there, [(table, number) for number in range(10, 14)])
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2, 10, 11, 12, 13]
    attempts = table.inspect.commits()["attempt"].to_pylist()
    assert len(set(attempts)) == len(attempts)
