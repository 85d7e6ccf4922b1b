"""A table of a Paimon append table that was there before, and what pypaimon does to its lake."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from interop.foreign_iceberg import NAME, row
from interop.paimon_cases import Stock
from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.storage.base import Storage

__all__ = ["BUCKETS", "BY_REGION", "NAME", "adopted", "appended", "ids", "kept", "rewritten", "row", "stock", "tier"]
COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("region", pa.string()), ("n", pa.int32())])
BY_REGION: dict[str, Any] = {"partition_by": ["region"]}
BUCKETS: dict[str, Any] = {"bucket": "3", "bucket_key": "id"}


@dataclass
class _Folder:
    """A folder that goes with the storage whose lake pypaimon sees in it."""

    held: tempfile.TemporaryDirectory[str]
    stock: Stock


_folders: WeakKeyDictionary[Storage, _Folder] = WeakKeyDictionary()


def paimon(storage: Storage) -> Stock:
    if storage not in _folders:
        held = tempfile.TemporaryDirectory()
        _folders[storage] = _Folder(held, Stock(storage, Path(held.name)))
    return _folders[storage].stock


def adopted(
    storage: Storage, world: World, numbers: Sequence[int] = range(6), *, spec: dict[str, Any] | None = None
) -> Table:
    """Make a lake of two snapshots that nobody of us has written, and a table of it."""
    half = len(numbers) // 2
    rounds = [[row(number) for number in some] for some in (numbers[:half], numbers[half:])]
    paimon(storage).make(NAME, COLUMNS, *rounds, **spec or {})
    warehouse = Warehouse("wh", storage=storage, world=world)
    warehouse.adopt_table(NAME)
    return warehouse.table(NAME)


def appended(storage: Storage, rows: Sequence[dict[str, Any]]) -> None:
    paimon(storage).append(NAME, rows)


def rewritten(storage: Storage) -> None:
    """Write all rows of the lake again, as another engine's compaction does."""
    kept(storage, lambda _: True)


def kept(storage: Storage, wanted: Any) -> None:
    """Write the rows of the lake again that are wanted, and no others."""
    seen = paimon(storage)
    seen.overwrite(NAME, [one for one in seen.read(NAME) if wanted(one)])


def stock(table: Table) -> list[int]:
    """Read the lake's ids as pypaimon does."""
    return sorted(one["id"] for one in paimon(table.storage).read(NAME))
