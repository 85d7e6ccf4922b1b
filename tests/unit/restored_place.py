"""A place for a warehouse that is put back to an older copy."""

from __future__ import annotations

import shutil

from faults.sim import sim_world
from streamhouse_spark import Warehouse
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.memory import MemoryStorage


class Place:
    """One place for a warehouse, whose content can be put back as it was."""

    def __init__(self, kind, folder, clock, seed=0):
        self.clock, self._seeds = clock, iter(range(seed, seed + 1000))
        self._folder = folder
        if kind == "local":
            self.storage = LocalStorage(str(folder / "warehouse"), fsync=False, world=sim_world(seed + 999, clock))
        else:
            self.storage = MemoryStorage(sim_world(seed + 999, clock))

    def open(self):
        """Open the warehouse as another process."""
        return Warehouse("wh", storage=self.storage, world=sim_world(next(self._seeds), self.clock))

    def backup(self):
        if isinstance(self.storage, MemoryStorage):
            return dict(self.storage._objects)
        to = self._folder / f"backup{next(self._seeds)}"
        shutil.copytree(self._folder / "warehouse", to)
        return to

    def restore(self, backup):
        if isinstance(self.storage, MemoryStorage):
            self.storage._objects = dict(backup)
        else:
            shutil.rmtree(self._folder / "warehouse")
            shutil.copytree(backup, self._folder / "warehouse")
