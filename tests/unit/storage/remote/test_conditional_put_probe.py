"""A race sees stores that acknowledge several writers of one object, and forgives those that answer unclearly."""

from __future__ import annotations

import threading

import pytest

from streamhouse_spark.core.clock import World
from streamhouse_spark.errors import ObjectExistsError, StorageError
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.storage.remote.conditional_put_probe import (
    BODY_BYTES,
    HELD_BYTES,
    HELD_ROUNDS,
    RACERS,
    ROUNDS,
    race_puts,
)

pytestmark = pytest.mark.usefixtures("all_races")


class LooksThenWrites(MemoryStorage):
    """All racers look before the first one writes, as they may in a store without a lock."""

    looked = threading.Barrier(RACERS)

    def put_if_absent(self, key, data):
        if any(info.key == key for info in self.list(key)):
            raise ObjectExistsError(key)
        self.looked.wait(60)
        self.put(key, data)


class ForgetsTheWinner(MemoryStorage):
    def put_if_absent(self, key, data):
        super().put_if_absent(key, data)
        self.put(key, b"another's")


class IsUnclearToLosers(MemoryStorage):
    def put_if_absent(self, key, data):
        try:
            super().put_if_absent(key, data)
        except ObjectExistsError as error:
            raise StorageError("another write is under way") from error


class IsAway(MemoryStorage):
    def put_if_absent(self, key, data):
        raise StorageError("away")


@pytest.mark.parametrize("kind", [MemoryStorage, IsUnclearToLosers])
def test_a_store_that_decides_passes_and_is_left_clean(kind):
    storage = kind(World())
    race_puts(storage, ".tmp-probe")
    assert storage.list("") == []


@pytest.mark.parametrize("kind", [LooksThenWrites, ForgetsTheWinner])
def test_a_store_that_does_not_decide_is_refused_and_left_clean(kind):
    storage = kind(World())
    with pytest.raises(StorageError, match=r"memory://test does not support atomic conditional writes.*use a store"):
        race_puts(storage, ".tmp-probe")
    assert storage.list("") == []


def test_a_store_that_is_away_is_told_as_it_is():
    with pytest.raises(StorageError, match="away"):
        race_puts(IsAway(World()), ".tmp-probe")


def test_what_a_race_costs():
    stored = []

    class Counts(MemoryStorage):
        def put_if_absent(self, key, data):
            stored.append(len(data))
            super().put_if_absent(key, data)

    race_puts(Counts(World()), ".tmp-probe")
    assert stored == [BODY_BYTES] * RACERS * ROUNDS
    assert round(sum(stored), -7) == 40_000_000


def test_a_store_whose_writers_do_not_meet_is_not_seen():
    one_at_a_time = threading.Lock()

    class LooksThenWritesAtOnce(MemoryStorage):
        def put_if_absent(self, key, data):
            with one_at_a_time:
                if any(info.key == key for info in self.list(key)):
                    raise ObjectExistsError(key)
                self.put(key, data)

    race_puts(LooksThenWritesAtOnce(World()), ".tmp-probe")


class HoldsThem(MemoryStorage):
    """A client that holds puts back, before a store that looks when they begin."""

    def __init__(self, world, *, decides):
        super().__init__(world)
        self.decides = decides
        self.held = []

    def put_concurrently(self, key, bodies):
        self.held.append([len(body) for body in bodies])
        if self.decides:
            return [put(self, key, body) for body in bodies]
        for body in bodies:
            self.put(key, body)
        return [None] * len(bodies)


def put(storage, key, body):
    try:
        storage.put_if_absent(key, body)
    except ObjectExistsError as error:
        return error
    return None


def test_the_ends_of_the_first_puts_are_held_back():
    with pytest.raises(StorageError, match="does not support atomic conditional writes"):
        race_puts(HoldsThem(World(), decides=False), ".tmp-probe")
    storage = HoldsThem(World(), decides=True)
    race_puts(storage, ".tmp-probe")
    assert storage.held == [[HELD_BYTES] * RACERS] * HELD_ROUNDS
    assert storage.list("") == []


def test_where_held_puts_get_no_answer_the_others_tell():
    class Refuses(HoldsThem):
        def put_concurrently(self, key, bodies):
            return [StorageError("HTTP 403")] * len(bodies)

    storage = Refuses(World(), decides=True)
    race_puts(storage, ".tmp-probe")
    assert storage.list("") == []
