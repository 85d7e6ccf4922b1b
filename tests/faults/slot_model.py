"""A model of slots: all ways in which taking one can go."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from faults.faulty_storage import Crash, Fault, FaultyStorage
from faults.sim import sim_world
from streamhouse_spark import StorageError
from streamhouse_spark.storage.base import Bytes
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.storage.put_if_absent import PutOutcome, PutResult, slot_for_bytes

MINE, RIVALS = b"mine", b"the rival's"
NOT_SYNCED = "applied, not synced, then an error"
WAYS: tuple[Fault | str | None, ...] = (None, *Fault, NOT_SYNCED)
CALLS_MAX = 3
"""A put, a look, and making sure that the object stays."""


class Disk(MemoryStorage):
    """A store that shows objects before they are sure to stay."""

    def __init__(self) -> None:
        super().__init__(sim_world())
        self.syncs = True
        self.unsynced: set[str] = set()

    def put_if_absent(self, key: str, data: Bytes) -> None:
        super().put_if_absent(key, data)
        if not self.syncs:
            self.unsynced.add(key)

    def ensure_durable(self, key: str) -> None:
        if key in self.unsynced:
            raise StorageError(f"{key} is not on the disk")
        super().ensure_durable(key)

    def lose_power(self) -> None:
        for key in self.unsynced:
            self.delete(key)

    def content(self, key: str) -> bytes | None:
        return self._objects[key][0] if key in self._objects else None


def faulty(disk: Disk, way_of: Callable[[int], Fault | str | None], before: Callable[[int], None]) -> FaultyStorage:
    """A process's storage whose calls go as ``way_of`` their number says, with ``before`` run ahead of each."""

    def plan(number: int, _method: str, _key: str) -> Fault | None:
        before(number)
        way = way_of(number)
        disk.syncs = way != NOT_SYNCED
        return way if isinstance(way, Fault) else (Fault.LOST_ACK if way == NOT_SYNCED else None)

    return FaultyStorage(disk, plan)


def check_one_way(ways: tuple[Fault | str | None, ...], rival_at: int | None) -> None:
    """Take a slot while its calls go in ``ways`` and a rival takes it before call ``rival_at``; compare with truth."""
    disk = Disk()

    def rival(number: int) -> None:
        disk.syncs = True
        if number == rival_at and disk.content("slot") is None:
            disk.put_if_absent("slot", RIVALS)

    storage = faulty(disk, lambda number: ways[number], rival)
    try:
        taken = slot_for_bytes(storage, "slot", MINE).take(MINE)
    except Crash:
        assert disk.content("slot") in (None, MINE, RIVALS)
        return
    seen = disk.content("slot")
    disk.lose_power()
    check_told(taken, seen, disk.content("slot"), f"{ways}, a rival before call {rival_at}: {taken}")
    assert len(storage.trace) <= (CALLS_MAX if storage.faults_fired or rival_at is not None else 1)


def check_told(taken: PutResult[bytes], seen: bytes | None, stays: bytes | None, what: str) -> None:
    """Compare the outcome with the content as it was ``seen``, and with that which ``stays`` after a power loss."""
    if taken.outcome is PutOutcome.WON:
        assert stays == MINE, what
        assert taken.won(), what
    elif taken.outcome is PutOutcome.LOST:
        assert seen == taken.stored == RIVALS, what
        assert not taken.won(), what
    else:
        assert isinstance(taken.failure, StorageError), what
        assert (taken.outcome is PutOutcome.NOT_STORED) == (taken.read_error is None), what
        assert seen != MINE or taken.outcome is not PutOutcome.NOT_STORED, what
        assert seen == MINE or taken.outcome is not PutOutcome.NOT_DURABLE, what
        with pytest.raises(StorageError) as raised:
            taken.won()
        assert raised.value is taken.error, what


def check_all_ways() -> int:
    """Let each call go in each way, with a rival before each call; the number of runs."""
    runs = list(itertools.product(itertools.product(WAYS, repeat=CALLS_MAX), (None, *range(CALLS_MAX))))
    for ways, rival_at in runs:
        check_one_way(ways, rival_at)
    return len(runs)


class Writer:
    """A process that puts its items into a chain of slots, each under the first number that it finds free."""

    def __init__(self, name: str, num_items: int) -> None:
        self.items = [f"{name}{i}".encode() for i in range(num_items)]
        self.number = 1
        self.told: dict[bytes, int] = {}

    def step(self, storage: FaultyStorage) -> None:
        """Try once to place the next item. It is tried under the same number until its outcome is known."""
        if not self.items:
            return
        item = self.items[0]
        taken = slot_for_bytes(storage, f"chain/{self.number}", item).take(item)
        if taken.outcome is PutOutcome.WON:
            self.told[self.items.pop(0)] = self.number
        self.number += taken.outcome in (PutOutcome.WON, PutOutcome.LOST)


def check_chain(seed: int) -> None:
    """Let three processes build one chain through random faults, with requests that land after they were given up."""
    chance = random.Random(seed)
    disk = Disk()
    late: list[tuple[str, bytes]] = []
    writers = [Writer(name, 3) for name in "abc"]
    busy: list[Writer] = []

    def before(_number: int) -> None:
        disk.syncs = True
        if late and chance.random() < 0.3:
            key, data = late.pop()
            if disk.content(key) is None:
                disk.put_if_absent(key, data)
        idle = [writer for writer in writers if writer not in busy]
        if idle and chance.random() < 0.2:
            step(chance.choice(idle))

    def step(writer: Writer) -> None:
        def way(number: int) -> Fault | None:
            found = chance.choice([None, None, Fault.LOST_ACK, Fault.OWN_EXISTS, Fault.ERROR_BEFORE])
            if number == 0 and found is Fault.ERROR_BEFORE and chance.random() < 0.5:
                late.append((f"chain/{writer.number}", writer.items[0]))
            return found

        busy.append(writer)
        if writer.items:
            writer.step(faulty(disk, way, before))
        busy.remove(writer)

    while any(writer.items for writer in writers):
        step(chance.choice(writers))
    told = {number: item for writer in writers for item, number in writer.told.items()}
    stored = {int(info.key.removeprefix("chain/")): disk.read(info.key) for info in disk.list("chain/")}
    assert stored == told, f"seed {seed}"
    assert sorted(stored) == list(range(1, 10)), f"seed {seed}"
