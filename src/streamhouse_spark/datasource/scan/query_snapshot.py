"""The table state that a query reads. It is chosen when Spark loads a name, and passed as text to every scan.

A query snapshot identifies a commit of the table or a lake snapshot. All scans of a query therefore read one state,
regardless of concurrent commits and of the process that plans them.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import asdict, replace

from streamhouse_spark.core.concurrency import new_lock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError, TableNotFoundError
from streamhouse_spark.lake.snapshot_history import require_metadata
from streamhouse_spark.lake.types import LakeValidators
from streamhouse_spark.log.history import state_at
from streamhouse_spark.log.history_index import HistoryPoint
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.read_snapshot import take_snapshot_as_of
from streamhouse_spark.read.time_travel import state_as_of, table_as_of, with_schema
from streamhouse_spark.table.system_views import CHANGELOG, LAKE, open_view
from streamhouse_spark.table.versioning.tags import resolve_version
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.warehouse.process_cache import Connection

_STATES_MAX = 16
CHANGES = "changes"
"""Suffix of a snapshot that reads the changes of a commit range. No table name has this suffix."""


@dataclass(frozen=True, slots=True)
class QuerySnapshot:
    table: str
    """The table's name, without suffix."""
    uuid: str
    suffix: str | None
    commit: int
    """Commit of the state to read. For a lake snapshot it determines the schema."""
    is_chosen: bool = False
    """Whether the user chose the state with VERSION or TIMESTAMP AS OF, so that no fallback is allowed."""
    as_of_ms: int | None = None
    lake_snapshot: int | None = None
    """With suffix ``lake``: the snapshot id, or None if the lake had no snapshot."""
    is_rewritten: bool = False
    """Whether the reader is an UPDATE, DELETE or MERGE of the table."""
    attempt: str | None = None
    """Attempt of the commit's record. A table that was restored from a backup has another attempt at this commit."""
    first: int = 0
    """With suffix ``changes``: the first commit."""
    last: int = 0
    """With suffix ``changes``: the last commit. The range is empty if it is below ``first``."""
    is_open: bool = False
    """With suffix ``changes``: whether a stream continues after the last commit."""
    schema_id: int | None = None
    """With suffix ``changes``: the schema of a stream. Without suffix: the schema as of ``as_of_ms``."""
    after_us: int | None = None
    """With suffix ``changes``, for streams: the displayed time of the commit before ``first``."""
    is_former: bool = False
    """Whether the table was replaced since, and is read as of a time before the replacement."""
    is_net: bool = False
    """With suffix ``changes``: whether rows of a log table are omitted if the commits add and remove them."""

    @property
    def name(self) -> str:
        if self.suffix == CHANGES:
            return f"{self.table} CHANGES"
        return self.table if self.suffix is None else f"{self.table}${self.suffix}"

    @property
    def version(self) -> str:
        """A text that changes whenever the rows of the snapshot may have changed."""
        return f"{self.commit}" if self.suffix != LAKE else f"{self.commit}-{self.lake_snapshot}"

    def to_text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> QuerySnapshot:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class CachedLakeSnapshot:
    """The latest lake snapshot, read together with the table's state."""

    location: str
    snapshot: int | None
    """None if the lake has no snapshot yet."""
    validators: LakeValidators | None
    """The validators that detect the next change of the lake."""


def read_lake_snapshot(table: TableHandle) -> CachedLakeSnapshot | None:
    """Read the latest lake snapshot. Returns None if the table's last read state has no lake."""
    state = table.state
    if not state.has_lake:
        return None
    lake = table.open_lake(state)
    with lake.cache_metadata_for_round():
        newest, validators = lake.newest(), lake.validators()
    require_metadata(state, lake, newest)
    return CachedLakeSnapshot(state.lake_location, None if newest is None else newest.id, validators)


