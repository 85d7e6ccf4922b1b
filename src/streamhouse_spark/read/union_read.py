"""The union read: the rows of a lake snapshot, and the log from exactly its offsets on.

A read follows the state of its pin alone; the table's own moves on under it, with each read and write of the process.

Rows of a log table are those of both. Of a table with a primary key the log holds changes, which are collapsed by key
and laid over the older rows; memory is then bounded by the changes that are not in the lake yet, while the lake's rows
pass by in batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import pyarrow as pa

from streamhouse_spark.core.parallel import in_parallel
from streamhouse_spark.errors import OffsetsTrimmedError, SnapshotExpiredError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.keys.collapsed_changes import KeySet, Tail
from streamhouse_spark.lake.history import require_dropped, require_of_history
from streamhouse_spark.lake.model.values import LakePlan, LakeSplit
from streamhouse_spark.lake.tiering.plan import require_progress
from streamhouse_spark.log.commits.actions import LakePair
from streamhouse_spark.log.commits.state import CHANGE_COLUMN, TableState
from streamhouse_spark.log.segments.reader import InlineRecords
from streamhouse_spark.log.segments.scan import LogSplit, plan_range, read_split, snapshot_split
from streamhouse_spark.query import row_selection
from streamhouse_spark.query.projection import Projection
from streamhouse_spark.read.pin import Pin, pin_newest, require_recorded
from streamhouse_spark.schema.evolution import require_same_columns
from streamhouse_spark.schema.table_schema import TableSchema

REPINS_MAX = 3


def read_newest(table: TableHandle, pin: Pin, projection: Projection) -> pa.Table:
    """Read the rows of a pin, or of a newer one if its lake snapshot was expired.

    Raises `SchemaMismatchError` if columns of the projection are not those of the newer pin.
    """
    for _ in range(REPINS_MAX):
        try:
            return read_pin(table, pin, projection)
        except SnapshotExpiredError:
            pin = repinned_for(table, pin, projection)
    return read_pin(table, pin, projection)


def repinned_for(table: TableHandle, pin: Pin, projection: Projection) -> Pin:
    """Return a pin in place of one that can no longer be read, for a read that began by that one's columns.

    Raises `SchemaMismatchError` if columns of the projection have changed.
    """
    begun, found = pin.state.schema, repinned(table)
    names = begun.names if projection.read_columns is None else projection.read_columns
    require_same_columns(begun, found.state.schema, names, f"a read of {found.state.name}", "read it again")
    return found


def repinned(table: TableHandle) -> Pin:
    """Pin the table again as `Table.repinned` does."""
    for _ in range(REPINS_MAX):
        with suppress(OffsetsTrimmedError):  # tiered and trimmed further between the two looks
            return _pinned_to_lake(table)
    return _pinned_to_lake(table)


def _pinned_to_lake(table: TableHandle) -> Pin:
    state = table.refresh()
    if not state.has_lake:
        return pin_newest(state)
    newest = table.open_lake().newest()
    require_of_history(table.log, newest)
    require_dropped(state, newest)
    if newest is None:
        return pin_newest(table.refresh(), state.lake)
    try:
        return pin_newest(table.refresh(), LakePair(newest.id, newest.offsets, newest.timestamp_ms, newest.starts))
    except OffsetsTrimmedError:
        if state.lake is not None:  # the lake went back, and the log has the rows no longer
            require_progress(state.lake.offsets, newest.offsets, table=state.name)
        raise


def read_pin(table: TableHandle, pin: Pin, projection: Projection) -> pa.Table:
    """Read all rows of a pin. Raises `SnapshotExpiredError`, `OffsetsTrimmedError`, `CorruptDataError`."""
    if pin.state.primary_key:
        return projection.joined(list(read_keyed(table, pin, projection)))
    parts = []
    if pin.lake is not None:
        plan = planned_lake(table, pin, projection)
        parts.append(projection.finish(table.open_lake().to_arrow(plan, filter=projection.filter)))
    parts.extend(read_hot(table, pin, projection))
    return projection.joined(parts)


# -- log tables -------------------------------------------------------------------------------------------------------


def planned_lake(
    table: TableHandle, pin: Pin, projection: Projection, columns: Sequence[str] | None = None
) -> LakePlan:
    """Plan a read of the pin's lake snapshot by the pin's columns; by default those that the projection reads.

    Raises `SnapshotExpiredError` if the snapshot is gone, or is not the one that was recorded.
    """
    assert pin.lake is not None
    plan = table.open_lake().plan_read(
        snapshot_id=pin.lake.snapshot_id,
        columns=projection.read_columns if columns is None else columns,
        predicates=projection.predicates,
        schema=pin.state.schema,
    )
    require_recorded(pin.state, pin.lake, plan.snapshot)
    return plan


def read_hot(table: TableHandle, pin: Pin, projection: Projection) -> Iterator[pa.Table]:
    """See `Table.read_hot`."""
    wanted = pin.state.schema
    splits = [plan_range(pin.state, bucket, offsets, projection.filter) for bucket, offsets in pin.hot.items()]
    records = InlineRecords(table.storage, table.uuid)
    records.expect(segment for split in splits for segment in split.segments)
    for split in splits:
        batches = read_split(table.storage, split, wanted, projection.read_columns, records=records)
        found = [b.batch for b in batches]
        if found:
            yield projection.finish(projection.filtered(pa.Table.from_batches(found)))


# -- tables with a primary key ----------------------------------------------------------------------------------------


def read_keyed(table: TableHandle, pin: Pin, projection: Projection) -> Iterator[pa.Table]:
    """Read the rows of a pin of a table with a primary key: older rows of unchanged keys, then the rows that the
    changes leave.

    The older ones are those of the lake snapshot, or without one of the snapshots by key.
    """
    wanted = with_key(pin.state, projection.read_columns)
    tails = tails_of(table, pin, wanted)
    if pin.lake is not None:
        yield from _older_rows(table, pin, projection, wanted, tails)
    places = key_places(pin.state, wanted)
    for bucket, base in pin.bases.items():
        for found in read_split(table.storage, snapshot_split(pin.state, base), wanted):
            rows = pa.Table.from_batches([_without_all(found.batch, places, tails, bucket)], wanted.arrow)
            yield projection.finish(projection.filtered(rows))
    for tail in tails.values():
        yield projection.finish(projection.filtered(tail.rows))


def with_key(state: TableState, columns: Sequence[str] | None) -> TableSchema:
    """Return these columns of the table, all by default, and those of its primary key."""
    if columns is None:
        return state.schema
    chosen = {*columns, *state.primary_key}
    return TableSchema(tuple(c for c in state.schema.columns if c.name in chosen))


def key_places(state: TableState, schema: TableSchema) -> tuple[int, ...]:
    """Return the column indexes of the primary key in a schema that has them."""
    return tuple(schema.names.index(name) for name in state.primary_key)


def tails_of(table: TableHandle, pin: Pin, wanted: TableSchema) -> Mapping[int, Tail]:
    """Collapse the changes of the pin's hot range by key, for each bucket. A key is of one bucket."""
    splits = [plan_range(pin.state, bucket, offsets) for bucket, offsets in pin.hot.items()]
    places = key_places(pin.state, wanted)
    found = in_parallel(lambda split: read_tail(table, [split], wanted, places), splits)
    return dict(zip(pin.hot, found, strict=True))


