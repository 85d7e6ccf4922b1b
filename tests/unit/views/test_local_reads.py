"""Changes that the driver reads, and rows that it looks up: beside a table that goes on meanwhile."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kit.rows import sorted_tuples
from streamhouse_spark import Warehouse
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.log.transactions import Lineage, SourceVersion
from streamhouse_spark.table.refresh_commit import RefreshStep
from streamhouse_spark.views import local_reads as module
from streamhouse_spark.views.ivm.delta_sql import WEIGHT, IndexedSide
from streamhouse_spark.views.local_reads import (
    LocalChanges,
    count_equal_rows,
    is_mostly_changed,
    lookup_joined_rows,
    may_be_local,
    read_changes,
    rewind_rows,
)

HOT = {"table.datalake.enabled": "false"}


@pytest.fixture
def wh(tmp_path, own_cache):
    yield Warehouse(str(tmp_path / "wh"))
    close_tablets()


@pytest.fixture
def keyed(wh):
    return wh.create_table("db.k", "id BIGINT, a INT, b STRING", primary_key=["id"], buckets=2, properties=HOT)


def row(number, a, b="x"):
    return {"id": number, "a": a, "b": b}


def since(table, ends, columns=("id", "a", "b")) -> LocalChanges:
    state = table.refresh()
    found = read_changes(table, state, ends, state.ends, list(columns))
    assert found is not None
    return found


def test_changes_that_cancel_each_other_out_are_none(keyed):
    keyed.upsert([row(1, 1), row(2, 2), row(3, 3)])
    ends = keyed.refresh().ends
    keyed.upsert([row(1, 1, "y"), row(2, 5), row(4, 4)])
    keyed.upsert([row(2, 6)])
    keyed.delete([3, 4])
    found = since(keyed, ends)
    assert found.weights.sum() == -1
    assert sorted_tuples(found.net(["a"])) == [(2, -1), (3, -1), (6, 1)]
    assert sorted_tuples(found.net(["id", "b"])) == [(1, "x", -1), (1, "y", 1), (3, "x", -1)]


def test_rows_that_came_twice_stay_two(wh):
    table = wh.create_table("db.l", "a INT, b STRING", properties=HOT)
    table.append([{"a": 1, "b": "x"}, {"a": 1, "b": "x"}])
    found = since(table, {0: 0}, ("a", "b"))
    assert sorted_tuples(found.net(["a"])) == [(1, 1), (1, 1)]
    both = LocalChanges(pa.table({"a": [1, 1, 1, 2]}), np.array([1, 1, -1, -1]))
    assert sorted_tuples(both.net(["a"])) == [(1, 1), (2, -1)]
    twice = LocalChanges(pa.table({"a": [1, 1, 2]}), np.array([1, 1, -1]))
    assert twice.net(["a"])[WEIGHT].to_pylist().count(1) == 2


def test_much_is_left_to_spark(keyed, monkeypatch):
    keyed.upsert([row(number, 1) for number in range(10)])
    state = keyed.refresh()
    monkeypatch.setattr(module, "LOCAL_ROWS_MAX", 10)
    assert read_changes(keyed, state, {}, state.ends, ["id"]) is not None
    monkeypatch.setattr(module, "LOCAL_ROWS_MAX", 9)
    assert read_changes(keyed, state, {}, state.ends, ["id"]) is None
    monkeypatch.setattr(module, "LOCAL_ROWS_MAX", 10)
    monkeypatch.setattr(module, "LOCAL_BYTES_MAX", 1)
    assert read_changes(keyed, state, {}, state.ends, ["id"]) is None


def test_texts_that_spark_pads_are_left_to_it(wh):
    state = wh.create_table("db.c", "id BIGINT, c CHAR(3), v VARCHAR(3), l ARRAY<INT>").state
    assert may_be_local(state, ["id", "v"])
    assert not may_be_local(state, ["id", "c"])
    assert not may_be_local(state, ["l"])


def test_rows_before_changes_are_looked_up(keyed):
    keyed.upsert([row(1, 1), row(2, 2), row(3, 3)])
    ends, before = keyed.refresh().ends, sorted_tuples(keyed.to_arrow())
    keyed.delete([1])
    keyed.upsert([row(1, 7), row(2, 8), row(4, 9)])
    keyed.upsert([row(2, 2), row(4, 10)])
    assert sorted_tuples(rewind_rows(keyed.to_arrow(), since(keyed, ends), ["id"])) == before
    nothing = LocalChanges(keyed.to_arrow().slice(0, 0), np.zeros(0, np.int64))
    assert sorted_tuples(rewind_rows(keyed.to_arrow(), nothing, ["id"])) == sorted_tuples(keyed.to_arrow())


USE = IndexedSide("t1", ("id",), ("id", "b"), "t0", ("cust",))


def naming(*keys):
    return pa.table({"cust": pa.array(keys, pa.int32()), WEIGHT: pa.array([1] * len(keys))})


def test_rows_are_those_of_the_version(keyed):
    """The table goes on between the step and the lookup: rows are those of the step's two versions all the same."""
    keyed.upsert([row(1, 1, "one"), row(2, 2, "two"), row(3, 3, "three")])
    ends = keyed.refresh().ends
    keyed.upsert([row(2, 2, "TWO"), row(5, 5, "five")])
    state = keyed.refresh()
    own = since(keyed, ends, ("id", "b"))
    keyed.upsert([row(1, 1, "later"), row(6, 6, "later"), row(2, 2, "later")])
    keyed.delete([3])
    found = lookup_joined_rows(USE, keyed, state, naming(1, 2, 3, 5, 6, None, 2), own)
    assert found is not None
    assert sorted_tuples(found.new) == [(1, "one"), (2, "TWO"), (3, "three"), (5, "five")]
    assert sorted_tuples(found.old) == [(1, "one"), (2, "two"), (3, "three")]


