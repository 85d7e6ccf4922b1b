"""The first values of groups beside a model that keeps all rows, and planted bugs in them."""

from __future__ import annotations

import datetime as dt
import functools
import math
import random
from collections import Counter
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from streamhouse_spark.views.ivm import min_max
from streamhouse_spark.views.ivm.min_max import ROOM, ROOM_MAX, TopKGroups, TopKState, ValueChanges, match_groups

NAN = float("nan")
VALUES = {
    "int": (pa.int32(), [None, *range(-9, 9)]),
    "bigint": (pa.int64(), [None, -(1 << 63), (1 << 63) - 1, *range(9)]),
    "double": (pa.float64(), [None, NAN, 0.0, -0.0, math.inf, -math.inf, 1.5, 1e-300, -2.5, 3.0, 4.0, 5.0]),
    "text": (pa.string(), [None, "", "a", "b", "ä", "aa", "a\x00", "Z", "z", "😀", "~", "0"]),
    "decimal": (pa.decimal128(12, 2), [None, *(Decimal(cents).scaleb(-2) for cents in range(-500, 500, 77))]),
    "date": (pa.date32(), [None, *(dt.date(1969, 12, 20) + dt.timedelta(days) for days in range(20))]),
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        [None, *(dt.datetime(1969, 12, 31, 23, 59, s, tzinfo=dt.UTC) for s in range(0, 60, 5))],
    ),
    "boolean": (pa.bool_(), [None, True, False]),
}
BOTH = ("min", "max")


def sorts_before(one, other) -> int:
    """NaN is the largest value, texts compare by their bytes."""
    if isinstance(one, float):
        one, other = ((math.isnan(x), 0.0 if math.isnan(x) else x) for x in (one, other))
    if isinstance(one, str):
        one, other = one.encode(), other.encode()
    return (one > other) - (one < other)


in_order = functools.cmp_to_key(lambda a, b: (a is None) - (b is None) if None in (a, b) else sorts_before(a, b))


def same(one, other) -> bool:
    if one is None or other is None:
        return one is other
    return sorts_before(one, other) == 0


def first_of(rows, order):
    there = sorted((value for value in rows if value is not None), key=in_order)
    return there[0 if order == "min" else -1] if there else None


def changes_of(changes, kind):
    """Changes as (group, value, weight)."""
    groups = np.array([group for group, _, _ in changes], np.int64)
    weights = np.array([weight for _, _, weight in changes], np.int64)
    return ValueChanges(groups, pa.array([value for _, value, _ in changes], kind), weights)


def behind(firsts, changes, kind):
    return firsts.apply_changes([changes_of(changes, kind)] * 2, BOTH)


def of_all(model, kind):
    none = TopKGroups.empty(len(model), [kind] * 2)
    return behind(none, [(group, value, 1) for group, rows in enumerate(model) for value in rows], kind)


def require_right(firsts, model):
    """What is known is what the rows are, and a group is unknown only where more rows went than values were kept."""
    for place, order in enumerate(BOTH):
        shown = firsts.first_values()[place].to_pylist()
        for group, rows in enumerate(model):
            if firsts.is_known[group]:
                assert same(shown[group], first_of(rows, order)), (group, order)
                assert firsts.rows[group] == len(rows)
            else:
                assert shown[group] is None
    for first in firsts.lists:
        assert (first.counts > 0).all()
        ends = np.cumsum(first.lengths)
        for group, rows in enumerate(model):
            if firsts.is_known[group]:
                counts = first.counts[ends[group] - first.lengths[group] : ends[group]].sum()
                assert counts + first.overflow[group] == sum(value is not None for value in rows)
                assert first.lengths[group] <= firsts.room[group]


