from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark import SchemaMismatchError, Table, Warehouse
from streamhouse_spark.schema import row_conversion
from streamhouse_spark.schema.row_conversion import convert_to_schema, first_repeated_key
from streamhouse_spark.schema.table_schema import TableSchema

UTC = dt.UTC
ALL_TYPES = TableSchema.of(
    "yes boolean, i8 tinyint, i16 smallint, i32 int, i64 bigint, f32 float, f64 double, dec decimal(12,2), s string, "
    "b binary, d date, ts timestamp, ntz timestamp_ntz, a array<int>, m map<string,int>, st struct<x:int,y:string>",
)
ALL_VALUES = {
    "yes": True,
    "i8": -128,
    "i16": 32767,
    "i32": 7,
    "i64": 2**62,
    "f32": 1.5,
    "f64": 0.1,
    "dec": decimal.Decimal("12.34"),
    "s": "text",
    "b": b"\x00\xff",
    "d": dt.date(2024, 2, 29),
    "ts": dt.datetime(2024, 1, 1, 12, tzinfo=UTC),
    "ntz": dt.datetime(2024, 1, 1, 12),
    "a": [1, None, 3],
    "m": {"k": 1},
    "st": {"x": 1, "y": None},
}


def one(ddl, rows):
    """The only column of the result."""
    return convert_to_schema(rows, TableSchema.of(ddl), table="sales.orders").column(0)


def refused(ddl, rows):
    with pytest.raises(SchemaMismatchError) as error:
        convert_to_schema(rows, TableSchema.of(ddl), table="sales.orders")
    assert "\n" not in str(error.value)
    return str(error.value)


def test_rows_in_the_schema_pass_through_without_a_copy():
    schema = TableSchema.of("a bigint not null, b string")
    table = pa.table({"a": [1, 2], "b": ["x", None]}, schema=schema.arrow)
    assert convert_to_schema(table, schema, table="t") is table


def test_only_the_fields_nullability_differs_means_no_copy_of_the_values():
    schema = TableSchema.of("a bigint not null")
    table = pa.table({"a": [1, 2]})
    result = convert_to_schema(table, schema, table="t")
    assert result.schema.equals(schema.arrow, check_metadata=True)
    assert result.column(0).chunk(0).buffers()[1].address == table.column(0).chunk(0).buffers()[1].address


def test_metadata_of_the_rows_is_left_behind():
    schema = TableSchema.of("a bigint")
    table = pa.table({"a": [1]}).replace_schema_metadata({"pandas": "{}"})
    assert convert_to_schema(table, schema, table="t").schema.metadata is None


def test_dicts_with_values_of_every_type_are_converted():
    result = convert_to_schema([ALL_VALUES, {}], ALL_TYPES, table="t")
    assert result.schema.equals(ALL_TYPES.arrow, check_metadata=True)
    first, second = result.to_pylist()
    assert first == {**ALL_VALUES, "m": [("k", 1)]}
    assert set(second.values()) == {None}


@pytest.mark.parametrize(
    "form",
    [
        lambda table: table,
        lambda table: table.to_batches()[0],
        lambda table: table.to_reader(),
        lambda table: table.select(list(reversed(table.column_names))),
        lambda table: table.rename_columns([name.upper() for name in table.column_names]),
        lambda table: pl.from_arrow(table.drop_columns("m")),
        lambda table: table.to_pylist(),
    ],
    ids=["table", "batch", "reader", "reordered", "upper case", "polars", "dicts"],
)
def test_every_form_of_rows_gives_the_same_table(form):
    expected = convert_to_schema([ALL_VALUES] * 3, ALL_TYPES, table="t")
    result = convert_to_schema(form(expected), ALL_TYPES, table="t")
    if result.column("m").null_count:
        expected = expected.set_column(14, expected.field("m"), pa.nulls(3, expected.field("m").type))
    assert result.equals(expected)
    assert result.schema.equals(ALL_TYPES.arrow, check_metadata=True)
    result.validate(full=True)


