"""Tables of a warehouse with Iceberg metadata that includes the hot rows, built on request.

Metadata shows one state of the table: the latest lake snapshot, and the log's rows after its offsets as Parquet files
in a virtual table (see `streamhouse_spark.lake.iceberg.virtual_table`). If the log or the lake has new commits, the
next metadata is built from the previous metadata. A virtual table is used for an epoch of at most half the grace
period, and deleted after the grace period: then a slow reader finds a missing file, never a wrong row.

If metadata with hot rows takes too long or cannot be built, a server may respond with the lake's rows only
(`StaleFallback`). By default it does not, because engines can recognise this only by the header `Warning`.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from streamhouse_spark.core.concurrency import new_lock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import VIRTUAL_PREFIX, virtual_epoch
from streamhouse_spark.errors import (
    CommitConflictError,
    InvalidOptionError,
    LakeRolledBackError,
    OffsetsTrimmedError,
    StorageRefusedError,
    StreamhouseError,
    TableNotFoundError,
)
from streamhouse_spark.lake.iceberg.table import IcebergLake
from streamhouse_spark.lake.iceberg.virtual_table import (
    IcebergMetadata,
    VirtualTable,
    make_virtual_identity,
    read_latest_metadata,
    virtual_key,
)
from streamhouse_spark.lake.tiering.job import run_tasks_in_threads
from streamhouse_spark.lake.tiering.round import plan_round, tier_to_virtual_table
from streamhouse_spark.log.state import TableState
from streamhouse_spark.serve.options import GRACE_MS
from streamhouse_spark.serve.server_metrics import ServerCounters
from streamhouse_spark.storage.prefetch import map_with_store_concurrency
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.warehouse import Warehouse

PAUSE_MS: Final = 50
"""Minimum time between two builds of a table, or the duration of the first build if that is longer. Requests in between
share the second build."""
ROUNDS_MAX: Final = 8
"""Maximum rounds of a virtual table, each of which adds files. Then all hot rows are rewritten into few files."""
BACKDATED_MS: Final = 60_000
"""Minimum age of the latest snapshot in served metadata. DuckDB reads the latest snapshot as of its transaction start,
by its clock. A snapshot with a later time would be ignored silently, or fail the query."""
_ATTEMPTS_MAX: Final = 20
"""Maximum attempts to read a lake that gets new snapshots concurrently. With continuous rounds, four consecutive
attempts failed once in some thousand requests."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedMetadata:
    """Iceberg metadata of one table, as a catalog returns it."""

    location: str
    """Unique location of the metadata file."""
    text: str
    """The metadata as JSON."""
    version: int
    """The commit of the table that the metadata shows."""


@dataclass(frozen=True, slots=True)
class _CachedMetadata:
    metadata: ServedMetadata
    lake_location: str | None
    epoch: int
    generation: int
    rest_until_ms: int
    observation: int = 0
    """Number of the last observation by which the metadata was current."""


@dataclass(frozen=True, slots=True)
class _Observation:
    lake: IcebergMetadata | None
    recorded: int | None
    """The snapshot that the log recorded before the lake was read. The lake contains or contained it."""
    state: TableState
    epoch: int


def _recorded_snapshot(state: TableState) -> int | None:
    return state.lake.snapshot_id if state.lake is not None else None


