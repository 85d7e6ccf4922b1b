"""A table of a lake table that was there before, and the engine that writes to its lake: the same for both formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from interop import foreign_iceberg as foreign_lake
from streamhouse_spark import Table
from streamhouse_spark.core.clock import World
from streamhouse_spark.storage.base import Storage


class Engine(Protocol):
    """Another engine, at the lake of one storage."""

    format: str
    storage: Storage
    layouts: Mapping[str, Mapping[str, bool]]
    """Options of `adopted` for each layout of the lake table."""

    keeps_files: bool
    """Whether a round that deletes rows leaves their data files in place."""

    def adopted(self, numbers: Sequence[int] = range(6), **layout: bool) -> Table:
        """Make a lake of two snapshots that nobody of us has written, and a table of it."""

    def append(self, rows: Sequence[dict[str, Any]]) -> None: ...

    def delete(self, number: int) -> None:
        """Delete the rows with an id."""

    def rewrite(self) -> None:
        """Write all rows of the lake again, as a compaction does."""

    def rows(self) -> list[dict[str, Any]]:
        """Read the lake's rows as the engine does."""

    def ids(self, table: Table) -> list[int]:
        """Read the lake's ids as the engine does."""

    def ids_in(self, storage: Storage) -> list[int]:
        """Read the ids of the lake in a copy of the storage."""


class Pyiceberg:
    format = "iceberg"
    layouts: ClassVar = {"plain": {}, "by region": {"by_region": True}}
    keeps_files = True

    def __init__(self, storage: Storage, world: World) -> None:
        self.storage = storage
        self._at = (storage, world)

    def adopted(self, numbers: Sequence[int] = range(6), *, by_region: bool = False) -> Table:
        return foreign_lake.adopted(*self._at, numbers, spec=foreign_lake.BY_REGION if by_region else None)

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        foreign_lake.appended(*self._at, rows)

    def delete(self, number: int) -> None:
        foreign_lake.lake_of(*self._at).delete(f"id = {number}")

    def rewrite(self) -> None:
        foreign_lake.rewritten(*self._at)

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = foreign_lake.lake_of(*self._at).scan().to_arrow().to_pylist()
        return rows

    def ids(self, table: Table) -> list[int]:
        return foreign_lake.stock(table)

    def ids_in(self, storage: Storage) -> list[int]:
        return foreign_lake.ids(foreign_lake.lake_of(storage, self._at[1]).scan().to_arrow())


class Pypaimon:
    format = "paimon"
    layouts: ClassVar = {
        **Pyiceberg.layouts,
        "buckets": {"bucketed": True},
        "both": {"by_region": True, "bucketed": True},
    }
    keeps_files = False

    def __init__(self, storage: Storage, world: World) -> None:
        from interop import foreign_paimon  # where it is left out, no test gets here

        self.storage, self._world, self._lake = storage, world, foreign_paimon

    def adopted(self, numbers: Sequence[int] = range(6), *, by_region: bool = False, bucketed: bool = False) -> Table:
        spec = {**(self._lake.BY_REGION if by_region else {}), **(self._lake.BUCKETS if bucketed else {})}
        return self._lake.adopted(self.storage, self._world, numbers, spec=spec)

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        self._lake.appended(self.storage, rows)

    def delete(self, number: int) -> None:
        self._lake.kept(self.storage, lambda one: one["id"] != number)

    def rewrite(self) -> None:
        self._lake.rewritten(self.storage)

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._lake.paimon(self.storage).read(self._lake.NAME)
        return rows

    def ids(self, table: Table) -> list[int]:
        return self._lake.stock(table)

    def ids_in(self, storage: Storage) -> list[int]:
        seen = self._lake.paimon(self.storage)
        ids = sorted(row["id"] for row in seen.on(storage).read(self._lake.NAME))
        seen.on(self.storage)
        return ids


ENGINES = {"iceberg": Pyiceberg, "paimon": Pypaimon}