def test_frames_of_pandas_are_converted():
    frame = pd.DataFrame(
        {
            "id": [1, 2, 3],
            "amount": [decimal.Decimal("1.50"), None, decimal.Decimal("2.25")],
            "name": ["a", np.nan, "c"],
            "kind": pd.Categorical(["x", "y", "x"]),
            "at": pd.to_datetime(["2024-01-01", None, "2024-01-03"], utc=True),
            "day": pd.to_datetime(["2024-01-01", "2024-01-02", None]),
            "count": [1.0, np.nan, 3.0],
            "tags": [["x"], [], None],
            "props": [{"k": 1}, None, {}],
            "small": pd.array([1, None, 3], dtype="Int64"),
        },
        index=[7, 8, 9],
    )
    schema = TableSchema.of(
        "id bigint not null, amount decimal(10,2), name string, kind string, at timestamp, day date, count int, "
        "tags array<string>, props map<string,int>, small int",
    )
    result = convert_to_schema(frame, schema, table="t").to_pylist()
    assert result[0] == {
        "id": 1,
        "amount": decimal.Decimal("1.50"),
        "name": "a",
        "kind": "x",
        "at": dt.datetime(2024, 1, 1, tzinfo=UTC),
        "day": dt.date(2024, 1, 1),
        "count": 1,
        "tags": ["x"],
        "props": [("k", 1)],
        "small": 1,
    }
    assert [row["name"] for row in result] == ["a", None, "c"]
    assert [row["count"] for row in result] == [1, None, 3]
    assert [row["day"] for row in result] == [dt.date(2024, 1, 1), dt.date(2024, 1, 2), None]


@pytest.mark.parametrize("rows", [[], pa.table({}), pd.DataFrame(), pl.DataFrame()])
def test_no_rows_are_an_empty_table(rows):
    schema = TableSchema.of("a bigint not null, b string")
    result = convert_to_schema(rows, schema, table="t")
    assert result.num_rows == 0
    assert result.schema.equals(schema.arrow)


@pytest.mark.parametrize(
    ("ddl", "given", "expected"),
    [
        ("a string", pa.array(["x", None], pa.large_string()), ["x", None]),
        ("a string", pa.array(["x", None], pa.string_view()), ["x", None]),
        ("a string", pa.array(["x", None, "x"]).dictionary_encode(), ["x", None, "x"]),
        ("a string", pa.RunEndEncodedArray.from_arrays([2, 3], ["x", "y"]), ["x", "x", "y"]),
        ("a binary", pa.array([b"ab"], pa.binary(2)), [b"ab"]),
        ("a binary", pa.array([b"ab"], pa.large_binary()), [b"ab"]),
        ("a int", pa.array([1, None], pa.uint64()), [1, None]),
        ("a tinyint", pa.array([-128, 127], pa.int64()), [-128, 127]),
        ("a double", pa.array([1, 2**53], pa.int64()), [1.0, 2.0**53]),
        ("a double", pa.array([1.5], pa.float32()), [1.5]),
        ("a float", pa.array([1.5, None, float("inf")], pa.float64()), [1.5, None, float("inf")]),
        ("a int", pa.array([2.0, None]), [2, None]),
        ("a decimal(5,2)", pa.array([999, None]), [decimal.Decimal("999.00"), None]),
        ("a decimal(38,38)", pa.array([0]), [decimal.Decimal(0)]),
        ("a decimal(5,2)", pa.array([decimal.Decimal("1.5")]), [decimal.Decimal("1.50")]),
        ("a bigint", pa.array([decimal.Decimal("15.00")]), [15]),
        ("a date", pa.array([86_400_000], pa.date64()), [dt.date(1970, 1, 2)]),
        ("a date", pa.array([dt.datetime(2024, 1, 1)], pa.timestamp("ns")), [dt.date(2024, 1, 1)]),
        ("a timestamp_ntz", pa.array([1, None], pa.timestamp("s")), [dt.datetime(1970, 1, 1, 0, 0, 1), None]),
        ("a timestamp", pa.array([0], pa.timestamp("ns", "Asia/Tokyo")), [dt.datetime(1970, 1, 1, tzinfo=UTC)]),
        ("a array<int>", pa.array([[1], None, []], pa.large_list(pa.int64())), [[1], None, []]),
        ("a array<int>", pa.array([[1, 2]], pa.list_(pa.int8(), 2)), [[1, 2]]),
        ("a array<string>", pa.array([["x"]], pa.list_view(pa.string_view())), [["x"]]),
        (
            "a array<decimal(4,1)>",
            pa.array([[1], [2, 3]]),
            [[decimal.Decimal(1)], [decimal.Decimal(2), decimal.Decimal(3)]],
        ),
        ("a array<int>", pa.array([[], None], pa.list_(pa.null())), [[], None]),
        (
            "a map<string,bigint>",
            pa.array([[("k", 1)], None], pa.map_(pa.large_string(), pa.int8())),
            [[("k", 1)], None],
        ),
        ("a struct<x:int,y:string>", pa.array([{"y": "v", "x": 1}, None]), [{"x": 1, "y": "v"}, None]),
        ("a struct<x:int,y:string>", pa.array([{"x": 1}], pa.struct([("x", pa.int8())])), [{"x": 1, "y": None}]),
        ("a struct<x:array<int>>", pa.array([{"x": None}]), [{"x": None}]),
        ("a map<string,int>", pa.array([None]), [None]),
    ],
)
def test_converts_what_can_be_converted_without_loss(ddl, given, expected):
    result = one(ddl, pa.table({"a": given}))
    result.validate(full=True)
    assert result.to_pylist() == expected
    assert one(ddl, pa.table({"a": pa.chunked_array([given, given[:0], given])})).to_pylist() == expected * 2


