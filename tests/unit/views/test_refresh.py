"""Refreshes beside others who write and drop: their statements run in DuckDB, so no JVM is needed."""

from __future__ import annotations

import importlib
import sys
from unittest import mock

import pytest

from kit.tables import tier
from streamhouse_spark import MissingExtraError, TableNotFoundError
from streamhouse_spark.table import refresh_commit
from streamhouse_spark.views import refresh
from view_histories.history import from_the_sources
from view_histories.house import House, create_and_refresh
from view_histories.tables import HOUR_MS


@pytest.fixture
def house(own_cache):
    house = House(1)
    with house.open():
        yield house


def keyed(house, name="db.k", **more):
    properties = {"table.datalake.enabled": "false", **more}
    return house.others.create_table(name, "id BIGINT, cust INT", primary_key=["id"], buckets=1, properties=properties)


def log(house, **more):
    """A log table with a lake, by days."""
    properties = {"bucket.key": "id", "table.log.ttl": "1h", **more}
    return house.others.create_table(
        "db.o", "id BIGINT NOT NULL, day INT", buckets=1, partition_by=["day"], properties=properties
    )


def day(number, *ids):
    return [{"id": i, "day": number} for i in ids]


def view_of(house, query, name="db.v"):
    process = house.process
    return create_and_refresh(process.session, process.connection, name, query, "1min", "incremental", {})


def rows_of(view):
    return sorted(tuple(row.values()) for row in view.table.to_arrow().to_pylist())


def decided_then(once):
    """Do something behind the first decision which versions a refresh reads."""
    left = [once]

    def next_step(*args, **given):
        step = refresh_commit.make_next_step(*args, **given)
        if left:
            left.pop()()
        return step

    return mock.patch.object(refresh, "make_next_step", next_step)


@pytest.mark.parametrize("rows", [4, 1])
def test_a_source_that_is_made_again_while_it_is_read(house, rows):
    """A version of the new table is not the old one's version of that number, which may not be there either."""
    source = keyed(house)
    source.upsert([{"id": 1, "cust": 1}])
    view = view_of(house, "SELECT max(id) AS m, count(*) AS n FROM streamhouse.db.k")
    source.upsert([{"id": 2, "cust": 2}])

    def made_again():
        house.others.drop_table("db.k")
        for number in range(rows):
            (keyed(house) if not number else house.table("db.k")).upsert([{"id": 10 + number, "cust": 3}])

    with decided_then(made_again), from_the_sources():
        report = view.refresh()
    assert "dropped and recreated" in report.whole_because
    assert [row[-2:] for row in rows_of(view)] == [(9 + rows, rows)]
    assert view.describe().lineage.sources[0].uuid == house.table("db.k").uuid


BY_DAY = "SELECT day, count(*) AS n FROM streamhouse.db.o GROUP BY day"


def test_a_lake_that_is_built_anew_gives_up_rows(house):
    source = log(house)
    source.append(day(1, 1, 2, 3))
    view = view_of(house, BY_DAY)
    tier(source)
    house.pass_ms(2 * HOUR_MS)
    source.append(day(2, 4))
    source.maintain()
    source.retier(allow_loss=True)
    source.refresh()
    left = source.to_arrow().num_rows
    assert left < 4, "rows were trimmed"
    assert "had its lake rebuilt" in view.refresh().whole_because
    assert sum(row[-1] for row in rows_of(view)) == left


@pytest.mark.paimon
def test_a_lake_that_is_built_anew_is_without_dropped_partitions(house):
    """Those from before stay away, and the new lake counts the rows that it lacks from nothing on."""
    source = log(house, **{"table.datalake.format": "paimon"})
    source.append([*day(1, 1, 2, 3), *day(2, 4), *day(3, 5)])
    source.drop_partition({"day": 1})
    view = view_of(house, BY_DAY)
    source.retier(allow_loss=True)
    source.drop_partition({"day": 2})
    assert "had its lake rebuilt" in view.refresh().whole_because
    assert [row[-2:] for row in rows_of(view)] == [(3, 1)]


def test_a_source_without_rows_before_updates_that_is_emptied(house):
    source = keyed(house, **{"table.changelog.image": "WAL"})
    source.upsert([{"id": 1, "cust": 1}, {"id": 2, "cust": 1}])
    view = view_of(house, "SELECT cust, count(*) AS n FROM streamhouse.db.k GROUP BY cust")
    source.truncate()
    assert "was truncated" in view.refresh().whole_because
    assert rows_of(view) == []


def test_a_source_whose_lake_is_built_anew_while_it_is_read_is_read_again(house):
    """Its version is no longer there for the whole query, and a newer one is."""
    source = log(house)
    source.append(day(1, 1, 2))
    view = view_of(house, BY_DAY)
    source.delete(where=[("id", "=", 1)])
    tier(source)
    with decided_then(source.retier), from_the_sources():
        report = view.refresh()
    assert "rows deleted" in report.whole_because
    assert [row[-2:] for row in rows_of(view)] == [(1, 1)]


def test_a_source_of_an_unused_clause_changes_nothing(house):
    """Its changes change nothing, and each refresh learns its version."""
    keyed(house).upsert([{"id": 1, "cust": 1}])
    unused = keyed(house, "db.unused")
    unused.upsert([{"id": 1, "cust": 1}])
    view = view_of(house, "WITH u AS (SELECT id FROM streamhouse.db.unused) SELECT id FROM streamhouse.db.k")
    unused.upsert([{"id": 2, "cust": 2}, {"id": 3, "cust": 2}])
    unused.delete([1])
    report = view.refresh()
    assert (report.whole_because, report.rows_written) == (None, 0)
    assert report.versions["db.unused"] == unused.refresh().version
    assert rows_of(view) == [(1,)]


def test_a_source_that_is_made_again_before_rows_of_it_are_looked_up(house):
    source = keyed(house)
    source.upsert([{"id": 1, "cust": 1}, {"id": 2, "cust": 1}])
    joined = "FROM streamhouse.db.k a LEFT JOIN streamhouse.db.k b ON a.cust = b.id"
    view = view_of(house, f"SELECT a.id, b.cust {joined}")
    source.upsert([{"id": 2, "cust": 2}])

    def made_again():
        house.others.drop_table("db.k")
        keyed(house).upsert([{"id": 7, "cust": 7}])

    with decided_then(made_again):
        report = view.refresh()
    assert "dropped and recreated" in report.whole_because
    assert rows_of(view) == [(7, 7)]


def test_a_source_that_is_gone(house):
    source = keyed(house)
    source.upsert([{"id": 1, "cust": 1}])
    view = view_of(house, "SELECT a.id, b.cust FROM streamhouse.db.k a JOIN streamhouse.db.k b ON a.cust = b.id")
    source.upsert([{"id": 2, "cust": 2}])
    with decided_then(lambda: house.others.drop_table("db.k")), pytest.raises(TableNotFoundError, match=r"db\.k"):
        view.refresh()


def test_without_sqlglot_the_error_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("streamhouse_spark.views")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlglot", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'streamhouse-spark\[spark\]'"):
        importlib.import_module("streamhouse_spark.views.create")
