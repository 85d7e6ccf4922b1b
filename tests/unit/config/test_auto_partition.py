"""Expired partitions: formats, units, zones, and values that cannot be."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from streamhouse_spark import InvalidOptionError
from streamhouse_spark.config.table_properties import alter_properties, parse_properties
from streamhouse_spark.schema.partitioning import AutoPartition, parse_auto_partition, period_at, period_of
from streamhouse_spark.schema.table_schema import TableSchema

SCHEMA = TableSchema.of("id BIGINT, day DATE, hour STRING, n INT")
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


def test_defaults_and_spelling():
    found = parse_auto_partition(ON, SCHEMA, ["day"], lake_enabled=True)
    assert found == AutoPartition("day", 0, "DAY", 7, "UTC")
    texts = {
        **ON,
        "table.auto-partition.key": "HOUR",
        "table.auto-partition.time-unit": "quarter",
        "table.auto-partition.num-retention": "0",
        "table.auto-partition.num-precreate": "0",
        "table.auto-partition.time-zone": "Europe/Berlin",
    }
    assert parse_properties(texts, SCHEMA, ["day", "hour"]).auto_partition == AutoPartition(
        "hour", 1, "QUARTER", 0, "Europe/Berlin"
    )
    assert parse_properties({}, SCHEMA, ["day"]).auto_partition is None


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
        parse_properties(texts, SCHEMA, partition_by)


def test_they_are_altered_later_and_checked_then(wh):
    table = wh.create_table("t", SCHEMA.arrow, partition_by=["day"])
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
