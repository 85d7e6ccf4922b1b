"""Planted bugs of writes and of their changes: replacements, statements, drops, streams, the real-time sink."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from faults.faulty_storage import Fault, sweep
from faults.planted_bugs.planting import Patch, PlantedBug
from faults.real_time_sink import (
    ANOTHER,
    SOURCE,
    TARGET,
    Checkpoint,
    Life,
    calls,
    check,
    copied,
    new_store,
    put_back,
    rival_before,
    survive,
    table_objects,
)
from faults.row_level import Write, beside_a_writer, merge, side_by_side, update
from faults.scenarios import Run
from faults.sim import sim_world
from interop.foreign_engines import Pyiceberg
from interop.foreign_iceberg import row
from kit.change_replay import changes, check_history, first_there, replayed, version
from kit.row_replacement import replace_rows
from kit.rows import ids, rows
from kit.tables import tier
from property.stream_driver import Query
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.datasource.realtime import sink_progress
from streamhouse_spark.datasource.realtime.sink import STORED_KEY, RealTimeStreamWriter
from streamhouse_spark.datasource.realtime.sink_progress import RealTimeBatch
from streamhouse_spark.datasource.stream.micro_batch_stream import StreamhouseStreamReader
from streamhouse_spark.datasource.stream.stream_offset import StreamOffset
from streamhouse_spark.datasource.write.sink_transactions import SourceProgress
from streamhouse_spark.datasource.write.staging_writer import StagedCommitMessage
from streamhouse_spark.dml import conflict_check, delete, overwrite
from streamhouse_spark.dml.overwrite import OverwriteTarget
from streamhouse_spark.errors import (
    CommitConflictError,
    DifferentHistoryError,
    InvalidOptionError,
    OffsetsTrimmedError,
    SchemaMismatchError,
)
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.kv.change_staging import ChangeStager
from streamhouse_spark.kv.conflict_detection import ConflictChecker
from streamhouse_spark.kv.partition_overwrite import PartitionOverwriteStager
from streamhouse_spark.lake import reader
from streamhouse_spark.lake.parquet.copy_on_write import FilesToDrop
from streamhouse_spark.lake.tiering import record_snapshot
from streamhouse_spark.log import compaction, staging
from streamhouse_spark.log.actions import Append, Drop, Trim
from streamhouse_spark.log.catalog import names
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.deletion_vectors import DeleteRows, PartitionDropRows
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.log.segments import statistics
from streamhouse_spark.log.segments.reader import InlineRecords
from streamhouse_spark.log.segments.scan import LogSplit, read_split
from streamhouse_spark.log.state import CHANGE_COLUMN, TableState
from streamhouse_spark.read import lake_row_ids, read_snapshot
from streamhouse_spark.read.change_feed import change_scan_tasks, commit_diff, feed_validation, planning
from streamhouse_spark.read.change_feed import commit_diff as lake_only_rows
from streamhouse_spark.read.scan_tasks import OffsetsScanTask
from streamhouse_spark.schema.ddl import TextLength
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table import alter
from streamhouse_spark.table.versioning import rollback
from streamhouse_spark.warehouse import replacement as warehouse_replacement
from streamhouse_spark.warehouse import warehouse as table_resolution
from streamhouse_spark.warehouse.creation import make_create_action
from streamhouse_spark.write.auto_compaction import compact_inline_rows
from streamhouse_spark.write.log_writer import LogTableWriter
from streamhouse_spark.write.upsert_intents import BucketIntents, IntentWrite, commit_prepared

HOT = {"table.datalake.enabled": "false"}
EU = {"region": "eu"}
DAY_1 = [("day", "=", 1)]
ROWS = {1: 10, 2: 20, 3: 30}

# -- histories of replacements -----------------------------------------------------------------------------------------


def table_of_days(warehouse: Warehouse, **how: Any) -> Table:
    return warehouse.create_table("sales.parts", "id BIGINT, day INT", partition_by=["day"], **how)


def another_writer_appends_while_rows_are_chosen() -> None:
    table = table_of_days(Run().warehouse, properties=HOT)
    table.append(rows(0, 1, 2))
    right = OverwriteTarget.locate

    def look(self: OverwriteTarget) -> None:
        right(self)
        table.append(rows(4, 5))

    with mock.patch.object(OverwriteTarget, "locate", look):
        table.overwrite(rows(7), where=DAY_1)
    assert ids(table.to_arrow()) == [0, 2, 5, 7]


def a_crash_at_each_call() -> None:
    def new_store() -> Storage:
        storage = MemoryStorage(sim_world())
        table_of_days(Warehouse("wh", storage=storage, world=sim_world(1)), properties=HOT).append(rows(0, 1, 2))
        return storage

    def opened(storage: Storage, seed: int) -> Table:
        return Warehouse("wh", storage=storage, world=sim_world(seed)).table("sales.parts")

    work = lambda storage: opened(storage, 2).overwrite(rows(7), where=DAY_1)  # noqa: E731
    for attempt in sweep(new_store, work, faults=(Fault.CRASH_AFTER,)):
        assert ids(opened(attempt.store, 3).to_arrow()) in ([0, 1, 2], [0, 2, 7]), attempt


def another_writer_adds_rows_to_a_bucket_that_had_none() -> None:
    properties = {**HOT, "table.changelog.image": "wal"}
    table = table_of_days(Run().warehouse, primary_key=["id", "day"], properties=properties)
    table.upsert(rows(0, 2))
    right, left = PartitionOverwriteStager.stage, iter(range(1))

    def staged(self: PartitionOverwriteStager, *given: Any) -> Any:
        found = right(self, *given)
        for _ in left:
            other = Warehouse("wh", storage=table.storage, world=sim_world(77)).table("sales.parts")
            other.upsert(rows(4))
        return found

    with mock.patch.object(PartitionOverwriteStager, "stage", staged):
        table.overwrite(rows(7), where=DAY_1)
    assert ids(table.to_arrow()) == [0, 2, 7]


def a_second_run_replaces_the_first() -> None:
    table = table_of_days(Run().warehouse, properties=HOT)
    for _ in range(2):
        with suppress(SchemaMismatchError):
            table.overwrite(rows(1, 2), where=DAY_1)
    assert ids(table.to_arrow()) == sorted(set(ids(table.to_arrow())))


def a_crash_while_a_table_is_replaced() -> None:
    path = TablePath("sales", "parts")

    def opened(storage: Storage, seed: int) -> Warehouse:
        return Warehouse("wh", storage=storage, world=sim_world(seed))

    def new_store() -> Storage:
        storage = MemoryStorage(sim_world())
        table_of_days(opened(storage, 1), properties=HOT).append(rows(0))
        return storage

    def replace_table(storage: Storage) -> None:
        warehouse = opened(storage, 2)
        staged = warehouse_replacement.stage_table(
            warehouse, path, make_create_action(path, "id BIGINT", (), (), None, dict(HOT))
        )
        staged.append([{"id": 7}])
        warehouse_replacement.publish_table(warehouse, path, staged.uuid, warehouse.table(str(path)).uuid)

    for attempt in sweep(new_store, replace_table, faults=(Fault.CRASH_AFTER,)):
        assert ids(opened(attempt.store, 3).table(str(path)).to_arrow()) in ([0], [7]), attempt


# -- histories of statements -------------------------------------------------------------------------------------------


def an_update_beside_an_upsert() -> None:
    assert all(beside_a_writer(ROWS, update(10, 10, 5), Write({1: 0})))


def a_merge_beside_an_insert() -> None:
    assert all(beside_a_writer(ROWS, merge({7: 1}), Write({7: 5})))


def two_updates_about_each_others_rows() -> None:
    assert side_by_side(ROWS, update(10, 10, 10), update(20, 20, -10))


def two_updates_and_a_compaction() -> None:
    assert side_by_side(ROWS, update(10, 10, 10), update(20, 20, -10), compact_inline_rows)


def a_merge_that_inserts_a_key_that_is_there() -> None:
    table = Run().warehouse.create_table("sales.keyed", "id BIGINT, n BIGINT", primary_key=["id"])
    table.upsert([{"id": 1, "n": 1}])

    def read(schema: TableSchema) -> BucketIntents:
        return BucketIntents(pa.table([[1], [2]], schema=schema.arrow), np.array([False]), np.array([True]))

    with pytest.raises(SchemaMismatchError):
        commit_prepared(table.keyed, IntentWrite(rewrites=True), {0: read}, read=ReadVersion.of(table.refresh()))


def texts_of_a_length() -> None:
    table = Run().warehouse.create_table("sales.sized", "c CHAR(3), v VARCHAR(2)")
    table.append([{"c": "a", "v": "xy  "}])
    assert table.to_arrow().to_pylist() == [{"c": "a  ", "v": "xy"}]
    with pytest.raises(SchemaMismatchError):
        table.append([{"v": "xyz"}])


def a_partition_column_with_a_leading_dot() -> None:
    table = Run().warehouse.create_table("sales.dotted", "id BIGINT, `.day` STRING", partition_by=[".day"])
    try:
        table.append([{"id": 1, ".day": "x"}])
    except pa.ArrowInvalid as error:
        raise AssertionError(f"the name is a path: {error}") from error


def a_time_before_a_table() -> None:
    table = Run().warehouse.create_table("sales.late", "id BIGINT")
    with pytest.raises(OffsetsTrimmedError):
        table.to_arrow(as_of_timestamp_ms=table.state.created_ms - 1)


# -- histories of updates ----------------------------------------------------------------------------------------------


def table_of_five() -> tuple[Warehouse, Table]:
    wh = Warehouse("wh", storage=MemoryStorage(sim_world()), world=sim_world(1))
    table = wh.create_table("d.t", "id BIGINT", properties={"table.datalake.enabled": "false"})
    table.append([{"id": number} for number in range(5)])
    return wh, table


def update_delete_and_insert(table: Table) -> None:
    """Update row 1, delete row 2, insert row 20."""
    replace_rows(
        table, lambda row: row["id"] in (1, 2), lambda row: {"id": 11} if row["id"] == 1 else None, added=[{"id": 20}]
    )


def kinds_of_changes(rows: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return sorted((row["id"], row["_change_type"]) for row in rows)


def a_merge_and_its_changes() -> None:
    _, table = table_of_five()
    update_delete_and_insert(table)
    found = kinds_of_changes(changes(table, table.state.version, table.state.version))
    assert found == [(1, "update_preimage"), (2, "delete"), (11, "update_postimage"), (20, "insert")]


def a_stream_after_a_compaction() -> None:
    wh, table = table_of_five()
    query = Query("d.t$changelog")
    query.run(wh)
    update_delete_and_insert(table)
    compact_inline_rows(table)
    query.run(wh)
    found = [row for row in kinds_of_changes(query.rows) if row[1] != "insert"]
    assert found == [(1, "update_before"), (2, "delete"), (11, "update_after")]


def net_changes() -> None:
    _, table = table_of_five()
    first = table.state.version
    update_delete_and_insert(table)
    found = kinds_of_changes(changes(table, first, table.state.version, is_net=True))
    assert found == [(number, "insert") for number in (0, 3, 4, 11, 20)]


# -- histories of dropped partitions and of changes --------------------------------------------------------------------


def table_by_region() -> Table:
    world = sim_world(1)
    return Pyiceberg(MemoryStorage(world), world).adopted(by_region=True)


def require_changes_between_versions(table: Table, before: int) -> None:
    now = table.refresh().version
    assert replayed(version(table, before), changes(table, before + 1, now)) == version(table, now)


def a_drop() -> None:
    table = table_by_region()
    before = table.refresh().version
    table.drop_partition(EU)
    require_changes_between_versions(table, before)
    table.rollback_to_version(before)
    assert ids(table.to_arrow()) == list(range(6))


def a_drop_that_an_earlier_version_recorded() -> None:
    right = record_snapshot.find_partition_drops

    def named(*given: Any) -> Any:
        return [replace(one, files={}, snapshot_id=None, total=None) for one in right(*given)]

    table = table_by_region()
    table.append([row(6)])
    before = table.refresh().version
    with mock.patch.object(record_snapshot, "find_partition_drops", named):
        table.drop_partition(EU)
    with pytest.raises(InvalidOptionError):
        changes(table, before + 1, table.refresh().version)
    with pytest.raises(InvalidOptionError):
        table.rollback_to_version(before)


def a_rewrite_between_a_read_and_its_deletion() -> None:
    world = sim_world(1)
    engine = Pyiceberg(MemoryStorage(world), world)
    table = engine.adopted()
    table.append([row(6), row(7)])
    tier(table)
    state = table.refresh()
    engine.rewrite()
    table.append([row(8)])
    tier(table)
    with pytest.raises(CommitConflictError):
        delete.commit_deletion(table, {0: OffsetSet.dense(0, 1)}, ReadVersion.of(state))
    assert ids(table.to_arrow()) == list(range(9))


def old_rows_that_are_deleted() -> None:
    world = sim_world(1)
    table = Warehouse("wh", storage=MemoryStorage(world), world=world).create_table(
        "t", "id BIGINT, day INT", buckets=1, partition_by=["day"]
    )
    table.append([{"id": number, "day": number % 2} for number in range(6)])
    tier(table)
    table.log.commit(lambda *_: (Trim({0: 6}),))
    table.delete(where=[("id", "=", 2)])
    tier(table)
    table.lake.compact(purge=True)
    before = table.refresh().version
    table.drop_partition({"day": 1})
    first = first_there(table)
    assert first == 1, f"the changes start at version {first}"
    require_changes_between_versions(table, before)
    check_history(table)


def a_table_that_is_emptied_and_rolled_back() -> None:
    world = sim_world(1)
    table = Warehouse("wh", storage=MemoryStorage(world), world=world).create_table("t", "id BIGINT", buckets=1)
    table.append([{"id": number} for number in range(4)])
    tier(table)
    table.delete(where=[("id", "=", 2)])
    before = table.refresh().version
    table.overwrite([{"id": 9}])
    check_history(table)
    table.rollback_to_version(before)
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1, 3]


def a_stream_of_changes() -> None:
    world = sim_world(1)
    wh = Warehouse("wh", storage=MemoryStorage(world), world=world)
    table = wh.create_table("d.t", "id BIGINT", buckets=1)
    table.append([{"id": 0}, {"id": 1}, {"id": 2}])
    query = Query("d.t$changelog", startingOffsets="latest")
    begun = query.reader(wh)
    start = begun.initialOffset()
    table.delete(where=[("id", "=", 0)])
    end = begun.latestOffset(start, begun.getDefaultReadLimit())
    assert [row["id"] for row in rows_of_batch(begun, start, end)] == [0]
    table.delete(where=[("id", "=", 1)])
    last = begun.latestOffset(end, begun.getDefaultReadLimit())
    assert [row["id"] for row in rows_of_batch(begun, end, last)] == [1]


def rows_of_batch(begun: StreamhouseStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    parts = begun.partitions(start, end)
    return [row for part in parts for batch in begun.read(part) for row in batch.to_pylist()]


def a_lagging_stream() -> None:
    world = sim_world(1)
    wh = Warehouse("wh", storage=MemoryStorage(world), world=world)
    table = wh.create_table("d.t", "id BIGINT", buckets=1)
    table.append([{"id": number} for number in range(6)])
    tier(table)
    table.delete(where=[("id", "=", 2)])
    tier(table)
    table.log.commit(lambda *_: (Trim({0: 6}),))
    table.delete(where=[("id", "=", 4)])
    query = Query("d.t")
    query.run(wh)
    assert [row["id"] for row in query.rows] == [0, 1, 3, 5]


# -- histories of the real-time sink -----------------------------------------------------------------------------------


def rivals_at_every_call() -> None:
    base = new_store(by_key=False)
    for call in range(0, calls(base), 3):
        rival_before(base, call, has_begun=True, steps=2)


def crashes_at_every_call() -> None:
    base = new_store(by_key=False)
    for call in range(0, calls(base), 2):
        survive(base, {call: Fault.CRASH_AFTER})


def a_target_is_restored() -> None:
    """The backup was taken between two commits of a batch that ended later."""
    store, checkpoint = new_store(by_key=False), Checkpoint()
    life = Life(store, checkpoint, 0)
    life.batch(rounds=1)
    life.begin()
    copy = table_objects(store, TARGET)
    life.take(1, rounds=1)
    in_batch = copied(store)
    put_back(in_batch, TARGET, copy)
    Life(in_batch, replace(checkpoint), 1).run()
    check(in_batch)
    life.end()
    put_back(store, TARGET, copy)
    with pytest.raises(DifferentHistoryError):
        Life(store, checkpoint, 1).run()


def a_source_is_restored_and_grows() -> None:
    store, checkpoint = new_store(by_key=False), Checkpoint()
    copy = table_objects(store, SOURCE)
    append_to_source(store, 100)
    Life(store, checkpoint, 0).run(num_batches=0)
    checkpoint.batch, checkpoint.starts = 0, Checkpoint().starts  # a kill between the last rows and their end
    put_back(store, SOURCE, copy)
    append_to_source(store, 200)
    append_to_source(store, 300)
    with pytest.raises(DifferentHistoryError):
        Life(store, checkpoint, 1).run()


def append_to_source(store: Any, first: int) -> None:
    table = Warehouse("wh", storage=store, world=sim_world(first)).table(SOURCE)
    table.append([{"id": i} for i in range(first, first + 8)])


def a_query_is_forgotten() -> None:
    store = new_store(by_key=False)
    Life(store, Checkpoint(), 0, app_id="app").run()
    Warehouse("wh", storage=store, world=sim_world(5)).table(TARGET).forget_transactions("app")
    Life(store, Checkpoint(), 1, query=ANOTHER, app_id="app").run()
    check(store, times=2)


def a_task_fails_after_its_first_commit() -> None:
    """Its next attempt knows the rows that were stored when the batch started, and cuts its own rows differently."""
    life = Life(store := new_store(by_key=False), Checkpoint(), 0)
    life.begin()
    known = dict(life.stored)
    life.take(1, rounds=1)
    life.stored, life.cut = known, life.cut + 1
    life.take_again(rounds=10)
    check(store)


# -- how the bugs are planted ------------------------------------------------------------------------------------------


def follow_without_new_rows(self: OverwriteTarget, state: Any) -> None:
    self._state = state


def commit_replacement_in_two_records(table: Table, staged: Any, choose: Any, transaction: Any, read: Any) -> Any:
    chosen = OverwriteTarget(table, choose, read, may_locate=True)
    table.log.commit(lambda state, _time_ms: chosen(state))
    return LogTableWriter(table).commit(staged, transaction=transaction)


def refresh_without_following(log: CommitLog) -> CommitLog:
    log.refresh()
    return log


def drop_then_name(storage: Storage, world: Any, path: TablePath, old: CommitLog, new: CommitLog) -> None:
    old.commit(lambda _state, _time_ms: (Drop(),))
    names.put_name_pointer(storage, path, names.resolve(storage, path), new.table_uuid, world)


def require_unwritten_unless_inserted(
    original: Any, self: ConflictChecker, state: TableState, split: LogSplit, records: InlineRecords
) -> None:
    schema = state.written_schema(self.layout.schema_id)
    found = read_split(self.storage, split, schema, [CHANGE_COLUMN.name], records=records)
    if any(set(rows.batch.column(0).to_pylist()) != {int(ChangeType.INSERT)} for rows in found):
        original()


def judge_once() -> Iterator[Patch]:
    judged: list[ConflictChecker] = []

    def judge(original: Any, self: ConflictChecker) -> None:
        if not any(one is self for one in judged):
            judged.append(self)
            original()

    yield Patch(ConflictChecker, "check", judge)


def mark_every_row_as_updated(staged: Any) -> list[Any]:
    whole = (replace(piece.segment, updated=((0, piece.segment.num_rows),)) for piece in staged)
    return [replace(piece, segment=segment) for piece, segment in zip(staged, whole, strict=True)]


def keep_update_marks(original: Any, parts: Any) -> Any:
    ours = {part.version: part.is_updated for of_bucket in parts.values() for part in of_bucket}
    return {b: [p._replace(is_updated=ours[p.version]) for p in of_bucket] for b, of_bucket in original().items()}


def begin_with_an_empty_commit(original: Any, self: RealTimeBatch) -> Any:
    self.table.log.commit(lambda *_: (Append((), ()),), transaction=self._mark)
    return original()


NO_CONFLICT = "DID NOT RAISE ...CommitConflictError"
NO_SCHEMA_ERROR = "DID NOT RAISE ...SchemaMismatchError"
NO_HISTORY_ERROR = "DID NOT RAISE ...DifferentHistoryError"

WRITE_BUGS = (
    # replacements of rows and tables
    PlantedBug(
        "rows appended while rows are chosen are not replaced",
        Patch(OverwriteTarget, "_advance", follow_without_new_rows),
    ).found_by(another_writer_appends_while_rows_are_chosen, "[0, 2, 4, 5, 7] == [0, 2, 5, 7]"),
    PlantedBug(
        "a replacement takes two commit records",
        Patch(overwrite, "commit_replacement", commit_replacement_in_two_records),
    ).found_by(a_crash_at_each_call, "assert [0, 2] in ([0, 1, 2], [0, 2, 7])"),
    PlantedBug(
        "a replacement of keys ignores buckets without matching rows",
        Patch(PartitionOverwriteStager, "reads_whole_buckets", lambda: False),
    ).found_by(another_writer_adds_rows_to_a_bucket_that_had_none, "[0, 2, 4, 7] == [0, 2, 7]"),
    PlantedBug(
        "a replacement accepts rows outside its filter", Patch(overwrite, "require_matching_rows", lambda: None)
    ).found_by(a_second_run_replaces_the_first, "[1, 2, 2] == [1, 2]"),
    PlantedBug(
        "a name does not lead to the table that replaced it",
        Patch(table_resolution, "follow_replacements", refresh_without_following),
    ).found_by(a_crash_while_a_table_is_replaced, "TableNotFoundError: ...did you mean sales.parts?"),
    PlantedBug(
        "a table is dropped before its replacement is named",
        Patch(warehouse_replacement, "commit_replacement", drop_then_name),
    ).found_by(a_crash_while_a_table_is_replaced, "TableNotFoundError: ...available: none"),
    # UPDATE, DELETE and MERGE by key
    PlantedBug(
        "an update ignores concurrent writes of its keys", Patch(ConflictChecker, "_require_unwritten", lambda: None)
    ).found_by(an_update_beside_an_upsert, "(0, {2: 20, 3: 30, 1: 15})"),
    PlantedBug(
        "a merge ignores concurrent inserts of its keys",
        Patch(ConflictChecker, "_require_unwritten", require_unwritten_unless_inserted),
    ).found_by(a_merge_beside_an_insert, "(0, {1: 10, 2: 20, 3: 30, 7: 1})"),
    PlantedBug("concurrent changes are judged only once", judge_once).found_by(
        an_update_beside_an_upsert, "(1, {2: 20, 3: 30, 1: 15})"
    ),
    PlantedBug("statements ignore each other", Patch(ConflictChecker, "_require_unread", lambda: None)).found_by(
        two_updates_about_each_others_rows, "({3: 30, 1: 20, 2: 10}, ['UPDATE"
    ),
    PlantedBug(
        "compaction forgets that a segment holds a statement",
        Patch(compaction, "write_merged", lambda original: replace(original(), rewrites=False)),
    ).found_by(two_updates_and_a_compaction, "({3: 30, 1: 20, 2: 10}, ['UPDATE"),
    PlantedBug("a merge inserts a key that exists", Patch(ChangeStager, "_require_new", lambda: None)).found_by(
        a_merge_that_inserts_a_key_that_is_there, NO_SCHEMA_ERROR
    ),
    # values, names and times
    PlantedBug(
        "texts keep the length that they are written with", Patch(TextLength, "fit_texts", lambda texts: texts)
    ).found_by(texts_of_a_length, "{'c': 'a', 'v': 'xy  '} != {'c': 'a  ', 'v': 'xy'}"),
    PlantedBug(
        "a column name with a leading dot is read as a path",
        Patch(
            statistics, "distinct_rows", lambda rows: rows.group_by(rows.column_names, use_threads=False).aggregate([])
        ),
    ).found_by(a_partition_column_with_a_leading_dot, "the name is a path: No match for FieldRef.Name(day)"),
    PlantedBug(
        "a table counts as empty before it was created", Patch(read_snapshot, "_require_created_before", lambda: None)
    ).found_by(a_time_before_a_table, "DID NOT RAISE ...OffsetsTrimmedError"),
    # changes of updated rows
    PlantedBug(
        "compaction forgets which rows an update wrote", Patch(compaction, "_update_pairs", lambda: ())
    ).found_by(a_stream_after_a_compaction, "Right contains one more item: (11, 'update_after')"),
    PlantedBug(
        "updated rows of a compacted segment are one off",
        Patch(compaction, "_update_pairs", lambda original, start: original(start=start + 1)),
    ).found_by(a_stream_after_a_compaction, "Right contains one more item: (11, 'update_after')"),
    PlantedBug(
        "all rows of a statement count as updated", Patch(staging, "_with_updated", mark_every_row_as_updated)
    ).found_by(a_merge_and_its_changes, "(20, 'update_postimage') != (20, 'insert')"),
    PlantedBug(
        "deleted rows are reported as updated",
        Patch(DeleteRows, "with_updated", lambda self: replace(self, updated=self.rows, updated_files=self.files)),
    ).found_by(a_merge_and_its_changes, "(2, 'update_preimage') != (2, 'delete')"),
    PlantedBug(
        "net changes report an update of a row inserted in between", Patch(commit_diff, "_subtract", keep_update_marks)
    ).found_by(net_changes, "(11, 'update_postimage') != (11, 'insert')"),
    # rows that are dropped with their partition, and changes of the table
    PlantedBug(
        "dropped rows of other engines are not counted",
        Patch(FilesToDrop, "rows", lambda original, self: original() - self.foreign_rows),
    ).found_by(a_drop, "Left contains 3 more items:...('0', \"'eu'\", '0'): 1"),
    PlantedBug(
        "a dropped partition counts as recorded in full by any version",
        Patch(PartitionDropRows, "names_all_rows", lambda: True),
    ).found_by(a_drop_that_an_earlier_version_recorded, "DID NOT RAISE ...InvalidOptionError"),
    PlantedBug("changes omit dropped rows of lake files", Patch(planning, "plan_file_tasks", lambda: ())).found_by(
        a_drop, "Left contains 3 more items:...('0', \"'eu'\", '0'): 1"
    ),
    PlantedBug(
        "old rows are searched in one lake snapshot",
        Patch(lake_only_rows._Search, "snapshots", lambda original: islice(original(), 1)),
    ).found_by(old_rows_that_are_deleted, "the changes start at version 9"),
    PlantedBug(
        "only recorded rows of a dropped partition are changes",
        Patch(feed_validation, "find_dropped_rows", lambda tiered: {}),
    ).found_by(old_rows_that_are_deleted, "assert Counter(..."),
    PlantedBug(
        "an emptied table still has the rows deleted before",
        Patch(change_scan_tasks, "without_rows", lambda rows: {key: runs for key, runs in rows.items() if runs}),
    ).found_by(a_table_that_is_emptied_and_rolled_back, "('2',): -1"),
    PlantedBug(
        "a rollback across a truncation keeps the current rows",
        Patch(rollback, "commit_append", lambda original: original(transaction=None, overwrite=False, removing=None)),
    ).found_by(a_table_that_is_emptied_and_rolled_back, "[0, 1, 3, 9] == [0, 1, 3]"),
    PlantedBug("a stream of changes repeats each deletion", Patch(StreamOffset, "commit", lambda: 0)).found_by(
        a_stream_of_changes, "assert [] == [0]"
    ),
    PlantedBug(
        "the first batch of a stream starts at its own end",
        Patch(StreamhouseStreamReader, "_start_point", lambda: None),
    ).found_by(a_stream_of_changes, "assert [] == [0]"),
    PlantedBug(
        "a lagging stream reads rows deleted since the last round",
        Patch(OffsetsScanTask, "__init__", lambda original: original(deleted=None)),
    ).found_by(a_lagging_stream, "[0, 1, 3, 4, 5] == [0, 1, 3, 5]"),
    PlantedBug(
        "rows that lake files mark as deleted are read",
        Patch(reader, "_read_deleted_offsets", lambda: OffsetSet.merged([])),
    ).found_by(a_lagging_stream, "[0, 1, 2, 3, 5] == [0, 1, 3, 5]"),
    PlantedBug(
        "rows are deleted by offsets that another engine removed",
        Patch(conflict_check, "require_located", lambda: None),
    ).found_by(a_rewrite_between_a_read_and_its_deletion, NO_CONFLICT),
    PlantedBug(
        "a later lake snapshot counts as checked for offsets", Patch(lake_row_ids, "lake_has_offsets", lambda: True)
    ).found_by(a_rewrite_between_a_read_and_its_deletion, NO_CONFLICT),
    # the sink of real-time mode
    PlantedBug(
        "rows of a real-time query may follow any others",
        Patch(SourceProgress, "transaction", lambda original: replace(original(), follows=None)),
    ).found_by(rivals_at_every_call, "DifferentHistoryError: ...batch 6 is stored"),
    PlantedBug(
        "rows of a real-time query are written without a transaction",
        Patch(SourceProgress, "transaction", lambda: None),
    ).found_by(crashes_at_every_call, "assert Counter({0: 2... == Counter({0: 1"),
    PlantedBug(
        "the mark of a real-time query does not count its batches",
        Patch(SourceProgress, "mark", lambda original: original(num_ended=0)),
    ).found_by(a_target_is_restored, NO_HISTORY_ERROR),
    PlantedBug(
        "source offsets are trusted without a history", Patch(sink_progress, "_source_record", lambda: None)
    ).found_by(a_source_is_restored_and_grows, NO_HISTORY_ERROR),
    PlantedBug(
        "stored offsets outlive the query that was forgotten",
        Patch(alter, "select_progress_ids", lambda: ()),
        Patch(RealTimeBatch, "begin", begin_with_an_empty_commit),
    ).found_by(a_query_is_forgotten, "assert Counter({0: 1... == Counter({0: 2"),
    PlantedBug(
        "a retried task starts where its batch started",
        Patch(RealTimeStreamWriter, "_report_stored", lambda: StagedCommitMessage(None, counts=STORED_KEY + "{}")),
    ).found_by(
        a_task_fails_after_its_first_commit,
        "CommitConflictError: ...version 3 of...follows version -1, but version 2 is stored",
    ),
)
