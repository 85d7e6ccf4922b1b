"""A lake that was rolled back, damaged or deleted is rebuilt from the log; what cannot be is refused."""

from __future__ import annotations

import pytest
from pyiceberg.manifest import clear_manifest_cache

from kit.change_replay import changes
from kit.rows import ids
from streamhouse_spark import (
    FormatVersionError,
    InvalidOptionError,
    OffsetsTrimmedError,
    SnapshotExpiredError,
    StreamhouseError,
)
from streamhouse_spark.lake.tiering import record_snapshot
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.lake.tiering.plan import TieringTask
from streamhouse_spark.log import checkpoint
from streamhouse_spark.log.actions import Trim
from streamhouse_spark.read.offset_scan import require_undeleted
from streamhouse_spark.table import drop_partition

HOUR_MS = 3_600_000
LAKES = ["iceberg", "paimon"]


def tier(table, between=None) -> None:
    run = run_tasks_locally(table.storage, table.settings, table.world)

    def run_tasks(tasks):
        written = run([TieringTask.from_json(task.to_json()) for task in tasks])
        if between is not None:
            between()
        return written

    TieringJob(table.log, table.open_lake(), world=table.world).run(run_tasks)


def made(wh, lake, *, keyed=False, buckets=2, **more):
    properties = {"table.datalake.format": lake, "table.log.ttl": "1h"}
    if not keyed:
        properties["bucket.key"] = "id"
    schema = "id BIGINT NOT NULL, n BIGINT"
    return wh.create_table("t", schema, primary_key=["id"] * keyed, buckets=buckets, properties=properties, **more)


def lose(table) -> None:
    """Delete the whole lake table by hand."""
    lose_at(table, table.state.lake_location)


def lose_at(table, location) -> None:
    for info in table.storage.list(f"{location}/"):
        table.storage.delete(info.key)


def healthy(table, expected) -> None:
    """Union read, tiering, lake read, maintenance: all of it, with these rows."""
    assert ids(table.to_arrow()) == expected, "before the next round"
    tier(table)
    assert ids(table.lake.to_arrow()) == expected
    assert ids(table.to_arrow()) == expected
    table.maintain()
    again = max(expected) + 1
    row = [{"id": again, "n": 0}]
    table.upsert(row) if table.state.primary_key else table.append(row)
    tier(table)
    assert ids(table.lake.to_arrow()) == ids(table.to_arrow()) == [*expected, again]


@pytest.mark.parametrize("lake", LAKES)
@pytest.mark.parametrize("keyed", [False, True])
def test_a_lake_that_was_deleted(wh, own_cache, lake, keyed):
    table = made(wh, lake, keyed=keyed)
    for start in (0, 10):
        rows = [{"id": i, "n": i} for i in range(start, start + 10)]
        table.upsert(rows) if keyed else table.append(rows)
        tier(table)
    former = table.state.lake_location
    lose(table)
    with pytest.raises(StreamhouseError):
        table.to_arrow()
    planned = table.retier(dry_run=True)
    assert table.refresh().lake_location == former
    report = table.retier()
    assert (planned.rows, planned.lost_rows) == (report.rows, report.lost_rows) == (20, 0)
    assert report.lake_location == table.state.lake_location != former
    healthy(table, list(range(20)))
    table.retier()
    assert table.state.lake_location != report.lake_location
    healthy(table, list(range(21)))


@pytest.mark.parametrize("lake", LAKES)
def test_a_keyed_table_whose_log_was_trimmed_begins_with_its_snapshots_by_key(wh, own_cache, clock, lake):
    table = made(wh, lake, keyed=True)
    table.upsert([{"id": i, "n": 0} for i in range(20)])
    table.upsert([{"id": i, "n": 1} for i in range(10)])
    table.delete([{"id": i} for i in range(3)])
    tier(table)
    for number in (30, 31):
        clock.advance(200 * HOUR_MS)
        table.upsert([{"id": number, "n": 0}])
        tier(table)
        table.maintain()
    assert any(log.start for log in table.refresh().buckets.values()), "nothing was trimmed"
    table.upsert([{"id": 4, "n": 9}, {"id": 32, "n": 0}])
    table.delete([{"id": 5}])
    lose(table)
    assert table.retier().lost_rows == 0
    expected = [3, 4, *range(6, 20), 30, 31, 32]
    healthy(table, expected)
    assert {row["id"]: row["n"] for row in table.lake.to_arrow().to_pylist()}[4] == 9


