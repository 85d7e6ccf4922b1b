"""Mistakes about deleted rows of lake files without offsets, and the stories that find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from faults.plants import patched, plant
from faults.sim import sim_world
from interop.foreign_iceberg import adopted, ids, rewritten, stock, tier
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.offset_runs import OffsetRuns
from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.kv.read_base import ReadBase
from streamhouse_spark.lake.iceberg.foreign import file_deletes
from streamhouse_spark.lake.parquet import equal_rows
from streamhouse_spark.lake.tiering import job, recording
from streamhouse_spark.lake.tiering import round as tiering_round
from streamhouse_spark.log.commits import deletions as masks
from streamhouse_spark.log.commits.checkpoint import as_stored
from streamhouse_spark.log.commits.deletions import Deletion
from streamhouse_spark.read import file_rows, planner
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table import row_deletion
from streamhouse_spark.table.table import Table


@plant
def positions_are_those_of_the_next_file() -> Iterator[None]:
    right = file_rows.named_rows

    def named(table: Any, state: Any, read: Any, places: Any) -> Any:
        return right(table, state, read, {1 - place: runs for place, runs in places.items()})

    with patched((file_rows, "named_rows", named)):
        yield


@plant
def rows_of_files_are_read_until_the_next_round() -> Iterator[None]:
    with patched((planner, "masked_files", lambda _: {})):
        yield


@plant
def rounds_leave_rows_of_files_in_the_lake() -> Iterator[None]:
    with patched((tiering_round, "waiting", lambda *_: ())):
        yield


@plant
def rows_of_files_are_deleted_again_by_the_next_round() -> Iterator[None]:
    right = masks.waiting

    with patched(
        (tiering_round, "waiting", lambda found, _: right(found, 0)),
        (file_deletes, "_planned", lambda _place, table, spec, _told: table.metadata.snapshot_by_id(spec.snapshot_id)),
    ):
        yield


@plant
def rows_whose_file_was_replaced_stay() -> Iterator[None]:
    with patched((file_deletes, "_replaced", lambda *_: {})):
        yield


@plant
def all_rows_that_are_equal_go() -> Iterator[None]:
    right = equal_rows.RowsToFind.found_in

    def found_in(rows: Any, batch: Any) -> Any:
        counts = rows._counts.copy()
        rows._counts[:] = batch.num_rows
        found = right(rows, batch)
        rows._counts[:] = np.minimum(counts, batch.num_rows)
        return found

    with patched((equal_rows.RowsToFind, "found_in", found_in)):
        yield


@plant
def positions_of_an_older_snapshot_count_in_any_newer_one() -> Iterator[None]:
    always = lambda *_: True  # noqa: E731
    with patched((masks, "have_same_files", always), (file_rows, "have_same_files", always)):
        yield


@plant
def snapshots_with_other_files_are_recorded() -> Iterator[None]:
    with patched((recording, "waiting", lambda *_: ())):
        yield


@plant
def checkpoints_forget_rows_of_files() -> Iterator[None]:
    right = Deletion.to_json

    with patched((Deletion, "to_json", lambda found: right(replace(found, files={}, snapshot_id=None)))):
        yield


def new_table(numbers: Sequence[int] = range(6)) -> tuple[Table, MemoryStorage, World]:
    world = sim_world(1)
    storage = MemoryStorage(world)
    return adopted(storage, world, numbers), storage, world


def a_life() -> None:
    table, *_ = new_table()
    assert table.delete(where=[("id", "in", [1, 5])]) == 2
    assert ids(table.to_arrow()) == [0, 2, 3, 4]
    tier(table)
    assert ids(table.to_arrow()) == stock(table) == [0, 2, 3, 4]


def a_rewrite_before_the_round() -> None:
    table, storage, world = new_table([1, 1, 2, 3, 3, 3])
    files = {_file(table, 0): OffsetRuns.dense(1, 1)}
    row_deletion.commit_deletion(table, {}, ReadBase.of(table.refresh()), files=files)
    left = ids(table.to_arrow())
    rewritten(storage, world)
    with patched((job, "write_round", _killed)), pytest.raises(InterruptedError):
        tier(table)
    assert ids(table.to_arrow()) == left
    tier(table)
    assert ids(table.to_arrow()) == stock(table) == left


def a_rewrite_behind_a_round_that_is_not_recorded() -> None:
    table, storage, world = new_table([1, 1, 2, 3, 3, 3])
    files = {name: OffsetRuns.dense(1, 1) for name in (_file(table, 0), _file(table, 1))}
    row_deletion.commit_deletion(table, {}, ReadBase.of(table.refresh()), files=files)
    left = ids(table.to_arrow())
    with patched((job, "record_snapshot", lambda *_: None)):
        tier(table)
    rewritten(storage, world)
    tier(table)
    assert ids(table.to_arrow()) == stock(table) == left


def a_file_is_replaced_while_a_statement_runs() -> None:
    table, storage, world = new_table()
    read, files = ReadBase.of(table.refresh()), {_file(table, 0): OffsetRuns.dense(1, 1)}
    rewritten(storage, world)
    table.append([{"id": 9}])
    tier(table)
    with pytest.raises(CommitConflictError):
        row_deletion.commit_deletion(table, {}, read, files=files)


def a_checkpoint() -> None:
    table, *_ = new_table()
    table.delete(where=[("id", "=", 1)])
    assert as_stored(table.state).deletions == table.state.deletions


def _file(table: Table, place: int) -> str:
    state = table.refresh()
    read = file_rows.read_base(table, state)
    return next(iter(file_rows.named_rows(table, state, read, {place: OffsetRuns.dense(0, 1)})))


def _killed(*_: Any) -> Any:
    raise InterruptedError


FINDERS: dict[str, Callable[[], Any]] = {
    "positions_are_those_of_the_next_file": a_life,
    "rows_of_files_are_read_until_the_next_round": a_life,
    "rounds_leave_rows_of_files_in_the_lake": a_life,
    "rows_of_files_are_deleted_again_by_the_next_round": a_rewrite_behind_a_round_that_is_not_recorded,
    "rows_whose_file_was_replaced_stay": a_rewrite_before_the_round,
    "all_rows_that_are_equal_go": a_rewrite_before_the_round,
    "positions_of_an_older_snapshot_count_in_any_newer_one": a_file_is_replaced_while_a_statement_runs,
    "snapshots_with_other_files_are_recorded": a_rewrite_before_the_round,
    "checkpoints_forget_rows_of_files": a_checkpoint,
}
