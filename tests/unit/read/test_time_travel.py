"""Reads as of a time show the columns of then, by the rule of reads as of a version."""

from __future__ import annotations

import pytest

from kit.rows import rows_by_id
from kit.tables import tier
from streamhouse_spark import FormatVersionError, SchemaMismatchError, SnapshotExpiredError
from streamhouse_spark.log import checkpoint
from streamhouse_spark.log.checkpoint import as_stored
from streamhouse_spark.log.history import state_at
from streamhouse_spark.read import time_travel
from streamhouse_spark.read.time_travel import state_as_of
from streamhouse_spark.schema.evolution import SchemaChange, append_schema_change, first_change_after
from streamhouse_spark.write.auto_compaction import compact_inline_rows

LAKES = ["iceberg", pytest.param("paimon", marks=pytest.mark.paimon)]
HOUR_MS = 3_600_000


@pytest.fixture(params=LAKES)
def lake(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["log", "keyed"])
def table(request, wh, own_cache, lake):
    properties = {"table.datalake.format": lake, "table.statistics.columns": "n"}
    key = ["id"] if request.param else []
    return wh.create_table("t", "id BIGINT NOT NULL, n INT, gone STRING", primary_key=key, properties=properties)


def put(table, *rows) -> None:
    (table.upsert if table.state.primary_key else table.append)([*rows])


CHANGES = {
    "added": lambda table: table.add_columns("late INT"),
    "renamed": lambda table: table.rename_column("n", "m"),
    "dropped": lambda table: table.drop_column("gone"),
    "widened": lambda table: table.widen_column("n", "BIGINT"),
    "renamed to each other's names": lambda table: table.alter(rename_columns={"n": "gone", "gone": "n"}),
}


