"""Damaging one file of a warehouse in every way, and what a fresh reader then makes of the table."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pyarrow as pa

from streamhouse_spark import StreamhouseError, Table, Warehouse
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.log import record, segment
from streamhouse_spark.log.gc import garbage_collection
from streamhouse_spark.log.segments import writer as segment_writer
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.memory import MemoryStorage

NAME = "sales.orders"
ROWS = pa.table({
    "id": pa.array(range(40), pa.int64()),
    "text": pa.array([None if i % 3 == 0 else f"value {i}" for i in range(40)]),
})  # fmt: skip


def flips_and_cuts(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Every byte with all its bits flipped, and with its lowest; every shorter length; zeros; one byte too many."""
    for mask in (0xFF, 0x01):
        for at, byte in enumerate(data):
            yield f"byte {at} ^ {mask:#04x}", data[:at] + bytes([byte ^ mask]) + data[at + 1 :]
    for length in range(len(data)):
        yield f"cut to {length} bytes", data[:length]
    yield "zeros", bytes(len(data))
    yield "a byte too many", data + b"\n"
    yield "twice", data + data


@dataclass
class Damaged:
    """A warehouse whose files can be replaced one at a time, in memory or on disk."""

    storage: Storage
    root: Path | None = None
    live: Table | None = None
    """A table that was opened before the damage; else each read opens it anew."""

    def replace(self, key: str, data: bytes) -> None:
        if self.root is not None:
            (self.root / key).write_bytes(data)
        else:
            self.storage.put(key, data)

    def keys(self, part: str) -> list[str]:
        return sorted(i.key for i in self.storage.list("") if part in i.key)

    def table_rows(self, columns: list[str] | None = None) -> pa.Table:
        table = self.live or self.open()
        return table.to_arrow(columns=columns)

    def open(self) -> Table:
        return Warehouse(self.storage.url, storage=self.storage).table(NAME)


def outcomes_of(damaged: Damaged, key: str, expected: pa.Table, *, columns: list[str] | None = None) -> Counter[str]:
    """Damage a file in every way; afterwards it is whole again.

    Raises `AssertionError` where a read gave anything but the expected rows or an error of this package.
    """
    whole = damaged.storage.read(key)
    counts: Counter[str] = Counter()
    for what, data in flips_and_cuts(whole):
        damaged.replace(key, data)
        try:
            found = damaged.table_rows(columns)
        except StreamhouseError as error:
            counts[type(error).__name__] += 1
            continue
        except BaseException as error:
            raise AssertionError(f"{key}, {what}: {type(error).__name__}: {error}") from error
        assert found.equals(expected), f"{key}, {what}: wrong rows: {found.to_pydict()}"
        counts["unchanged"] += 1
    damaged.replace(key, whole)
    return counts


def new_storage(kind: str, tmp_path: Path) -> Damaged:
    if kind == "memory":
        return Damaged(MemoryStorage())
    root = tmp_path / "warehouse"
    shutil.rmtree(root, ignore_errors=True)
    return Damaged(LocalStorage(str(root), fsync=False), root)


def small_table(damaged: Damaged, *, codec: str = "none", objects: bool = False, manifests: bool = False) -> pa.Table:
    """A table of one bucket and two appends; returns what it holds."""
    with (
        mock.patch.object(segment, "BLOCK_BYTES_MIN", 64),
        mock.patch.object(segment_writer, "BATCH_ROWS_MAX", 16),
        mock.patch.object(record, "RECORD_BYTES_MAX", 300 if manifests else record.RECORD_BYTES_MAX),
    ):
        warehouse = Warehouse(damaged.storage.url, storage=damaged.storage)
        properties = {"table.datalake.enabled": "false", "table.log.arrow.compression.type": codec}
        table = warehouse.create_table(NAME, ROWS.schema, properties=properties)
        if objects:
            table.log_writer.stager()._inline_bytes_max = 0
        table.append(ROWS.slice(0, 30))
        table.append(ROWS.slice(30))
    return ROWS


def wide_table(damaged: Damaged) -> pa.Table:
    """One segment, whose schema is long and whose checksums are for 64 bytes each."""
    rows = pa.table({f"c{i}": pa.array(range(4), pa.int64()) for i in range(300)})
    with mock.patch.object(segment, "BLOCK_BYTES_MIN", 64):
        warehouse = Warehouse(damaged.storage.url, storage=damaged.storage)
        table = warehouse.create_table(NAME, rows.schema, properties={"table.datalake.enabled": "false"})
        table.log_writer.stager()._inline_bytes_max = 0
        table.append(rows)
    return rows


def tiered_table(damaged: Damaged) -> pa.Table:
    """A table all of whose rows are in one lake file."""
    warehouse = Warehouse(damaged.storage.url, storage=damaged.storage)
    table = warehouse.create_table(NAME, ROWS.schema)
    table.append(ROWS)
    run_tasks = run_tasks_locally(damaged.storage, {}, table.world)
    TieringJob(table.log, table.open_lake(), world=table.world).run(run_tasks)
    return ROWS


def with_floor(damaged: Damaged) -> None:
    """Give the table two checkpoints and a floor below them, above its first records."""
    table = damaged.open()
    table.log.checkpoint(table.refresh())
    with mock.patch.object(garbage_collection, "WATERMARK_STEP_MIN", 1):
        table.maintain()


def tail_start(parquet: bytes) -> int:
    """Return the position of a lake file's page index, or of its footer if it has none, from its seal."""
    return int(parquet[parquet.rfind(b"streamhouse.footer-xxh3") :][59:79])


def flips_of_tail(parquet: bytes) -> Iterator[tuple[str, bytes]]:
    """Every single bit of page index and footer."""
    for at in range(tail_start(parquet), len(parquet)):
        for bit in range(8):
            yield f"byte {at} bit {bit}", parquet[:at] + bytes([parquet[at] ^ (1 << bit)]) + parquet[at + 1 :]
