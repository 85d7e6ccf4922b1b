"""A random life of a table of a lake table that was there before, to which another engine writes all the time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from faults.sim import SimClock, sim_world
from interop.foreign_engines import Engine
from interop.foreign_iceberg import NAME, row
from kit.row_replacement import replace_rows
from kit.tables import tier
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.lake.tiering import job
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

STEPS = 16
Row = tuple[Any, ...]


@dataclass
class Life:
    """One table, and the rows that it and its lake have to have."""

    seed: int
    engine: Callable[[Storage, World], Engine]
    table_rows: Counter[Row] = field(default_factory=Counter)
    lake_rows: Counter[Row] = field(default_factory=Counter)
    """Those that other engines see: of rows of the log none, of deleted ones some."""
    hot: Counter[Row] = field(default_factory=Counter)
    deleted: Counter[Row] = field(default_factory=Counter)
    """Deleted rows that the lake may have."""
    done: list[str] = field(default_factory=list)
    next_id: int = 100

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.clock = SimClock()
        self.world = sim_world(self.seed, self.clock)
        self.storage = MemoryStorage(self.world)
        numbers = [self.random.randrange(8) for _ in range(12)]
        self.others = self.engine(self.storage, self.world)
        layout = self.random.choice([*self.others.layouts.values()])
        self.table: Table = self.others.adopted(numbers, **layout)
        self.table_rows = Counter(map(_of, map(row, numbers)))
        self.lake_rows = self.table_rows.copy()
        self.append()  # rounds of a table without a row of its own look for none of others

    def run(self) -> None:
        steps = (
            (self.append, 3),
            (self.delete, 5),
            (self.change, 3),
            (self.tier, 3),
            (self.tier_and_die, 1),
            (self.others_append, 2),
            (self.others_rewrite, 3),
            (self.others_delete, 2),
            (self.keep_up, 1),
            (self.reopen, 1),
        )
        for _ in range(STEPS):
            (step,) = self.random.choices([s for s, _ in steps], [weight for _, weight in steps])
            self.done.append(step.__name__)
            step()
            self.check()
        self.tier()
        self.check()
        assert self.lake_rows == self.table_rows

    def check(self) -> None:
        found = self.table.to_arrow().to_pylist()
        assert Counter(map(_of, found)) == self.table_rows, f"the table after {self.done}"
        assert Counter(map(_of, self.others.rows())) == self.lake_rows, f"the lake after {self.done}"

    def some(self) -> int:
        return self.random.choice([r[0] for r in self.table_rows.elements()] or [0])

    def append(self) -> None:
        numbers = [self.random.choice([self.some(), self.new()]) for _ in range(self.random.randrange(1, 4))]
        self.table.append([row(number) for number in numbers])
        self.gained(Counter(map(_of, map(row, numbers))))

    def new(self) -> int:
        self.next_id += 1
        return self.next_id

    def gained(self, rows: Counter[Row]) -> None:
        self.hot += rows
        self.table_rows += rows

    def lost(self, rows: Counter[Row]) -> None:
        """Rows of the log that are not tiered go before they are."""
        of_log = rows & self.hot
        self.hot -= of_log
        self.deleted += rows - of_log
        self.table_rows -= rows

    def delete(self) -> None:
        number = self.some()
        gone = Counter({r: n for r, n in self.table_rows.items() if r[0] == number})
        assert self.table.delete(where=[("id", "=", number)]) == gone.total()
        self.lost(gone)

    def change(self) -> None:
        number, new = self.some(), self.new()
        gone = Counter({r: n for r, n in self.table_rows.items() if r[0] == number})
        replace_rows(self.table, lambda r: r["id"] == number, lambda r: {**r, "id": new})
        self.lost(gone)
        self.gained(Counter({(new, *r[1:]): n for r, n in gone.items()}))

    def tier(self) -> None:
        tier(self.table)
        self.tiered()
        state = self.table.refresh()
        assert not any(deletion.files for deletion in state.deletions)
        assert state.lake is not None
        assert state.lake.snapshot_id == self.table.open_lake().newest().id

    def tiered(self) -> None:
        self.lake_rows = self.lake_rows - self.deleted + self.hot
        self.table_rows = self.lake_rows.copy()
        self.hot, self.deleted = Counter(), Counter()

    def tier_and_die(self) -> None:
        """The lake is ahead of the log's record, which the next round makes."""
        before = self.table_rows.copy()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(job, "record_snapshot", lambda *_: None)
            tier(self.table)
        self.tiered()
        if self.table_rows != before:  # others' rows come with the record
            tier(self.table)

    def others_append(self) -> None:
        rows = [row(self.new()) for _ in range(2)]
        self.others.append(rows)
        self.lake_rows += Counter(map(_of, rows))

    def others_rewrite(self) -> None:
        self.others.rewrite()

    def others_delete(self) -> None:
        number = self.random.choice([r[0] for r in self.lake_rows.elements()] or [0])
        self.others.delete(number)
        self.lake_rows = Counter({r: n for r, n in self.lake_rows.items() if r[0] != number})

    def keep_up(self) -> None:
        self.table.lake.compact()
        self.clock.advance(24 * 3600 * 1000)
        self.table.maintain()

    def reopen(self) -> None:
        self.table.log.checkpoint(self.table.refresh())
        self.table = Warehouse("wh", storage=self.storage, world=self.world).table(NAME)


def _of(found: dict[str, Any]) -> Row:
    return found["id"], found["region"], found["n"]
