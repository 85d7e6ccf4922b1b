"""Scans of the changes of a range of commits: `Table.changes` and `Table.incremental_append_scan`."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.log.history import require_retained_segments
from streamhouse_spark.log.segments.metadata_columns import CHANGE_TYPE, CHANGES_FIELDS
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.scan_planning import Pruning
from streamhouse_spark.read.scan_tasks import LogScanTask, ScanPlan
from streamhouse_spark.schema.table_schema import TableSchema, require_distinct_names
from streamhouse_spark.table.scan import Scan, ViewSource
from streamhouse_spark.table.versioning.tags import resolve_version
from streamhouse_spark.table_handle import TableHandle

Version = int | str
"""A commit number or a tag."""


def scan_changes(table: TableHandle, from_exclusive: Version, to_inclusive: Version | None) -> Scan:
    """Return a scan of all changes; see `Table.changes`."""
    rows = _CommitRows(table, from_exclusive, to_inclusive)
    return Scan(ViewSource(f"{table.name} CHANGES", rows, rows.open))


def scan_appends(table: TableHandle, from_exclusive: Version, to_inclusive: Version | None) -> Scan:
    """Return a scan of the appended rows; see `Table.incremental_append_scan`."""
    if table.state.primary_key:
        raise InvalidOptionError(
            f"table {table.name} has a primary key, so its commits also update and delete rows; read them with "
            "changes(from_exclusive, to_inclusive)"
        )
    rows = _CommitRows(table, from_exclusive, to_inclusive, only_appends=True)
    return Scan(ViewSource(f"{table.name} APPENDS", rows, rows.open))


@dataclass(frozen=True, slots=True)
class _CommitRows:
    table: TableHandle
    from_exclusive: Version
    to_inclusive: Version | None
    only_appends: bool = False

    @property
    def schema(self) -> pa.Schema:
        return self._fields(self.table.refresh().schema)

    def _fields(self, columns: TableSchema) -> pa.Schema:
        return columns.arrow if self.only_appends else pa.schema([*columns.arrow, *CHANGES_FIELDS])

    def open(self, columns: Collection[str] | None) -> pa.RecordBatchReader:
        """Read at least these columns of the rows."""
        from streamhouse_spark.read.change_feed.planning import plan_changes, require_full_changelog
        from streamhouse_spark.read.scan_executor import read_batches  # loads the readers of both lake formats

        state = self.table.refresh()
        require_full_changelog(state)
        added = [] if self.only_appends else [field.name for field in CHANGES_FIELDS]
        require_distinct_names(state.schema.names, added, f"the changes of {state.name}")
        span = resolve_version_range(state, self.from_exclusive, self.to_inclusive, includes=(False, True))
        changes = plan_changes(self.table, state, *span, Pruning())
        tasks = tuple(task for task in changes.tasks if not (self.only_appends and task.is_deleted))
        logs = (task.rows for task in tasks if isinstance(task.rows, LogScanTask))
        require_retained_segments(
            self.table.log, changes.state, (segment for rows in logs for segment in rows.split.segments)
        )
        read = state.schema.of_names(columns, also=state.primary_key)
        plan = ScanPlan(self.table.name, self.table.uuid, read, tasks)
        batches = read_batches(self.table, plan, (CHANGE_TYPE,) if self.only_appends else CHANGES_FIELDS)
        fields = self._fields(read)
        appended = _keep_appends(batches) if self.only_appends else batches
        return pa.RecordBatchReader.from_batches(fields, (batch.select(fields.names) for batch in appended))


def _keep_appends(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return only inserts, without the new rows of updates."""
    for batch in batches:
        yield batch.filter(pc.equal(batch.column(0), "insert"))


def resolve_version_range(
    state: TableState, start: Version, end: Version | None, *, includes: tuple[bool, bool]
) -> tuple[int, int]:
    """Return the first and last commit between two versions, which are numbers or tags. Version 0 precedes all commits.

    ``includes``: whether the start and the end are part of the range.
    Raises `InvalidOptionError` for an unknown version, and for a range that ends before it starts.
    """
    first = _require_version(state, start)
    last = state.version if end is None else _require_version(state, end)
    if end is not None and last < first:
        raise InvalidOptionError(
            f"CHANGES of {state.name}: version {last} is before version {first}; swap the two versions"
        )
    return first + (not includes[0]), last - (end is not None and not includes[1])


def _require_version(state: TableState, version: Version) -> int:
    number = resolve_version(state, version)
    if number > state.version:
        raise InvalidOptionError(
            f"{state.name} has no version {number}: the newest is {state.version}; choose one from {state.name}$history"
        )
    return number
