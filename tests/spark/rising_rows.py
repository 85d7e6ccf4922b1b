"""Appends to a table that go on while something else is done to who reads it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from streamhouse_spark.table.table import Table


class RisingRows:
    """Appends rows to a table all the time, with ids one after the other."""

    def __init__(self, table: Table, made: Callable[[int], Sequence[Mapping[str, Any]]], *, every_s: float) -> None:
        """``made`` gives the rows of an append, whose first id it is told."""
        self.table, self.count = table, 0
        self._made, self._every_s, self._ends = made, every_s, threading.Event()
        self._thread = threading.Thread(target=self._append)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def _append(self) -> None:
        while not self._ends.wait(self._every_s):
            rows = self._made(self.count)
            self.table.append(rows)
            self.count += len(rows)

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
