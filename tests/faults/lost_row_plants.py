"""Mistakes about rows without offsets that go with their partition, and the stories that find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from faults.plants import patched, plant
from faults.sim import sim_world
from interop.foreign_engines import Pyiceberg
from interop.foreign_iceberg import ids, row, tier
from kit.change_replay import changes, check_history, first_there, replayed, version
from property.stream_driver import Query
from streamhouse_spark.core.offset_runs import OffsetRuns
from streamhouse_spark.datasource.read import stream
from streamhouse_spark.datasource.read.stream import StreamhouseStreamReader
from streamhouse_spark.errors import CommitConflictError, InvalidOptionError
from streamhouse_spark.kv.read_base import ReadBase
from streamhouse_spark.lake import reader
from streamhouse_spark.lake.parquet.partition_rewrite import GoingFiles
from streamhouse_spark.lake.tiering import recording
from streamhouse_spark.log.commits.actions import Trim
from streamhouse_spark.log.commits.deletions import NameDropped
from streamhouse_spark.read import file_rows
from streamhouse_spark.read.change_feed import cold_rows, commit_changes, emptied_rows, untold
from streamhouse_spark.read.pieces import OffsetsPiece
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table import rollback, row_deletion
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.warehouse import Warehouse

EU = {"region": "eu"}


@plant
def rows_of_others_that_go_with_a_partition_are_not_counted() -> Iterator[None]:
    right = GoingFiles.rows.fget
    own = property(lambda going: right(going) - going.foreign_rows)
    with patched((GoingFiles, "rows", own)):
        yield


@plant
def a_dropped_partition_is_told_whole_whoever_recorded_it() -> Iterator[None]:
    with patched((NameDropped, "tells_all", lambda *_, **__: True)):
        yield


@plant
def changes_leave_out_rows_of_files_that_went() -> Iterator[None]:
    with patched((commit_changes, "file_pieces", lambda *_: ())):
        yield


@plant
def rows_are_deleted_by_offsets_that_another_engine_lost_meanwhile() -> Iterator[None]:
    with patched((row_deletion, "require_looked_at", lambda *_: None)):
        yield


@plant
def a_later_lake_snapshot_is_taken_as_looked_at() -> Iterator[None]:
    with patched((file_rows, "have_offsets", lambda *_: True)):
        yield


@plant
def old_rows_are_looked_for_in_one_lake_snapshot() -> Iterator[None]:
    right = cold_rows._Search.each
    with patched((cold_rows._Search, "each", lambda search: islice(right(search), 1))):
        yield


@plant
def rows_of_a_dropped_partition_are_those_that_its_record_names() -> Iterator[None]:
    with patched((untold, "lost_rows", lambda *_: {})):
        yield


@plant
def an_emptied_table_had_the_rows_that_were_deleted_before() -> Iterator[None]:
    with patched((emptied_rows, "without_rows", lambda rows, _: {key: runs for key, runs in rows.items() if runs})):
        yield


@plant
def a_rollback_beyond_a_truncation_adds_to_what_is_there() -> Iterator[None]:
    right = rollback.commit_staged
    with patched((rollback, "commit_staged", lambda *given, **named: right(*given, require=named["require"]))):
        yield


@plant
def a_stream_of_changes_is_told_of_each_deletion_again() -> Iterator[None]:
    with patched((stream, "commit_of", lambda _: 0)):
        yield


@plant
def the_first_batch_of_a_stream_begins_where_it_ends() -> Iterator[None]:
    with patched((StreamhouseStreamReader, "_begun_at", lambda *_: None)):
        yield


@plant
def a_lagging_reader_has_rows_that_wait_for_a_round() -> Iterator[None]:
    right = OffsetsPiece.__init__

    def made(piece: OffsetsPiece, *given: Any, **named: Any) -> None:
        right(piece, *given[:4], **{name: value for name, value in named.items() if name != "deleted"})

    with patched((OffsetsPiece, "__init__", made)):
        yield


@plant
def rows_that_files_mark_as_deleted_are_read_back() -> Iterator[None]:
    with patched((reader, "_marked", lambda *_: OffsetRuns.merged([]))):
        yield


def new_table() -> Table:
    world = sim_world(1)
    return Pyiceberg(MemoryStorage(world), world).adopted(by_region=True)


def told(table: Table, before: int) -> None:
    now = table.refresh().version
    assert replayed(version(table, before), changes(table, before + 1, now)) == version(table, now)


def a_drop() -> None:
    table = new_table()
    before = table.refresh().version
    table.drop_partition(EU)
    told(table, before)
    table.rollback_to_version(before)
    assert ids(table.to_arrow()) == list(range(6))


def a_drop_that_an_earlier_version_recorded() -> None:
    right = recording.dropped_with

    def named(*given: Any) -> Any:
        return [replace(one, files={}, snapshot_id=None, total=None) for one in right(*given)]

    table = new_table()
    table.append([row(6)])
    before = table.refresh().version
    with patched((recording, "dropped_with", named)):
        table.drop_partition(EU)
    with pytest.raises(InvalidOptionError):
        changes(table, before + 1, table.refresh().version)
    with pytest.raises(InvalidOptionError):
        table.rollback_to_version(before)


def a_rewrite_between_a_look_and_its_deletion() -> None:
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
        row_deletion.commit_deletion(table, {0: OffsetRuns.dense(0, 1)}, ReadBase.of(state))
    assert ids(table.to_arrow()) == list(range(9))


def old_rows_that_go() -> None:
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
    table.drop_partition({"day": 1})
    check_history(table)
    assert first_there(table) == 1


def a_table_that_is_emptied_and_comes_back() -> None:
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
    assert [row["id"] for row in of_batch(begun, start, end)] == [0]
    table.delete(where=[("id", "=", 1)])
    last = begun.latestOffset(end, begun.getDefaultReadLimit())
    assert [row["id"] for row in of_batch(begun, end, last)] == [1]


def of_batch(begun: StreamhouseStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
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


FINDERS: dict[str, Callable[[], Any]] = {
    "rows_of_others_that_go_with_a_partition_are_not_counted": a_drop,
    "a_dropped_partition_is_told_whole_whoever_recorded_it": a_drop_that_an_earlier_version_recorded,
    "changes_leave_out_rows_of_files_that_went": a_drop,
    "old_rows_are_looked_for_in_one_lake_snapshot": old_rows_that_go,
    "rows_of_a_dropped_partition_are_those_that_its_record_names": old_rows_that_go,
    "an_emptied_table_had_the_rows_that_were_deleted_before": a_table_that_is_emptied_and_comes_back,
    "a_rollback_beyond_a_truncation_adds_to_what_is_there": a_table_that_is_emptied_and_comes_back,
    "a_stream_of_changes_is_told_of_each_deletion_again": a_stream_of_changes,
    "the_first_batch_of_a_stream_begins_where_it_ends": a_stream_of_changes,
    "a_lagging_reader_has_rows_that_wait_for_a_round": a_lagging_stream,
    "rows_that_files_mark_as_deleted_are_read_back": a_lagging_stream,
    "rows_are_deleted_by_offsets_that_another_engine_lost_meanwhile": a_rewrite_between_a_look_and_its_deletion,
    "a_later_lake_snapshot_is_taken_as_looked_at": a_rewrite_between_a_look_and_its_deletion,
}
