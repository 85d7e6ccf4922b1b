"""Rows that are looked for by all of their values: as often as they are there, whatever their types are."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from streamhouse_spark.lake.parquet.row_positions import RowMultiset, encode_rows
from streamhouse_spark.schema.variant import VARIANT

NAN = float("nan")
COLUMNS = {
    "numbers": (pa.int64(), [1, 2, None]),
    "floats": (pa.float64(), [0.0, -0.0, NAN, None, 1.5]),
    "single": (pa.float32(), [0.0, -0.0, NAN, None]),
    "text": (pa.string(), ["", "a", None]),
    "bytes": (pa.binary(), [b"", b"a", None]),
    "flags": (pa.bool_(), [True, False, None]),
    "days": (pa.date32(), [dt.date(2020, 1, 1), dt.date(2020, 1, 2), None]),
    "decimals": (pa.decimal128(9, 2), [decimal.Decimal("1.10"), decimal.Decimal("1.1"), decimal.Decimal(2), None]),
    "lists": (pa.list_(pa.int32()), [[], [1], [1, 2], [None], None]),
    "large lists": (pa.large_list(pa.int32()), [[], [1], [1, 2], [None], None]),
    "structs": (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        [{"a": 1, "b": None}, {"a": None, "b": None}, None],
    ),
    "maps": (pa.map_(pa.string(), pa.int32()), [[], [("a", 1)], [("a", None)], None]),
    "deep": (pa.list_(pa.struct([("x", pa.list_(pa.string()))])), [[{"x": ["a"]}], [{"x": None}], [None], [], None]),
    "nothing": (pa.null(), [None]),
}


def plain(value):
    """Return a value as one that is equal to the same one alone."""
    if isinstance(value, float):
        return "nan" if np.isnan(value) else (value, bool(np.signbit(value)))
    if isinstance(value, list | tuple):
        return ("list", *map(plain, value))
    return ("struct", *((k, plain(v)) for k, v in value.items())) if isinstance(value, dict) else value


@pytest.mark.parametrize("name", COLUMNS)
def test_values_of_each_type(name):
    kind, values = COLUMNS[name]
    drawn = random.Random(name).choices(values, k=60)
    rows = pa.table({"c": pa.chunked_array([pa.array(drawn[:25], kind), pa.array(drawn[25:], kind)])})
    codes = encode_rows(rows)
    for i, one in enumerate(drawn):
        for j, other in enumerate(drawn):
            assert (codes[i] == codes[j]) == (plain(one) == plain(other)), (one, other)


@pytest.mark.parametrize("seed", range(5))
def test_as_many_are_found_as_are_wanted(seed):
    rng = random.Random(seed)
    schema = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.string()))])

    def some(number):
        return [{"a": rng.choice([1, 2, None]), "b": rng.choice([["x"], [], None])} for _ in range(number)]

    wanted, batches = some(12), [some(rng.randrange(9)) for _ in range(4)]
    left = RowMultiset(pa.Table.from_pylist(wanted, schema))
    found: Counter[str] = Counter()
    for rows in batches:
        mask = left.take_matches(pa.RecordBatch.from_pylist(rows, schema))
        assert len(mask) == len(rows)
        found += Counter(repr(row) for row, is_found in zip(rows, mask, strict=True) if is_found)
    there = Counter(repr(row) for rows in batches for row in rows)
    assert found == Counter(map(repr, wanted)) & there
    assert left.num_left == len(wanted) - found.total()


def test_nothing_is_wanted():
    left = RowMultiset(pa.table({"a": pa.array([], pa.int64())}))
    assert left.num_left == 0
    assert not left.take_matches(pa.record_batch({"a": pa.array([1, None])})).any()


def test_variants_that_are_null():
    kind = VARIANT
    values = [None, {"value": b"\x0c\x01", "metadata": b"\x01\x00\x00"}]
    rows = pa.table({"v": pa.array(values, kind)})
    batch = pa.RecordBatch.from_arrays([pa.concat_arrays([pa.nulls(2, kind), rows.column(0).chunk(0)])], names=["v"])
    assert RowMultiset(rows).take_matches(batch).tolist() == [True, False, False, True]
