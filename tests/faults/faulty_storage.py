"""A storage that fails where a test says, and tells what was asked of it.

Every call that reads or writes objects has a number, from 0, and an entry ``(number, method, key)`` in `trace`. A large
write is several: ``create.open``, one ``create.write`` per write, ``create.close``. `now_ms`, `commit_lock` and
`check_writable` are passed on uncounted; `local_path` is None, so that no byte is read past the counter.

::

    storage = FaultyStorage(MemoryStorage(world), {3: Fault.LOST_ACK})
    with pytest.raises(Crash): ...                       # a crashed storage refuses everything from then on
    for attempt in sweep(storage, scenario): ...         # scenario once per call and fault, on a copy of the storage
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from faults.share import WHOLE, Share
from faults.sim import SimClock, SimIds
from streamhouse_spark.core.clock import World
from streamhouse_spark.errors import ObjectExistsError, StorageError, StreamhouseError
from streamhouse_spark.storage.base import Bytes, ObjectInfo, Sink, Storage
from streamhouse_spark.storage.memory import MemoryStorage

T = TypeVar("T")

Op = tuple[int, str, str]
WRITES = frozenset({"put_if_absent", "put", "create.open", "create.write", "create.close", "delete"})


class Crash(BaseException):
    """The process died. Not an `Exception`, so that no handler of the code under test can survive it."""


class Fault(enum.Enum):
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    LOST_ACK = "lost ack"
    """Applied, then `StorageError`."""
    OWN_EXISTS = "own exists"
    """Applied, then `ObjectExistsError`: a client that retried inside met its own object. `LOST_ACK` elsewhere."""
    ERROR_BEFORE = "error before"
    """`StorageError`, not applied."""


Plan = Mapping[int, Fault] | Callable[[int, str, str], Fault | None]


class ListingLag:
    """The newest ``objects_max`` objects are missing from listings until they age or `advance` is called.

    Share one between the storages of several simulated processes.
    """

    def __init__(self, objects_max: int) -> None:
        self._objects_max = objects_max
        self._hidden: list[str] = []

    def wrote(self, key: str) -> None:
        if key not in self._hidden:
            self._hidden.append(key)
            del self._hidden[: max(0, len(self._hidden) - self._objects_max)]

    def hides(self, key: str) -> bool:
        return key in self._hidden

    def advance(self, objects: int | None = None) -> None:
        """Show all hidden objects, or the oldest few."""
        del self._hidden[: len(self._hidden) if objects is None else objects]


class FaultyStorage:
    """`Storage` over another one. ``plan`` maps call numbers to faults, or decides by (number, method, key)."""

    def __init__(self, inner: Storage, plan: Plan | None = None, *, lag: ListingLag | None = None) -> None:
        self.inner = inner
        self.trace: list[Op] = []
        self.faults_fired: list[tuple[Op, Fault]] = []
        self.crashed = False
        self._plan = plan or {}
        self._lag = lag or ListingLag(0)
        self._lock = threading.RLock()

    @property
    def url(self) -> str:
        return self.inner.url

    def read(self, key: str) -> bytes:
        return self._run("read", key, lambda: self.inner.read(key))

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._run("read_ranges", key, lambda: self.inner.read_ranges(key, ranges))

    def size_bytes(self, key: str) -> int:
        return self._run("size_bytes", key, lambda: self.inner.size_bytes(key))

    def put_if_absent(self, key: str, data: Bytes) -> None:
        def put() -> None:
            self.inner.put_if_absent(key, data)
            self._lag.wrote(key)

        self._run("put_if_absent", key, put)

    def ensure_durable(self, key: str) -> None:
        self._run("ensure_durable", key, lambda: self.inner.ensure_durable(key))

    def put(self, key: str, data: Bytes) -> None:
        self._run("put", key, lambda: self.inner.put(key, data))

    def create(self, key: str) -> AbstractContextManager[Sink]:
        return _FaultyCreate(self, key)

    def list_names(self, prefix: str) -> list[str]:
        def names() -> list[str]:
            shown = self._visible(prefix)
            return [name for name in self.inner.list_names(prefix) if _has_name(shown, prefix, name)]

        return self._run("list_names", prefix, names)

    def list(self, prefix: str) -> list[ObjectInfo]:
        return self._run("list", prefix, lambda: self._visible(prefix))

    def delete(self, key: str) -> None:
        self._run("delete", key, lambda: self.inner.delete(key))

    def now_ms(self) -> int:
        return self.inner.now_ms()

    def local_path(self, key: str) -> str | None:
        return None

    def commit_lock(self, key: str) -> AbstractContextManager[None]:
        return self.inner.commit_lock(key)

    def check_writable(self) -> None:
        self.inner.check_writable()

    def _visible(self, prefix: str) -> list[ObjectInfo]:
        return [info for info in self.inner.list(prefix) if not self._lag.hides(info.key)]

    def _begin(self, method: str, key: str) -> tuple[Op, Fault | None]:
        with self._lock:
            if self.crashed:
                raise Crash(f"{method} {key} after the crash")
            op = len(self.trace), method, key
            self.trace.append(op)
            fault = self._plan(*op) if callable(self._plan) else self._plan.get(op[0])
            if fault is not None:
                self.faults_fired.append((op, fault))
            return op, fault

    def _run(self, method: str, key: str, apply: Callable[[], T], refuse: Callable[[], object] | None = None) -> T:
        """Apply the call with its fault, if it has one. ``refuse`` undoes what was begun where it is not applied."""
        op, fault = self._begin(method, key)
        if fault is None:
            return apply()
        if fault in (Fault.CRASH_BEFORE, Fault.ERROR_BEFORE):
            if refuse is not None:
                refuse()
            if fault is Fault.CRASH_BEFORE:
                self.crashed = True
                raise Crash(f"before {op}")
            raise StorageError(f"injected before {op}")
        try:
            apply()
        except StorageError as error:
            # Whatever the store answered, it did not arrive.
            outcome: StorageError | None = error
        else:
            outcome = None
        if fault is Fault.CRASH_AFTER:
            self.crashed = True
            raise Crash(f"after {op}")
        if fault is Fault.OWN_EXISTS and method in ("put_if_absent", "create.close"):
            raise outcome or ObjectExistsError(f"injected after {op}")
        raise StorageError(f"injected after {op}")


class _FaultyCreate:
    def __init__(self, storage: FaultyStorage, key: str) -> None:
        self._storage = storage
        self._key = key
        self._inner: AbstractContextManager[Sink] | None = None
        self._sink: Sink | None = None

    def __enter__(self) -> Sink:
        try:
            self._storage._run("create.open", self._key, self._open)
        except BaseException as error:
            self._abort(error)
            raise
        return self

    def write(self, data: Bytes) -> int:
        assert self._sink is not None
        sink = self._sink
        return self._storage._run("create.write", self._key, lambda: sink.write(data))

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc is not None:
            self._abort(exc)
            return
        self._storage._run("create.close", self._key, self._close, refuse=lambda: self._abort(Crash("not closed")))

    def _open(self) -> None:
        self._inner = self._storage.inner.create(self._key)
        self._sink = self._inner.__enter__()

    def _close(self) -> None:
        assert self._inner is not None
        self._inner.__exit__(None, None, None)
        self._storage._lag.wrote(self._key)

    def _abort(self, error: BaseException) -> None:
        if self._inner is None:
            return
        try:
            self._inner.__exit__(type(error), error, error.__traceback__)
        except BaseException as raised:
            if raised is not error:
                raise


def _has_name(shown: Iterable[ObjectInfo], prefix: str, name: str) -> bool:
    path = prefix + name
    return any(info.key == path or info.key.startswith(f"{path}/") for info in shown)


class RecordedStore:
    """A store in memory at one point of a scenario, with its time, from which any number of copies go on."""

    def __init__(self, storage: MemoryStorage) -> None:
        self._name = storage._name
        self._objects = dict(storage._objects)
        self._clock = storage._world.clock
        if isinstance(self._clock, SimClock):
            self._clock = self._clock.copy()

    @property
    def state(self) -> Hashable:
        """Return a value that is equal for stores in which the same calls have the same results."""
        return tuple(self._objects.items()), self._clock.now_ms(), self._clock.boot_ms()

    def copy(self) -> MemoryStorage:
        """Return a store with equal objects, and a clock of its own at the same time."""
        clock = self._clock.copy() if isinstance(self._clock, SimClock) else self._clock
        storage = MemoryStorage(World(clock, SimIds(0)), self._name)
        storage._objects = dict(self._objects)
        return storage


def clock_of(storage: Storage) -> SimClock:
    """Return the clock of a store in memory, or of one that wraps it."""
    while not isinstance(storage, MemoryStorage):
        storage = storage.inner  # type: ignore[attr-defined]
    clock = storage._world.clock
    assert isinstance(clock, SimClock)
    return clock


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a scenario with one fault. ``store`` is what is left: the storage without the faults."""

    op: Op
    fault: Fault
    store: Storage
    raised: Crash | StreamhouseError | None

    def __str__(self) -> str:
        return f"{self.fault.value} at {self.op}: {self.raised!r}"


