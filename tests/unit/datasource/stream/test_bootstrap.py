"""The beginning of a stream of changes after the log was trimmed, and its repetition."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kit.tables import TableCase
from property.stream_driver import Query
from streamhouse_spark import CorruptDataError, OffsetsTrimmedError, SnapshotExpiredError, Warehouse
from streamhouse_spark.config.spark_options import parse_stream_read_options
from streamhouse_spark.datasource.stream.batch_limits import count_files_within
from streamhouse_spark.datasource.stream.bootstrap import initial_offset
from streamhouse_spark.datasource.stream.stream_offset import BootstrapPosition
from streamhouse_spark.kv import kv_snapshots, tablet

HOUR_MS = 3600 * 1000
DAY_MS = 24 * HOUR_MS
LIMIT = {"maxoffsetspertrigger": "4"}


@pytest.fixture(autouse=True)
def _tiny_files(monkeypatch, own_cache):
    """Each row is a file."""
    monkeypatch.setattr(kv_snapshots, "SEGMENT_BYTES", 1)
    monkeypatch.setattr(kv_snapshots, "CHANGES_MIN", 1)
    monkeypatch.setattr(tablet, "ITEMS_PER_STEP", 1)


TABLE = TableCase(
    "t",
    "id INT, n INT",
    primary_key=["id"],
    buckets=2,
    properties={"table.log.ttl": "1h", "table.datalake.enabled": "false"},
)


@pytest.fixture
def wh(memory, world):
    return Warehouse("wh", storage=memory, world=world)


def put(table, *ids, n=0):
    table.upsert([{"id": i, "n": n} for i in ids])


def trim(table, clock, age_ms=2 * HOUR_MS):
    clock.advance(age_ms)
    report = table.maintain()
    assert report.trimmed_to
    return report


def initial(table, **options):
    return initial_offset(table.refresh(), parse_stream_read_options(options))


def ids(rows):
    return sorted(row["id"] for row in rows)


def kinds(rows):
    return [(row["_change_type"], row["id"], row["n"]) for row in rows]


def folded(rows):
    found = {}
    for row in rows:
        if row["_change_type"] in ("insert", "update_after"):
            found[row["id"]] = row["n"]
        elif row["_change_type"] == "delete":
            del found[row["id"]]
    return found


def held(table):
    return {row["id"]: row["n"] for row in table.to_arrow().to_pylist()}


def test_where_a_stream_begins(table, clock):
    put(table, *range(8))
    put(table, 1, 2, n=1)
    whole = initial(table)
    assert (whole.offsets, whole.rows) == ({0: 0, 1: 0}, None)
    assert whole.to_json()["version"] == 1
    trim(table, clock)
    version = table.refresh().version
    put(table, 3, n=3)
    state = table.refresh()
    behind = {bucket: snapshot.offset for bucket, snapshot in state.snapshots.items()}
    begin = initial(table)
    files = sum(len(snapshot.segments) for snapshot in state.snapshots.values())
    assert begin.rows == BootstrapPosition(state.version, files)
    assert state.version > version
    assert begin.offsets == begin.initial == behind
    assert behind != state.ends
    starts = {bucket: log.start for bucket, log in state.buckets.items()}
    for given, offsets in (
        ("earliest", starts),
        ("latest", state.ends),
        ('{"0": -1}', {0: state.ends[0], 1: starts[1]}),
    ):
        assert initial(table, startingoffsets=given).offsets == offsets
        assert initial(table, startingoffsets=given).rows is None
    assert initial(table, startingtimestamp="2100-01-01T00:00:00Z", failondataloss="false").rows is None


def test_no_rows_are_left(table, clock):
    put(table, 1, 2, 3, 4)
    table.delete([1, 2, 3, 4])
    trim(table, clock)
    begin = initial(table)
    assert begin.rows is None
    assert begin.offsets == table.state.ends


def test_rows_are_inserts_before_the_changes_behind_them(wh, table, clock):
    put(table, *range(6))
    put(table, 1, n=1)
    trim(table, clock)
    put(table, 2, n=2)
    table.delete([5])
    query = Query("t$changelog", includemetadata="true")
    query.run(wh)
    first, changes = query.rows[:6], query.rows[6:]
    assert sorted(kinds(first)) == [("insert", i, int(i == 1)) for i in range(6)]
    offsets = {bucket: snapshot.offset for bucket, snapshot in table.state.snapshots.items()}
    assert all(row["_log_offset"] == offsets[row["_bucket"]] - 1 for row in first)
    assert {row["_commit_timestamp"] for row in first} == {None}
    assert sorted(kinds(changes)) == [("delete", 5, 0), ("update_after", 2, 2), ("update_before", 2, 0)]
    assert folded(query.rows) == held(table)
    put(table, 7)
    query.run(wh)
    assert len(query.batches) == 2
    assert kinds(query.batches[1]) == [("insert", 7, 0)]


@pytest.mark.parametrize("limit", [LIMIT, {"maxbytespertrigger": "1"}], ids=["rows", "bytes"])
def test_limits_take_files_one_by_one(wh, table, clock, limit):
    put(table, *range(10))
    trim(table, clock)
    put(table, 3, n=3)
    query = Query("t$changelog", **limit)
    query.run(wh)
    sizes = [len(rows) for rows in query.batches.values()]
    of_rows = sizes[:3] if limit is LIMIT else sizes[:10]
    assert of_rows == ([4, 4, 2] if limit is LIMIT else [1] * 10)
    assert ids(row for number in range(len(of_rows)) for row in query.batches[number]) == list(range(10))
    assert [row for rows in list(query.batches.values())[len(of_rows) :] for row in kinds(rows)] == [
        ("update_before", 3, 0),
        ("update_after", 3, 3),
    ]


def test_a_batch_is_read_again_when_newer_snapshots_are_there(wh, table, clock):
    put(table, *range(10))
    trim(table, clock)
    query = Query("t$changelog", consumerid="q", **LIMIT)
    for _ in range(3):
        query.run(wh, batches=1, unfinished=True)
        query.run(wh, batches=1)
        put(table, *range(10), n=query.committed)
        table.delete([9 - query.committed])
        before = table.refresh().snapshots
        clock.advance(2 * HOUR_MS)
        table.maintain()
        assert any(table.state.snapshots[bucket].offset > before[bucket].offset for bucket in before)
    query.run(wh)
    assert folded(query.rows) == held(table)


def test_rows_are_kept_for_a_day_whatever_is_committed(wh, table, clock):
    """A floor voids the records that say what the snapshots were, and still they are found."""
    put(table, *range(10))
    trim(table, clock)
    query = Query("t$changelog", consumerid="q", **LIMIT)
    query.run(wh, batches=1)
    version = table.state.version
    for n in range(150):
        put(table, n % 10, n=n + 1)
    for _ in range(2):
        clock.advance(10 * HOUR_MS)
        table.maintain()
    assert table.log.refresh_low_watermark() > version
    query.run(wh, batches=1)
    query.run(wh, batches=1, unfinished=True)
    query.run(wh)
    assert folded(query.rows) == held(table)


def test_pyspark_41_gives_everything_at_once(wh, table, clock):
    """It asks for the end without saying where the batch begins, and for the end of the first batch first."""
    put(table, 1, 2, 3)
    trim(table, clock)
    put(table, 2, n=2)
    query = Query("t$changelog", consumerid="q")
    reader = query.reader(wh)
    end = reader.latestOffset()
    start = reader.initialOffset()
    assert len(query._rows(reader, start, end)) == 5
    again = query.reader(wh)  # the query died within the batch
    put(table, *range(9), n=3)
    assert table.maintain().snapshots
    assert again.initialOffset() != start
    assert len(query._rows(again, again.initialOffset(), end)) == 5
    following = query._rows(again, end, again.latestOffset())
    assert len(following) == 12
    assert all(row["_commit_timestamp"] for row in following)


def test_pyspark_41_when_the_log_is_trimmed_between_its_questions(wh, table, clock):
    put(table, 1, 2, 3)
    query = Query("t$changelog")
    reader = query.reader(wh)
    end = reader.latestOffset()
    trim(table, clock)
    assert ids(query._rows(reader, reader.initialOffset(), end)) == [1, 2, 3]
    put(table, 1, 2, 3, n=1)
    trim(table, clock)
    again = query.reader(wh)
    with pytest.raises(OffsetsTrimmedError, match=r"the log was trimmed since.* new checkpointLocation"):
        again.partitions(again.initialOffset(), end)


def test_rows_that_were_deleted_meanwhile(wh, table, clock, caplog):
    put(table, *range(10))
    trim(table, clock)
    strict, lax = (Query("t$changelog", failondataloss=text, **LIMIT) for text in ("true", "false"))
    for query in (strict, lax):
        query.run(wh, batches=1)
    put(table, *range(10), n=1)
    trim(table, clock)
    put(table, 3, n=3)
    for _ in range(3):
        clock.advance(2 * DAY_MS)
        table.maintain()
    with pytest.raises(SnapshotExpiredError, match=r"t: initial rows of this stream .*checkpointLocation"):
        strict.run(wh)
    assert len(strict.batches) == 1
    lax.run(wh)
    assert "skipping them" in caplog.text
    assert len(lax.batches[0]) == 4
    assert kinds(lax.rows[4:])[-2:] in ([], [("update_before", 3, 1), ("update_after", 3, 3)])


def test_a_truncation_ends_the_stream(wh, table, clock):
    put(table, *range(10))
    trim(table, clock)
    strict, lax = (Query("t$changelog", failondataloss=text, **LIMIT) for text in ("true", "false"))
    for query in (strict, lax):
        query.run(wh, batches=1)
        query.run(wh, batches=1, unfinished=True)
    table.truncate()
    put(table, 77)
    with pytest.raises(OffsetsTrimmedError, match="truncated or overwritten"):
        strict.run(wh)
    lax.batches.clear()  # those of the batch that is repeated are gone
    lax.run(wh)
    assert kinds(lax.rows) == [("insert", 77, 0)]


def test_a_binlog_begins_with_rows_without_a_before(wh, table, clock):
    put(table, *range(6))
    trim(table, clock)
    put(table, 2, n=2)
    query = Query("t$binlog")
    query.run(wh)
    found = [(row["_change_type"], row["before"], row["after"]["id"], row["after"]["n"]) for row in query.rows]
    assert sorted(found[:6]) == [("insert", None, i, 0) for i in range(6)]
    assert found[6:] == [("update", {"id": 2, "n": 0}, 2, 2)]


def test_another_table_of_files_is_refused(wh, table, clock):
    put(table, *range(6))
    trim(table, clock)
    reader = Query("t$changelog").reader(wh)
    begin = initial(table)
    wrong = replace(begin, rows=replace(begin.rows, num_files=2))
    end = replace(wrong, rows=wrong.rows.read_to(2))
    with pytest.raises(CorruptDataError, match=r"starts with 2 files .* has 6 files; restore the checkpoint"):
        reader.partitions(json.loads(json.dumps(wrong.to_json())), end.to_json())


def test_how_many_files_a_batch_takes(table, clock):
    put(table, *range(6))
    trim(table, clock)
    files = [split for snapshot in table.state.snapshots.values() for split in snapshot.segments]
    size_bytes = files[0].size_bytes
    assert count_files_within(files, max_rows=None, max_bytes=None) == 6
    assert count_files_within(files, max_rows=4, max_bytes=None) == 4
    assert count_files_within(files, max_rows=100, max_bytes=2 * size_bytes) == 2
    assert count_files_within(files, max_rows=3, max_bytes=5 * size_bytes) == 3
    assert count_files_within(files, max_rows=1, max_bytes=1) == 1
    assert count_files_within([], max_rows=1, max_bytes=1) == 0
