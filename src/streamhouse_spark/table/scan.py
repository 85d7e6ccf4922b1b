"""Lazy scans, which Arrow, pandas, polars, DuckDB or any other consumer of Arrow streams can read.

`Scannable` is what tables, views and scans have in common: the Arrow PyCapsule protocol
(https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html) and shortcuts for a scan's methods.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from streamhouse_spark.core.argument_validation import validates_arguments
from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.core.progress import track_rows
from streamhouse_spark.errors import (
    InvalidOptionError,
    MissingExtraError,
    SchemaMismatchError,
    SnapshotExpiredError,
    quote,
)
from streamhouse_spark.table_handle import TableHandle

if TYPE_CHECKING:
    import datafusion
    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow.dataset as ds

    from streamhouse_spark.expressions.filters import Filter, FilterLike, Projection
    from streamhouse_spark.log.state import TableState
    from streamhouse_spark.read.read_snapshot import ReadSnapshot
    from streamhouse_spark.read.scan_planning import ScanRequest, ScanSources
    from streamhouse_spark.schema.table_schema import TableSchema

HEAD_ROWS = 10
_ID_DIGITS_MAX = 20
"""The longest id of a lake snapshot; Python does not print much longer numbers."""

T = TypeVar("T")


class ArrowStream(Protocol):
    """An object with the Arrow C stream interface, such as a frame, table, reader or query result."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


RowsLike: TypeAlias = "ArrowStream | pd.DataFrame | Sequence[Mapping[str, Any]]"
"""Rows to write, as users give them."""


