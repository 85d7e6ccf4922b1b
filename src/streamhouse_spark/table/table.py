"""`Table`: one table, in Python and without Spark. The data source and the command line build on it as well."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.argument_validation import checks_arguments
from streamhouse_spark.core.fork_safety import cached_property
from streamhouse_spark.core.types import BucketOffsets, OffsetRange, Transaction, check_transaction
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.log.commits.log_position import LogPosition
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.lifecycle.consumers import consumer_position, move_consumer
from streamhouse_spark.log.lifecycle.garbage_collection import GRACE_MS
from streamhouse_spark.table.versions import Versions

if TYPE_CHECKING:
    from streamhouse_spark.log.staging import RowStager, StagedRows
    from streamhouse_spark.lookup.lookup import Lookup
    from streamhouse_spark.lookup.point_lookup import PointLookup
    from streamhouse_spark.query.projection import Projection
    from streamhouse_spark.read.read_snapshot import ReadSnapshot
    from streamhouse_spark.read.tail import Tail
    from streamhouse_spark.schema.table_schema import SparkSchema
    from streamhouse_spark.table.costs import TableCosts
    from streamhouse_spark.table.inspect import Inspect
    from streamhouse_spark.table.log_maintenance import MaintainReport
    from streamhouse_spark.table.partitions import DropPartitionReport
    from streamhouse_spark.table.rebuild_lake import RetierReport
    from streamhouse_spark.table.table_lake import LakeView
    from streamhouse_spark.write.log_writer import LogTableWriter
    from streamhouse_spark.write.producer.writer import Writer
    from streamhouse_spark.write.upsert import PrimaryKeyTable


@checks_arguments(unless=("lookup_one",))
class Table(Versions):
    """A table of a warehouse; get one from `Warehouse.table` or `Warehouse.create_table`.

    Safe for use by several threads. A table that was dropped and created again under the same name is another table:
    this object never writes into it.
    """

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        return self.state.schema.arrow

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The partition columns. Transforms of columns are in ``properties.partitioned_by`` too."""
        return self.state.partition_by

    @property
    def num_buckets(self) -> int:
        return self.state.num_buckets

    @cached_property
    def _log_writer(self) -> LogTableWriter:
        from streamhouse_spark.write.log_writer import LogTableWriter

        return LogTableWriter(self)

    @cached_property
    def _lookup(self) -> Lookup:
        from streamhouse_spark.lookup.lookup import Lookup

        return Lookup(self.keyed)

    @cached_property
    def _lookup_one(self) -> PointLookup:
        from streamhouse_spark.lookup.point_lookup import PointLookup

        return PointLookup(self.keyed, self._lookup)

    @cached_property
    def keyed(self) -> PrimaryKeyTable:
        """Writes by primary key. Raises `InvalidOptionError` for a table without one."""
        if not self.state.primary_key:
            raise InvalidOptionError(
                f"table {self.name} has no primary key: it takes append(rows) and delete(where=...); upserts, lookups "
                "and deletions by key need a table that was created with primary_key=[...]"
            )
        from streamhouse_spark.write.upsert import PrimaryKeyTable

        return PrimaryKeyTable(self)

    def __repr__(self) -> str:
        state = self.state
        columns = len(state.schema.columns)
        return f"Table({self.name}: {columns} columns, {state.num_buckets} buckets, {state.num_rows:,} rows)"

    # -- writing --------------------------------------------------------------------------------------------------

    def append(self, rows: Any, *, transaction: Transaction | None = None) -> BucketOffsets:
        """Add rows; durable and visible to everybody when this returns, all of them or none.

        ``rows`` is a ``pyarrow`` Table, RecordBatch or reader, a pandas or polars frame, or a list of dicts; columns
        match by name, and one that the rows lack has its default in them, or null. Returns the offsets that the rows
        got. With a ``transaction`` that is already stored nothing is added, and the offsets of its first commit are
        returned.

        Raises:
            SchemaMismatchError: before anything is written; names the column.
            CommitConflictError, StorageError: nothing was added.
            CommitStateUnknownError: the rows may or may not have been added; see its text.
        InvalidOptionError: the table has a primary key, by which rows are upserted.
        """
        check_transaction(transaction)
        return self._log_writer.append(rows, transaction)

    def writer(
        self,
        *,
        flush_ms: float = 5,
        flush_bytes: int = 8 << 20,
        producer_id: str | None = None,
        in_flight_bytes_max: int = 64 << 20,
        delivery_timeout_ms: float = 120_000,
    ) -> Writer:
        """Open a writer for an event producer. See `streamhouse_spark.write.producer.writer.open_writer`."""
        from streamhouse_spark.write.producer.writer import open_writer

        limits = (flush_ms, flush_bytes, in_flight_bytes_max, delivery_timeout_ms)
        return open_writer(self, self._log_writer, producer_id, *limits)

    def upsert(
        self, rows: Any, *, columns: Sequence[str] | None = None, transaction: Transaction | None = None
    ) -> BucketOffsets:
        """Write rows by primary key: new keys are inserted, rows of known ones merged (``table.merge-engine``).

        By default the last row of a key replaces the stored one. ``rows`` are as for `append`; where a key is in them
        several times they count in their order, and the changelog has one net change. ``columns`` makes it a partial
        update: only these and the primary key are in the rows, the others stay as they are, or have their default, else
        null, where the key is new. Durable and visible to everybody when this returns, all rows or none; other writers
        may write at the same time. Returns the offsets of the changes in the changelog, which has none for a row that
        stays as it is. With a ``transaction`` that is already stored nothing is changed, and the offsets of its first
        commit are returned, also where columns are aggregated.

        Raises as `append`; `InvalidOptionError` for a table without a primary key, and where its merge engine takes
        whole rows only.
        """
        return self.keyed.upsert(rows, columns=columns, transaction=transaction)

    @overload
    def delete(self, keys: Any, *, transaction: Transaction | None = None) -> BucketOffsets: ...
    @overload
    def delete(self, *, where: pc.Expression | Sequence[Any], transaction: Transaction | None = None) -> int: ...
    def delete(
        self, keys: Any = None, *, where: Any = None, transaction: Transaction | None = None
    ) -> BucketOffsets | int:
        """Delete the rows with these keys, of a table without a primary key the rows that a filter wants.

        ``keys`` are rows with the columns of the primary key, a list of tuples of its values, or for a key of one
        column a list of values; one key will do without a list, and keys without a row change nothing. The property
        ``table.delete.behavior`` decides about deletions: ``allow`` (the default where the last row wins), ``ignore``,
        or ``disable``, an error. Durable, atomic and idempotent as `upsert` is; the offsets of the changes are
        returned. ``where`` is a filter as for `to_arrow`; see `streamhouse_spark.table.row_deletion.delete_matching`.
        """
        if keys is not None and where is not None:
            raise InvalidOptionError("delete was given keys and where; give one of them")
        if where is None:
            return self.keyed.delete(keys, transaction=transaction)
        from streamhouse_spark.table.row_deletion import delete_matching

        return delete_matching(self, where, transaction)

    def overwrite(self, rows: Any, *, where: Any = None, transaction: Transaction | None = None) -> BucketOffsets:
        """Replace all rows, or those for which ``where`` is true; readers see the old rows or the new ones.

        **Commit point:** the one record that removes the rows and adds these. Before it nothing has changed; from it
        on, rows committed earlier, by whomever and tiered or not, are no longer read. ``rows`` may be empty. The next
        tiering round does the same to the lake table, whose older snapshots stay; open streams fail, see `truncate`.
        A ``transaction`` that is already stored changes nothing, and returns the offsets of its first commit.
        ``where`` is a filter as for `to_arrow`, which the new rows satisfy; with a primary key, one on partition
        columns. `streamhouse_spark.table.overwrite` says more. Raises as `append`; then nothing was removed either.
        """
        from streamhouse_spark.table.overwrite import overwrite

        return overwrite(self, self._log_writer, rows, where, transaction)

    def overwrite_partitions(self, rows: Any, *, transaction: Transaction | None = None) -> BucketOffsets:
        """Replace the partitions that ``rows`` are of by these; the others stay. Otherwise as `overwrite`."""
        from streamhouse_spark.table.overwrite import overwrite_partitions

        return overwrite_partitions(self, self._log_writer, rows, transaction)

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
        from streamhouse_spark.log.staging import make_truncate_actions

        self._log.commit(lambda state, _time_ms: make_truncate_actions(self.require_there(state)))

    def drop_partition(self, partition: Mapping[str, Any], *, dry_run: bool = False) -> DropPartitionReport:
        """Remove the rows of all partitions with these values of some or all partition columns; None stands for null.

        Rows committed before the call go in one step: readers see all of a partition, or nothing of it. With a primary
        key they are deleted as by `delete`. Rows of a log table are tiered first, and go from the lake in one snapshot;
        those appended since the call began stay. The hot log keeps its rows as history for streams that start earlier,
        which get `OffsetsTrimmedError` for trimmed rows; older lake snapshots keep theirs until they expire. **Commit
        points:** see `streamhouse_spark.table.partitions`. With ``dry_run`` rows and files are only counted.

        Raises `InvalidOptionError` for a name that is no partition column, a log without a lake and a table that takes
        no deletions, `SchemaMismatchError` for a value that does not fit: nothing was changed. `CommitConflictError`:
        nothing was dropped. After any other error it may be gone; dropping again also takes later rows.
        """
        from streamhouse_spark.query.partition_match import PartitionMatch, PartitionMatches
        from streamhouse_spark.table.partitions import drop_partitions

        state = self.refresh()
        match = PartitionMatch.of(partition, state.schema, state.partition_by, self.name)
        return drop_partitions(self, PartitionMatches((match,)), dry_run=dry_run)

    def stager(self, state: TableState | None = None) -> RowStager:
        """Return a stager of rows for the schema and properties of a state, the newest known by default."""
        return self._log_writer.stager(state or self.state)

    def commit(
        self, staged: StagedRows, *, transaction: Transaction | None = None, overwrite: bool = False
    ) -> BucketOffsets:
        """Add rows that were staged, here or in other processes, as `append` does, or `overwrite`."""
        return self._log_writer.commit(staged, transaction=transaction, overwrite=overwrite)

    def forget_transactions(self, *app_ids: str) -> None:
        """Drop the stored identities of these applications: their versions may be written again."""
        from streamhouse_spark.table.alter import forget_transactions

        forget_transactions(self, app_ids)

    def move_consumer(self, consumer_id: str, offsets: Mapping[int, int] | None) -> None:
        """Say that a named consumer has processed everything below ``offsets``; None forgets it.

        Trimming keeps rows that it has not processed, until it was silent for the table's time to live and a week more.
        Saying the same again counts, and is stored once an hour. Raises `InvalidOptionError` for a name or an offset
        that cannot be, `DifferentHistoryError` for a `LogPosition` of another history of the table.
        """
        move_consumer(self._log, consumer_id, offsets, self.require_there)

    def consumer_position(self, consumer_id: str) -> LogPosition | None:
        """Return the position that a named consumer gave last, for `tail`; None for an unknown one."""
        return consumer_position(self.refresh(), consumer_id)

    # -- columns and properties -------------------------------------------------------------------------------------

    def alter(
        self,
        *,
        add_columns: pa.Schema | str | SparkSchema | None = None,
        comments: Mapping[str, str | None] | None = None,
        set_properties: Mapping[str, str] | None = None,
        unset_properties: Sequence[str] = (),
        rename_columns: Mapping[str, str] | None = None,
        drop_columns: Sequence[str] = (),
        widen_columns: Mapping[str, pa.DataType | str] | None = None,
        defaults: Mapping[str, Any] | None = None,
        drop_not_null: Sequence[str] = (),
        move_columns: Mapping[str, str | None] | None = None,
    ) -> None:
        """Change columns, ``s.x`` inside them, and properties, all of it or nothing. **Commit point:** one record.

        New columns stand behind the others and are null in the rows that are there. ``rename_columns`` maps old names
        to new ones, ``widen_columns`` names to wider types; these and ``drop_columns`` mean the columns as they are
        before. The lake table follows in the next tiering round. Tails and streams go on after an addition or a move; a
        column of theirs that is renamed, dropped, widened or loses NOT NULL ends them with `SchemaMismatchError`, and
        started again they go on.
        ``comments`` maps columns to their comment, None takes it away; the table's is the property ``comment``.
        ``defaults`` maps columns, new ones too, to a constant for new rows whose writer does not name the column, None
        removes it; rows written before stay as they are, and a null that is given stays null. ``drop_not_null`` lists
        columns that accept null from now on, ``move_columns`` maps columns to the one that they stand behind, None for
        the first place. These four mean the columns as they are afterwards.

        Raises `SchemaMismatchError` for a column that is not there, a name that is taken, a new column that is NOT
        NULL, a type that does not hold every older value, a default that does not fit its column; `InvalidOptionError`
        for unknown or impossible properties, and for columns whose role forbids the change.
        """
        from streamhouse_spark.config.alter_table import Alteration
        from streamhouse_spark.config.column_changes import ColumnChanges
        from streamhouse_spark.table.alter import alter_table

        columns = ColumnChanges.of(rename_columns, drop_columns, widen_columns)
        change = Alteration.of(
            add_columns, comments, set_properties, unset_properties, columns, defaults, drop_not_null, move_columns
        )
        alter_table(self, change)

    def add_columns(self, columns: pa.Schema | str | SparkSchema, *, defaults: Mapping[str, Any] | None = None) -> None:
        """Add columns, as `alter` does: an Arrow schema, Spark DDL (``note STRING, s.x INT``) or a StructType."""
        self.alter(add_columns=columns, defaults=defaults)

    def set_default(self, column: str, value: Any) -> None:
        """Give a column a default, as `alter` does: ``set_default("country", "CH")``."""
        self.alter(defaults={column: value})

    def drop_default(self, *columns: str) -> None:
        """Remove the defaults of columns, as `alter` does: columns that new rows lack are null."""
        self.alter(defaults=dict.fromkeys(columns))

    def rename_column(self, name: str, new_name: str) -> None:
        """Give a column another name, as `alter` does; properties that name it follow."""
        self.alter(rename_columns={name: new_name})

    def drop_column(self, *names: str) -> None:
        """Drop columns, as `alter` does. A column of that name that is added later is another one."""
        self.alter(drop_columns=names)

    def widen_column(self, name: str, new_type: pa.DataType | str) -> None:
        """Give a column a type that holds all its values, as `alter` does: ``widen_column("n", "bigint")``."""
        self.alter(widen_columns={name: new_type})

    def alter_properties(self, changed: Mapping[str, str] | None = None, removed: Sequence[str] = ()) -> None:
        """Set and unset properties, as `alter` does."""
        self.alter(set_properties=changed, unset_properties=removed)

    def set_partitioning(self, partition_by: Sequence[str]) -> None:
        """Partition rows by other fields from now on; see
        `streamhouse_spark.table.set_partitioning.set_partitioning`.
        """
        from streamhouse_spark.table.set_partitioning import set_partitioning

        set_partitioning(self, partition_by)

    # -- reading --------------------------------------------------------------------------------------------------

    def to_arrow(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | Sequence[Any] | None = None,
        as_of_timestamp_ms: int | None = None,
    ) -> pa.Table:
        """Read the union: every row committed before the call, each once; lake rows first, then the hot log's.

        ``columns`` picks and orders columns. ``filter`` is a ``pyarrow.compute`` expression, or a list of
        ``(column, operator, value)`` that must all hold; it prunes lake files and log segments.
        ``as_of_timestamp_ms`` gives the rows, and the columns, of that time.
        Raises `SchemaMismatchError` for unknown columns, `CorruptDataError`, `OffsetsTrimmedError`.
        """
        from streamhouse_spark.read.union_read import read_union

        return read_union(self, columns, filter, as_of_timestamp_ms)

    def repinned(self) -> ReadSnapshot:
        """Return a new pin, on the lake's own newest snapshot, after another can no longer be read."""
        from streamhouse_spark.read.snapshot_fallback import fall_back_to_lake_snapshot

        return fall_back_to_lake_snapshot(self)

    def read_hot(self, pin: ReadSnapshot, projection: Projection) -> Iterator[pa.Table]:
        """Read the rows of a pin's hot ranges of a log table, a table a bucket."""
        from streamhouse_spark.read.union_read import read_hot

        return read_hot(self, pin, projection)

    def lookup(
        self,
        keys: Any,
        *,
        columns: Sequence[str] | None = None,
        max_staleness_ms: int | None = None,
        at_least: Mapping[int, OffsetRange] | None = None,
        insert_if_absent: bool = False,
    ) -> pa.Table:
        """Look up the current rows of keys: a row for each key in their order.

        ``keys`` are as for `delete`. The result has the columns of the primary key, then the others, or those of
        ``columns``, null where there is no row, then ``_match_keys``. It is as new as the call, or on remote storage as
        a second before; ``max_staleness_ms`` says otherwise, and ``at_least``, the offsets that a write returned,
        includes that write whatever host it came from. ``insert_if_absent`` first adds a row, null beside the key, for
        each key without one. The first lookup on a host reads the log's changes into the local cache.
        Raises `InvalidOptionError` without a primary key, `SchemaMismatchError` for keys that do not fit.
        """
        self._lookup.require_no_found_column(columns)
        return self._lookup.rows(
            keys,
            columns=columns,
            max_staleness_ms=max_staleness_ms,
            at_least=at_least,
            insert_if_absent=insert_if_absent,
        )

    def lookup_one(
        self,
        key: Any,
        *,
        columns: Sequence[str] | None = None,
        max_staleness_ms: int | None = None,
        at_least: Mapping[int, OffsetRange] | None = None,
    ) -> dict[str, Any] | None:
        """Look up the current row of one key: a dict of Python values, None if there is none.

        ``key`` is a value, for a key of several columns a tuple of them in their order, or a mapping. This is for
        applications that ask for a row at a time: it makes no Arrow table, which alone costs more than the row. Rows
        are as new as those of `lookup`, and ``max_staleness_ms`` and ``at_least`` mean the same; keys of integers and
        texts are looked up fastest. Raises as `lookup`.
        """
        return self._lookup_one.row(key, columns=columns, max_staleness_ms=max_staleness_ms, at_least=at_least)

    def prefix_lookup(
        self,
        prefix: Any,
        *,
        columns: Sequence[str] | None = None,
        max_staleness_ms: int | None = None,
        at_least: Mapping[int, OffsetRange] | None = None,
    ) -> pa.Table:
        """Look up all current rows whose primary key begins with these values, in the order of their keys.

        ``prefix`` is a mapping of the first key columns to values, a list of their values, or one value. It reads one
        bucket where the bucket key is among them, else all. ``max_staleness_ms`` and ``at_least`` are as in `lookup`.
        """
        return self._lookup.with_prefix(prefix, columns=columns, max_staleness_ms=max_staleness_ms, at_least=at_least)

    def tail(
        self,
        start: Any = "latest",
        *,
        columns: Sequence[str] | None = None,
        include_metadata: bool = False,
        poll_ms: float | None = None,
        stop: threading.Event | None = None,
        until_ms: int | None = None,
    ) -> Tail:
        """Follow the log: batches as they are committed, each bucket in offset order, for ever or until ``stop``.

        ``start`` is ``"latest"`` (rows committed after the call), ``"earliest"`` (all that is kept of it),
        a mapping bucket → offset, the ``position`` of another tail, which is behind its last batch and may be kept as
        JSON (`LogPosition`), or a ``datetime`` with zone. ``include_metadata`` puts ``_bucket``,
        ``_log_offset`` and ``_commit_timestamp`` before the table's columns. ``poll_ms`` is how often storage is
        asked; by default each few milliseconds while rows come, and more seldom the longer none did, up to 2 s
        on an object store. With ``until_ms`` the generator ends when no row came for so long.
        Of a table with a primary key these are the changes, with ``_change_type`` before all columns.
        The columns are those of the call: ones that are added later are not in the batches.
        Raises `OffsetsTrimmedError` when the log was trimmed faster than it is read, `DifferentHistoryError` when the
        table was put back to an older copy since the position was taken, or meanwhile.
        """
        from streamhouse_spark.read.tail import follow

        waiting: Any = {"poll_ms": poll_ms, "stop": stop, "until_ms": until_ms}
        return follow(self, start, columns=columns, include_metadata=include_metadata, **waiting)

    @property
    def lake(self) -> LakeView:
        """The lake table alone, with the rows tiered so far."""
        from streamhouse_spark.table.table_lake import LakeView

        return LakeView(self)

    @property
    def inspect(self) -> Inspect:
        """The system tables: ``inspect.segments()``, ``inspect.buckets()``, …"""
        from streamhouse_spark.table.inspect import Inspect

        return Inspect(self)

    def costs(self, prices: Mapping[str, Any] | None = None) -> TableCosts:
        """Count this process's requests, and estimate a month's dollars. See `streamhouse_spark.table.costs`."""
        from streamhouse_spark.table.costs import table_costs

        return table_costs(self, prices)

    # -- maintenance ----------------------------------------------------------------------------------------------

    def merge_inline(self) -> int:
        """Move inline rows of commit records into one segment a bucket. Returns the number of segments replaced."""
        from streamhouse_spark.write.auto_compaction import merge_inline

        return merge_inline(self)

    def merge_small(self) -> int:
        """Merge runs of small adjacent segments. Returns the number of segments replaced."""
        from streamhouse_spark.write.auto_compaction import merge_small

        return merge_small(self)

    def retier(self, *, allow_loss: bool = False, dry_run: bool = False) -> RetierReport:
        """Build the lake anew from the log, in a fresh place. See `streamhouse_spark.table.rebuild_lake.retier`."""
        from streamhouse_spark.table.rebuild_lake import retier

        return retier(self, allow_loss=allow_loss, dry_run=dry_run)

    def maintain(self, *, grace_ms: int = GRACE_MS, dry_run: bool = False) -> MaintainReport:
        """Merge small segments, trim as far as the time to live and the lake allow, delete unneeded files.

        With a primary key the rows are published first if that is due, and changes are trimmed only up to them. Lake
        files are compacted and snapshots expired unless ``table.datalake.auto-compaction`` and ``auto-expire-snapshot``
        are false. Repeating it is harmless, also in several places. With ``dry_run`` nothing is changed, and the report
        says which deletions are due. Raises `LakeRolledBackError` where the lake lost rows, before anything is trimmed.
        """
        from streamhouse_spark.table.log_maintenance import maintain

        return maintain(self, grace_ms=grace_ms, dry_run=dry_run)
