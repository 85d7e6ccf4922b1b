"""Read-only views of a table, which are named by a ``$`` suffix, and `Inspect`, which reads system tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa

from streamhouse_spark.core.argument_validation import validates_arguments
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import InvalidNameError, InvalidOptionError, OffsetsTrimmedError, count_of
from streamhouse_spark.log.archive.pages import find_usable_archive
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
    """The system tables of a table; see `Table.inspect`. Each method reads the latest state."""

    def __init__(self, table: TableHandle) -> None:
        self._table = table

    def __repr__(self) -> str:
        return f"Inspect({self._table.name})"

    def read(self, name: str) -> pa.Table:
        """Return the system table ``$<name>``. Raises `InvalidNameError` for an unknown name."""
        return SystemTables(self._table.storage, self._table.refresh()).read(name)

    def buckets(self) -> pa.Table:
        """Return the start and end of the log, the lake offset and the lag of each bucket."""
        return self.read("buckets")

    def segments(self) -> pa.Table:
        """Return the live segments of the hot log. ``file`` is null for inline rows."""
        return self.read("segments")

    def commits(self) -> pa.Table:
        """Return the retained commit records, oldest first."""
        return self.read("commits")

    def history(self, limit: int | None = None) -> pa.Table:
        """Return the latest ``limit`` commits, or all that are retained, with operation and author, oldest first.

        Raises `InvalidOptionError` for an invalid limit.
        """
        if limit is not None and limit < 1:
            raise InvalidOptionError(f"limit is {limit}, expected at least 1")
        return SystemTables(self._table.storage, self._table.refresh(), limit).read("history")

    def partitions(self) -> pa.Table:
        """Return the number of rows of each partition in log and lake. The first columns are the partition columns.

        Raises `InvalidNameError` for an unpartitioned table.
        """
        return open_view(self._table, PARTITIONS).to_arrow()

    def lineage(self) -> pa.Table:
        """Return the source versions of each refresh of a materialized table, oldest first."""
        return self.read("lineage")

    def refs(self) -> pa.Table:
        """Return the named versions: the latest as ``main``, then tags and branches."""
        return self.read("refs")

    def schemas(self) -> pa.Table:
        """Return the current and earlier columns, as Spark DDL."""
        return self.read("schemas")

    def options(self) -> pa.Table:
        """Return the properties of the table."""
        return self.read("options")

    def tiering(self) -> pa.Table:
        """Return the offsets of each bucket in the recorded lake snapshots."""
        return self.read("tiering")


def open_view(table: TableHandle, suffix: str) -> Scannable:
    """Open the view of a suffix. Raises `InvalidNameError` with the supported suffixes for any other suffix."""
    if suffix in SYSTEM_TABLES:
        return _View(
            table,
            suffix,
            lambda: SYSTEM_TABLES[suffix],
            lambda _: SystemTables(table.storage, table.refresh()).read(suffix).to_reader(),
        )
    if suffix == CHANGELOG:
        return _View(
            table,
            suffix,
            lambda: with_fields(CHANGELOG_FIELDS, table.refresh().schema.arrow),
            lambda columns: _open_changelog(table, columns),
        )
    if suffix == BINLOG and table.state.primary_key:
        return _View(table, suffix, lambda: binlog_schema(table.refresh().schema.arrow), lambda _: _open_binlog(table))
    if suffix == PARTITIONS and table.state.partition_by:
        from streamhouse_spark.table.partitions_table import count_partitions, partitions_schema

        return _View(
            table, suffix, lambda: partitions_schema(table.refresh()), lambda _: count_partitions(table).to_reader()
        )
    if suffix == LAKE or suffix.startswith(LAKE_PREFIX):
        if not table.has_lake:
            raise InvalidNameError(
                f"{table.name}${suffix}: table {table.name} has no lake (table.datalake.enabled is false); "
                f"available: {', '.join(_list_suffixes(table))}",
            )
        require_no_branch(table.state, "reading the lake alone")
        from streamhouse_spark.table.lake import LakeView

        if suffix == LAKE:
            return LakeView(table)
        rows = LakeView(table).metadata(suffix.removeprefix(LAKE_PREFIX))
        return _View(table, suffix, lambda: rows.schema, lambda _: rows.to_reader())
    _reject(table, suffix)


def _list_suffixes(table: TableHandle) -> list[str]:
    changes = (CHANGELOG, BINLOG) if table.state.primary_key else (CHANGELOG,)
    partitions = (PARTITIONS,) if table.state.partition_by else ()
    own = [f"${name}" for name in (*changes, *SYSTEM_TABLES, *partitions)]
    return ["$lake", "$lake$snapshots", "$lake$files", *own] if table.has_lake else own


def _reject(table: TableHandle, suffix: str) -> NoReturn:
    if suffix == BINLOG:
        raise InvalidNameError(f"{table.name}${suffix}: only primary-key tables have ${suffix}; use $changelog")
    if suffix == PARTITIONS:
        raise InvalidNameError(
            f"{table.name}${suffix}: the table is not partitioned by columns; use $buckets to see where its rows are"
        )
    raise InvalidNameError(
        f"{table.name}${suffix}: unknown suffix ${suffix}; available: {', '.join(_list_suffixes(table))}"
    )


@validates_arguments()
class _View(Scannable):
    """A view whose rows are filtered after they are read. ``open_reader`` is as for `ViewSource`.

    Another process that unpickles it opens the view of the same name.
    """

    def __init__(
        self,
        table: TableHandle,
        suffix: str,
        read_schema: Callable[[], pa.Schema],
        open_reader: Callable[[Collection[str] | None], pa.RecordBatchReader],
    ) -> None:
        self._table = table
        self._suffix = suffix
        self._name = f"{table.name}${suffix}"
        self._read_schema = read_schema
        self._open_reader = open_reader

    def __reduce__(self) -> tuple[Callable[..., Scannable], tuple[TableHandle, str]]:
        return open_view, (self._table, self._suffix)

    def __repr__(self) -> str:
        return f"View({self._name}: {count_of(len(self.schema), 'column')})"

    @property
    def schema(self) -> pa.Schema:
        return self._read_schema()

    def scan(
        self, *, columns: Sequence[str] | None = None, filter: FilterLike | None = None, limit: int | None = None
    ) -> Scan:
        return Scan(ViewSource(self._name, self, self._open)).scan(columns=columns, filter=filter, limit=limit)

    def _open(self, columns: Collection[str] | None) -> pa.RecordBatchReader:
        """Read at least these columns, by default all. A method, so that a scan can be pickled."""
        return self._open_reader(columns)


def _open_changelog(table: TableHandle, columns: Collection[str] | None) -> pa.RecordBatchReader:
    state = table.refresh()
    read = state.schema.of_names(columns)
    schema = with_fields(CHANGELOG_FIELDS, read.arrow)
    return pa.RecordBatchReader.from_batches(schema, changelog_batches(table, state, read))


def _open_binlog(table: TableHandle) -> pa.RecordBatchReader:
    state = table.refresh()
    batches = binlog_batches(changelog_batches(table, state), state.schema.arrow)
    return pa.RecordBatchReader.from_batches(binlog_schema(state.schema.arrow), batches)


def changelog_batches(
    table: TableHandle, state: TableState, columns: TableSchema | None = None
) -> Iterator[pa.RecordBatch]:
    """Read all retained changes, with all columns of ``state`` or those of ``columns``, each bucket in offset order.

    In a log table without deleted or dropped rows, all changes are inserts. Trimmed rows are read from the lake, with
    null commit times; without a lake the changelog starts at the log start offset. If rows were deleted or dropped, the
    changelog starts at the commit since which all changes are retained, with the inserts first. The changes of a
    primary-key table are in the log and the archive, because the lake has only rows.

    Raises `OffsetsTrimmedError`, before the first row of the bucket, if trimmed rows are missing from the lake.
    """
    from streamhouse_spark.read.change_feed.planning import plan_changelog_rows
    from streamhouse_spark.read.offset_scan import has_lost_rows
    from streamhouse_spark.read.scan_executor import read_batches  # loads the readers of both lake formats

    schema = columns or state.schema
    if has_lost_rows(state):
        commit_plan = ScanPlan(table.name, table.uuid, schema, plan_changelog_rows(table, state, state.version).tasks)
        yield from read_batches(table, commit_plan, CHANGELOG_FIELDS)
        return
    archive = find_usable_archive(state)
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
            "in the lake; use table.tail(start='earliest') to read the log alone",
        )
    return OffsetsScanTask(bucket, trimmed, 0)
