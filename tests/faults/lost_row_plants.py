"""Mistakes about rows without offsets that go with their partition, and the stories that find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from changes_replayed import changes, check_history, first_there, replayed, version
from faults.plants import patched, plant
from faults.sim import sim_world
from foreign_engines import Pyiceberg
from foreign_lake import ids, row, tier
from streamhouse_spark.core.offset_runs import OffsetRuns
from streamhouse_spark.errors import CommitConflictError, InvalidOptionError
from streamhouse_spark.kv.read_base import ReadBase
from streamhouse_spark.lake.parquet.partition_rewrite import GoingFiles
from streamhouse_spark.lake.tiering import recording
from streamhouse_spark.log.commits.actions import Trim
from streamhouse_spark.log.commits.deletions import NameDropped
from streamhouse_spark.read import file_rows
from streamhouse_spark.read.change_feed import cold_rows, commit_changes, untold
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table import row_deletion
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
    with patched((commit_changes, "_file_pieces", lambda *_: ())):
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


FINDERS: dict[str, Callable[[], Any]] = {
    "rows_of_others_that_go_with_a_partition_are_not_counted": a_drop,
    "a_dropped_partition_is_told_whole_whoever_recorded_it": a_drop_that_an_earlier_version_recorded,
    "changes_leave_out_rows_of_files_that_went": a_drop,
    "old_rows_are_looked_for_in_one_lake_snapshot": old_rows_that_go,
    "rows_of_a_dropped_partition_are_those_that_its_record_names": old_rows_that_go,
    "rows_are_deleted_by_offsets_that_another_engine_lost_meanwhile": a_rewrite_between_a_look_and_its_deletion,
    "a_later_lake_snapshot_is_taken_as_looked_at": a_rewrite_between_a_look_and_its_deletion,
}
