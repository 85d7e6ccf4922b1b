"""A fault at every storage call of a refresh of a view with smallest and largest values, on a host that keeps them.

Whatever happens to the refresh, what the host kept counts only where it is of the rows that the view has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from faults.extreme_refresh import answer, groups_of, made, opened, refresh, shown
from faults.faulty_storage import Fault, sweep
from faults.sequential import one_thing_at_a_time
from faults.share import Share
from faults.sim import sim_world
from kit.warehouses import new_host
from streamhouse_spark import Table
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.views import min_max_cache


@pytest.fixture(autouse=True)
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> Iterator[None]:
    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path))
    yield
    close_tablets()


def rows_of(ids: range) -> list[dict[str, int]]:
    return [{"id": number, "k": number % 3, "v": number} for number in ids]


def new_store() -> Storage:
    """A view whose values are kept, and a source from which smallest values went."""
    new_host()
    storage = MemoryStorage(sim_world())
    made(storage)
    source, _ = opened(storage, 2)
    source.upsert(rows_of(range(60)))
    refresh(storage, 3)
    source.delete([0])
    assert refresh(storage, 4) == [1], "the first value that goes is looked for, and with it those of all groups"
    source.delete([1, 2, 3])
    source.upsert([{"id": 59, "k": 0, "v": 59}, {"id": 60, "k": 4, "v": -1}])
    return storage


def behind_store() -> Storage:
    """The same, and the view went on without this host's values."""
    storage = new_store()
    refresh(storage, 12, dies=True)
    source, _ = opened(storage, 13)
    source.delete([4, 5, 6])
    return storage


def require_right(storage: Storage, seed: int) -> None:
    source, view = opened(storage, seed)
    assert shown(view) == answer(groups_of(source))


def lower(source: Table, number: int) -> None:
    """The smallest values of groups go."""
    least = sorted(source.to_arrow()["id"].to_pylist())
    source.delete(least[:number])


def check(share: Share, make: Callable[[], Storage] = new_store) -> None:
    with one_thing_at_a_time():
        for number, attempt in enumerate(
            sweep(make, lambda storage: refresh(storage, 5), share=share, faults=tuple(Fault))
        ):
            if number % 3 == 0:
                close_tablets()
            source, _ = opened(attempt.store, 6)
            for seed in (7, 8, 9):
                lower(source, 3)
                refresh(attempt.store, seed, dies=seed == 8 and number % 2 == 0)
                require_right(attempt.store, 10)
        close_tablets()


@pytest.mark.sampled(31)
def test_it_holds(share: Share) -> None:
    check(share)


@pytest.mark.sampled(31)
def test_it_holds_where_values_are_brought_forward(share: Share) -> None:
    check(share, behind_store)


def test_values_that_are_brought_forward_are_not_looked_for() -> None:
    storage = behind_store()
    assert refresh(storage, 5) == [0]
    require_right(storage, 20)
    close_tablets()


def test_values_that_are_kept_are_not_looked_for() -> None:
    storage = new_store()
    assert refresh(storage, 5) == [0]
    source, _ = opened(storage, 6)
    for seed in range(7, 12):
        lower(source, 3)
        assert refresh(storage, seed) == [0]
        require_right(storage, 20)
    close_tablets()


def values_of_another_refresh_count():
    """What a host kept counts as it is, however far the view went on elsewhere."""
    return mock.patch.object(min_max_cache.MinMaxCache, "_apply_changes_since", return_value=None)


def test_a_planted_bug_is_found() -> None:
    def history() -> None:
        storage = new_store()
        refresh(storage, 5, dies=True)
        source, _ = opened(storage, 6)
        for seed in (7, 8, 9, 10):
            lower(source, 3)
            source.upsert([{"id": seed * 100, "k": seed % 3, "v": -seed}])
            refresh(storage, seed, dies=seed == 8)
            require_right(storage, 11)
            source.delete([seed * 100])

    history()
    with values_of_another_refresh_count(), pytest.raises(AssertionError):
        history()