def sweep(
    start: MemoryStorage | Callable[[], Storage],
    scenario: Callable[[FaultyStorage], object],
    *,
    faults: Iterable[Fault] = tuple(Fault),
    methods: Iterable[str] | None = None,
    share: Share = WHOLE,
    each_state_once: bool = False,
) -> Iterator[Attempt]:
    """Run ``scenario`` once per storage call and fault, each time on a copy of ``start``, or on a store that it makes.

    The calls are those of a run without faults, so the scenario must be deterministic up to its first fault: give it a
    `sim_world`. ``methods`` limits the calls, for example to `WRITES`; ``share`` takes some of those that are left.

    With ``each_state_once``, attempts that end with the same type of error, objects and time are yielded once. Use it
    for checks that depend on nothing else. Every call still meets every fault.
    """
    faults = tuple(faults)
    new_store = start if callable(start) else RecordedStore(start).copy
    probe = FaultyStorage(new_store())
    scenario(probe)
    wanted = None if methods is None else frozenset(methods)
    met = (op for op in probe.trace if wanted is None or op[1] in wanted)
    states: set[Hashable] = set()
    for op in (op for number, op in enumerate(met) if number in share):
        for fault in faults:
            storage = FaultyStorage(new_store(), {op[0]: fault})
            raised: Crash | StreamhouseError | None = None
            try:
                scenario(storage)
            except (Crash, StreamhouseError) as error:
                raised = error
            assert storage.faults_fired, f"{op} was not reached again: the scenario is not deterministic"
            assert storage.faults_fired[0] == (op, fault), f"found {storage.faults_fired[0]}, expected {op}"
            if each_state_once:
                assert isinstance(storage.inner, MemoryStorage)
                state = type(raised), RecordedStore(storage.inner).state
                if state in states:
                    continue
                states.add(state)
            yield Attempt(op, fault, storage.inner, raised)


