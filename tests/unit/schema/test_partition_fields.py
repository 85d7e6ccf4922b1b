"""Fields of a partitioning: their texts come back, and their values are those of Iceberg's own transforms."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import transforms as ice
from pyiceberg import types

from streamhouse_spark import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.schema.partitioning import PartitionField, join_fields, parse_field, parse_fields, split_fields
from streamhouse_spark.schema.table_schema import TableSchema

SCHEMA = TableSchema.of(
    "id BIGINT, small TINYINT, ts TIMESTAMP, local TIMESTAMP_NTZ, day DATE, name STRING, f DOUBLE, `a, b(c)` INT"
)
EPOCH = dt.datetime(1970, 1, 1)
TIMES = {
    "years": ice.YearTransform(),
    "months": ice.MonthTransform(),
    "days": ice.DayTransform(),
    "hours": ice.HourTransform(),
}


class TestTexts:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("ID", "id"),
            ("days(TS)", "days(ts)"),
            (" Day ( ts ) ", "days(ts)"),
            ("hour(local)", "hours(local)"),
            ("years(day)", "years(day)"),
            ("months(ts)", "months(ts)"),
            ("truncate( 4 , name)", "truncate(4, name)"),
            ("a, b(c)", "`a, b(c)`"),
            ("truncate(10, `a, b(c)`)", "truncate(10, `a, b(c)`)"),
        ],
    )
    def test_a_field_comes_back(self, text, shown):
        field = parse_field(text, SCHEMA)
        assert str(field) == shown
        assert parse_field(shown.strip("`"), SCHEMA) == field

    def test_a_list_comes_back(self):
        texts = ["truncate(3, `a, b(c)`)", "days(ts)", "name"]
        fields = parse_fields(texts, SCHEMA)
        assert parse_fields(split_fields(join_fields(fields)), SCHEMA) == fields
        assert split_fields("") == []

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("days(name)", "has type string, expected a date or a timestamp"),
            ("hours(day)", "has type date, expected a timestamp"),
            ("truncate(4, f)", "has type double, expected strings, binary, or integers"),
            ("truncate(0, name)", "expected a width above 0"),
            ("truncate(name)", "expected a width above 0"),
            ("void(ts)", "unknown transform 'void'"),
            ("days(ts, day)", "found 2 columns, expected one"),
            ("id, name", "found 2 columns, expected one"),
        ],
    )
    def test_a_field_that_cannot_be(self, text, says):
        with pytest.raises(InvalidOptionError, match=says.replace("(", r"\(")):
            parse_field(text, SCHEMA)

    def test_unknown_columns_and_columns_that_are_there_twice(self):
        with pytest.raises(SchemaMismatchError, match="nowhere"):
            parse_field("days(nowhere)", SCHEMA)
        with pytest.raises(InvalidOptionError, match="'ts' occurs twice"):
            parse_fields(["days(ts)", "hours(ts)"], SCHEMA)


class TestValues:
    @given(st.lists(st.none() | st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 12, 31)), max_size=8))
    def test_of_times(self, moments):
        micros = [None if m is None else (m - EPOCH) // dt.timedelta(microseconds=1) for m in moments]
        for name, theirs in TIMES.items():
            of_one = theirs.transform(types.TimestampType())
            for zone in (None, "UTC"):
                found = PartitionField("ts", name).values(pa.array(micros, pa.timestamp("us", zone)))
                assert found.type == pa.int32()
                assert found.to_pylist() == [None if m is None else of_one(m) for m in micros]

    @given(st.lists(st.none() | st.dates(dt.date(2, 1, 1), dt.date(9998, 12, 31)), max_size=8))
    def test_of_dates(self, days):
        numbers = [None if day is None else (day - EPOCH.date()).days for day in days]
        for name in ("years", "months", "days"):
            of_one = TIMES[name].transform(types.DateType())
            found = PartitionField("day", name).values(pa.array(days, pa.date32()))
            assert found.to_pylist() == [None if n is None else of_one(n) for n in numbers]

    @given(st.lists(st.none() | st.integers(-(2**31) + 1000, 2**31 - 1), max_size=8), st.integers(1, 1000))
    def test_of_integers(self, numbers, width):
        of_one = ice.TruncateTransform(width).transform(types.IntegerType())
        expected = [None if n is None else of_one(n) for n in numbers]
        for kind in (pa.int32(), pa.int64()):
            assert PartitionField("n", "truncate", width).values(pa.array(numbers, kind)).to_pylist() == expected

    def test_of_small_integers(self):
        found = PartitionField("n", "truncate", 200).values(pa.array([-5, 127, None], pa.int8()))
        assert (found.type, found.to_pylist()) == (pa.int32(), [-200, 0, None])

    @given(st.lists(st.none() | st.text(max_size=6), max_size=8), st.integers(1, 4))
    def test_of_text(self, texts, width):
        expected = [None if text is None else text[:width] for text in texts]
        field = PartitionField("s", "truncate", width)
        assert field.values(pa.array(texts, pa.string())).to_pylist() == expected
        data = [None if text is None else text.encode() for text in texts]
        assert field.values(pa.array(data, pa.binary())).to_pylist() == [d and d[:width] for d in data]

    @pytest.mark.parametrize(
        ("name", "micros", "value"),
        [
            ("years", -(2**63), -292278),
            ("months", -(2**63), -3507325),
            ("days", -(2**63), -106751992),
            ("hours", -(2**63), -(2**31)),
            ("days", 2**63 - 1, 106751991),
            ("hours", 2**63 - 1, 2**31 - 1),
        ],
    )
    def test_of_times_at_the_ends_of_the_type(self, name, micros, value):
        """Hours beyond 32 bits stay with the last hour, so that the order of partitions is that of times."""
        field = PartitionField("ts", name)
        assert field.values(pa.array([micros, None, 0], pa.timestamp("us"))).to_pylist() == [value, None, 0]
        for edge in (-(2**31), 2**31 - 1):
            assert PartitionField("ts", "hours").range_of(edge, pa.timestamp("us")) is None

    def test_of_parts_and_chunks(self):
        column = pa.chunked_array([[0, 86_400_000_000], [None, -1]], pa.timestamp("us"))
        assert PartitionField("ts", "days").values(column[1:]).to_pylist() == [1, None, -1]
        assert PartitionField("ts", "days").values(column.chunk(0)[1:]).to_pylist() == [1]


@given(st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 12, 31)))
def test_a_range_holds_exactly_the_moments_of_its_value(moment):
    micros = (moment - EPOCH) // dt.timedelta(microseconds=1)
    for name in TIMES:
        field = PartitionField("ts", name)
        kind = pa.timestamp("us")
        [value] = field.values(pa.array([micros], kind)).to_pylist()
        start, end = field.range_of(value, kind)
        assert start <= micros < end
        assert field.values(pa.array([start - 1, start, end - 1, end], kind)).to_pylist() == [
            value - 1, value, value, value + 1
        ]  # fmt: skip


def test_a_range_beyond_all_moments_is_not_known():
    assert PartitionField("ts", "years").range_of(2_000_000, pa.timestamp("us")) is None
    assert PartitionField("s", "truncate", 3).range_of(5, pa.int32()) is None