@pytest.mark.parametrize("ddl", ["a array<int>", "a struct<x:int>", "a map<string,int>"])
def test_a_slice_of_a_nested_column_keeps_its_rows(ddl):
    values = {
        "a array<int>": [[1], None, [2, 3], [], [4]],
        "a struct<x:int>": [{"x": 1}, None, {"x": 3}, {"x": None}, {"x": 5}],
        "a map<string,int>": [[("a", 1)], None, [], [("b", 2), ("c", 3)], [("d", 4)]],
    }[ddl]
    kind = pa.map_(pa.large_string(), pa.int64()) if "map" in ddl else None
    given = pa.array(values, kind).slice(1, 3)
    result = one(ddl, pa.table({"a": given}))
    result.validate(full=True)
    assert result.to_pylist() == values[1:4]


@pytest.mark.parametrize(
    ("ddl", "given", "message"),
    [
        ("a tinyint", pa.array([128]), "do not fit tinyint without loss"),
        ("a int", pa.array([2**31], pa.uint32()), "do not fit int"),
        ("a int", pa.array([1.5]), "do not fit int"),
        ("a int", pa.array([float("nan")]), "do not fit int"),
        ("a int", pa.array(["1"]), "has type string in the rows and int in the table; cast"),
        ("a int", pa.array([True]), "has type bool in the rows and int in the table"),
        ("a string", pa.array([1]), "has type int64 in the rows and string in the table"),
        ("a string", pa.array([b"x"]), "has type binary in the rows and string"),
        ("a binary", pa.array(["x"]), "has type string in the rows and binary"),
        ("a double", pa.array([2**53 + 1]), "do not fit double"),
        ("a float", pa.array([0.1]), "that float cannot hold exactly"),
        ("a decimal(4,1)", pa.array([0.5]), "has type double in the rows and decimal(4,1)"),
        ("a decimal(4,1)", pa.array([1000]), "do not fit decimal(4,1)"),
        ("a decimal(4,1)", pa.array([decimal.Decimal("1.25")]), "do not fit decimal(4,1)"),
        ("a double", pa.array([decimal.Decimal("1.25")]), "has type decimal128(3, 2) in the rows and double"),
        ("a date", pa.array([dt.datetime(2024, 1, 1, 3)]), "that date cannot hold exactly"),
        ("a date", pa.array([1], pa.date64()), "do not fit date"),
        ("a timestamp_ntz", pa.array([1], pa.timestamp("ns")), "do not fit timestamp_ntz"),
        ("a timestamp_ntz", pa.array([2**62], pa.timestamp("s")), "do not fit timestamp_ntz"),
        ("a timestamp", pa.array([1], pa.timestamp("us")), "add a zone"),
        ("a timestamp_ntz", pa.array([1], pa.timestamp("us", "UTC")), "drop the zone explicitly"),
        ("a timestamp", pa.array(["2024-01-01"]), "parse the strings first"),
        ("a array<int>", pa.array([["x"]]), "column 'a.element' of sales.orders has type string in the rows and int"),
        ("a array<int>", pa.array([1]), "has type int64 in the rows and array<int>"),
        (
            "a map<string,int>",
            pa.array([[("k", "1")]], pa.map_(pa.string(), pa.string())),
            "column 'a.value' of sales.orders",
        ),
        ("a map<string,timestamp>", pa.array([[("k", 1)]], pa.map_(pa.string(), pa.timestamp("us"))), "add a zone"),
        (
            "a array<int>",
            pa.array([["1"]], pa.list_view(pa.string())),
            "column 'a.element' of sales.orders has type string",
        ),
        ("a map<string,int>", pa.array([{"k": 1}]), "has type struct<k: int64> in the rows and map<string,int>"),
        (
            "a struct<x:int>",
            pa.array([{"x": 1, "z": 2}]),
            "has a field 'z' that is missing from the table's struct; its fields are x",
        ),
        ("a struct<x:int>", pa.array([{"x": "1"}]), "column 'a.x' of sales.orders has type string"),
        ("a int", pa.array([dt.time(1)]), "has the Arrow type time64"),
    ],
)
def test_refuses_arrow_values_that_would_change(ddl, given, message):
    assert message in refused(ddl, pa.table({"a": given}))


