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

from faults.faulty_storage import Fault, FaultyStorage, sweep
from faults.sim import SimClock, sim_world
from faults.test_clone_calls import NEVER, clean, ids, opened, tier
from streamhouse_spark.errors import StreamhouseError, TableNotFoundError
from streamhouse_spark.kv.tablets import close_tablets
from streamhouse_spark.log.commits import transaction_outcome
from streamhouse_spark.log.lifecycle import dropping
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table.branching import branches, keyed_publication, publication
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.warehouse import Warehouse

CACHES = count()
ROWS = list(range(9))
CHANGED = [0, *range(2, 12)]
"""The rows of the branch, and so of the table once that is published."""


class Made:
    """A table of some kind, with a changed branch if that is asked for; each attempt gets it anew."""

    def __init__(self, kind: str, *, with_branch: bool) -> None:
        self._clock = SimClock()
        world = sim_world(0, self._clock)
        storage = MemoryStorage(world)
        properties = {"table.datalake.enabled": str(kind != "hot").lower(), **NEVER}
        self.key = ["id"] if "key" in kind else []
        warehouse = Warehouse("wh", storage=storage, world=world)
        table = warehouse.create_table("t", "id INT NOT NULL", buckets=1, properties=properties, primary_key=self.key)
        for part in (ROWS[:3], ROWS[3:6], ROWS[6:]):
            add(table, part)
            if kind != "hot" and part is not ROWS[6:]:
                tier(table)
        if with_branch:
            table.create_branch("b")
            change(table.branch("b"))
        self._objects = dict(storage._objects)

    def begun(self) -> tuple[MemoryStorage, SimClock]:
        close_tablets()  # tables of all attempts have the same identity
        folder = os.environ["STREAMHOUSE_CACHE_DIR"].partition("-attempt-")[0]
        os.environ["STREAMHOUSE_CACHE_DIR"] = f"{folder}-attempt-{next(CACHES)}"
        clock = SimClock()
        clock.advance(self._clock.now_ms() - clock.now_ms())
        storage = MemoryStorage(sim_world(0, clock))
        storage._objects = dict(self._objects)
        return storage, clock


def add(table: Table, numbers: list[int]) -> None:
    (table.upsert if table.state.primary_key else table.append)([{"id": n} for n in numbers])


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
def plain(request) -> Made:
    return Made(request.param, with_branch=False)


@pytest.fixture(scope="module", params=["hot", "tiered by key", TIERED])
def branched(request) -> Made:
    return Made(request.param, with_branch=True)


@pytest.fixture(scope="module", params=["hot", BY_KEY])
def planted(request) -> Made:
    return Made(request.param, with_branch=True)


def has_branch(warehouse: Warehouse) -> bool:
    return [one.name for one in warehouse.table("t").branches()] == ["b"]


def left_over(storage: MemoryStorage, clock: SimClock, seeds: Callable[[], int]) -> list[str]:
    """Take the branch away, clean, and return the files that are of neither the table nor a tombstone."""
    warehouse = opened(storage, seeds(), clock)
    uuid = warehouse.table("t").uuid
    if has_branch(warehouse):
        warehouse.table("t").drop_branch("b")
    clean(storage, clock, seeds, "t")
    clean(storage, clock, seeds, "t")
    table = opened(storage, seeds(), clock).table("t")
    assert table.refresh().tags == {}
    return [info.key for info in storage.list("tables/") if f"/{uuid}/" not in info.key and "/floors/" not in info.key]


