"""Others who work on a table while a statement runs: one appends marked rows, one does upkeep."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from random import Random
from typing import Any

from spark.statements.columns import MARK
from spark.statements.lakehouse import CONFLICT, reason_of
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.lake.tiering.job import run_tasks_in_threads
from streamhouse_spark.table.maintenance.tiering import tier_table
from streamhouse_spark.write.auto_compaction import compact_inline_rows

_FIRST_PAUSE_S = 0.05


class Appender:
    """Appends rows with rising ids, one commit after the other, from a process of its own as far as caches go."""

    def __init__(self, url: str, name: str, first: int, rng: Random) -> None:
        self._table = Warehouse(url).table(name)
        self._first, self._rng = first, rng
        self.rows: list[dict[str, Any]] = []
        """All rows that are stored, in the order of their commits."""

    def step(self) -> None:
        count = self._rng.randint(1, 3)
        start = MARK + self._first + len(self.rows)
        rows = [{"id": start + i, "day": self._rng.randrange(3)} for i in range(count)]
        keyed = self._table.refresh().primary_key
        (self._table.upsert if keyed else self._table.append)(rows)
        self.rows += rows


class Keeper:
    """Tiers, merges and compacts; a conflict with the statement is none of its business."""

    def __init__(self, url: str, name: str, rng: Random) -> None:
        self._url, self._name, self._rng = url, name, rng

    def step(self) -> None:
        table: Table = Warehouse(self._url).table(self._name)
        try:
            match self._rng.choice(["tier", "tier", "merge", "compact", "maintain"]):
                case "tier":
                    tier_table(table, run_tasks_in_threads(table.storage, table.settings, table.world))
                case "merge":
                    compact_inline_rows(table)
                case "maintain":
                    table.maintain()
                case _ if table.refresh().recorded_lake is not None:
                    table.lake.compact()
        except StreamhouseError as error:
            if reason_of(error) != CONFLICT:
                raise


@contextlib.contextmanager
def beside(*others: Appender | Keeper) -> Iterator[None]:
    """Let others work until the block ends, each time after a longer pause: a statement that takes long on a busy
    machine would take the longer for it, and grow the table. Raises the first error of one of them.
    """
    ended = threading.Event()
    errors: list[BaseException] = []

    def work(one: Appender | Keeper) -> None:
        try:
            one.step()
            pause_s = _FIRST_PAUSE_S
            while not ended.wait(pause_s):
                one.step()
                pause_s *= 2
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            errors.append(error)

    threads = [threading.Thread(target=work, args=(one,), daemon=True) for one in others]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
