"""Merge engines against a dictionary that is told of one row at a time."""

from __future__ import annotations

import datetime as dt
import functools
import operator
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import pyarrow as pa
import pyroaring
import pytest
from _pytest.mark.structures import ParameterSet
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.keys.key_codec import encode_keys
from streamhouse_spark.keys.keyed_batch import KeyedBatch, KeyedRows
from streamhouse_spark.kv.merge_engines import FUNCTIONS, ColumnwiseMerge, FirstRowMerge, VersionedMerge, fold_of

KEYS = st.sampled_from(["a", "b", "c", "d"])
UTC = dt.UTC


class Bucket:
    """The rows of a bucket, by an engine: each batch finds the rows of its keys as they are."""

    def __init__(self, types, engine_of):
        self.types, self.engine_of, self.rows = types, engine_of, {}

    def write(self, batch, targets=None):
        """``batch``: (deleted, row) pairs."""
        columns = [pa.array([row[i] for _, row in batch], t) for i, t in enumerate(self.types)]
        deleted = np.array([d for d, _ in batch], np.bool_)
        grouped = KeyedBatch.of(encode_keys(columns[:1]), columns, deleted)
        keys = grouped.columns[0].take(pa.array(grouped.starts)).to_pylist()
        before = [self.rows.get(key) for key in keys]
        old = KeyedRows(
            tuple(pa.array([row and row[i] for row in before], t) for i, t in enumerate(self.types)),
            np.array([row is not None for row in before], np.bool_),
        )
        merged = self.engine_of(targets).merge(grouped, old)
        assert [column.type for column in merged.columns] == self.types
        for column in merged.columns:
            column.validate(full=True)
        values = zip(*(column.to_pylist() for column in merged.columns), strict=True)
        for key, there, row in zip(keys, merged.exists.tolist(), values, strict=True):
            assert there or set(row) == {None}
            self.rows[key] = row if there else None
        return {key: row for key, row in self.rows.items() if row is not None}


def columnwise_model(rows, batch, reduce_of, targets=None):
    """What one row after another makes of the rows; ``reduce_of[i](values)`` is column i's value after these."""
    num_columns = len(batch[0][1])
    targets = range(1, num_columns) if targets is None else targets
    histories = {key: [[value] for value in row] for key, row in rows.items()}
    for deleted, row in batch:
        key = row[0]
        if deleted:
            history = histories.pop(key, None)
            if history is not None:
                rest = [history[i] if i == 0 or i not in targets else [] for i in range(num_columns)]
                if any(reduce_of[i](rest[i]) is not None for i in range(1, num_columns) if rest[i]):
                    histories[key] = rest
        else:
            history = histories.setdefault(key, [[key], *([] for _ in range(num_columns - 1))])
            for i in targets:
                history[i].append(row[i])
    return {key: (key, *(reduce_of[i](h[i]) for i in range(1, num_columns))) for key, h in histories.items()}


def last(values):
    return values[-1] if values else None


SMALL = st.none() | st.integers(-50, 50)


@given(st.lists(st.tuples(st.lists(st.tuples(st.booleans(), st.tuples(KEYS, SMALL, SMALL)), min_size=1),
                          st.sampled_from([None, (1,), (2,), (1, 2)])), max_size=5))  # fmt: skip
def test_last_rows_and_partial_updates_agree_with_a_dictionary(batches):
    bucket = Bucket([pa.string(), pa.int32(), pa.int64()], lambda targets: ColumnwiseMerge(frozenset({0}), {}, targets))
    model = {}
    for batch, targets in batches:
        model = columnwise_model(model, batch, [None, last, last], targets)
        assert bucket.write(batch, targets) == model


def nonnull(function):
    def reduced(values):
        found = [value for value in values if value is not None]
        return function(found) if found else None

    return reduced


def first(values):
    return values[0] if values else None


def rounded(values):
    quantum = Decimal("0.01")
    return functools.reduce(lambda a, b: (a * b).quantize(quantum, ROUND_HALF_UP), values)


def multiplied(values):
    return functools.reduce(operator.mul, values)


def union(values):
    return functools.reduce(operator.or_, map(pyroaring.BitMap.deserialize, values)).serialize()


