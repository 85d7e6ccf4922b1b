"""Smallest and largest values that a host keeps: their bytes, and when they count."""

from __future__ import annotations

import dataclasses
import datetime as dt
import random
from collections import Counter
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from faults.extreme_refresh import ADDED, answer, as_view, compiled, groups_of, hashed, listing, made, opened, shown
from faults.extreme_refresh import refresh as refresh_view
from faults.sim import sim_world
from property.test_kept_extremes import OTHER
from streamhouse_spark.core.lineage import Lineage
from streamhouse_spark.datasource.views import kept_extremes
from streamhouse_spark.datasource.views.kept_extremes import Asked, KeptExtremes
from streamhouse_spark.datasource.views.packed_firsts import PackedFirsts
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table.refreshing import RefreshStep, next_step
from streamhouse_spark.zset.extremes import ROOM, First, Firsts, ValueChanges
from streamhouse_spark.zset.statements import KEY

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
    other = First(pa.array([5] * 20, pa.int64()), np.ones(20, np.int64), np.ones(20, np.int64), behind)
    firsts = Firsts(np.arange(20) - 1, np.arange(20) + 8, (First(flat, counts, lengths, behind), other))
    packed = PackedFirsts([kind, pa.int64()])
    found = packed.unpack([None, *packed.pack(firsts), None])
    assert found.rows.tolist() == [0, *firsts.rows.tolist(), 0]
    assert found.room.tolist() == [ROOM, *firsts.room.tolist(), ROOM]
    for one, given in zip(found.lists, firsts.lists, strict=True):
        assert one.values.equals(given.values)
        assert one.counts.tolist() == given.counts.tolist()
        assert one.lengths.tolist() == [0, *given.lengths.tolist(), 0]
        assert one.behind.tolist() == [0, *given.behind.tolist(), 0]


@pytest.mark.parametrize("name", SEVERAL)
def test_no_bytes_at_all(name):
    packed = PackedFirsts([SEVERAL[name][0]])
    assert packed.pack(packed.unpack([])) == []
    assert packed.unpack([None, None]).rows.tolist() == [0, 0]


@pytest.fixture
def storage(own_cache):
    storage = MemoryStorage(sim_world())
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


def kept_after(storage, number):
    """What is there for the step behind this one."""
    source, _ = opened(storage, 200 + number)
    source.upsert([{"id": 100 + number, "k": 0, "v": 50}])
    _, view, step = step_of(storage)
    return KeptExtremes(view, ADDED, step)


def test_all_groups_are_listed_behind_the_first_value_that_goes(storage):
    assert not kept_after(storage, 1).are_there
    assert refresh_view(storage, 4) == [0]
    assert not kept_after(storage, 2).are_there, "nothing went, so nothing was looked for"
    opened(storage, 6)[0].delete([0])
    assert refresh_view(storage, 7) == [1]
    assert kept_after(storage, 3).are_there


@pytest.mark.parametrize("what", ["versions", "query", "number"])
def test_what_is_of_other_rows_does_not_count(storage, what):
    opened(storage, 6)[0].delete([0])
    refresh_view(storage, 7)
    assert kept_after(storage, 1).are_there
    _, view, step = step_of(storage)
    assert step.old is not None
    if what == "versions":
        (source,) = step.old.sources
        other = dataclasses.replace(source, attempt="of a copy")
        step = RefreshStep(step.number, Lineage((other,)), step.new)
    elif what == "number":
        step = RefreshStep(step.number + 1, step.old, step.new)
    assert not KeptExtremes(view, OTHER if what == "query" else ADDED, step).are_there


def test_a_listing_that_another_begins_anew_ends(storage, monkeypatch):
    """Two processes list the groups at a time: what is there in the end is of one of them, and whole."""
    monkeypatch.setattr(kept_extremes, "LISTED_AT_ONCE", 1)
    source, _ = opened(storage, 6)
    source.delete([0])
    source, view, step = step_of(storage)
    one, two = KeptExtremes(view, ADDED, step), KeptExtremes(opened(storage, 8)[1], ADDED, step)
    keys = pa.table({KEY: [hashed(0)]})
    for kept in (one, two):
        assert kept.told(keys, lambda _: None) is None
        assert kept.lose(keys) is False
    parts = []

    def interrupted(part, asked: Asked):
        parts.append(asked.part)
        if len(parts) == 3:
            two.keep(listing(source, [0]))
        return listing(source, [0])(part, asked)

    one.keep(interrupted)
    assert len(parts) < 10, "it stopped where the other one had begun"
    refresh_view(storage, 9)
    assert shown(opened(storage, 10)[1]) == answer(groups_of(source))
    assert KeptExtremes(view, ADDED, RefreshStep(step.number + 1, step.new, step.new)).are_there


def test_too_many_changes_are_not_taken(storage):
    opened(storage, 6)[0].delete([0])
    refresh_view(storage, 7)
    kept = kept_after(storage, 1)
    assert kept.are_there
    assert kept.told(pa.table({KEY: [hashed(0)]}), lambda _: None) is None
    kept.keep(listing(opened(storage, 8)[0], []))
    assert not kept.are_there
    refresh_view(storage, 9, dies=True)
    assert not kept_after(storage, 2).are_there


def test_groups_without_rows_are_forgotten(storage):
    source, _ = opened(storage, 6)
    source.delete([0])
    refresh_view(storage, 7)
    source.delete(list(range(0, 30, 3)))
    assert refresh_view(storage, 8) == [0]
    source.upsert([{"id": 3, "k": 0, "v": 70}])
    assert refresh_view(storage, 9) == [0]
    assert shown(opened(storage, 10)[1]) == answer(groups_of(source))
    assert Counter(as_view([])[KEY].to_pylist()) == Counter()


def test_what_is_told_is_the_next_value(storage):
    source, _ = opened(storage, 6)
    source.delete([0])
    refresh_view(storage, 7)
    source.delete([1, 4])
    _, view, step = step_of(storage)
    kept = KeptExtremes(view, ADDED, step)
    gone = ValueChanges(np.array([1, 1]), pa.array([1, 4]), np.array([-1, -1]))
    told = kept.told(pa.table({KEY: [hashed(2), hashed(1)]}), lambda _: gone)
    assert told is not None
    lo, hi = (told.values[part.column].to_pylist() for part in ADDED.extremes)
    assert (told.known.tolist(), told.rows.tolist(), lo, hi) == ([True, True], [10, 8], [2, 7], [29, 28])


def test_views_that_keep_nothing(storage, monkeypatch):
    """Those without extremes, those with a sum of DOUBLE, whose groups are computed anyway, those of many groups."""
    opened(storage, 6)[0].delete([0])
    _, view, step = step_of(storage)
    assert KeptExtremes.of(view, compiled("SELECT k, count(*) AS n FROM db.t GROUP BY k", ("k", "n")), step) is None
    summed = compiled("SELECT k, min(v) AS lo, sum(v) AS hi FROM db.t GROUP BY k", sums="double")
    assert KeptExtremes.of(view, summed, step) is None
    assert KeptExtremes.of(view, ADDED, step) is not None
    monkeypatch.setattr(kept_extremes, "GROUPS_MAX", 2)
    assert refresh_view(storage, 7) == [1]
    assert not kept_after(storage, 1).are_there
