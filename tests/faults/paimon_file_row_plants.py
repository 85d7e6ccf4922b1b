"""Mistakes about deleted rows of a Paimon lake's files without offsets, and the stories that find them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from faults.plants import patched, plant
from faults.sim import sim_world
from interop.foreign_paimon import adopted, appended, ids, rewritten, row, stock, tier
from streamhouse_spark.core.offset_runs import OffsetRuns
from streamhouse_spark.errors import CommitConflictError, InvalidOptionError, SnapshotExpiredError
from streamhouse_spark.kv.read_base import ReadBase
from streamhouse_spark.lake.paimon import foreign_rows
from streamhouse_spark.lake.paimon import round as paimon_round
from streamhouse_spark.lake.paimon.table import PaimonLake
from streamhouse_spark.lake.parquet import row_rewrite
from streamhouse_spark.lake.tiering import job
from streamhouse_spark.lake.tiering.log_rows import RowsOfLog
from streamhouse_spark.read import file_rows, planner
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table import row_deletion
from streamhouse_spark.table.table import Table
from unit.lake.paimon.test_races import Renaming


@plant
def others_add_no_rows_to_a_paimon_lake() -> Iterator[None]:
    with patched((PaimonLake, "adds_no_others", lambda *_: True)):
        yield


@plant
def paimon_files_lose_the_row_before_the_deleted_one() -> Iterator[None]:
    right = row_rewrite.places_within

    def shifted(numbers: Any, position: int, num_rows: int) -> Any:
        return right(np.maximum(numbers - 1, 0), position, num_rows)

    with patched((row_rewrite, "places_within", shifted)):
        yield


@plant
def paimon_rounds_that_wrote_files_again_keep_them() -> Iterator[None]:
    with patched((foreign_rows, "_keeps", lambda _: True)):
        yield


@plant
def a_paimon_round_passes_over_a_commit_that_came_meanwhile() -> Iterator[None]:
    right = paimon_round.name_of

    with patched(
        (paimon_round, "name_of", lambda snapshot: None if snapshot is None else "any"),
        (foreign_rows, "name_of", lambda snapshot: "any" if snapshot is not None else right(snapshot)),
    ):
        yield


@plant
def a_paimon_number_is_taken_for_the_snapshot() -> Iterator[None]:
    with patched((PaimonLake, "mark_of", lambda _, snapshot_id: str(snapshot_id))):
        yield


@plant
def files_of_deleted_rows_are_not_asked_for() -> Iterator[None]:
    with patched((planner, "_require_files", lambda *_: None)):
        yield


@plant
def rows_of_a_round_that_is_not_recorded_are_not_looked_for() -> Iterator[None]:
    with patched((RowsOfLog, "read", lambda log, _rows: (log.schema.arrow.empty_table(), {}))):
        yield


def new_table(numbers: Sequence[int] = range(6)) -> tuple[Table, MemoryStorage]:
    world = sim_world(1)
    storage = MemoryStorage(world)
    return adopted(storage, world, numbers), storage


def a_life() -> None:
    table, _ = new_table()
    assert table.delete(where=[("id", "in", [1, 5])]) == 2
    assert ids(table.to_arrow()) == [0, 2, 3, 4]
    tier(table)
    assert ids(table.to_arrow()) == stock(table) == [0, 2, 3, 4]


def a_round_while_a_statement_runs() -> None:
    """It wrote the file again in which the statement found its row."""
    table, _ = new_table()
    state = table.refresh()
    table.delete(where=[("id", "=", 0)])
    (deletion,) = table.refresh().deletions
    tier(table)
    files = dict.fromkeys(deletion.files, OffsetRuns.dense(1, 1))
    with pytest.raises(CommitConflictError, match="may have other files"):
        row_deletion.commit_deletion(table, {}, ReadBase.of(state), files=files)


def an_append_while_a_round_writes() -> None:
    table, storage = new_table()
    table.delete(where=[("id", "=", 1)])
    rewritten(storage)
    right, done = PaimonLake.commit, []

    def commit(lake: Any, files: Any, **more: Any) -> Any:
        if not done:
            done.append(appended(storage, [row(1)]))
        return right(lake, files, **more)

    with patched((PaimonLake, "commit", commit)):
        assert tier(table).conflicts == 1
    assert ids(table.to_arrow()) == stock(table) == list(range(6))


def a_rename_while_a_statement_runs() -> None:
    table, _ = new_table()
    newest = table.open_lake().newest()
    assert newest is not None
    rename = Renaming(table, newest.id + 1)
    table.append([row(9)])
    tier(table)
    state = table.refresh()
    read = file_rows.read_base(table, state)
    rename()
    with pytest.raises(CommitConflictError, match="put its own lake snapshot"):
        file_rows.named_rows(table, state, read, {0: OffsetRuns.dense(0, 1)})


def a_rewrite_renamed_over_the_snapshot_that_was_read() -> None:
    """With the same offsets, so that nothing else tells."""
    table, storage = new_table()
    table.delete(where=[("id", "=", 1)])
    newest = table.refresh().lake
    assert newest is not None
    folder = f"{table.state.lake_location}/snapshot"
    own = storage.read(f"{folder}/snapshot-{newest.snapshot_id}")
    rewritten(storage)
    made = storage.read(f"{folder}/snapshot-{storage.read(f'{folder}/LATEST').decode()}")
    storage.put(f"{folder}/snapshot-{newest.snapshot_id}", _with_offsets(made, own, newest.snapshot_id))
    with pytest.raises(SnapshotExpiredError, match="tier the table"):
        table.to_arrow()


def _with_offsets(made: bytes, own: bytes, number: int) -> bytes:

    found = {**json.loads(made), "id": number, "properties": json.loads(own)["properties"]}
    return json.dumps(found).encode()


def a_rewrite_behind_a_round_that_is_not_recorded() -> None:
    table, storage = new_table()
    table.append([row(7), row(8)])
    with patched((job, "record_snapshot", lambda *_: None)):
        tier(table)
    table.delete(where=[("id", "=", 7)])
    rewritten(storage)
    tier(table)
    assert ids(table.to_arrow()) == stock(table) == [*range(6), 8]


def a_rollback_to_before_a_file_was_written() -> None:
    """A row was appended since, and lost its offset in that file: it was not there then."""
    world = sim_world(1)
    storage = MemoryStorage(world)
    table = adopted(storage, world)
    before = table.refresh().version
    table.append([row(8)])
    tier(table)
    rewritten(storage)
    table.append([row(10)])
    tier(table)
    table.delete(where=[("id", "=", 8)])
    with pytest.raises(InvalidOptionError, match="of files that the lake did not have then"):
        table.rollback_to_version(before)


FINDERS: dict[str, Callable[[], Any]] = {
    "others_add_no_rows_to_a_paimon_lake": a_rollback_to_before_a_file_was_written,
    "paimon_files_lose_the_row_before_the_deleted_one": a_life,
    "paimon_rounds_that_wrote_files_again_keep_them": a_round_while_a_statement_runs,
    "a_paimon_round_passes_over_a_commit_that_came_meanwhile": an_append_while_a_round_writes,
    "a_paimon_number_is_taken_for_the_snapshot": a_rename_while_a_statement_runs,
    "files_of_deleted_rows_are_not_asked_for": a_rewrite_renamed_over_the_snapshot_that_was_read,
    "rows_of_a_round_that_is_not_recorded_are_not_looked_for": a_rewrite_behind_a_round_that_is_not_recorded,
}
