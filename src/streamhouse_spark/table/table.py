"""`Table`: the Python interface of one table, also for the data source and the command line. It works without Spark."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, overload

import pyarrow as pa

from streamhouse_spark.core.argument_validation import validates_arguments
from streamhouse_spark.core.concurrency import cached_property
from streamhouse_spark.core.types import BucketOffsets, OffsetRange, Transaction, check_transaction
from streamhouse_spark.errors import InvalidOptionError, count_of
from streamhouse_spark.log.catalog.branches import find_branch
from streamhouse_spark.log.consumers import LogPosition, consumer_position, move_consumer
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS
from streamhouse_spark.log.state import TableState
from streamhouse_spark.table.scan import RowsLike, Scan, Scannable, TableSource
from streamhouse_spark.table_handle import TableHandle

if TYPE_CHECKING:
    from streamhouse_spark.expressions.filters import FilterLike
    from streamhouse_spark.log.staging import RowStager, StagedRows
    from streamhouse_spark.lookup.batch_lookup import BatchLookup
    from streamhouse_spark.lookup.point_lookup import PointLookup
    from streamhouse_spark.read.tail import Tail
    from streamhouse_spark.schema.table_schema import SparkSchema
    from streamhouse_spark.table.costs import TableCosts
    from streamhouse_spark.table.drop_partition import DropPartitionReport
    from streamhouse_spark.table.lake import LakeView
    from streamhouse_spark.table.maintenance.log import MaintainReport
    from streamhouse_spark.table.maintenance.tiering import RetierReport
    from streamhouse_spark.table.system_views import Inspect
    from streamhouse_spark.table.versioning.branches import TableBranch
    from streamhouse_spark.table.versioning.publication import Publication
    from streamhouse_spark.table.versioning.rollback import RollbackReport
    from streamhouse_spark.table.versioning.tags import TableTag
    from streamhouse_spark.write.log_writer import LogTableWriter
    from streamhouse_spark.write.producer.writer import Writer
    from streamhouse_spark.write.upsert import PrimaryKeyTable

_INTERNALS: Final = frozenset(
    {name for name in vars(TableHandle) if not name.startswith("_")} - {"name"}
    | {"log", "path", "settings", "storage", "world"}
    | {"commit", "keyed", "merge_inline", "merge_small", "stager"}
)
"""Attributes that only the package uses."""


@validates_arguments(unless=("lookup_one",))
class Table(TableHandle, Scannable):
    """A table of a warehouse. `Warehouse.table` and `Warehouse.create_table` return one.

    Safe for use by several threads. A table that was dropped and recreated under the same name is another table; this
    object never writes to it.
    """

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        """The columns as an Arrow schema.

        >>> orders.schema.names
        ['id', 'day', 'amount']
        """
        return self.state.schema.arrow

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The partition columns. ``properties.partitioned_by`` also has the transforms, such as ``days(ts)``.

        >>> orders.partition_by
        ('day',)
        """
        return self.state.partition_by

    @property
    def num_buckets(self) -> int:
        """The number of buckets.

        >>> orders.num_buckets
        1
        """
        return self.state.num_buckets

    @cached_property
    def _log_writer(self) -> LogTableWriter:
        from streamhouse_spark.write.log_writer import LogTableWriter

        return LogTableWriter(self)

    @cached_property
    def _lookup(self) -> BatchLookup:
        from streamhouse_spark.lookup.batch_lookup import BatchLookup

        return BatchLookup(self.keyed)

    @cached_property
    def _lookup_one(self) -> PointLookup:
        from streamhouse_spark.lookup.point_lookup import PointLookup

        return PointLookup(self.keyed, self._lookup)

    @cached_property
    def keyed(self) -> PrimaryKeyTable:
        """The writer of primary-key tables. Raises `InvalidOptionError` for a log table."""
        if not self.state.primary_key:
            raise InvalidOptionError(
                f"table {self.name} has no primary key: it supports append(rows) and delete(where=...); upserts, "
                "lookups and deletions by key need a table that was created with primary_key=[...]"
            )
        from streamhouse_spark.write.upsert import PrimaryKeyTable

        return PrimaryKeyTable(self)

    def __dir__(self) -> list[str]:
        """List the interface. What else the package uses of an open table is that of its handle."""
        return [name for name in super().__dir__() if name not in _INTERNALS]

    def __repr__(self) -> str:
        state = self.state
        counts = {"column": len(state.schema.columns), "bucket": state.num_buckets, "row": state.num_rows}
        return f"Table({self.name}: {', '.join(count_of(number, noun) for noun, number in counts.items())})"

    def _repr_html_(self) -> str:
        from streamhouse_spark.table.notebook import table_html

        return table_html(self)

    # -- writing --------------------------------------------------------------------------------------------------

    def append(self, rows: RowsLike, *, transaction: Transaction | None = None) -> BucketOffsets:
        """Append rows to a log table. All rows are durable and visible to all readers when this returns, or none are.

        ``rows`` is a ``pyarrow`` Table, RecordBatch or reader, a pandas or polars frame, anything else with Arrow's C
        stream (a relation of DuckDB, a scan), or a list of dicts. A reader or query is staged in pieces, with memory
        for a few of them. Columns match by name; a missing column gets its default, or null. Returns the offsets of
        the rows. If the ``transaction`` is already stored, nothing is appended and the offsets of its first commit are
        returned.

        Raises:
            SchemaMismatchError: before anything is written; names the column.
            CommitConflictError, StorageError: nothing was appended.
            CommitStateUnknownError: the rows may or may not have been appended; its text says how to find out.
            InvalidOptionError: the table has a primary key; use `upsert`.

        >>> orders.append([{"id": 3, "day": "tue", "amount": 1.5}])
        BucketOffsets({0: [2, 3)})
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
        """Open a batching writer for an event producer. See `streamhouse_spark.write.producer.writer.open_writer`.

        >>> with orders.writer() as writer:
        ...     sent = writer.send({"id": 3, "day": "tue", "amount": 1.5})
        >>> sent.result()
        BucketOffsets({0: [2, 3)})
        """
        from streamhouse_spark.write.producer.writer import open_writer

        limits = (flush_ms, flush_bytes, in_flight_bytes_max, delivery_timeout_ms)
        return open_writer(self._log_writer, producer_id, *limits)

    def upsert(
        self, rows: RowsLike, *, columns: Sequence[str] | None = None, transaction: Transaction | None = None
    ) -> BucketOffsets:
        """Insert or update rows by primary key. ``table.merge-engine`` says how a row is merged with the stored one.

        By default the last row of a key replaces the stored row. ``rows`` are as for `append`, but all of them are read
        into memory. If a key occurs several times, its rows are applied in order, and the changelog gets one net
        change. ``columns`` makes it a partial update: ``rows`` have the primary key and these columns only. Other
        columns keep their values; in new rows they get their defaults, or null.

        Rows are durable and visible to all readers when this returns, all or none. Concurrent writers are supported.
        Returns the offsets of the changes in the changelog; an unchanged row has no change. If the ``transaction`` is
        already stored, nothing is changed, also in aggregated columns, and the offsets of its first commit are
        returned.

        Raises as `append`, and `InvalidOptionError` for a log table or a partial update that the merge engine does not
        support.

        >>> people.upsert([{"id": 2, "city": "Bonn"}], columns=["city"])
        BucketOffsets({0: [2, 4)})
        >>> people.lookup_one(2)
        {'id': 2, 'name': 'Bob', 'city': 'Bonn'}
        """
        return self.keyed.upsert(rows, columns=columns, transaction=transaction)

    @overload
    def delete(self, keys: Any, *, transaction: Transaction | None = None) -> BucketOffsets: ...
    @overload
    def delete(self, *, where: FilterLike, transaction: Transaction | None = None) -> int: ...
    def delete(
        self, keys: Any = None, *, where: FilterLike | None = None, transaction: Transaction | None = None
    ) -> BucketOffsets | int:
        """Delete rows by primary key, or from a log table the rows that match ``where``.

        ``keys`` are rows with the primary key columns, a list of tuples of key values, or for a single-column key a
        list of values. One key needs no list. Keys without a row are ignored. ``table.delete.behavior`` is ``allow``
        (the default if the last row wins), ``ignore`` or ``disable``, which raises an error. The delete is durable,
        atomic and idempotent as `upsert` is, and the offsets of the changes are returned. ``where`` is a filter as for
        `to_arrow`, and the number of deleted rows is returned; see
        `streamhouse_spark.dml.delete.delete_matching`.

        >>> people.delete([2])
        BucketOffsets({0: [2, 3)})
        >>> orders.delete(where=[("amount", "<", 5)])
        1
        """
        if keys is not None and where is not None:
            raise InvalidOptionError("delete has both keys and where; give one of them")
        if where is None:
            return self.keyed.delete(keys, transaction=transaction)
        from streamhouse_spark.dml.delete import delete_matching

        return delete_matching(self, where, transaction)

    def overwrite(
        self, rows: RowsLike, *, where: FilterLike | None = None, transaction: Transaction | None = None
    ) -> BucketOffsets:
        """Replace all rows, or those that match ``where``. Readers see either the old rows or the new ones.

        **Commit point:** the one record that deletes the old rows and appends the new ones. Rows of any writer
        committed before it, tiered or not, are no longer read. ``rows`` may be empty. The next tiering round applies
        the overwrite to the lake table, whose older snapshots are kept; open streams fail, see `truncate`. If the
        ``transaction`` is already stored, nothing is changed and the offsets of its first commit are returned.
        ``where`` is a filter as for `to_arrow` that the new rows must match; for a primary-key table it may only use
        partition columns. See also `streamhouse_spark.dml.overwrite`. Raises as `append`; then nothing was deleted.

        >>> orders.overwrite([{"id": 4, "day": "tue", "amount": 2.0}], where=[("day", "=", "tue")])
        BucketOffsets({0: [2, 3)})
        """
        from streamhouse_spark.dml.overwrite import overwrite

        return overwrite(self, self._log_writer, rows, where, transaction)

    def overwrite_partitions(self, rows: RowsLike, *, transaction: Transaction | None = None) -> BucketOffsets:
        """Replace the partitions that occur in ``rows``; other partitions are kept. Otherwise as `overwrite`.

        >>> orders.overwrite_partitions([{"id": 4, "day": "tue", "amount": 2.0}])
        BucketOffsets({0: [2, 3)})
        """
        from streamhouse_spark.dml.overwrite import overwrite_partitions

        return overwrite_partitions(self, self._log_writer, rows, transaction)

    def truncate(self) -> None:
        """Delete all rows. The table, its properties and its stored transactions are kept.

        **Commit point:** one record with the end offset of each bucket. Rows below it are no longer read; later rows
        get higher offsets. The next tiering round empties the lake table in one snapshot, and older snapshots stay
        readable until they expire. Files of the hot log are deleted after the grace period, so that running reads can
        finish. Open streams and tails fail with `OffsetsTrimmedError`, or continue after the truncation with
        ``failOnDataLoss=false``. An empty table is left unchanged.

        Raises `CommitConflictError`, `StorageError`: nothing was deleted. `CommitStateUnknownError`: truncating again
        is safe if no other writer appended since.

        >>> orders.truncate()
        >>> orders.to_arrow().num_rows
        0
        """
        from streamhouse_spark.log.staging import make_truncate_actions

        self.log.commit(lambda state, _time_ms: make_truncate_actions(self.require_not_dropped(state)))

    def drop_partition(self, partition: Mapping[str, Any], *, dry_run: bool = False) -> DropPartitionReport:
        """Delete all partitions with these values of some or all partition columns; None matches null.

        Rows committed before the call are deleted in one step: readers see a partition whole or not at all. In a
        primary-key table the rows are deleted as by `delete`. Rows of a log table are tiered first and then dropped
        from the lake in one snapshot; rows appended after the call began are kept. The hot log keeps the dropped rows
        as history for streams that start earlier, which get `OffsetsTrimmedError` for trimmed rows. Older lake
        snapshots keep them until they expire. **Commit points:** see `streamhouse_spark.table.drop_partition`. With
        ``dry_run`` rows and files are only counted.

        Raises `InvalidOptionError` for a column that is not a partition column, a log table without a lake and a table
        that does not support deletes, and `SchemaMismatchError` for a value that does not fit: nothing was changed.
        `CommitConflictError`: nothing was dropped. After any other error the partition may have been dropped; dropping
        it again also deletes later rows.

        >>> orders.drop_partition({"day": "mon"}).rows
        1
        """
        from streamhouse_spark.expressions.partition_filter import PartitionMatches
        from streamhouse_spark.table.drop_partition import drop_partitions

        state = self.refresh()
        chosen = PartitionMatches.of([partition], state.schema, state.partition_by, self.name)
        return drop_partitions(self, chosen, dry_run=dry_run)

    def stager(self, state: TableState | None = None) -> RowStager:
        """Return a stager for the schema and properties of ``state``, by default the latest cached one."""
        return self._log_writer.stager(state or self.state)

    def commit(
        self, staged: StagedRows, *, transaction: Transaction | None = None, overwrite: bool = False
    ) -> BucketOffsets:
        """Commit staged rows, also of other processes, as `append` or `overwrite` does."""
        return self._log_writer.commit(staged, transaction=transaction, overwrite=overwrite)

    def forget_transactions(self, *app_ids: str) -> None:
        """Forget the stored transactions of these applications, so that their versions can be written again.

        >>> orders.append([{"id": 3}], transaction=sh.Transaction("load", 1))
        BucketOffsets({0: [2, 3)})
        >>> orders.forget_transactions("load")
        """
        from streamhouse_spark.table.alter import forget_transactions

        forget_transactions(self, app_ids)

    def move_consumer(self, consumer_id: str, offsets: Mapping[int, int] | None) -> None:
        """Commit the position of a named consumer: it has processed all rows below ``offsets``. None removes the
        consumer.

        Trimming keeps unprocessed rows until the consumer has been silent for the table's time to live plus a week.
        Repeating a position counts as a heartbeat, which is stored once an hour. Raises `InvalidOptionError` for an
        invalid name or offset, and `DifferentHistoryError` for a `LogPosition` of another history of the table.

        >>> orders.move_consumer("billing", {0: 2})
        """
        move_consumer(self.log, consumer_id, offsets, self.require_not_dropped)

    def consumer_position(self, consumer_id: str) -> LogPosition | None:
        """Return the last committed position of a named consumer, for `tail`; None if it is unknown.

        >>> orders.move_consumer("billing", {0: 2})
        >>> orders.consumer_position("billing").offsets
        {0: 2}
        """
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
        """Alter columns, nested fields (``s.x``) and properties atomically. **Commit point:** one record.

        ``rename_columns`` maps old names to new ones, ``widen_columns`` names to wider types; these and
        ``drop_columns`` refer to the columns before the change. ``add_columns`` appends columns, which are null in
        existing rows. The lake table follows in the next tiering round. Open streams and tails continue after an added
        or moved column. They end with `SchemaMismatchError` if one of their columns is renamed, dropped, widened or
        loses NOT NULL, and continue when restarted.

        The other arguments refer to the columns after the change. ``comments`` maps columns to comments; None removes
        one; the table's comment is the property ``comment``. ``defaults`` maps columns to constants for new rows that
        lack the column; None removes one. Existing rows and explicit nulls are unchanged. ``drop_not_null`` lists
        columns that become nullable. ``move_columns`` maps a column to the one that it follows, or None for the first
        position.

        Raises `SchemaMismatchError` for an unknown column, a name in use, an added NOT NULL column, a type that cannot
        hold all old values and a default that does not fit; `InvalidOptionError` for unknown or invalid properties and
        for columns whose role forbids the change.

        >>> orders.alter(add_columns="note STRING", comments={"amount": "in euros"})
        >>> orders.schema.names
        ['id', 'day', 'amount', 'note']
        """
        from streamhouse_spark.config.alter_table import Alteration, ColumnChanges
        from streamhouse_spark.table.alter import alter_table

        columns = ColumnChanges.of(rename_columns, drop_columns, widen_columns)
        change = Alteration.of(
            add_columns, comments, set_properties, unset_properties, columns, defaults, drop_not_null, move_columns
        )
        alter_table(self, change)

    def add_columns(self, columns: pa.Schema | str | SparkSchema, *, defaults: Mapping[str, Any] | None = None) -> None:
        """Add columns as `alter` does, given as an Arrow schema, Spark DDL (``note STRING, s.x
        INT``) or a StructType.

        >>> orders.add_columns("note STRING", defaults={"note": "none"})
        """
        self.alter(add_columns=columns, defaults=defaults)

    def set_default(self, column: str, value: Any) -> None:
        """Set the default of a column as `alter` does: ``set_default("country", "CH")``.

        >>> orders.set_default("amount", 0.0)
        """
        self.alter(defaults={column: value})

    def drop_default(self, *columns: str) -> None:
        """Remove the defaults of columns as `alter` does: in new rows that lack them they are null.

        >>> orders.set_default("amount", 0.0)
        >>> orders.drop_default("amount")
        """
        self.alter(defaults=dict.fromkeys(columns))

    def rename_column(self, name: str, new_name: str) -> None:
        """Rename a column as `alter` does; properties that name it follow.

        >>> orders.rename_column("amount", "price")
        """
        self.alter(rename_columns={name: new_name})

    def drop_column(self, *names: str) -> None:
        """Drop columns as `alter` does. A column that is added later under the same name is a new one.

        >>> orders.drop_column("amount")
        """
        self.alter(drop_columns=names)

    def widen_column(self, name: str, new_type: pa.DataType | str) -> None:
        """Widen the type of a column as `alter` does: ``widen_column("n", "bigint")``.

        >>> orders.add_columns("n INT")
        >>> orders.widen_column("n", "bigint")
        """
        self.alter(widen_columns={name: new_type})

    def alter_properties(self, changed: Mapping[str, str] | None = None, removed: Sequence[str] = ()) -> None:
        """Set and unset properties, as `alter` does.

        >>> orders.alter_properties({"table.log.ttl": "3 d"})
        """
        self.alter(set_properties=changed, unset_properties=removed)

    def set_partitioning(self, partition_by: Sequence[str]) -> None:
        """Change how new rows are partitioned. See `streamhouse_spark.table.alter.set_partitioning`.

        >>> orders.set_partitioning([])
        >>> orders.partition_by
        ()
        """
        from streamhouse_spark.table.alter import set_partitioning

        set_partitioning(self, partition_by)

    # -- reading --------------------------------------------------------------------------------------------------

    def to_arrow(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter: FilterLike | None = None,
        as_of_timestamp_ms: int | None = None,
    ) -> pa.Table:
        """Read the table: every row committed before the call, exactly once; lake rows first, then those of the hot
        log.

        ``columns`` selects and orders columns. ``filter`` is as for `Scan.filter`. ``as_of_timestamp_ms`` reads the
        rows and columns as of that time. Raises `SchemaMismatchError` for unknown columns, `CorruptDataError`,
        `OffsetsTrimmedError`.

        >>> orders.to_arrow(columns=["id"], filter=[("amount", ">", 5)]).to_pylist()
        [{'id': 1}]
        """
        return self.scan(columns=columns, filter=filter, timestamp_ms=as_of_timestamp_ms).to_arrow()

    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter: FilterLike | None = None,
        version: int | str | None = None,
        timestamp_ms: int | None = None,
        limit: int | None = None,
        partitions: Mapping[str, Any] | None = None,
    ) -> Scan:
        """Return a lazy scan of lake and log, which is read as Arrow, pandas, polars or DuckDB.

        ``filter`` is as for `Scan.filter`. ``version`` (a commit number, a tag or a branch) or ``timestamp_ms`` reads
        another state, ``partitions`` only rows with these column values, of which a list is any. See `Scan` for
        `select`, `filter`, `limit`, `count`, `plan` and `explain`.

        >>> orders.scan(filter="amount > 5").select("id").to_arrow().to_pylist()
        [{'id': 1}]
        >>> orders.scan(partitions={"day": ["mon", "wed"]}).count()
        1
        """
        if isinstance(version, str) and find_branch(self.refresh(), version.strip().lower()) is not None:
            of_branch = self.branch(version)
            return of_branch.scan(
                columns=columns, filter=filter, timestamp_ms=timestamp_ms, limit=limit, partitions=partitions
            )
        scan = Scan(TableSource(self, version, timestamp_ms)).scan(columns=columns, filter=filter, limit=limit)
        for name, value in (partitions or {}).items():
            operator = "is null" if value is None else "in" if isinstance(value, list) else "="
            scan = scan.filter([(name, operator, value)])
        return scan

    def incremental_append_scan(self, from_exclusive: int | str = 0, to_inclusive: int | str | None = None) -> Scan:
        """Return a lazy scan of the rows that the commits after ``from_exclusive`` appended, up to ``to_inclusive``.

        Versions are commit numbers of ``$history`` or tags; None is the latest commit of each read, 0 precedes all.
        Rows that were deleted later are included; new values of updated rows are not. Raises as `changes`, and
        `InvalidOptionError` for a primary-key table.

        >>> before = orders.refresh().version
        >>> orders.append([{"id": 3, "day": "tue", "amount": 1.5}])
        BucketOffsets({0: [2, 3)})
        >>> orders.incremental_append_scan(before).to_arrow(columns=["id"]).to_pylist()
        [{'id': 3}]
        """
        from streamhouse_spark.table.change_scans import scan_appends

        return scan_appends(self, from_exclusive, to_inclusive)

    def changes(self, from_exclusive: int | str = 0, to_inclusive: int | str | None = None) -> Scan:
        """Return a lazy scan of what the commits after ``from_exclusive`` changed, up to ``to_inclusive``.

        Versions are as for `incremental_append_scan`. The table's columns are followed by ``_change_type`` (``insert``,
        ``update_preimage``, ``update_postimage`` or ``delete``), ``_commit_version`` and ``_commit_timestamp``, as in
        Spark's ``CHANGES`` clause. Reading raises `InvalidOptionError` for an unknown version and for a commit whose
        changes are not recorded row by row, such as an adoption, `OffsetsTrimmedError` or `SnapshotExpiredError` if
        changes are no longer retained.

        >>> before = people.refresh().version
        >>> people.delete([2])
        BucketOffsets({0: [2, 3)})
        >>> people.changes(before).to_arrow(columns=["id", "_change_type"]).to_pylist()
        [{'id': 2, '_change_type': 'delete'}]
        """
        from streamhouse_spark.table.change_scans import scan_changes

        return scan_changes(self, from_exclusive, to_inclusive)

    def lookup(
        self,
        keys: Any,
        *,
        columns: Sequence[str] | None = None,
        max_staleness_ms: int | None = None,
        at_least: Mapping[int, OffsetRange] | None = None,
        insert_if_absent: bool = False,
    ) -> pa.Table:
        """Look up current rows by primary key: one result row per key, in the order of ``keys``.

        ``keys`` are as for `delete`. The result has the primary key columns, then the other columns or ``columns``,
        null if the key has no row, and then ``_found``. The result is as new as the call, on remote storage at most one
        second older. ``max_staleness_ms`` changes this bound. ``at_least``, the offsets that a write returned,
        guarantees to see that write, also of another host. ``insert_if_absent`` first inserts a row for each missing
        key; its other columns have their defaults, or null. The first lookup on a host replays the log into the local
        cache. Raises `InvalidOptionError` for a log table, `SchemaMismatchError` for keys that do not fit.

        >>> people.lookup([1, 5], columns=["name"]).to_pylist()
        [{'id': 1, 'name': 'Ada', '_found': True}, {'id': 5, 'name': None, '_found': False}]
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
        """Look up the current row of one key as a dict of Python values; None if there is none.

        ``key`` is a value, a mapping, or for a composite key a tuple of values in key order. This is for applications
        that look up one row at a time: it builds no Arrow table, which costs more than the lookup itself. Integer and
        text keys are fastest. ``max_staleness_ms`` and ``at_least`` are as for `lookup`, as are the errors.

        >>> people.lookup_one(1)
        {'id': 1, 'name': 'Ada', 'city': 'Ulm'}
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
        """Look up all current rows whose primary key starts with these values, in key order.

        ``prefix`` is a mapping of the first key columns to values, a list of their values, or one value. It reads one
        bucket if it contains the bucket key, else all. ``max_staleness_ms`` and ``at_least`` are as for `lookup`.

        >>> people.prefix_lookup({"id": 1}, columns=["city"]).to_pylist()
        [{'city': 'Ulm'}]
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
        """Follow the log: yield batches as they are committed, each bucket in offset order, until ``stop`` is set.

        ``start`` is ``"latest"`` (rows committed after the call), ``"earliest"`` (all retained rows), a mapping bucket
        → offset, the ``position`` of another tail, or a ``datetime`` with a time zone. A position follows the last
        batch and can be stored as JSON (`LogPosition`). ``include_metadata`` puts ``_bucket``, ``_log_offset`` and
        ``_commit_timestamp`` before the table's columns. ``poll_ms`` is the poll interval; by default a few
        milliseconds while rows arrive, backing off to 2 s on an object store. With ``until_ms`` the tail ends if no row
        arrived for that long.

        A primary-key table yields its changes, with ``_change_type`` before all columns. Columns added after the call
        are not in the batches. Raises `OffsetsTrimmedError` if the log is trimmed faster than it is read, and
        `DifferentHistoryError` if the table was restored from an older copy since the position was taken.

        >>> sum(batch.num_rows for batch in orders.tail("earliest", until_ms=0))
        2
        """
        from streamhouse_spark.read.tail import follow

        waiting: Any = {"poll_ms": poll_ms, "stop": stop, "until_ms": until_ms}
        return follow(self, start, columns=columns, include_metadata=include_metadata, **waiting)

    @property
    def lake(self) -> LakeView:
        """The lake table alone, with the rows tiered so far.

        >>> orders.lake.to_arrow().num_rows
        0
        """
        from streamhouse_spark.table.lake import LakeView

        return LakeView(self)

    @property
    def inspect(self) -> Inspect:
        """The system tables: ``inspect.segments()``, ``inspect.buckets()``, …

        >>> orders.inspect.buckets().column("log_end_offset").to_pylist()
        [2]
        """
        from streamhouse_spark.table.system_views import Inspect

        return Inspect(self)

    def costs(self, prices: Mapping[str, Any] | None = None) -> TableCosts:
        """Return this process's requests and an estimated monthly cost. See `streamhouse_spark.table.costs`.

        >>> orders.costs().estimate.total_usd > 0
        True
        """
        from streamhouse_spark.table.costs import table_costs

        return table_costs(self, prices)

    # -- versions, tags and branches -------------------------------------------------------------------------------

    def rollback_to_version(self, version: int | str, *, dry_run: bool = False) -> RollbackReport:
        """Restore the rows of a commit of ``$history``, or of a tag. **Commit point:** one record.

        History is kept: later commits stay, and offsets are never reused. Rows added since are deleted, and rows
        deleted since return with new offsets; a primary-key table gets the net change of each key. If the table was
        truncated or overwritten since, all current rows are deleted and all rows of the version are written, which this
        process reads. The lake follows in the next tiering round. Comments, defaults, constraints and properties are
        unchanged. With ``dry_run`` nothing is written, and returning rows are not validated.

        Raises `CommitConflictError` if rows were committed concurrently (nothing was written),
        `ConstraintViolatedError` for returning rows that violate a current constraint, `InvalidOptionError` for an
        unknown commit, columns changed since or a dropped partition whose rows are lost, `SnapshotExpiredError` or
        `OffsetsTrimmedError` if the version is no longer retained.

        >>> orders.create_tag("before").version
        2
        >>> orders.delete(where=[("amount", "<", 5)])
        1
        >>> orders.rollback_to_version("before").rows_added
        1
        """
        from streamhouse_spark.table.versioning.rollback import rollback_to_version

        return rollback_to_version(self, version, dry_run=dry_run)

    def rollback_to_timestamp(self, timestamp_ms: int, *, dry_run: bool = False) -> RollbackReport:
        """Roll back as `rollback_to_version` does, to the latest commit at or before ``timestamp_ms``.

        >>> orders.rollback_to_timestamp(int(time.time() * 1000), dry_run=True).rows_deleted
        0
        """
        from streamhouse_spark.table.versioning.rollback import rollback_to_timestamp

        return rollback_to_timestamp(self, timestamp_ms, dry_run=dry_run)

    def create_tag(self, name: str, version: int | str | None = None, *, retain_ms: int | None = None) -> TableTag:
        """Tag a version, by default the latest. ``VERSION AS OF 'name'`` reads it. **Commit point:** one record.

        The tag retains what readers of the version need until `drop_tag`: log files, records and the lake snapshot.
        With ``retain_ms`` maintenance drops the tag after that time. Other engines do not know the tag and may expire
        the snapshot.

        Raises `InvalidOptionError` for a name that is in use or invalid and for an unknown version;
        `SnapshotExpiredError` for a version whose files were replaced since, even if they are not deleted yet.

        >>> orders.create_tag("end-of-year").version
        2
        """
        from streamhouse_spark.table.versioning.tags import create_tag

        return create_tag(self, name, version, retain_ms)

    def drop_tag(self, name: str) -> None:
        """Drop a tag. **Commit point:** one record. Files that only it retained are deleted after the grace period.

        Raises `InvalidOptionError` for an unknown tag.

        >>> orders.create_tag("end-of-year").version
        2
        >>> orders.drop_tag("end-of-year")
        """
        from streamhouse_spark.table.versioning.tags import drop_tag

        drop_tag(self, name)

    def tags(self) -> list[TableTag]:
        """Return the tags ordered by name, as ``$refs`` shows them.

        >>> orders.tags()
        []
        """
        from streamhouse_spark.table.versioning.tags import list_tags

        return list_tags(self.refresh())

    def create_branch(self, name: str) -> TableBranch:
        """Create a branch of the latest version. **Commit point:** one record. Hot rows are copied; lake files are not.

        `branch` opens it; its SQL name is ``orders$branch_<name>``. Branch and table do not see each other's writes
        until `fast_forward` publishes the branch or `drop_branch` ends it. Until then its records and its lake snapshot
        are retained.

        Raises `TableExistsError` for a name in use, `InvalidNameError` for an invalid one, and `InvalidOptionError` for
        a table that does not support branches, all before anything is written.

        >>> orders.create_branch("test").version
        2
        """
        from streamhouse_spark.table.versioning.branches import create_branch

        return create_branch(self, name)

    def branch(self, name: str) -> Self:
        """Open a branch as a table that can be read and written. Maintenance, columns and properties belong to the
        table.

        Raises `TableNotFoundError` for an unknown, published or dropped branch.

        >>> orders.create_branch("test").version
        2
        >>> orders.branch("test").append([{"id": 3}])
        BucketOffsets({0: [2, 3)})
        >>> orders.to_arrow().num_rows
        2
        """
        from streamhouse_spark.table.versioning.branches import open_log

        branch, log = open_log(self, name)
        return type(self)(self.storage, self.settings, self.path.of_branch(branch.name), log, self.world)

    def branches(self) -> list[TableBranch]:
        """Return the branches ordered by name, as ``$refs`` shows them.

        >>> orders.branches()
        []
        """
        from streamhouse_spark.table.versioning.branches import list_branches

        return list_branches(self)

    def fast_forward(self, name: str, *, to: str = "main") -> Publication:
        """Publish a branch: commit its changes to the table, all or none, and end the branch.

        **Commit point:** one record. Publishing again, after a crash or concurrently, has no further effect. If the
        table changed since the branch began, publishing requires that the branch does not conflict: a branch of a log
        table only appended rows; of a primary-key table no key that the branch changed or read was changed.

        Raises `CommitConflictError` on a conflict and `TableNotFoundError` for an unknown name; nothing was published.
        `CommitStateUnknownError`: publish again to find out.

        >>> orders.create_branch("test").version
        2
        >>> orders.branch("test").append([{"id": 3}])
        BucketOffsets({0: [2, 3)})
        >>> orders.fast_forward("test").rows_written
        1
        """
        from streamhouse_spark.table.versioning.publication import fast_forward

        return fast_forward(self, name, to=to)

    def drop_branch(self, name: str) -> None:
        """Drop a branch and its changes. **Commit point:** the record that removes its name.

        Its files are deleted after the grace period of `Warehouse.clean_dropped`. Raises `TableNotFoundError` for an
        unknown name.

        >>> orders.create_branch("test").version
        2
        >>> orders.drop_branch("test")
        """
        from streamhouse_spark.table.versioning.branches import drop_branch

        drop_branch(self, name)

    def read_version(
        self, version: int | str, *, columns: Sequence[str] | None = None, filter: FilterLike | None = None
    ) -> pa.Table:
        """Read the rows as of a commit number or a tag.

        Raises `InvalidOptionError` for an unknown version, `SnapshotExpiredError` for one that is no longer retained.

        >>> orders.read_version(1).num_rows
        0
        """
        return self.scan(columns=columns, filter=filter, version=version).to_arrow()

    # -- maintenance ----------------------------------------------------------------------------------------------

    def merge_inline(self) -> int:
        """Compact inline rows of commit records into one segment per bucket. Returns the number of
        replaced segments.
        """
        from streamhouse_spark.write.auto_compaction import merge_inline

        return merge_inline(self)

    def merge_small(self) -> int:
        """Compact runs of small adjacent segments. Returns the number of replaced segments."""
        from streamhouse_spark.write.auto_compaction import merge_small

        return merge_small(self)

    def retier(self, *, allow_loss: bool = False, dry_run: bool = False) -> RetierReport:
        """Rebuild the lake table from the log at a new location. See `table.maintenance.tiering.retier`.

        >>> orders.retier(dry_run=True).lost_rows
        0
        """
        from streamhouse_spark.table.maintenance.tiering import retier

        return retier(self, allow_loss=allow_loss, dry_run=dry_run)

    def maintain(self, *, grace_ms: int = GRACE_MS, dry_run: bool = False) -> MaintainReport:
        """Compact small segments, trim the log as far as its time to live and the lake permit, and delete unneeded
        files.

        For a primary-key table due key-value snapshots are written first, and the log is only trimmed up to them. Lake
        files are compacted and snapshots expired unless ``table.datalake.auto-compaction`` and ``auto-expire-snapshot``
        are false. Safe to repeat and to run concurrently. With ``dry_run`` nothing is changed, and the report has the
        due deletions. Raises `LakeRolledBackError` if the lake lost rows, before anything is trimmed.

        >>> orders.maintain().segments_merged
        1
        """
        from streamhouse_spark.table.maintenance.log import maintain

        return maintain(self, grace_ms=grace_ms, dry_run=dry_run)