@pytest.mark.parametrize(
    ("ddl", "value", "message"),
    [
        ("a int", "1", "has a Python str in row 1, expected int; give an int"),
        ("a int", True, "has a Python bool in row 1"),
        ("a int", 1.5, "has the value 1.5, which int cannot hold"),
        ("a int", float("nan"), "has the value nan, which int cannot hold"),
        ("a int", float("inf"), "has the value inf, which int cannot hold"),
        ("a float", 1e39, "has the value 1e+39, which float cannot hold"),
        ("a double", 2**53 + 1, "do not fit double"),
        ("a timestamp_ntz", np.datetime64("2024-01-01T00:00:00"), "without a zone"),
        ("a int", 2**31, "do not fit int"),
        ("a bigint", 2**63, "do not fit bigint"),
        ("a boolean", 1, "give True or False"),
        ("a double", decimal.Decimal(1), "give a float"),
        ("a decimal(4,1)", 0.5, "give a decimal.Decimal, because floats are inexact"),
        ("a decimal(4,1)", decimal.Decimal("1.25"), "do not fit decimal(4,1)"),
        ("a string", 1, "give a str"),
        ("a string", b"x", "give a str"),
        ("a binary", "x", "give bytes"),
        ("a date", dt.datetime(2024, 1, 1), "give a datetime.date"),
        ("a date", 19_000, "give a datetime.date"),
        ("a timestamp", 19_000, "with a zone"),
        ("a timestamp", dt.datetime(2024, 1, 1), "has a time with no zone"),
        ("a timestamp_ntz", dt.datetime(2024, 1, 1, tzinfo=UTC), "has a time with a zone"),
        ("a timestamp", dt.date(2024, 1, 1), "has a Python date in row 1"),
        ("a array<string>", "text", "give a list"),
        ("a array<timestamp>", [dt.datetime(2024, 1, 1)], "column 'a.element' of sales.orders has a time with no zone"),
        ("a map<string,int>", {"k": "v"}, "column 'a.value' of sales.orders has a Python str, expected int"),
        ("a map<string,int>", [{"k": 1}], "column 'a' of sales.orders has a dict in a map, expected pairs of"),
        ("a map<string,int>", {1: 1}, "column 'a.key' of sales.orders has a Python int, expected string"),
        ("a struct<x:int>", {"y": 1}, "has a field 'y' that is missing from the table's struct"),
        ("a struct<x:struct<d:date>>", {"x": {"d": 1}}, "column 'a.x.d' of sales.orders has a Python int"),
        ("a struct<x:int>", (1,), "give a dict of field name and value"),
    ],
)
def test_refuses_python_values_that_would_change(ddl, value, message):
    assert message in refused(ddl, [{"a": None}, {"a": value}])