def step(chance, model, values, most=6):
    """Rows come to groups and go from them; returns the changes."""
    changes = []
    for _ in range(chance.randint(1, most)):
        group = chance.randrange(len(model))
        rows = model[group]
        if rows and chance.random() < 0.5:
            place = chance.choice([0, -1, chance.randrange(len(rows))])
            rows.sort(key=in_order)
            changes.append((group, rows.pop(place), -1))
        else:
            value = chance.choice(values)
            rows.append(value)
            changes.append((group, value, 1))
    return changes


@pytest.mark.parametrize("name", VALUES)
def test_they_are_those_of_the_model(name, monkeypatch):
    monkeypatch.setattr(min_max, "ROOM", 3)
    kind, values = VALUES[name]
    known = 0
    for seed in range(12):
        chance = random.Random(seed)
        model = [[chance.choice(values) for _ in range(chance.randint(0, 9))] for _ in range(5)]
        firsts = of_all(model, kind)
        for _ in range(25):
            require_right(firsts, model)
            known += int(firsts.is_known.sum())
            firsts = behind(firsts, step(chance, model, values), kind)
            if not firsts.is_known.all() and chance.random() < 0.3:
                firsts = of_all(model, kind)
    assert known > 12 * 25 * 5 / 2


@pytest.mark.parametrize("name", VALUES)
def test_distinct_values_are_counted_where_all_are_kept(name, monkeypatch):
    monkeypatch.setattr(min_max, "ALL_ROOM", 4)
    kind, values = VALUES[name]
    known = 0
    for seed in range(8):
        chance = random.Random(seed)
        model = [[] for _ in range(5)]
        firsts = TopKGroups.empty(5, [kind])
        for _ in range(25):
            firsts = firsts.apply_changes([changes_of(step(chance, model, values, most=3), kind)], ["all"])
            for group, number in enumerate(firsts.current_values(["all"])[0].to_pylist()):
                distinct = []
                for value in model[group]:
                    if value is not None and not any(same(value, other) for other in distinct):
                        distinct.append(value)
                assert number in (None, len(distinct))
                known += number is not None
    assert known > 8 * 25 * 5 / 4


def test_more_distinct_values_than_have_room_are_not_counted(monkeypatch):
    monkeypatch.setattr(min_max, "ALL_ROOM", 4)
    kind = pa.int64()
    firsts = TopKGroups.empty(1, [kind]).apply_changes(
        [changes_of([(0, value, 1) for value in range(4)], kind)], ["all"]
    )
    assert firsts.current_values(["all"])[0].to_pylist() == [4]
    firsts = firsts.apply_changes([changes_of([(0, 9, 1), (0, 0, 1)], kind)], ["all"])
    assert firsts.current_values(["all"])[0].to_pylist() == [None]
    assert firsts.is_known.all(), "the first ones are"
    firsts = firsts.apply_changes([changes_of([(0, 9, -1)], kind)], ["all"])
    assert firsts.current_values(["all"])[0].to_pylist() == [4], "the one that had no room is gone"


def test_what_is_kept_is_enough_for_as_many_values_as_have_room():
    """A group is unknown when as many values went as were kept, and not before."""
    kind, many = pa.int64(), 3 * ROOM
    firsts = behind(TopKGroups.empty(1, [kind] * 2), [(0, value, 1) for value in range(many)], kind)
    for gone in range(ROOM - 1):
        firsts = behind(firsts, [(0, gone, -1)], kind)
        assert firsts.is_known.all()
        assert firsts.first_values()[0].to_pylist() == [gone + 1]
    firsts = behind(firsts, [(0, ROOM - 1, -1)], kind)
    assert not firsts.is_known.any()
    assert firsts.first_values()[1].to_pylist() == [None]
    assert firsts.room.tolist() == [4 * ROOM], "it gets more room for when it is listed again"
    assert not behind(firsts, [(0, -5, 1)], kind).is_known.any(), "an unknown group stays it, whatever comes"
    assert behind(firsts, [(0, -5, 1)], kind).room.tolist() == [4 * ROOM]


