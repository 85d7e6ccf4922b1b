"""Fallback snapshots for a read whose lake snapshot or log files have expired.

All readers share this policy. The first fallback is the same table state with the latest lake snapshot, if it contains
the same rows. The next fallbacks are the latest states of the table, if the columns of the read are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from streamhouse_spark.config.table_properties import BRANCH
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import OffsetsTrimmedError, SnapshotExpiredError
from streamhouse_spark.lake.snapshot_history import require_drops_applied, require_metadata, require_same_history
from streamhouse_spark.lake.tiering.plan import require_progress
from streamhouse_spark.lake.types import LakeSnapshot
from streamhouse_spark.log.actions import TieredSnapshot
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.read_snapshot import ReadSnapshot, take_latest_snapshot
from streamhouse_spark.schema.evolution import require_same_columns
from streamhouse_spark.table_handle import TableHandle

FALLBACKS_MAX = 3

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InitialSchema:
    """The columns with which a read started."""

    columns: Sequence[str] | None
    """The table columns that the read returns; None for all."""
    is_chosen: bool = False
    """Whether the user chose the state. Then no other state may replace it."""
    reader: str = "a read of {name}"
    advice: str = "read it again"

    def require_same(self, snapshot: ReadSnapshot, fallback: ReadSnapshot) -> ReadSnapshot:
        """Return the fallback snapshot. Raises `SchemaMismatchError` if its columns differ from the initial ones."""
        initial, name = snapshot.state.schema, fallback.state.name
        columns = initial.names if self.columns is None else self.columns
        require_same_columns(initial, fallback.state.schema, columns, self.reader.format(name=name), self.advice)
        return fallback


def read_with_fallback(
    table: TableHandle, snapshot: ReadSnapshot, initial: InitialSchema, read: Callable[[ReadSnapshot], T]
) -> T:
    """Read a snapshot, or a fallback snapshot after it expired. Raises `SnapshotExpiredError` if all have expired."""
    fallback_snapshots = _fallback_snapshots(table, snapshot, initial)
    current = snapshot
    while True:
        try:
            return read(current)
        except SnapshotExpiredError:
            fallback = next(fallback_snapshots, None)
            if fallback is None:
                raise
            current = fallback


def _fallback_snapshots(table: TableHandle, snapshot: ReadSnapshot, initial: InitialSchema) -> Iterator[ReadSnapshot]:
    if BRANCH in snapshot.state.properties:
        return  # newer lake snapshots belong to the table, not to its branch
    table.refresh()  # raises if the table was dropped concurrently, with its lake
    if snapshot.lake is not None:
        with suppress(SnapshotExpiredError):  # the lake was rebuilt concurrently, and the old lake deleted
            latest = _latest_lake_snapshot(table, snapshot.state)
            if latest is None or (snapshot.lake.offsets and not latest.offsets):  # its log offsets are unknown
                return
            if (fallback := _snapshot_of_same_rows(snapshot.state, latest)) is not None:
                yield fallback
    if initial.is_chosen:
        return
    for _ in range(FALLBACKS_MAX):
        yield initial.require_same(snapshot, fall_back_to_lake_snapshot(table))


def _latest_lake_snapshot(table: TableHandle, state: TableState) -> LakeSnapshot | None:
    lake = table.open_lake(state)
    latest = lake.newest()
    require_same_history(table.log, latest)
    if latest is None:
        require_metadata(state, lake, latest)
    require_drops_applied(state, latest)
    return latest


def _snapshot_of_same_rows(state: TableState, latest: LakeSnapshot) -> ReadSnapshot | None:
    """Return the read snapshot of the state with the latest lake snapshot, or None if it has other rows.

    It has the same rows if its offsets are in the state's log and no partition was dropped since.
    """
    is_within_log = all(log.start <= latest.offsets.get(b, 0) <= log.end for b, log in state.buckets.items())
    has_all_partitions = state.lake is not None and latest.dropped_rows == state.lake.dropped_rows
    if is_within_log and has_all_partitions and state.begins_at(latest.starts):
        return take_latest_snapshot(state, _as_tiered_snapshot(latest))
    return None


def fall_back_to_lake_snapshot(table: TableHandle) -> ReadSnapshot:
    """Return a read snapshot of the latest state with the latest snapshot in the lake.

    Another engine may have expired the recorded snapshot.
    """
    for _ in range(FALLBACKS_MAX):
        with suppress(OffsetsTrimmedError):  # tiered and trimmed concurrently
            return _snapshot_at_lake(table)
    return _snapshot_at_lake(table)


def _snapshot_at_lake(table: TableHandle) -> ReadSnapshot:
    state = table.refresh()
    if not state.has_lake or BRANCH in state.properties:
        return take_latest_snapshot(state)
    latest = _latest_lake_snapshot(table, state)
    if latest is None:
        return take_latest_snapshot(table.refresh(), state.lake)
    try:
        return take_latest_snapshot(table.refresh(), _as_tiered_snapshot(latest))
    except OffsetsTrimmedError:
        if state.lake is not None:  # the lake was rolled back and the log no longer has the rows
            require_progress(state.lake.offsets, latest.offsets, table=state.name)
        raise


def _as_tiered_snapshot(snapshot: LakeSnapshot) -> TieredSnapshot:
    return TieredSnapshot(
        snapshot.id, snapshot.offsets, snapshot.timestamp_ms, snapshot.starts, applied_through=snapshot.applied_through
    )