@dataclass(frozen=True, slots=True)
class Race:
    """One run of a scenario with a rival before one storage call. ``store`` is what both leave."""

    op: Op
    store: MemoryStorage
    raised: StreamhouseError | None

    def require_success(self, *expected: type[StreamhouseError]) -> None:
        """Raise the error of the scenario, unless it is an expected one."""
        if self.raised is not None and not isinstance(self.raised, expected):
            raise self.raised


def race(
    new_store: Callable[[], MemoryStorage],
    scenario: Callable[[FaultyStorage], object],
    rival: Callable[[MemoryStorage], object],
    *,
    share: Share = WHOLE,
) -> Iterator[Race]:
    """Run ``scenario`` once per storage call, with ``rival`` right before that call, each time on a new store.

    The calls are those of a run without a rival; ``share`` takes some of them.
    """
    probe = FaultyStorage(new_store())
    scenario(probe)
    for met in (number for number in range(len(probe.trace)) if number in share):
        store = new_store()

        def plan(number: int, _method: str, _key: str, met: int = met, store: MemoryStorage = store) -> None:
            if number == met:
                rival(store)

        storage = FaultyStorage(store, plan)
        raised: StreamhouseError | None = None
        try:
            scenario(storage)
        except StreamhouseError as error:
            raised = error
        yield Race(storage.trace[met], store, raised)
