"""Refreshes of views with ``step_rows``, whose statements run in DuckDB."""

from __future__ import annotations

import json
import logging
import sys
from unittest import mock

import pytest
from pyspark.errors import PySparkException

from faults.faulty_storage import Crash
from kit.tables import tier
from streamhouse_spark import InvalidOptionError
from streamhouse_spark.config.table_properties import VIEW, ViewDefinition
from streamhouse_spark.log.transactions import Lineage, SourceVersion, lineage_of
from streamhouse_spark.table import refresh_commit
from streamhouse_spark.views import local_reads, refresh, temp_views
from view_histories.history import typed_commit
from view_histories.house import House, create_and_refresh
from view_histories.tables import HOUR_MS

HOT = {"table.datalake.enabled": "false"}
BY_DAY = "SELECT day, count(*) AS n FROM streamhouse.db.o GROUP BY day"
BY_CUST = "SELECT cust, count(*) AS n, min(id) AS lo FROM streamhouse.db.k GROUP BY cust"


@pytest.fixture
def house(own_cache):
    house = House(1)
    with house.open(), mock.patch.object(refresh, "commit_step", typed_commit):
        yield house


def log(house, *sizes, **properties):
    table = house.others.create_table(
        "db.o", "id BIGINT NOT NULL, day INT", buckets=2, properties={**HOT, **properties}
    )
    for size in sizes:
        table.append([{"id": number, "day": number % 3} for number in range(size)])
    return table


def keyed(house, *sizes):
    table = house.others.create_table("db.k", "id BIGINT, cust INT", primary_key=["id"], buckets=2, properties=HOT)
    for place, size in enumerate(sizes):
        table.upsert([{"id": place * 3 + number, "cust": number % 4} for number in range(size)])
    return table


def view_of(house, query, step_rows, mode="incremental"):
    process = house.process
    return create_and_refresh(process.session, process.connection, "db.v", query, "1min", mode, {}, step_rows)


def counts(view):
    return {row["day"]: row["n"] for row in view.table.to_arrow().to_pylist()}


def test_each_step_of_a_first_refresh_stores_its_lineage(house):
    log(house, 4, 4, 4, 30)
    view = view_of(house, BY_DAY, 10)
    lineage = view.table.inspect.lineage().to_pylist()
    assert [row["source_offsets"] is None for row in lineage] == [False] * 4 + [True]
    taken = [sum(json.loads(row["source_offsets"]).values()) for row in lineage[:-1]]
    assert taken == [8, 12, 22, 32], "commits that fit, and then 30 rows in parts"
    assert sum(counts(view).values()) == 42
    found = view.describe()
    assert (found.step_rows, found.rows_behind, found.commits_behind) == (10, {"db.o": 0}, {"db.o": 0})


def test_a_later_refresh_that_finds_much(house, monkeypatch):
    source = log(house, 6)
    view = view_of(house, BY_DAY, 5)
    for _ in range(4):
        source.append([{"id": 1, "day": 1}] * 4)
    assert view.describe().rows_behind == {"db.o": 16}
    monkeypatch.setattr(local_reads, "MOSTLY_CHANGED_ROWS_MIN", 1)  # in steps the query is not computed for that
    report = view.refresh()
    assert (report.steps, report.whole_because, report.changed) == (4, None, True)
    assert (report.rows_written, report.rows_deleted) == (4, 0), "of all steps together"
    assert counts(view) == {0: 2, 1: 18, 2: 2}
    assert view.refresh() == refresh.RefreshReport(changed=False)


def test_much_that_one_step_takes_is_computed_as_without_steps(house, monkeypatch):
    source = log(house, 6)
    view = view_of(house, BY_DAY, 100)
    monkeypatch.setattr(local_reads, "MOSTLY_CHANGED_ROWS_MIN", 1)
    source.append([{"id": 1, "day": 1}] * 16)
    assert view.refresh().whole_because == refresh.MOSTLY_CHANGED


def test_a_crash_between_steps_loses_none_that_is_done(house):
    log(house, *[4] * 10)
    left = [3]

    def commit_step(view, step, rows, gone):
        left[0] -= 1
        if left[0] < 0:
            raise Crash("between two steps")
        return typed_commit(view, step, rows, gone)

    with mock.patch.object(refresh, "commit_step", commit_step), pytest.raises(Crash):
        view_of(house, BY_DAY, 8)
    house.restart(elsewhere=True)
    assert sum(row["n"] for row in house.table("db.v").to_arrow().to_pylist()) == 24
    report = house.process.refresher("db.v")
    assert (report.steps, report.whole_because) == (2, None)
    assert sum(row["n"] for row in house.table("db.v").to_arrow().to_pylist()) == 40


