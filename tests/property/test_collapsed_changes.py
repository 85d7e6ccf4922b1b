"""Laying a changelog over older rows gives the rows that are there, for any place where it is cut in two."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.keys.changelog_merge import KeySet, MergedChangelog
from streamhouse_spark.keys.key_codec import encode_keys

KEYS = {
    "bigint": (pa.int64(), st.integers(-3, 3)),
    "int": (pa.int32(), st.integers(-3, 3)),
    "string": (pa.string(), st.sampled_from(["", "a", "aa", "b", "12345678"])),
}


@given(keys=st.sets(st.binary(min_size=1, max_size=3)), low=st.binary(max_size=3), high=st.binary(max_size=3))
def test_whether_a_key_lies_between_two_beginnings(keys, low, high):
    found = KeySet(pa.array(sorted(keys), pa.binary())).reaches(low, high)
    assert found == any(key >= low and (key <= high or key.startswith(high)) for key in keys)


@st.composite
def changelogs(draw, keys):
    """Changes as writers make them, and the rows after each."""
    rows, changes, states = {}, [], [{}]
    for key, value in draw(st.lists(st.tuples(keys, st.none() | st.integers(0, 3)), max_size=15)):
        old = rows.get(key)
        if value is None:
            if old is None:
                continue
            changes.append((ChangeType.DELETE, key, rows.pop(key)))
        elif old is None:
            rows[key] = value
            changes.append((ChangeType.INSERT, key, value))
        else:
            rows[key] = value
            changes += [(ChangeType.UPDATE_BEFORE, key, old), (ChangeType.UPDATE_AFTER, key, value)]
            states.append(None)  # nobody reads between the two
        states.append(dict(rows))
    return changes, states


@pytest.mark.parametrize("kind", KEYS)
@given(data=st.data())
def test_older_rows_and_a_tail_are_the_rows(kind, data):
    data_type, keys = KEYS[kind]
    changes, states = data.draw(changelogs(keys))
    cut = data.draw(st.sampled_from([i for i, state in enumerate(states) if state is not None]))
    schema = pa.schema([pa.field("v", pa.int64()), pa.field("k", data_type)])
    step, sort = data.draw(st.integers(1, 4)), data.draw(st.booleans())
    batches = [
        pa.RecordBatch.from_arrays(
            [
                pa.array([int(c) for c, _, _ in part], pa.int8()),
                pa.array([v for _, _, v in part], pa.int64()),
                pa.array([k for _, k, _ in part], data_type),
            ],
            ["change", "v", "k"],
        )
        for part in (changes[i : i + step] for i in range(cut, len(changes), step))
    ]
    tail = MergedChangelog.of(batches, schema, [1], sort=sort)
    older = list(states[cut].items())
    held = tail.keys.holds(encode_keys([pa.array([k for k, _ in older], data_type)]))
    found = {k: v for (k, v), overwritten in zip(older, held.tolist(), strict=True) if not overwritten}
    new = dict(zip(tail.rows["k"].to_pylist(), tail.rows["v"].to_pylist(), strict=True))
    assert not found.keys() & new.keys()
    assert {**found, **new} == states[-1]
    assert len(tail.keys) == len({k for _, k, _ in changes[cut:]})
    assert tail.rows.schema == schema
    if sort:
        encoded = encode_keys([tail.rows["k"].combine_chunks()]).to_pylist() if len(tail.rows) else []
        assert encoded == sorted(encoded)


@pytest.mark.parametrize("num_rows", [3, 5000])
@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("columns", [1, 2], ids=["eight bytes", "more"])
def test_a_key_set_holds_exactly_its_keys(num_rows, is_sorted, columns):
    rng = np.random.default_rng(3)
    asked = rng.integers(-1000, 1000, num_rows)
    asked = np.sort(asked) if is_sorted else asked
    wanted = np.unique(rng.integers(-1000, 1000, 200))
    keys, others = KeySet(encode_keys([pa.array(wanted)] * columns)), encode_keys([pa.array(asked)] * columns)
    found = keys.holds(others)
    assert found.tolist() == np.isin(asked, wanted).tolist()
    assert found.any() or num_rows < 5
    numbers = [pa.array(asked)] * columns
    assert keys.holds_keys_of(numbers).tolist() == found.tolist()
    held, places = keys.find(numbers)
    assert held.tolist() == found.tolist()
    assert wanted[places].tolist() == asked[found].tolist()


def test_a_key_set_without_keys_holds_nothing():
    none, some = encode_keys([pa.array([], pa.int64())]), encode_keys([pa.array([1, 2])])
    assert KeySet(none).holds(some).tolist() == [False, False]
    assert KeySet(some).holds(none).tolist() == []
    assert [part.tolist() for part in KeySet(none).find([pa.array([1, 2])])] == [[False, False], []]
    assert [part.tolist() for part in KeySet(some).find([pa.array([], pa.int64())])] == [[], []]
