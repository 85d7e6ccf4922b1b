"""`Table`: the Python interface of one table. It works without Spark."""

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
from streamhouse_spark.table.scan import RowsLike, Scan, Scannable, TableSource
from streamhouse_spark.table_handle import TableHandle

if TYPE_CHECKING:
    from streamhouse_spark.expressions.filters import FilterLike
    from streamhouse_spark.lookup.batch_lookup import BatchLookup
    from streamhouse_spark.lookup.point_lookup import PointLookup
    from streamhouse_spark.read.follow import Follower
    from streamhouse_spark.read.tail import Tail
    from streamhouse_spark.schema.table_schema import SparkSchema
    from streamhouse_spark.table.aio import AsyncTable
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
    | {"keyed", "log", "log_writer", "path", "settings", "storage", "world"}
)
"""Attributes for use by other modules of the package."""


@validates_arguments(unless=("lookup_one",))
class Table(TableHandle, Scannable):
    """A table of a warehouse. Open it with `Warehouse.table`, or create it with `Warehouse.create_table`.

    Every read returns the latest rows and columns, also those of other processes. The object is thread-safe and can be
    pickled. If the table is dropped and recreated under the same name, this object does not refer to the new table.
    """

    # -- definition ------------------------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        """The columns, as an Arrow schema.

        >>> orders.schema.names
        ['id', 'day', 'amount']
        """
        return self.state.schema.arrow

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns that rows are partitioned by, without transforms such as ``days(ts)``.

        >>> orders.partition_by
        ('day',)
        """
        return self.state.partition_by

    @property
    def num_buckets(self) -> int:
        """The number of buckets, over which rows are distributed by the bucket key.

        >>> orders.num_buckets
        1
        """
        return self.state.num_buckets

    @cached_property
    def log_writer(self) -> LogTableWriter:
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
        """The writer of a primary-key table. Raises `InvalidOptionError` for a log table."""
        if not self.state.primary_key:
            raise InvalidOptionError(
                f"table {self.name} has no primary key, expected one for upserts, lookups and deletes by key; use "
                "append(rows) and delete(where=...), or create a table with primary_key=[...]"
            )
        from streamhouse_spark.write.upsert import PrimaryKeyTable

        return PrimaryKeyTable(self)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _INTERNALS]

    def __repr__(self) -> str:
        state = self.state
        counts = {"column": len(state.schema.columns), "bucket": state.num_buckets, "row": state.num_rows}
        return f"Table({self.name}: {', '.join(count_of(number, noun) for noun, number in counts.items())})"

    def _repr_html_(self) -> str:
        from streamhouse_spark.table.notebook import format_table_html

        return format_table_html(self)

    # -- writing --------------------------------------------------------------------------------------------------

    def append(self, rows: RowsLike, *, transaction: Transaction | None = None) -> BucketOffsets:
        """Append rows to a log table, all or none, and return their offsets.

        When the call returns, the rows are durable and visible to all readers. The batches of a reader or query are
        written one after the other, with a few of them in memory.

        * ``rows``: a ``pyarrow`` Table, RecordBatch or reader, a pandas or polars frame, anything else with the Arrow C
          stream interface, or a list of dicts. Columns match by name. A missing column gets its default, or null.
        * ``transaction``: makes the write idempotent. If the transaction is already stored, nothing is appended, and
          the offsets of its first commit are returned.

        Raises, with nothing appended, `SchemaMismatchError` for rows that do not fit the table, `InvalidOptionError`
        for a primary-key table, `CommitConflictError` or `StorageError`. After `CommitStateUnknownError` the rows may
        have been appended; its text says how to find out.

        >>> orders.append([{"id": 3, "day": "tue", "amount": 1.5}])
        BucketOffsets({0: [2, 3)})
        """
        check_transaction(transaction)
        return self.log_writer.append(rows, transaction)

    def writer(
        self,
        *,
        flush_ms: float = 5,
        flush_bytes: int = 8 << 20,
        producer_id: str | None = None,
        in_flight_bytes_max: int = 64 << 20,
        delivery_timeout_ms: float = 120_000,
    ) -> Writer:
        """Open a writer that batches many small sends of an event producer into few commits.

        * ``flush_ms``, ``flush_bytes``: a batch is committed when its first row has waited this long, or when it has
          this many bytes in memory.
        * ``producer_id``: rows are stored exactly once across failures and restarts, and earlier writers of the id are
          fenced. Each batch is a transaction, which is retried until its outcome is known. Without an id, a batch is as
          safe as an `append`, and later batches continue after a failure.
        * ``in_flight_bytes_max``: senders wait while more bytes are in flight.
        * ``delivery_timeout_ms``: a batch fails after this time. With a producer id all later rows fail too.

        Raises `InvalidOptionError` for a materialized table, `TransactionConflictError` if ``producer_id`` is the
        application id of a streaming query, and with a producer id the errors of `append`.

        >>> with orders.writer() as writer:
        ...     sent = writer.send({"id": 3, "day": "tue", "amount": 1.5})
        >>> sent.result()
        BucketOffsets({0: [2, 3)})
        """
        from streamhouse_spark.write.producer.writer import open_writer

        limits = (flush_ms, flush_bytes, in_flight_bytes_max, delivery_timeout_ms)
        return open_writer(self.log_writer, producer_id, *limits)

    def upsert(
        self, rows: RowsLike, *, columns: Sequence[str] | None = None, transaction: Transaction | None = None
    ) -> BucketOffsets:
        """Insert or update rows by primary key, all or none, and return the offsets of the changes in the changelog.

        By default a row replaces the stored row of its key; see the property ``table.merge-engine``. If a key occurs
        several times, its rows are applied in order, and the changelog gets one net change. An unchanged row has no
        change. All rows are read into memory.

        * ``rows``: as for `append`.
        * ``columns``: makes this a partial update. ``rows`` have the primary key and these columns only. Other columns
          keep their values; in new rows they get their defaults, or null.
        * ``transaction``: as for `append`. Also aggregated columns are updated only once.

        Raises the errors of `append`, and `InvalidOptionError` for a log table or a partial update that the merge
        engine does not support.

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
        """Delete rows by primary key, or the rows that match ``where``, all or none.

        Returns the offsets of the changes for ``keys``, and the number of deleted rows for ``where``.

        * ``keys``: rows with the primary key columns, a list of tuples of key values or, for a single-column key, of
          values. One key needs no list. Keys without a row are ignored. See the property ``table.delete.behavior``.
        * ``where``: a filter as for `to_arrow`.
        * ``transaction``: as for `append`.

        Raises the errors of `append`, and `InvalidOptionError` for ``keys`` of a log table or a table that does not
        support deletes.

        >>> people.delete([2])
        BucketOffsets({0: [2, 3)})
        >>> orders.delete(where=[("amount", "<", 5)])
        1
        """
        if keys is not None and where is not None:
            raise InvalidOptionError("delete has both keys and where, expected one; leave one out")
        if where is None:
            return self.keyed.delete(keys, transaction=transaction)
        from streamhouse_spark.dml.delete import delete_matching

        return delete_matching(self, where, transaction)

    def overwrite(
        self, rows: RowsLike, *, where: FilterLike | None = None, transaction: Transaction | None = None
    ) -> BucketOffsets:
        """Replace all rows, or the rows that match ``where``, in one commit, and return the offsets of the new rows.

        Readers see either the old rows or the new rows. The next tiering round applies the overwrite to the lake; older
        lake snapshots are kept. Open streams fail; see `truncate`.

        * ``rows``: as for `append`; may be empty.
        * ``where``: a filter as for `to_arrow`, which the new rows must match. For a primary-key table it may only use
          partition columns.
        * ``transaction``: as for `append`.

        Raises the errors of `append`. Then nothing was deleted.

        >>> orders.overwrite([{"id": 4, "day": "tue", "amount": 2.0}], where=[("day", "=", "tue")])
        BucketOffsets({0: [2, 3)})
        """
        from streamhouse_spark.dml.overwrite import overwrite

        return overwrite(self, self.log_writer, rows, where, transaction)

    def overwrite_partitions(self, rows: RowsLike, *, transaction: Transaction | None = None) -> BucketOffsets:
        """Replace the partitions that occur in ``rows``, in one commit. Other partitions are kept. See `overwrite`.

        >>> orders.overwrite_partitions([{"id": 4, "day": "tue", "amount": 2.0}])
        BucketOffsets({0: [2, 3)})
        """
        from streamhouse_spark.dml.overwrite import overwrite_partitions

        return overwrite_partitions(self, self.log_writer, rows, transaction)

    def truncate(self) -> None:
        """Delete all rows in one commit. The table, its properties and its stored transactions are kept.

        Later rows get higher offsets. The next tiering round empties the lake in one snapshot; older snapshots can be
        read until they expire. Running reads can finish, because files are deleted after the grace period. Open streams
        and tails fail with `OffsetsTrimmedError`, or with ``failOnDataLoss=false`` continue after the truncation.

        Raises `CommitConflictError` or `StorageError` if nothing was deleted. After `CommitStateUnknownError`, truncate
        again if no other writer has appended since.

        >>> orders.truncate()
        >>> orders.to_arrow().num_rows
        0
        """
        from streamhouse_spark.log.append_commit import make_truncate_actions

        self.log.commit(lambda state, _time_ms: make_truncate_actions(self.require_not_dropped(state)))

    def drop_partition(self, partition: Mapping[str, Any], *, dry_run: bool = False) -> DropPartitionReport:
        """Delete the rows of partitions that were committed before the call, all or none.

        Rows of a log table are tiered, and dropped from the lake in one snapshot. Older lake snapshots contain them
        until they expire. The hot log keeps them, for streams that start earlier, until it is trimmed. In a primary-key
        table the rows are deleted by key.

        * ``partition``: values of some or all partition columns; None matches null. It may match many partitions.
        * ``dry_run``: only count the rows and files.

        Raises, with nothing changed, `InvalidOptionError` for a column that is not a partition column, a log table
        without a lake and a table that does not support deletes, `SchemaMismatchError` for a value that does not fit,
        and `CommitConflictError`. After any other error the partition may have been dropped. Dropping it again also
        deletes later rows.

        >>> orders.drop_partition({"day": "mon"}).rows
        1
        """
        from streamhouse_spark.expressions.partition_filter import PartitionMatches
        from streamhouse_spark.table.drop_partition import drop_partitions

        state = self.refresh()
        chosen = PartitionMatches.of([partition], state.schema, state.partition_by, self.name)
        return drop_partitions(self, chosen, dry_run=dry_run)

    def forget_transactions(self, *app_ids: str) -> None:
        """Remove the stored transactions of these applications, so that their versions can be written again.

        >>> orders.append([{"id": 3}], transaction=sh.Transaction("load", 1))
        BucketOffsets({0: [2, 3)})
        >>> orders.forget_transactions("load")
        """
        from streamhouse_spark.table.alter import forget_transactions

        forget_transactions(self, app_ids)

    def move_consumer(self, consumer_id: str, offsets: Mapping[int, int] | None) -> None:
        """Commit the position of a named consumer, which has processed all rows below ``offsets``.

        ``offsets`` maps buckets to offsets, or is the ``position`` of a `tail`. None removes the consumer. Trimming
        keeps unprocessed rows until the consumer has been silent for ``table.log.ttl`` plus a week. A repeated position
        is a heartbeat, which is stored at most once per hour.

        Raises `InvalidOptionError` for an invalid name or offset, and `DifferentHistoryError` if the table was restored
        from an older copy since the position was taken.

        >>> orders.move_consumer("billing", {0: 2})
        """
        move_consumer(self.log, consumer_id, offsets, self.require_not_dropped)

    def consumer_position(self, consumer_id: str) -> LogPosition | None:
        """Return the last committed position of a named consumer, at which `tail` can start; None if it is unknown.

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
        """Alter columns, nested fields (``s.x``) and properties in one commit.

        These arguments refer to the columns before the change:

        * ``rename_columns``: old name → new name.
        * ``drop_columns``: names. A column that is added later under the same name is a new column.
        * ``widen_columns``: name → wider type.

        These arguments refer to the columns after the change:

        * ``add_columns``: new last columns, as an Arrow schema, Spark DDL or a StructType. They are null in existing
          rows.
        * ``comments``: column → comment; None removes it. The comment of the table is the property ``comment``.
        * ``defaults``: column → constant for new rows in which the column is missing; None removes it.
        * ``drop_not_null``: columns that become nullable.
        * ``move_columns``: column → the column that it follows, or None for the first position.

        ``set_properties`` and ``unset_properties`` change properties. The lake follows in the next tiering round. Open
        streams and tails continue after an added or moved column. They end with `SchemaMismatchError` if one of their
        columns is renamed, dropped, widened or becomes nullable; restart them.

        Raises, with nothing changed, `SchemaMismatchError` for an unknown column, a name in use, an added NOT NULL
        column, a type that cannot represent all old values and a default that does not fit; `InvalidOptionError` for
        unknown or invalid properties and a column that a key, partitioning or property needs unchanged.

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
        """Add columns, or nested fields (``s.x INT``), after the existing ones. See `alter`.

        >>> orders.add_columns("note STRING", defaults={"note": "none"})
        """
        self.alter(add_columns=columns, defaults=defaults)

    def set_default(self, column: str, value: Any) -> None:
        """Set the value of a column for new rows in which it is missing. See `alter`.

        >>> orders.set_default("amount", 0.0)
        """
        self.alter(defaults={column: value})

    def drop_default(self, *columns: str) -> None:
        """Remove the defaults of columns, which are then null in new rows in which they are missing. See `alter`.

        >>> orders.set_default("amount", 0.0)
        >>> orders.drop_default("amount")
        """
        self.alter(defaults=dict.fromkeys(columns))

    def rename_column(self, name: str, new_name: str) -> None:
        """Rename a column, also in properties. See `alter`.

        >>> orders.rename_column("amount", "price")
        """
        self.alter(rename_columns={name: new_name})

    def drop_column(self, *names: str) -> None:
        """Drop columns. See `alter`.

        >>> orders.drop_column("amount")
        """
        self.alter(drop_columns=names)

    def widen_column(self, name: str, new_type: pa.DataType | str) -> None:
        """Change the type of a column to a wider type. See `alter`.

        >>> orders.add_columns("n INT")
        >>> orders.widen_column("n", "bigint")
        """
        self.alter(widen_columns={name: new_type})

    def alter_properties(self, changed: Mapping[str, str] | None = None, removed: Sequence[str] = ()) -> None:
        """Set properties, and remove properties. See `alter`.

        >>> orders.alter_properties({"table.log.ttl": "3 d"})
        """
        self.alter(set_properties=changed, unset_properties=removed)

    def set_partitioning(self, partition_by: Sequence[str]) -> None:
        """Change how new rows are partitioned in the lake, in one commit. No file or row is rewritten.

        ``partition_by`` is as for `Warehouse.create_table`; an empty list removes the partitioning. ``bucket(8, id)``
        is accepted only if it equals the existing bucketing. The next tiering round writes the new partitions.

        Raises, with nothing changed, `InvalidOptionError` for a lake format other than Iceberg, a branch, a
        materialized table, an invalid field, and a property that needs the old partitions; `SchemaMismatchError` for an
        unknown column.

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
        """Read all rows that were committed before the call, each exactly once. Lake rows come first.

        * ``columns``: the columns to return, in this order.
        * ``filter``: a condition, see `Scan.filter`. It skips lake files and log segments without matching rows.
        * ``as_of_timestamp_ms``: reads the rows and columns at that time.

        Raises `SchemaMismatchError` for an unknown column, `InvalidOptionError` for an invalid filter,
        `OffsetsTrimmedError` or `SnapshotExpiredError` if the rows of the time are no longer retained, and
        `CorruptDataError`.

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
        """Return a lazy scan, which Arrow, pandas, polars and DuckDB can read.

        * ``columns``, ``filter``: as for `to_arrow`.
        * ``version``: a commit number, a tag or a branch, whose rows are read.
        * ``timestamp_ms``: reads the rows and columns at that time.
        * ``limit``: the maximum number of rows.
        * ``partitions``: column → value that all rows must have, or a list of values.

        See `streamhouse_spark.table.scan.Scan` for the methods of a scan. Reading it raises the errors of `to_arrow`.

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

        Versions are commit numbers of ``$history`` or tags. Version 0 precedes all commits, None is the latest commit
        at each read. Rows that were deleted later are included, new values of updated rows are not. Raises the errors
        of `changes`, and `InvalidOptionError` for a primary-key table.

        >>> before = orders.refresh().version
        >>> orders.append([{"id": 3, "day": "tue", "amount": 1.5}])
        BucketOffsets({0: [2, 3)})
        >>> orders.incremental_append_scan(before).to_arrow(columns=["id"]).to_pylist()
        [{'id': 3}]
        """
        from streamhouse_spark.table.incremental_scans import scan_appends

        return scan_appends(self, from_exclusive, to_inclusive)

    def changes(self, from_exclusive: int | str = 0, to_inclusive: int | str | None = None) -> Scan:
        """Return a lazy scan of the changes of the commits after ``from_exclusive``, up to ``to_inclusive``.

        Versions are as for `incremental_append_scan`. The table's columns are followed by ``_change_type`` (``insert``,
        ``update_preimage``, ``update_postimage`` or ``delete``), ``_commit_version`` and ``_commit_timestamp``, as in
        Spark's ``CHANGES`` clause. Reading raises `InvalidOptionError` for an unknown version and for a commit whose
        changes are not recorded row by row, such as an adoption; `OffsetsTrimmedError` or `SnapshotExpiredError` if
        changes are no longer retained.

        >>> before = people.refresh().version
        >>> people.delete([2])
        BucketOffsets({0: [2, 3)})
        >>> people.changes(before).to_arrow(columns=["id", "_change_type"]).to_pylist()
        [{'id': 2, '_change_type': 'delete'}]
        """
        from streamhouse_spark.table.incremental_scans import scan_changes

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
        """Look up current rows by primary key. The result has one row per key, in the order of ``keys``.

        The result has the primary key columns, the other columns or ``columns``, and ``_found``. Other columns are null
        if the key has no row. The first lookup on a host replays the log into a local cache.

        * ``keys``: as for `delete`.
        * ``max_staleness_ms``: how old the result may be. By default it includes all rows that were committed before
          the call, or on remote storage one second before the call.
        * ``at_least``: offsets that a write returned, also on another host. The result includes this write.
        * ``insert_if_absent``: first insert a row for each missing key, with defaults or nulls in the other columns.

        Raises `InvalidOptionError` for a log table, `SchemaMismatchError` for keys that do not fit.

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
        """Look up the current row of one key, as a dict of Python values; None if the key has no row.

        For single rows it is faster than `lookup`, because it creates no Arrow table. Integer and string keys are
        fastest.

        * ``key``: a value, a mapping or, for a composite key, a tuple of values in key order.
        * ``columns``, ``max_staleness_ms``, ``at_least``: as for `lookup`.

        Raises the errors of `lookup`.

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
        """Look up all current rows whose primary key starts with ``prefix``, in key order.

        * ``prefix``: a mapping of the first key columns to values, a list of their values, or one value. If it contains
          the bucket key, one bucket is read, otherwise all buckets.
        * ``columns``, ``max_staleness_ms``, ``at_least``: as for `lookup`.

        Raises the errors of `lookup`.

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
        filter: Any = None,
    ) -> Tail:
        """Follow the log: yield batches of new rows as they are committed, each bucket in offset order.

        A primary-key table yields changes, with ``_change_type`` as the first column. Columns that are added after the
        call are not in the batches. `follow` also stores the position.

        * ``start``: ``"latest"`` (rows committed after the call), ``"earliest"`` (all retained rows), a mapping bucket
          → offset, the ``position`` of another tail, or a ``datetime`` with a time zone. A position can be stored as
          JSON (`LogPosition`).
        * ``columns``, ``filter``: as for `to_arrow`. The filter applies to each change of a primary-key table alone.
        * ``include_metadata``: add ``_bucket``, ``_log_offset`` and ``_commit_timestamp`` before the columns.
        * ``poll_ms``: the poll interval. By default a few milliseconds while rows arrive, backing off to two seconds on
          an object store.
        * ``stop``: the tail ends when this event is set.
        * ``until_ms``: the tail ends when no row has arrived for this time.

        Raises `OffsetsTrimmedError` if rows are trimmed before they are read, `DifferentHistoryError` if the table was
        restored from an older copy since the position was taken, and `SchemaMismatchError` if a column is renamed,
        dropped or widened.

        >>> sum(batch.num_rows for batch in orders.tail("earliest", until_ms=0))
        2
        >>> batches = orders.tail("earliest", columns=["id"], filter="amount > 5", until_ms=0)
        >>> next(batches).to_pylist()
        [{'id': 1}]
        """
        from streamhouse_spark.read.tail import open_tail

        waiting: Any = {"poll_ms": poll_ms, "stop": stop, "until_ms": until_ms}
        return open_tail(self, start, columns=columns, filter=filter, include_metadata=include_metadata, **waiting)

    def follow(
        self,
        name: str,
        *,
        start: Any = "earliest",
        columns: Sequence[str] | None = None,
        filter: Any = None,
        include_metadata: bool = False,
        skip_change_commits: bool = False,
        sink: TableHandle | None = None,
        poll_ms: float | None = None,
        stop: threading.Event | None = None,
        until_ms: int | None = None,
        available_now: bool = False,
    ) -> Follower:
        """Process all new rows as a named consumer, which continues after restarts: each row at least once.

        A batch has all rows since the last batch, up to a few megabytes. The position is committed when the next batch
        is requested or the loop ends. After a ``break`` or an exception in the loop body, the last batch is read again,
        unless you call ``commit()`` first. ``close()`` ends the loop from another thread. A newer follower of the same
        name fences this one.

        For exactly once, store ``position`` with the results in one transaction of your database, and start at that
        position. If the results go to a table, pass it as ``sink``, and write each batch with ``transaction``.

        * ``start``: as for `tail`. ``"latest"``, ``"earliest"`` and a ``datetime`` apply to a new name. A position or
          mapping replaces the stored position.
        * ``columns``, ``filter``, ``include_metadata``, ``poll_ms``, ``stop``, ``until_ms``: as for `tail`.
        * ``skip_change_commits``: ignore that rows of a log table are deleted after they were read.
        * ``sink``: the table that stores the results.
        * ``available_now``: end the loop after the rows that were committed when it started.

        Raises `ConsumerFencedError`, `OffsetsTrimmedError` if rows after the position were trimmed or the table was
        truncated, `DifferentHistoryError` for a ``start`` of another history of the table, and the errors of `append`.

        >>> for batch in orders.follow("billing", columns=["id"], available_now=True):
        ...     print(batch.num_rows)
        2
        >>> orders.consumer_position("billing").offsets
        {0: 2}
        """
        from streamhouse_spark.read.follow import FollowOptions, open_follower

        options = FollowOptions(
            columns, filter, include_metadata, skip_change_commits, sink, poll_ms, stop, until_ms, available_now
        )
        return open_follower(self, name, start, options)

    @cached_property
    def aio(self) -> AsyncTable:
        """The methods for asyncio, such as ``await orders.aio.append(rows)``; see `AsyncTable`.

        >>> asyncio.run(people.aio.lookup_one(1))
        {'id': 1, 'name': 'Ada', 'city': 'Ulm'}
        """
        from streamhouse_spark.table.aio import AsyncTable

        return AsyncTable(self, self.log_writer)

    @property
    def lake(self) -> LakeView:
        """The lake table alone, with the rows that were tiered. It has the methods for maintenance of the lake.

        >>> orders.lake.to_arrow().num_rows
        0
        """
        from streamhouse_spark.table.lake import LakeView

        return LakeView(self)

    @property
    def inspect(self) -> Inspect:
        """The system tables, such as ``inspect.buckets()`` and ``inspect.history()``.

        >>> orders.inspect.buckets().column("log_end_offset").to_pylist()
        [2]
        """
        from streamhouse_spark.table.system_views import Inspect

        return Inspect(self)

    def costs(self, prices: Mapping[str, Any] | None = None) -> TableCosts:
        """Return the requests of this process for the table, and an estimated monthly cost on an object store.

        ``prices`` overrides fields of `streamhouse_spark.table.costs.Prices`, whose defaults are those of Amazon S3.
        Raises `InvalidOptionError` for an unknown or invalid price.

        >>> orders.costs().estimate.total_usd > 0
        True
        """
        from streamhouse_spark.table.costs import table_costs

        return table_costs(self, prices)

    # -- versions, tags and branches -------------------------------------------------------------------------------

    def rollback_to_version(self, version: int | str, *, dry_run: bool = False) -> RollbackReport:
        """Restore the rows of a version in one commit. Later commits are kept in the history.

        Rows that were added since are deleted. Rows that were deleted since are added with new offsets. A primary-key
        table gets the net change of each key. If the table was truncated or overwritten since, this process reads and
        writes all rows of the version. The lake follows in the next tiering round. Columns and properties are
        unchanged.

        * ``version``: a commit number of ``$history``, or a tag.
        * ``dry_run``: write nothing, and do not validate restored rows.

        Raises, with nothing written, `CommitConflictError` if rows were committed concurrently,
        `ConstraintViolatedError` if a restored row violates a current constraint, `InvalidOptionError` for an unknown
        commit, columns that changed since, or a dropped partition whose rows are lost, `SnapshotExpiredError` or
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
        """Restore the rows of the latest commit at or before ``timestamp_ms``. See `rollback_to_version`.

        >>> orders.rollback_to_timestamp(int(time.time() * 1000), dry_run=True).rows_deleted
        0
        """
        from streamhouse_spark.table.versioning.rollback import rollback_to_timestamp

        return rollback_to_timestamp(self, timestamp_ms, dry_run=dry_run)

    def create_tag(self, name: str, version: int | str | None = None, *, retain_ms: int | None = None) -> TableTag:
        """Tag a version in one commit, so that it is retained. ``VERSION AS OF 'name'`` and `read_version` read it.

        The tag retains the log files, records and lake snapshot of the version until `drop_tag`. Other engines do not
        know the tag and may expire the snapshot.

        * ``version``: a commit number or another tag; by default the latest commit.
        * ``retain_ms``: maintenance drops the tag after this time.

        Raises `InvalidOptionError` for an invalid name, a name in use and an unknown version, and
        `SnapshotExpiredError` for a version whose files were replaced since, even if they are not deleted yet.

        >>> orders.create_tag("end-of-year").version
        2
        """
        from streamhouse_spark.table.versioning.tags import create_tag

        return create_tag(self, name, version, retain_ms)

    def drop_tag(self, name: str) -> None:
        """Drop a tag in one commit. Files that only the tag retained are deleted after the grace period.

        Raises `InvalidOptionError` for an unknown tag.

        >>> orders.create_tag("end-of-year").version
        2
        >>> orders.drop_tag("end-of-year")
        """
        from streamhouse_spark.table.versioning.tags import drop_tag

        drop_tag(self, name)

    def tags(self) -> list[TableTag]:
        """Return the tags, ordered by name.

        >>> orders.tags()
        []
        """
        from streamhouse_spark.table.versioning.tags import list_tags

        return list_tags(self.refresh())

    def create_branch(self, name: str) -> TableBranch:
        """Create a branch of the latest version. It copies hot rows, but no lake files.

        `branch` opens the branch; its SQL name is ``orders$branch_<name>``. Later writes to the branch are invisible in
        the table, and later writes to the table are invisible in the branch. `fast_forward` publishes the branch, and
        `drop_branch` ends it. Until then its log and its lake snapshot are retained.

        Raises, with nothing written, `TableExistsError` for a name in use, `InvalidNameError` for an invalid name, and
        `InvalidOptionError` for a table that does not support branches.

        >>> orders.create_branch("test").version
        2
        """
        from streamhouse_spark.table.versioning.branches import create_branch

        return create_branch(self, name)

    def branch(self, name: str) -> Self:
        """Open a branch as a table that can be read and written, but not altered or maintained.

        Raises `TableNotFoundError` for an unknown, published or dropped branch.

        >>> orders.create_branch("test").version
        2
        >>> orders.branch("test").append([{"id": 3}])
        BucketOffsets({0: [2, 3)})
        >>> orders.to_arrow().num_rows
        2
        """
        from streamhouse_spark.table.versioning.branches import open_branch_log

        branch, log = open_branch_log(self, name)
        return type(self)(self.storage, self.settings, self.path.of_branch(branch.name), log, self.world)

    def branches(self) -> list[TableBranch]:
        """Return the branches, ordered by name.

        >>> orders.branches()
        []
        """
        from streamhouse_spark.table.versioning.branches import list_branches

        return list_branches(self)

    def fast_forward(self, name: str, *, to: str = "main") -> Publication:
        """Publish a branch: commit its changes to the table in one commit, and end the branch.

        If the table changed since the branch was created, the branch of a log table may only have appended rows. In a
        primary-key table, no key that the branch changed or read may have changed. Publishing again, after a crash or
        concurrently, has no further effect.

        * ``to``: ``main``, the table of the branch.

        Raises, with nothing published, `CommitConflictError` for conflicting changes and `TableNotFoundError` for an
        unknown name. After `CommitStateUnknownError` publish again.

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
        """Drop a branch and its changes.

        `Warehouse.clean_dropped` deletes its files after the grace period. Raises `TableNotFoundError` for an unknown
        name.

        >>> orders.create_branch("test").version
        2
        >>> orders.drop_branch("test")
        """
        from streamhouse_spark.table.versioning.branches import drop_branch

        drop_branch(self, name)

    def read_version(
        self, version: int | str, *, columns: Sequence[str] | None = None, filter: FilterLike | None = None
    ) -> pa.Table:
        """Read the rows of a version.

        * ``version``: a commit number, or a tag.
        * ``columns``, ``filter``: as for `to_arrow`.

        Raises the errors of `to_arrow`, `InvalidOptionError` for an unknown version, and `SnapshotExpiredError` for a
        version that is no longer retained.

        >>> orders.read_version(1).num_rows
        0
        """
        return self.scan(columns=columns, filter=filter, version=version).to_arrow()

    # -- maintenance ----------------------------------------------------------------------------------------------

    def retier(self, *, allow_loss: bool = False, dry_run: bool = False) -> RetierReport:
        """Rebuild a lost lake from the log, at a new location, in one commit. The next tiering round writes the rows.

        Deleted rows and dropped partitions stay deleted. Rows that other engines wrote to the lake are lost.

        * ``allow_loss``: rebuild the lake even if rows were trimmed from the log, which are lost, or if rows of dropped
          partitions return because no record names them.
        * ``dry_run``: only report.

        Raises, with nothing changed, `OffsetsTrimmedError` if rows would be lost or return, and `InvalidOptionError`
        for a table without a lake or with an adopted lake.

        >>> orders.retier(dry_run=True).lost_rows
        0
        """
        from streamhouse_spark.table.maintenance.tiering import retier

        return retier(self, allow_loss=allow_loss, dry_run=dry_run)

    def maintain(self, *, grace_ms: int = GRACE_MS, dry_run: bool = False) -> MaintainReport:
        """Compact segments, trim the log, maintain the lake and delete unneeded files, as the tiering service does.

        The log is trimmed as far as ``table.log.ttl`` and the lake permit, and in a primary-key table up to its KV
        snapshots, which are written first if due. Lake files are compacted and snapshots expired unless
        ``table.datalake.auto-compaction`` and ``table.datalake.auto-expire-snapshot`` are false. Can be repeated, and
        run concurrently with other processes.

        * ``grace_ms``: the age at which unneeded files are deleted.
        * ``dry_run``: change nothing, and report the due deletions.

        Raises `LakeRolledBackError`, before anything is trimmed, if rows are missing from the lake.

        >>> orders.maintain().segments_merged
        1
        """
        from streamhouse_spark.table.maintenance.log import maintain

        return maintain(self, grace_ms=grace_ms, dry_run=dry_run)
