"""The newest changes of a bucket are read and sorted once, however many tasks lay them over older rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from faults.faulty_storage import FaultyStorage
from property.stream_driver import Opened
from streamhouse_spark import OffsetRange, Warehouse
from streamhouse_spark.datasource.read.partitions import make_partitions, read_plan
from streamhouse_spark.keys.changelog_merge import KeySet, MergedChangelog
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.log.segments.scan import LogSplit
from streamhouse_spark.read import scan_executor
from streamhouse_spark.read import split_planning as pieces
from streamhouse_spark.read.scan_executor import ChangelogCache
from streamhouse_spark.read.scan_tasks import KeyedScanTask
from streamhouse_spark.read.snapshot_reader import plan_union
from streamhouse_spark.read.split_planning import align_to_changes
from streamhouse_spark.table.maintenance.tiering import tier_table

FILES = 6
ROWS = 500


class Query:
    """A read of a table with two buckets, six lake files a bucket, and changes that the lake lacks."""

    def __init__(self, memory, world) -> None:
        self.counted = FaultyStorage(memory)
        self.warehouse = Warehouse("wh", storage=self.counted, world=world)
        self.table = self.warehouse.create_table(
            "t", "id BIGINT, n BIGINT", primary_key=["id"], buckets=2,
            properties={"table.datalake.auto-compaction": "false"},
        )  # fmt: skip
        for number in range(FILES):
            ids = np.arange(number * ROWS, (number + 1) * ROWS)
            self.table.upsert(pa.table({"id": ids, "n": ids}))
            tier_table(self.table, run_tasks_locally(self.counted, {}, world))
        self.change(ROWS * FILES)

    def change(self, num_rows: int) -> None:
        ids = np.arange(num_rows)
        self.table.upsert(pa.table({"id": ids, "n": ids + 1_000_000 * self.table.state.version}))
        self.of_log = {s.uuid for s in self.table.refresh().live_segments() if s.base_offset >= self._tiered(s.bucket)}

    def _tiered(self, bucket: int) -> int:
        return self.table.state.lake_offset(bucket)

    def run(self, parallelism: int) -> tuple[int, int, int]:
        """Tasks, how often a segment of the changes was opened, and rows."""
        tasks = make_partitions(plan_union(self.table, ["id", "n"]), parallelism)
        self.counted.trace.clear()
        batches = [batch for task in tasks for batch in read_plan(Opened(self.warehouse), task.plan(), ())]
        keys = [key for _, _, key in self.counted.trace if "/segments/" in key]
        reads = {key.rpartition("/")[2].removesuffix(".arrow") for key in keys}
        assert reads <= self.of_log
        rows = pa.Table.from_batches(batches).sort_by("id")
        assert rows.equals(self.table.to_arrow(columns=["id", "n"]).sort_by("id"))
        return len(tasks), len(keys), rows.num_rows


@pytest.fixture
def query(memory, world, own_cache, monkeypatch) -> Query:
    monkeypatch.setattr(pieces, "OPENING_BYTES", 1)
    monkeypatch.setattr(pieces, "TARGET_BYTES_MIN", 1)
    monkeypatch.setattr(scan_executor, "changelog_cache", ChangelogCache())
    return Query(memory, world)


@pytest.fixture
def sorted_rows(monkeypatch) -> list[int]:
    """How many changes were sorted by key, each time."""
    found: list[int] = []
    real = MergedChangelog.of.__func__

    def of(cls, changes, *args, **kwargs):
        batches = list(changes)
        found.append(sum(batch.num_rows for batch in batches))
        return real(cls, batches, *args, **kwargs)

    monkeypatch.setattr(MergedChangelog, "of", classmethod(of))
    return found


def few_changes(query: Query) -> None:
    """So few that each file of a bucket is worth a task of its own."""
    tier_table(query.table, run_tasks_locally(query.counted, {}, query.warehouse.world))
    query.change(40)


def test_tasks_of_one_process_work_out_the_changes_once(query, sorted_rows):
    few_changes(query)
    sorted_rows.clear()
    num_tasks, _, _ = query.run(parallelism=100)
    assert num_tasks > 4
    of_tasks = sorted_rows[:2]
    assert sum(of_tasks) == 80, "40 updates, two rows each"
    assert len(sorted_rows) == 4, "two buckets by the tasks, two by the read that they are compared with"


def test_another_range_or_other_columns_are_worked_out_anew(query, sorted_rows):
    few_changes(query)
    query.run(parallelism=100)
    query.change(60)
    query.run(parallelism=100)  # compares the rows


def test_tasks_of_many_processes_read_at_most_as_many_changes_as_older_rows(query, monkeypatch, sorted_rows):
    """Nothing is shared: each task is a process. All rows changed, so the changes are larger than any file."""
    monkeypatch.setattr(scan_executor, "CACHE_BYTES_MAX", 0)
    plan = plan_union(query.table, ["id", "n"])
    sorted_rows.clear()
    num_tasks, _, num_rows = query.run(parallelism=100)
    assert num_rows == FILES * ROWS
    assert num_tasks <= 2 * 2
    older = sum(piece.size_bytes for piece in plan.tasks if not piece.is_of_changes)
    changes = {piece.bucket: piece.size_bytes for piece in plan.tasks if piece.is_of_changes}
    read = 0
    for task in make_partitions(plan, 100):
        read += sum(changes[bucket] for bucket in {piece.bucket for piece in task.plan().tasks})
    assert read <= older + sum(changes.values())


@pytest.mark.parametrize("history", [None, "another"])
def test_another_history_of_the_same_offsets_is_worked_out_anew(query, sorted_rows, history):
    """A table that was restored has other rows there. Where the history is not known, nothing is shared."""
    few_changes(query)
    plan = plan_union(query.table, ["id", "n"])
    assert plan.keyed.history == query.table.state.attempt
    first = make_partitions(plan, 1)[0].plan()
    sorted_rows.clear()
    for found in (plan.keyed.history, history, history):
        list(read_plan(Opened(query.warehouse), replace(first, keyed=replace(first.keyed, history=found)), ()))
    assert len(sorted_rows) == len(first.keyed.tails) * (3 if history is None else 2)


def keyed(bucket: int, size_bytes: int, *, of_changes: bool = False) -> KeyedScanTask:
    base = None if of_changes else LogSplit("u", bucket, OffsetRange(0, 1), (), {})
    return KeyedScanTask(bucket, None, size_bytes, base)


def test_borders_between_groups_move_no_further_than_a_bucket():
    """Many buckets with as many changes as older rows: each is in one group, and groups stay as large as they were."""
    parts = [[keyed(b, 50), keyed(b, 50), keyed(b, 100, of_changes=True)] for b in range(20)]
    flat = [piece for part in parts for piece in part]
    groups = [flat[i : i + 7] for i in range(0, len(flat), 7)]
    found = align_to_changes(groups, lambda piece: piece)
    assert [piece for group in found for piece in group] == flat
    assert all(len(group) <= 9 for group in found)
    of_bucket: dict[int | None, set[int]] = {}
    for number, group in enumerate(found):
        for piece in group:
            of_bucket.setdefault(piece.bucket, set()).add(number)
    assert all(len(numbers) == 1 for numbers in of_bucket.values())


def test_a_large_bucket_with_few_changes_keeps_its_tasks():
    groups = [[keyed(0, 100)] for _ in range(8)] + [[keyed(0, 100, of_changes=True)]]
    found = align_to_changes(groups, lambda piece: piece)
    assert [len(group) for group in found] == [1] * 7 + [2]


def tail(num_keys: int) -> MergedChangelog:
    keys = pa.array([f"{i:08}".encode() for i in range(num_keys)], pa.binary())
    return MergedChangelog(KeySet(keys), pa.table({"n": np.arange(num_keys)}))


def test_what_is_kept_is_bounded_by_bytes(monkeypatch):
    monkeypatch.setattr(scan_executor, "CACHE_BYTES_MAX", 3 * tail(1000).size_bytes)
    kept, made = ChangelogCache(), []
    for key in [1, 2, 3, 1, 4, 1, 2]:
        kept.get(key, lambda key=key: made.append(key) or tail(1000))
    assert made == [1, 2, 3, 4, 2]
    assert kept.get("large", lambda: tail(100_000)).rows.num_rows == 100_000
    with pytest.raises(OSError, match="lost"):
        kept.get("fails", _fail)
    assert kept.get("fails", lambda: tail(1)).rows.num_rows == 1


def _fail() -> MergedChangelog:
    raise OSError("lost")
