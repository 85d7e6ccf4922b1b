"""Nothing that fails behind its commit point fails a verb: every storage call from there on fails, in each of them."""

from __future__ import annotations

from contextlib import suppress

import pytest

from faults.faulty_storage import Fault, FaultyStorage
from streamhouse_spark import StorageError, Transaction, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.post_commit import IN_CALL
from streamhouse_spark.log import compaction as merge
from streamhouse_spark.storage.memory import MemoryStorage

PLAIN = {"table.datalake.enabled": "false"}


class Spoiled:
    """A warehouse whose store fails in every call behind a put that one looks for, until that is over."""

    def __init__(self):
        self.point = None
        self.passed = False
        self.storage = FaultyStorage(MemoryStorage(), self._plan)
        self.warehouse = Warehouse("wh", storage=self.storage, world=World(background=IN_CALL))

    def _plan(self, number, method, key):
        if self.point is None:
            return None
        if self.passed:
            return Fault.ERROR_BEFORE
        if method == "put_if_absent" and self.point(key):
            self.passed = True
        return None

    def run(self, point, verb):
        self.point, self.passed = point, False
        try:
            return verb()
        finally:
            assert self.passed, "the commit point was not reached"
            self.point = None


def is_record(key):
    return "/commits/" in key


def is_pointer(key):
    return "/names/" in key


@pytest.fixture
def spoiled(own_cache, monkeypatch):
    # What follows a commit now and then follows each.
    monkeypatch.setattr(merge, "INLINE_RECORDS_MAX", 1)
    monkeypatch.setattr("streamhouse_spark.log.checkpoint.CHECKPOINT_INTERVAL", 1)
    return Spoiled()


def log_table(spoiled):
    table = spoiled.warehouse.create_table("t", "id INT", properties=PLAIN)
    table.append([{"id": 1}], transaction=Transaction("app", 1))
    return table


def keyed_table(spoiled):
    table = spoiled.warehouse.create_table("t", "id INT, v INT, p INT", primary_key=["id", "p"], partition_by=["p"])
    table.upsert([{"id": 1, "v": 1, "p": 1}])
    return table


LOG_VERBS = {
    "append": lambda t: t.append([{"id": 2}]),
    "overwrite": lambda t: t.overwrite([{"id": 2}]),
    "truncate": lambda t: t.truncate(),
    "add columns": lambda t: t.add_columns("x INT"),
    "alter properties": lambda t: t.alter_properties({"table.log.ttl": "1d"}),
    "forget transactions": lambda t: t.forget_transactions("app"),
    "move consumer": lambda t: t.move_consumer("me", {0: 1}),
}
KEYED_VERBS = {
    "upsert": lambda t: t.upsert([{"id": 1, "v": 2, "p": 1}, {"id": 2, "v": 2, "p": 2}]),
    "partial update": lambda t: t.upsert([{"id": 1, "v": 3, "p": 1}], columns=["v"]),
    "delete": lambda t: t.delete([{"id": 1, "p": 1}]),
    "overwrite": lambda t: t.overwrite([{"id": 5, "v": 5, "p": 5}]),
    "truncate": lambda t: t.truncate(),
    "drop partition": lambda t: t.drop_partition({"p": 1}),
}


@pytest.mark.parametrize("verb", LOG_VERBS)
def test_log_table_verbs_succeed_if_calls_after_their_commit_fail(spoiled, verb):
    table = log_table(spoiled)
    before = table.refresh().version
    spoiled.run(is_record, lambda: LOG_VERBS[verb](table))
    assert table.refresh().version > before
    table.append([{"id": 9}])
    assert 9 in Warehouse("wh", storage=spoiled.storage).table("t").to_arrow()["id"].to_pylist()


@pytest.mark.parametrize("verb", KEYED_VERBS)
def test_keyed_table_verbs_succeed_if_calls_after_their_commit_fail(spoiled, verb):
    table = keyed_table(spoiled)
    before = table.refresh().version
    spoiled.run(is_record, lambda: KEYED_VERBS[verb](table))
    assert table.refresh().version > before
    table.upsert([{"id": 9, "v": 9, "p": 9}])
    rows = Warehouse("wh", storage=spoiled.storage).table("t").to_arrow().to_pylist()
    assert {"id": 9, "v": 9, "p": 9} in rows
    keys = [{"id": row["id"], "p": row["p"]} for row in rows]
    assert table.lookup(keys)["_found"].to_pylist() == [True] * len(rows)


def test_a_table_is_created_if_calls_after_its_pointer_fail(spoiled):
    log_table(spoiled)
    made = spoiled.run(is_pointer, lambda: spoiled.warehouse.create_table("other", "id INT", properties=PLAIN))
    made.append([{"id": 1}])
    assert spoiled.warehouse.table("other").to_arrow()["id"].to_pylist() == [1]


def test_a_table_is_dropped_if_calls_after_its_record_fail(spoiled):
    log_table(spoiled)
    assert spoiled.run(is_record, lambda: spoiled.warehouse.drop_table("t"))
    assert not spoiled.warehouse.exists("t")
    spoiled.warehouse.create_table("t", "id INT", properties=PLAIN)


def test_a_table_is_renamed_if_calls_after_its_record_fail(spoiled):
    log_table(spoiled)
    spoiled.run(is_record, lambda: spoiled.warehouse.rename_table("t", "u"))
    assert spoiled.warehouse.table("u").to_arrow()["id"].to_pylist() == [1]
    assert not spoiled.warehouse.exists("t")
    spoiled.warehouse.create_table("t", "id INT", properties=PLAIN)


def test_a_table_is_undropped_if_calls_after_its_record_fail(spoiled):
    log_table(spoiled)
    spoiled.warehouse.drop_table("t")
    back = spoiled.run(is_record, lambda: spoiled.warehouse.undrop_table("t"))
    assert back.to_arrow()["id"].to_pylist() == [1]


def test_the_store_fails_indeed(spoiled):
    table = log_table(spoiled)

    def verb():
        table.append([{"id": 2}])
        with suppress(StorageError):
            spoiled.storage.read("streamhouse.json")
            pytest.fail("the store works")

    spoiled.run(is_record, verb)
