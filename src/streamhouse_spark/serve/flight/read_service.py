"""Bulk reads of a pinned table state, divided into parts that any server of the warehouse can read.

A ticket identifies a part by the request, its commit and a digest of the whole plan. A server without the plan plans
the commit again, and reads the part only if the digest is equal. So the parts of an offer together contain each row of
one state exactly once, even if several servers read them. Rows are read as they are sent: memory holds one batch, and
for a primary-key table also the changes of the bucket that are not tiered yet.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa

from streamhouse_spark.core.concurrency import new_lock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import TableName
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.errors import InvalidOptionError, SnapshotExpiredError
from streamhouse_spark.expressions.filters import Filter, Projection, filter_and_project, parse_filter
from streamhouse_spark.expressions.where import parse_where
from streamhouse_spark.log.segments.metadata_columns import CHANGELOG_FIELDS, with_fields
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.change_rows import binlog_batches, binlog_schema
from streamhouse_spark.read.read_snapshot import ReadSnapshot, take_latest_snapshot
from streamhouse_spark.read.scan_executor import read_batches
from streamhouse_spark.read.scan_planning import ScanRequest, plan_lake, plan_scan
from streamhouse_spark.read.scan_tasks import ScanPlan
from streamhouse_spark.read.snapshot_fallback import InitialSchema, read_with_fallback
from streamhouse_spark.read.split_planning import split_plan
from streamhouse_spark.serve.app_context import OpenTables
from streamhouse_spark.serve.flight.requests import ReadRequest, ReadTicket
from streamhouse_spark.table.system_views import BINLOG, CHANGELOG, LAKE, changelog_batches, open_view
from streamhouse_spark.table.table import Table
from streamhouse_spark.table.versioning.rollback import snapshot_of_version

BATCH_BYTES: Final = 2 << 20
"""Approximate bytes of a batch. Some gRPC clients accept at most 4 MiB by default."""
BATCH_ROWS: Final = 1 << 16
_PLANS_CACHED_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class FlightReadPlan:
    """A planned read: the tickets of its parts, which together contain each row exactly once."""

    schema: pa.Schema
    tickets: tuple[ReadTicket, ...]
    num_rows: int | None = None
    """None if unknown before the read."""
    num_bytes: int | None = None
    """Bytes of the files to read."""
    version: int | None = None
    """The pinned commit."""


@dataclass(frozen=True, slots=True)
class RowStream:
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    """Read lazily. Raises `SnapshotExpiredError`, `OffsetsTrimmedError` and `CorruptDataError`."""


@dataclass(frozen=True, slots=True)
class _PinnedRead:
    """A request with its pinned commit or lake snapshot, and the whole plan."""

    request: ReadRequest
    projection: Projection
    plan: ScanPlan
    state: TableState | None
    """The pinned state; None for a read of the lake."""


@dataclass(frozen=True, slots=True)
class _PlannedRead:
    table: Table
    pinned: _PinnedRead
    parts: tuple[ScanPlan, ...]
    digest: str

    @property
    def request(self) -> ReadRequest:
        return self.pinned.request

    def make_plan(self) -> FlightReadPlan:
        request, state = self.request, self.pinned.state
        numbers = range(len(self.parts))
        num_rows = count_rows(state) if state is not None and request.where is None else None
        if num_rows is not None and request.limit is not None:
            num_rows = min(num_rows, request.limit)
        return FlightReadPlan(
            self.pinned.projection.schema,
            tuple(ReadTicket(request, self.table.uuid, self.digest, number) for number in numbers),
            num_rows,
            sum(piece.size_bytes for part in self.parts for piece in part.tasks),
            state.version if state is not None else None,
        )

    def rows(self, part: ScanPlan) -> RowStream:
        projection = self.pinned.projection
        batches = read_batches(self.table, part, filter=projection.filter, node=projection.node)
        finished = (projection.finish(pa.Table.from_batches([batch])) for batch in batches)
        return RowStream(projection.schema, _limit_rows(_slice_batches(finished), self.request.limit))


class FlightReadService:
    """Plans and executes reads. Safe for threads. The caller must check the right to read the table."""

    def __init__(self, tables: OpenTables) -> None:
        self._tables = tables
        self._lock = new_lock()
        self._plans: OrderedDict[str, _PlannedRead] = OrderedDict()

    def schema(self, request: ReadRequest) -> pa.Schema:
        """Return the columns of the requested rows. Raises the errors of `plan_read`."""
        table, name = self._open_table(request)
        if name.suffix not in (None, LAKE):
            shown = open_view(table, name.suffix or "").schema
        else:
            shown = (_take_snapshot(table, request).state if name.suffix is None else table.state).schema.arrow
        _parse_filter(request, shown)
        return filter_and_project(shown.empty_table(), request.columns, None).schema

    def plan_read(self, request: ReadRequest) -> FlightReadPlan:
        """Pin the requested state, plan the read, and divide the plan into parts.

        Raises `TableNotFoundError`, `InvalidNameError`, `InvalidOptionError` and `SchemaMismatchError`; for an expired
        version `SnapshotExpiredError` or `OffsetsTrimmedError`.
        """
        table, name = self._open_table(request)
        if name.suffix not in (None, LAKE):
            return FlightReadPlan(self.schema(request), (ReadTicket(request),))
        planned = _plan_read(table, name, request)
        self._cache_plan(planned)
        return planned.make_plan()

    def rows(self, ticket: ReadTicket) -> RowStream:
        """Start to read a part of an offer, or all rows of the latest state.

        Raises the errors of `plan_read`, and `SnapshotExpiredError` if the part is no longer readable.
        """
        request = ticket.request
        table, name = self._open_table(request)
        if name.suffix not in (None, LAKE):
            return _read_view(table, name.suffix or "", request)
        if ticket.part is None:
            whole = _plan_read(table, name, replace(request, parts=1))
            return whole.rows(whole.parts[0])
        planned = self._find_plan(table, name, ticket)
        if not 0 <= ticket.part < len(planned.parts):
            raise InvalidOptionError(
                f"the ticket is for part {ticket.part} of {len(planned.parts)} of {table.name}; request the flight "
                "info again"
            )
        return planned.rows(planned.parts[ticket.part])

    def _find_plan(self, table: Table, name: TableName, ticket: ReadTicket) -> _PlannedRead:
        """Return the plan of a ticket, from the cache or planned again from the same commit."""
        if ticket.uuid != table.uuid:
            raise _expired_error(table, "another table has its name")
        key = _plan_key(ticket.request, ticket.plan or "")
        with self._lock:
            cached = self._plans.get(key)
        if cached is not None and cached.table.uuid == table.uuid:
            return cached
        planned = _plan_read(table, name, ticket.request)
        if planned.digest != ticket.plan:
            raise _expired_error(table, "its files or the lake snapshot have changed")
        self._cache_plan(planned)
        return planned

    def _cache_plan(self, planned: _PlannedRead) -> None:
        with self._lock:
            self._plans[_plan_key(planned.request, planned.digest)] = planned
            while len(self._plans) > _PLANS_CACHED_MAX:
                self._plans.popitem(last=False)

    def _open_table(self, request: ReadRequest) -> tuple[Table, TableName]:
        name = parse_table_name(request.table)
        if request.version is not None and name.suffix is not None:
            raise InvalidOptionError(
                f"{name}: found a version, which requires {name.path}; use a snapshot of {name.path}${LAKE}"
            )
        if request.snapshot is not None and name.suffix != LAKE:
            raise InvalidOptionError(
                f"{name}: found a snapshot, which requires {name.path}${LAKE}; use a version (a commit or a tag)"
            )
        return self._tables.table(str(name.path)), name


def _plan_read(table: Table, name: TableName, request: ReadRequest) -> _PlannedRead:
    pinned = _plan_union_read(table, request) if name.suffix is None else _plan_lake_read(table, request)
    several = request.parts > 1 and request.limit is None
    cut = tuple(split_plan(pinned.plan, request.parts)) if several else (pinned.plan,)
    text = json.dumps([pinned.plan.to_json(), len(cut)], separators=(",", ":"), sort_keys=True)
    return _PlannedRead(table, pinned, cut, hashlib.sha256(text.encode()).hexdigest()[:32])


def _plan_union_read(table: Table, request: ReadRequest) -> _PinnedRead:
    pin = _take_snapshot(table, request)
    projection = _build_projection(request, pin.state)
    scan_request = ScanRequest.of(projection)

    def plan(snapshot: ReadSnapshot) -> _PinnedRead:
        at = replace(request, version=snapshot.state.version)
        return _PinnedRead(at, projection, plan_scan(table, snapshot, scan_request).plan(table), snapshot.state)

    initial_schema = InitialSchema(projection.read_columns, is_chosen=request.version is not None)
    return read_with_fallback(table, pin, initial_schema, plan)


def _plan_lake_read(table: Table, request: ReadRequest) -> _PinnedRead:
    open_view(table, LAKE)  # raises for a table without a lake
    state, snapshot = table.state, request.snapshot
    projection = _build_projection(request, state)
    if snapshot is None and (newest := table.lake.newest()) is not None:
        snapshot = newest.id
    plan = plan_lake(table, state, projection, as_of_snapshot=snapshot)
    return _PinnedRead(replace(request, snapshot=snapshot), projection, plan, None)


def _take_snapshot(table: Table, request: ReadRequest) -> ReadSnapshot:
    return take_latest_snapshot(table.state) if request.version is None else snapshot_of_version(table, request.version)


def _build_projection(request: ReadRequest, state: TableState) -> Projection:
    return Projection.of(state.schema, request.columns, _parse_filter(request, state.schema.arrow))


def _parse_filter(request: ReadRequest, schema: pa.Schema) -> Filter | None:
    return parse_filter(parse_where(request.where, schema)) if request.where is not None else None


def _read_view(table: Table, suffix: str, request: ReadRequest) -> RowStream:
    """Read a system table in memory, or stream a changelog, which may be as large as the table."""
    view = open_view(table, suffix)
    if suffix not in (CHANGELOG, BINLOG):
        where = parse_where(request.where, view.schema) if request.where is not None else None
        rows = view.to_arrow(columns=request.columns, filter=where)
        return RowStream(rows.schema, _limit_rows(_slice_batches([rows]), request.limit))
    state = table.state
    batches: Iterator[pa.RecordBatch] = changelog_batches(table, state)
    schema = with_fields(CHANGELOG_FIELDS, state.schema.arrow)
    if suffix == BINLOG:
        batches, schema = binlog_batches(batches, state.schema.arrow), binlog_schema(state.schema.arrow)
    filter_ = _parse_filter(request, schema)
    chosen = (filter_and_project(pa.Table.from_batches([batch]), request.columns, filter_) for batch in batches)
    shown = filter_and_project(schema.empty_table(), request.columns, None).schema
    return RowStream(shown, _limit_rows(_slice_batches(chosen), request.limit))


def _slice_batches(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    for batch in (batch for rows in tables for batch in rows.to_batches()):
        num_rows = max(1, min(BATCH_ROWS, BATCH_BYTES * batch.num_rows // max(1, batch.nbytes)))
        for start in range(0, batch.num_rows, num_rows):
            yield batch.slice(start, num_rows)


def _limit_rows(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    if limit is None:
        yield from batches
        return
    missing = limit
    while missing > 0 and (batch := next(batches, None)) is not None:
        yield batch.slice(0, missing)
        missing -= batch.num_rows


def count_rows(state: TableState) -> int | None:
    """Return the row count of a state; None for a primary-key table, where it is unknown."""
    return None if state.primary_key else state.num_rows


def _plan_key(request: ReadRequest, digest: str) -> str:
    return json.dumps([request.to_json(), digest], sort_keys=True)


def _expired_error(table: Table, why: str) -> SnapshotExpiredError:
    return SnapshotExpiredError(
        f"{table.name}: the part of the ticket is no longer readable, because {why}; request the flight info again"
    )
