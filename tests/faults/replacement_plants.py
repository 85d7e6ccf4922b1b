"""Mistakes about parts of a table that are replaced, and who finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from faults.faulty_storage import Fault, sweep
from faults.plants import patched, plant
from faults.scenarios import Run
from faults.sim import sim_world
from streamhouse_spark.core.model import BucketOffsets, TablePath
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.kv.part_replacement import PartStager
from streamhouse_spark.log.commits.actions import Drop
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.lifecycle import names
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table import replacement
from streamhouse_spark.table.replacement import ChosenRows
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse import pointed
from streamhouse_spark.warehouse import replacement as warehouse_replacement
from streamhouse_spark.warehouse.creation import create_action
from streamhouse_spark.warehouse.warehouse import Warehouse
from streamhouse_spark.write.append import Appends

HOT = {"table.datalake.enabled": "false"}
DAY_1 = [("day", "=", 1)]


@plant
def rows_appended_while_it_looked_stay() -> Iterator[None]:
    def follow(self: ChosenRows, _known: Any, state: Any) -> None:
        self._state = state

    with patched((ChosenRows, "_follow", follow)):
        yield


@plant
def a_replacement_takes_two_records() -> Iterator[None]:
    def commit(table: Table, staged: Any, choose: Any, transaction: Any, read: Any = None, **_: Any) -> BucketOffsets:
        chosen = ChosenRows(table, choose, read, may_look=True)
        table.log.commit(lambda state, _time_ms: chosen(state))
        return Appends(table).commit(staged, transaction=transaction)

    with patched((replacement, "commit_replacement", commit)):
        yield


@plant
def changes_that_replace_are_right_behind_any_record() -> Iterator[None]:
    with patched((PartStager, "sees_whole_buckets", False)):
        yield


@plant
def rows_outside_the_part_are_taken() -> Iterator[None]:
    with patched((replacement, "require_chosen", lambda *_: None)):
        yield


@plant
def names_do_not_lead_to_successors() -> Iterator[None]:
    def known(_storage: Any, _world: Any, log: CommitLog) -> CommitLog:
        log.refresh()
        return log

    with patched((pointed, "followed", known)):
        yield


@plant
def a_table_is_dropped_before_its_successor_is_named() -> Iterator[None]:
    def succeed(storage: Any, world: Any, path: TablePath, old: CommitLog, new: CommitLog) -> None:
        old.commit(lambda _state, _time_ms: (Drop(),))
        names.point(storage, path, names.resolve(storage, path), new.table_uuid, world)

    with patched((warehouse_replacement, "succeed", succeed)):
        yield


def rows(*numbers: int) -> list[dict[str, int]]:
    return [{"id": n, "day": n % 3} for n in numbers]


def ids(table: Table) -> list[int]:
    return sorted(table.to_arrow()["id"].to_pylist())


def new_table(warehouse: Warehouse, **how: Any) -> Table:
    return warehouse.create_table("sales.parts", "id BIGINT, day INT", partition_by=["day"], **how)


def another_appends_while_it_looks() -> None:
    table = new_table(Run().warehouse, properties=HOT)
    table.append(rows(0, 1, 2))
    right = ChosenRows.look

    def look(self: ChosenRows) -> None:
        right(self)
        table.append(rows(4, 5))

    with patched((ChosenRows, "look", look)):
        table.overwrite(rows(7), where=DAY_1)
    assert ids(table) == [0, 2, 5, 7]


def a_crash_at_each_call() -> None:
    def new_store() -> Storage:
        storage = MemoryStorage(sim_world())
        new_table(Warehouse("wh", storage=storage, world=sim_world(1)), properties=HOT).append(rows(0, 1, 2))
        return storage

    def opened(storage: Storage, seed: int) -> Table:
        return Warehouse("wh", storage=storage, world=sim_world(seed)).table("sales.parts")

    work = lambda storage: opened(storage, 2).overwrite(rows(7), where=DAY_1)  # noqa: E731
    for attempt in sweep(new_store, work, faults=(Fault.CRASH_AFTER,)):
        assert ids(opened(attempt.store, 3)) in ([0, 1, 2], [0, 2, 7]), attempt


def another_writes_a_bucket_without_rows_of_the_part() -> None:
    properties = {**HOT, "table.changelog.image": "wal"}
    table = new_table(Run().warehouse, primary_key=["id", "day"], properties=properties)
    table.upsert(rows(0, 2))
    right, left = PartStager.staged, iter(range(1))

    def staged(self: PartStager, *given: Any) -> Any:
        found = right(self, *given)
        for _ in left:
            other = Warehouse("wh", storage=table.storage, world=sim_world(77)).table("sales.parts")
            other.upsert(rows(4))
        return found

    with patched((PartStager, "staged", staged)):
        table.overwrite(rows(7), where=DAY_1)
    assert ids(table) == [0, 2, 7]


def a_second_run_replaces_the_first() -> None:
    table = new_table(Run().warehouse, properties=HOT)
    for _ in range(2):
        try:
            table.overwrite(rows(1, 2), where=DAY_1)
        except SchemaMismatchError:
            pass
    assert ids(table) == sorted(set(ids(table)))


def a_crash_while_a_table_takes_the_place() -> None:
    path = TablePath("sales", "parts")

    def opened(storage: Storage, seed: int) -> Warehouse:
        return Warehouse("wh", storage=storage, world=sim_world(seed))

    def new_store() -> Storage:
        storage = MemoryStorage(sim_world())
        new_table(opened(storage, 1), properties=HOT).append(rows(0))
        return storage

    def replace(storage: Storage) -> None:
        warehouse = opened(storage, 2)
        staged = warehouse_replacement.stage_table(
            warehouse, path, create_action(path, "id BIGINT", (), (), None, dict(HOT))
        )
        staged.append([{"id": 7}])
        warehouse_replacement.publish_table(warehouse, path, staged.uuid, warehouse.table(str(path)).uuid)

    for attempt in sweep(new_store, replace, faults=(Fault.CRASH_AFTER,)):
        assert ids(opened(attempt.store, 3).table(str(path))) in ([0], [7]), attempt


FINDERS: dict[str, Callable[[], Any]] = {
    "rows_appended_while_it_looked_stay": another_appends_while_it_looks,
    "a_replacement_takes_two_records": a_crash_at_each_call,
    "changes_that_replace_are_right_behind_any_record": another_writes_a_bucket_without_rows_of_the_part,
    "rows_outside_the_part_are_taken": a_second_run_replaces_the_first,
    "names_do_not_lead_to_successors": a_crash_while_a_table_takes_the_place,
    "a_table_is_dropped_before_its_successor_is_named": a_crash_while_a_table_takes_the_place,
}