@pytest.mark.parametrize(
    ("ddl", "value", "expected"),
    [
        ("a double", 1, 1.0),
        ("a int", np.int64(1), 1),
        ("a int", 1.0, 1),
        ("a float", 0.5, 0.5),
        ("a decimal(4,1)", 2, decimal.Decimal("2.0")),
        ("a boolean", np.bool_(True), True),
        (
            "a timestamp",
            dt.datetime(2024, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2))),
            dt.datetime(2024, 1, 1, tzinfo=UTC),
        ),
        ("a timestamp", pd.Timestamp("2024-01-01", tz="UTC"), dt.datetime(2024, 1, 1, tzinfo=UTC)),
        ("a array<int>", (1, 2), [1, 2]),
        ("a array<double>", np.array([1.5, 2.5]), [1.5, 2.5]),
        ("a map<string,int>", [("k", 1)], [("k", 1)]),
    ],
)
def test_takes_python_values_that_mean_the_same(ddl, value, expected):
    assert one(ddl, [{"a": value}]).to_pylist() == [expected]


def test_an_unknown_column_is_named_with_the_nearest():
    message = refused("order_id bigint, amount double", [{"order_id": 1, "amuont": 2.0}])
    assert "column 'amuont' of the rows is not in sales.orders; did you mean 'amount'?" in message


def test_a_missing_not_null_column_is_named():
    assert "column 'id' of sales.orders is NOT NULL and missing from the rows" in refused(
        "id bigint not null, a int",
        [{"a": 1}],
    )


def test_a_null_in_a_not_null_column_is_counted():
    message = refused("id bigint not null", pa.table({"id": [1, None, None]}))
    assert "column 'id' of sales.orders is NOT NULL, and null in 2 of 3 rows" in message


def test_nan_counts_as_missing_in_pandas_only():
    assert "is NOT NULL" in refused("x double not null", pd.DataFrame({"x": [1.0, np.nan]}))
    assert np.isnan(one("x double not null", [{"x": float("nan")}])[0].as_py())


@pytest.mark.parametrize(
    "rows",
    [
        [{"a": 1, "A": 2}],
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]),
        pd.DataFrame([[1, 2]], columns=["a", "A"]),
        pd.DataFrame([[1, 2]], columns=["a", "a"]),
    ],
)
def test_a_column_that_is_there_twice_is_refused(rows):
    assert "is in the rows twice" in refused("a bigint", rows)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"a": 1}, "pass a list of dicts"),
        (pl.LazyFrame({"a": [1]}), "call collect() first"),
        ("text", "rows for sales.orders are a builtins.str"),
        ([{"a": 1}, (2,)], "row 1 for sales.orders is a tuple, expected a dict"),
        ([{7: 1}], "have the column name 7, expected a string"),
        (pd.DataFrame([[1]]), "have the column name 0, expected a string"),
    ],
)
def test_what_are_no_rows_is_refused(rows, message):
    assert message in refused("a bigint", rows)


