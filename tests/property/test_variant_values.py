"""Random values to variants and back: beside PySpark's own reader and writer, and as text."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from streamhouse_spark.schema.variant import VARIANT, decode_variant, encode_variant
from streamhouse_spark.write.file_readers import CsvOptions, read_body

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
DECIMALS = st.decimals(min_value=-(10**20), max_value=10**20, allow_nan=False, places=5)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(TEXTS, inner, max_size=8),
    max_leaves=40,
)
OTHERS = st.binary(max_size=80) | st.dates() | st.datetimes() | st.datetimes(timezones=st.just(dt.UTC))
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS | DECIMALS | OTHERS,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(TEXTS, inner, max_size=8),
    max_leaves=40,
)


@given(VALUES)
def test_what_goes_in_comes_out(value):
    parts = encode_variant(value)
    assert decode_variant(parts["value"], parts["metadata"]) == value


@given(JSON)
def test_pyspark_decodes_our_variants(value):
    from pyspark.sql.types import VariantVal

    parts = encode_variant(value)
    assert VariantVal(parts["value"], parts["metadata"]).toPython() == value


@given(JSON)
def test_variants_of_pyspark_are_decoded(value):
    from pyspark.sql.types import VariantVal

    made = VariantVal.parseJson(json.dumps(value))
    assert _same(decode_variant(made.value, made.metadata), value)


def _same(found, value) -> bool:
    """Equal, where a decimal stands for a float that is written without an exponent."""
    if isinstance(value, dict):
        return found.keys() == value.keys() and all(_same(found[name], value[name]) for name in value)
    if isinstance(value, list):
        return len(found) == len(value) and all(map(_same, found, value))
    if isinstance(found, Decimal):
        return float(found) == value and math.copysign(1, float(found) or 1) == math.copysign(1, value or 1)
    return type(found) is type(value) and found == value


@settings(max_examples=50)
@given(st.lists(JSON, min_size=1, max_size=5))
def test_variants_in_lines_of_json_are_read(values):
    schema = pa.schema([("id", pa.decimal128(38, 10)), ("v", VARIANT), ("s", pa.string())])
    numbers = [f"{i}.12345678901234567890"[:12] for i in range(len(values))]
    lines = [
        f'{{ "id":{number} , "V" : {json.dumps(value)},"s":"a\\"b{i}"}}'
        for i, (number, value) in enumerate(zip(numbers, values, strict=True))
    ]
    rows = read_body("\n".join(lines).encode(), "json", CsvOptions(schema)).to_pylist()
    assert [row["s"] for row in rows] == [f'a"b{i}' for i in range(len(values))]
    assert [str(row["id"]) for row in rows] == [f"{Decimal(number):.10f}" for number in numbers]
    for row, value in zip(rows, values, strict=True):
        got = row["v"]
        assert got is None if value is None else _same(decode_variant(got["value"], got["metadata"]), value)
