"""Deleting: what nobody needs goes after the grace, everything else stays, and a dry run touches nothing."""

from __future__ import annotations

import pyarrow as pa
import pytest

from faults.sim import sim_world
from kit.tables import TableCase
from streamhouse_spark import InvalidOptionError, SnapshotExpiredError, Table, TableNotFoundError, Warehouse
from streamhouse_spark.core.warehouse_layout import (
    checkpoints_prefix,
    commits_prefix,
    manifest_key,
    segment_key,
    segments_prefix,
)
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS, GRACE_MS_MIN
from streamhouse_spark.log.segments.scan import plan_range, read_split
from streamhouse_spark.read import scan_executor
from streamhouse_spark.write.auto_compaction import compact_inline_rows, compact_small_segments

PLAIN = {"table.datalake.enabled": "false", "table.log.ttl": "0"}


@pytest.fixture
def wh(memory, world):
    """In memory, where files are as old as the simulated clock says."""
    return Warehouse("wh", storage=memory, world=world)


TABLE = TableCase("t", "id BIGINT", properties=PLAIN)


def keys(memory, prefix="") -> set[str]:
    return {info.key for info in memory.list(prefix)}


def test_replaced_segments_stay_for_the_grace(table, memory, clock):
    for i in range(8):
        table.append(pa.table({"id": range(i * 40_000, (i + 1) * 40_000)}))
    inputs = keys(memory, segments_prefix(table.uuid))
    assert len(inputs) == 8
    reader = table.refresh()
    assert table.maintain().segments_merged == 8
    clock.advance(GRACE_MS - 1)
    assert table.maintain().cleaned.deleted == []
    split = plan_range(reader, 0, reader.buckets[0].offsets)
    assert sum(b.batch.num_rows for b in read_split(memory, split, reader.schema)) == 320_000
    clock.advance(1)
    dry = table.maintain(dry_run=True).cleaned
    assert set(dry.deleted) == inputs <= keys(memory)
    assert set(table.maintain().cleaned.deleted) == inputs
    assert not inputs & keys(memory)
    assert table.to_arrow()["id"].to_pylist() == list(range(320_000))
    assert table.state.condemned == {}
    assert table.maintain().cleaned.deleted == []


def test_orphans_are_condemned_when_old_and_deleted_when_condemned_long_enough(table, memory, clock):
    orphans = {segment_key(table.uuid, "a" * 32), manifest_key(table.uuid, "b" * 32)}
    for key in orphans:
        memory.put(key, b"left by a crash")
    clock.advance(GRACE_MS - 1)
    assert table.maintain().cleaned.condemned == []
    clock.advance(1)
    assert set(table.maintain(dry_run=True).cleaned.condemned) == orphans
    assert table.state.condemned == {}
    assert set(table.maintain().cleaned.condemned) == orphans
    assert orphans <= keys(memory)
    clock.advance(GRACE_MS - 1)
    assert table.maintain().cleaned.deleted == []
    clock.advance(1)
    assert set(table.maintain().cleaned.deleted) == orphans
    assert not orphans & keys(memory)


def test_a_dry_run_changes_nothing(table, memory, clock):
    for i in range(130):
        table.append([{"id": i}])
    memory.put(segment_key(table.uuid, "a" * 32), b"orphan")
    for _ in range(3):
        clock.advance(GRACE_MS + 1)
        before = {key: memory.read(key) for key in keys(memory)}
        report = table.maintain(dry_run=True)
        assert {key: memory.read(key) for key in keys(memory)} == before
        assert report.cleaned.dry_run
        assert report.segments_merged == 0
        done = table.maintain()
        assert set(report.cleaned.deleted) <= set(done.cleaned.deleted)


def test_old_records_and_checkpoints_go(table, memory, clock):
    for i in range(350):
        table.append([{"id": i}])
    before = len(keys(memory, commits_prefix(table.uuid)))
    assert before > 350
    table.maintain()
    assert len(keys(memory, commits_prefix(table.uuid))) >= before
    clock.advance(GRACE_MS)
    table.maintain()
    assert len(keys(memory, commits_prefix(table.uuid))) < 60
    assert len(keys(memory, checkpoints_prefix(table.uuid))) < 4
    for reopened in (table, Warehouse("wh", storage=memory, world=sim_world(4, clock)).table("t")):
        assert reopened.to_arrow()["id"].to_pylist()[:350] == list(range(350))
        reopened.append([{"id": -1}])
        commits = reopened.inspect.commits()["commit"].to_pylist()
        assert commits == list(range(commits[0], reopened.state.version + 1))
    assert table.to_arrow().num_rows == 352


def test_a_process_that_slept_through_the_cleaning_wakes_up_right(table, memory, clock):
    sleeper = Warehouse("wh", storage=memory, world=sim_world(9, clock)).table("t")
    for i in range(250):
        table.append([{"id": i}])
    table.maintain()
    clock.advance(GRACE_MS + 1)
    table.maintain()
    assert sleeper.state.version == 1
    assert sleeper.append([{"id": 250}])[0].start == 250
    assert sleeper.to_arrow()["id"].to_pylist() == list(range(251))
    assert table.to_arrow().num_rows == 251