@given(st.lists(st.fixed_dictionaries({}, optional={"a": st.integers(-(2**63), 2**63 - 1), "b": st.text()})))
def test_dicts_come_out_as_they_went_in(rows):
    schema = TableSchema.of("a bigint, b string")
    assert convert_to_schema(rows, schema, table="t").to_pylist() == [{"a": r.get("a"), "b": r.get("b")} for r in rows]


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), max_size=20), st.sampled_from(["tinyint", "int", "double"])
)
def test_integers_arrive_unchanged_or_not_at_all(values, kind):
    try:
        result = one(f"a {kind}", pa.table({"a": pa.array(values, pa.int64())}))
    except SchemaMismatchError:
        limit = {"tinyint": 127, "int": 2**31 - 1, "double": 2**53}[kind]
        assert any(v is not None and abs(v) > limit for v in values)
    else:
        assert [None if v is None else int(v) for v in result.to_pylist()] == values


@given(st.lists(st.floats(width=64) | st.none(), max_size=20))
def test_doubles_arrive_in_a_float_column_unchanged_or_not_at_all(values):
    try:
        result = one("a float", pa.table({"a": pa.array(values, pa.float64())}))
    except SchemaMismatchError:
        with np.errstate(over="ignore"):
            assert any(v is not None and v == v and np.float64(np.float32(v)) != v for v in values)
    else:
        assert np.array_equal(
            np.array([np.nan if v is None else v for v in result.to_pylist()]),
            np.array([np.nan if v is None else v for v in values], dtype=float),
            equal_nan=True,
        )


class TestTextThatIsNoUtf8:
    BAD = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"\xc3", b"b"], pa.binary()).buffers())

    @pytest.fixture(autouse=True, params=["few rows", "many rows"])
    def _ways_to_check(self, request, monkeypatch):
        """Few rows are checked by one call, many column by column."""
        if request.param == "many rows":
            monkeypatch.setattr(row_conversion, "FEW_ROWS", -1)

    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            ("string", BAD),
            ("array<string>", pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), BAD)),
            ("struct<x:string>", pa.StructArray.from_arrays([BAD], ["x"])),
            ("map<string,int>", pa.MapArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), BAD, [1, 2, 3])),
            ("string", BAD.cast(pa.large_string())),
            ("string", BAD.dictionary_encode()),
        ],
        ids=["plain", "list", "struct", "map", "large", "dictionary"],
    )
    def test_the_row_is_named(self, kind, values):
        with pytest.raises(SchemaMismatchError, match=r"column 'a' of .*not UTF-8 in row 1 "):
            one(f"a {kind}", pa.table({"a": values}))
        assert one(f"a {kind}", pa.table({"a": values}).slice(2)).null_count == 0

    @pytest.mark.parametrize("place", range(5))
    def test_a_bad_byte_is_found_wherever_it_stands_among_ascii(self, place):
        texts = [b"abc", b"", b"x" * 100, b"yz", b"end"]
        texts[place] += b"\xff"
        chunk = pa.Array.from_buffers(pa.string(), 5, pa.array(texts, pa.binary()).buffers())
        for shift in range(place + 1):
            rows = pa.table({"a": pa.chunked_array([pa.array(["ok"]), chunk.slice(shift)])})
            with pytest.raises(SchemaMismatchError, match=f"not UTF-8 in row {1 + place - shift} "):
                one("a string", rows)
        assert one("a string", pa.table({"a": chunk.slice(place + 1)})).to_pylist() == [
            text.decode() for text in texts[place + 1 :]
        ]

    @pytest.mark.parametrize("size", [0, 3])
    def test_no_bytes_at_all_are_a_text(self, size):
        for values in (pa.nulls(size, pa.string()), pa.array([""] * size, pa.string())):
            assert one("a string", pa.table({"a": values})).to_pylist() == values.to_pylist()

    def test_values_that_no_row_has_do_not_count(self):
        validity = pa.py_buffer(b"\x05")
        masked = pa.Array.from_buffers(pa.string(), 3, [validity, *self.BAD.buffers()[1:]])
        assert one("a string", pa.table({"a": masked})).to_pylist() == ["a", None, "b"]
        gap = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), self.BAD)
        assert one("a array<string>", pa.table({"a": gap})).to_pylist() == [["a"]]


# -- keys of maps -----------------------------------------------------------------------------------------------------


