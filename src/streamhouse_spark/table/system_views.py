"""Read-only views of a table, named by a ``$`` suffix, and `Table.inspect`, which reads system tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa

from streamhouse_spark.core.argument_validation import validates_arguments
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import InvalidNameError, InvalidOptionError, OffsetsTrimmedError, count_of
from streamhouse_spark.log.archive.pages import usable_archive
from streamhouse_spark.log.catalog.branches import require_no_branch
from streamhouse_spark.log.segments.metadata_columns import CHANGELOG_FIELDS, with_fields
from streamhouse_spark.log.segments.scan import plan_range
from streamhouse_spark.read.change_rows import binlog_batches, binlog_schema
from streamhouse_spark.read.offset_scan import plan_archived_changes
from streamhouse_spark.read.scan_tasks import LogScanTask, OffsetsScanTask, ScanPlan, ScanTask
from streamhouse_spark.read.system_tables import SYSTEM_TABLES, SystemTables
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.scan import Scan, Scannable, ViewSource
from streamhouse_spark.table_handle import TableHandle

if TYPE_CHECKING:
    from streamhouse_spark.expressions.filters import FilterLike
    from streamhouse_spark.log.state import TableState

CHANGELOG = "changelog"
LAKE = "lake"
LAKE_PREFIX = "lake$"
BINLOG = "binlog"
PARTITIONS = "partitions"


@validates_arguments(unless=("read",))
class Inspect:
    """System tables of one table. Each method reads the latest state and returns one system table.

    The columns are those of `SYSTEM_TABLES`, or of `partitions_schema`.
    """

    def __init__(self, table: TableHandle) -> None:
        self._table = table

    def __repr__(self) -> str:
        return f"Inspect({self._table.name})"

    def read(self, name: str) -> pa.Table:
        return SystemTables(self._table.storage, self._table.refresh()).read(name)

    def buckets(self) -> pa.Table:
        """Return log start and end, lake offset and lag of each bucket."""
        return self.read("buckets")

    def segments(self) -> pa.Table:
        """Return the live segments of the hot log; ``file`` is null for inline rows."""
        return self.read("segments")

    def commits(self) -> pa.Table:
        """Return the retained commit records, oldest first."""
        return self.read("commits")

    def history(self, limit: int | None = None) -> pa.Table:
        """Return the retained commits with operation and author, oldest first, at most the latest ``limit``.

        Raises `InvalidOptionError` for an invalid limit.
        """
        if limit is not None and limit < 1:
            raise InvalidOptionError(f"limit must be at least 1, got {limit}")
        return SystemTables(self._table.storage, self._table.refresh(), limit).read("history")

    def partitions(self) -> pa.Table:
        """Return the row counts of each partition in log and lake; the first columns are the partition columns.

        See `partitions_table.partition_table`. Raises `InvalidNameError` for an unpartitioned table.
        """
        return open_view(self._table, PARTITIONS).to_arrow()

    def lineage(self) -> pa.Table:
        """Return the source versions of each refresh of a materialized table, oldest first."""
        return self.read("lineage")

    def refs(self) -> pa.Table:
        """Return the named versions: the latest as ``main``, then tags and branches."""
        return self.read("refs")

    def schemas(self) -> pa.Table:
        return self.read("schemas")

    def options(self) -> pa.Table:
        """Return the table's properties."""
        return self.read("options")

    def tiering(self) -> pa.Table:
        """Return the recorded lake snapshots and the offsets that they hold."""
        return self.read("tiering")


def open_view(table: TableHandle, suffix: str) -> Scannable:
    """Open the view of a suffix. Raises `InvalidNameError` for an unsupported suffix, listing the supported ones."""
    if suffix in SYSTEM_TABLES:
        return _SystemView(table, suffix)
    if suffix == CHANGELOG:
        return _ChangelogView(table, suffix)
    if suffix == PARTITIONS and table.state.partition_by:
        return _PartitionsView(table, suffix)
    if suffix == BINLOG and table.state.primary_key:
        return _BinlogView(table, suffix)
    if suffix == LAKE or suffix.startswith(LAKE_PREFIX):
        if not table.has_lake:
            raise InvalidNameError(
                f"{table.name}${suffix}: table {table.name} has no lake (table.datalake.enabled is false); "
                f"available: {', '.join(_list_suffixes(table))}",
            )
        from streamhouse_spark.table.lake import LakeView

        require_no_branch(table.state, "reading the lake alone")
        return LakeView(table) if suffix == LAKE else _LakeMetadataView(table, suffix)
    _reject(table, suffix)


def _list_suffixes(table: TableHandle) -> list[str]:
    changes = (CHANGELOG, BINLOG) if table.state.primary_key else (CHANGELOG,)
    partitions = (PARTITIONS,) if table.state.partition_by else ()
    own = [f"${name}" for name in (*changes, *SYSTEM_TABLES, *partitions)]
    return ["$lake", "$lake$snapshots", "$lake$files", *own] if table.has_lake else own


def _reject(table: TableHandle, suffix: str) -> NoReturn:
    if suffix == BINLOG:
        raise InvalidNameError(f"{table.name}${suffix}: only tables with a primary key have ${suffix}; use $changelog")
    if suffix == PARTITIONS:
        raise InvalidNameError(
            f"{table.name}${suffix}: the table is not partitioned by columns; $buckets says where its rows are"
        )
    raise InvalidNameError(
        f"{table.name}${suffix}: unknown suffix ${suffix}; available: {', '.join(_list_suffixes(table))}"
    )