@pytest.mark.parametrize("lake", LAKES)
def test_trimmed_rows_are_refused_with_numbers_and_given_up_where_that_is_said(wh, lake):
    table = made(wh, lake, buckets=1)
    table.append([{"id": i, "n": i} for i in range(10)])
    table.append([{"id": i, "n": i} for i in range(10, 20)])
    tier(table)
    table.log.commit(lambda *_: [Trim({0: 7})])
    before = table.refresh().version
    for dry_run in (False, True):
        with pytest.raises(OffsetsTrimmedError, match=r"7 rows .*bucket 0: offsets .*0, 7.*allow_loss"):
            table.retier(dry_run=dry_run)
    assert table.refresh().version == before
    assert ids(table.to_arrow()) == list(range(20)), "nothing was changed"
    report = table.retier(allow_loss=True)
    assert (report.rows, report.lost_rows) == (13, 7)
    healthy(table, list(range(7, 20)))


def partitioned(wh, lake):
    """Rows 1 to 4 in the lake, of which those of partition 'a', 1 and 3, were dropped."""
    table = wh.create_table(
        "p",
        "id BIGINT, d STRING",
        partition_by=["d"],
        properties={"table.datalake.format": lake, "table.log.ttl": "1h"},
    )
    table.append([{"id": 1, "d": "a"}, {"id": 2, "d": "b"}])
    table.append([{"id": 3, "d": "a"}, {"id": 4, "d": "b"}])
    tier(table)
    table.drop_partition({"d": "a"})
    return table


def whole(table, *expected) -> None:
    """The table and its lake have these rows, before and after the next round."""
    assert ids(table.to_arrow()) == [*expected]
    tier(table)
    assert ids(table.lake.to_arrow()) == ids(table.to_arrow()) == [*expected]
    table.append([{"id": 9, "d": "a"}])
    tier(table)
    assert ids(table.lake.to_arrow()) == ids(table.to_arrow()) == [*expected, 9]
    assert table.state.num_rows == len(expected) + 1


def test_rows_of_dropped_partitions_stay_dropped(wh):
    table = partitioned(wh, "iceberg")
    table.append([{"id": 5, "d": "a"}])
    lose(table)
    assert table.retier(dry_run=True).returned_rows == table.retier().returned_rows == 0
    whole(table, 2, 4, 5)
    table.retier()
    whole_again = [2, 4, 5, 9]
    assert ids(table.to_arrow()) == whole_again
    tier(table)
    assert ids(table.lake.to_arrow()) == whole_again


@pytest.mark.paimon
def test_they_stay_dropped_in_a_paimon_lake(wh):
    table = partitioned(wh, "paimon")
    table.append([{"id": 5, "d": "a"}])
    before = table.refresh().version
    assert table.retier(dry_run=True).returned_rows == table.retier().returned_rows == 0
    whole(table, 2, 4, 5)
    table.retier()
    whole_again = [2, 4, 5, 9]
    assert ids(table.to_arrow()) == whole_again
    tier(table)
    assert ids(table.lake.to_arrow()) == whole_again
    assert [(c["id"], c["_change_type"]) for c in changes(table, before, table.state.version)] == [
        (5, "insert"),
        (9, "insert"),
    ]


@pytest.mark.paimon
def test_a_stream_that_read_rows_of_a_dropped_partition_is_told(wh):
    table = partitioned(wh, "paimon")
    state = table.refresh()
    require_undeleted(state, state.ends, state.version, who="the stream", advice="begin again")
    table.retier()
    with pytest.raises(OffsetsTrimmedError, match="that the stream has read, starting with offset 0"):
        require_undeleted(table.refresh(), state.ends, state.version, who="the stream", advice="begin again")