def read_tail(table: TableHandle, splits: Iterable[LogSplit], wanted: TableSchema, places: Sequence[int]) -> Tail:
    """Collapse the changes of some splits by key; ``places`` are the key's column indexes in ``wanted``."""
    written = TableSchema((CHANGE_COLUMN, *wanted.columns))
    records = InlineRecords(table.storage, table.uuid)
    changes = (found.batch for split in splits for found in read_split(table.storage, split, written, records=records))
    return Tail.of(changes, wanted.arrow, places)


def _older_rows(
    table: TableHandle, pin: Pin, projection: Projection, wanted: TableSchema, tails: Mapping[int, Tail]
) -> Iterator[pa.Table]:
    lake = table.open_lake()
    # A file without a row that the filter wants may be left out: newer rows of its keys are in the tail.
    plan = planned_lake(table, pin, projection, wanted.names)
    places = key_places(pin.state, wanted)

    def read(split: LakeSplit) -> pa.Table:
        found = (
            _without_all(batch, places, tails, split.bucket)
            for batch in lake.read_split(split, plan.projection, filter=projection.filter)
        )
        return projection.finish(pa.Table.from_batches(list(found), wanted.arrow))

    yield from in_parallel(read, plan.splits)


def _without_all(
    batch: pa.RecordBatch, places: Sequence[int], tails: Mapping[int, Tail], bucket: int | None
) -> pa.RecordBatch:
    """Return the rows whose keys the changes of their bucket do not touch; None stands for any bucket."""
    for tail in tails.values() if bucket is None else filter(None, [tails.get(bucket)]):
        batch = without(batch, places, tail.keys)
    return batch


def without(batch: pa.RecordBatch, key_places: Sequence[int], changed: KeySet) -> pa.RecordBatch:
    """Return the rows whose keys are not in the set ``changed``."""
    if not len(changed) or not batch.num_rows:
        return batch
    return row_selection.without(batch, changed.holds_keys_of([batch.column(place) for place in key_places]))
