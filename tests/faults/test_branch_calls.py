"""A fault at every storage call of making, publishing and dropping a branch: there is the whole branch or none, all of
its changes are published or none of them, and what was left unfinished can be done again, and goes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from faults.faulty_storage import Fault, RecordedStore, race, sweep
from faults.test_clone_calls import ROWS, add, clean, opened, stored_table
from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import StreamhouseError, Table, TableNotFoundError, Warehouse
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.log import commit_validation
from streamhouse_spark.log.gc import dropped_tables
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table.versioning import branches, publication
from streamhouse_spark.table.versioning import publication as keyed_publication

CACHES = count()
CHANGED = [0, *range(2, 12)]
"""The rows of the branch, and so of the table once that is published."""


def stored_branch(kind: str) -> MemoryStorage:
    """Return the store of a table of some kind with a changed branch."""
    storage = stored_table(kind)
    table = opened(storage, 1).table("t")
    table.create_branch("b")
    change(table.branch("b"))
    close_tablets()
    return storage


def new_host(start: MemoryStorage) -> MemoryStorage:
    """Return a copy of the store, for a host with an empty cache: tables of all copies have the same identity."""
    close_tablets()
    folder = os.environ["STREAMHOUSE_CACHE_DIR"].partition("-attempt-")[0]
    os.environ["STREAMHOUSE_CACHE_DIR"] = f"{folder}-attempt-{next(CACHES)}"
    return RecordedStore(start).copy()


def is_log_table(start: MemoryStorage) -> bool:
    """Return whether the table has no primary key, so that its host caches no rows that a later attempt could find."""
    return not opened(start, 2).table("t").state.primary_key


def change(branch: Table) -> None:
    add(branch, [9, 10, 11])
    if branch.state.primary_key:
        branch.delete([1])
    else:
        branch.delete(where=[("id", "=", 1)])


BY_KEY = pytest.param("tiered by key", marks=pytest.mark.long)
TIERED = pytest.param("tiered", marks=pytest.mark.long)


@pytest.fixture(autouse=True)
def _own_cache(own_cache: Path) -> None:
    """Give each test a cache of rows by key, and put it back as it was."""


@pytest.fixture(scope="module", params=["hot", BY_KEY, TIERED])
def plain(request) -> MemoryStorage:
    return stored_table(request.param)


@pytest.fixture(scope="module", params=["hot", "tiered by key", TIERED])
def branched(request) -> MemoryStorage:
    return stored_branch(request.param)


@pytest.fixture(scope="module", params=["hot", BY_KEY])
def planted(request) -> MemoryStorage:
    return stored_branch(request.param)


def has_branch(warehouse: Warehouse) -> bool:
    return [one.name for one in warehouse.table("t").branches()] == ["b"]


def left_over(storage: Storage, seeds: Callable[[], int]) -> list[str]:
    """Take the branch away, clean, and return the files that are of neither the table nor a tombstone."""
    warehouse = opened(storage, seeds())
    uuid = warehouse.table("t").uuid
    if has_branch(warehouse):
        warehouse.table("t").drop_branch("b")
    clean(storage, seeds, "t")
    clean(storage, seeds, "t")
    table = opened(storage, seeds()).table("t")
    assert table.refresh().tags == {}
    return [info.key for info in storage.list("tables/") if f"/{uuid}/" not in info.key and "/floors/" not in info.key]


@pytest.mark.sampled(160)
def test_there_is_the_whole_branch_or_none(plain, share):
    def run(storage: Storage) -> None:
        opened(storage, 3).table("t").create_branch("b")

    outcomes = set()
    for attempt in sweep(partial(new_host, plain), run, share=share, each_state_once=is_log_table(plain)):
        storage, seeds = attempt.store, partial(next, count(100))
        is_there = has_branch(opened(storage, seeds()))
        assert is_there or attempt.raised is not None
        clean(storage, seeds, "t")
        if is_there:
            branch = opened(storage, seeds()).table("t$branch_b")
            assert ids(branch) == ROWS
            change(branch)
            opened(storage, seeds()).table("t").fast_forward("b")
        else:
            opened(storage, seeds()).table("t").create_branch("b")
            assert ids(opened(storage, seeds()).table("t$branch_b")) == ROWS
        assert ids(opened(storage, seeds()).table("t")) == (CHANGED if is_there else ROWS)
        assert len(left_over(storage, seeds)) <= 1  # the first record, before anything says whose it is
        outcomes.add(is_there)
    assert outcomes


def publish(storage: Storage) -> None:
    opened(storage, 3).table("t").fast_forward("b")


def published(start: MemoryStorage, share, faults=tuple(Fault)) -> set[bool]:
    """Publish with a fault at each call: returns whether it was published, of each attempt."""
    outcomes = set()
    for attempt in sweep(
        partial(new_host, start), publish, share=share, faults=faults, each_state_once=is_log_table(start)
    ):
        storage, seeds = attempt.store, partial(next, count(100))
        table = opened(storage, seeds()).table("t")
        is_published = ids(table) == CHANGED
        assert is_published or ids(table) == ROWS
        assert is_published or attempt.raised is not None
        assert has_branch(opened(storage, seeds())) != is_published
        if not is_published:
            assert ids(opened(storage, seeds()).table("t$branch_b")) == CHANGED
        version = opened(storage, seeds()).table("t").fast_forward("b").version
        again = opened(storage, seeds()).table("t").fast_forward("b")
        assert (again.version, again.rows_written) == (version, None)
        table = opened(storage, seeds()).table("t")
        assert ids(table) == CHANGED
        if table.has_lake:
            tier(table)
            assert ids(table.lake) == CHANGED
        assert left_over(storage, seeds) == []
        assert ids(opened(storage, seeds()).table("t")) == CHANGED
        outcomes.add(is_published)
    return outcomes


@pytest.mark.sampled(160)
def test_all_changes_are_published_once_or_not_at_all(branched, share):
    assert published(branched, share)


@pytest.mark.sampled(400)
def test_a_branch_is_dropped_or_there(branched, share):
    def run(storage: Storage) -> None:
        opened(storage, 3).table("t").drop_branch("b")

    for attempt in sweep(partial(new_host, branched), run, share=share, each_state_once=is_log_table(branched)):
        storage, seeds = attempt.store, partial(next, count(100))
        warehouse = opened(storage, seeds())
        if attempt.raised is None:
            assert not has_branch(warehouse)
        elif has_branch(warehouse):
            with suppress(TableNotFoundError):  # only its name is left
                assert ids(warehouse.table("t$branch_b")) == CHANGED
        assert left_over(storage, seeds) == []
        table = opened(storage, seeds()).table("t")
        assert ids(table) == ROWS
        table.create_branch("b")
        assert ids(table.branch("b")) == ROWS


def a_writer_before_each_call(start: MemoryStorage, share) -> None:
    """Let another write one row to the branch before a storage call of its publication. A row that was acknowledged is
    published.
    """

    acknowledged: list[bool] = []

    def write(storage: Storage) -> None:
        with suppress(StreamhouseError):
            add(opened(storage, 60).table("t$branch_b"), [50])
            acknowledged.append(True)

    for met in race(partial(new_host, start), publish, write, share=share):
        met.require_success()
        assert ids(opened(met.store, 90).table("t")) == ([*CHANGED, 50] if acknowledged else CHANGED), met.op
        acknowledged.clear()


@pytest.mark.sampled(80)
def test_no_acknowledged_row_of_a_branch_is_lost(branched, share):
    a_writer_before_each_call(branched, share)


def others_before_each_call(
    start: MemoryStorage, share, others: Callable[[Table], None], expected: list[int]
) -> set[bool]:
    """Let others change the table before a storage call of a publication, which adds all changes behind these or
    nothing. Returns whether it did, of each.
    """
    outcomes = set()
    change_table = lambda storage: others(opened(storage, 60).table("t"))  # noqa: E731
    for met in race(partial(new_host, start), publish, change_table, share=share):
        rows, is_published = ids(opened(met.store, 90).table("t")), met.raised is None
        assert rows in ([*CHANGED, 50], expected), met.op
        assert is_published == (50 in rows and 9 in rows), met.op
        outcomes.add(is_published)
    return outcomes


@pytest.mark.sampled(80)
def test_a_table_that_others_write_meanwhile(branched, share):
    others_before_each_call(branched, share, lambda table: add(table, [50]), [*ROWS, 50])


class TestPlantedBugs:
    """Mistakes that the checks here have to find."""

    EACH = range(10_000)

    def test_without_one_all_is_well(self, planted):
        assert published(planted, self.EACH, faults=(Fault.CRASH_AFTER,)) == {True, False}
        a_writer_before_each_call(planted, self.EACH)

    def test_a_branch_that_is_not_sealed(self, planted, monkeypatch):
        unsealed = lambda changes, log: publication.BranchChanges(changes.branch, changes.base, log.refresh())  # noqa: E731
        monkeypatch.setattr(publication, "seal_branch", unsealed)
        monkeypatch.setattr(keyed_publication, "seal_branch", unsealed)
        with pytest.raises((StreamhouseError, AssertionError)):
            a_writer_before_each_call(planted, self.EACH)

    def test_a_seal_that_writers_do_not_see(self, planted, monkeypatch):
        monkeypatch.setattr(commit_validation.act, "moves_rows", lambda _: False)
        with pytest.raises((StreamhouseError, AssertionError)):
            a_writer_before_each_call(planted, self.EACH)

    def test_a_name_that_stays_behind_the_record(self, planted, monkeypatch):
        monkeypatch.setattr(publication.BranchChanges, "make_end_actions", lambda *_: ())
        with pytest.raises((StreamhouseError, AssertionError)):
            published(planted, self.EACH, faults=(Fault.CRASH_AFTER,))

    def test_a_publication_that_is_no_transaction(self, planted, monkeypatch):
        monkeypatch.setattr(publication.BranchChanges, "transaction", None)
        with pytest.raises((StreamhouseError, AssertionError)):
            published(planted, self.EACH, faults=(Fault.CRASH_AFTER,))

    def test_a_branch_whose_log_is_taken_for_one_without_a_name(self, planted, monkeypatch):
        monkeypatch.setattr(dropped_tables, "branch_tag", lambda *_: "none")
        storage = new_host(planted)
        seeds = partial(next, count(100))
        clean(storage, seeds, "t")
        clean(storage, seeds, "t")
        with pytest.raises(StreamhouseError):
            opened(storage, seeds()).table("t").fast_forward("b")

    def test_a_table_that_keeps_nothing_for_its_branch(self, monkeypatch):
        start = stored_table("tiered")
        storage = new_host(start)
        monkeypatch.setattr(
            branches, "Tag", lambda name, version, uuid, _lake: commit_validation.act.Tag(name, version, uuid)
        )
        opened(storage, 3).table("t").create_branch("b")
        table = opened(storage, 4).table("t")
        table.truncate()
        tier(table)
        clean(storage, partial(next, count(100)), "t")
        with pytest.raises(StreamhouseError):
            ids(opened(storage, 5).table("t$branch_b"))

    def test_changes_of_others_are_not_looked_for(self, monkeypatch):
        start = stored_branch("hot")
        monkeypatch.setattr(publication, "describe_divergence", lambda *_: None)
        with pytest.raises((StreamhouseError, AssertionError)):
            others_before_each_call(start, self.EACH, lambda table: table.overwrite([{"id": 50}]), [50])
