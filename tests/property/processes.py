"""The simulated processes of the state machine: each with its own clock, storage and luck."""

from __future__ import annotations

from dataclasses import dataclass, field

from faults.faulty_storage import WRITES, Fault, FaultyStorage, ListingLag
from faults.sim import SimClock, SimIds
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.storage.memory import MemoryStorage

NAME = "sales.orders"


class ProcessClock:
    """Time passes for all processes alike; what a process's wall clock says is its own matter."""

    def __init__(self, store: SimClock) -> None:
        self._store = store
        self.lead_ms = 0

    def now_ms(self) -> int:
        return self._store.now_ms() + self.lead_ms

    def boot_ms(self) -> int:
        return self._store.boot_ms()

    def sleep_ms(self, duration_ms: float) -> None:
        self._store.advance(duration_ms)


@dataclass
class Process:
    """A writer, reader, tierer, merger, trimmer and cleaner in one; what it does is decided by the rules."""

    number: int
    memory: MemoryStorage
    clock: ProcessClock
    lag: ListingLag
    storage: FaultyStorage = field(init=False)
    table: Table | None = None
    lives: int = 0
    log: list[tuple[str, str]] = field(default_factory=list)
    """Every write that it ever asked for."""

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin anew, knowing nothing, with other identities than in all lives before."""
        if self.lives:
            self.remember()
        self.lives += 1
        self.storage = FaultyStorage(self.memory, lag=self.lag)
        world = World(self.clock, SimIds(self.number * 1000 + self.lives))
        self.warehouse = Warehouse(self.memory.url, storage=self.storage, world=world)
        self.table = None

    def remember(self) -> None:
        self.log.extend((method, key) for _, method, key in self.storage.trace if method in WRITES)

    def open(self) -> Table:
        if self.table is None:
            self.table = self.warehouse.table(NAME)
        return self.table

    def arm(self, calls_from_now: int, fault: Fault) -> None:
        """The storage call that many calls from now fails."""
        self.storage._plan = {len(self.storage.trace) + calls_from_now: fault}

    def disarm(self) -> None:
        """No fault from here on."""
        self.storage._plan = {}
        self.storage.faults_fired.clear()
