"""A process that pauses around any storage call, while others commit, checkpoint and clean, stores its rows once.

A stopped process or a suspended machine wakes up in the middle of an operation. Its answer must be true then: success
means stored once, a conflict means not stored, and an unknown outcome is the only other answer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from unittest import mock

import pytest

from faults.faulty_storage import FaultyStorage
from faults.interleave import small_limits
from faults.sim import SimClock, sim_world
from streamhouse_spark import (
    CommitConflictError,
    CommitStateUnknownError,
    SnapshotExpiredError,
    StorageError,
    Table,
    Transaction,
    Warehouse,
)
from streamhouse_spark.core.warehouse_layout import commit_key, parse_number
from streamhouse_spark.errors import ObjectNotFoundError
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.log.actions import SetProperties
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.framing import decode_frame
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS
from streamhouse_spark.log.group_commit import CommitQueue
from streamhouse_spark.log.history_index import HistoryRelation
from streamhouse_spark.log.record import GROUP_VERSION, encode_record, read_record
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table.maintenance.tiering import tier_table

FIRST = list(range(6))
NEW = [100, 101]
OTHERS = 1000
"""Ids from here on are of the rows that others append during the pause."""
PAUSES_MS = {"seconds": 2_000, "minutes": 20 * 60_000, "days": 2 * (GRACE_MS + 3_600_000)}
PLACES = ("before", "after", "after, answer lost")


class PausingStorage(FaultyStorage):
    """Pauses once, before or after the call with one number, whose answer may be lost then."""

    def __init__(self, inner: MemoryStorage, number: int, place: str, pause: Callable[[], None]) -> None:
        super().__init__(inner)
        self._number, self._place, self._pause = number, place, pause

    def _run(self, method, key, apply, refuse=None):
        is_here = len(self.trace) == self._number
        if is_here and self._place == "before":
            self._pause()
        try:
            return super()._run(method, key, apply, refuse)
        finally:
            if is_here and self._place != "before":
                self._pause()
            if is_here and self._place.endswith("lost"):
                raise StorageError(f"the answer to {method} {key} was lost")


class PausingAtCommit(PausingStorage):
    """Pauses after the first put of a commit record, whose answer is lost then."""

    def __init__(self, inner: MemoryStorage, pause: Callable[[], None]) -> None:
        super().__init__(inner, -1, "after, answer lost", pause)

    def _run(self, method, key, apply, refuse=None):
        if self._number < 0 and method == "put_if_absent" and "/commits/" in key:
            self._number = len(self.trace)
        return super()._run(method, key, apply, refuse)


@dataclass(frozen=True, slots=True)
class Work:
    """An operation on a table with the ids `FIRST`, and the ids that the table has after it."""

    run: Callable[[Table], object]
    ids: list[int]
    is_keyed: bool = False
    replaces: bool = False
    """Whether it removes rows that others committed before it."""


SEGMENT = list(range(100, 700))
WORK = {
    "append": Work(lambda t: t.append(rows(NEW)), [*FIRST, *NEW]),
    "append a segment": Work(lambda t: t.append(rows(SEGMENT, "x" * 500)), [*FIRST, *SEGMENT]),
    "append a transaction": Work(lambda t: t.append(rows(NEW), transaction=Transaction("app", 1)), [*FIRST, *NEW]),
    "delete rows": Work(lambda t: t.delete(where=[("id", "<", 3)]), FIRST[3:]),
    "overwrite": Work(lambda t: t.overwrite(rows(NEW)), NEW, replaces=True),
    "truncate": Work(lambda t: t.truncate(), [], replaces=True),
    "tier": Work(lambda t: tier_table(t, run_tasks_locally(t.storage, t.settings, t.world)), FIRST),
    "maintain": Work(lambda t: t.maintain(), FIRST),
    "create a branch": Work(lambda t: t.create_branch("b"), FIRST),
    "clone": Work(lambda t: Warehouse("wh", storage=t.storage, world=t.world).clone_table("t", "c"), FIRST),
    "upsert": Work(lambda t: t.upsert(rows([0, *NEW])), [*FIRST, *NEW], is_keyed=True),
    "delete keys": Work(lambda t: t.delete([0, 1]), FIRST[2:], is_keyed=True),
}


def rows(ids: list[int], text: str = "") -> list[dict[str, object]]:
    return [{"id": number, "text": text} for number in ids]


def prepared(*, is_keyed: bool) -> tuple[MemoryStorage, SimClock]:
    clock = SimClock()
    memory = MemoryStorage(sim_world(1, clock))
    table = Warehouse("wh", storage=memory, world=sim_world(2, clock)).create_table(
        "t",
        "id BIGINT NOT NULL, text STRING",
        primary_key=["id"] if is_keyed else [],
        properties={"table.log.ttl": "900d"},
    )
    write = table.upsert if is_keyed else table.append
    write(rows(FIRST))
    return memory, clock


def others_work(memory: MemoryStorage, clock: SimClock, pause_ms: int) -> None:
    """Commit, checkpoint and clean from other processes while ``pause_ms`` pass."""
    for step in range(3):
        clock.advance(pause_ms / 3)
        table = Warehouse("wh", storage=memory, world=sim_world(50 + step, clock)).table("t")
        write = table.upsert if table.state.primary_key else table.append
        for commit in range(4):
            write(rows([OTHERS + 10 * step + commit]))
        table.maintain()


def check_pause(name: str, number: int, place: str, pause_ms: int) -> int:
    """Pause at one call, check the rows and the answer, and return the number of calls of the work."""
    work = WORK[name]
    memory, clock = prepared(is_keyed=work.is_keyed)
    storage = PausingStorage(memory, number, place, lambda: others_work(memory, clock, pause_ms))
    try:
        work.run(Warehouse("wh", storage=storage, world=sim_world(3, clock)).table("t"))
    except CommitStateUnknownError:
        allowed = [FIRST, work.ids]
    except (CommitConflictError, SnapshotExpiredError, StorageError):
        allowed = [FIRST]
    else:
        allowed = [work.ids]
    ids = sorted(Warehouse("wh", storage=memory, world=sim_world(4, clock)).table("t").to_arrow()["id"].to_pylist())
    where = f"{name}, paused {place} call {storage.trace[number : number + 1]} for {pause_ms} ms"
    assert [i for i in ids if i < OTHERS] in allowed, where
    others = [i for i in ids if i >= OTHERS]
    assert len(others) == len(set(others)), where
    assert work.replaces or len(others) == (12 if number < len(storage.trace) else 0), where
    return len(storage.trace)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("pause", PAUSES_MS)
@pytest.mark.parametrize("name", WORK)
def test_a_process_that_pauses_at_any_call_stores_its_rows_once(name, pause):
    with small_limits():
        calls = check_pause(name, 10**6, "before", 0)
        assert calls > 3
        for number in range(calls):
            for place in PLACES:
                check_pause(name, number, place, PAUSES_MS[pause])


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("name", ["append", "append a segment", "append a transaction", "upsert"])
def test_a_race_lost_to_a_void_record_is_not_written_again(name):
    """The answer to a put is lost, the process pauses until its record is deleted, and another process that paused
    before its own put fills the free number.
    """

    def commits_of_others_and_a_void_record() -> None:
        _, _, key = storage.trace[-1]
        own = memory.read(key)
        others_work(memory, clock, PAUSES_MS["days"])
        with pytest.raises(ObjectNotFoundError):
            memory.read(key)
        memory.put_if_absent(key, with_another_attempt(own, parse_number(key)))

    work = WORK[name]
    with small_limits():
        memory, clock = prepared(is_keyed=work.is_keyed)
        storage = PausingAtCommit(memory, commits_of_others_and_a_void_record)
        with nullcontext() if "transaction" in name else pytest.raises(CommitStateUnknownError):
            work.run(Warehouse("wh", storage=storage, world=sim_world(3, clock)).table("t"))
    table = Warehouse("wh", storage=memory, world=sim_world(4, clock)).table("t")
    assert [i for i in sorted(table.to_arrow()["id"].to_pylist()) if i < OTHERS] == work.ids


def with_another_attempt(data: bytes, number: int) -> bytes:
    """Return a commit record with the number of another one, as a second writer would have put it."""
    store = MemoryStorage(sim_world(9))
    table_uuid = decode_frame("commit", data, "a record", newest=GROUP_VERSION).header["table"]
    store.put(commit_key(table_uuid, number), data)
    record, _ = read_record(store, table_uuid, number)
    other = replace(record, attempt="f" * 32, actions=(SetProperties({}),), transaction=None, members=())
    return encode_record(other, "").data


def takes_every_record_below_the_low_watermark_for_void(self, stored):
    return HistoryRelation.OTHER


def forgets_puts_without_an_answer(self, where):
    """Leave calls alone whose failed put may be among the records that were deleted unread."""


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    ("owner", "attribute", "mistake", "place", "pause"),
    [
        (
            CommitLog,
            "_relation_below_watermark",
            takes_every_record_below_the_low_watermark_for_void,
            "after",
            "minutes",
        ),
        (CommitQueue, "fail_unresolved", forgets_puts_without_an_answer, "after, answer lost", "days"),
    ],
)
def test_planted_mistakes_store_rows_twice(owner, attribute, mistake, place, pause):
    def check_every_call() -> None:
        for number in range(calls):
            check_pause("append", number, place, PAUSES_MS[pause])

    with small_limits():
        calls = check_pause("append", 10**6, "before", 0)
        check_every_call()
        with mock.patch.object(owner, attribute, mistake), pytest.raises(AssertionError, match="append, paused"):
            check_every_call()
