"""`Table`: one table, in Python and without Spark. What the data source and the command line build on as well."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.alteration import Alteration, altered
from streamhouse_spark.clock import World
from streamhouse_spark.errors import (
    InvalidOptionError,
    OffsetsTrimmedError,
    SchemaMismatchError,
    SnapshotExpiredError,
    StreamhouseError,
    TableNotFoundError,
)
from streamhouse_spark.log.actions import (
    Action,
    ForgetTransactions,
    LakePair,
    MoveConsumer,
    SetProperties,
    SetSchema,
)
from streamhouse_spark.log.cleaning import GRACE_MS
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.merge import inline_merge_due, merge, plan_inline_merge, plan_small_merge
from streamhouse_spark.log.retention import CONSUMER_RENEW_MS
from streamhouse_spark.log.scan import plan_range, read_split
from streamhouse_spark.log.segment_reader import InlineRecords
from streamhouse_spark.log.segment_writer import SegmentShape
from streamhouse_spark.log.staging import Routing, Staged, Stager, commit_staged, truncating
from streamhouse_spark.log.state import TableState
from streamhouse_spark.maintenance import MaintainReport, maintain
from streamhouse_spark.model import BucketOffsets, TablePath, Transaction, check_transaction, is_text_list, is_unicode
from streamhouse_spark.paths import parse_table_name
from streamhouse_spark.pin import Pin, pin_as_of, pin_newest
from streamhouse_spark.projection import Projection, parse_filter
from streamhouse_spark.properties import TableProperties, parse_properties
from streamhouse_spark.rows import can_be_read_again, coerce
from streamhouse_spark.storage import Storage

if TYPE_CHECKING:
    from streamhouse_spark.inspect_tables import Inspect
    from streamhouse_spark.lake.base import LakeTable
    from streamhouse_spark.lake_view import LakeView
    from streamhouse_spark.schema import SparkSchema

logger = logging.getLogger(__name__)

_REPINS_MAX = 3


class Table:
    """A table of a warehouse; get one from `Warehouse.table` or `Warehouse.create_table`.

    Safe for use by several threads. A table that was dropped and created again under the same name is another table:
    this object never writes into it.
    """

    def __init__(
        self, storage: Storage, settings: Mapping[str, str], path: TablePath, log: CommitLog, world: World
    ) -> None:
        self._storage = storage
        self._settings = settings
        self._path = path
        self._log = log
        self._world = world
        self._stager: tuple[int, Mapping[str, str], Stager] | None = None
        self._stager_lock = threading.Lock()

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return str(self._path)

    @property
    def path(self) -> TablePath:
        return self._path

    @property
    def uuid(self) -> str:
        return self._log.table_uuid

    @property
    def storage(self) -> Storage:
        return self._storage

    @property
    def settings(self) -> Mapping[str, str]:
        """May hold credentials: never print it."""
        return self._settings

    @property
    def world(self) -> World:
        return self._world

    @property
    def log(self) -> CommitLog:
        return self._log

    @property
    def state(self) -> TableState:
        """The state as last read; `refresh` reads on."""
        return self._log.state

    def refresh(self) -> TableState:
        """Read the newest state. Raises `TableNotFoundError` where the table was dropped."""
        state = self._there(self._log.refresh())
        if state.name != str(self._path):
            self._path = parse_table_name(state.name).path  # it was renamed
        return state

    def _there(self, state: TableState) -> TableState:
        if state.dropped:
            raise TableNotFoundError(f"table {self.name} ({self.uuid}) was dropped; open it again by its name")
        return state

    @property
    def schema(self) -> pa.Schema:
        return self.state.schema.arrow

    @property
    def partition_by(self) -> tuple[str, ...]:
        return self.state.partition_by

    @property
    def num_buckets(self) -> int:
        return self.state.num_buckets

    @property
    def properties(self) -> TableProperties:
        return _properties_of(self.state)

    def __repr__(self) -> str:
        state = self.state
        columns = len(state.schema.columns)
        return f"Table({self.name}: {columns} columns, {state.num_buckets} buckets, {state.num_rows:,} rows)"

    # -- writing --------------------------------------------------------------------------------------------------

    def append(self, rows: Any, *, transaction: Transaction | None = None) -> BucketOffsets:
        """Add rows; durable and visible to everybody when this returns, all of them or none.

        ``rows`` is a ``pyarrow`` Table, RecordBatch or reader, a pandas or polars frame, or a list of dicts; columns
        match by name. Returns the offsets that the rows got. With a ``transaction`` that is already stored nothing is
        added, and the offsets of its first commit are returned.

        Raises:
            SchemaMismatchError: before anything is written; names the column.
            CommitConflictError, StorageError: nothing was added.
            CommitStateUnknownError: the rows may or may not have been added; see its text.
        """
        check_transaction(transaction)
        return self.commit(self._staged(rows), transaction=transaction)

    def overwrite(self, rows: Any, *, transaction: Transaction | None = None) -> BucketOffsets:
        """Replace all rows of the table by these; readers see the old rows or the new ones, never a part of either.

        **Commit point:** the one record that empties the table and adds the rows. Before it nothing has changed; from
        it on, rows committed earlier, by whomever and tiered or not, are no longer read from the table. ``rows`` may
        be empty. The next tiering round does the same to the lake table, whose older snapshots stay; open streams
        fail, see `truncate`. Offsets go on. With a ``transaction`` that is already stored nothing is changed, and the
        offsets of its first commit are returned.

        Raises as `append` does; where that says that nothing was added, nothing was removed either.
        """
        check_transaction(transaction)
        return self.commit(self._staged(rows), transaction=transaction, overwrite=True)

    def truncate(self) -> None:
        """Remove all rows; the table, its properties and its stored transactions stay.

        **Commit point:** one record, which says where each bucket ended. Rows below are no longer read from the table
        at once, rows appended later get the offsets behind them. The next tiering round empties the lake table in one
        snapshot, behind which older snapshots stay readable until they expire; files of the hot log are deleted after
        the grace, so that reads under way end well. Streams and tails that are open fail with `OffsetsTrimmedError`;
        with ``failOnDataLoss=false`` they go on behind the truncation. An empty table is left as it is.

        Raises `CommitConflictError`, `StorageError`: nothing was removed. `CommitStateUnknownError`: look at its text;
        truncating again is safe where nobody appended meanwhile.
        """
        self._log.commit(lambda state, _time_ms: truncating(self._there(state)))

    def _staged(self, rows: Any) -> Staged:
        """The rows, staged; in the newest schema where the one known here does not have their columns."""
        state = self.state
        try:
            table = coerce(rows, state.schema, table=self.name)
        except SchemaMismatchError:
            known, state = state, self.refresh()
            if state.schema_id == known.schema_id or not can_be_read_again(rows):
                raise
            table = coerce(rows, state.schema, table=self.name)
        return self.stager(state).stage(table)

    def stager(self, state: TableState | None = None) -> Stager:
        """Turns rows into staged segments for the schema and properties of a state, the newest known by default."""
        state = state or self.state
        with self._stager_lock:
            if self._stager is None or self._stager[0] != state.schema_id or self._stager[1] is not state.properties:
                key = _properties_of(state).bucket_key
                routing = Routing(state.num_buckets, key[0] if key else None)
                stager = Stager(self._storage, self.uuid, self.segment_shape(state), routing, self._world)
                self._stager = (state.schema_id, state.properties, stager)
            return self._stager[2]

    def segment_shape(self, state: TableState | None = None) -> SegmentShape:
        """How segments are written by a state, the newest known by default."""
        state = state or self.state
        properties = _properties_of(state)
        return SegmentShape(
            state.schema_id, state.partition_by, properties.statistics_columns, properties.log_compression
        )

    def commit(
        self, staged: Staged, *, transaction: Transaction | None = None, overwrite: bool = False
    ) -> BucketOffsets:
        """Add rows that were staged, here or in other processes, as `append` does, or `overwrite`."""
        check_transaction(transaction)
        offsets, committed = commit_staged(self._log, staged, transaction=transaction, overwrite=overwrite)
        self._merge_if_due(committed.state)
        return offsets

    def _merge_if_due(self, state: TableState) -> None:
        """Merging is work on the side: the rows are stored, so a failure here must not look like one of the append."""
        if inline_merge_due(state):
            try:
                self.merge_inline()
            except StreamhouseError as error:
                logger.warning("inline rows of %s were not merged, the next append tries again: %s", self.name, error)

    def alter(
        self,
        *,
        add_columns: pa.Schema | str | SparkSchema | None = None,
        comments: Mapping[str, str | None] | None = None,
        set_properties: Mapping[str, str] | None = None,
        unset_properties: Sequence[str] = (),
    ) -> None:
        """Change columns and properties, all of it or nothing. **Commit point:** one record.

        New columns stand behind the others, may be null, and are null in the rows that are there. Writers and streams
        that are under way go on with the columns they know; the lake table gets the columns in the next tiering round.
        ``comments`` maps columns to their comment, None takes it away; the table's own is the property ``comment``.

        Raises `SchemaMismatchError` for a column that is there already, is NOT NULL or cannot be stored, and for a
        comment on an unknown one; `InvalidOptionError` for unknown, fixed or impossible properties.
        """
        change = Alteration.of(add_columns, comments, set_properties, unset_properties)

        def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
            self._there(state)  # of a dropped table it is no answer that it has this column already
            after = altered(change, state.schema_id, state.schemas, state.partition_by, state.properties)
            actions: list[Action] = []
            if after.schema != state.schema:
                actions.append(SetSchema(after.schema_id, after.schema))
            if after.properties != state.properties:
                actions.append(_changed_properties(state.properties, after.properties))
            return actions

        self._log.commit(plan)

    def add_columns(self, columns: pa.Schema | str | SparkSchema) -> None:
        """Add columns, as `alter` does: an Arrow schema, Spark DDL (``note STRING COMMENT 'why'``) or a StructType."""
        self.alter(add_columns=columns)

    def alter_properties(self, changed: Mapping[str, str] | None = None, removed: Sequence[str] = ()) -> None:
        """Set and unset properties, as `alter` does."""
        self.alter(set_properties=changed, unset_properties=removed)

    def forget_transactions(self, *app_ids: str) -> None:
        """Drop the stored identities of these applications: their versions may be written again."""
        if not is_text_list(app_ids):
            raise InvalidOptionError(f"application ids of {self.name} are {app_ids!r}, expected texts")

        def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
            known = tuple(a for a in app_ids if a in self._there(state).transactions)
            return (ForgetTransactions(known),) if known else ()

        self._log.commit(plan)

    def move_consumer(self, consumer_id: str, offsets: Mapping[int, int] | None) -> None:
        """Say that a named consumer has processed everything below ``offsets``; None forgets it.

        Trimming keeps what the consumer has not processed, until it was silent for the table's time to live and a
        week more. Saying the same again counts, and is stored once an hour. Raises `InvalidOptionError` for a name
        or an offset that cannot be.
        """

        def plan(state: TableState, time_ms: int) -> Sequence[Action]:
            _check_consumer(self._there(state), consumer_id, offsets)
            known = state.consumers.get(consumer_id)
            if known is None:
                unchanged = offsets is None
            else:
                unchanged = known.offsets == offsets and time_ms - known.time_ms < CONSUMER_RENEW_MS
            if unchanged:
                return ()
            return (MoveConsumer(consumer_id, dict(offsets) if offsets is not None else None),)

        self._log.commit(plan)

    # -- reading --------------------------------------------------------------------------------------------------

    def to_arrow(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | Sequence[Any] | None = None,
        as_of_timestamp_ms: int | None = None,
    ) -> pa.Table:
        """The union read: every row committed before the call, each once; lake rows first, then the hot log's.

        ``columns`` picks and orders columns. ``filter`` is a ``pyarrow.compute`` expression, or a list of
        ``(column, operator, value)`` that must all hold; it prunes lake files and log segments. Uncompressed columns
        of a local hot log are memory-mapped, not copied.

        Raises `SchemaMismatchError` for unknown columns, `CorruptDataError`, `OffsetsTrimmedError`.
        """
        state = self.refresh()
        projection = Projection.of(state.schema, columns, parse_filter(filter))
        if as_of_timestamp_ms is not None:
            if not isinstance(as_of_timestamp_ms, int):
                raise InvalidOptionError(
                    f"as_of_timestamp_ms is {as_of_timestamp_ms!r}, expected milliseconds since 1970 as a whole number",
                )
            return self._read(pin_as_of(state, as_of_timestamp_ms), projection)
        pin = pin_newest(state)
        for _ in range(_REPINS_MAX):
            try:
                return self._read(pin, projection)
            except SnapshotExpiredError:
                pin = self.repinned()
        return self._read(pin, projection)

    def repinned(self) -> Pin:
        """A new pin for when another can no longer be read.

        It is on the lake's own newest snapshot, because another engine may have expired the recorded one.
        """
        for _ in range(_REPINS_MAX):
            with suppress(OffsetsTrimmedError):  # tiered and trimmed further between the two looks
                return self._pinned_to_lake()
        return self._pinned_to_lake()

    def _pinned_to_lake(self) -> Pin:
        state = self.refresh()
        if not self.properties.datalake_enabled:
            return pin_newest(state)
        newest = self.open_lake().newest()
        if newest is None:
            return pin_newest(self.refresh(), state.lake)
        return pin_newest(self.refresh(), LakePair(newest.id, newest.offsets, newest.timestamp_ms, newest.starts))

    def _read(self, pin: Pin, projection: Projection) -> pa.Table:
        parts = []
        if pin.lake is not None:
            parts.append(self._read_lake(pin.lake, projection))
        parts.extend(self.read_hot(pin, projection))
        return projection.joined(parts)

    def _read_lake(self, pair: LakePair, projection: Projection) -> pa.Table:
        lake = self.open_lake()
        plan = lake.plan_read(
            snapshot_id=pair.snapshot_id,
            columns=projection.read_columns,
            predicates=projection.predicates,
            schema=self.state.schema,
        )
        return projection.finish(lake.to_arrow(plan, filter=projection.filter))

    def read_hot(self, pin: Pin, projection: Projection) -> Iterator[pa.Table]:
        """The rows of a pin's hot ranges, a table a bucket."""
        wanted = pin.state.schema
        records = InlineRecords(self._storage, self.uuid)
        for bucket, offsets in pin.hot.items():
            split = plan_range(pin.state, bucket, offsets, projection.filter)
            batches = read_split(self._storage, split, wanted, projection.read_columns, records=records)
            found = [b.batch for b in batches]
            if found:
                yield projection.finish(projection.filtered(pa.Table.from_batches(found)))

    def tail(
        self,
        start: Any = "latest",
        *,
        columns: Sequence[str] | None = None,
        include_metadata: bool = False,
        poll_ms: float | None = None,
        stop: threading.Event | None = None,
        until_ms: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Follow the log: batches as they are committed, each bucket in offset order, for ever or until ``stop``.

        ``start`` is ``"latest"`` (rows committed after the call), ``"earliest"`` (all that the hot log holds),
        a mapping bucket → offset, or a ``datetime`` with zone. ``include_metadata`` puts ``_bucket``,
        ``_log_offset`` and ``_commit_timestamp`` before the table's columns. ``poll_ms`` is how often storage is
        asked (1 ms on a local disk, else 100 ms); with ``until_ms`` the generator ends when no row came for so long.
        The columns are those of the call: ones that are added later are not in the batches.

        Raises `OffsetsTrimmedError` when the log was trimmed faster than it is read.
        """
        from streamhouse_spark.tail import follow

        return follow(
            self,
            start,
            columns=columns,
            include_metadata=include_metadata,
            poll_ms=poll_ms,
            stop=stop,
            until_ms=until_ms,
        )

    @property
    def lake(self) -> LakeView:
        """The lake table alone: what has been tiered."""
        from streamhouse_spark.lake_view import LakeView

        return LakeView(self)

    @property
    def inspect(self) -> Inspect:
        """The system tables: ``inspect.segments()``, ``inspect.buckets()``, …"""
        from streamhouse_spark.inspect_tables import Inspect

        return Inspect(self)

    def open_lake(self) -> LakeTable:
        """The lake side of this table. Raises `InvalidOptionError` where it has none, `MissingExtraError`."""
        from streamhouse_spark.lake_view import open_lake

        return open_lake(self)

    # -- maintenance ----------------------------------------------------------------------------------------------

    def merge_inline(self) -> int:
        """Move inline rows of commit records into one segment a bucket. Returns the number of segments replaced."""
        return merge(self._log, self._storage, self._world, plan_inline_merge(self.refresh()), self.segment_shape())

    def merge_small(self) -> int:
        """Merge runs of small adjacent segments. Returns the number of segments replaced."""
        return merge(self._log, self._storage, self._world, plan_small_merge(self.refresh()), self.segment_shape())

    def maintain(self, *, grace_ms: int = GRACE_MS, dry_run: bool = False) -> MaintainReport:
        """Merge small segments, trim what the time to live and the lake allow, delete what nobody needs any more.

        Lake files are compacted and lake snapshots expired where ``table.datalake.auto-compaction`` and
        ``table.datalake.auto-expire-snapshot`` say so. Repeating it is harmless, and so is running it in several
        places. With ``dry_run`` nothing is changed, and the report says which deletions are due.

        Raises `LakeRolledBackError` where the lake lost rows that it had, before anything is trimmed.
        """
        return maintain(self, grace_ms=grace_ms, dry_run=dry_run)


def _properties_of(state: TableState) -> TableProperties:
    return parse_properties(state.properties, state.schema, state.partition_by)


def _changed_properties(before: Mapping[str, str], after: Mapping[str, str]) -> SetProperties:
    changed = {name: value for name, value in after.items() if before.get(name) != value}
    return SetProperties(changed, tuple(name for name in before if name not in after))


def _check_consumer(state: TableState, consumer_id: object, offsets: Mapping[Any, object] | None) -> None:
    if not isinstance(consumer_id, str) or not consumer_id or not is_unicode(consumer_id):
        raise InvalidOptionError(f"consumer {consumer_id!r} of {state.name}: expected a non-empty text")
    if not isinstance(offsets, Mapping | None):
        raise InvalidOptionError(
            f"consumer {consumer_id!r} of {state.name}: offsets are {offsets!r}, expected a mapping bucket → offset",
        )
    for bucket, offset in (offsets or {}).items():
        end = state.ends.get(bucket)
        if end is None or type(offset) is not int or not 0 <= offset <= end:
            known = f"0 to {end}" if end is not None else f"buckets 0 to {state.num_buckets - 1}"
            raise InvalidOptionError(
                f"consumer {consumer_id!r} of {state.name}: offset {offset!r} of bucket {bucket!r}, expected {known}",
            )
