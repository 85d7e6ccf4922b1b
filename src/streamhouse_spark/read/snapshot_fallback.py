"""Fallback snapshots for a read whose snapshot can no longer be read, because its lake snapshot or log files expired.

All readers share this policy. The first fallback is the same log state with the lake's latest snapshot, if that has the
same rows. After that come the latest states of the table, if the columns of the read are unchanged.
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
    """Whether the user chose the state, so that no other state may replace it."""
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
    """Read a snapshot, or a fallback for it. Raises `SnapshotExpiredError` if none can be read."""
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
    table.refresh()  # a concurrently dropped table has no lake table either
    if snapshot.lake is not None:
        with suppress(SnapshotExpiredError):  # the lake was rebuilt concurrently, and the old one deleted
            newest = _latest_lake_snapshot(table, snapshot.state)
            if newest is None or (snapshot.lake.offsets and not newest.offsets):  # its log offsets are unknown
                return
            if (same := _snapshot_of_same_rows(snapshot.state, newest)) is not None:
                yield same
    if initial.is_chosen:
        return
    for _ in range(FALLBACKS_MAX):
        yield initial.require_same(snapshot, fall_back_to_lake_snapshot(table))


def _latest_lake_snapshot(table: TableHandle, state: TableState) -> LakeSnapshot | None:
    lake = table.open_lake(state)
    newest = lake.newest()
    require_same_history(table.log, newest)
    if newest is None:
        require_metadata(state, lake, newest)
    require_drops_applied(state, newest)
    return newest


def _snapshot_of_same_rows(state: TableState, newest: LakeSnapshot) -> ReadSnapshot | None:
    """Return a read snapshot of the state on the lake's latest snapshot, or None if that has other rows.

    It has the same rows if it ends within the state's log and no partition was dropped since.
    """
    within = all(log.start <= newest.offsets.get(b, 0) <= log.end for b, log in state.buckets.items())
    is_whole = state.lake is not None and newest.dropped_rows == state.lake.dropped_rows
    if within and is_whole and state.begins_at(newest.starts):
        return take_latest_snapshot(state, _as_tiered_snapshot(newest))
    return None


def fall_back_to_lake_snapshot(table: TableHandle) -> ReadSnapshot:
    """Return a read snapshot of the latest state on the lake's own latest snapshot.

    Another engine may have expired the recorded one.
    """
    for _ in range(FALLBACKS_MAX):
        with suppress(OffsetsTrimmedError):  # tiered and trimmed concurrently
            return _snapshot_at_lake(table)
    return _snapshot_at_lake(table)


def _snapshot_at_lake(table: TableHandle) -> ReadSnapshot:
    state = table.refresh()
    if not state.has_lake or BRANCH in state.properties:
        return take_latest_snapshot(state)
    newest = _latest_lake_snapshot(table, state)
    if newest is None:
        return take_latest_snapshot(table.refresh(), state.lake)
    try:
        return take_latest_snapshot(table.refresh(), _as_tiered_snapshot(newest))
    except OffsetsTrimmedError:
        if state.lake is not None:  # the lake was rolled back and the log no longer has the rows
            require_progress(state.lake.offsets, newest.offsets, table=state.name)
        raise


def _as_tiered_snapshot(snapshot: LakeSnapshot) -> TieredSnapshot:
    return TieredSnapshot(
        snapshot.id, snapshot.offsets, snapshot.timestamp_ms, snapshot.starts, applied_through=snapshot.applied_through
    )
