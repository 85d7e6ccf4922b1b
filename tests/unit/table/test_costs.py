"""The estimate of a table's costs, from its own log."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.faulty_storage import FaultyStorage
from kit.tables import tier
from streamhouse_spark import InvalidOptionError, SnapshotExpiredError, Warehouse
from streamhouse_spark.core.warehouse_layout import segment_key
from streamhouse_spark.log.archive.pages import read_page
from streamhouse_spark.read import archive_scan
from streamhouse_spark.storage.request_metrics import NO_REQUESTS
from streamhouse_spark.table import costs
from streamhouse_spark.table.costs import GIB, CostModelInput, Prices, estimate

HOUR_MS = 3_600_000
FREE = {"puts_usd_per_1000": 0, "gets_usd_per_1000": 0, "stored_usd_per_gib_month": 0}


def test_an_estimate_equals_one_by_hand():
    found = estimate(CostModelInput(86_400, 0, hot_bytes=GIB, lake_bytes=9 * GIB, looks_per_day=1000))
    assert found.puts_per_day == pytest.approx(86_400 * costs.COMMIT_PUTS)
    assert found.gets_per_day == pytest.approx(86_400 * costs.COMMIT_GETS + 1000)
    assert found.puts_usd == pytest.approx(found.puts_per_day * 30 * 0.005 / 1000)
    assert found.gets_usd == pytest.approx(found.gets_per_day * 30 * 0.0004 / 1000)
    assert found.stored_usd == pytest.approx(0.23)
    assert found.total_usd == pytest.approx(found.puts_usd + found.gets_usd + found.stored_usd)


def test_rounds_bring_their_own_requests_and_those_of_upkeep():
    without, one, two = (estimate(CostModelInput(0, rounds, buckets=4)).puts_per_day for rounds in (0, 1, 2))
    assert without == 0
    assert two - one == pytest.approx(costs.ROUND_PUTS + costs.ROUND_LISTS + 4 * costs.ROUND_PUTS_PER_BUCKET)
    assert one > costs.MAINTENANCE_RUNS_PER_DAY


def test_given_prices_replace_some():
    assert Prices.of({}) == Prices()
    found = Prices.of({"gets_usd_per_1000": 1})
    assert (found.gets_usd_per_1000, found.puts_usd_per_1000) == (1, Prices().puts_usd_per_1000)
    assert found.name.startswith("given")


@pytest.mark.parametrize(
    "given",
    [{"gets": 1}, {"gets_usd_per_1000": "1"}, {"gets_usd_per_1000": -1}, {"gets_usd_per_1000": float("nan")},
     {"gets_usd_per_1000": True}, {"name": "x"}, {1: 1}],
)  # fmt: skip
def test_impossible_prices_are_refused(given):
    with pytest.raises(InvalidOptionError, match="price"):
        Prices.of(given)


def test_an_estimate_follows_the_pace_of_the_last_day(wh, clock):
    table = wh.create_table("t", "id BIGINT", buckets=2)
    for _ in range(300):  # two days ago
        table.append([{"id": 1}])
    clock.advance(47 * HOUR_MS)
    for _ in range(10):
        table.append([{"id": 1}])
        clock.advance(HOUR_MS)
    found = table.costs().workload
    assert found.commits_per_day == pytest.approx(24, rel=0.2)
    assert found.rounds_per_day == 0
    assert found.buckets == 2
    assert found.hot_bytes > 0
    assert found.objects_per_commit == 0


def test_a_young_table_goes_on_as_it_began(wh, clock):
    table = wh.create_table("t", "id BIGINT")
    for _ in range(20):
        clock.advance(HOUR_MS / 2)
        table.append([{"id": 1}])
        tier(table)
    found = table.costs()
    assert found.workload.rounds_per_day == pytest.approx(48, rel=0.2)
    assert found.workload.commits_per_day == pytest.approx(96, rel=0.2)
    assert found.workload.lake_bytes > 0
    assert table.costs(FREE).estimate.total_usd == 0
    assert found.to_json()["estimate"]["total_usd"] == found.estimate.total_usd


def test_an_idle_table_costs_its_bytes(wh, clock):
    table = wh.create_table("t", "id BIGINT")
    table.append([{"id": 1}])
    clock.advance(100 * HOUR_MS)
    found = table.costs()
    assert found.workload.commits_per_day == found.estimate.puts_per_day == found.estimate.gets_per_day == 0
    assert found.estimate.total_usd == found.estimate.stored_usd > 0


def test_a_local_disk_counts_nothing(warehouse_path):
    table = Warehouse(warehouse_path).create_table("t", "id BIGINT")
    table.append([{"id": 1}])
    assert table.costs().requests == NO_REQUESTS


def test_large_appends_have_objects(wh, clock):
    table = wh.create_table("t", "id BIGINT, v STRING")
    for number in range(8):
        clock.advance(HOUR_MS)
        table.append([{"id": number, "v": str(i) * 500} for i in range(1000)])
    assert table.costs().workload.objects_per_commit >= 0.8  # the record that made the table has none


def test_records_that_are_gone_are_not_asked_for_one_by_one(memory, world, clock):
    """The requests grow with the logarithm of the commits."""
    counting = FaultyStorage(memory)
    table = Warehouse("wh", storage=counting, world=world).create_table(
        "t", "id BIGINT", properties={"table.log.ttl": "1h"}
    )
    for _ in range(400):
        table.append([{"id": 1}])
        clock.advance(1000)
    counting.trace.clear()
    table.costs()
    assert len(counting.trace) <= 15


PAGE = Path(__file__).parents[3] / "docs" / "operate" / "costs.md"
DAY = 86_400
ROUNDS = 480


def test_the_page_says_what_the_estimate_says():
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    months = [row for row in rows if len(row) == 4 and row[2].replace(".", "").isdigit()]
    assert len(months) == 5
    for events, written, commits, usd in months:
        objects = 4 if "4 objects" in written else 0
        rounds = ROUNDS if events != "0" else 0
        work = CostModelInput(float(commits) * DAY, rounds, buckets=4, objects_per_commit=objects)
        assert float(usd) == pytest.approx(estimate(work).total_usd, rel=0.1, abs=1), written
    freshness = {"`10s`": 10, "`1min`": 60, "`3min`": 180, "`1h`": 3600}
    found = {row[0]: float(row[1]) for row in rows if row[0] in freshness}
    assert found == {
        name: pytest.approx(estimate(CostModelInput(0, DAY / seconds, buckets=4)).total_usd, rel=0.1, abs=0.6)
        for name, seconds in freshness.items()
    }
    assert CostModelInput(0, 0, looks_per_day=43_200).looks_per_day * 30 / 1000 * Prices().gets_usd_per_1000 < 0.6


def test_changes_that_outlive_the_log_are_stored_too(wh, clock, own_cache):
    properties = {"table.datalake.enabled": "false", "table.log.ttl": "2h", "table.changelog.retention": "100h"}
    table = wh.create_table("t", "id BIGINT", primary_key=["id"], properties=properties)
    table.upsert([{"id": number} for number in range(1000)])
    assert table.costs().workload.archive_bytes == 0
    clock.advance(3 * HOUR_MS)
    table.maintain()
    (page,) = table.refresh().archive.pages
    found = table.costs()
    (segment,) = read_page(table.storage, table.state, page.uuid).segments
    stored = table.storage.size_bytes(segment_key(table.uuid, segment.uuid))
    assert found.workload.archive_bytes == segment.size_bytes <= stored
    assert found.estimate.stored_usd == pytest.approx(
        (found.workload.hot_bytes + segment.size_bytes) / GIB * Prices().stored_usd_per_gib_month
    )


def test_pages_that_are_joined_meanwhile(wh, clock, own_cache, monkeypatch):
    table = wh.create_table("t", "id BIGINT", primary_key=["id"], properties={"table.changelog.retention": "100h"})
    state = table.refresh()
    looks = iter([SnapshotExpiredError("joined"), []])

    def pages(*_):
        found = next(looks)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(archive_scan, "read_pages", pages)
    assert archive_scan.count_archived_bytes(table, state) == 0
    monkeypatch.setattr(archive_scan, "read_pages", _gone)
    with pytest.raises(SnapshotExpiredError):
        archive_scan.count_archived_bytes(table, state)


def _gone(*_):
    raise SnapshotExpiredError("joined again")
