"""Tiering on Spark: one call, and services beside each other."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from kit.waiting import wait_for
from spark.session import COLUMNS, ids, load, rows
from streamhouse_spark import InvalidOptionError, SchemaMismatchError, TableNotFoundError, Warehouse
from streamhouse_spark.spark import TieringService, optimize, tier

pytestmark = pytest.mark.spark


@pytest.fixture
def own(tmp_path):
    """A warehouse of this test's own, for services that serve whole warehouses."""
    return Warehouse(str(tmp_path / "warehouse"))


def lake_ids(table):
    return sorted(table.lake.to_arrow(columns=["id"])["id"].to_pylist())


@pytest.mark.always
@pytest.mark.spark41
def test_tier_moves_everything_and_reports(spark, own):
    one = own.create_table("a.one", COLUMNS, buckets=3, properties={"bucket.key": "id"})
    two = own.create_table("b.two", COLUMNS)
    own.create_table("b.without", COLUMNS, properties={"table.datalake.enabled": "false"}).append(rows(3))
    one.append(rows(3000))
    two.append(rows(10))
    reports = tier(spark, own.url)
    assert {name: (r.rows, len(r.snapshots)) for name, r in reports.items()} == {"a.one": (3000, 1), "b.two": (10, 1)}
    assert lake_ids(one) == list(range(3000))
    assert ids(one) == list(range(3000))
    again = tier(spark, own.url, ["a.one"])["a.one"]
    assert (again.rows, again.snapshots) == (0, ())
    assert one.lake.to_arrow().schema.names == ["id", "name", "amount"]  # only the user's columns


@pytest.mark.spark41
def test_tasks_lay_the_rows_of_a_lake_out(spark, own):
    table = own.create_table("a.laid", COLUMNS, buckets=3, properties={"bucket.key": "id"})
    for turn in range(3):
        table.append(rows(900, start=900 * turn))
        tier(spark, own.url)
    assert optimize(spark, own.url, "a.laid", "name", dry_run=True).rows == 2700
    assert len(table.lake.files()) == 9
    report = optimize(spark, own.url, "a.laid", "name", where="id >= 0")
    assert (report.rows, report.files_removed, report.files_added) == (2700, 9, 3)
    assert lake_ids(table) == ids(table) == list(range(2700))
    assert optimize(spark, own.url, "a.laid", "name").rows == 0
    with pytest.raises(SchemaMismatchError, match="there is no column 'nope'"):
        optimize(spark, own.url, "a.laid", "name", where="nope = 1")


def test_tier_refuses_what_has_no_lake(spark, own):
    own.create_table("a.without", COLUMNS, properties={"table.datalake.enabled": "false"})
    with pytest.raises(InvalidOptionError, match=r"table a\.without has no lake"):
        tier(spark, own.url, ["a.without"])
    with pytest.raises(TableNotFoundError):
        tier(spark, own.url, ["a.absent"])
    with pytest.raises(TableNotFoundError):
        TieringService(spark, own.url, ["a.absent"]).run()


@pytest.mark.long
def test_two_services_share_several_tables(spark, own):
    """Writers go on meanwhile; every row is in the lake once, no table starves, later tables are found."""
    fresh = {"table.datalake.freshness": "1s"}
    tables = [own.create_table(f"busy.t{i}", COLUMNS, properties=fresh) for i in range(3)]
    seen = []
    services = [TieringService(spark, own.url, on_report=seen.append) for _ in range(2)]
    threads = [threading.Thread(target=service.run) for service in services]
    for thread in threads:
        thread.start()
    try:
        written = 0
        while written < 10 or not {t.name for t in tables} <= {r.table for r in seen}:
            assert written < 3000
            for table in tables:
                table.append(rows(20, 20 * written))
            written += 1
            if written == 5:
                late = own.create_table("busy.late", COLUMNS, properties=fresh)
                late.append(rows(7))
            time.sleep(0.1)
        wait_for(lambda: all(_tiered(t) for t in [*tables, late]), "a round of every table")
        status = {s.table: s for s in services[0].status()}
        assert set(status) == {"busy.t0", "busy.t1", "busy.t2", "busy.late"}
        assert all(s.error is None for service in services for s in service.status())
    finally:
        for service in services:
            service.stop()
        for thread in threads:
            thread.join(240)
    assert not any(thread.is_alive() for thread in threads)
    for table in tables:
        assert lake_ids(table) == ids(table) == list(range(20 * written))
        assert load(spark, own, table.name).count() == 20 * written
    assert sum(r.rows for r in seen) == 60 * written + 7


def _tiered(table):
    state = table.refresh()
    return all(state.lake_offset(b) == log.end for b, log in state.buckets.items())


def test_error_of_one_table_does_not_stop_the_others(spark, own, caplog):
    fresh = {"table.datalake.freshness": "100ms"}
    broken, good = (own.create_table(f"mixed.{name}", COLUMNS, properties=fresh) for name in ("broken", "good"))
    for table in (broken, good):
        table.append(rows(5))
    tier(spark, own.url)
    metadata = Path(own.url, broken.state.lake_location, "metadata")
    shutil.move(metadata, f"{metadata}.away")
    good.append(rows(5, 5))
    broken.append(rows(5, 5))
    service = TieringService(spark, own.url)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        wait_for(lambda: _tiered(good) and any(s.error for s in service.status()), "a round and an error")
        status = {s.table: s for s in service.status()}
        assert status["mixed.broken"].doing == "failed"
        assert "CORRUPT_DATA" in status["mixed.broken"].error
        assert status["mixed.good"].error is None
        shutil.rmtree(metadata, ignore_errors=True)
        shutil.move(f"{metadata}.away", metadata)
        wait_for(lambda: _tiered(broken), "a round of the mended table")
    finally:
        service.stop()
        thread.join(240)
    assert lake_ids(broken) == lake_ids(good) == list(range(10))
    assert "mixed.broken" in caplog.text


@pytest.mark.long
def test_a_service_on_spark_maintains_its_tables(spark, own):
    properties = {
        "table.datalake.freshness": "100ms",
        "table.log.ttl": "1ms",
        "table.datalake.auto-compaction": "true",
        "table.datalake.auto-expire-snapshot": "true",
    }
    table = own.create_table("kept.tidy", COLUMNS, properties=properties)
    for i in range(6):
        table.append(rows(5, 5 * i))
        tier(spark, own.url)
    service = TieringService(spark, own.url, maintenance_ms=1000)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        wait_for(lambda: table.refresh().buckets[0].start == 30 and len(table.lake.files()) == 1, "maintenance")
    finally:
        service.stop()
        thread.join(240)
    assert ids(table) == lake_ids(table) == list(range(30))


@pytest.mark.long
def test_sigterm_ends_the_service(spark, own):
    own.create_table("a.some", COLUMNS).append(rows(3))
    service = TieringService(spark, own.url)
    before = signal.getsignal(signal.SIGTERM)

    def end() -> None:
        wait_for(lambda: signal.getsignal(signal.SIGTERM) is not before, "the service's own handler")
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=end)
    thread.start()
    service.run()
    assert signal.getsignal(signal.SIGTERM) is before
    thread.join()


def test_stop_event_of_the_caller(spark, own):
    own.create_table("a.some", COLUMNS)
    stop = threading.Event()
    thread = threading.Thread(target=TieringService(spark, own.url).run, args=(stop,))
    thread.start()
    stop.set()
    thread.join(240)
    assert not thread.is_alive()
