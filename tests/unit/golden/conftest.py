"""A golden folder in memory, and its warehouse."""

from __future__ import annotations

import pytest

from faults.sim import sim_world
from golden.folder import GoldenFolder
from streamhouse_spark import Warehouse
from streamhouse_spark.storage.memory import MemoryStorage


@pytest.fixture
def golden(folder: GoldenFolder) -> MemoryStorage:
    return folder.store()


@pytest.fixture
def wh(golden: MemoryStorage) -> Warehouse:
    return Warehouse("golden", storage=golden, world=sim_world(4))
