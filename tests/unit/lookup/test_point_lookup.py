"""`Table.lookup_one`, lookups of many keys, and the scheduling of threads that look up rows."""

from __future__ import annotations

import datetime as dt
import functools
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from decimal import Decimal

import pyarrow as pa
import pytest

from kit.waiting import wait_for
from streamhouse_spark import InvalidOptionError, OffsetRange, SchemaMismatchError, TableNotFoundError
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.lookup import point_lookup as module
from streamhouse_spark.lookup.batch_lookup import BatchLookup
from streamhouse_spark.lookup.point_lookup import LOOKUPS_MAX, LookupScheduler

pytestmark = pytest.mark.usefixtures("own_cache")


def test_rows_of_a_schema_that_another_process_of_the_host_knows(table, other_process):
    other = other_process().table("t")
    assert other.lookup_one(1, max_staleness_ms=60_000) is None
    table.add_columns("note STRING")
    table.upsert([{"id": 1, "note": "x"}])
    stale = {"max_staleness_ms": 60_000}  # the host's tablet is newer than what this process knows of the log
    assert other.lookup_one(1, columns=["id"], **stale) == {"id": 1}
    assert other.lookup([1], columns=["id"], **stale).to_pylist() == [{"id": 1, "_found": True}]
    assert other.prefix_lookup(1, columns=["id"], **stale).num_rows == 1


@pytest.fixture(params=[1, 4])
def table(wh, request):
    return wh.create_table(
        "t", "id BIGINT, name STRING, n INT, at TIMESTAMP, d DECIMAL(20,2)", primary_key=["id"], buckets=request.param
    )


def test_a_looked_up_row_is_a_dict(table):
    row = {"id": -7, "name": "ä\0", "n": None, "at": dt.datetime(2024, 2, 3, tzinfo=dt.UTC), "d": Decimal("-1.50")}
    table.upsert([row, {"id": 2**63 - 1}])
    assert table.lookup_one(-7) == table.lookup_one({"ID": -7}) == table.lookup_one((-7,)) == row
    assert list(table.lookup_one(-7, columns=["NAME", "id"]).items()) == [("name", "ä\0"), ("id", -7)]
    assert table.lookup_one(2**63 - 1)["name"] is None
    assert table.lookup_one(8) is None
    table.delete([-7])
    assert table.lookup_one(-7) is None


@pytest.fixture
def other(table, other_process):
    """The table as another process has it. Remote storage is asked once a second: here each time."""
    found = other_process().table("t")
    if found.storage.local_path("") is None:
        for name in ("lookup", "lookup_one"):
            setattr(found, name, functools.partial(getattr(found, name), max_staleness_ms=0))
    return found


def test_it_sees_every_write_before_the_call(table, other):
    for i in range(5):
        table.upsert([{"id": 1, "n": i}])
        assert other.lookup_one(1)["n"] == i
        assert other.lookup([1])["n"].to_pylist() == [i]
        other.upsert([{"id": 1, "n": -i}])
        assert table.lookup_one(1, columns=["n"], max_staleness_ms=0) == {"n": -i}
    close_tablets()
    assert other.lookup_one(1)["n"] == -4
    table.truncate()
    assert other.lookup_one(1) is None


def test_staleness_is_what_was_asked_for(table, other, monkeypatch, tmp_path):
    assert other.lookup_one(1) is None
    offsets = table.upsert([{"id": 1}])
    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path / "other host"))  # one host has the newest rows anyway
    assert other.lookup_one(1, max_staleness_ms=60_000) is None
    assert other.lookup_one(1, max_staleness_ms=60_000, at_least=offsets) is not None
    with pytest.raises(InvalidOptionError, match="the log ends at"):
        other.lookup_one(1, at_least={0: OffsetRange(0, 99)})


def test_columns_that_came_later(table, other):
    table.upsert([{"id": 1, "name": "a"}, {"id": 2}])
    assert other.lookup_one(1)["name"] == "a"
    table.add_columns("note STRING")
    table.upsert([{"id": 2, "note": "x"}])
    assert other.lookup_one(1)["note"] is None  # written by the older schema
    assert other.lookup_one(2)["note"] == "x"


def test_keys_of_several_columns_are_looked_up_in_every_form(wh):
    table = wh.create_table(
        "k", "a STRING, b SMALLINT, c DATE, v INT", primary_key=["a", "b", "c"], buckets=4,
        properties={"bucket.key": "b"},
    )  # fmt: skip
    day = dt.date(2024, 5, 6)
    table.upsert([{"a": "x", "b": 1, "c": day, "v": 5}])
    assert table.lookup_one(("x", 1, day))["v"] == 5
    assert table.lookup_one({"c": day, "b": 1, "a": "x"}, columns=["v"]) == {"v": 5}
    assert table.lookup_one(["x", 2, day]) is None
    texts = wh.create_table("s", "a STRING, b STRING, v INT", primary_key=["a", "b"], buckets=3)
    keys = [("", ""), ("\0", "x"), ("x" * 600, "y"), ("x" * 65, "é")]
    texts.upsert([{"a": a, "b": b, "v": i} for i, (a, b) in enumerate(keys)])
    assert [texts.lookup_one(key)["v"] for key in keys] == [0, 1, 2, 3]


