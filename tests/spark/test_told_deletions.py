"""The changelog of tables without a primary key whose rows are changed, in batches and streams."""

from __future__ import annotations

import re

import pytest

from spark.session import COLUMNS, drain, load, load_stream, rows
from streamhouse_spark.spark import tier

pytestmark = [pytest.mark.spark, pytest.mark.spark41]

KINDS = "id, _change_type"


@pytest.fixture(params=["iceberg", "paimon"])
def table(request, wh):
    """Ten rows; the statements below are three commits behind them."""
    properties = {"table.datalake.format": request.param}
    name = re.sub(r"\W", "_", request.node.name)
    table = wh.create_table(f"told.{name}", COLUMNS, properties=properties)
    table.append(rows(10))
    return table


def change(spark, table):
    name = f"streamhouse.{table.name}"
    spark.sql(f"DELETE FROM {name} WHERE id IN (1, 7)")
    spark.sql(f"UPDATE {name} SET name = 'new' WHERE id = 3")
    spark.sql(f"INSERT INTO {name} (id, name) VALUES (10, 'n10')")


INSERTED = [(number, "insert") for number in range(10)]
CHANGED = [(1, "delete"), (3, "update_after"), (3, "update_before"), (7, "delete"), (10, "insert")]


def by_name(table):
    database, bare = table.name.split(".")
    return f"streamhouse.{database}.`{bare}$changelog`"


def told(frame):
    return sorted((row["id"], row["_change_type"]) for row in frame.select("id", "_change_type").collect())


def test_batches_of_the_changelog_have_each_change_once(spark, wh, table):
    change(spark, table)
    view = f"{table.name}$changelog"
    every = sorted([*INSERTED, *CHANGED])
    for _ in range(2):
        assert told(spark.table(by_name(table))) == told(load(spark, wh, view)) == every
        counted = f"SELECT _change_type, count(*), min(id) FROM {by_name(table)} GROUP BY 1 ORDER BY 1"
        of_kinds = [("delete", 2, 1), ("insert", 11, 0), ("update_after", 1, 3), ("update_before", 1, 3)]
        assert [tuple(row) for row in spark.sql(counted).collect()] == of_kinds
        assert spark.sql(f"SELECT count(*) FROM {by_name(table)}").first()[0] == 15
        of_kinds = {"delete": [7], "update_before": [3], "update_after": [3], "insert": [*range(3, 10), 10]}
        for kind, ids in of_kinds.items():
            filtered = f"SELECT id FROM {by_name(table)} WHERE _change_type = '{kind}' AND _log_offset > 2"
            assert sorted(row.id for row in spark.sql(filtered).collect()) == ids
        offsets = {"startingOffsets": '{"0": 7}', "endingOffsets": '{"0": 10}'}
        assert told(load(spark, wh, view, **offsets)) == sorted([*INSERTED[7:], (7, "delete")])
        tier(spark, wh.url, [table.name])


def test_changes_since_a_time_include_deletions(spark, wh, table):
    view, moment = f"{table.name}$changelog", table.refresh().time_ms + 1
    change(spark, table)
    since = spark.sql(
        f"SELECT id, _change_type FROM {by_name(table)} WHERE _commit_timestamp >= timestamp_millis({moment})"
    )
    assert told(since) == CHANGED
    assert told(load(spark, wh, view, startingTimestamp=str(moment))) == CHANGED
    assert told(load(spark, wh, view, endingTimestamp=str(moment))) == INSERTED
    assert told(load(spark, wh, table.name, readChangeFeed="true", startingTimestamp=str(moment))) == CHANGED


@pytest.mark.parametrize("how", ["by name", "by format"])
def test_streams_of_the_changelog_have_each_change_once(spark, wh, table, checkpoint, how):
    target = wh.create_table(f"{table.name}_changes", "id BIGINT, kind STRING, log_offset BIGINT")

    def run():
        stream = (
            spark.readStream.table(by_name(table))
            if how == "by name"
            else load_stream(spark, wh, f"{table.name}$changelog")
        )
        drain(stream.selectExpr("id", "_change_type AS kind", "_log_offset AS log_offset"), wh, target.name, checkpoint)
        return sorted((row["id"], row["kind"]) for row in target.to_arrow().to_pylist())

    assert run() == INSERTED
    change(spark, table)
    assert run() == sorted([*INSERTED, *CHANGED])
    tier(spark, wh.url, [table.name])
    spark.sql(f"DELETE FROM streamhouse.{table.name} WHERE id = 5")
    last = sorted([*INSERTED, *CHANGED, (5, "delete")])
    assert run() == last, "a batch without a new row"
    assert run() == last


def test_a_plain_stream_names_the_changelog(spark, wh, table, checkpoint):
    target = wh.create_table(f"{table.name}_copy", COLUMNS)
    drain(load_stream(spark, wh, table.name), wh, target.name, checkpoint)
    change(spark, table)
    with pytest.raises(
        Exception, match=r"OFFSETS_TRIMMED: commit \d+ deleted rows .* stream \S+\$changelog, which reports"
    ):
        drain(load_stream(spark, wh, table.name), wh, target.name, checkpoint)
