"""Replay of the log into a tablet, and the history of the tablet's rows.

A restored or copied table has the uuid and offsets of another log. A tablet therefore stores the latest record of the
state from which its rows were applied (`log.history_index`), in the same transaction. Its rows are valid if that record
is in the table's log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.arrow_rows import Column, combine_chunks
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import OffsetsTrimmedError
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.keys.key_codec import encode_keys, encode_lmdb_keys
from streamhouse_spark.kv.row_codec import ValueCodec
from streamhouse_spark.kv.tablet import Tablet, TabletState
from streamhouse_spark.log.actions import KvSnapshot
from streamhouse_spark.log.history_index import SPACING, HistoryPoint, HistoryRelation
from streamhouse_spark.log.record import read_attempt
from streamhouse_spark.log.segments.reader import InlineRecords, LogBatch
from streamhouse_spark.log.segments.scan import check_dense, plan_range, plan_snapshot, read_split
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage

RENEW_AFTER_RECORDS: Final = 4 * SPACING
"""Age in records after which the history of an unchanged bucket is renewed. Checking an older history sends a
request.
"""
CHANGES_MAX: Final = 1 << 20
"""Changes per tablet transaction. A tablet with at most this lag never shows part of a commit."""


def history_of(state: TableState) -> bytes | None:
    """Return the history to store with the rows of ``state``; None if the state has no record."""
    newest = state.anchors.newest
    return f"{newest.number} {newest.attempt}".encode() if newest is not None else None


def belongs_to_table(tablet: Tablet, extent: TabletState, storage: Storage, state: TableState) -> bool:
    """Return whether rows with this ``extent`` are of the log of ``state``, possibly of later records.

    Reads one record if the state's index does not have it: after another process of this host applied later records,
    and once if the bucket has not changed for a long time.
    """
    history = extent.history
    if history is None:
        return extent[:2] == (0, 0) or not state.anchors.marks
    newest = state.anchors.newest
    if tablet.verified_lineage == (history, newest):
        return True
    if not _is_same_history(tablet.verified_lineage, history, storage, state):
        return False
    if not is_ahead(extent, state):  # otherwise the log may have been restored to this state
        tablet.verified_lineage = (history, newest)
    return True


def is_ahead(extent: TabletState, state: TableState) -> bool:
    """Return whether the rows are of a later record. It is then cheaper to refresh the log than to read that record."""
    return extent.history is not None and _parse_history(extent.history).number > state.version


def forget_other_history(tablet: Tablet, storage: Storage, state: TableState) -> TabletState:
    """Discard rows of another log, and return the resulting extent of the tablet."""
    while not belongs_to_table(tablet, extent := tablet.extent, storage, state):
        tablet.forget(extent)
    if extent.history is not None and _parse_history(extent.history).number < state.version - RENEW_AFTER_RECORDS:
        renewed = history_of(state)
        if renewed is not None:
            tablet.renew_history(extent, renewed)
            return tablet.extent
    return extent


def _is_same_history(checked: object, history: bytes, storage: Storage, state: TableState) -> bool:
    mark = _parse_history(history)
    relation = state.anchors.relation(mark)
    if (
        relation is HistoryRelation.UNKNOWN
        and isinstance(checked, tuple)
        and checked[0] == history
        and checked[1] is not None
    ):
        relation = state.anchors.relation(checked[1])  # verified for a state that precedes this one
    if relation is not HistoryRelation.SAME:
        return read_attempt(storage, state.table_uuid, mark.number) == mark.attempt
    return True


def _parse_history(history: bytes) -> HistoryPoint:
    number, attempt = history.decode().split(" ")
    return HistoryPoint(int(number), attempt)


@dataclass(frozen=True, slots=True)
class KeyedLayout:
    """Converts a table's rows to keys and values, with one of its schemas."""

    schema_id: int
    values: ValueCodec
    key_indexes: tuple[int, ...]
    """Column indexes of the primary key in the schema."""

    @classmethod
    def of(cls, state: TableState) -> KeyedLayout:
        names = list(state.schema.names)
        places = tuple(names.index(state.schema.column(name).name) for name in state.primary_key)
        return cls(state.schema_id, ValueCodec(state.schemas, state.schema_id), places)

    @property
    def identity(self) -> dict[str, object]:
        """The identity of the tablets: rows with another primary key are discarded."""
        return {"key": [self.values.schema.columns[place].id for place in self.key_indexes]}

    def keys(self, columns: Sequence[Column]) -> pa.BinaryArray:
        """Return the keys of rows with all columns of the schema, in one array."""
        return encode_keys([combine_chunks(columns[place]) for place in self.key_indexes])


