"""While a large write is worked out and stored, nobody waits for it: it happens before the commit's attempt."""

from __future__ import annotations

import pyarrow as pa
import pytest

from faults.faulty_storage import FaultyStorage
from streamhouse_spark import Warehouse
from streamhouse_spark.kv.tablet import Tablet

pytestmark = pytest.mark.usefixtures("own_cache")

ROWS = 20_000


class Watched:
    """A table that notes which storage calls, and which looks at rows by key, are made while its log is locked."""

    def __init__(self, memory, world, monkeypatch) -> None:
        self.under_lock: list[str] = []
        self.between = None
        table = Warehouse("wh", storage=memory, world=world).create_table(
            "t", "id BIGINT, p INT, v STRING", primary_key=["id", "p"], partition_by=["p"], buckets=2
        )
        table.upsert(rows(0))
        self.table = Warehouse("wh", storage=FaultyStorage(memory, self.noted), world=world).table("t")
        scan, find = Tablet.scan, Tablet.find
        monkeypatch.setattr(Tablet, "scan", lambda *args: (self.note("scan"), scan(*args))[1])
        monkeypatch.setattr(Tablet, "find", lambda *args: (self.note("find"), find(*args))[1])

    def noted(self, _number: int, method: str, key: str) -> None:
        self.note(f"{method} {key.split('/')[2]}" if key.count("/") > 1 else method)

    def note(self, what: str) -> None:
        table = getattr(self, "table", None)
        if table is not None and table.log._lock._is_owned():
            self.under_lock.append(what)
            if self.between is not None and "commits" in what and "put" in what:
                between, self.between = self.between, None
                noted = list(self.under_lock)
                between()
                self.under_lock[:] = noted  # without what the other process did


def rows(add: int) -> pa.Table:
    ids = pa.array(range(ROWS), pa.int64())
    return pa.table({"id": ids, "p": pa.array([0] * ROWS, pa.int32()), "v": [f"{i + add}" for i in range(ROWS)]})


@pytest.fixture
def watched(memory, world, monkeypatch):
    return Watched(memory, world, monkeypatch)


WORK = {
    "upsert": lambda table: table.upsert(rows(1)),
    "delete": lambda table: table.delete([(i, 0) for i in range(ROWS)]),
    "overwrite": lambda table: table.overwrite(rows(2)),
    "drop a partition": lambda table: table.drop_partition({"p": 0}),
}


@pytest.mark.parametrize("work", WORK)
def test_only_the_record_is_written_while_the_log_is_locked(watched, work):
    WORK[work](watched.table)
    kinds = {what.split()[0].partition(".")[0] for what in watched.under_lock}
    assert not kinds & {"create", "scan", "find"}, watched.under_lock
    assert any("put" in kind for kind in kinds)


def test_a_bucket_that_moves_is_staged_ahead_again(watched, memory, world):
    other = Warehouse("wh", storage=memory, world=world).table("t")
    watched.between = lambda: other.upsert([{"id": 1, "p": 0, "v": "other"}])
    watched.table.upsert(rows(1))
    assert not {"create", "find"} & {what.split()[0].partition(".")[0] for what in watched.under_lock}
    assert watched.table.lookup_one((1, 0))["v"] == "2"


def test_a_writer_that_is_overtaken_again_and_again_comes_to_its_end(watched, memory, world):
    other = Warehouse("wh", storage=memory, world=world).table("t")

    def overtakes() -> None:
        other.upsert([{"id": 1, "p": 0, "v": f"{len(watched.under_lock)}"}])
        if sum("create" in what for what in watched.under_lock) == 0:
            watched.between = overtakes

    watched.between = overtakes
    watched.table.upsert(rows(1))
    assert any("create" in what for what in watched.under_lock)  # at last it is staged where nobody can be faster
    assert watched.table.lookup_one((1, 0))["v"] == "2"


def test_few_rows_are_looked_up_in_the_attempt(watched):
    watched.table.upsert([{"id": 1, "p": 0, "v": "x"}])
    assert "find" in watched.under_lock