def _many_appends_then_cleaned(other, clock):
    """Everything that the log held is merged and cleaned by others while this process sleeps."""
    theirs = other.table("t")
    for _ in range(3):
        for i in range(70):
            theirs.append([{"id": i}])
        theirs.maintain()
        clock.advance(GRACE_MS + 1)
    theirs.maintain()


VERBS = {
    "merge inline": compact_inline_rows,
    "merge small": compact_small_segments,
    "maintain": Table.maintain,
    "read": Table.to_arrow,
    "append": lambda table: table.append([{"id": 7}]),
}


class TestProcessThatSleptPastTheGrace:
    @pytest.fixture
    def slept(self, memory, clock):
        def sleep():
            _many_appends_then_cleaned(Warehouse("wh", storage=memory, world=sim_world(5, clock)), clock)

        return sleep

    @pytest.mark.parametrize("verb", VERBS)
    def test_each_verb_looks_first(self, table, slept, verb):
        for i in range(5):
            table.append([{"id": i}])
        old = table.state
        slept()
        with pytest.raises(SnapshotExpiredError, match="retry the read"):
            list(read_split(table.storage, plan_range(old, 0, old.buckets[0].offsets), old.schema))
        VERBS[verb](table)
        assert table.to_arrow().num_rows == 215 + (verb == "append")

    def test_a_read_that_sleeps_half_way_is_planned_anew(self, table, slept, monkeypatch):
        for i in range(5):
            table.append([{"id": i}])
        read, naps = scan_executor.read_tables, []

        def sleepy(table, plan, **kwargs):
            if not naps:
                naps.append(slept())
            return read(table, plan, **kwargs)

        monkeypatch.setattr(scan_executor, "read_tables", sleepy)
        assert table.to_arrow().num_rows == 215

    def test_a_tail_whose_caller_slept_goes_on(self, table, slept):
        for i in range(5):
            table.append([{"id": i}])
        tail = table.tail("earliest", include_metadata=True, until_ms=0)
        first = next(tail)
        slept()
        found = pa.Table.from_batches([first, *tail])
        assert found["_log_offset"].to_pylist() == list(range(215))

    def test_a_dropped_table_is_said_to_be_dropped(self, wh, table, memory, clock):
        table.append([{"id": 1}])
        old = table.state
        other = Warehouse("wh", storage=memory, world=sim_world(6, clock))
        other.drop_table("t")
        while keys(memory, commits_prefix(table.uuid)):
            other.clean_dropped()
            clock.advance(GRACE_MS + 1)
        with pytest.raises(TableNotFoundError, match="dropped"):
            list(read_split(memory, plan_range(old, 0, old.buckets[0].offsets), old.schema))


def test_what_is_live_is_never_listed(table, memory, clock):
    """Through weeks of writing, merging and cleaning every file that the table names is there."""
    from streamhouse_spark.log.object_existence import list_referenced_keys

    rows = 0
    for day in range(20):
        for _ in range(15):
            rows += table.append([{"id": rows}, {"id": rows + 1}]).num_rows
        if day % 3 == 1:
            rows += table.append(pa.table({"id": range(rows, rows + 40_000)})).num_rows
        clock.advance(GRACE_MS // 2 + 1)
        report = table.maintain()
        assert not set(report.cleaned.deleted) & list_referenced_keys(table.refresh())
        assert list_referenced_keys(table.state) <= keys(memory)
    assert table.to_arrow()["id"].to_pylist() == list(range(rows))
    assert len(keys(memory)) < 150


@pytest.mark.parametrize("grace_ms", [0, GRACE_MS_MIN - 1])
def test_a_grace_below_the_minimum_deletes_nothing(wh, table, memory, grace_ms):
    before = keys(memory)
    for ask in (
        lambda: table.maintain(grace_ms=grace_ms),
        lambda: table.maintain(grace_ms=grace_ms, dry_run=True),
        lambda: wh.clean_dropped(grace_ms=grace_ms),
    ):
        with pytest.raises(InvalidOptionError, match="at least 600000 ms"):
            ask()
    assert keys(memory) == before


def test_temporary_files_go_after_the_grace(warehouse_path, clock):
    from streamhouse_spark.storage.local import LocalStorage

    store = LocalStorage(warehouse_path, fsync=False, world=sim_world(0, clock))
    table = Warehouse("wh", storage=store, world=sim_world(1, clock)).create_table("t", "id BIGINT", properties=PLAIN)
    table.append([{"id": 1}])
    left = f"{commits_prefix(table.uuid)}.tmp-{'a' * 32}"
    store.put(left, b"half")
    clock.jump(store.list_temporary("")[0].modified_ms - clock.now_ms())
    assert table.maintain().cleaned.deleted == []
    clock.advance(GRACE_MS)
    assert table.maintain(dry_run=True).cleaned.deleted == [left]
    assert table.maintain().cleaned.deleted == [left]
    assert store.list_temporary("") == []
    assert table.to_arrow().num_rows == 1