def take_query_snapshot(
    table: TableHandle,
    suffix: str | None = None,
    version: str | None = None,
    timestamp_us: int | None = None,
    lake_snapshot: CachedLakeSnapshot | None = None,
) -> QuerySnapshot:
    """Return the snapshot of the table's last read state, or of a past state. ``lake_snapshot`` is the latest lake
    snapshot if it is cached.

    Raises `InvalidNameError` for an unknown suffix, `InvalidOptionError` for an invalid version, and
    `SnapshotExpiredError` or `OffsetsTrimmedError` for a version that is no longer retained.
    """
    as_of_ms = None if timestamp_us is None else timestamp_us // 1000
    is_chosen = version is not None or as_of_ms is not None
    state = table.state
    lake_snapshot_id = None
    if suffix == LAKE:
        open_view(table, suffix)
        if lake_snapshot is not None and not is_chosen:
            lake_snapshot_id = lake_snapshot.snapshot
        else:
            lake_snapshot_id = _resolve_lake_snapshot(table, version, as_of_ms)
    elif suffix is not None and is_chosen:
        remedy = "use endingOffsets or endingTimestamp" if suffix == CHANGELOG else f"read {table.name} with it"
        raise InvalidOptionError(f"{table.name}${suffix} does not support VERSION or TIMESTAMP AS OF; {remedy}")
    elif version is not None:
        state = state_at(table.log, table.storage, resolve_version(state, version))
    if suffix is None and as_of_ms is not None:
        snapshot, state = _take_snapshot_at(table, state, as_of_ms)
        take_snapshot_as_of(state, as_of_ms)
        return replace(snapshot, is_chosen=True, as_of_ms=as_of_ms)
    cache_state(state)
    return QuerySnapshot(
        table.name, table.uuid, suffix, state.version, is_chosen, lake_snapshot=lake_snapshot_id, attempt=state.attempt
    )


def take_query_snapshot_at(table: TableHandle, as_of_ms: int) -> QuerySnapshot:
    """Return the snapshot of the last read state with the columns of a past time. The read options contain the time."""
    return _take_snapshot_at(table, table.state, as_of_ms)[0]


def _take_snapshot_at(table: TableHandle, state: TableState, as_of_ms: int) -> tuple[QuerySnapshot, TableState]:
    """Return the snapshot and the state for reading rows of a past time, with the columns of that time."""
    source_table, state = table_as_of(table, state, as_of_ms)
    historical_state = state_as_of(source_table, state, as_of_ms)
    if historical_state.version != state.version:
        state = historical_state
    cache_state(state)
    snapshot = QuerySnapshot(
        source_table.name,
        source_table.uuid,
        None,
        state.version,
        attempt=state.attempt,
        schema_id=historical_state.schema_id,
        is_former=source_table is not table,
    )
    return snapshot, with_schema(state, historical_state.schema_id)


def _resolve_lake_snapshot(table: TableHandle, version: str | None, as_of_ms: int | None) -> int | None:
    lake = table.open_lake()
    if as_of_ms is not None:
        return lake.snapshot_as_of(as_of_ms).id
    if version is None:
        newest = lake.newest()
        require_metadata(table.state, lake, newest)
        return None if newest is None else newest.id
    text = version.strip()
    return lake.snapshot(int(text)).id if text.isdecimal() else lake.snapshot_by_name(text).id


def open_at_snapshot(connection: Connection, snapshot: QuerySnapshot) -> tuple[TableHandle, TableState]:
    """Open the table, and its state at the snapshot's commit.

    Raises `SnapshotExpiredError` if that state is no longer retained, `DifferentHistoryError` if the table was restored
    from a backup since, and `TableNotFoundError` if it was dropped.
    """
    table = connection.table_by_uuid(snapshot.table, snapshot.uuid)
    if snapshot.attempt is not None:
        table.log.require_history(
            [HistoryPoint(snapshot.commit, snapshot.attempt)], f"a query of {snapshot.name} began"
        )
    state = _STATE_CACHE.get(snapshot)
    if state is None:
        state = state_at(table.log, table.storage, snapshot.commit)
        cache_state(state)
    if table.log.state.dropped and not snapshot.is_former:
        raise TableNotFoundError(f"table {snapshot.table} ({snapshot.uuid}) was dropped; run the query again")
    if snapshot.suffix is None and snapshot.schema_id is not None:
        state = with_schema(state, snapshot.schema_id)
    return table, state


class _StateCache:
    """LRU cache of table states for planning. Thread-safe; states are immutable."""

    def __init__(self) -> None:
        self._states: OrderedDict[tuple[str, int, str], TableState] = OrderedDict()
        self._lock = new_lock()

    def put(self, state: TableState) -> None:
        if state.attempt is None:
            return  # without an attempt, a commit of another history could match
        with self._lock:
            self._states[state.table_uuid, state.version, state.attempt] = state
            while len(self._states) > _STATES_MAX:
                self._states.popitem(last=False)

    def get(self, snapshot: QuerySnapshot) -> TableState | None:
        with self._lock:
            return self._states.get((snapshot.uuid, snapshot.commit, snapshot.attempt or ""))


_STATE_CACHE = _StateCache()


def cache_state(state: TableState) -> None:
    """Cache a state for the scans of a query snapshot."""
    _STATE_CACHE.put(state)