def test_rows_of_a_dropped_partition_that_the_log_gave_up_are_none_to_come_back(wh):
    table = partitioned(wh, "iceberg")
    table.log.commit(lambda *_: [Trim({0: 3})])
    assert [d.rows[0].range for d in table.state.dropped_rows.named] == []
    with pytest.raises(OffsetsTrimmedError, match="3 rows were trimmed from the hot log"):
        table.retier()
    assert table.retier(allow_loss=True).returned_rows == 0
    whole(table, 4)


def test_a_drop_that_died_before_its_record_is_named_by_the_next_round(wh, monkeypatch):
    monkeypatch.setattr(drop_partition, "_record_drop", lambda *_: True)
    table = partitioned(wh, "iceberg")
    assert not table.refresh().dropped_rows.named
    tier(table)
    (deletion,) = table.refresh().dropped_rows.named
    assert deletion.rows[0].offsets().tolist() == [0, 2]
    table.retier()
    whole(table, 2, 4)


def test_rows_that_no_record_names_are_not_brought_back_unasked(wh, monkeypatch):
    """Such as those of a partition that an older version of the package dropped."""
    monkeypatch.setattr(record_snapshot, "find_partition_drops", lambda *_: [])
    table = partitioned(wh, "iceberg")
    with pytest.raises(OffsetsTrimmedError, match="2 rows of dropped partitions"):
        table.retier()
    assert table.retier(allow_loss=True).returned_rows == 2
    table.drop_partition({"d": "a"})
    whole(table, 2, 4)


def test_a_file_of_another_engine_may_have_the_rows(wh):
    table = wh.create_table("p", "id BIGINT, d STRING", partition_by=["d"])
    table.append([{"id": 1, "d": "a"}, {"id": 2, "d": "b"}, {"id": 3, "d": "b"}])
    tier(table)
    clear_manifest_cache()  # tables of other tests have the same names of files
    table.open_lake().binding.load().delete("id = 3")  # writes the file of partition b again
    table.drop_partition({"d": "a"})
    assert table.refresh().dropped_rows.named, "its own files tell which rows went"
    assert table.retier(dry_run=True).returned_rows == 0
    table.drop_partition({"d": "b"})
    with pytest.raises(OffsetsTrimmedError, match="of dropped partitions"):
        table.retier()


@pytest.mark.parametrize("trimmed", [0, 4])
def test_deleted_rows_stay_deleted(wh, trimmed):
    table = made(wh, "iceberg", buckets=1)
    table.append([{"id": i, "n": i} for i in range(10)])
    table.delete(where=[("id", "=", 1)])
    tier(table)
    table.delete(where=[("id", "in", [2, 5, 6])])
    tier(table)
    if trimmed:
        table.log.commit(lambda *_: [Trim({0: trimmed})])
        with pytest.raises(OffsetsTrimmedError, match="4 rows were trimmed from the hot log"):
            table.retier()
    lose(table)
    assert table.retier(allow_loss=bool(trimmed)).returned_rows == 0
    healthy(table, [i for i in range(trimmed, 10) if i not in (1, 2, 5, 6)])


def test_a_checkpoint_with_dropped_rows_is_refused_by_older_versions(wh, monkeypatch):
    table = partitioned(wh, "iceberg")
    state = table.refresh()
    assert checkpoint.as_stored(state) == state
    data = checkpoint._encode_checkpoint(state)
    monkeypatch.setattr(checkpoint, "NEWEST_VERSION", checkpoint.ARCHIVE_VERSION)
    with pytest.raises(FormatVersionError, match="upgrade streamhouse-spark"):
        checkpoint._decode_checkpoint(data, state.table_uuid, state.version, "here")


