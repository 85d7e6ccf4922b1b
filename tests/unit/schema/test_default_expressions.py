"""Constants as SQL and as JSON: what is one, what it is of a type, and that what is shown is read back."""

from __future__ import annotations

import datetime as dt
import decimal
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark import SchemaMismatchError
from streamhouse_spark.schema.ddl import parse_type
from streamhouse_spark.schema.default_expressions import (
    TEXT_LENGTH_MAX,
    constant_from_json,
    constant_to_json,
    constant_to_sql,
    parse_constant,
)

D = decimal.Decimal
UTC = dt.UTC
ALL_TYPES = (
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(38,10)", "string", "binary", "date",
    "timestamp", "timestamp_ntz",
)  # fmt: skip


def parsed(text, kind, time_zone=None):
    """The value that SQL says of a column of this type."""
    data_type = parse_type(kind)
    found = parse_constant(text, data_type, "c", time_zone)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return None if found is None else constant_from_json(found, data_type).as_py()


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("5", "int", 5),
        (" ( (-5) ) ", "bigint", -5),
        ("- 5", "int", -5),
        ("+5", "int", 5),
        ("-128Y", "tinyint", -128),
        ("7s", "smallint", 7),
        ("1e2", "int", 100),
        ("9223372036854775807L", "bigint", 2**63 - 1),
        ("2.0", "int", 2),
        ("5", "double", 5.0),
        (".5", "double", 0.5),
        ("1.5e-3", "double", 0.0015),
        ("0.1F", "double", 0.10000000149011612),
        ("0.1", "float", 0.10000000149011612),
        ("CAST('-Infinity' AS DOUBLE)", "double", float("-inf")),
        ("1.5", "decimal(10,2)", D("1.50")),
        ("1.5BD", "decimal(10,1)", D("1.5")),
        ("CAST(7 AS DECIMAL(10,2))", "decimal(10,2)", D("7.00")),
        ("TRUE", "boolean", True),
        ("'it''s'", "string", "it's"),
        (r"'a\'b\n'", "string", "a'b\n"),
        ('"double"', "string", "double"),
        ("''", "string", ""),
        ("'ünï 😀'", "varchar(20)", "ünï 😀"),
        ("X'00ff'", "binary", b"\x00\xff"),
        ("x''", "binary", b""),
        ("DATE'2026-01-31'", "date", dt.date(2026, 1, 31)),
        ("date '0001-01-01'", "date", dt.date(1, 1, 1)),
        ("TIMESTAMP '2026-01-31 12:00:00Z'", "timestamp", dt.datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("TIMESTAMP '2026-01-31 12:00:00+02:00'", "timestamp", dt.datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("TIMESTAMP_LTZ '2026-01-31T12:00:00.000001Z'", "timestamp", dt.datetime(2026, 1, 31, 12, 0, 0, 1, UTC)),
        ("TIMESTAMP_NTZ '1969-12-31 23:59:59.999999'", "timestamp_ntz", dt.datetime(1969, 12, 31, 23, 59, 59, 999999)),
        ("TIMESTAMP '2026-01-31'", "timestamp_ntz", dt.datetime(2026, 1, 31)),
        *(("null", kind, None) for kind in ALL_TYPES),
    ],
)
def test_literals_are_values_of_their_type(text, kind, value):
    assert parsed(text, kind) == value


