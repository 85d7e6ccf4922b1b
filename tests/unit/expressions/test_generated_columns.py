"""Expressions of generated columns: which are understood, and which values they have."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from streamhouse_spark import ConstraintViolatedError, InvalidOptionError, SchemaMismatchError
from streamhouse_spark.core import arrow_rows
from streamhouse_spark.expressions.generated_columns import (
    fill_generated_columns,
    parse_generated,
    recompute_generated_columns,
)
from streamhouse_spark.schema.table_schema import TableSchema

COLUMNS = "id INT, small TINYINT, f FLOAT, d DATE, ts TIMESTAMP, ntz TIMESTAMP_NTZ, name STRING, code CHAR(3)"
AT = dt.datetime(1969, 12, 28, 23, 59, 59, 123456)
ROW = {"id": 7, "small": 3, "f": 0.5, "d": AT.date(), "ts": AT.replace(tzinfo=dt.UTC), "ntz": AT, "name": "Straße"}
"""A Sunday before 1970."""


def generated(kind: str, text: str, **more: str):
    schema = TableSchema.of(f"{COLUMNS}, g {kind}")
    return schema, parse_generated({"table.generated.g": text} | more, schema)


def value(kind: str, text: str, row=ROW):
    schema, found = generated(kind, text)
    rows = fill_generated_columns(found, pa.Table.from_pylist([row, {}], schema.arrow), "d.t")
    assert rows.schema == schema.arrow
    assert rows.column("g")[1].as_py() is None, "null where an operand is null"
    return rows.column("g")[0].as_py()


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("DATE", "CAST(ts AS DATE)", AT.date()),
        ("DATE", "date(ntz)", AT.date()),
        ("DATE", "to_date(`d`)", AT.date()),
        ("TIMESTAMP", "CAST(d AS TIMESTAMP)", dt.datetime(1969, 12, 28, tzinfo=dt.UTC)),
        ("INT", "year(ts) * 10000 + month(d) * 100 + day(ntz)", 19691228),
        ("INT", "hour(ts)", 23),
        ("INT", "minute(ntz) - second(ts)", 0),
        ("INT", "quarter(d)", 4),
        ("INT", "dayofweek(d)", 1),
        ("INT", "dayofyear(ts)", 362),
        ("INT", "weekofyear(ts)", 52),
        ("TIMESTAMP", "date_trunc('HOUR', ts)", dt.datetime(1969, 12, 28, 23, tzinfo=dt.UTC)),
        ("TIMESTAMP", "date_trunc('week', ts)", dt.datetime(1969, 12, 22, tzinfo=dt.UTC)),
        ("TIMESTAMP", "date_trunc('quarter', ts)", dt.datetime(1969, 10, 1, tzinfo=dt.UTC)),
        ("DATE", "trunc(d, 'yyyy')", dt.date(1969, 1, 1)),
        ("STRING", "upper(name) || '-' || CAST(id AS STRING)", "STRASSE-7"),
        ("STRING", "concat(lower(name), 'it''s')", "straßeit's"),
        ("STRING", "lower(upper(CAST(id AS STRING)))", "7"),
        ("STRING", "substring(name, 5)", "ße"),
        ("STRING", "substr(name, 0, 2)", "St"),
        ("STRING", "substring(name, 9, 3)", ""),
        ("STRING", "substring(name, -3, 2)", "aß"),
        ("STRING", "substring(name, -8, 3)", "S"),
        ("STRING", "substring(name, 2, -1)", ""),
        ("STRING", "CAST(d AS STRING)", "1969-12-28"),
        ("STRING", "CAST(ts AS STRING)", "1969-12-28 23:59:59.123456"),
        ("STRING", "CAST(CAST(d AS TIMESTAMP_NTZ) AS STRING)", "1969-12-28 00:00:00"),
        ("STRING", "CAST(id > 3 AS STRING)", "true"),
        ("STRING", "CAST(id * 1.50 AS STRING)", "10.50"),
        ("STRING", r"concat(name, '\n\\')", "Straße\n\\"),
        ("DECIMAL(14,2)", "id * 1.50", Decimal("10.50")),
        ("DECIMAL(4,1)", "CAST(id * -1.50 + 0.05 AS DECIMAL(4,1))", Decimal("-10.5")),
        ("DOUBLE", "id + f", 7.5),
        ("DOUBLE", "CAST(0.1 * id AS DOUBLE)", 0.7),
        ("BOOLEAN", "id IN (1, NULL) OR f < 1", True),
        ("INT", "length(name)", 6),
        ("INT", "-id + (2 - small) * -3", -4),
        ("TINYINT", "small + small", 6),
        ("BIGINT", "id * 5000000000", 35_000_000_000),
        ("BIGINT", "id", 7),
        ("DOUBLE", "CAST(id AS DOUBLE) * f", 3.5),
        ("DOUBLE", "f", 0.5),
        ("TINYINT", "CAST(id AS TINYINT)", 7),
    ],
)
def test_expressions_of_generated_columns_have_their_values(kind, text, expected):
    assert value(kind, text) == expected


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("INT", "foo(id)", r"'foo\(id\)' at character 1 calls foo\(…\), which is not supported; supported are columns"),
        ("INT", "id / 2", "'/ 2' at character 4 is not supported"),
        ("INT", "id +", "the end at character 5 is not supported"),
        ("INT", "id small", "'small' at character 4 is not supported"),
        ("INT", "((id", r"the end at character 5 was found, expected '\)'"),
        ("INT", "nothing + 1", "names an unknown column 'nothing'; the columns are id, small"),
        ("INT", "g + 1", "names 'g', which is also a generated column"),
        ("STRING", "code", r"of type CHAR\(n\)"),
        ("INT", "1 + 2", "names no column"),
        ("INT", "id + 9223372036854775808", r"the expression is a decimal\(20,0\)"),
        ("INT", "id + name", "operands must be numbers; convert other values with CAST"),
        ("FLOAT", "id + f", "the expression is a double; give the column this type"),
        ("STRING", "id || name", "operands must be strings; convert other values with CAST"),
        ("INT", "year(name)", "expected a date or a timestamp"),
        ("INT", "hour(d)", "expected a timestamp"),
        ("INT", "length(name, name)", "expected one string"),
        ("STRING", "substring(name, id)", "must be whole numbers"),
        ("TIMESTAMP", "date_trunc('fortnight', ts)", "the unit must be one of year, quarter"),
        ("TIMESTAMP", "date_trunc(name, ts)", "the unit must be one of year, quarter"),
        ("TIMESTAMP", "date_trunc('day', d)", "expected a TIMESTAMP"),
        ("DATE", "trunc(d, 'hour')", "the unit must be one of year, quarter, month, week"),
        ("STRING", "CAST(f AS STRING)", "casts a float to string, supported are casts of whole numbers and decimals"),
        ("DATE", "CAST(name AS DATE)", "casts a string to date"),
        ("INT", "CAST(id AS fish)", "is not a type"),
        ("INT", "CAST(id TO INT)", "was found, expected AS"),
        ("SMALLINT", "id", "the expression is a int; give the column this type"),
        ("STRING", "ts", "the expression is a timestamp"),
        ("INT NOT NULL", "id", "has NOT NULL as well; leave it out"),
        ("INT DEFAULT 3", "id", "has DEFAULT as well; leave it out"),
        ("VARCHAR(3)", "name", "has a length as well; leave it out"),
        ("INT", "(" * 60 + "id", "is nested deeper than 50 levels"),
        ("INT", "-" * 60 + "id", "is nested deeper than 50 levels"),
    ],
)
def test_what_is_not_understood_is_refused(kind, text, says):
    with pytest.raises(InvalidOptionError, match=says):
        generated(kind, text)


def test_a_column_that_is_not_there_or_generated_twice_is_refused():
    with pytest.raises(InvalidOptionError, match=r"table\.generated\.x: found no such column, expected one of id"):
        parse_generated({"table.generated.x": "id"}, TableSchema.of(COLUMNS))
    with pytest.raises(InvalidOptionError, match="also generated by another property; remove one"):
        generated("INT", "id", **{"table.generated.G": "id"})


@pytest.mark.parametrize(("kind", "text"), [("TINYINT", "small * small"), ("TINYINT", "CAST(id AS TINYINT)")])
def test_a_number_that_is_too_large_is_an_error(kind, text):
    with pytest.raises(SchemaMismatchError, match=r"of the generated column 'g' = .* that is too large"):
        value(kind, text, ROW | {"id": 300, "small": 100})


def test_a_row_that_becomes_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(arrow_rows, "ROW_BYTES_MAX", 1000)
    schema, found = generated("STRING", "name || name")
    rows = pa.Table.from_pylist([{"name": "x" * 600}], schema.arrow)
    with pytest.raises(SchemaMismatchError, match=r"column 'g' .* expected at most 1000"):
        fill_generated_columns(found, rows, "d.t")


def test_another_value_is_refused_and_the_same_or_none_is_not():
    schema, found = generated("INT", "id + 1")
    same = pa.Table.from_pylist([{"id": 1, "g": 2}, {"id": 2}, {"g": None}], schema.arrow)
    assert fill_generated_columns(found, same, "d.t").column("g").to_pylist() == [2, 3, None]
    for wrong in ({"id": 1, "g": 5}, {"g": 5}):
        rows = pa.Table.from_pylist([{"id": 1}, wrong], schema.arrow)
        with pytest.raises(ConstraintViolatedError, match=r"1 of 2 rows for d.t .* 'g' than id \+ 1, such as 5, exp"):
            fill_generated_columns(found, rows, "d.t")
        assert recompute_generated_columns(found, rows.to_batches()[0], "d.t").column("g").to_pylist()[0] == 2
    schema, found = generated("FLOAT", "f + f")
    nan = pa.Table.from_pylist([{"f": float("nan"), "g": float("nan")}], schema.arrow)
    assert fill_generated_columns(found, nan, "d.t").num_rows == 1
