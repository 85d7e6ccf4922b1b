"""Changes that outlive the hot log, on Spark: batches, streams, CHANGES and kept queries."""

from __future__ import annotations

import datetime as dt
import re

import pytest

import streamhouse_spark as sh
from spark.session import drain, in_python, load, load_stream
from streamhouse_spark.core.warehouse_layout import commit_key
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.table import refresh_commit

pytestmark = [pytest.mark.spark, pytest.mark.spark41]
KEEPING = {"table.log.ttl": "1ms", "table.datalake.enabled": "false", "table.changelog.retention": "30 d"}
COLUMNS = "id BIGINT, name STRING, n INT"
needs_changes = pytest.mark.skipif(spark_versions.spark_version() < (4, 2), reason="PySpark 4.1 has no CHANGES")


@pytest.fixture
def table(wh, request):
    name = re.sub(r"\W+", "_", request.node.name.removeprefix("test_")).strip("_")[:50]
    return wh.create_table(f"archived.{name}", COLUMNS, primary_key=["id"], buckets=2, properties=KEEPING)


def write(table, ids, n):
    table.upsert([{"id": i, "name": f"n{i}", "n": n} for i in ids])


def archive(table, *, forgets=False):
    """Leave all changes so far to the archive, and delete the records that told of them, which nobody else knows."""
    ends = {bucket: end for bucket, end in table.refresh().ends.items() if end}
    table.maintain()
    assert {bucket: log.start for bucket, log in table.refresh().buckets.items() if log.start} == ends
    if not forgets:
        return
    for number in range(1, table.refresh().archive.last_commit + 1):
        table.storage.delete(commit_key(table.uuid, number))


@pytest.fixture
def trimmed(table):
    """Ten changes in the archive, of versions 2, 3 and 4, and one in the log."""
    write(table, range(4), 0)
    write(table, range(2), 1)
    table.delete([2, 3])
    archive(table, forgets=True)
    write(table, [9], 2)
    return table


def listed(frame, *columns):
    return sorted((tuple(row) for row in frame.select(*columns).collect()), key=repr)


CHANGES = sorted(
    [("insert", i, 0) for i in range(4)]
    + [(kind, i, n) for i in range(2) for n, kind in enumerate(("update_before", "update_after"))]
    + [("delete", i, 0) for i in (2, 3)]
    + [("insert", 9, 2)],
    key=repr,
)
SHOWN = ("_change_type", "id", "n")


def test_a_batch_reads_changes_from_the_archive(spark, wh, trimmed):
    name = f"{trimmed.name}$changelog"
    database, bare = name.split(".")
    assert listed(spark.table(f"streamhouse.{database}.`{bare}`"), *SHOWN) == CHANGES
    assert spark.table(f"streamhouse.{database}.`{bare}`").where("n = 1").count() == 2


@pytest.mark.long
def test_archived_changes_are_bounded_by_offsets_and_times(spark, wh, trimmed):
    name = f"{trimmed.name}$changelog"
    database, bare = name.split(".")
    assert listed(load(spark, wh, name, startingOffsets="earliest"), *SHOWN) == CHANGES
    with in_python(spark):
        assert listed(load(spark, wh, name), *SHOWN) == CHANGES
    ends = trimmed.refresh().archive
    some = load(
        spark, wh, name, startingOffsets='{"0": 1, "1": 1}', endingOffsets=f'{{"0": {ends.end(0)}, "1": {ends.end(1)}}}'
    )
    assert some.count() == 8
    last = trimmed.refresh().time_ms
    assert listed(load(spark, wh, name, startingTimestamp=str(last)), *SHOWN) == [("insert", 9, 2)]
    binlog = spark.table(f"streamhouse.{database}.`{bare.replace('changelog', 'binlog')}`")
    assert binlog.groupBy("_change_type").count().collect()
    assert sorted(row[0] for row in binlog.where("_change_type = 'update'").select("after.id").collect()) == [0, 1]