def test_rows_of_a_table_that_was_altered_are_read(wh, keyed):
    keyed.upsert([row(1, 1), row(2, 2)])
    state = keyed.refresh()
    keyed.alter(add_columns="c INT")
    assert lookup_joined_rows(USE, keyed, state, naming(1), None) is None
    state = keyed.refresh()
    keyed.truncate()
    assert lookup_joined_rows(USE, keyed, state, naming(1), None) is None
    wal = {**HOT, "table.changelog.image": "wal"}
    table = wh.create_table("db.wal", "id BIGINT, a INT, b STRING", primary_key=["id"], properties=wal)
    table.upsert([row(1, 1)])
    state = table.refresh()
    assert lookup_joined_rows(USE, table, state, naming(1), None) is not None
    table.upsert([row(1, 5)])
    assert lookup_joined_rows(USE, table, state, naming(1), None) is None, "its log has no rows before updates"


def test_keys_that_spark_compares_otherwise_are_read(keyed):
    keyed.upsert([row(1, 1)])
    state = keyed.refresh()
    texts = pa.table({"cust": ["1"], WEIGHT: [1]})
    assert lookup_joined_rows(USE, keyed, state, texts, None) is None
    none = lookup_joined_rows(USE, keyed, state, naming(None), None)
    assert none is not None
    assert none.new.num_rows == 0


def test_equal_rows_are_counted_by_their_ordinals(wh):
    view = wh.create_table(
        "db.v", "_key STRING, _ord BIGINT, a INT", primary_key=["_key", "_ord"], buckets=2, properties=HOT
    )
    counts = {"a": 1, "b": 2, "c": 3, "d": 7, "e": 8, "f": 64, "g": 100}
    view.upsert([{"_key": key, "_ord": n, "a": 1} for key, count in counts.items() for n in range(1, count + 1)])
    asked = [*counts, "none"]
    assert count_equal_rows(view, pa.chunked_array([asked])).tolist() == [*counts.values(), 0]
    assert count_equal_rows(view, pa.array([], pa.string())).tolist() == []


def step_of(table, ends):
    state = table.refresh()
    old = SourceVersion("db.s", state.table_uuid, 1, None, ends)
    new = SourceVersion("db.s", state.table_uuid, state.version, None, state.ends)
    return RefreshStep(2, Lineage((old,)), Lineage((new,))), {"db.s": state}


def test_a_step_that_changes_most_rows_is_detected(wh, keyed, monkeypatch):
    monkeypatch.setattr(module, "MOSTLY_CHANGED_ROWS_MIN", 5)
    log = wh.create_table("db.s", "a INT", properties=HOT)
    log.append([{"a": n} for n in range(100)])
    assert not is_mostly_changed(*step_of(log, {0: 95})), "few rows are never much"
    assert not is_mostly_changed(*step_of(log, {0: 70}))
    assert is_mostly_changed(*step_of(log, {0: 60}))
    keyed.upsert([row(number, 1) for number in range(20)])
    ends = keyed.refresh().ends
    keyed.upsert([row(number, 2) for number in range(20)])
    assert is_mostly_changed(*step_of(keyed, ends))
