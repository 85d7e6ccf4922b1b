"""Iceberg metadata of read-only system tables: ``orders$history``, ``orders$buckets`` and others.

Metadata shows one commit of the table. If the table has new commits, a request builds new metadata at another
location next to the virtual tables, but at most once per `PAUSE_MS`. The files are deleted after the grace period, with
the virtual tables.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import field
from typing import Final

import pyarrow as pa

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.concurrency import new_lock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import VIRTUAL_PREFIX, virtual_location
from streamhouse_spark.errors import InvalidOptionError, TableNotFoundError
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.lake.iceberg.file_io import translate_commit_errors
from streamhouse_spark.lake.iceberg.virtual_table import IcebergMetadata
from streamhouse_spark.log.catalog.names import WarehouseIdentity
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.system_tables import SYSTEM_TABLES, SystemTables
from streamhouse_spark.serve.iceberg.served_tables import BACKDATED_MS, ServedMetadata, backdate_snapshots
from streamhouse_spark.serve.options import GRACE_MS
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.table.system_views import PARTITIONS, open_view
from streamhouse_spark.table.table import Table

PAUSE_MS: Final = 1_000
"""Stale metadata up to this age is reused, because a build costs several writes."""
ROWS_MAX: Final = 100_000
"""Maximum rows of a served system table. `$history` is limited to the latest rows."""
SYSTEM_SUFFIXES: Final = (*SYSTEM_TABLES, PARTITIONS)
_CACHED_MAX: Final = 1_000


@dataclass(slots=True)
class _CachedMetadata:
    lock: threading.RLock = field(default_factory=new_lock)
    metadata: ServedMetadata | None = None
    epoch: int = 0
    made_ms: int = 0


class SystemTableMetadata:
    """The metadata of system tables. Safe for threads: one thread builds the metadata, and the others wait."""

    def __init__(self, *, grace_ms: int = GRACE_MS) -> None:
        self._epoch_ms = max(1, grace_ms // 2)
        self._lock = new_lock()
        self._cache: OrderedDict[tuple[str, str], _CachedMetadata] = OrderedDict()

    def latest_metadata(self, table: Table, suffix: str) -> ServedMetadata:
        """Return the metadata of a system table. **Commit point:** the last version of its Iceberg table.

        Raises `TableNotFoundError` for a suffix that an Iceberg catalog does not show, and `InvalidOptionError` for a
        system table with too many rows.
        """
        self.require_shown(table, suffix)
        with self._lock:
            entry = self._cache.setdefault((table.uuid, suffix), _CachedMetadata())
            self._cache.move_to_end((table.uuid, suffix))
            while len(self._cache) > _CACHED_MAX:
                self._cache.popitem(last=False)
        with entry.lock:
            state, clock = table.refresh(), table.world.clock
            epoch = table.storage.now_ms() // self._epoch_ms
            metadata = entry.metadata
            is_new = metadata is not None and (
                metadata.version == state.version or clock.boot_ms() - entry.made_ms < PAUSE_MS
            )
            if metadata is None or not is_new or epoch != entry.epoch:
                metadata = entry.metadata = self._write_table(table, state, suffix, epoch)
                entry.epoch, entry.made_ms = epoch, clock.boot_ms()
            return metadata

    @staticmethod
    def require_shown(table: Table, suffix: str) -> None:
        """Raise `TableNotFoundError` for a suffix that an Iceberg catalog does not show."""
        if suffix not in SYSTEM_SUFFIXES or (suffix == PARTITIONS and not table.state.partition_by):
            raise TableNotFoundError(
                f"there is no {table.name}${suffix} in this catalog, expected {table.name}, {table.name}$lake or "
                f"{', '.join(f'${name}' for name in SYSTEM_SUFFIXES)}; read changes with Arrow Flight, Python or Spark"
            )

    @staticmethod
    def _write_table(table: Table, state: TableState, suffix: str, epoch: int) -> ServedMetadata:
        rows = _read_rows(table, state, suffix)
        if rows.num_rows > ROWS_MAX:
            raise InvalidOptionError(
                f"{table.name}${suffix} has {rows.num_rows:,} rows, and an Iceberg catalog shows at most {ROWS_MAX:,}; "
                "read it with Arrow Flight, Python or Spark"
            )
        name = f"{suffix}-{state.version}-{table.world.ids.new_uuid()}"
        metadata = write_inline_table(table.storage, table.world, virtual_location(state.table_uuid, epoch, name), rows)
        newest_ms = table.world.clock.now_ms() - BACKDATED_MS
        return ServedMetadata(
            metadata.location, backdate_snapshots(metadata.metadata.model_dump_json(), newest_ms), state.version
        )


def _read_rows(table: Table, state: TableState, suffix: str) -> pa.Table:
    if suffix == PARTITIONS:
        return open_view(table, suffix).to_arrow()
    return SystemTables(table.storage, state, limit=ROWS_MAX).read(suffix)


def write_inline_table(storage: Storage, world: World, location: str, rows: pa.Table) -> IcebergMetadata:
    """Create a read-only Iceberg table at a unique `virtual_location`. **Commit point:** its last version.

    Raises `StorageError` and `WarehouseMovedError`.
    """
    folder = location.removeprefix(VIRTUAL_PREFIX)
    if folder == location:
        raise ValueError(f"{location} is not the location of a virtual table")
    WarehouseIdentity(storage).require(f"creating the table {folder}")
    catalog = FileCatalog(storage, world=world)
    namespace = VIRTUAL_PREFIX.rstrip("/").rpartition("/")[2]
    with translate_commit_errors(f"creating the table {folder}"):
        table = catalog.create_table((namespace, folder), rows.schema, properties={"format-version": "2"})
        if rows.num_rows:
            table.append(rows)
    return IcebergMetadata(table.metadata_location, table.metadata)