@pytest.mark.parametrize(
    ("zone", "hour"), [("UTC", 12), ("America/New_York", 17), ("Asia/Kolkata", 6.5), ("Etc/GMT+1", 13)]
)
def test_a_timestamp_without_zone_is_one_of_the_session(zone, hour):
    expected = dt.datetime(2026, 1, 31, tzinfo=UTC) + dt.timedelta(hours=hour)
    assert parsed("TIMESTAMP '2026-01-31 12:00:00'", "timestamp", zone) == expected
    assert parsed("TIMESTAMP '2026-01-31 12:00:00Z'", "timestamp", zone) == dt.datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("current_timestamp()", "timestamp", "is not a constant"),
        ("now()", "timestamp", "is not a constant"),
        ("CAST(now() AS timestamp)", "timestamp", "is not a constant"),
        ("rand()", "double", "is not a constant"),
        ("1 + 1", "int", "is not a constant"),
        ("(1) + (1)", "int", "is not a constant"),
        ("other_column", "int", "is not a constant"),
        ("(SELECT 1)", "int", "is not a constant"),
        ("'a' || 'b'", "string", "is not a constant"),
        ("'open", "string", "is not a constant"),
        ("", "string", "is not a constant"),
        ("CAST('5' AS STRING)", "int", "is not a constant"),
        ("'5'", "int", "cannot have DEFAULT '5': it is a text"),
        ("5", "string", "it is a number"),
        ("true", "int", "it is a truth value"),
        ("1", "boolean", "it is a number"),
        ("1.5", "int", "it is not a whole number"),
        ("128", "tinyint", "tinyint cannot have DEFAULT 128"),
        ("1e300", "bigint", "it is too large"),
        ("1e999999999", "bigint", "it is too large"),
        ("1e999", "double", "it is too large"),
        ("1e39", "float", "it is too large"),
        ("1.555", "decimal(10,2)", "cannot have DEFAULT 1.555"),
        ("123456789", "decimal(10,2)", "cannot have DEFAULT 123456789"),
        ("X'0'", "binary", "cannot have DEFAULT X'0'"),
        ("'text'", "binary", "it is a text"),
        ("'2026-01-31'", "date", "it is a text"),
        ("DATE '2026-02-30'", "date", "cannot have DEFAULT"),
        ("DATE '2026-01-31'", "timestamp", "it is a DATE literal"),
        ("TIMESTAMP '2026-01-31 12:00:00'", "timestamp", "it has no zone"),
        ("TIMESTAMP '2026-01-31 12:00:00Z'", "timestamp_ntz", "it has a zone"),
        ("array(1)", "array<int>", "cannot have a default"),
        ("NULL", "struct<a:int>", "cannot have a default"),
        (f"'{'x' * (TEXT_LENGTH_MAX + 1)}'", "string", f"at most {TEXT_LENGTH_MAX}"),
    ],
)
def test_what_is_no_constant_of_the_type_is_refused(text, kind, words):
    with pytest.raises(SchemaMismatchError) as error:
        parsed(text, kind)
    assert words in str(error.value)
    assert "column 'c'" in str(error.value)
    assert len(str(error.value)) < 600


def test_an_unknown_zone_of_the_session_is_refused():
    with pytest.raises(SchemaMismatchError, match=r"the session's zone \+01:00 is unknown"):
        parsed("TIMESTAMP '2026-01-31 12:00:00'", "timestamp", "+01:00")


VALUES = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-(2**7), 2**7 - 1),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "decimal(38,10)": st.decimals(-(10**28) + 1, 10**28 - 1, places=10),
    "string": st.text(st.characters(exclude_categories=["Cs"])),
    "binary": st.binary(),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(),
}


@given(st.sampled_from(ALL_TYPES).flatmap(lambda kind: st.tuples(st.just(kind), VALUES[kind])))
def test_what_is_shown_and_what_is_stored_are_read_back(given_value):
    kind, value = given_value
    data_type = parse_type(kind)
    stored = constant_to_json(pa.scalar(value, data_type), "c")
    assert json.loads(json.dumps(stored, allow_nan=False)) == stored
    shown = constant_to_sql(stored, data_type)
    assert "\n" not in shown
    assert parse_constant(shown, data_type, "c") == stored
    back = constant_from_json(stored, data_type).as_py()
    assert back == value or (back != back and value != value)


def test_moments_that_no_sql_can_say_are_refused():
    for scalar in (pa.scalar(2**62, pa.int64()).cast(pa.timestamp("us", tz="UTC")), pa.scalar(2**30, pa.date32())):
        with pytest.raises(SchemaMismatchError, match="outside the years 1 to 9999"):
            constant_to_json(scalar, "c")