def test_a_group_of_few_values_is_never_unknown():
    kind = pa.string()
    rows = [(0, value, 1) for value in ("a", "b", "c") for _ in range(20)]
    firsts = behind(TopKGroups.empty(1, [kind] * 2), rows, kind)
    for value in ("a", "c", "b"):
        firsts = behind(firsts, [(0, value, -1)] * 20, kind)
        assert firsts.is_known.all()
    assert (firsts.rows.tolist(), firsts.first_values()[0].to_pylist()) == ([0], [None])


def test_rows_behind_the_last_kept_value_that_go_leave_all_known():
    kind = pa.int64()
    firsts = behind(TopKGroups.empty(1, [kind] * 2), [(0, value, 1) for value in range(ROOM + 3)], kind)
    firsts = behind(firsts, [(0, ROOM + place, -1) for place in range(3)], kind)
    assert firsts.lists[0].overflow.tolist() == [0]
    for gone in range(ROOM):
        assert firsts.is_known.all()
        assert firsts.first_values()[0].to_pylist() == [gone]
        firsts = behind(firsts, [(0, gone, -1)], kind)
    assert firsts.is_known.all()
    assert firsts.rows.tolist() == [0]


def test_a_value_behind_the_last_kept_one_stays_behind():
    """There is room for it, but not for those before it, which are not known."""
    kind = pa.int64()
    firsts = behind(TopKGroups.empty(1, [kind] * 2), [(0, value, 1) for value in range(ROOM + 2)], kind)
    firsts = behind(firsts, [(0, 0, -1), (0, 100, 1)], kind)
    assert firsts.lists[0].overflow.tolist() == [3]
    firsts = behind(firsts, [(0, gone, -1) for gone in range(1, ROOM)], kind)
    assert not firsts.is_known.any()


def test_more_that_went_than_was_there_makes_a_group_unknown():
    kind = pa.int64()
    firsts = behind(TopKGroups.empty(2, [kind] * 2), [(0, 1, 1), (1, 1, 1), (1, 2, 1)], kind)
    assert behind(firsts, [(0, 1, -2)], kind).is_known.tolist() == [False, True]
    assert behind(firsts, [(1, 3, -1)], kind).is_known.tolist() == [True, False]


def test_room_grows_to_a_limit():
    kind, room = pa.int64(), ROOM
    while room < ROOM_MAX:
        firsts = TopKGroups(
            np.array([9]), np.array([room]), (TopKState(pa.array([1]), np.array([1]), *map(np.array, ([1], [8]))),) * 2
        )
        room = int(behind(firsts, [(0, 1, -1)], kind).room[0])
    assert room == ROOM_MAX


@pytest.mark.parametrize("name", VALUES)
def test_groups_are_listed_from_the_ends_of_their_rows(name):
    """A list may have the values of both ends: those between are counted."""
    kind, values = VALUES[name]
    chance = random.Random(name)
    model = [[chance.choice(values) for _ in range(chance.randint(0, 40))] for _ in range(6)]
    whole = of_all(model, kind)
    ends = []
    for group, rows in enumerate(model):
        counted = [[value, 0] for value in dict.fromkeys(map(str, rows))]
        for pair in counted:
            each = [value for value in rows if str(value) == pair[0]]
            pair[:] = [each[0], len(each)]
        there = sorted((p for p in counted if p[0] is not None), key=lambda p: in_order(p[0]))
        listed = there if len(there) <= 2 * ROOM else there[:ROOM] + there[-ROOM:]
        ends += [(group, value, count) for value, count in [*listed, *(p for p in counted if p[0] is None)]]
    rows = np.array([len(rows) for rows in model])
    filled = np.array([sum(value is not None for value in rows) for rows in model])
    listed = (changes_of(ends, kind), filled)
    firsts = TopKGroups.from_values(rows, np.full(6, ROOM), BOTH, [listed, listed])
    require_right(firsts, model)
    for one, other in zip(firsts.lists, whole.lists, strict=True):
        assert one.lengths.tolist() == other.lengths.tolist()
        assert one.overflow.tolist() == other.overflow.tolist()
        assert one.counts.tolist() == other.counts.tolist()


