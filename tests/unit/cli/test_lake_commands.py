"""``drop-partition`` and ``set-partitioning``."""

from __future__ import annotations

import datetime as dt

import pytest

DAY = dt.date(2026, 1, 31)


@pytest.fixture
def table(warehouse):
    table = warehouse.create_table("sales.orders", "id BIGINT, day DATE, land STRING", partition_by=["day", "land"])
    table.append([{"id": 1, "day": DAY, "land": "de"}, {"id": 2, "day": DAY, "land": None}, {"id": 3, "day": None}])
    return table


def test_it_asks_drops_and_reports(run, table):
    command = ("drop-partition", "sales.orders", "day=2026-01-31")
    assert "would drop" in run(*command, "--dry-run").stdout
    refused = run(*command, "land=de", stdin="n\n", code=1)
    assert "drop partition (day = 2026-01-31, land = 'de') of sales.orders with 1 row?" in refused.stderr
    assert table.to_arrow().num_rows == 3
    run(*command, "land=de", stdin="y\n")
    assert run(*command, "land=__HIVE_DEFAULT_PARTITION__", "--yes", "-o", "json").document["rows"] == 1
    assert table.to_arrow()["id"].to_pylist() == [3]
    assert run(*command, "--yes", "-o", "json").document["rows"] == 0
    run("verify", "sales.orders")


def test_bad_partitions_are_rejected_and_nothing_is_dropped(run, table):
    assert run("drop-partition", "sales.orders", code=2).stderr
    assert "not a partition column" in run("drop-partition", "sales.orders", "id=1", "--yes", code=1).stderr
    assert "not a value of this type" in run("drop-partition", "sales.orders", "day=soon", "--yes", code=1).stderr
    assert run("drop-partition", "sales.orders$lake", "day=1", "--yes", code=1).stderr.startswith("INVALID_NAME: ")
    assert table.to_arrow().num_rows == 3


def test_values_count_as_they_are_and_once(run, table):
    table.append([{"id": 4, "land": " de"}, {"id": 5, "land": "d=e"}])
    assert run("drop-partition", "sales.orders", "land= de", "--yes", "-o", "json").document["rows"] == 1
    assert run("drop-partition", "sales.orders", " land=d=e", "--yes", "-o", "json").document["rows"] == 1
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2, 3]
    twice = run("drop-partition", "sales.orders", "day=2026-01-31", "day=2026-02-01", "--yes", code=2)
    assert "occurs twice" in twice.stderr
    assert table.to_arrow().num_rows == 3


def test_a_table_is_partitioned_anew(run, table):
    said = run("set-partitioning", "sales.orders", "truncate(2, land), day")
    assert said.stdout == "partitioned sales.orders by truncate(2, land), day\n"
    assert table.refresh().parsed.partitioned_by == ("truncate(2, land)", "day")
    found = run("set-partitioning", "sales.orders", "--none", "-o", "json").document
    expected = {"table": "sales.orders", "partition_by": [], "former_partition_by": ["truncate(2, land)", "day"]}
    assert found == expected
    run("set-partitioning", "sales.orders", "land", "days(day)")
    assert table.refresh().parsed.partitioned_by == ("land", "days(day)")
    for wrong in ((), ("--none", "land")):
        assert run("set-partitioning", "sales.orders", *wrong, code=2).stderr
    assert "unknown transform" in run("set-partitioning", "sales.orders", "weeks(day)", code=1).stderr
    assert table.to_arrow().num_rows == 3