@pytest.mark.parametrize("is_tiered", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_a_time_and_a_version_show_the_same_columns(table, clock, is_tiered, name):
    old = [{"id": 1, "n": 1, "gone": "a"}, {"id": 2, "n": 2, "gone": "b"}]
    put(table, *old)
    if is_tiered:
        tier(table)
    then, version = clock.now_ms(), table.state.version
    clock.advance(1000)
    CHANGES[name](table)
    clock.advance(1000)
    put(table, {"id": 3})
    tier(table)
    at_version, at_time = table.read_version(version), table.to_arrow(as_of_timestamp_ms=then)
    assert at_time.schema.equals(at_version.schema)
    assert rows_by_id(at_time) == rows_by_id(at_version) == old
    assert rows_by_id(table.to_arrow(as_of_timestamp_ms=then, filter=[("n", ">", 1)])) == old[1:]
    assert rows_by_id(table.to_arrow(as_of_timestamp_ms=then, columns=["id"], filter=[("gone", "=", "b")])) == [
        {"id": 2}
    ]
    now = table.to_arrow(as_of_timestamp_ms=clock.now_ms())
    assert now.schema.equals(table.to_arrow().schema)
    assert rows_by_id(now) == rows_by_id(table.to_arrow())
    with pytest.raises(SchemaMismatchError):
        table.to_arrow(as_of_timestamp_ms=then, columns=["late"])


def test_added_columns_need_no_older_record(wh, clock, monkeypatch):
    """So such a read reaches as far back as the rows do."""
    table = wh.create_table("t", "id BIGINT")
    table.append([{"id": 1}])
    moments = [clock.now_ms()]
    for number in range(3):
        clock.advance(1000)
        table.add_columns(f"c{number} INT")
        table.append([{"id": number + 2}])
        moments.append(clock.now_ms())
    monkeypatch.setattr(time_travel, "state_at", None)
    found = [table.to_arrow(as_of_timestamp_ms=moment) for moment in moments]
    assert [one.column_names for one in found] == [["id", *(f"c{i}" for i in range(n))] for n in range(4)]
    assert [one.num_rows for one in found] == [1, 2, 3, 4]


def test_properties_that_speak_of_a_later_column(wh, clock):
    """The newest state cannot be read by columns without it; the state before the change is."""
    table = wh.create_table("t", "id BIGINT")
    table.append([{"id": 1}])
    then = clock.now_ms()
    clock.advance(1000)
    table.add_columns("late INT")
    table.alter_properties({"table.statistics.columns": "late"})
    table.append([{"id": 2, "late": 5}])
    state = state_as_of(table, table.state, then)
    assert (state.version, state.schema.names) == (table.state.schema_changes[0].commit - 1, ("id",))
    assert table.to_arrow(as_of_timestamp_ms=then).to_pylist() == [{"id": 1}]


def test_columns_that_no_kept_record_tells_are_an_error(wh, clock, monkeypatch):
    table = wh.create_table("t", "id BIGINT, n INT")
    table.append([{"id": 1, "n": 1}])
    then = clock.now_ms()
    clock.advance(1000)
    table.rename_column("n", "m")
    later = clock.now_ms()

    def gone(*_):
        raise SnapshotExpiredError("cleaned away")

    monkeypatch.setattr(time_travel, "state_at", gone)
    with pytest.raises(SnapshotExpiredError, match=rf"commit 3 changed the columns later.*choose {later} ms or later"):
        table.to_arrow(as_of_timestamp_ms=then)
    assert table.to_arrow(as_of_timestamp_ms=later).to_pylist() == [{"id": 1, "m": 1}]


def test_rows_that_were_merged_since_are_read_as_they_were(wh, clock):
    table = wh.create_table("t", "id BIGINT, n INT", properties={"table.datalake.enabled": "false"})
    for number in range(3):
        table.append([{"id": number, "n": number}])
    then = clock.now_ms()
    clock.advance(1000)
    table.rename_column("n", "m")
    table.append([{"id": 9, "m": 9}])
    table.log.checkpoint(table.refresh())
    compact_inline_rows(table)
    assert table.to_arrow(as_of_timestamp_ms=then)["n"].to_pylist() == [0, 1, 2]


def test_a_checkpoint_has_the_changes_and_is_refused_by_older_versions(wh, clock, monkeypatch):
    table = wh.create_table("t", "id BIGINT, n INT")
    assert table.state.schema_changes == ()
    clock.advance(1000)
    table.rename_column("n", "m")
    clock.advance(1000)
    table.alter_properties({"table.log.ttl": "1h"})
    state = table.refresh()
    assert state.schema_changes == (SchemaChange(1, 2, state.created_ms + 1000),)
    assert as_stored(state) == state
    assert state_at(table.log, table.storage, 1).schema_changes == ()
    data = checkpoint._encode_checkpoint(state)
    monkeypatch.setattr(checkpoint, "NEWEST_VERSION", checkpoint.PARTITIONINGS_VERSION)
    with pytest.raises(FormatVersionError, match="upgrade streamhouse-spark"):
        checkpoint._decode_checkpoint(data, state.table_uuid, state.version, "here")


def test_a_copy_of_a_version_has_no_earlier_columns(wh, clock):
    table = wh.create_table("t", "id BIGINT, n INT")
    table.rename_column("n", "m")
    table.append([{"id": 1, "m": 1}])
    clone = wh.clone_table("t", "copied")
    assert clone.state.schema_changes == ()
    branch = table.branch(table.create_branch("audit").name)
    assert branch.refresh().schema_changes == ()


def test_the_first_change_after_a_time():
    changes = append_schema_change((), 1, 1, 5, 100)
    assert changes == ()
    for number, time_ms in ((1, 100), (2, 200), (3, 200)):
        changes = append_schema_change(changes, number, number + 1, 10 * number, time_ms)

    def commit(now_ms: int, timestamp_ms: int) -> int | None:
        found = first_change_after(changes, now_ms, timestamp_ms)
        return found.commit if found is not None else None

    assert [commit(300, ms) for ms in (0, 99, 100, 150, 199, 200, 500)] == [10, 10, 20, 20, 20, None, None]
    assert [commit(150, ms) for ms in (99, 100, 149, 150)] == [10, 20, 20, None], "a clock that ran ahead"


@pytest.mark.parametrize("is_tiered", [False, True])
def test_other_partitions_and_columns_since_lose_no_row_of_a_filter(wh, clock, is_tiered):
    table = wh.create_table("t", "id BIGINT, d STRING, e STRING", partition_by=["d"])
    table.append([{"id": i, "d": "ab"[i % 2], "e": "xyz"[i % 3]} for i in range(12)])
    if is_tiered:
        tier(table)
    then = clock.now_ms()
    clock.advance(1000)
    table.set_partitioning(["e"])
    table.add_columns("late INT")
    clock.advance(1000)
    table.append([{"id": 100, "d": "a", "e": "x", "late": 1}])
    tier(table)
    for where, step in (([("d", "=", "a")], 2), ([("e", "=", "x")], 3), (None, 1)):
        found = table.to_arrow(as_of_timestamp_ms=then, filter=where)
        assert found.column_names == ["id", "d", "e"]
        assert sorted(found["id"].to_pylist()) == list(range(0, 12, step))
