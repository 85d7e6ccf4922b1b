"""Partition fields have the values of Iceberg's transforms, and partitions expire by their values."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import transforms as ice
from pyiceberg import types

from streamhouse_spark import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.config.table_properties import alter_properties, parse_properties
from streamhouse_spark.schema.partitioning import (
    AutoPartition,
    PartitionField,
    join_fields,
    parse_auto_partition,
    parse_field,
    parse_fields,
    period_at,
    period_of,
    split_fields,
)
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
    def test_partition_values_of_times_equal_icebergs(self, moments):
        micros = [None if m is None else (m - EPOCH) // dt.timedelta(microseconds=1) for m in moments]
        for name, theirs in TIMES.items():
            of_one = theirs.transform(types.TimestampType())
            for zone in (None, "UTC"):
                found = PartitionField("ts", name).values(pa.array(micros, pa.timestamp("us", zone)))
                assert found.type == pa.int32()
                assert found.to_pylist() == [None if m is None else of_one(m) for m in micros]

    @given(st.lists(st.none() | st.dates(dt.date(2, 1, 1), dt.date(9998, 12, 31)), max_size=8))
    def test_partition_values_of_dates_equal_icebergs(self, days):
        numbers = [None if day is None else (day - EPOCH.date()).days for day in days]
        for name in ("years", "months", "days"):
            of_one = TIMES[name].transform(types.DateType())
            found = PartitionField("day", name).values(pa.array(days, pa.date32()))
            assert found.to_pylist() == [None if n is None else of_one(n) for n in numbers]

    @given(st.lists(st.none() | st.integers(-(2**31) + 1000, 2**31 - 1), max_size=8), st.integers(1, 1000))
    def test_truncated_integers_equal_icebergs(self, numbers, width):
        of_one = ice.TruncateTransform(width).transform(types.IntegerType())
        expected = [None if n is None else of_one(n) for n in numbers]
        for kind in (pa.int32(), pa.int64()):
            assert PartitionField("n", "truncate", width).values(pa.array(numbers, kind)).to_pylist() == expected

    def test_truncated_small_integers_do_not_overflow(self):
        found = PartitionField("n", "truncate", 200).values(pa.array([-5, 127, None], pa.int8()))
        assert (found.type, found.to_pylist()) == (pa.int32(), [-200, 0, None])

    @given(st.lists(st.none() | st.text(max_size=6), max_size=8), st.integers(1, 4))
    def test_truncated_texts_equal_icebergs(self, texts, width):
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


EXPIRING_SCHEMA = TableSchema.of("id BIGINT, day DATE, hour STRING, n INT")
ON = {"table.auto-partition.enabled": "true"}
KEY = {**ON, "table.auto-partition.key": "hour"}


def at(text: str) -> int:
    return int(dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp() * 1000)


def days(text: str) -> int:
    return (dt.date.fromisoformat(text) - dt.date(1970, 1, 1)).days


def expired(unit: str, value: object, now: str, *, kept: int = 1, zone: str = "UTC") -> bool:
    return AutoPartition("p", 0, unit, kept, zone).all_expired([(value,)], at(now))


@pytest.mark.parametrize(
    ("unit", "value", "last_kept", "first_expired"),
    [
        ("HOUR", "2026022823", "2026-03-01T00:59", "2026-03-01T01:00"),
        ("DAY", "20260228", "2026-03-01T23:59", "2026-03-02T00:00"),
        ("DAY", "2024-02-28", "2024-02-29T23:59", "2024-03-01T00:00"),
        ("DAY", days("2025-12-31"), "2026-01-01T23:59", "2026-01-02T00:00"),
        ("DAY", days("1969-12-31"), "1970-01-01T23:59", "1970-01-02T00:00"),
        ("MONTH", "202512", "2026-01-31T23:59", "2026-02-01T00:00"),
        ("QUARTER", "20254", "2026-03-31T23:59", "2026-04-01T00:00"),
        ("QUARTER", "20261", "2026-06-30T23:59", "2026-07-01T00:00"),
        ("YEAR", "2025", "2026-12-31T23:59", "2027-01-01T00:00"),
    ],
)
def test_a_partition_expires_behind_the_units_that_are_kept(unit, value, last_kept, first_expired):
    assert not expired(unit, value, last_kept)
    assert expired(unit, value, first_expired)


@pytest.mark.parametrize(
    ("unit", "value"),
    [
        ("DAY", None),
        ("DAY", "20260231"),
        ("DAY", "2026-2-1"),
        ("DAY", "20260228 "),
        ("DAY", "٢٠٢٠٠١٠١"),
        ("DAY", "00000101"),
        ("DAY", "202602"),
        ("HOUR", "2026022824"),
        ("MONTH", "202613"),
        ("QUARTER", "20265"),
        ("QUARTER", "202601"),
        ("YEAR", "26"),
        ("YEAR", ""),
    ],
)
def test_a_value_that_names_no_unit_never_expires(unit, value):
    assert period_of(value, unit) is None
    assert not expired(unit, value, "9000-01-01T00:00")


def test_the_clocks_of_the_zone_say_what_is_now():
    assert not expired("DAY", "20260301", "2026-03-03T01:00", zone="America/New_York"), "there it is still the 2nd"
    assert expired("DAY", "20260301", "2026-03-03T01:00")
    assert expired("DAY", "20260301", "2026-03-02T15:00", zone="Asia/Tokyo")
    before, after = (period_at(at(f"2026-03-29T0{hour}:30"), "HOUR", "Europe/Berlin") for hour in (0, 1))
    assert after - before == 2, "an hour that the clocks skip is none"


def test_a_segment_expires_with_all_its_partitions():
    rule = AutoPartition("day", 1, "DAY", 0, "UTC")
    now = at("2026-03-02T00:00")
    old, new = ("de", "20260301"), ("de", "20260302")
    assert rule.all_expired([old, ("fr", "20260201")], now)
    assert not rule.all_expired([old, new], now)
    assert not rule.all_expired([old, ("de", None)], now)
    assert not rule.all_expired(None, now)
    assert not rule.all_expired([], now)


def test_properties_of_partition_expiry_have_defaults():
    found = parse_auto_partition(ON, EXPIRING_SCHEMA, ["day"], lake_enabled=True)
    assert found == AutoPartition("day", 0, "DAY", 7, "UTC")
    texts = {
        **ON,
        "table.auto-partition.key": "HOUR",
        "table.auto-partition.time-unit": "quarter",
        "table.auto-partition.num-retention": "0",
        "table.auto-partition.num-precreate": "0",
        "table.auto-partition.time-zone": "Europe/Berlin",
    }
    assert parse_properties(texts, EXPIRING_SCHEMA, ["day", "hour"]).auto_partition == AutoPartition(
        "hour", 1, "QUARTER", 0, "Europe/Berlin"
    )
    assert parse_properties({}, EXPIRING_SCHEMA, ["day"]).auto_partition is None


@pytest.mark.parametrize(
    ("texts", "partition_by", "message"),
    [
        (ON, [], "no partition columns"),
        (ON, ["day", "hour"], "several partition columns"),
        ({**ON, "table.auto-partition.key": "id"}, ["day"], "a partition column, one of day"),
        ({**ON, "table.auto-partition.key": "nowhere"}, ["day"], "a partition column, one of day"),
        (ON, ["n"], "has type int"),
        ({**ON, "table.auto-partition.time-unit": "MONTH"}, ["day"], "is a DATE, expected DAY"),
        ({**ON, "table.auto-partition.time-unit": "WEEK"}, ["day"], "HOUR, DAY, MONTH, QUARTER or YEAR"),
        ({**ON, "table.auto-partition.num-retention": "-1"}, ["day"], "at least 0"),
        ({**ON, "table.auto-partition.num-precreate": "2"}, ["day"], "partitions are created with their first row"),
        ({**ON, "table.auto-partition.time-zone": "Mars/Base"}, ["day"], "time zone database"),
        ({**ON, "table.auto-partition.time-zone": "../../etc/passwd"}, ["day"], "time zone database"),
        ({**ON, "table.datalake.enabled": "false"}, ["day"], "would be lost"),
        ({"table.auto-partition.time-unit": "WEEK"}, [], "HOUR, DAY"),
        ({"table.auto-partition.enabled": "yes"}, ["day"], "true or false"),
    ],
)
def test_what_cannot_be_is_refused(texts, partition_by, message):
    with pytest.raises(InvalidOptionError, match=message):
        parse_properties(texts, EXPIRING_SCHEMA, partition_by)


def test_they_are_altered_later_and_checked_then(wh):
    table = wh.create_table("t", EXPIRING_SCHEMA.arrow, partition_by=["day"])
    table.alter_properties(ON)
    assert table.properties.auto_partition.column == "day"
    version = table.refresh().version
    for changed in ({"table.datalake.enabled": "false"}, {"table.auto-partition.time-unit": "YEAR"}):
        with pytest.raises(InvalidOptionError):
            table.alter_properties(changed)
    assert table.refresh().version == version
    assert alter_properties(ON, {}, ["table.auto-partition.enabled"]) == {}


def test_zones_are_known_on_hosts_without_a_database_of_them():
    """Properties that name one are read whenever the table is opened."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))["project"]
    assert [name for name in project["dependencies"] if name.startswith("tzdata")]
    code = (
        "from streamhouse_spark.schema.partitioning import parse_auto_partition\n"
        "from streamhouse_spark.schema.table_schema import TableSchema\n"
        "texts = {'table.auto-partition.enabled': 'true', 'table.auto-partition.time-zone': 'Europe/Berlin'}\n"
        "print(parse_auto_partition(texts, TableSchema.of('d DATE'), ('d',), lake_enabled=True).time_zone)"
    )
    environment = {**os.environ, "PYTHONTZPATH": ""}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "Europe/Berlin"
