"""State machines over a warehouse in memory, whose rules run in processes of their own."""

from __future__ import annotations

from itertools import count

from hypothesis.stateful import RuleBasedStateMachine

from faults.sim import SimClock, sim_world
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.write.auto_compaction import compact_inline_rows

DAY_MS = 24 * 3600 * 1000
_seeds = count(1)
"""Of all processes of all examples: caches of rows by key are shared by them, and uuids must not come again."""


class WarehouseMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = SimClock()
        self.storage = MemoryStorage(sim_world(0, self.clock))
        self.number = 0

    def warehouse(self) -> Warehouse:
        """Open the warehouse in a new process, which has cached nothing."""
        return Warehouse("wh", storage=self.storage, world=World(self.clock, sim_world(next(_seeds)).ids))

    def maintain(self, table: Table) -> None:
        """Merge, clean, compact and expire."""
        compact_inline_rows(table)
        table.maintain()
        if table.refresh().recorded_lake is not None:
            table.lake.compact()
            table.lake.expire_snapshots(retain_last=1, older_than_ms=self.clock.now_ms())
            table.lake.remove_orphan_files()