@validates_arguments()
class Scannable(ABC):
    """Rows that any library can read, for example DuckDB by the variable's name, or ``polars.DataFrame(orders)``."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns of the rows."""

    @abstractmethod
    def scan(
        self, *, columns: Sequence[str] | None = None, filter: FilterLike | None = None, limit: int | None = None
    ) -> Scan:
        """Return a lazy scan; see `Scan`."""

    def to_arrow(self, *, columns: Sequence[str] | None = None, filter: FilterLike | None = None) -> pa.Table:
        """Read all rows. ``columns`` and ``filter`` are as for `scan`."""
        return self.scan(columns=columns, filter=filter).to_arrow()

    def head(self, rows: int = HEAD_ROWS) -> pa.Table:
        """Read at most ``rows`` rows, in no particular order.

        >>> orders.head(1).num_rows
        1
        """
        return self.scan().limit(rows).to_arrow()

    def count(self, *, filter: FilterLike | None = None) -> int:
        """Count the rows, from metadata alone unless rows must be filtered, merged by key or checked for deletion.

        >>> orders.count()
        2
        """
        return self.scan(filter=filter).count()

    def to_pandas(self, *, columns: Sequence[str] | None = None, filter: FilterLike | None = None) -> pd.DataFrame:
        """Read all rows into a pandas frame. ``columns`` and ``filter`` are as for `scan`.

        >>> len(orders.to_pandas(filter="amount > 5"))
        1
        """
        return self.scan(columns=columns, filter=filter).to_pandas()

    def to_polars(self, *, columns: Sequence[str] | None = None, filter: FilterLike | None = None) -> pl.DataFrame:
        """Read all rows into a polars frame. ``columns`` and ``filter`` are as for `scan`.

        >>> orders.to_polars(columns=["id"]).shape
        (2, 1)
        """
        return self.scan(columns=columns, filter=filter).to_polars()

    def to_duckdb(self, name: str, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyConnection:
        """Register the rows as a view ``name`` of a DuckDB connection, by default a new one, and return the connection.

        Each query of the view reads the latest rows. The view keeps its columns: a query fails if one was dropped or
        has another type. Raises `MissingExtraError` without DuckDB, `InvalidOptionError` for an invalid name.

        >>> orders.to_duckdb("o").sql("SELECT sum(amount) FROM o").fetchall()
        [(13.5,)]
        """
        library = require_library("duckdb")
        if connection is not None and not isinstance(connection, library.DuckDBPyConnection):
            raise InvalidOptionError(f"connection is {quote(connection)}, expected a connection of DuckDB")
        to: duckdb.DuckDBPyConnection = library.connect() if connection is None else connection
        try:
            create_duckdb_view(to, name, self.scan())
        except library.Error as error:
            raise InvalidOptionError(f"name {quote(name)} cannot be a view of DuckDB: {error}; give another") from error
        return to

    def to_datafusion(self, name: str, context: datafusion.SessionContext | None = None) -> datafusion.SessionContext:
        """Register the rows as a table ``name`` of a DataFusion session, by default a new one, and return the session.

        Queries read the rows as with `to_duckdb`. Raises `MissingExtraError` without DataFusion.

        >>> orders.to_datafusion("o").sql("SELECT sum(amount) AS s FROM o").to_pylist()
        [{'s': 13.5}]
        """
        library = require_library("datafusion")
        if context is not None and not isinstance(context, library.SessionContext):
            raise InvalidOptionError(f"context is {quote(context)}, expected a SessionContext of DataFusion")
        to: datafusion.SessionContext = library.SessionContext() if context is None else context
        rows = self.to_arrow_dataset()
        if any(_has_floats(field.type) for field in rows.schema):  # as in `create_duckdb_view`
            to.register_dataset(f"{name}$rows", rows)
            terms = ", ".join(_select_terms(rows.schema))
            to.sql(f"CREATE VIEW {quote_name(name)} AS SELECT {terms} FROM {quote_name(name + '$rows')}")  # noqa: S608
        else:
            to.register_dataset(name, rows)
        return to

    def to_arrow_dataset(self) -> ds.Dataset:
        """Return the rows as a pyarrow dataset, for engines that push down columns and filters.

        Each scanner reads the latest rows, with the columns that the dataset had when it was made. Filters compare as
        Arrow does.

        >>> orders.to_arrow_dataset().to_table(columns=["id"], filter=pc.field("amount") > 5).to_pylist()
        [{'id': 1}]
        """
        from streamhouse_spark.table.arrow_dataset import ScanDataset  # imports pandas if installed

        return ScanDataset(FixedSchemaScan(self.scan()))

    def __arrow_c_schema__(self) -> object:
        return self.scan().schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.scan().to_arrow_batch_reader().__arrow_c_stream__(requested_schema)


class FixedSchemaScan:
    """A scan whose columns stay as they are now, for libraries that request the schema only once.

    If a column's type changed, DuckDB would otherwise read its bytes as values of the old type.
    """

    def __init__(self, scan: Scan) -> None:
        self.schema = scan.schema
        self.scan = scan.select(*self.schema.names)

    def __repr__(self) -> str:
        return repr(self.scan)

    @property
    def is_limited(self) -> bool:
        return self.scan.max_rows is not None

    def filtered(self, filter: FilterLike) -> FixedSchemaScan:
        return FixedSchemaScan(self.scan.filter(filter))

    def read(self, columns: Sequence[str] | None = None, filter: FilterLike | None = None) -> Iterator[pa.RecordBatch]:
        """Read columns of the rows that match a filter. The scan is planned when the first batch is requested."""
        yield from self.open(self.scan.scan(columns=columns, filter=filter))

    def open(self, scan: Scan) -> pa.RecordBatchReader:
        """Open a scan. Raises `SchemaMismatchError` if a column was dropped or its type differs from the schema."""
        reader = scan.to_arrow_batch_reader()
        for field in reader.schema:
            if field.type != (before := self.schema.field(field.name).type):
                raise SchemaMismatchError(
                    f"column '{field.name}' is {field.type}, but was {before} when the query or view was created; "
                    "create it again"
                )
        return reader

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.open(self.scan).__arrow_c_stream__(requested_schema)


def create_duckdb_view(connection: duckdb.DuckDBPyConnection, name: str, scan: Scan) -> None:
    """Create a temporary view, each query of which reads the scan again. Raises DuckDB's errors for the name.

    DuckDB pushes columns and filters down to the dataset, which evaluates the filters as Arrow does. For Arrow, no
    comparison with NaN holds, while DuckDB orders NaN above all numbers. So columns with floating-point numbers are
    hidden from such filters.
    """
    from streamhouse_spark.table.arrow_dataset import ScanDataset  # imports pandas if installed

    rows = ScanDataset(FixedSchemaScan(scan))
    if any(_has_floats(field.type) for field in rows.schema):
        connection.from_arrow(rows).project(", ".join(_select_terms(rows.schema))).create_view(name, replace=True)
    else:
        connection.register(name, rows)


def _select_terms(schema: pa.Schema) -> Iterator[str]:
    """Return SQL terms of all columns. Those with floating-point numbers are expressions, which hides the columns."""
    for field in schema:
        name = quote_name(field.name)
        yield f"coalesce({name}, NULL) AS {name}" if _has_floats(field.type) else name


def quote_name(name: str) -> str:
    """Quote a name for DuckDB and DataFusion."""
    return '"' + name.replace('"', '""') + '"'


def _has_floats(data_type: pa.DataType) -> bool:
    if pa.types.is_nested(data_type):
        return any(_has_floats(data_type.field(place).type) for place in range(data_type.num_fields))
    return bool(pa.types.is_floating(data_type))


class RowSource(ABC):
    """What a scan reads: a table, a version of a table, or a view."""

    name: str

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """All columns, as of the latest state."""

    @abstractmethod
    def open(self, scan: Scan) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the scan's columns and the rows that match its filters, in bounded memory except for system tables."""

    def read(self, scan: Scan) -> pa.Table:
        """Read all rows that match the scan's filters."""
        schema, batches = self.open(scan)
        return pa.Table.from_batches(batches, schema)

    def count_by_metadata(self) -> int | None:
        """Count all rows by metadata; None if they must be read."""
        return None

    def plan(self, scan: Scan) -> ScanSummary:  # noqa: ARG002 - a view's plan does not depend on the filter
        raise InvalidOptionError("a view has no plan: its rows are read and then filtered; plan a scan of the table")


@dataclass(frozen=True, slots=True)
class ScanSummary:
    """What a scan will read. Skipped segments have no row that can match the filter, by their statistics."""

    table: str
    version: int
    """The commit that is read."""
    lake_snapshot_id: int | None
    lake_files: tuple[str, ...]
    lake_bytes: int
    log_segments: int
    log_bytes: int
    """The estimated size of the hot log's rows in memory."""
    skipped_segments: int
    rows: int | None
    """The number of rows before filters; None if they must be read."""

    def __str__(self) -> str:
        lake = f"snapshot {self.lake_snapshot_id}" if self.lake_snapshot_id is not None else "no snapshot"
        return (
            f"Scan of {self.table} at commit {self.version}\n"
            f"  lake: {lake}, {len(self.lake_files):,} files, {self.lake_bytes:,} bytes\n"
            f"  log:  {self.log_segments:,} segments, {self.log_bytes:,} bytes, {self.skipped_segments:,} skipped\n"
            f"  rows: {'unknown before reading' if self.rows is None else f'{self.rows:,} at most'}"
        )


@validates_arguments()
@dataclass(frozen=True, slots=True, eq=False)
class Scan(Scannable):
    """A lazy read. `select`, `filter` and `limit` return another scan; the other methods read rows.

    Each read takes the latest state, unless the scan has a version, and sees this one state from start to end.
    """

    source: RowSource
    columns: tuple[str, ...] | None = None
    """The columns to return, in order; None for all."""
    filters: tuple[FilterLike, ...] = ()
    """Filters as the caller passed them, which must all hold."""
    max_rows: int | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns of the result. Raises `SchemaMismatchError` for an unknown column."""
        from streamhouse_spark.expressions.filters import filter_and_project

        return filter_and_project(self.source.schema.empty_table(), self.columns, None).schema

    def __repr__(self) -> str:
        filters = "".join(f", filter {quote(condition)}" for condition in self.filters)
        limit = "" if self.max_rows is None else f", limit {self.max_rows}"
        return f"Scan({self.source.name}: {'*' if self.columns is None else ', '.join(self.columns)}{filters}{limit})"

    def scan(
        self, *, columns: Sequence[str] | None = None, filter: FilterLike | None = None, limit: int | None = None
    ) -> Scan:
        """Return a scan with these columns, an additional filter and a limit."""
        scan = self if columns is None else replace(self, columns=tuple(columns))
        scan = scan if filter is None else scan.filter(filter)
        return scan if limit is None else scan.limit(limit)

    def select(self, *columns: str) -> Scan:
        """Return a scan of only these columns, in this order."""
        return replace(self, columns=columns)

    def filter(self, condition: FilterLike) -> Scan:
        """Return a scan of only the rows that also match the condition.

        ``condition`` is SQL text such as ``"amount > 5 AND day = 'mon'"``, a ``pyarrow.compute`` expression, a list of
        ``(column, operator, value)`` that must all hold, or a list of such lists, one of which must hold, as in pyarrow
        and pandas. It skips lake files and log segments without matching rows. Null matches no comparison, as in SQL.

        >>> orders.scan().filter([[("amount", ">", 5), ("day", "=", "mon")], [("id", "in", [2, 3])]]).count()
        2
        """
        return replace(self, filters=(*self.filters, condition))

    def limit(self, rows: int) -> Scan:
        """Return a scan of at most ``rows`` of the rows that match all filters, in no particular order."""
        if rows < 0:
            raise InvalidOptionError(f"limit is {rows}, expected at least 0")
        return replace(self, max_rows=rows if self.max_rows is None else min(rows, self.max_rows))

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """Return a reader of Arrow batches, which holds a few of them in memory. Lake rows come first.

        Raises `SchemaMismatchError` for an unknown column and `InvalidOptionError` for an invalid filter; while rows
        are read, also `SnapshotExpiredError`, `OffsetsTrimmedError` and `CorruptDataError`.
        """
        return pa.RecordBatchReader.from_batches(*self._open())

    def _open(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        schema, batches = self.source.open(self)
        return schema, batches if self.max_rows is None else _take(batches, self.max_rows)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Iterate over Arrow batches. Errors are those of `to_arrow_batch_reader`."""
        yield from self.to_arrow_batch_reader()

    def to_arrow(self, *, columns: Sequence[str] | None = None, filter: FilterLike | None = None) -> pa.Table:
        """Read all rows, lake files in parallel. Lake rows come first. ``columns`` and ``filter`` are as for `scan`."""
        scan = self.scan(columns=columns, filter=filter)
        return scan.source.read(scan) if scan.max_rows is None else scan.to_arrow_batch_reader().read_all()

    def to_pandas(self, *, columns: Sequence[str] | None = None, filter: FilterLike | None = None) -> pd.DataFrame:
        """Read all rows into a pandas frame. Raises `MissingExtraError` without pandas."""
        require_library("pandas")
        frame: pd.DataFrame = self.to_arrow(columns=columns, filter=filter).to_pandas()
        return frame

    def to_polars(self, *, columns: Sequence[str] | None = None, filter: FilterLike | None = None) -> pl.DataFrame:
        """Read all rows into a polars frame. Raises `MissingExtraError` without polars."""
        library = require_library("polars")
        frame: pl.DataFrame = library.from_arrow(self.to_arrow(columns=columns, filter=filter), rechunk=False)
        return frame

    def count(self, *, filter: FilterLike | None = None) -> int:
        """Count the rows, from metadata alone if that is exact. With a limit, no more rows than these are read."""
        if filter is not None:
            return self.filter(filter).count()
        num_rows = None if self.filters else self.source.count_by_metadata()
        if num_rows is None:
            batches = replace(self, columns=())._open()[1]  # noqa: SLF001 - our own
            num_rows = sum(batch.num_rows for batch in track_rows(batches, f"count {self.source.name}", None))
        return num_rows if self.max_rows is None else min(num_rows, self.max_rows)

    def plan(self) -> ScanSummary:
        """Plan the scan and return what it will read. Raises `InvalidOptionError` for a view."""
        return self.source.plan(self)

    def explain(self) -> str:
        """Return the plan as text."""
        return str(self.plan())


class VersionedSource(RowSource):
    """Rows in lake files and log segments; a scan is planned before they are read."""

    def __init__(self, table: TableHandle, version: int | str | None = None, timestamp_ms: int | None = None) -> None:
        if version is not None and timestamp_ms is not None:
            raise InvalidOptionError("a scan has both version and timestamp_ms; give one of them")
        self._table = table
        self._version = version
        self._timestamp_ms = timestamp_ms

    @property
    def name(self) -> str:  # type: ignore[override]
        version = "" if self._version is None else f" at version {quote(self._version)}"
        return f"{self._table.name}{version}" + ("" if self._timestamp_ms is None else f" at {self._timestamp_ms} ms")

    @property
    def is_of_version(self) -> bool:
        """Whether the user chose the version, so that the read must not use another one."""
        return self._version is not None or self._timestamp_ms is not None

    @abstractmethod
    def read_planned(self, scan: Scan, read: Callable[[PlannedScan], T]) -> T:
        """Plan a scan and read it. If its lake snapshot expires meanwhile, try again with another snapshot."""

    def open(self, scan: Scan) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        from streamhouse_spark.read.scan_executor import read_batches  # loads the readers of both lake formats

        def read(planned: PlannedScan) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
            projection = planned.projection
            plan = planned.sources.plan(planned.table)
            batches = read_batches(planned.table, plan, filter=projection.filter, node=projection.node, threads=True)
            first = next(batches, None)  # fails here if the snapshot expired, so that another one can be read
            return projection.schema, map(projection.finish, chain(() if first is None else (first,), batches))

        return self.read_planned(scan, read)

    def read(self, scan: Scan) -> pa.Table:
        from streamhouse_spark.read.scan_executor import read_tables

        def read(planned: PlannedScan) -> pa.Table:
            projection = planned.projection
            plan = planned.sources.plan(planned.table)
            tables = read_tables(planned.table, plan, filter=projection.filter, node=projection.node)
            total = None if scan.filters else planned.sources.count_rows()
            tables = track_rows(tables, f"read {self.name}", total, planned.table.world.clock)
            return projection.joined([projection.finish(rows) for rows in tables])

        return self.read_planned(scan, read)

    def count_by_metadata(self) -> int | None:
        return self.read_planned(Scan(self, columns=()), lambda planned: planned.sources.count_rows())

    def plan(self, scan: Scan) -> ScanSummary:
        from streamhouse_spark.read.scan_tasks import count_segments, log_splits

        def read(planned: PlannedScan) -> ScanSummary:
            sources = planned.sources
            plan, files = sources.plan(planned.table), sources.lake.files if sources.lake is not None else ()
            return ScanSummary(
                planned.table.name,
                sources.state.version,
                sources.lake.snapshot.id if sources.lake is not None else None,
                tuple(file.location for file in files),
                sum(file.size_bytes for file in files),
                count_segments(plan),
                sum(split.size_bytes for split in log_splits(plan)),
                planned.request.pruning.num_skipped,
                sources.count_rows(),
            )

        return self.read_planned(scan, read)


@dataclass(frozen=True, slots=True)
class PlannedScan:
    table: TableHandle
    """The table that had the name at the version."""
    projection: Projection
    request: ScanRequest
    sources: ScanSources


class TableSource(VersionedSource):
    """The union read of a table: its latest state, a version (a commit number or a tag), or the state at a time."""

    @property
    def schema(self) -> pa.Schema:
        return self._snapshot()[1].state.schema.arrow

    def read_planned(self, scan: Scan, read: Callable[[PlannedScan], T]) -> T:
        from streamhouse_spark.read.scan_planning import ScanRequest, plan_scan
        from streamhouse_spark.read.snapshot_fallback import InitialSchema, read_with_fallback

        table, initial = self._snapshot()
        projection = _project(scan, initial.state.schema)

        def read_snapshot(snapshot: ReadSnapshot) -> T:
            request = ScanRequest.of(projection)
            return read(PlannedScan(table, projection, request, plan_scan(table, snapshot, request)))

        if self.is_of_version:
            return read_snapshot(initial)
        return read_with_fallback(table, initial, InitialSchema(projection.read_columns), read_snapshot)

    def _snapshot(self) -> tuple[TableHandle, ReadSnapshot]:
        """Return the read snapshot, and the table that had the name then."""
        from streamhouse_spark.read.read_snapshot import take_latest_snapshot
        from streamhouse_spark.read.time_travel import table_as_of, take_historical_snapshot

        state = self._table.refresh()
        if self._version is not None:
            from streamhouse_spark.table.versioning.rollback import snapshot_of_version

            return self._table, snapshot_of_version(self._table, self._version)
        if self._timestamp_ms is not None:
            table, state = table_as_of(self._table, state, self._timestamp_ms)
            return table, take_historical_snapshot(table, state, self._timestamp_ms)
        return self._table, take_latest_snapshot(state)


class LakeSource(VersionedSource):
    """The rows of a lake snapshot: the latest, the one of an id, tag or branch of the lake, or that of a time."""

    def __init__(self, table: TableHandle, version: int | str | None = None, timestamp_ms: int | None = None) -> None:
        super().__init__(table, version, timestamp_ms)
        if version is not None and (isinstance(version, bool) or not isinstance(version, int | str | np.integer)):
            raise InvalidOptionError(
                f"version of {table.name}$lake is {quote(version)}, expected the id of a snapshot, a tag or a branch"
            )

    @property
    def name(self) -> str:  # type: ignore[override]
        return super().name.replace(self._table.name, f"{self._table.name}$lake", 1)

    @property
    def schema(self) -> pa.Schema:
        return self._table.refresh().schema.arrow

    def read_planned(self, scan: Scan, read: Callable[[PlannedScan], T]) -> T:
        from streamhouse_spark.read.scan_planning import ScanRequest, ScanSources, scan_lake
        from streamhouse_spark.read.snapshot_fallback import FALLBACKS_MAX

        table, state = self._table, self._table.refresh()
        projection = _project(scan, state.schema)
        for attempt in count():
            try:
                request = ScanRequest.of(projection)
                with table.open_lake().cache_metadata_for_round():
                    snapshot_id = self._find_snapshot(state)
                    lake = None if snapshot_id is None else scan_lake(table, state, snapshot_id, request)
                return read(PlannedScan(table, projection, request, ScanSources(state, request.schema(state), lake)))
            except SnapshotExpiredError:
                if self.is_of_version or attempt == FALLBACKS_MAX:
                    raise
        raise AssertionError

    def _find_snapshot(self, state: TableState) -> int | None:
        """Return the snapshot's id; None before the first tiering round."""
        from streamhouse_spark.lake.snapshot_history import require_metadata

        lake, version = self._table.open_lake().with_state(state), self._version
        if self._timestamp_ms is not None:
            return lake.snapshot_as_of(self._timestamp_ms).id
        if isinstance(version, str) and not (version.strip().isdecimal() and len(version) < _ID_DIGITS_MAX):
            return lake.snapshot_by_name(version.strip()).id
        if version is not None:
            return lake.snapshot(max(-1, min(int(version), 10**_ID_DIGITS_MAX))).id
        newest = lake.newest()
        require_metadata(state, lake, newest)
        return None if newest is None else newest.id


class _HasSchema(Protocol):
    @property
    def schema(self) -> pa.Schema: ...


class ViewSource(RowSource):
    """A view, whose rows are filtered after they are read.

    ``open_reader`` receives the columns that the scan needs, or None for all, and may return more.
    """

    def __init__(
        self, name: str, rows: _HasSchema, open_reader: Callable[[Collection[str] | None], pa.RecordBatchReader]
    ) -> None:
        self.name = name
        self._rows = rows
        self._open_reader = open_reader

    @property
    def schema(self) -> pa.Schema:
        return self._rows.schema

    def open(self, scan: Scan) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        from streamhouse_spark.expressions.filters import filter_and_project
        from streamhouse_spark.expressions.where import combine_filters

        filter_ = combine_filters(scan.filters)
        reader = self._open_reader(self._find_columns(scan, filter_))
        schema = filter_and_project(reader.schema.empty_table(), scan.columns, filter_).schema
        tables = (filter_and_project(pa.Table.from_batches([batch]), scan.columns, filter_) for batch in reader)
        return schema, (batch for table in tables for batch in table.to_batches())

    def _find_columns(self, scan: Scan, filter_: Filter | None) -> Collection[str] | None:
        bound = None if filter_ is None else filter_.bind(self.schema)
        if scan.columns is None or (bound is not None and bound.columns is None):
            return None
        return {*scan.schema.names, *(bound.columns or () if bound is not None else ())}


def _project(scan: Scan, schema: TableSchema) -> Projection:
    from streamhouse_spark.expressions.filters import Projection
    from streamhouse_spark.expressions.where import combine_filters

    return Projection.of(schema, scan.columns, combine_filters(scan.filters))


def _take(batches: Iterator[pa.RecordBatch], max_rows: int) -> Iterator[pa.RecordBatch]:
    remaining = max_rows
    while remaining > 0 and (batch := next(batches, None)) is not None:
        yield batch.slice(0, remaining)
        remaining -= batch.num_rows


def require_library(library: str) -> Any:
    from importlib import import_module

    try:
        return import_module(library)
    except ImportError as error:
        raise MissingExtraError(f"this needs {library}, which is not installed: pip install {library}") from error
