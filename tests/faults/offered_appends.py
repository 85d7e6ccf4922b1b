"""An append that waits for another process's, and is offered to it, as a scenario of the sweeps.

The process at work has the turn, and takes the offer of another. That one goes on when its wait ends: behind the turn,
or amid it, because the turn took too long or its process slept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from faults.faulty_storage import Crash, Fault
from faults.history import Batch, Told
from faults.scenarios import NAME, Run, Scenario
from faults.sim import SimIds
from faults.sweep import LocalFaultyStorage, faulty
from streamhouse_spark import CommitStateUnknownError, StorageError, StreamhouseError, Transaction, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.storage.base import CommitLock, Offer, Storage


@dataclass
class Given:
    """A turn with these offers, or of one whose offer was taken."""

    offers: list[bytes] = field(default_factory=list)
    was_taken: bool = False

    def take(self) -> list[bytes]:
        offers, self.offers = self.offers, []
        return offers


class Offering(LocalFaultyStorage):
    """The storage of the process that waits: ``others`` is called with its offer, until its wait ends."""

    others: Callable[[bytes], bool] | None = None
    """Returns whether the offer was taken."""

    @contextmanager
    def commit_lock(self, key: str, offer: Offer | None = None) -> Iterator[CommitLock]:
        others, self.others = self.others, None
        data = offer() if others is not None and offer is not None else None
        yield Given(was_taken=data is not None and others is not None and others(data))


@contextmanager
def _given(turn: CommitLock) -> Iterator[CommitLock]:
    yield turn


def another_process(run: Run, storage: Storage) -> Warehouse:
    run.processes += 1
    return Warehouse(storage.url, storage=storage, world=World(run.clock, SimIds(1000 + run.processes)))


def append_noting(run: Run, warehouse: Warehouse, batch: Batch) -> StreamhouseError | None:
    try:
        run.history.append(warehouse.table(NAME), batch)
    except StreamhouseError as error:
        return error
    return None


class AppendOffered(Scenario):
    """The waiting process goes on behind the turn of the one at work, whatever became of that."""

    name = "append with another's offer"
    transaction: Transaction | None = None

    def setup(self, run: Run) -> None:
        super().setup(run)
        self.own = run.history.new_batch(3)
        self.offered = run.history.new_batch(2, transaction=self.transaction)

    def work(self, run: Run) -> None:
        taker = run.open()
        waiting = Offering(run.memory)
        crashes: list[Crash] = []

        def others(data: bytes) -> bool:
            storage = taker.storage
            with taking(storage, data):
                try:
                    run.history.append(taker, self.own)
                except (CommitStateUnknownError, StorageError):
                    pass
                except Crash as crash:
                    crashes.append(crash)
            return True

        warehouse = another_process(run, waiting)
        warehouse.table(NAME).refresh()
        waiting.others = others
        error = append_noting(run, warehouse, self.offered)
        assert error is None, error
        assert run.history.batches[self.offered.number].told is Told.ACKNOWLEDGED
        if crashes:
            raise crashes[0]

    def recover(self, run: Run) -> None:
        if self.transaction is not None:
            run.history.append(run.open(), self.offered)
        run.append()


class AppendOfferedWithTransaction(AppendOffered):
    name = "append with another's offer, in a transaction"
    transaction = Transaction("app", 1, "query")


@contextmanager
def taking(storage: Any, *offers: bytes) -> Iterator[None]:
    """Let the next turn on this storage find the offers."""
    original = storage.commit_lock

    def hint(key: str, offer: Offer | None = None) -> AbstractContextManager[CommitLock]:
        storage.commit_lock = original
        return _given(Given(list(offers)))

    storage.commit_lock = hint
    try:
        yield
    finally:
        with suppress(AttributeError):
            del storage.commit_lock


def goes_on_before_call(
    base: Run, at: int, *, transaction: Transaction | None = None, fails_from: int | None = None
) -> int:
    """The waiting process goes on before storage call ``at`` of the one that took its offer. Returns the calls.

    The store fails for it ``fails_from`` some of its own calls on.
    """
    run = base.copy()
    own, offered = run.history.new_batch(3), run.history.new_batch(2, transaction=transaction)
    data, goes_on = _offer_of(run, offered, fails_from)
    calls: list[str] = []
    has_gone_on = False

    def plan(_number: int, method: str, _key: str) -> None:
        nonlocal has_gone_on
        if is_taken and len(calls) == at:
            has_gone_on = True
            goes_on()
        calls.append(method)

    is_taken = False
    run.start_process(faulty(run.memory, plan))
    table = run.open()
    table.refresh()
    calls.clear()
    is_taken = True
    try:
        with taking(table.storage, data):
            run.history.append(table, own)
        num_calls = len(calls)
    finally:
        if not has_gone_on:
            goes_on()
    run.append()
    run.check()
    run.forget()
    return num_calls


def _offer_of(run: Run, batch: Batch, fails_from: int | None) -> tuple[bytes, Callable[[], None]]:
    """Let a process append a batch until it has offered it. Returns the offer, and the rest of the append."""
    offers: list[bytes] = []
    offered, go_on, done = threading.Event(), threading.Event(), threading.Event()
    errors: list[BaseException | None] = []
    calls: list[str] = []

    def plan(_number: int, method: str, _key: str) -> Fault | None:
        if not go_on.is_set():
            return None
        calls.append(method)
        return Fault.ERROR_BEFORE if fails_from is not None and len(calls) > fails_from else None

    waiting = Offering(run.memory, plan)
    warehouse = another_process(run, waiting)
    warehouse.table(NAME).refresh()

    def others(data: bytes) -> bool:
        offers.append(data)
        offered.set()
        assert go_on.wait(120)
        return True

    waiting.others = others

    def append() -> None:
        try:
            errors.append(append_noting(run, warehouse, batch))
        except BaseException as error:  # noqa: BLE001 - told to the test
            errors.append(error)
        finally:
            offered.set()
            done.set()

    threading.Thread(target=append).start()
    assert offered.wait(120)
    assert offers, errors

    def rest() -> None:
        go_on.set()
        assert done.wait(120)
        assert errors == [None] or fails_from is not None, errors

    return offers[0], rest