@pytest.mark.parametrize("lake", LAKES)
def test_deleted_rows_are_none_that_come_back(wh, lake):
    table = made(wh, lake)
    table.append([{"id": i, "n": i} for i in range(10)])
    tier(table)
    table.delete(where=[("id", "in", [2, 3])])
    tier(table)
    assert table.retier(dry_run=True).returned_rows == 0
    table.delete(where=[("id", "=", 4)])
    assert table.retier().returned_rows == 0
    healthy(table, [0, 1, *range(5, 10)])


@pytest.mark.parametrize("lake", LAKES)
def test_a_round_that_is_under_way_does_not_bring_the_former_lake_back(wh, other_process, lake):
    table = made(wh, lake)
    table.append([{"id": i, "n": i} for i in range(10)])
    tier(table)
    table.append([{"id": i, "n": i} for i in range(10, 20)])
    slow = other_process().table("t")
    retiered = []

    def once() -> None:
        if not retiered:
            retiered.append(table.retier())

    tier(slow, between=once)
    assert table.refresh().lake_location == retiered[0].lake_location
    assert ids(table.to_arrow()) == list(range(20))
    healthy(table, list(range(20)))


@pytest.mark.parametrize("lake", LAKES)
def test_the_lake_of_a_truncated_table_is_rebuilt(wh, lake):
    table = made(wh, lake)
    table.append([{"id": i, "n": i} for i in range(10)])
    tier(table)
    table.truncate()
    table.append([{"id": i, "n": i} for i in range(50, 60)])
    tier(table)
    lose(table)
    assert table.retier().rows == 10
    healthy(table, list(range(50, 60)))


def test_what_has_no_lake_to_build(wh):
    table = wh.create_table("t", "id BIGINT", properties={"table.datalake.enabled": "false"})
    with pytest.raises(InvalidOptionError, match=r"table\.datalake\.enabled is false"):
        table.retier()


def test_the_former_lake_goes_with_the_table(wh, clock, store):
    table = made(wh, "iceberg")
    table.append([{"id": 1, "n": 1}])
    tier(table)
    former = table.state.lake_location
    table.retier()
    tier(table)
    places = (former, table.state.lake_location)
    table.log.checkpoint(table.refresh())
    assert all(store.list_names(f"{place}/") for place in places)
    wh.drop_table("t")
    for _ in range(3):
        clock.advance(25 * HOUR_MS)
        wh.clean_dropped()
    assert not [info.key for place in places for info in store.list(f"{place}/") if info.key.endswith(".parquet")]


@pytest.mark.parametrize("lake", LAKES)
@pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
def test_versions_from_before_are_read_from_the_former_lake(wh, own_cache, lake, keyed):
    """Also where the log gave its rows up, and another column came."""
    table = made(wh, lake, keyed=keyed, buckets=1)
    put = table.upsert if keyed else table.append
    put([{"id": i, "n": i} for i in range(10)])
    tier(table)
    put([{"id": 10, "n": 10}])
    version, expected = table.refresh().version, table.to_arrow()
    table.create_tag("before", version)
    table.log.commit(lambda *_: [Trim({0: 10})])
    trimmed = table.refresh().version
    table.retier(allow_loss=True)
    table.add_columns("late INT")
    put([{"id": 11, "n": 11, "late": 1}])
    tier(table)
    assert len(table.state.former_lakes) == 1
    for number in (version, "before", trimmed):
        found = table.read_version(number)
        assert found.schema.equals(expected.schema)
        assert ids(found) == ids(expected), number
        assert ids(table.read_version(number, filter=[("id", ">", 8)])) == [9, 10]
    assert 11 in ids(table.to_arrow())


@pytest.mark.parametrize("lake", LAKES)
def test_a_former_lake_that_is_gone_is_an_error_that_says_so(wh, lake):
    table = made(wh, lake)
    table.append([{"id": 1, "n": 1}])
    in_log = table.refresh().version
    tier(table)
    tiered = table.refresh().version
    former = table.state.lake_location
    table.retier()
    lose_at(table, former)
    with pytest.raises(SnapshotExpiredError, match=rf"rebuilt later .*at {former} was deleted; restore its files"):
        table.read_version(tiered)
    assert ids(table.read_version(in_log)) == ids(table.to_arrow()) == [1]
