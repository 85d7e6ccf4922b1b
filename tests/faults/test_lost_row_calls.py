"""A fault at every storage call of what concerns rows without offsets that went, alone or with their partition, in both
lakes: changes show each of them or an error, and a rollback brings all of them back, or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pyiceberg.manifest import clear_manifest_cache

from faults.faulty_storage import WRITES, Attempt, Fault, FaultyStorage, RecordedStore, sweep
from faults.share import Share
from faults.sim import sim_world
from interop.foreign_engines import ENGINES
from interop.foreign_iceberg import NAME, row
from kit.change_replay import changes, replayed, version
from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import StreamhouseError, Table, Warehouse
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

EU = {"region": "eu"}
FEW = (Fault.CRASH_AFTER, Fault.LOST_ACK)
WHOLE = WRITES - {"create.write", "create.open"}
OLD = list(range(8))
NEW = [1, 5, 7, 9]


def opened(storage: Storage, seed: int) -> Table:
    clear_manifest_cache()
    return Warehouse("wh", storage=storage, world=sim_world(seed)).table(NAME)


@dataclass
class Made:
    """A table of six rows that were adopted and two of its own, as it was, and behind deletions."""

    storage: MemoryStorage
    before: int

    def copy(self) -> MemoryStorage:
        return RecordedStore(self.storage).copy()


@pytest.fixture(params=ENGINES)
def made(request) -> Made:
    storage = MemoryStorage(sim_world())
    table = ENGINES[request.param](storage, sim_world(1)).adopted(by_region=True)
    table.append([row(6), row(7)])
    tier(table)
    before = table.refresh().version
    table.delete(where=[("id", "=", 3)])
    tier(table)
    table.append([row(8), row(9)])
    return Made(storage, before)


@pytest.fixture
def dropped(made) -> Made:
    table = opened(made.storage, 2)
    table.delete(where=[("id", "=", 2)])
    table.drop_partition(EU)
    assert ids(table.to_arrow()) == NEW
    return made


def swept(made: Made, scenario: Callable[[Storage], object], **options: Any) -> Iterator[Attempt]:
    """Sweep behind one run that leaves in caches of this process what each later run finds there."""
    scenario(made.copy())
    return sweep(made.storage, scenario, **options)


def require_told(table: Table, before: int, about: Any) -> None:
    now = table.refresh().version
    assert replayed(version(table, before), changes(table, before + 1, now)) == version(table, now), about


@pytest.mark.sampled(4)
def test_a_failed_drop_names_the_lost_rows_in_the_next_round(made, share):
    """Where the process dies, the next round names the rows, or says that nothing does."""
    drop = lambda storage: opened(storage, 3).drop_partition(EU)  # noqa: E731
    for attempt in swept(made, drop, share=share, methods=WHOLE, faults=FEW, each_state_once=True):
        table = opened(attempt.store, 4)
        assert ids(table.to_arrow()) in (NEW, sorted([*NEW, 0, 2, 4, 6, 8])), attempt
        require_told(table, made.before, attempt)
        table.drop_partition(EU)
        tier(opened(attempt.store, 5))
        table = opened(attempt.store, 6)
        assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == NEW, attempt
        require_told(table, made.before, attempt)


def wrong_changes(
    dropped: Made, read: Callable[[Storage], list[Any]], right: Counter[str], share: Share
) -> Iterator[str]:
    """Run a reader once without each object of the lake that it reads, which another engine may have expired: what it
    shows then, if it is not an error or right.
    """
    probe = FaultyStorage(dropped.copy())
    assert Counter(map(repr, read(probe))) == right
    read_keys = (key for _, method, key in probe.trace if method in ("read", "read_ranges"))
    keys = dict.fromkeys(key for key in read_keys if key.startswith("lake/"))
    for key in (key for number, key in enumerate(keys) if number in share):
        store = dropped.copy()
        store.delete(key)
        try:
            found = read(store)
        except StreamhouseError:
            continue
        if Counter(map(repr, found)) != right:
            yield f"without {key}: {found}"


@pytest.mark.sampled(9)
def test_changes_of_lost_rows_are_complete_or_an_error(dropped, share):
    shown: list[list[Any]] = []

    def read(storage: Storage) -> list[Any]:
        table = opened(storage, 3)
        return changes(table, dropped.before + 1, table.refresh().version)

    right = Counter(map(repr, read(dropped.copy())))
    assert right.total() == 8
    reads = lambda storage: shown.append(read(storage))  # noqa: E731
    for attempt in swept(dropped, reads, share=share, faults=[Fault.ERROR_BEFORE]):
        if attempt.raised is None:
            assert Counter(map(repr, shown[-1])) == right, attempt
    assert list(wrong_changes(dropped, read, right, share)) == []


@pytest.mark.sampled(3)
def test_a_rollback_of_lost_rows_is_completed_by_its_round(dropped, share):
    def go_back(storage: Storage) -> None:
        opened(storage, 3).rollback_to_version(dropped.before)

    for attempt in swept(dropped, go_back, share=share, methods=WRITES, each_state_once=True):
        require_back(attempt, dropped, (NEW, OLD) if attempt.raised else (OLD,))
        go_back(attempt.store)
        require_back(attempt, dropped, (OLD,))
        tier(opened(attempt.store, 7))
        table = opened(attempt.store, 8)
        assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == OLD, attempt
    go_back(dropped.storage)
    tier_again = lambda storage: tier(opened(storage, 9))  # noqa: E731
    for attempt in swept(dropped, tier_again, share=share, methods=WHOLE, faults=FEW, each_state_once=True):
        require_back(attempt, dropped, (OLD,))
        tier(opened(attempt.store, 10))
        table = opened(attempt.store, 11)
        assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == OLD, attempt
        require_told(table, dropped.before, attempt)


def require_back(attempt: Attempt, dropped: Made, allowed: tuple[list[int], ...]) -> None:
    table = opened(attempt.store, 4)
    assert ids(table.to_arrow()) in allowed, attempt
    require_told(table, dropped.before, attempt)
