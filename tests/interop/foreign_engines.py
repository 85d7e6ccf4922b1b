"""A table of a lake table that was there before, and the engine that writes to its lake: the same for both formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from interop import foreign_iceberg as foreign_lake
from streamhouse_spark import Table
from streamhouse_spark.core.clock import World
from streamhouse_spark.storage.base import Storage


class Engine(Protocol):
    """Another engine, at the lake of one storage."""

    def adopted(self, numbers: Sequence[int] = range(6), *, by_region: bool = False) -> Table:
        """Make a lake of two snapshots that nobody of us has written, and a table of it."""

    def append(self, rows: Sequence[dict[str, Any]]) -> None: ...

    def rewrite(self) -> None:
        """Write all rows of the lake again, as a compaction does."""

    def ids(self, table: Table) -> list[int]:
        """Read the lake's ids as the engine does."""


class Pyiceberg:
    format = "iceberg"

    def __init__(self, storage: Storage, world: World) -> None:
        self._at = (storage, world)

    def adopted(self, numbers: Sequence[int] = range(6), *, by_region: bool = False) -> Table:
        return foreign_lake.adopted(*self._at, numbers, spec=foreign_lake.BY_REGION if by_region else None)

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        foreign_lake.appended(*self._at, rows)

    def rewrite(self) -> None:
        foreign_lake.rewritten(*self._at)

    def ids(self, table: Table) -> list[int]:
        return foreign_lake.stock(table)


class Pypaimon:
    format = "paimon"

    def __init__(self, storage: Storage, world: World) -> None:
        from interop import foreign_paimon  # where it is left out, no test gets here

        self._storage, self._world, self._lake = storage, world, foreign_paimon

    def adopted(self, numbers: Sequence[int] = range(6), *, by_region: bool = False) -> Table:
        spec = self._lake.BY_REGION if by_region else None
        return self._lake.adopted(self._storage, self._world, numbers, spec=spec)

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        self._lake.appended(self._storage, rows)

    def rewrite(self) -> None:
        self._lake.rewritten(self._storage)

    def ids(self, table: Table) -> list[int]:
        return self._lake.stock(table)


ENGINES = {"iceberg": Pyiceberg, "paimon": Pypaimon}