TEXTS = st.none() | st.text("ab,é", max_size=3)
DECIMALS = st.none() | st.integers(-300, 300).map(lambda n: Decimal(n) / 100)
MOMENTS = st.none() | st.datetimes(dt.datetime(2020, 1, 1), dt.datetime(2021, 1, 1)).map(
    lambda t: t.replace(tzinfo=UTC)
)
FLAGS = st.none() | st.booleans()
BITMAPS = st.none() | st.sets(st.integers(0, 9), max_size=3).map(lambda s: pyroaring.BitMap(s).serialize())
CASES = [
    ("sum", pa.int64(), SMALL, nonnull(sum)),
    ("sum", pa.int8(), st.none() | st.integers(-2, 2), nonnull(sum)),
    ("sum", pa.float64(), st.none() | st.integers(-50, 50).map(float), nonnull(sum)),
    ("sum", pa.decimal128(38, 2), DECIMALS, nonnull(sum)),
    ("product", pa.int64(), st.none() | st.sampled_from([-1, 1, 2]), nonnull(multiplied)),
    ("product", pa.decimal128(20, 2), DECIMALS.map(lambda d: d and d / 3 and round(d / 3, 2)), nonnull(rounded)),
    ("product", pa.float32(), st.none() | st.sampled_from([-1.0, 0.5, 2.0]), nonnull(multiplied)),
    ("max", pa.int16(), SMALL, nonnull(max)),
    ("min", pa.float64(), st.none() | st.floats(allow_nan=False, width=32), nonnull(min)),
    ("max", pa.string(), TEXTS, nonnull(lambda v: max(v, key=str.encode))),
    ("min", pa.date32(), st.none() | st.dates(dt.date(2020, 1, 1), dt.date(2021, 1, 1)), nonnull(min)),
    ("max", pa.timestamp("us", tz="UTC"), MOMENTS, nonnull(max)),
    ("min", pa.decimal128(10, 2), DECIMALS, nonnull(min)),
    ("last_value", pa.list_(pa.int32()), st.none() | st.lists(SMALL, max_size=2), last),
    ("last_value_ignore_nulls", pa.string(), TEXTS, nonnull(last)),
    ("first_value", pa.int32(), SMALL, first),
    ("first_value_ignore_nulls", pa.int32(), SMALL, nonnull(first)),
    ("listagg", pa.string(), TEXTS, nonnull("|".join)),
    ("string_agg", pa.string(), TEXTS, nonnull("|".join)),
    ("bool_and", pa.bool_(), FLAGS, nonnull(all)),
    ("bool_or", pa.bool_(), FLAGS, nonnull(any)),
    ("rbm32", pa.binary(), BITMAPS, nonnull(union)),
]  # fmt: skip


def parameters() -> list[ParameterSet]:
    """Make a parameter of each case; those of a function behind its first one are for the long run."""
    first = {case[0]: case for case in reversed(CASES)}
    return [
        pytest.param(case, id=f"{case[0]} {case[1]}", marks=() if first[case[0]] is case else pytest.mark.long)
        for case in CASES
    ]


@pytest.mark.parametrize("case", parameters())
@given(data=st.data())
def test_aggregations_agree_with_a_dictionary(case, data):
    function, data_type, values, reduced = case
    folds = {1: fold_of(function, "v", data_type, delimiter="|"), 2: fold_of("sum", "n", pa.int64())}
    bucket = Bucket(
        [pa.string(), data_type, pa.int64()], lambda targets: ColumnwiseMerge(frozenset({0}), folds, targets)
    )
    rows = st.tuples(KEYS, values, SMALL)
    deletions = st.just(False) if data.draw(st.booleans()) else st.integers(0, 6).map(lambda n: n == 0)
    model = {}
    for _ in range(data.draw(st.integers(1, 3))):
        batch = data.draw(st.lists(st.tuples(deletions, rows), min_size=1, max_size=12))
        targets = data.draw(st.sampled_from([None, (1,), (2,)]))
        model = columnwise_model(model, batch, [None, reduced, nonnull(sum)], targets)
        assert bucket.write(batch, targets) == model