def test_keys_that_do_not_fit_are_rejected(table, wh):
    with pytest.raises(SchemaMismatchError, match=r"expected a value of \(id\)"):
        table.lookup_one((1, 2))
    with pytest.raises(SchemaMismatchError, match="no column 'nope'"):
        table.lookup_one({"nope": 1})
    for key in ("1", 1.5, 2**63, None):
        with pytest.raises(SchemaMismatchError, match="'id'"):
            table.lookup_one(key)
    with pytest.raises(SchemaMismatchError, match="no column 'nope'"):
        table.lookup_one(1, columns=["nope"])
    with pytest.raises(InvalidOptionError, match="list of names"):
        table.lookup_one(1, columns="name")
    with pytest.raises(InvalidOptionError, match="max_staleness_ms"):
        table.lookup_one(1, max_staleness_ms=-1)
    with pytest.raises(InvalidOptionError, match="has no primary key"):
        wh.create_table("plain", "id BIGINT").lookup_one(1)
    table.upsert([{"id": 1}])
    assert table.lookup_one(1)
    wh.drop_table("t")
    with pytest.raises(TableNotFoundError):
        table.lookup_one(1, max_staleness_ms=0)


class TestMatches:
    @pytest.fixture
    def pairs(self, wh):
        table = wh.create_table("p", "a STRING, b INT, v INT", primary_key=["a", "b"], buckets=3)
        table.upsert([{"a": a, "b": b, "v": 10 * b} for a in ("x", "xy", "z" * 600) for b in (2, -1)])
        return table

    def test_a_batch_lookup_finds_rows_of_key_prefixes(self, pairs):
        found = BatchLookup(pairs.keyed).matches(pa.table({"a": ["xy", "nope", "z" * 600, "xy", "x"]}))
        assert found.places.tolist() == [0, 0, 2, 2, 3, 3, 4, 4]
        assert found.rows["a"].to_pylist() == ["xy", "xy", *["z" * 600] * 2, "xy", "xy", "x", "x"]
        assert found.rows["v"].to_pylist() == [-10, 20] * 4

    def test_of_prefixes_that_are_longer_than_what_is_stored(self, pairs):
        pairs.upsert([{"a": "z" * 599 + "y", "b": 0, "v": 1}])
        found = BatchLookup(pairs.keyed).matches(pa.table({"a": ["z" * 599 + "y", "z" * 599]}))
        assert found.places.tolist() == [0]
        assert found.rows["v"].to_pylist() == [1]

    def test_a_batch_lookup_finds_rows_of_whole_keys(self, pairs):
        keys = pa.table({"b": pa.array([2, 7, -1], pa.int32()), "a": ["x", "x", "xy"]})
        found = BatchLookup(pairs.keyed).matches(keys, columns=["v"])
        assert found.places.tolist() == [0, 2]
        assert found.rows.to_pydict() == {"v": [20, -10]}

    def test_without_columns_only_places_count(self, pairs):
        found = BatchLookup(pairs.keyed).matches(pa.table({"a": ["x", "nope"]}), columns=[])
        assert found.places.tolist() == [0, 0]
        assert found.rows.num_columns == 0

    def test_a_batch_lookup_of_no_keys_finds_nothing(self, pairs):
        found = BatchLookup(pairs.keyed).matches(pairs.schema.empty_table().select(["a"]))
        assert len(found.places) == found.rows.num_rows == 0
        assert found.rows.schema.names == ["a", "b", "v"]

    def test_a_prefix_without_the_bucket_key_is_found_in_all_buckets(self, wh):
        table = wh.create_table(
            "t", "a STRING, b INT", primary_key=["a", "b"], buckets=4, properties={"bucket.key": "b"}
        )
        table.upsert([{"a": a, "b": b} for a in "xy" for b in range(20)])
        found = BatchLookup(table.keyed).matches(pa.table({"a": ["y", "x"]}))
        assert found.places.tolist() == [0] * 20 + [1] * 20
        assert sorted(found.rows["b"].to_pylist()[20:]) == list(range(20))


FOR_EVER_S = 600.0
ANSWER_S = 60.0