@validates_arguments()
class _View(Scannable):
    """A view whose rows are filtered after they are read."""

    def __init__(self, table: TableHandle, suffix: str) -> None:
        self._table = table
        self._suffix = suffix

    def __repr__(self) -> str:
        return f"View({self._table.name}${self._suffix}: {count_of(len(self.schema), 'column')})"

    @abstractmethod
    def _open(self) -> pa.RecordBatchReader:
        """Read the rows of the latest state."""

    def _open_columns(self, columns: Collection[str] | None) -> pa.RecordBatchReader:  # noqa: ARG002 - they are few
        """Read at least these columns of the rows, by default all."""
        return self._open()

    def scan(
        self, *, columns: Sequence[str] | None = None, filter: FilterLike | None = None, limit: int | None = None
    ) -> Scan:
        source = ViewSource(f"{self._table.name}${self._suffix}", self, self._open_columns)
        return Scan(source).scan(columns=columns, filter=filter, limit=limit)


class _SystemView(_View):
    @property
    def schema(self) -> pa.Schema:
        return SYSTEM_TABLES[self._suffix]

    def _open(self) -> pa.RecordBatchReader:
        return SystemTables(self._table.storage, self._table.refresh()).read(self._suffix).to_reader()


class _PartitionsView(_View):
    """Row counts of each partition, see `partitions_table`."""

    @property
    def schema(self) -> pa.Schema:
        from streamhouse_spark.table.partitions_table import partitions_schema

        return partitions_schema(self._table.refresh())

    def _open(self) -> pa.RecordBatchReader:
        from streamhouse_spark.table.partitions_table import count_partitions

        return count_partitions(self._table).to_reader()


class _ChangelogView(_View):
    """All changes with type, offset and commit time, see `changelog_batches`."""

    @property
    def schema(self) -> pa.Schema:
        return with_fields(CHANGELOG_FIELDS, self._table.refresh().schema.arrow)

    def _open(self) -> pa.RecordBatchReader:
        return self._open_columns(None)

    def _open_columns(self, columns: Collection[str] | None) -> pa.RecordBatchReader:
        state = self._table.refresh()
        read = state.schema.of_names(columns)
        batches = changelog_batches(self._table, state, read)
        return pa.RecordBatchReader.from_batches(with_fields(CHANGELOG_FIELDS, read.arrow), batches)


class _BinlogView(_View):
    """All changes with the row before and after, see `binlog_batches`."""

    @property
    def schema(self) -> pa.Schema:
        return binlog_schema(self._table.refresh().schema.arrow)

    def _open(self) -> pa.RecordBatchReader:
        state = self._table.refresh()
        schema = state.schema.arrow
        batches = binlog_batches(changelog_batches(self._table, state), schema)
        return pa.RecordBatchReader.from_batches(binlog_schema(schema), batches)


class _LakeMetadataView(_View):
    def __init__(self, table: TableHandle, suffix: str) -> None:
        from streamhouse_spark.table.lake import LakeView

        super().__init__(table, suffix)
        self._rows = LakeView(table).metadata(suffix.removeprefix(LAKE_PREFIX))

    @property
    def schema(self) -> pa.Schema:
        return self._rows.schema

    def _open(self) -> pa.RecordBatchReader:
        return self._rows.to_reader()


def changelog_batches(
    table: TableHandle, state: TableState, columns: TableSchema | None = None
) -> Iterator[pa.RecordBatch]:
    """Read all changes of a state by the state's columns or some of them, each bucket in offset order.

    A log table has inserts only, until rows are deleted or dropped with a partition. Then its changes start at the
    first commit after which all are retained, and the inserts come first. For a primary-key table these are the changes
    in the hot log and the archive, because the lake only has rows.

    Trimmed rows of a log table without deletions are read from the lake, with null commit times. Without a lake the
    changelog starts where the log does. Raises `OffsetsTrimmedError` if the lake does not hold trimmed rows, before the
    first row of that bucket.
    """
    from streamhouse_spark.read.change_feed.planning import plan_changelog_rows
    from streamhouse_spark.read.offset_scan import has_lost_rows
    from streamhouse_spark.read.scan_executor import read_batches  # loads the readers of both lake formats

    schema = columns or state.schema
    if has_lost_rows(state):
        commit_plan = ScanPlan(table.name, table.uuid, schema, plan_changelog_rows(table, state, state.version).tasks)
        yield from read_batches(table, commit_plan, CHANGELOG_FIELDS)
        return
    archive = usable_archive(state)
    for bucket, log in state.buckets.items():
        first = state.first_offset(bucket)
        log_task = LogScanTask(plan_range(state, bucket, log.offsets))
        tasks: list[ScanTask] = [*plan_archived_changes(state, archive, bucket), log_task]
        if log.start > first and state.lake is not None and not state.primary_key:
            tasks.insert(0, _plan_lake_task(table, state, bucket, OffsetRange(first, log.start)))
        plan = ScanPlan(table.name, table.uuid, schema, tuple(tasks))
        yield from read_batches(table, plan, CHANGELOG_FIELDS)


def _plan_lake_task(table: TableHandle, state: TableState, bucket: int, trimmed: OffsetRange) -> ScanTask:
    if not state.has_lake or state.lake_offset(bucket) < trimmed.end:
        raise OffsetsTrimmedError(
            f"{table.name}$changelog: offsets {trimmed} of bucket {bucket} were trimmed from the hot log and are not "
            "in the lake; table.tail(start='earliest') reads what the log holds",
        )
    return OffsetsScanTask(bucket, trimmed, 0)