class ServedTable:
    """A table whose metadata is cached. Safe for threads: one thread builds the metadata, and the others wait."""

    def __init__(self, table: Table, *, grace_ms: int = GRACE_MS, pause_ms: int = PAUSE_MS) -> None:
        self.table = table
        self._epoch_ms = max(1, grace_ms // 2)
        self._pause_ms = pause_ms
        self._lock = new_lock()
        self._cached: _CachedMetadata | None = None
        self._num_observations = 0
        """Number of started observations. A call may use the result of an observation that started after the call."""

    def require_shown(self) -> TableState:
        """Return the latest state. Raises `TableNotFoundError` if an Iceberg catalog cannot show the table."""
        return self._require_iceberg(self.table.refresh())

    def lake_metadata(self) -> ServedMetadata:
        """Return the metadata of the lake table. Raises `TableNotFoundError` before the first tiering round."""
        metadata, state = self._require_lake()
        return ServedMetadata(metadata.location, metadata.metadata.model_dump_json(), state.version)

    def fallback_metadata(self) -> ServedMetadata:
        """Return metadata of this table, with its identity, that has the lake's rows only.

        Builds nothing. Raises the errors of `lake_metadata`.
        """
        real, state = self._require_lake()
        key = virtual_key(state, real, self.table.storage.now_ms() // self._epoch_ms, 0)
        metadata = make_virtual_identity(self.table.storage, state, real, key)
        return ServedMetadata(
            metadata.location, backdate_snapshots(metadata.metadata.model_dump_json(), self._newest_ms()), state.version
        )

    def _require_lake(self) -> tuple[IcebergMetadata, TableState]:
        state = self._require_iceberg(self.table.refresh())
        metadata = self._read_lake(state)
        if metadata is None:
            raise TableNotFoundError(
                f"table {self.table.name} has no lake table yet; run: streamhouse tier --once {self.table.name}"
            )
        return metadata, state

    def latest_metadata(self) -> ServedMetadata:
        """Return the metadata of the table's latest state, including hot rows.

        **Commit point:** a snapshot of the virtual table; nothing else is written. Raises the errors of tiering.
        """
        before = self._num_observations
        with self._lock:
            cached = self._cached
            if cached is not None and cached.observation > before:  # observed by another thread since the call began
                return cached.metadata
            self._num_observations = number = self._num_observations + 1
            observation = self._observe()
            if cached is not None and self._is_current(cached, observation):
                self._cached = replace(cached, observation=number)
                return cached.metadata
            if cached is not None and (left_ms := cached.rest_until_ms - self._boot_ms()) > 0:
                self.table.world.clock.sleep_ms(left_ms)
                self._num_observations = number = self._num_observations + 1
                observation = self._observe()
            try:
                self._cached = replace(self._build(observation), observation=number)
            except StorageRefusedError as error:
                return self._fall_back_to_lake(observation.state, error)
            return self._cached.metadata

    def _fall_back_to_lake(self, state: TableState, error: StorageRefusedError) -> ServedMetadata:
        """Return metadata of the lake's rows if the store rejects files, and no row is hot.

        Raises `StorageRefusedError` for a table with hot rows.
        """
        if self._is_fully_tiered(state):
            return self.fallback_metadata()
        raise StorageRefusedError(
            f"cannot show the hot rows of {state.name}, because the store rejects their files: {error}; load "
            f"{state.name}$lake, which has the tiered rows, or tier the table first, or let the server write below "
            f"{VIRTUAL_PREFIX}"
        ) from error

    def _is_fully_tiered(self, state: TableState) -> bool:
        if not state.has_lake:
            return False
        lake = self.table.open_lake()
        with lake.cache_metadata_for_round():
            newest = lake.newest()
            return newest is not None and not plan_round(state, newest, state.ends).is_due

    def _observe(self) -> _Observation:
        """Read the lake, and then the log, so that the log is never older than the lake."""
        before = self._require_iceberg(self.table.state)
        lake = self._read_lake(before)
        state = self._require_iceberg(self.table.refresh())
        return _Observation(lake, _recorded_snapshot(before), state, self.table.storage.now_ms() // self._epoch_ms)

    def _is_current(self, cached: _CachedMetadata, observation: _Observation) -> bool:
        location = observation.lake.location if observation.lake is not None else None
        state = observation.state
        return (cached.metadata.version, cached.lake_location, cached.epoch) == (
            state.version,
            location,
            observation.epoch,
        )

    def _build(self, observation: _Observation) -> _CachedMetadata:
        table, began_ms = self.table, self._boot_ms()
        run_tasks = run_tasks_in_threads(table.storage, table.settings, table.world)
        for attempt in range(_ATTEMPTS_MAX):
            if attempt:
                observation = self._observe()
            real, epoch = observation.lake, observation.epoch
            location = real.location if real is not None else None
            before = self._cached
            is_same = before is not None and (before.lake_location, before.epoch) == (location, epoch)
            generation = before.generation if before and is_same else 0
            virtual, generation = self._begin_virtual_table(observation.state, real, epoch, generation)
            try:
                state = tier_to_virtual_table(
                    table.log, virtual, run_tasks, partial(self._require_lake_current, observation)
                )
            except (OffsetsTrimmedError, LakeRolledBackError, CommitConflictError):
                if attempt == _ATTEMPTS_MAX - 1:
                    raise
                continue  # the lake has a later snapshot, and the log was trimmed up to it
            metadata = virtual.metadata()
            text = backdate_snapshots(metadata.metadata.model_dump_json(), self._newest_ms())
            served = ServedMetadata(metadata.location, text, state.version)
            now_ms = self._boot_ms()
            return _CachedMetadata(served, location, epoch, generation, now_ms + max(self._pause_ms, now_ms - began_ms))
        raise AssertionError

    def _require_lake_current(self, observation: _Observation, state: TableState) -> None:
        """Raise `LakeRolledBackError` if the log recorded a later snapshot than the observed lake contains.

        The log forgets deleted rows and dropped partitions once it records a snapshot without them, so the caller must
        read the lake again.
        """
        self._require_iceberg(state)
        recorded = _recorded_snapshot(state)
        if recorded is None or recorded == observation.recorded:
            return
        if observation.lake is not None and any(
            snapshot.snapshot_id == recorded for snapshot in observation.lake.metadata.snapshots
        ):
            return
        raise LakeRolledBackError(
            f"the lake of {state.name} advanced to snapshot {recorded} while its hot rows were read; retry"
        )

    def _begin_virtual_table(
        self, state: TableState, real: IcebergMetadata | None, epoch: int, generation: int
    ) -> tuple[VirtualTable, int]:
        """Return a virtual table of the lake's version that can have another round, and its generation."""
        table = self.table
        while True:
            key = virtual_key(state, real, epoch, generation)
            virtual = VirtualTable.of(table.storage, table.settings, table.world, state, key)
            with virtual.cache_metadata_for_round():
                virtual.begin(real)
                if virtual.metadata().num_rounds < ROUNDS_MAX:
                    return virtual, generation
            generation += 1

    def _read_lake(self, state: TableState) -> IcebergMetadata | None:
        if not state.has_lake:
            return None
        lake = self.table.open_lake()
        assert isinstance(lake, IcebergLake)
        return read_latest_metadata(lake)

    def _require_iceberg(self, state: TableState) -> TableState:
        self.table.require_not_dropped(state)
        if state.parsed.datalake_format != "iceberg":
            raise TableNotFoundError(
                f"table {state.name} has a {state.parsed.datalake_format} lake, expected iceberg; read the table with "
                "Spark, with Python, or over /api/v1"
            )
        return state

    def _newest_ms(self) -> int:
        return self.table.world.clock.now_ms() - BACKDATED_MS

    def _boot_ms(self) -> int:
        return self.table.world.clock.boot_ms()


def backdate_snapshots(text: str, newest_ms: int) -> str:
    """Return the metadata with ascending snapshot times up to ``newest_ms``, and without a metadata log.

    DuckDB searches the metadata log for a version before its transaction, and fails if all versions are later. Without
    the log, it uses the latest snapshot before its transaction.
    """
    metadata = json.loads(text)
    metadata["metadata-log"] = []
    times: dict[int, int] = {}
    latest_ms = newest_ms
    for snapshot in reversed(metadata["snapshots"]):
        times[snapshot["snapshot-id"]] = snapshot["timestamp-ms"] = min(snapshot["timestamp-ms"], latest_ms)
        latest_ms = snapshot["timestamp-ms"] - 1
    for entry in metadata["snapshot-log"]:
        entry["timestamp-ms"] = times.get(entry["snapshot-id"], min(entry["timestamp-ms"], latest_ms))
    metadata["last-updated-ms"] = min(metadata["last-updated-ms"], newest_ms)
    return json.dumps(metadata, separators=(",", ":"))


class ServedTables:
    """The served tables of a warehouse, and the folders of virtual tables."""

    def __init__(self, warehouse: Warehouse, *, grace_ms: int = GRACE_MS, pause_ms: int = PAUSE_MS) -> None:
        self.warehouse = warehouse
        self._grace_ms = grace_ms
        self._pause_ms = pause_ms
        self._lock = new_lock()
        self._served: dict[str, ServedTable] = {}

    def table(self, name: str) -> ServedTable:
        """Return the table that currently has the name. Raises `TableNotFoundError` and `InvalidNameError`."""
        with self._lock:
            served = self._served.get(name)
        if served is not None:
            with suppress(TableNotFoundError):
                if served.table.refresh().name == name:
                    return served
        served = ServedTable(self.warehouse.table(name), grace_ms=self._grace_ms, pause_ms=self._pause_ms)
        with self._lock:
            self._served[name] = served
        return served

    def list_loadable(self, names: Sequence[str], *, lake_alone: bool) -> list[str]:
        """Return the tables that an Iceberg catalog can show, or with ``lake_alone`` the tables with a lake table.

        An unreadable table is included, and loading it reports the error.
        """

        def is_loadable(name: str) -> bool:
            try:
                state = self.table(name).require_shown()
            except TableNotFoundError:
                return False
            except StreamhouseError:
                return True
            return state.lake is not None or not lake_alone

        loadable = map_with_store_concurrency(self.warehouse.storage, is_loadable, names)
        return [name for name, can_load in zip(names, loadable, strict=True) if can_load]

    def clean(self, *, dry_run: bool = False) -> list[str]:
        """Delete the folders of virtual tables after their grace period, and return their keys."""
        storage = self.warehouse.storage
        epoch = storage.now_ms() // max(1, self._grace_ms // 2)
        expired = [
            f"{VIRTUAL_PREFIX}{name}"
            for name in storage.list_names(VIRTUAL_PREFIX)
            if (folder_epoch := virtual_epoch(name)) is not None and folder_epoch < epoch - 2
        ]
        for folder in [] if dry_run else expired:
            for info in storage.list(f"{folder}/"):
                storage.delete(info.key)
        return expired


class StaleFallback:
    """Waits a limited time for metadata with hot rows. Safe for threads.

    At most one build per table is running, and one more is waiting, for any number of requests.
    """

    def __init__(self, wait_s: float, counts: ServerCounters) -> None:
        self._wait_s = wait_s
        self._counts = counts
        self._lock = new_lock()
        self._locks: WeakKeyDictionary[ServedTable, threading.RLock] = WeakKeyDictionary()
        self._waiting: dict[ServedTable, Future[ServedMetadata]] = {}

    def metadata(self, table: ServedTable) -> tuple[ServedMetadata, str | None]:
        """Return the latest metadata, or metadata without hot rows and the reason.

        The build continues in the background, for later requests. For a table without a lake, the request waits. Raises
        the errors of `ServedTable.latest_metadata`.
        """
        future = self._request_build(table)
        try:
            return future.result(self._wait_s), None
        except TimeoutError:
            reason = f"its hot rows were not ready after {self._wait_s:g} s"
        except (TableNotFoundError, InvalidOptionError):
            raise
        except StreamhouseError as error:
            reason = f"its hot rows could not be read: {error}"
        try:
            metadata = table.fallback_metadata()
        except StreamhouseError:
            return future.result(), None
        self._counts.count_lake_only_answer(table.table.name)
        logger.warning("%s: responded without hot rows: %s", table.table.name, reason)
        return metadata, reason

    def _request_build(self, table: ServedTable) -> Future[ServedMetadata]:
        """Return the future of metadata whose build has not started."""
        with self._lock:
            future = self._waiting.get(table)
            if future is None:
                future = self._waiting[table] = Future()
                lock = self._locks.setdefault(table, new_lock())
                threading.Thread(target=self._run, args=(table, lock, future), daemon=True).start()
            return future

    def _run(self, table: ServedTable, lock: threading.RLock, future: Future[ServedMetadata]) -> None:
        with lock:
            with self._lock:
                del self._waiting[table]  # later requests need a later state
            try:
                future.set_result(table.latest_metadata())
            except BaseException as error:  # noqa: BLE001 - raised in the waiting requests
                future.set_exception(error)