@pytest.mark.sampled(160)
def test_there_is_the_whole_branch_or_none(plain, share):
    clocks: list[SimClock] = []

    def begin() -> Storage:
        storage, clock = plain.begun()
        clocks.append(clock)
        return storage

    def run(storage: Storage) -> None:
        opened(storage, 3, clocks[-1]).table("t").create_branch("b")

    outcomes = set()
    for attempt in sweep(begin, run, faults=tuple(Fault), share=share):
        storage, clock, seeds = attempt.store, clocks[-1], partial(next, count(100))
        is_there = has_branch(opened(storage, seeds(), clock))
        assert is_there or attempt.raised is not None
        clean(storage, clock, seeds, "t")
        if is_there:
            branch = opened(storage, seeds(), clock).table("t$branch_b")
            assert ids(branch) == ROWS
            change(branch)
            opened(storage, seeds(), clock).table("t").fast_forward("b")
        else:
            opened(storage, seeds(), clock).table("t").create_branch("b")
            assert ids(opened(storage, seeds(), clock).table("t$branch_b")) == ROWS
        assert ids(opened(storage, seeds(), clock).table("t")) == (CHANGED if is_there else ROWS)
        assert len(left_over(storage, clock, seeds)) <= 1  # the first record, before anything says whose it is
        outcomes.add(is_there)
    assert outcomes


def published(made: Made, share, faults=tuple(Fault)) -> set[bool]:
    """Publish with a fault at each call: returns whether it was published, of each attempt."""
    clocks: list[SimClock] = []

    def begin() -> Storage:
        storage, clock = made.begun()
        clocks.append(clock)
        return storage

    def run(storage: Storage) -> None:
        opened(storage, 3, clocks[-1]).table("t").fast_forward("b")

    outcomes = set()
    for attempt in sweep(begin, run, faults=faults, share=share):
        storage, clock, seeds = attempt.store, clocks[-1], partial(next, count(100))
        table = opened(storage, seeds(), clock).table("t")
        is_published = ids(table) == CHANGED
        assert is_published or ids(table) == ROWS
        assert is_published or attempt.raised is not None
        assert has_branch(opened(storage, seeds(), clock)) != is_published
        if not is_published:
            assert ids(opened(storage, seeds(), clock).table("t$branch_b")) == CHANGED
        version = opened(storage, seeds(), clock).table("t").fast_forward("b").version
        again = opened(storage, seeds(), clock).table("t").fast_forward("b")
        assert (again.version, again.rows_written) == (version, None)
        table = opened(storage, seeds(), clock).table("t")
        assert ids(table) == CHANGED
        if table.has_lake:
            tier(table)
            assert ids(table.lake) == CHANGED
        assert left_over(storage, clock, seeds) == []
        assert ids(opened(storage, seeds(), clock).table("t")) == CHANGED
        outcomes.add(is_published)
    return outcomes


@pytest.mark.sampled(160)
def test_all_changes_are_published_once_or_not_at_all(branched, share):
    assert published(branched, share)


@pytest.mark.sampled(400)
def test_a_branch_is_dropped_or_there(branched, share):
    clocks: list[SimClock] = []

    def begin() -> Storage:
        storage, clock = branched.begun()
        clocks.append(clock)
        return storage

    def run(storage: Storage) -> None:
        opened(storage, 3, clocks[-1]).table("t").drop_branch("b")

    for attempt in sweep(begin, run, faults=tuple(Fault), share=share):
        storage, clock, seeds = attempt.store, clocks[-1], partial(next, count(100))
        warehouse = opened(storage, seeds(), clock)
        if attempt.raised is None:
            assert not has_branch(warehouse)
        elif has_branch(warehouse):
            with suppress(TableNotFoundError):  # only its name is left
                assert ids(warehouse.table("t$branch_b")) == CHANGED
        assert left_over(storage, clock, seeds) == []
        table = opened(storage, seeds(), clock).table("t")
        assert ids(table) == ROWS
        table.create_branch("b")
        assert ids(table.branch("b")) == ROWS


def a_writer_before_each_call(made: Made, share) -> None:
    """Let another write one row to the branch before a storage call of its publication. A row that was acknowledged is
    published.
    """
    calls = 1

    def at(met: int, told: list[bool], storage: MemoryStorage, clock: SimClock, number: int, *_: str) -> None:
        if number == met:
            with suppress(StreamhouseError):
                add(opened(storage, 60, clock).table("t$branch_b"), [50])
                told.append(True)

    for met in count():
        if met >= calls:
            return
        if met not in share:
            continue
        storage, clock = made.begun()
        told: list[bool] = []
        faulty = FaultyStorage(storage, partial(at, met, told, storage, clock))
        opened(faulty, 3, clock).table("t").fast_forward("b")
        calls = max(calls, len(faulty.trace))
        rows = ids(opened(storage, 90, clock).table("t"))
        assert rows == ([*CHANGED, 50] if told else CHANGED), faulty.trace[met]


