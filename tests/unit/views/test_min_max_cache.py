"""Smallest and largest values that a host keeps: their bytes, and when they count."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from faults.extreme_refresh import ADDED, answer, between, compiled, groups_of, hashed, listing, made, opened, shown
from faults.extreme_refresh import refresh as refresh_view
from kit.warehouses import new_store
from property.test_kept_extremes import OTHER, in_shares
from streamhouse_spark.kv.tablet import open_tablet
from streamhouse_spark.log.transactions import Lineage
from streamhouse_spark.table.refresh_commit import RefreshStep, next_step
from streamhouse_spark.views import min_max_cache
from streamhouse_spark.views import refresh_step as between_module
from streamhouse_spark.views.ivm.min_max import ROOM, TopKGroups, TopKState, ValueChanges
from streamhouse_spark.views.ivm.refresh_sql import KEY
from streamhouse_spark.views.min_max_cache import MinMaxCache, TopKCodec

SEVERAL = {
    "int": (pa.int32(), [1, -2, 3, 0, 9]),
    "bigint": (pa.int64(), [1 << 62, -(1 << 63), 0, 1, 2]),
    "double": (pa.float64(), [float("inf"), -0.5, 0.0, 1.0, 2.0]),
    "text": (pa.string(), ["", "ä", "a\x00b", "z" * 300, "b"]),
    "decimal": (pa.decimal128(12, 2), [Decimal("1.25"), Decimal("-9.99"), Decimal(0), Decimal(7), Decimal(8)]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1970, 1, 1), dt.date(2026, 1, 1)]),
    "timestamp": (pa.timestamp("us", tz="UTC"), [dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in (1969, 2026)]),
    "boolean": (pa.bool_(), [True, False]),
}  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL)
def test_bytes_and_back(name):
    kind, values = SEVERAL[name]
    chance = random.Random(name)
    lengths = np.array([chance.randint(0, len(values)) for _ in range(20)])
    flat = pa.array([value for length in lengths for value in values[:length]], kind)
    counts, behind = (np.array([chance.randint(1, 1 << 40) for _ in range(n)], np.int64) for n in (len(flat), 20))
    other = TopKState(pa.array([5] * 20, pa.int64()), np.ones(20, np.int64), np.ones(20, np.int64), behind)
    firsts = TopKGroups(np.arange(20) - 1, np.arange(20) + 8, (TopKState(flat, counts, lengths, behind), other))
    packed = TopKCodec([kind, pa.int64()])
    found = packed.unpack([None, *packed.pack(firsts), None])
    assert found.rows.tolist() == [0, *firsts.rows.tolist(), 0]
    assert found.room.tolist() == [ROOM, *firsts.room.tolist(), ROOM]
    for one, given in zip(found.lists, firsts.lists, strict=True):
        assert one.values.equals(given.values)
        assert one.counts.tolist() == given.counts.tolist()
        assert one.lengths.tolist() == [0, *given.lengths.tolist(), 0]
        assert one.overflow.tolist() == [0, *given.overflow.tolist(), 0]


@pytest.mark.parametrize("name", SEVERAL)
def test_no_bytes_at_all(name):
    packed = TopKCodec([SEVERAL[name][0]])
    assert packed.pack(packed.unpack([])) == []
    assert packed.unpack([None, None]).rows.tolist() == [0, 0]


@pytest.fixture
def storage(own_cache):
    storage = new_store()
    made(storage)
    source, _ = opened(storage, 2)
    source.upsert([{"id": n, "k": n % 3, "v": n} for n in range(30)])
    refresh_view(storage, 3)
    return storage


def step_of(storage, seed=5):
    source, view = opened(storage, seed)
    step = next_step(view, {"source": source})
    assert step is not None
    return source, view, step


def test_values_from_before_a_whole_computation_do_not_count_behind_a_step_without_groups(storage):
    source, _ = opened(storage, 11)
    source.delete([27])
    assert refresh_view(storage, 12) == [1], "the group that lost its largest value is listed, and kept"
    source.truncate()
    assert not refresh_view(storage, 13), "the whole query is computed"
    source.upsert([{"id": 1, "k": 0, "v": 1}])
    source.delete([1])
    assert refresh_view(storage, 14) == [0], "no group has changed"
    source.upsert([{"id": 2, "k": 0, "v": 2}])
    refresh_view(storage, 15)
    _, view = opened(storage, 16)
    assert shown(view) == answer(groups_of(source)) == {0: (2, 2)}


def kept_after(storage, number):
    """What is there for the step behind this one."""
    source, _ = opened(storage, 200 + number)
    source.upsert([{"id": 100 + number, "k": 0, "v": 50}])
    source, view, step = step_of(storage)
    return MinMaxCache(view, ADDED, step, between(source, step))


def stored_keys(storage):
    """Key of a group → what this host has of it."""
    view = opened(storage, 300)[1]
    found = open_tablet(view.storage.url, f"{view.uuid}-extremes", 0, {"form": min_max_cache._FORMAT})
    items: list[tuple[bytes, bytes]] = []
    found.scan(items.extend)
    return dict(items)


def lost(kept, source, key):
    """Have the groups listed behind a value that goes."""
    groups = pa.table({ADDED.groups[0]: pa.array([key], pa.int32())})
    return kept.list_lost(groups, pa.table({KEY: [hashed(key)]}), source.state.num_rows, listing(source))


NONE = np.zeros(1, np.bool_)
THERE = np.ones(1, np.bool_)


def test_all_groups_of_a_small_source_are_listed_with_the_first_value_that_goes(storage):
    assert not kept_after(storage, 1).has_values
    assert refresh_view(storage, 4) == [0]
    assert not kept_after(storage, 2).has_values, "nothing went, so nothing was looked for"
    opened(storage, 6)[0].delete([0])
    assert refresh_view(storage, 7) == [1]
    assert kept_after(storage, 3).has_values
    assert len(stored_keys(storage)) == 3


def test_groups_of_a_large_source_are_listed_in_shares(storage, monkeypatch):
    """Each refresh that reads rows lists some more, until all are there; no refresh lists them all."""
    in_shares(monkeypatch, 4)
    source, _ = opened(storage, 6)
    source.upsert([{"id": 1000 + n, "k": n, "v": n} for n in range(40)])
    refresh_view(storage, 7)
    assert not stored_keys(storage)
    numbers, computed = [], []
    for seed in range(8):
        source.delete([1000 + n for n in range(seed * 4, seed * 4 + 4)])
        source.upsert([{"id": 2000 + n, "k": n, "v": n + 1} for n in range(seed * 4, seed * 4 + 4)])
        computed += refresh_view(storage, 10 + seed)
        numbers.append(len(stored_keys(storage)))
        assert shown(opened(storage, 20)[1]) == answer(groups_of(source))
    assert numbers[0] < 20
    assert numbers[-1] > 35
    assert computed[-3:] == [0, 0, 0], "all groups are there"


def test_many_groups_that_lose_a_value_at_once_are_computed_from_their_rows(storage, monkeypatch):
    monkeypatch.setattr(min_max_cache, "LOST_MIN", 2)
    source, _ = opened(storage, 6)
    source.delete([0, 1, 2])
    assert refresh_view(storage, 7) == [3]
    assert shown(opened(storage, 8)[1]) == answer(groups_of(source))
    assert not stored_keys(storage)
    source.delete([3])
    assert refresh_view(storage, 9) == [1]
    assert len(stored_keys(storage)) == 3


def test_what_another_query_keeps_does_not_count(storage):
    opened(storage, 6)[0].delete([0])
    refresh_view(storage, 7)
    assert kept_after(storage, 1).has_values
    _, view, step = step_of(storage)
    assert not MinMaxCache(view, OTHER, step).has_values


def test_values_are_brought_forward_where_the_view_went_on_elsewhere(storage, monkeypatch, tmp_path):
    """Two hosts refresh the view in turns: each looks for the values once."""
    here = os.environ["STREAMHOUSE_CACHE_DIR"]
    source, _ = opened(storage, 6)
    computed = []
    for number, seed in enumerate(range(10, 18)):
        monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path / "other") if number % 2 else here)
        source.delete([3 * number, 3 * number + 1])
        source.upsert([{"id": 40 + number, "k": None if number == 3 else 5, "v": -number}])
        computed += refresh_view(storage, seed)
        assert shown(opened(storage, 20)[1]) == answer(groups_of(source))
    assert [count > 0 for count in computed] == [True, True, *[False] * 6]


@pytest.mark.parametrize("why", ["a copy", "many rows", "many commits", "no changes"])
def test_values_begin_anew_where_changes_do_not_tell(storage, monkeypatch, why):
    source, _ = opened(storage, 6)
    source.delete([0])
    refresh_view(storage, 7)
    source.delete([3])
    refresh_view(storage, 8, dies=True)
    kept = kept_after(storage, 1)
    assert kept.has_values
    if why == "a copy":
        (version,) = kept._versions.sources
        kept._versions = Lineage((dataclasses.replace(version, attempt="of a copy"),))
    elif why == "many rows":
        monkeypatch.setattr(between_module, "LOCAL_ROWS_MAX", 1)
    elif why == "many commits":
        monkeypatch.setattr(between_module, "COMMITS_MAX", 1)
    else:
        kept._changes_between = None
    changes = ValueChanges(np.array([0]), pa.array([50]), np.array([1]))
    assert kept.lookup(pa.table({KEY: [hashed(0)]}), THERE, lambda _: changes) is None
    assert not kept.has_values


def test_values_that_are_brought_forward_are_told(storage):
    source, _ = opened(storage, 6)
    source.delete([0])
    refresh_view(storage, 7)
    source.delete([3])
    refresh_view(storage, 8, dies=True)
    kept = kept_after(storage, 1)
    changes = ValueChanges(np.array([0]), pa.array([50]), np.array([1]))
    told = kept.lookup(pa.table({KEY: [hashed(0)]}), THERE, lambda _: changes)
    assert told is not None
    lo, hi = (told.values[part.column].to_pylist() for part in ADDED.extremes)
    assert (told.is_known.tolist(), told.rows.tolist(), lo, hi) == ([True], [9], [6], [50])


def test_of_two_processes_that_keep_values_at_once_one_counts(storage):
    source, _ = opened(storage, 6)
    source.delete([0])
    source, view, step = step_of(storage)
    one, two = MinMaxCache(view, ADDED, step), MinMaxCache(opened(storage, 8)[1], ADDED, step)
    for kept in (one, two):
        assert kept.lookup(pa.table({KEY: [hashed(0)]}), THERE, lambda _: None) is None
        assert lost(kept, source, 0)
    one.save()
    before = stored_keys(storage)
    assert len(before) == 3
    two._listed_groups.clear()
    two.save()
    assert stored_keys(storage) == before
    refresh_view(storage, 9)
    assert shown(opened(storage, 10)[1]) == answer(groups_of(source))


def test_a_group_that_the_view_does_not_have_has_no_rows(storage):
    """So all of its values are known from its first row on; of one that the view has, and the host has not, none is."""
    source, _ = opened(storage, 6)
    source.delete([0])
    source, view, step = step_of(storage)
    kept = MinMaxCache(view, ADDED, step)
    assert kept.lookup(pa.table({KEY: [hashed(0)]}), THERE, lambda _: None) is None
    assert lost(kept, source, 0)
    kept.save()
    came = ValueChanges(np.array([0]), pa.array([5]), np.array([1]))
    for there, known in ((NONE, True), (THERE, False)):
        later = MinMaxCache(view, ADDED, RefreshStep(step.number + 1, step.new, step.new))
        told = later.lookup(pa.table({KEY: [hashed(77)]}), there, lambda _: came)
        assert told is not None
        assert told.is_known.tolist() == [known]


def test_too_many_changes_are_not_taken(storage):
    opened(storage, 6)[0].delete([0])
    refresh_view(storage, 7)
    kept = kept_after(storage, 1)
    assert kept.has_values
    assert kept.lookup(pa.table({KEY: [hashed(0)]}), THERE, lambda _: None) is None
    assert not kept.has_values


def test_groups_without_rows_are_forgotten(storage):
    source, _ = opened(storage, 6)
    source.delete([0])
    refresh_view(storage, 7)
    source.delete(list(range(0, 30, 3)))
    assert refresh_view(storage, 8) == [0]
    assert len(stored_keys(storage)) == 2
    source.upsert([{"id": 3, "k": 0, "v": 70}])
    assert refresh_view(storage, 9) == [0]
    assert len(stored_keys(storage)) == 3
    assert shown(opened(storage, 10)[1]) == answer(groups_of(source))


def test_what_is_told_is_the_next_value(storage):
    source, _ = opened(storage, 6)
    source.delete([0])
    refresh_view(storage, 7)
    source.delete([1, 4])
    _, view, step = step_of(storage)
    kept = MinMaxCache(view, ADDED, step)
    gone = ValueChanges(np.array([1, 1]), pa.array([1, 4]), np.array([-1, -1]))
    told = kept.lookup(pa.table({KEY: [hashed(2), hashed(1)]}), np.ones(2, np.bool_), lambda _: gone)
    assert told is not None
    lo, hi = (told.values[part.column].to_pylist() for part in ADDED.extremes)
    assert (told.is_known.tolist(), told.rows.tolist(), lo, hi) == ([True, True], [10, 8], [2, 7], [29, 28])


def test_groups_are_taken_and_replaced():
    kind = pa.string()
    lengths, counts = np.array([1, 0, 2]), np.array([5, 6, 7])
    first = TopKState(pa.array(["a", "b", "c"], kind), counts, lengths, np.array([1, 0, 3]))
    firsts = TopKGroups(np.array([6, 0, 16]), np.array([8, 8, 32]), (first,))
    turned = firsts.take(np.array([2, 0]))
    assert (turned.rows.tolist(), turned.room.tolist()) == ([16, 6], [32, 8])
    assert turned.lists[0].values.to_pylist() == ["b", "c", "a"]
    both = firsts.replace_groups(np.array([1, 0]), turned)
    assert both.rows.tolist() == [6, 16, 16]
    assert both.lists[0].values.to_pylist() == ["a", "b", "c", "b", "c"]
    assert (both.lists[0].counts.tolist(), both.lists[0].overflow.tolist()) == ([5, 6, 7, 6, 7], [1, 3, 3])
    unknown = firsts.mark_unknown(np.array([False, False, True]))
    assert (unknown.is_known.tolist(), unknown.lists[0].values.to_pylist()) == ([True, True, False], ["a"])


def test_views_that_keep_nothing(storage, monkeypatch):
    """Those without extremes, those with a sum of DOUBLE, whose groups are computed anyway, those of many groups."""
    opened(storage, 6)[0].delete([0])
    _, view, step = step_of(storage)
    assert MinMaxCache.of(view, compiled("SELECT k, count(*) AS n FROM db.t GROUP BY k", ("k", "n")), step) is None
    summed = compiled("SELECT k, min(v) AS lo, sum(v) AS hi FROM db.t GROUP BY k", sums="double")
    assert MinMaxCache.of(view, summed, step) is None
    assert MinMaxCache.of(view, ADDED, step) is not None
    monkeypatch.setattr(min_max_cache, "GROUPS_MAX", 2)
    assert refresh_view(storage, 7) == [1]
    assert not kept_after(storage, 1).has_values