def test_rows_find_their_groups():
    groups = pa.table({"a": pa.array([None, 1, 2, 1]), "b": ["x", None, "x", "x"]})
    places = [2, 0, 3, 1, 1, 0]
    assert match_groups(groups, groups.take(places)).tolist() == places
    many = pa.table({"a": list(range(5000)), "b": [str(n % 7) for n in range(5000)]})
    places = random.Random(1).choices(range(5000), k=3000)
    assert match_groups(many, many.take(places)).tolist() == places
    assert match_groups(groups.slice(0, 0), groups.slice(0, 0)).tolist() == []


# -- planted bugs -----------------------------------------------------------------------------------------------------


def a_count_is_not_lowered(patched):
    real = min_max._apply_changes

    def came_alone(first, changes, order, room):
        there = np.where(changes.weights > 0, changes.weights, 0)
        return real(first, ValueChanges(changes.groups, changes.values, there), order, room)

    patched.setattr(min_max, "_apply_changes", came_alone)


def a_list_is_believed_complete(patched):
    real = min_max._apply_changes

    def complete(first, changes, order, room):
        found, right = real(first, changes, order, room)
        return TopKState(found.values, found.counts, found.lengths, np.zeros_like(found.overflow)), right

    patched.setattr(min_max, "_apply_changes", complete)


def values_behind_are_taken_in(patched):
    patched.setattr(min_max, "_rank_bounds", lambda first, _: np.full(len(first.lengths), np.iinfo(np.int64).max))


def equal_values_are_kept_apart(patched):
    patched.setattr(min_max, "run_starts", lambda *columns: np.arange(len(columns[0])))


def the_last_comes_first(patched):
    real = min_max.rank_values
    patched.setattr(min_max, "rank_values", lambda values, _: real(values, "min"))


def a_null_is_a_value(patched):
    real = min_max._apply_changes

    def filled(first, changes, order, room):
        least = pa.scalar(-99, changes.values.type)
        return real(first, ValueChanges(changes.groups, changes.values.fill_null(least), changes.weights), order, room)

    patched.setattr(min_max, "_apply_changes", filled)


def a_group_that_ran_out_is_known(patched):
    real = min_max._apply_changes

    def known(*args):
        found, right = real(*args)
        return found, np.ones_like(right)

    patched.setattr(min_max, "_apply_changes", known)


def nan_is_the_smallest(patched):
    real = min_max.rank_values

    def ranks(values, order):
        found = real(values, order)
        if pa.types.is_floating(values.type):
            found = np.where(np.isnan(values.to_numpy()), -(1 << 40), found)
        return found

    patched.setattr(min_max, "rank_values", ranks)


PLANTS = [
    (a_count_is_not_lowered, "int"),
    (a_list_is_believed_complete, "int"),
    (values_behind_are_taken_in, test_a_value_behind_the_last_kept_one_stays_behind),
    (equal_values_are_kept_apart, test_a_group_of_few_values_is_never_unknown),
    (the_last_comes_first, "decimal"),
    (a_null_is_a_value, "int"),
    (a_group_that_ran_out_is_known, "int"),
    (nan_is_the_smallest, "double"),
]


@pytest.mark.parametrize(("bug", "found_by"), PLANTS, ids=lambda value: getattr(value, "__name__", value))
def test_planted_bugs_are_found(bug, found_by, monkeypatch):
    found = (
        functools.partial(test_they_are_those_of_the_model, found_by, monkeypatch)
        if isinstance(found_by, str)
        else found_by
    )
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        found()


def test_the_model_counts_as_it_should():
    assert Counter(map(str, [NAN, NAN, 1.0]))["nan"] == 2
    assert same(NAN, NAN)
    assert same(0.0, -0.0)
    assert not same(None, 0)
