"""Stores in memory, and warehouses on them as processes of a simulated world open them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from faults.sim import SimClock, sim_world
from streamhouse_spark import Warehouse
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage


def new_store(seed: int = 0, clock: SimClock | None = None) -> MemoryStorage:
    return MemoryStorage(sim_world(seed, clock))


def open_warehouse(storage: Storage, seed: int, clock: SimClock | None = None) -> Warehouse:
    """Open the warehouse of ``storage`` as the process whose identities come from ``seed``."""
    return Warehouse("wh", storage=storage, world=sim_world(seed, clock))


def new_host() -> None:
    """Empty the cache of this process, as a process on another host finds it. The test must have its own cache."""
    close_tablets()
    cache = Path(os.environ["STREAMHOUSE_CACHE_DIR"])
    shutil.rmtree(cache)
    cache.mkdir()
