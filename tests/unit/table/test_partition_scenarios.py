"""Scenarios P1 to P4: partitions are written, expire, are filtered by, and live on in the lake."""

from __future__ import annotations

import datetime as dt

import pytest

from kit.tables import tier
from streamhouse_spark import Warehouse
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.log.gc.retention import plan_trim
from streamhouse_spark.table.system_views import open_view

DAY_MS = 86_400_000
BY_DAY = {"table.auto-partition.enabled": "true", "table.auto-partition.num-retention": "1"}


@pytest.fixture
def wh(memory, world):
    return Warehouse("wh", storage=memory, world=world)


def today(clock) -> dt.date:
    return dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC).date()


def hot_days(table) -> list[str]:
    """The partitions that the hot log of the table still has."""
    found = {part[0] for s in table.refresh().live_segments() for part in s.partitions}
    return sorted(found)


def test_p1_a_partition_comes_with_its_first_row(wh):
    table = wh.create_table("t", "id INT, day STRING", partition_by=["day"], properties=BY_DAY)
    assert table.to_arrow().num_rows == 0
    table.append([{"id": 1, "day": "20260101"}, {"id": 2, "day": "no day at all"}, {"id": 3, "day": None}])
    tier(table)
    assert table.to_arrow().num_rows == table.lake.to_arrow().num_rows == 3
    assert len(table.lake.metadata("partitions")) == 3


def test_p2_old_partitions_leave_the_hot_log_once_the_lake_has_them(wh, clock):
    table = wh.create_table("t", "id INT, day STRING", partition_by=["day"], properties=BY_DAY)
    days = []
    for i in range(4):
        days.append(f"{today(clock):%Y%m%d}")
        table.append([{"id": i, "day": days[-1]}])
        clock.advance(DAY_MS)
    rule = table.properties.auto_partition
    assert plan_trim(table.refresh(), clock.now_ms(), 0, lake_enabled=True, auto_partition=rule) == {}, "not tiered"
    tier(table)
    assert table.maintain().trimmed_to == {0: 3}, "yesterday's is kept, and so is today's"
    assert hot_days(table) == days[3:]
    late = [{"id": 9, "day": days[0]}]
    table.append(late)
    assert table.maintain().trimmed_to == {}, "behind a partition that stays"
    tier(table)
    clock.advance(DAY_MS)
    assert table.maintain().trimmed_to == {0: 5}
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1, 2, 3, 9]
    assert table.to_arrow().num_rows == open_view(table, "changelog").to_arrow().num_rows


def test_p2_consumers_and_an_altered_rule_hold_it_back(wh, clock):
    table = wh.create_table("t", "id INT, day DATE", partition_by=["day"], properties={"table.log.ttl": "0"})
    table.append([{"id": 1, "day": today(clock)}])
    tier(table)
    clock.advance(30 * DAY_MS)
    assert table.maintain().trimmed_to == {}, "there is no rule"
    table.alter_properties({**BY_DAY, "table.auto-partition.num-retention": "40"})
    assert table.maintain().trimmed_to == {}
    table.move_consumer("c", {0: 0})
    table.alter_properties(BY_DAY)
    assert table.maintain().trimmed_to == {}, "a consumer still needs it"
    table.move_consumer("c", {0: 1})
    assert table.maintain().trimmed_to == {0: 1}
    assert table.to_arrow().num_rows == 1


@pytest.mark.parametrize("kind", ["DATE", "INT"])
def test_p3_filters_by_one_of_several_keys(wh, kind):
    table = wh.create_table("t", f"id INT, p {kind}, land STRING", partition_by=["p", "land"])
    values = [dt.date(2026, 1, 1), dt.date(2026, 1, 2)] if kind == "DATE" else [1, 2]
    rows = [{"id": i, "p": values[i % 2], "land": "de" if i < 6 else "fr"} for i in range(12)]
    table.append(rows[:5])
    tier(table)
    table.append(rows[5:])

    def ids(*filters):
        return sorted(table.to_arrow(filter=list(filters))["id"].to_pylist())

    for _ in ("before", "after tiering"):
        assert ids(("p", "=", values[1])) == [1, 3, 5, 7, 9, 11]
        assert ids(("land", "=", "fr")) == list(range(6, 12))
        assert ids(("p", "=", values[0]), ("land", "=", "de")) == [0, 2, 4]
        assert ids(("land", "=", "nowhere")) == []
        tier(table)


def test_p4_an_expired_partition_is_read_from_the_lake(wh, clock):
    table = wh.create_table("t", "id INT, day DATE", partition_by=["day"], properties=BY_DAY)
    first = today(clock)
    table.append([{"id": 1, "day": first}])
    tier(table)
    clock.advance(3 * DAY_MS)
    table.append([{"id": 2, "day": today(clock)}])
    assert table.maintain().trimmed_to == {0: 1}
    assert table.to_arrow(filter=[("day", "=", first)])["id"].to_pylist() == [1]
    assert table.lake.to_arrow()["id"].to_pylist() == [1]
    assert open_view(table, "lake").to_arrow()["id"].to_pylist() == [1]


def test_p4_by_key_lookups_still_find_it(wh, clock, own_cache, monkeypatch):
    table = wh.create_table("t", "id INT, day DATE", primary_key=["id", "day"], partition_by=["day"], properties=BY_DAY)
    first = today(clock)
    table.upsert([{"id": 1, "day": first}])
    tier(table)
    clock.advance(3 * DAY_MS)
    table.upsert([{"id": 2, "day": today(clock)}])
    report = table.maintain()
    assert (report.snapshots, report.trimmed_to) == (1, {0: 1}), "the rows are published first"
    assert table.maintain().snapshots == 0
    close_tablets()
    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(own_cache / "new"))
    assert table.lookup([{"id": 1, "day": first}])["_found"].to_pylist() == [True]
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2]
    assert table.lake.to_arrow()["id"].to_pylist() == [1]
