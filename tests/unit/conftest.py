"""Fixtures for tests of tables: each runs on a directory and in memory, under a simulated clock."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faults.faulty_storage import FaultyStorage
from faults.sim import SimClock, sim_world
from kit.round_trips import RemoteStorage
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.warehouse import process_cache


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
def world(clock, own_cache) -> World:
    """Make a world with the identities of every other test, so with a cache of its own."""
    return sim_world(0, clock)


@pytest.fixture
def memory(world) -> MemoryStorage:
    return MemoryStorage(world)


@pytest.fixture
def counted(memory) -> FaultyStorage:
    """The store in memory, with a trace of its calls."""
    return FaultyStorage(memory)


@pytest.fixture
def connected_store(counted, world, monkeypatch) -> Iterator[FaultyStorage]:
    """The store of the only warehouse, which connections open."""
    monkeypatch.setattr(process_cache, "Warehouse", lambda *_, **__: Warehouse("wh", storage=counted, world=world))
    process_cache._open_process.cache_clear()
    yield counted
    process_cache._open_process.cache_clear()


@pytest.fixture
def remote(memory) -> RemoteStorage:
    """The store in memory, behind a network whose round trips are counted."""
    return RemoteStorage(memory)


@pytest.fixture(params=["iceberg", "paimon"])
def lake_format(request) -> str:
    return request.param


@pytest.fixture(params=[pytest.param("local", marks=pytest.mark.long), "memory"])
def store(request, warehouse_path, world) -> Storage:
    """The store of one warehouse; files have real times, all else has the simulated clock's."""
    if request.param == "local":
        return LocalStorage(warehouse_path, fsync=False, world=world)
    return request.getfixturevalue("memory")


@pytest.fixture
def wh(store, world) -> Warehouse:
    return Warehouse("wh", storage=store, world=world)


@pytest.fixture
def table(wh, request) -> Table:
    """The table that the test's module calls ``TABLE``."""
    return request.module.TABLE.create(wh)


@pytest.fixture
def other_process(store, clock) -> Callable[[], Warehouse]:
    """The same warehouse as another process has it: nothing is shared but storage and time."""
    seeds = iter(range(1, 1000))
    return lambda: Warehouse("wh", storage=store, world=sim_world(next(seeds), clock))


@pytest.fixture
def on_host(monkeypatch, tmp_path) -> Callable[[str], Path]:
    """Move this process to a host: each has a cache of its own."""

    def go(name: str) -> Path:
        close_tablets()
        monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path / "hosts" / name))
        return Path(os.environ["STREAMHOUSE_CACHE_DIR"])

    return go


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 2 MB, where this user may mount one."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=755", "tmpfs", folder]
        if os.geteuid() != 0 or subprocess.run(options, capture_output=True, check=False).returncode != 0:
            pytest.skip("mounting needs root")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)
