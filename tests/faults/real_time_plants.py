"""Mistakes about the sink of real-time mode, and the stories that find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from faults.faulty_storage import Fault
from faults.plants import patched, plant
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
from faults.sim import sim_world
from streamhouse_spark.core.model import Transaction
from streamhouse_spark.datasource.write import real_time_batches
from streamhouse_spark.datasource.write.query_identity import SourceOfRows
from streamhouse_spark.datasource.write.real_time import STORED_KEY, RealTimeStreamWriter
from streamhouse_spark.datasource.write.real_time_batches import RealTimeBatch
from streamhouse_spark.datasource.write.staging_task import StagedMessage
from streamhouse_spark.errors import DifferentHistoryError
from streamhouse_spark.log.commits.actions import Append
from streamhouse_spark.warehouse.warehouse import Warehouse


def rivals_at_every_call() -> None:
    base = new_store(by_key=False)
    for call in range(0, calls(base), 3):
        rival_before(base, call, has_begun=True, steps=2)


def crashes_at_every_call() -> None:
    base = new_store(by_key=False)
    for call in range(0, calls(base), 2):
        survive(base, {call: Fault.CRASH_AFTER})


def a_target_is_put_back() -> None:
    """The copy is of the time between two commits of a batch that ends later."""
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


def a_source_is_put_back_and_grows() -> None:
    store, checkpoint = new_store(by_key=False), Checkpoint()
    copy = table_objects(store, SOURCE)
    append(store, 100)
    Life(store, checkpoint, 0).run(num_batches=0)
    checkpoint.batch, checkpoint.starts = 0, Checkpoint().starts  # a kill between the last rows and their end
    put_back(store, SOURCE, copy)
    append(store, 200)
    append(store, 300)
    with pytest.raises(DifferentHistoryError):
        Life(store, checkpoint, 1).run()


def append(store: Any, first: int) -> None:
    table = Warehouse("wh", storage=store, world=sim_world(first)).table(SOURCE)
    table.append([{"id": i} for i in range(first, first + 8)])


def a_query_is_forgotten() -> None:
    store = new_store(by_key=False)
    Life(store, Checkpoint(), 0, app_id="app").run()
    Warehouse("wh", storage=store, world=sim_world(5)).table(TARGET).forget_transactions("app")
    Life(store, Checkpoint(), 1, query=ANOTHER, app_id="app").run()
    check(store, times=2)


def a_task_fails_behind_its_first_commit() -> None:
    """Its next attempt knows of the rows that were stored when the batch began, and cuts its own elsewhere."""
    life = Life(store := new_store(by_key=False), Checkpoint(), 0)
    life.begin()
    known = dict(life.stored)
    life.take(1, rounds=1)
    life.stored, life.cut = known, life.cut + 1
    life.take_again(rounds=10)
    check(store)


@plant
def rows_in_real_time_follow_any_others() -> Iterator[None]:
    original = SourceOfRows.transaction

    def transaction(self: SourceOfRows, *given: Any) -> Transaction:
        return replace(original(self, *given), follows=None)

    with patched((SourceOfRows, "transaction", transaction)):
        yield


@plant
def rows_in_real_time_have_no_places() -> Iterator[None]:
    def transaction(_self: SourceOfRows, *_given: Any) -> None:
        return None

    with patched((SourceOfRows, "transaction", transaction)):
        yield


@plant
def the_mark_of_a_query_counts_no_batches() -> Iterator[None]:
    original = SourceOfRows.mark
    with patched((SourceOfRows, "mark", lambda self, app_id, _ended: original(self, app_id, 0))):
        yield


@plant
def offsets_of_the_source_are_places_enough() -> Iterator[None]:
    with patched((real_time_batches, "_record", lambda *_: None)):
        yield


@plant
def places_outlive_the_query_that_is_forgotten() -> Iterator[None]:
    from streamhouse_spark.table import alter

    def begin(self: RealTimeBatch, source: Any, num_buckets: int) -> Any:
        self.table.log.commit(lambda *_: (Append((), ()),), transaction=self._mark)
        return original(self, source, num_buckets)

    original = RealTimeBatch.begin
    with patched((alter, "places_of", lambda *_: ()), (RealTimeBatch, "begin", begin)):
        yield


@plant
def a_task_that_runs_again_begins_where_its_batch_began() -> Iterator[None]:
    with patched((RealTimeStreamWriter, "_stored", lambda _self: StagedMessage(None, counts=STORED_KEY + "{}"))):
        yield


FINDERS: dict[str, Callable[[], object]] = {
    "rows_in_real_time_follow_any_others": rivals_at_every_call,
    "rows_in_real_time_have_no_places": crashes_at_every_call,
    "the_mark_of_a_query_counts_no_batches": a_target_is_put_back,
    "offsets_of_the_source_are_places_enough": a_source_is_put_back_and_grows,
    "places_outlive_the_query_that_is_forgotten": a_query_is_forgotten,
    "a_task_that_runs_again_begins_where_its_batch_began": a_task_fails_behind_its_first_commit,
}
