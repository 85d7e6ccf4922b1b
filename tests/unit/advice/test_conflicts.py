"""Writers, services and statements that lose a race do what the error says, and nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import numpy as np
import pytest

from faults.faulty_storage import FaultyStorage
from kit import keyed_writes
from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import CommitConflictError
from streamhouse_spark.kv import upsert_commit
from streamhouse_spark.lake.parquet import copy_on_write as partition_drop
from streamhouse_spark.lake.tiering import job as tiering
from streamhouse_spark.log import commit_log
from streamhouse_spark.log import commit_log as commit_errors
from streamhouse_spark.log.append_commit import STAGED_AGE_MS_MAX
from streamhouse_spark.log.read_version import ReadVersion
from unit.advice.advice_place import Advice, Case, Place, each_lake, follow

pytestmark = pytest.mark.usefixtures("own_cache")


def rival_before(place: Place, pattern: str, act: Callable[[], object]) -> FaultyStorage:
    """A store at which somebody else is faster each time that an object of such a name is put."""
    inside: list[int] = []

    class Slow(FaultyStorage):
        def put_if_absent(self, key: str, data: bytes) -> None:
            if pattern in key and not inside:
                inside.append(1)
                act()
                inside.clear()
            super().put_if_absent(key, data)

    return Slow(place.memory)


# -- names ------------------------------------------------------------------------------------------------------------


def creating_a_table_beside_others(place: Place) -> Case:
    def rival() -> None:
        place.warehouse().create_table("n", "id BIGINT").append([{"id": 9}])
        place.warehouse().drop_table("n")

    slow = rival_before(place, "default/n/names/", rival)
    yield lambda: place.warehouse(slow).create_table("n", "id BIGINT")
    table = place.warehouse().create_table("n", "id BIGINT")
    table.append([{"id": 1}])
    assert ids(place.warehouse().table("n").to_arrow()) == [1]


def renaming_a_table_beside_others(place: Place) -> Case:
    def rival() -> None:
        place.warehouse().create_table("n", "id BIGINT")
        place.warehouse().drop_table("n")

    slow = rival_before(place, "default/n/names/", rival)
    yield lambda: place.warehouse(slow).rename_table("t", "n")
    place.warehouse().rename_table("t", "n")
    assert ids(place.warehouse().table("n").to_arrow()) == list(range(20))
    place.warehouse().rename_table("n", "t")


# -- appends ----------------------------------------------------------------------------------------------------------


def writing_beside_quick_writers(place: Place) -> Case:
    rows = iter(range(100, 200))
    slow = rival_before(place, "/commits/", lambda: place.table().append([{"id": next(rows)}]))
    table = place.table(slow)

    def append() -> None:
        with mock.patch.object(commit_errors, "CONFLICTS_MAX", 5):
            table.append([{"id": 20}])

    yield append
    place.table().append([{"id": 20}])
    assert ids(place.table().to_arrow()) == [*range(21), *range(100, next(rows))]


def rows_staged_for_a_table_that_was_made_anew(place: Place) -> Case:
    staged = place.table().log_writer.stager().stage(place.rows(20))
    place.warehouse().drop_table("t")
    place.create()
    yield lambda: place.table().log_writer.commit(staged)
    place.table().log_writer.commit(place.table().log_writer.stager().stage(place.rows(20)))
    assert ids(place.table().to_arrow()) == [20]


def rows_staged_long_ago(place: Place) -> Case:
    staged = place.table().log_writer.stager().stage(place.rows(20))
    place.clock.advance(STAGED_AGE_MS_MAX + 1)
    yield lambda: place.table().log_writer.commit(staged)
    place.table().log_writer.commit(place.table().log_writer.stager().stage(place.rows(20)))
    assert ids(place.table().to_arrow()) == list(range(21))


def rows_staged_by_other_columns(place: Place) -> Case:
    staged = place.table().log_writer.stager().stage(place.rows(20))
    place.table().alter(rename_columns={"id": "number"})
    yield lambda: place.table().log_writer.commit(staged)
    place.table().append([{"number": 20}])
    assert sorted(place.table().to_arrow()["number"].to_pylist()) == list(range(21))
    place.table().alter(rename_columns={"number": "id"})


# -- rows by key ------------------------------------------------------------------------------------------------------


def writing_by_key_while_columns_change(place: Place) -> Case:
    table = place.keyed()
    number = iter(range(100))
    alter = lambda: place.warehouse().table("k").alter(add_columns=f"c{next(number)} BIGINT")  # noqa: E731
    slow = place.warehouse(rival_before(place, "/commits/", alter)).table("k")
    yield lambda: slow.upsert([{"id": 1, "p": "a", "n": 2}])
    place.warehouse().table("k").upsert([{"id": 1, "p": "a", "n": 2}])
    assert table.lookup_one((1, "a"))["n"] == 2


def writing_by_key_beside_quick_processes(place: Place) -> Case:
    table = place.keyed()

    def ahead(*_: object, **__: object) -> None:
        raise upsert_commit.StaleStateError

    def upsert() -> None:
        with mock.patch.object(commit_log.CommitLog, "commit", ahead):
            table.upsert([{"id": 1, "p": "a", "n": 2}])

    yield upsert
    table.upsert([{"id": 1, "p": "a", "n": 2}])
    assert place.warehouse().table("k").lookup_one((1, "a"))["n"] == 2


def dropping_a_partition_beside_quick_processes(place: Place) -> Case:
    table = place.keyed()

    def ahead(*_: object, **__: object) -> None:
        raise upsert_commit.StaleStateError

    def drop() -> None:
        with mock.patch.object(commit_log.CommitLog, "commit", ahead):
            table.drop_partition({"p": "a"})

    yield drop
    table.drop_partition({"p": "a"})
    assert ids(place.warehouse().table("k").to_arrow()) == [2]


def rewriting_rows_that_changed(place: Place) -> Case:
    """As UPDATE, DELETE and MERGE do."""
    table = place.keyed()
    read, rows = ReadVersion.of(table.refresh()), table.to_arrow()
    place.warehouse().table("k").upsert([{"id": 1, "p": "a", "n": 7}])
    yield lambda: keyed_writes.rewrite(table, rows, np.ones(2, np.bool_), read=read)
    read, rows = ReadVersion.of(table.refresh()), table.to_arrow()
    keyed_writes.rewrite(table, rows, np.ones(2, np.bool_), read=read)
    assert ids(place.warehouse().table("k").to_arrow()) == []


def rewriting_rows_of_another_history(place: Place) -> Case:
    table = place.keyed()
    backup = dict(place.memory._objects)
    table.upsert([{"id": 3, "p": "a", "n": 7}])
    read, rows = ReadVersion.of(table.refresh()), table.to_arrow()
    place.memory._objects = backup
    place.warehouse().table("k").upsert([{"id": 4, "p": "a", "n": 7}])
    table = place.warehouse().table("k")
    yield lambda: keyed_writes.rewrite(table, rows, np.ones(3, np.bool_), read=read)
    read, rows = ReadVersion.of(table.refresh()), table.to_arrow()
    keyed_writes.rewrite(table, rows, np.ones(3, np.bool_), read=read)
    assert ids(place.warehouse().table("k").to_arrow()) == []


# -- lakes ------------------------------------------------------------------------------------------------------------


def tiering_beside_quick_services(place: Place) -> Case:
    table = place.table()
    rows = iter(range(100, 200))

    def others_first(tasks: object) -> object:
        place.table().append([{"id": next(rows)}])
        tier(place.table())
        return tiering.run_tasks_locally(table.storage, table.settings, table.world)(tasks)

    def run() -> None:
        with mock.patch.object(tiering, "CONFLICTS_MAX", 0):  # others would have to win 20 times
            tiering.TieringJob(table.log, table.open_lake(), world=table.world).run(others_first)

    yield run
    tier(place.table())


def committing_beside_quick_engines(place: Place) -> Case:
    def run() -> None:
        with mock.patch(f"streamhouse_spark.lake.{place.lake}.snapshot_commit.ATTEMPTS_MAX", 0):
            tier(place.table())

    yield run
    tier(place.table())


def dropping_a_partition_beside_quick_engines(place: Place) -> Case:
    table = place.partitioned()

    def never(*_: object, **__: object) -> None:
        raise CommitConflictError("another was faster")

    name = {"iceberg": "_make_change", "paimon": "_require_as_planned"}[place.lake]
    one_try = f"streamhouse_spark.lake.{place.lake}.drop_partition.{name}"

    def run() -> None:
        with mock.patch(one_try, never), mock.patch.object(partition_drop, "ATTEMPTS_MAX", 2):
            table.drop_partition({"p": "a"})

    yield run
    table.drop_partition({"p": "a"})
    assert ids(place.warehouse().table("p").to_arrow()) == [2]


ADVICE: dict[Callable[[Place], Case], Advice] = {
    creating_a_table_beside_others: Advice("COMMIT_CONFLICT", "cannot create default.n: .* try again", "try again"),
    renaming_a_table_beside_others: Advice(
        "COMMIT_CONFLICT", "cannot name a table default.n: .* retry", "races for the name; retry"
    ),
    writing_beside_quick_writers: Advice(
        "COMMIT_CONFLICT", "retry, or write fewer, larger batches", "retry, or write fewer, larger batches"
    ),
    rows_staged_for_a_table_that_was_made_anew: Advice(
        "COMMIT_CONFLICT", "dropped and created again; .*write the rows again", "write the rows again"
    ),
    rows_staged_long_ago: Advice(
        "COMMIT_CONFLICT", "rows were staged .* ms ago.* write them again", "write them again"
    ),
    rows_staged_by_other_columns: Advice(
        "COMMIT_CONFLICT", "write the rows again with its columns number", "write the rows again with its columns"
    ),
    writing_by_key_while_columns_change: Advice(
        "COMMIT_CONFLICT", "columns were altered .* retry the write", "nothing was written, retry the write"
    ),
    writing_by_key_beside_quick_processes: Advice(
        "COMMIT_CONFLICT", "lost 100 races .* retry the write", "nothing was written, retry the write"
    ),
    dropping_a_partition_beside_quick_processes: Advice(
        "COMMIT_CONFLICT", "drop the partition again", "nothing was deleted, drop the partition again"
    ),
    rewriting_rows_that_changed: Advice("COMMIT_CONFLICT", "run the statement again", "run the statement again"),
    rewriting_rows_of_another_history: Advice(
        "DIFFERENT_HISTORY", "retry with", "Nothing was written; retry with the current table"
    ),
    tiering_beside_quick_services: Advice("COMMIT_CONFLICT", "concurrently; retry", "retry"),
    committing_beside_quick_engines: Advice("COMMIT_CONFLICT", "conflicted with other writers", "retry later"),
    dropping_a_partition_beside_quick_engines: Advice(
        "COMMIT_CONFLICT", "nothing of .* was dropped, retry", "dropped, retry"
    ),
}


@pytest.mark.parametrize(("case", "lake"), each_lake(ADVICE))
def test_what_it_says_works(case, lake, memory, clock):
    follow(case, ADVICE[case], Place(memory, clock, lake))