def test_every_function_is_compared():
    assert set(FUNCTIONS) - {case[0] for case in CASES} == {"rbm64"}
    bucket = Bucket(
        [pa.string(), pa.binary()], lambda _: ColumnwiseMerge(frozenset({0}), {1: fold_of("rbm64", "v", pa.binary())})
    )
    sets = [{1, 2**40}, {3}]
    rows = bucket.write([(False, ("a", pyroaring.BitMap64(s).serialize())) for s in sets])
    assert set(pyroaring.BitMap64.deserialize(rows["a"][1])) == {1, 3, 2**40}


@given(st.lists(st.lists(st.tuples(st.just(False), st.tuples(KEYS, SMALL)), min_size=1), max_size=4))
def test_the_first_row_engine_agrees_with_a_dictionary(batches):
    bucket = Bucket([pa.string(), pa.int64()], lambda _: FirstRowMerge())
    model = {}
    for batch in batches:
        for _, row in batch:
            model.setdefault(row[0], row)
        assert bucket.write(batch) == model


@pytest.mark.parametrize("data_type", [pa.int32(), pa.int64(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")])
@given(data=st.data())
def test_the_versioned_engine_agrees_with_a_dictionary(data_type, data):
    def version(number):
        return number if not pa.types.is_timestamp(data_type) else pa.scalar(number, data_type).as_py()

    versions = st.none() | st.integers(0, 5).map(version)
    bucket = Bucket([pa.string(), data_type, pa.int64()], lambda _: VersionedMerge(1))
    model = {}
    for number in range(data.draw(st.integers(1, 4))):
        rows = data.draw(st.lists(st.tuples(KEYS, versions), min_size=1, max_size=8))
        batch = [(False, (key, v, 100 * number + i)) for i, (key, v) in enumerate(rows)]
        for _, row in batch:
            if row[1] is not None and (row[0] not in model or row[1] >= model[row[0]][1]):
                model[row[0]] = row
        assert bucket.write(batch) == model


@pytest.mark.parametrize(
    ("function", "data_type", "values"),
    [
        ("sum", pa.int64(), [2**63 - 1, 1]),
        ("sum", pa.int64(), [-(2**63), -1]),
        ("sum", pa.int8(), [100, 28]),
        ("sum", pa.decimal128(4, 2), [Decimal("99.99"), Decimal("0.01")]),
        ("sum", pa.decimal128(38, 0), [Decimal("9" * 38)] * 300),
        ("product", pa.int64(), [2**62, 2]),
        ("product", pa.int32(), [2**20, 2**20]),
        ("product", pa.decimal128(38, 2), [Decimal("9" * 35 + ".99"), Decimal(1000)]),
    ],
)
def test_what_does_not_fit_is_an_error_and_not_another_number(function, data_type, values):
    fold = fold_of(function, "v", data_type)
    with pytest.raises(SchemaMismatchError, match="AGGREGATE_OVERFLOW"):
        fold(pa.array(values, data_type), np.zeros(len(values), np.int64), 1)


@pytest.mark.parametrize(("function", "values"), [("sum", [2**63 - 1, -5, 5]), ("sum", [-(2**63), 7, -7])])
def test_what_fits_in_the_end_is_no_error(function, values):
    fold = fold_of(function, "v", pa.int64())
    assert fold(pa.array(values), np.zeros(3, np.int64), 1).to_pylist() == [sum(values)]


@pytest.mark.parametrize(
    ("function", "data_type"),
    [
        ("sum", pa.string()),
        ("max", pa.binary()),
        ("listagg", pa.int32()),
        ("bool_or", pa.int8()),
        ("median", pa.int8()),
    ],
)
def test_functions_that_cannot_be_name_the_column(function, data_type):
    with pytest.raises(InvalidOptionError, match=r"fields\.price\.agg is '?" + function):
        fold_of(function, "price", data_type)


def test_what_is_no_bitmap_is_an_error():
    with pytest.raises(SchemaMismatchError, match="roaring bitmap"):
        fold_of("rbm32", "v", pa.binary())(pa.array([b"nonsense"]), np.zeros(1, np.int64), 1)
