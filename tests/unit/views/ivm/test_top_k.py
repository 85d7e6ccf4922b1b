"""Values that tasks cut from their rows, beside those of all rows, however these are cut into tasks and batches."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest

from streamhouse_spark.views.ivm import min_max
from streamhouse_spark.views.ivm.min_max import ALL_ROWS, LIST, NUMBER, FirstValues
from unit.views.ivm.test_min_max import VALUES, in_order, same

KINDS = {name: kind for name, (kind, _) in VALUES.items()}


def rows_of(chance, name, size=120):
    """Rows of few groups, of one column and of another; nulls are a group."""
    kind, values = VALUES[name]
    columns = {
        "a": pa.array([chance.choice([None, 1, 2]) for _ in range(size)], pa.int32()),
        "b": pa.array([chance.choice(["x", None]) for _ in range(size)]),
        "v": pa.array([chance.choice(values) for _ in range(size)], kind),
        "w": pa.array([chance.choice([None, *range(-30, 30)]) for _ in range(size)], pa.int64()),
    }
    return pa.table(columns)


def cut(chance, rows, room, groups=("a", "b")):
    """Of several tasks, each of several batches."""
    found = []
    while rows.num_rows:
        task, rows = rows.slice(0, size := chance.randint(1, 60)), rows.slice(size)
        batches = task.to_batches(max_chunksize=chance.randint(1, 20))
        found += list(FirstValues(list(groups), ["v", "w"], room)(iter(batches)))
    return pa.Table.from_batches(found)


def added_up(found, groups=("a", "b")):
    """Group and list → each value with its rows; NaN and -0.0 count as Spark compares them."""
    totals = {}
    for row in found.to_pylist():
        key = (*(row[name] for name in groups), row[LIST])
        value = None if row[LIST] == ALL_ROWS else row["vw"[row[LIST]]]
        counts = totals.setdefault(key, [])
        for place, (other, number) in enumerate(counts):
            if same(other, value):
                counts[place] = (other, number + row[NUMBER])
                break
        else:
            counts.append((value, row[NUMBER]))
    return totals


def ends(counts, room):
    """The values from either end that have room, in order, with their rows."""
    there = sorted((pair for pair in counts if pair[0] is not None), key=lambda pair: in_order(pair[0]))
    chosen = there if len(there) <= 2 * room else there[:room] + there[-room:]
    return [number for _, number in chosen], [number for value, number in counts if value is None]


@pytest.mark.parametrize("name", VALUES)
def test_tasks_give_what_all_rows_have(name, monkeypatch):
    monkeypatch.setattr(min_max, "_STEP_ROWS", 25)
    for seed in range(6):
        chance = random.Random(f"{name} {seed}")
        rows, room = rows_of(chance, name), chance.choice([1, 2, 5])
        found = added_up(cut(chance, rows, room))
        whole = added_up(FirstValues(["a", "b"], ["v", "w"], 1000)._merge_batches(None, rows.to_batches()))
        assert found.keys() == whole.keys()
        for key, counts in whole.items():
            assert ends(found[key], room) == ends(counts, room), key


def test_numbers_of_rows_are_those_of_all_rows():
    chance = random.Random(1)
    rows = rows_of(chance, "int")
    found = added_up(cut(chance, rows, 1))
    counts = Counter(zip(rows["a"].to_pylist(), rows["b"].to_pylist(), strict=True))
    assert {key[:2]: pairs[0][1] for key, pairs in found.items() if key[2] == ALL_ROWS} == counts


def test_rows_without_groups_are_one():
    chance = random.Random(2)
    rows = rows_of(chance, "int").select(["v", "w"])
    found = added_up(cut(chance, rows, 3, ()), ())
    assert found[(ALL_ROWS,)] == [(None, rows.num_rows)]
    assert ends(found[(1,)], 3) == ends(list(Counter(rows["w"].to_pylist()).items()), 3)


def test_no_rows_give_none():
    assert list(FirstValues(["a", "b"], ["v", "w"], 3)(iter([]))) == []
    empty = rows_of(random.Random(1), "int", 0).to_batches()
    assert list(FirstValues(["a", "b"], ["v", "w"], 3)(iter(empty))) == []


def test_few_values_of_many_rows_are_given():
    rows = pa.table({"a": pa.array([1] * 5000, pa.int32()), "b": ["x"] * 5000, "v": range(5000), "w": [7] * 5000})
    (batch,) = FirstValues(["a", "b"], ["v", "w"], 4)(iter(rows.to_batches(max_chunksize=100)))
    assert batch.num_rows == 1 + 8 + 1


# -- planted bugs -----------------------------------------------------------------------------------------------------


def one_value_has_no_room(patched):
    real = FirstValues.__init__
    patched.setattr(FirstValues, "__init__", lambda self, groups, values, room: real(self, groups, values, room - 1))


def values_that_were_cut_before_count_once(patched):
    real = FirstValues._extreme_values
    patched.setattr(
        FirstValues,
        "_extreme_values",
        lambda self, rows, groups, numbers, *more: real(self, rows, groups, min_max.np.minimum(numbers, 1), *more),
    )


def rows_that_were_cut_before_are_lost(patched):
    real = FirstValues._merge_batches
    patched.setattr(FirstValues, "_merge_batches", lambda self, _known, batches: real(self, None, batches))


@pytest.mark.parametrize(
    "bug", [one_value_has_no_room, values_that_were_cut_before_count_once, rows_that_were_cut_before_are_lost]
)
def test_planted_bugs_are_found(bug, monkeypatch):
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        test_tasks_give_what_all_rows_have("int", monkeypatch)