@pytest.mark.sampled(80)
def test_no_acknowledged_row_of_a_branch_is_lost(branched, share):
    a_writer_before_each_call(branched, share)


def others_before_each_call(made: Made, share, others: Callable[[Table], None], expected: list[int]) -> set[bool]:
    """Let others change the table before a storage call of a publication, which adds all changes behind these or
    nothing. Returns whether it did, of each.
    """
    found, calls = set(), 1

    def at(met: int, storage: MemoryStorage, clock: SimClock, number: int, *_: str) -> None:
        if number == met:
            others(opened(storage, 60, clock).table("t"))

    for met in count():
        if met >= calls:
            return found
        if met not in share:
            continue
        storage, clock = made.begun()
        faulty = FaultyStorage(storage, partial(at, met, storage, clock))
        told = False
        with suppress(StreamhouseError):
            opened(faulty, 3, clock).table("t").fast_forward("b")
            told = True
        calls = max(calls, len(faulty.trace))
        rows = ids(opened(storage, 90, clock).table("t"))
        assert rows in ([*CHANGED, 50], expected), faulty.trace[met]
        assert told == (50 in rows and 9 in rows), faulty.trace[met]
        found.add(told)
    raise AssertionError("unreachable")


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
        monkeypatch.setattr(publication, "sealed", unsealed)
        monkeypatch.setattr(keyed_publication, "sealed", unsealed)
        with pytest.raises((StreamhouseError, AssertionError)):
            a_writer_before_each_call(planted, self.EACH)

    def test_a_seal_that_writers_do_not_see(self, planted, monkeypatch):
        monkeypatch.setattr(transaction_outcome.act, "moves_rows", lambda _: False)
        with pytest.raises((StreamhouseError, AssertionError)):
            a_writer_before_each_call(planted, self.EACH)

    def test_a_name_that_stays_behind_the_record(self, planted, monkeypatch):
        monkeypatch.setattr(publication.BranchChanges, "ending", lambda *_: ())
        with pytest.raises((StreamhouseError, AssertionError)):
            published(planted, self.EACH, faults=(Fault.CRASH_AFTER,))

    def test_a_publication_that_is_no_transaction(self, planted, monkeypatch):
        monkeypatch.setattr(publication.BranchChanges, "transaction", None)
        with pytest.raises((StreamhouseError, AssertionError)):
            published(planted, self.EACH, faults=(Fault.CRASH_AFTER,))

    def test_a_branch_whose_log_is_taken_for_one_without_a_name(self, planted, monkeypatch):
        monkeypatch.setattr(dropping, "tag_of", lambda *_: "none")
        storage, clock = planted.begun()
        seeds = partial(next, count(100))
        clean(storage, clock, seeds, "t")
        clean(storage, clock, seeds, "t")
        with pytest.raises(StreamhouseError):
            opened(storage, seeds(), clock).table("t").fast_forward("b")

    def test_a_table_that_keeps_nothing_for_its_branch(self, monkeypatch):
        made = Made("tiered", with_branch=False)
        storage, clock = made.begun()
        monkeypatch.setattr(
            branches, "Tag", lambda name, version, uuid, _lake: transaction_outcome.act.Tag(name, version, uuid)
        )
        opened(storage, 3, clock).table("t").create_branch("b")
        table = opened(storage, 4, clock).table("t")
        table.truncate()
        tier(table)
        clean(storage, clock, partial(next, count(100)), "t")
        with pytest.raises(StreamhouseError):
            ids(opened(storage, 5, clock).table("t$branch_b"))

    def test_changes_of_others_are_not_looked_for(self, monkeypatch):
        made = Made("hot", with_branch=True)
        monkeypatch.setattr(publication, "moved", lambda *_: None)
        with pytest.raises((StreamhouseError, AssertionError)):
            others_before_each_call(made, self.EACH, lambda table: table.overwrite([{"id": 50}]), [50])