def test_a_source_that_grows_faster_than_steps_are_taken(house):
    """The refresh ends with all rows that were there when it began."""
    source = log(house, *[4] * 5)
    view = view_of(house, BY_DAY, 4)
    source.append([{"id": 1, "day": 5}] * 12)

    def commit_step(view, step, rows, gone):
        source.append([{"id": 1, "day": 7}] * 9)
        return typed_commit(view, step, rows, gone)

    with mock.patch.object(refresh, "commit_step", commit_step):
        report = view.refresh()
    assert report.steps == 3
    assert counts(view)[5] == 12


def test_each_step_over_a_keyed_table_ends_at_a_version(house):
    source = keyed(house, 8, 8, 8, 8)
    view = view_of(house, BY_CUST, 9)
    versions = [row["source_version"] for row in view.table.inspect.lineage().to_pylist()]
    assert versions == sorted(set(versions))
    assert len(versions) > 2
    assert sum(row["n"] for row in view.table.to_arrow().to_pylist()) == source.to_arrow().num_rows


def test_rows_that_are_in_the_lake_alone(house):
    source = log(house, *[6] * 8, **{"table.datalake.enabled": "true", "table.log.ttl": "1h"})
    tier(source)
    house.pass_ms(2 * HOUR_MS)
    source.maintain()
    assert sum(log.start for log in source.refresh().buckets.values()) == 48
    view = view_of(house, BY_DAY, 20)
    assert len(view.table.inspect.lineage()) == 3
    assert sum(counts(view).values()) == 48


def test_versions_that_are_gone_by_the_time_they_are_read(house, caplog):
    source = keyed(house, 8, 8, 8, 8)
    real = temp_views.TempViews._read_version

    def version(self, name, number):
        if name == "db.k" and number < source.refresh().version:
            raise PySparkException("SnapshotExpiredError: it is gone")
        return real(self, name, number)

    with mock.patch.object(temp_views.TempViews, "_read_version", version), caplog.at_level(logging.WARNING):
        view = view_of(house, BY_CUST, 9)
    assert "one step reads all remaining rows" in caplog.text
    assert len(view.table.inspect.lineage()) == 1
    assert sum(row["n"] for row in view.table.to_arrow().to_pylist()) == source.to_arrow().num_rows


@pytest.mark.parametrize("step_rows", [0, -1, 1.5, True, "10"])
def test_numbers_of_rows_that_are_none(house, step_rows):
    log(house, 1)
    with pytest.raises(InvalidOptionError, match="whole number of rows above 0"):
        view_of(house, BY_DAY, step_rows)
    assert house.others.find_table("db.v") is None


def test_the_whole_query_at_each_refresh_has_no_steps(house):
    log(house, 1)
    with pytest.raises(InvalidOptionError, match="leave step_rows out"):
        view_of(house, BY_DAY, 10, mode="full")
    assert house.others.find_table("db.v") is None


def test_what_older_releases_read(house):
    """Of views without steps the same texts as before; a part of a version is nothing that they pass over."""
    log(house, 1)
    view = view_of(house, BY_DAY, None)
    text = view.table.state.properties[VIEW]
    assert "step_rows" not in text
    assert ViewDefinition.of({VIEW: text}, "v").step_rows is None
    whole = SourceVersion("s", "u", 3, "a", {0: 4, 1: 2})
    part = SourceVersion("s", "u", 3, "a", {0: 1, 1: 2}, 0, is_cut=True)
    assert "is_cut" not in Lineage((whole,)).to_text()
    assert "is_cut" in Lineage((whole, part)).to_text()
    assert Lineage.from_text(Lineage((whole, part)).to_text()) == Lineage((whole, part))
    assert lineage_of(Lineage((part,)).transaction(1)) == Lineage((part,))


def test_what_people_see_of_steps(house, caplog, monkeypatch, capsys):
    log(house, 4, 4, 4)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with caplog.at_level(logging.INFO):
        view_of(house, BY_DAY, 5)
    shown = ["db.v: step 1 is done, 8 rows of its sources remain", "step 2 is done, 4 rows"]
    assert all(text in caplog.text for text in shown)
    assert all(text in capsys.readouterr().err for text in shown[:1])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    house.table("db.o").append([{"id": 1, "day": 1}] * 9)
    house.process.refresher("db.v")
    assert "step" not in capsys.readouterr().err


def test_another_refresh_that_is_faster_amid_the_steps(house):
    source = log(house, *[4] * 6)
    view = view_of(house, BY_DAY, 4)
    source.append([{"id": 1, "day": 9}] * 12)
    once = [True]

    def commit_step(table, step, rows, gone):
        if once:
            once.clear()
            with mock.patch.object(refresh, "commit_step", typed_commit):
                second = house.second()
                assert second.refresher("db.v").steps == 3
                second.close()
        return typed_commit(table, step, rows, gone)

    with mock.patch.object(refresh, "commit_step", commit_step):
        assert view.refresh().changed is False
    assert refresh_commit.last_refresh(house.table("db.v").refresh())[0] == 9
    assert counts(view)[9] == 12