class Worker:
    """A thread that does one thing after another."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[tuple[Callable[[], object], Future[object]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            action, result = self._orders.get()
            result.set_result(action())

    def begin(self, action: Callable[[], object]) -> Future[object]:
        result: Future[object] = Future()
        self._orders.put((action, result))
        return result

    def do(self, action: Callable[[], object]) -> object:
        return self.begin(action).result(ANSWER_S)


@pytest.fixture
def turns():
    return LookupScheduler()


@pytest.fixture
def patient(monkeypatch):
    """Who waits is woken by others alone."""
    monkeypatch.setattr(module, "WAIT_S", FOR_EVER_S)


def _waiting(turns: LookupScheduler, worker: Worker) -> Future[object]:
    before = len(turns._waiting)
    result = worker.begin(turns.acquire)
    wait_for(lambda: len(turns._waiting) > before, "a wait")
    return result


@pytest.mark.usefixtures("patient")
def test_who_waits_has_the_turn_next(turns):
    first, second, third = Worker(), Worker(), Worker()
    assert first.do(turns.acquire)
    waits = [_waiting(turns, worker) for worker in (second, third)]
    first.do(turns.release)
    assert waits[0].result(ANSWER_S)
    assert not waits[1].done()
    second.do(turns.release)  # neither came back, so nobody keeps the turn
    assert waits[1].result(ANSWER_S)
    third.do(turns.release)
    assert first.do(turns.acquire)


@pytest.mark.usefixtures("patient")
def test_who_comes_back_keeps_the_turn_for_a_while(turns):
    first, second = Worker(), Worker()
    assert first.do(turns.acquire)
    wait = _waiting(turns, second)
    first.do(turns.release)
    assert wait.result(ANSWER_S)
    wait = _waiting(turns, first)
    for _ in range(LOOKUPS_MAX):
        second.do(turns.release)
        assert not wait.done()
        assert second.do(turns.acquire)
    second.do(turns.release)
    assert wait.result(ANSWER_S)
    assert _waiting(turns, second).done() is False
    for _ in range(LOOKUPS_MAX):  # for as long as the other one
        first.do(turns.release)
        assert first.do(turns.acquire)
    assert turns._waiting
    first.do(turns.release)
    assert not turns._waiting


def test_an_owner_that_is_at_something_else_stops_nobody(turns):
    first, second = Worker(), Worker()
    assert first.do(turns.acquire)  # and reads the log for long, or was interrupted
    assert second.do(turns.acquire)
    second.do(turns.release)
    assert second.do(turns.acquire)
    second.do(turns.release)
    first.do(turns.release)
    assert first.do(turns.acquire)


@pytest.mark.usefixtures("patient")
def test_a_turn_that_was_kept_in_vain_is_taken(turns):
    first, second, third = Worker(), Worker(), Worker()
    assert first.do(turns.acquire)
    wait = _waiting(turns, second)
    first.do(turns.release)
    assert wait.result(ANSWER_S)
    wait = _waiting(turns, first)
    second.do(turns.release)  # it keeps the turn, because the other one came back, and does not come back itself
    assert not wait.done()
    turns._check_progress(turns._waiting[0], 0)
    assert wait.result(ANSWER_S)
    wait = _waiting(turns, third)
    first.do(turns.release)  # and nobody is taken for one that comes back any more
    assert wait.result(ANSWER_S)


@pytest.mark.usefixtures("patient")
def test_where_lookups_are_slow_all_go_on_at_once(turns):
    first, second, third = Worker(), Worker(), Worker()
    assert first.do(turns.acquire)
    waits = [_waiting(turns, worker) for worker in (second, third)]
    turns._check_progress(turns._waiting[1], module._FEW)
    assert turns._waiting
    turns._check_progress(turns._waiting[1], module._FEW - 1)  # of the owner, meanwhile
    assert [wait.result(ANSWER_S) for wait in waits] == [False, False]
    assert [worker.do(turns.acquire) for worker in (second, third)] == [False, False]
    first.do(turns.release)
    assert second.do(turns.acquire)


@pytest.mark.usefixtures("patient")
def test_who_is_interrupted_while_it_waits_gives_its_turn_to_the_next(turns, monkeypatch):
    class Interrupted:
        def is_set(self) -> bool:
            return False

        def set(self) -> None:
            pass

        def wait(self, _timeout: float) -> bool:
            first.do(turns.release)  # which gives this one the turn
            raise KeyboardInterrupt

    first, second = Worker(), Worker()
    assert first.do(turns.acquire)
    with monkeypatch.context() as interrupted:
        interrupted.setattr(module, "new_event", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            turns.acquire()
    assert not turns._waiting
    assert second.do(turns.acquire)


@pytest.mark.usefixtures("patient")
def test_a_child_has_a_free_turn(turns):
    assert turns.acquire()
    child = os.fork()
    if not child:
        os._exit(0 if turns.acquire() and not turns._waiting else 1)
    assert os.waitpid(child, 0)[1] == 0