def catch_up(tablet: Tablet, layout: KeyedLayout, storage: Storage, state: TableState, bucket: int) -> None:
    """Apply the log's changes of ``bucket`` to the tablet, up to the end in ``state``.

    A new tablet starts from the bucket's KV snapshot, as does a tablet with so many missing changes that this is faster
    than a replay. Rows of another history of the table are discarded first. Threads and processes may run this
    concurrently. Raises `OffsetsTrimmedError` if the log no longer has the needed changes.
    """
    log = state.buckets[bucket]
    extent = forget_other_history(tablet, storage, state)
    if extent.begins < state.first_offset(bucket):
        tablet.truncate(state.first_offset(bucket), after=extent.history, history=history_of(state))
        extent = forget_other_history(tablet, storage, state)
    if (snapshot := state.snapshots.get(bucket)) is not None:
        lag = snapshot.offset - extent.applied
        if lag > 0 and (extent.applied < log.start or lag >= snapshot.num_rows):
            _restore(tablet, layout, storage, state, snapshot, extent)
            extent = forget_other_history(tablet, storage, state)
    while extent.applied < log.end:
        if extent.applied < log.start:
            raise OffsetsTrimmedError(
                f"bucket {bucket} of {state.name}: the tablet has the changes up to offset {extent.applied}, but the "
                f"log starts at {log.start}",
            )
        _replay(tablet, layout, storage, state, bucket, extent)
        extent = forget_other_history(tablet, storage, state)


def _replay(
    tablet: Tablet, layout: KeyedLayout, storage: Storage, state: TableState, bucket: int, extent: TabletState
) -> None:
    """Apply the changes after the tablet's extent. Stops if another thread or process applies changes."""
    applied, after, history = extent.applied, extent.history, history_of(state)
    end = state.buckets[bucket].end
    offsets = OffsetRange(applied, end)
    split = plan_range(state, bucket, offsets)
    records = InlineRecords(storage, state.table_uuid)
    written = state.written_schema(layout.schema_id)
    changes: dict[bytes, bytes | None] = {}
    for batch in check_dense(read_split(storage, split, written, records=records), offsets):
        changes.update(_last_changes(batch, layout))
        if len(changes) >= CHANGES_MAX and batch.offsets.end < end:
            if not tablet.apply(changes, applied, batch.offsets.end, after=after, history=history):
                return
            applied, changes, after = batch.offsets.end, {}, history or after
    tablet.apply(changes, applied, end, after=after, history=history)


def _restore(
    tablet: Tablet,
    layout: KeyedLayout,
    storage: Storage,
    state: TableState,
    snapshot: KvSnapshot,
    extent: TabletState,
) -> None:
    def items() -> Iterator[tuple[list[bytes], list[bytes]]]:
        for batch in read_split(storage, plan_snapshot(state, snapshot), layout.values.schema):
            columns = batch.batch.columns
            yield encode_lmdb_keys(layout.keys(columns)), layout.values.pack(columns)

    tablet.restore(
        items,
        snapshot.begins,
        snapshot.offset,
        num_rows=snapshot.num_rows,
        after=extent.history,
        history=history_of(state),
    )


def _last_changes(changes: LogBatch, layout: KeyedLayout) -> dict[bytes, bytes | None]:
    """Return the last change of each key in a batch of changes."""
    types, *columns = changes.batch.columns
    after = pc.not_equal(types, int(ChangeType.UPDATE_BEFORE))
    types, columns = types.filter(after), [column.filter(after) for column in columns]
    deleted = types.to_numpy() == np.int8(ChangeType.DELETE)
    values: list[bytes | None] = list(layout.values.pack(columns))
    for place in np.flatnonzero(deleted).tolist():
        values[place] = None
    return dict(zip(encode_lmdb_keys(layout.keys(columns)), values, strict=True))