INT_MAP = pa.map_(pa.int64(), pa.int64())
KEYS: dict[str, tuple[pa.DataType, Any]] = {
    "int": (pa.int64(), st.integers(0, 3)),
    "double": (pa.float64(), st.sampled_from([0.0, -0.0, math.nan, 1.5])),
    "string": (pa.string(), st.sampled_from(["a", "b", ""])),
    "binary": (pa.binary(), st.sampled_from([b"a", b""])),
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        st.fixed_dictionaries({"a": st.integers(0, 1), "b": st.sampled_from(["x", None])}),
    ),
    "list": (pa.list_(pa.int64()), st.lists(st.one_of(st.none(), st.integers(0, 1)), max_size=2)),
}


def same_key(key: Any) -> Any:
    """A text that equal keys have alone."""
    if isinstance(key, dict):
        return repr(sorted(key.items(), key=str))
    return repr(0.0 if key == 0.0 and isinstance(key, float) else key)


def repeats(pairs: list[tuple[Any, Any]] | None) -> bool:
    keys = [same_key(key) for key, _ in pairs or ()]
    return len(keys) != len(set(keys))


@pytest.mark.parametrize("kind", KEYS)
@given(data=st.data())
def test_the_first_map_with_a_repeated_key_is_found(kind, data):
    key_type, keys = KEYS[kind]
    maps = data.draw(st.lists(st.one_of(st.none(), st.lists(st.tuples(keys, st.just(1)), max_size=4)), max_size=6))
    skipped = data.draw(st.integers(0, len(maps)))
    array = pa.array(maps, pa.map_(key_type, pa.int64())).slice(skipped)
    expected = next((row for row, pairs in enumerate(maps[skipped:]) if repeats(pairs)), None)
    assert first_repeated_key(pa.chunked_array([array[:1], array[1:]])) == expected
    as_struct = pa.StructArray.from_arrays([array], ["m"])
    as_list = pa.ListArray.from_arrays(pa.array(range(len(array) + 1), pa.int32()), array)
    as_value = pa.MapArray.from_arrays(pa.array(range(len(array) + 1), pa.int32()), pa.array(range(len(array))), array)
    for inside in (as_struct, as_list, as_value):
        assert first_repeated_key(pa.chunked_array([inside])) == expected


def test_what_a_null_hides_is_no_map():
    hidden = pa.MapArray.from_arrays([0, 2, 3], [1, 1, 2], [5, 6, 7], mask=pa.array([True, False]))
    assert first_repeated_key(pa.chunked_array([hidden])) is None


TWICE = [(1, 10), (1, 11)]
ROWS = [{"id": 1, "m": [(1, 10), (2, 20)]}, {"id": 2, "m": TWICE}]
ENTRANCES: dict[str, Callable[[Table], object]] = {
    "dicts": lambda table: table.append(ROWS),
    "Arrow": lambda table: table.append(pa.Table.from_pylist(ROWS, table.schema)),
    "upsert": lambda table: table.upsert(ROWS),
    "some columns": lambda table: table.upsert(ROWS, columns=["id", "m"]),
}


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_no_entrance_takes_a_map_with_one_key_twice(memory, world, own_cache, entrance):
    keyed = entrance in ("upsert", "some columns")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("m", INT_MAP)])
    warehouse = Warehouse("wh", storage=memory, world=world)
    table = warehouse.create_table("t", schema, primary_key=["id"] if keyed else [])
    with pytest.raises(SchemaMismatchError, match=r"column 'm' .*a duplicate key in row 1 of these rows"):
        ENTRANCES[entrance](table)
    assert table.refresh().version == 1


def test_a_writer_refuses_it_in_the_call(memory, world):
    warehouse = Warehouse("wh", storage=memory, world=world)
    table = warehouse.create_table("t", pa.schema([("id", pa.int64()), ("m", INT_MAP)]))
    with table.writer() as writer, pytest.raises(SchemaMismatchError, match="a duplicate key"):
        writer.send(ROWS)
