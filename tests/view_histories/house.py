"""The processes of a history, over one store: one that refreshes and may die at any call, and others that never do."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from faults.faulty_storage import Fault, FaultyStorage
from faults.sim import SimClock, SimIds
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.views.refresh import Refresher
from streamhouse_spark.warehouse import process_cache as connections
from streamhouse_spark.warehouse.process_cache import Connection, OpenTables
from view_histories.duck import TIME_ZONE, DuckSession

DATABASE = "runs"
_RUNS = itertools.count()
"""Two runs of one history have tables of the same identities, which a process may remember by their store."""


class Process(connections._Process):
    """A process that refreshes views. Its calls of the store are counted, and one of them may be its last."""

    def __init__(self, house: House, number: int, storage: FaultyStorage | None = None) -> None:
        self.storage = storage or FaultyStorage(house.store, self._fault)
        world = World(house.clock, SimIds(house.seed * 1000 + number)) if house.clock is not None else World()
        self.warehouse = Warehouse(house.store.url, storage=self.storage, world=world)
        self.tables = OpenTables()
        self.connection = house.connection_of(number)
        self.session = house.spark or DuckSession(self.connection)
        self.refresher = Refresher(self.session, self.connection)
        self._owns_session = house.spark is None
        self._at: tuple[int, Fault] | None = None

    def _fault(self, number: int, _method: str, _key: str) -> Fault | None:
        return self._at[1] if self._at is not None and number == self._at[0] else None

    @contextmanager
    def failing(self, call: int, fault: Fault) -> Iterator[None]:
        """Let one of the next calls fail."""
        self._at = (len(self.storage.trace) + call, fault)
        try:
            yield
        finally:
            self._at = None

    @property
    def is_dead(self) -> bool:
        return self.storage.crashed

    def close(self) -> None:
        if self._owns_session:
            self.session.close()


class House:
    """A store, in memory and with a clock of its own, or below a Spark session the local one of its warehouse."""

    def __init__(self, seed: int, *, spark: Any = None, url: str = "", copy_of: MemoryStorage | None = None) -> None:
        self.seed, self.spark = seed, spark
        self.clock = None if spark is not None else SimClock()
        self.store: Storage
        if self.clock is not None:
            self.store = MemoryStorage(World(self.clock, SimIds(seed)), f"views{seed}_{next(_RUNS)}")
            self.store._objects = dict(copy_of._objects) if copy_of is not None else {}
        else:
            self.store = LocalStorage(url, fsync=False)
        self.time_zone = spark.conf.get("spark.sql.session.timeZone") if spark is not None else TIME_ZONE
        self._processes: dict[Connection, Process] = {}
        self._num_processes = 0
        world = World(self.clock, SimIds(seed * 1000 + 999)) if self.clock is not None else World()
        self.others = Warehouse(self.store.url, storage=self.store, world=world)
        self.process: Process

    def connection_of(self, number: int) -> Connection:
        return Connection.of(self.store.url, {"process": str(number)})

    @contextmanager
    def open(self) -> Iterator[None]:
        """Let connections lead to the processes of this house."""
        real = connections._open_process

        def opened(process_id: int, connection: Connection) -> Any:
            return self._processes.get(connection) or real(process_id, connection)

        with mock.patch.object(connections, "_open_process", opened):
            self.restart(elsewhere=True)
            try:
                yield
            finally:
                for process in self._processes.values():
                    process.close()
                close_tablets()

    def start(self, storage: FaultyStorage | None = None) -> Process:
        """Start another process that refreshes, in the place of the last one."""
        self.process = self.second(storage)
        return self.process

    def second(self, storage: FaultyStorage | None = None) -> Process:
        """Start a process beside the others."""
        self._num_processes += 1
        made = Process(self, self._num_processes, storage)
        self._processes[made.connection] = made
        return made

    def restart(self, *, elsewhere: bool) -> None:
        """Start again behind a crash: on the same host, or on one with an empty cache."""
        close_tablets()
        if elsewhere and self.spark is None:
            cache = Path(os.environ["STREAMHOUSE_CACHE_DIR"])
            shutil.rmtree(cache, ignore_errors=True)
        self.start()

    @contextmanager
    def another_host(self) -> Iterator[None]:
        """Let a process run on a host with a cache of its own, which stays; in each second history."""
        here = os.environ.get("STREAMHOUSE_CACHE_DIR")
        if here is None or self.seed % 4 < 2:
            yield
            return
        os.environ["STREAMHOUSE_CACHE_DIR"] = f"{here}-other"
        try:
            yield
        finally:
            os.environ["STREAMHOUSE_CACHE_DIR"] = here

    def pass_ms(self, duration_ms: float) -> None:
        if self.clock is not None:
            self.clock.advance(duration_ms)

    def table(self, name: str) -> Table:
        return self.others.table(name)