@pytest.mark.long
def test_a_stream_reads_changes_from_the_archive(spark, wh, trimmed, checkpoint):
    copy = wh.create_table(f"{trimmed.name}_copy", COLUMNS, primary_key=["id"], buckets=2)

    def run(**options):
        changes = load_stream(spark, wh, f"{trimmed.name}$changelog", **options)
        drain(changes.drop("_log_offset", "_commit_timestamp"), wh, copy.name, checkpoint, rowKindColumn="_change_type")

    def rows(table):
        return sorted(tuple(row.values()) for row in table.to_arrow().to_pylist())

    run()
    assert rows(copy) == rows(trimmed) == [(0, "n0", 1), (1, "n1", 1), (9, "n9", 2)]
    write(trimmed, [0, 5], 3)
    write(trimmed, [1], 4)
    archive(trimmed)  # behind the position of the stream
    write(trimmed, [6], 5)
    run()
    assert rows(copy) == rows(trimmed)


@needs_changes
def test_changes_statement_reads_the_archive(spark, trimmed):
    name = f"streamhouse.{trimmed.name}"

    def changes(clause):
        return listed(spark.sql(f"SELECT * FROM {name} CHANGES {clause}"), "_commit_version", *SHOWN)

    newest = trimmed.refresh().version
    kinds = {"update_before": "update_preimage", "update_after": "update_postimage"}
    found = changes("FROM VERSION 2")
    assert sorted((row[1:] for row in found), key=repr) == sorted(
        ((kinds.get(k, k), *r) for k, *r in CHANGES), key=repr
    )
    assert {row[0] for row in found} == {2, 3, 4, newest}
    assert changes("FROM VERSION 3 TO VERSION 3") == [row for row in found if row[0] == 3]
    shown = spark.sql(f"SELECT * FROM {name} CHANGES FROM VERSION 2")
    at = dict(listed(shown, "_commit_version", "_commit_timestamp"))
    assert len(set(at.values())) == 4
    start = at[3].astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S.%f+00:00")
    assert changes(f"FROM TIMESTAMP '{start}'") == [row for row in found if row[0] >= 3]


@needs_changes
def test_a_stream_of_changes(spark, wh, trimmed, checkpoint):
    copy = wh.create_table(f"{trimmed.name}_copy", "v BIGINT, kind STRING, id BIGINT, n INT")

    def run():
        rows = spark.readStream.option("startingVersion", "2").changes(f"streamhouse.{trimmed.name}")
        drain(rows.selectExpr("_commit_version v", "_change_type kind", "id", "n"), wh, copy.name, checkpoint)

    run()
    assert copy.to_arrow().num_rows == len(CHANGES)
    write(trimmed, [0], 3)
    archive(trimmed)
    run()
    found = copy.to_arrow().to_pylist()
    assert len(found) == len(CHANGES) + 2
    assert len({row["v"] for row in found}) == 5


@pytest.mark.long
def test_a_kept_query_is_not_computed_anew(spark, table, monkeypatch):
    really = refresh_commit._read_records

    def between(source, after, newest):
        """The records of archived changes are no longer kept."""
        return None if after < source.refresh().archive.last_commit else really(source, after, newest)

    monkeypatch.setattr(refresh_commit, "_read_records", between)
    write(table, range(6), 1)
    query = f"SELECT n, count(*) AS c FROM streamhouse.{table.name} GROUP BY n"
    view = sh.materialize(spark, f"{table.name}_kept", query)
    write(table, [0, 1], 2)
    table.delete([5])
    archive(table)
    write(table, [7], 2)
    report = view.refresh()
    assert (report.changed, report.whole_because) == (True, None)
    assert sorted((row["n"], row["c"]) for row in view.table.to_arrow().to_pylist()) == [(1, 3), (2, 3)]
    table.add_columns("c INT")  # which the archive tells, too
    write(table, [8], 1)
    archive(table)
    assert view.refresh().whole_because == f"{table.name} no longer retains the records of its changes"
    assert sorted((row["n"], row["c"]) for row in view.table.to_arrow().to_pylist()) == [(1, 4), (2, 3)]
