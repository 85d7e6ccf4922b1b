"""The REST API ``/api/v1``: write, read, look up, and follow rows."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import field, replace
from importlib.metadata import version
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from anyio import CapacityLimiter, to_thread
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from streamhouse_spark.config.table_properties import VIEW, describe_view_properties
from streamhouse_spark.core.concurrency import new_event
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import find_nearest
from streamhouse_spark.core.types import BucketOffsets, Transaction, is_reserved
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.errors import (
    InvalidOptionError,
    SchemaMismatchError,
    StreamhouseError,
    TableNotFoundError,
    quote,
)
from streamhouse_spark.log.consumers import LogPosition
from streamhouse_spark.log.segments.metadata_columns import BUCKET, LOG_OFFSET
from streamhouse_spark.log.state import TableState
from streamhouse_spark.log.tiering_failures import list_failures
from streamhouse_spark.read.tail import Tail
from streamhouse_spark.schema.column_defaults import default_scalars, evaluate_defaults
from streamhouse_spark.schema.default_expressions import StatementContext
from streamhouse_spark.schema.json_values import encode_row_texts
from streamhouse_spark.serve.acl import ANONYMOUS, Client, can_see_definition, require_definition
from streamhouse_spark.serve.app_context import OpenTables
from streamhouse_spark.serve.auth import client_of, make_route, require_request_right
from streamhouse_spark.serve.request_identity import (
    IDEMPOTENCY_KEY,
    PRODUCER_ID,
    PRODUCER_SEQUENCE,
    RequestIdentity,
    RequestsInFlight,
)
from streamhouse_spark.serve.responses import RETRY_AFTER_S, error_response, parse_parameters
from streamhouse_spark.serve.row_bodies import (
    ARROW,
    CSV,
    JSON,
    JSON_LINES,
    RejectedRow,
    RowBody,
    negotiate_format,
    parse_bad_rows,
    parse_body,
    parse_content_type,
    parse_rows,
    validate_rows,
    write_rows,
)
from streamhouse_spark.serve.server_metrics import ServerCounters
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.creation import DEAD_LETTERS
from streamhouse_spark.write.file_readers import CsvOptions, decode_field

BODY_BYTES_MAX: Final = 64 << 20
IN_FLIGHT_BYTES_MAX: Final = 256 << 20
"""Maximum bytes of bodies in flight. Further requests are rejected with status 429 before they are read in full."""
BAD_ROWS_SHOWN: Final = 100
ROWS_DEFAULT: Final = 100
ROWS_MAX: Final = 100_000
_IN_FLIGHT_FULL: Final = "the rows of other requests in flight are too large; retry later"
_MODES: Final = ("append", "upsert", "delete")
_READ_PARAMETERS: Final = ("where", "columns", "limit")
_WRITE_PARAMETERS: Final = ("mode", "columns", "bad_rows", "dead_letters")
FOLLOWERS_MAX: Final = 200
FOLLOWERS_OF_CLIENT_MAX: Final = 100
"""Maximum followers per client, so that a client cannot exclude other clients."""
EVENT_ROWS_MAX: Final = 1_000
EVENT_BYTES_MAX: Final = 64 << 10
"""Approximate Arrow bytes of the rows of an event, which has at least one row."""
_HEARTBEAT_S: Final = 10.0
_TABLE: Final = {
    "name": "table",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
    "example": "sales.orders",
}
_ROWS: Final = {
    JSON: {"schema": {"type": "array", "items": {"type": "object"}}},
    JSON_LINES: {"schema": {"type": "string"}},
    CSV: {"schema": {"type": "string"}},
    ARROW: {"schema": {"type": "string", "format": "binary"}},
}


def rest_routes(tables: OpenTables, counts: ServerCounters) -> list[Route]:
    """Return the routes below ``/api/v1/tables``."""
    api = _RowsApi(tables, counts)
    exists = tables.warehouse.exists
    return [
        make_route("/tables", api.list, exists),
        make_route("/tables/{table}", api.describe, exists, right="read"),
        make_route("/tables/{table}/rows", api.read, exists, right="read"),
        make_route("/tables/{table}/rows", api.write, exists, right="write", methods=["POST"]),
        make_route("/tables/{table}/lookup", api.lookup, exists, right="read"),
        make_route("/tables/{table}/changes", api.changes, exists, right="read"),
    ]


class _RowsApi:
    def __init__(self, tables: OpenTables, counts: ServerCounters) -> None:
        self._warehouse = tables.warehouse
        self._counts = counts
        self._tables = tables
        self._in_flight_bytes = 0
        self._requests = RequestsInFlight()
        self._followers = Followers()

    def list(self, request: Request) -> Response:
        parse_parameters(request, ())
        return JSONResponse({"tables": client_of(request).filter_readable(self._warehouse.tables())})

    def describe(self, request: Request) -> Response:
        table = self._open_table(request)
        costs = table.costs().to_json() if "costs" in parse_parameters(request, ("costs",)) else None
        return JSONResponse(
            describe_table(table, client_of(request))
            | describe_failures(table)
            | ({"costs": costs} if costs is not None else {})
        )

    # -- writing ------------------------------------------------------------------------------------------------------

    async def write(self, request: Request) -> Response:
        """Write the rows of a body atomically, and respond when they are durable.

        **Commit point:** one record of the table's log, which may contain the rows of other requests, too.
        """
        declared = _parse_content_length(request.headers.get("content-length"))
        if declared > BODY_BYTES_MAX:
            return _too_large_response()
        if self._in_flight_bytes + declared > IN_FLIGHT_BYTES_MAX:
            return _busy_response(_IN_FLIGHT_FULL)
        size_bytes = declared
        self._in_flight_bytes += size_bytes
        try:
            body = bytearray()
            async for chunk in request.stream():
                body += chunk
                if len(body) > BODY_BYTES_MAX:
                    return _too_large_response()
                if (more := len(body) - size_bytes) > 0:  # the client declared no length
                    if self._in_flight_bytes + more > IN_FLIGHT_BYTES_MAX:
                        return _busy_response(_IN_FLIGHT_FULL)
                    self._in_flight_bytes += more
                    size_bytes += more
            return await run_in_threadpool(self._write, request, bytes(body))
        except ClientDisconnect as error:
            raise InvalidOptionError("the connection closed before the end of the body; retry the request") from error
        finally:
            self._in_flight_bytes -= size_bytes

    def _write(self, request: Request, body: bytes) -> Response:
        table = self._open_table(request)
        rows_request = _RowsRequest.of(request, table, body)
        identity = RequestIdentity.of(request.headers, client_of(request).name, table.uuid, rows_request.parts)
        with self._requests.enter(table.uuid, identity) if identity else nullcontext():
            if identity and (stored := identity.find_stored_outcome(table.state)):
                offsets, bad = BucketOffsets(stored.offsets), _revalidate_rows(table, rows_request)
            else:
                try:
                    with identity.translate_conflicts(table.refresh) if identity else nullcontext():
                        offsets, bad = self._store_rows(request, table, rows_request, identity)
                except SchemaMismatchError as error:
                    return _rejected_rows_response(error, table, rows_request)
                self._counts.count_rows(table.name, rows_request.mode, offsets.num_rows)
        request.scope["state"]["rows"] = offsets.num_rows
        ranges = {str(bucket): [r.start, r.end] for bucket, r in offsets.items()}
        answer = {"table": table.name, "rows": offsets.num_rows, "offsets": ranges}
        return JSONResponse(answer | ({"bad_rows": [row.to_json() for row in bad]} if bad else {}))

    def _store_rows(
        self, request: Request, table: Table, rows_request: _RowsRequest, identity: RequestIdentity | None
    ) -> tuple[BucketOffsets, Sequence[RejectedRow]]:
        """Write the invalid rows to the dead-letter table of the request, and then the valid rows to the table.

        Both commits are idempotent, so a retry after a crash between them adds no row twice.
        """
        transaction = identity.transaction if identity else None
        if rows_request.bad_rows == "refuse":
            return rows_request.store(
                table, parse_rows(rows_request.body, rows_request.kind, rows_request.rules), transaction
            ), ()
        validated = validate_rows(table, rows_request.rows())
        if validated.bad and rows_request.dead_letters:
            require_request_right(request, "write", rows_request.dead_letters)
            letters = self._warehouse.create_table(rows_request.dead_letters, DEAD_LETTERS, if_not_exists=True)
            now = dt.datetime.fromtimestamp(self._warehouse.world.clock.now_ms() / 1000, dt.UTC)
            letters.append(
                [
                    {"at": now, "target": table.name, "reason": row.reason, "position": str(row.row), "event": row.text}
                    for row in validated.bad
                ],
                transaction=identity.dead_letter_transaction(table.name, [row.row for row in validated.bad])
                if identity
                else None,
            )
        if validated.good is None and transaction is None:
            return BucketOffsets({}), validated.bad
        rows = table.schema.empty_table() if validated.good is None else validated.good
        return rows_request.store(table, rows, transaction), validated.bad

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, request: Request) -> Response:
        name, parameters = request.path_params["table"], parse_parameters(request, _READ_PARAMETERS)
        limit = _parse_limit(parameters.get("limit"), ROWS_DEFAULT, ROWS_MAX)
        kind = negotiate_format(request.headers.get("accept"))
        columns = [c.strip() for c in parameters["columns"].split(",")] if parameters.get("columns") else None
        where = parameters.get("where") or None
        if (parsed := parse_table_name(name)).suffix is not None:
            require_definition(client_of(request), parsed, self._tables.table(str(parsed.path)).state)
        rows = self._warehouse.view(name).scan(columns=columns, filter=where, limit=limit).to_arrow()
        return Response(write_rows(rows, kind), media_type=kind)

    def lookup(self, request: Request) -> Response:
        table = self._open_table(request)
        key = list(table.state.primary_key)
        key_texts = parse_parameters(request, key) if key else {}
        if sorted(key_texts) != sorted(key) or not key:
            if not key:
                raise InvalidOptionError(
                    f"table {table.name} has no primary key, so it has no lookups; read rows with a filter (where=…)"
                )
            names = "&".join(f"{name}=…" for name in key)
            raise InvalidOptionError(
                f"table {table.name}: found parameters {', '.join(key_texts) or 'none'}, expected exactly the primary "
                f"key columns ({names})"
            )
        columns = [table.schema.field(name) for name in key]
        rows = table.lookup(
            pa.table({column.name: _parse_key_value(key_texts[column.name], column, table) for column in columns})
        )
        if not rows["_found"][0].as_py():
            raise TableNotFoundError(f"table {table.name} has no row with this key", condition="ROW_NOT_FOUND")
        row = next(encode_row_texts(rows.drop_columns(["_found"])))
        return Response(row, media_type="application/json")

    async def changes(self, request: Request) -> Response:
        """Follow the table: send events with rows, whose ids are the positions after the rows.

        The stream ends when the client's token expires; with a new token, the client continues after the last event.
        Followers wait for rows in threads of a separate pool, which other requests do not use.
        """
        client, parameters = client_of(request), parse_parameters(request, ("from",))
        name = client.name
        if client is ANONYMOUS and request.client is not None:
            name = request.client.host  # without tokens, the address identifies the client
        if (refusal := self._followers.admit(name)) is not None:
            return _busy_response(refusal)
        stop = new_event()
        try:
            start = _parse_start(request.headers.get("last-event-id") or parameters.get("from") or "latest")
            tail = await run_in_threadpool(
                lambda: self._open_table(request).tail(start, include_metadata=True, stop=stop)
            )
        except BaseException:
            self._followers.release(name)
            raise
        clock = self._warehouse.world.clock
        return FollowResponse(
            tail,
            stop,
            threads=self._followers.threads,
            has_ended=lambda: client.expires_s is not None and clock.now_ms() / 1000 >= client.expires_s,
            release=lambda: self._followers.release(name),
        )

    def _open_table(self, request: Request) -> Table:
        return self._tables.table(request.path_params["table"])


@dataclass(frozen=True, slots=True)
class _RowsRequest:
    """The rows of a request, and how to write them."""

    mode: str
    body: bytes = field(repr=False)
    kind: str
    rules: CsvOptions
    columns: Sequence[str] | None
    bad_rows: str
    dead_letters: str | None

    @classmethod
    def of(cls, request: Request, table: Table, body: bytes) -> _RowsRequest:
        parameters = parse_parameters(request, _WRITE_PARAMETERS)
        mode = parameters.get("mode") or ("upsert" if table.state.primary_key else "append")
        if mode not in _MODES:
            raise InvalidOptionError(f"mode={mode[:60]!r}: expected {', '.join(_MODES)}")
        columns = [c.strip() for c in parameters["columns"].split(",")] if parameters.get("columns") else None
        dead_letters = parameters.get("dead_letters")
        bad_rows = parse_bad_rows(parameters.get("bad_rows"), dead_letters)
        if columns is not None and mode != "upsert":
            raise InvalidOptionError(
                f"found columns= and mode={mode}, and columns= requires mode=upsert, for partial updates"
            )
        if bad_rows != "refuse" and (columns is not None or mode == "delete"):
            raise InvalidOptionError(f"bad_rows={bad_rows} is not supported with columns= or mode=delete; leave it out")
        schema, key = table.schema, table.state.primary_key
        if mode == "delete" or columns is not None:
            _require_key_and_columns(table, columns or ())
            schema = pa.schema([field for field in schema if field.name in (*key, *(columns or ()))])
        rules = CsvOptions(
            schema, defaults=default_scalars(evaluate_defaults(table.state.schema, StatementContext.of(table.world)))
        )
        kind = parse_content_type(request.headers.getlist("content-type"))
        return cls(mode, body, kind, rules, columns, bad_rows, dead_letters or None)

    @property
    def parts(self) -> Sequence[bytes]:
        """The body and all parameters that affect the stored rows."""
        columns = ",".join(self.columns) if self.columns is not None else ""
        texts = (self.mode, self.kind, columns, self.bad_rows, self.dead_letters or "")
        return (self.body, *(text.encode() for text in texts))

    def rows(self) -> RowBody:
        return parse_body(self.body, self.kind, self.rules)

    def store(self, table: Table, rows: pa.Table, transaction: Transaction | None) -> BucketOffsets:
        match self.mode:
            case "upsert":
                return table.upsert(rows, columns=self.columns, transaction=transaction)
            case "delete":
                return table.delete(rows, transaction=transaction)
        return table.append(rows, transaction=transaction)


def _require_key_and_columns(table: Table, columns: Sequence[str]) -> None:
    """Raise `InvalidOptionError` unless the table has a primary key and the columns."""
    _ = table.keyed  # raises without a primary key
    names = table.schema.names
    for column in columns:
        if column not in names:
            near = find_nearest(column, names)
            hint = f"did you mean {near}?" if near else f"expected {', '.join(names[:20])}"
            raise InvalidOptionError(f"columns= has {quote(column)}, and table {table.name} has no such column; {hint}")


def _rejected_rows_response(error: SchemaMismatchError, table: Table, rows_request: _RowsRequest) -> Response:
    """Return the error response of a rejected write, with the bad rows if the request has whole rows."""
    response = error_response(error)
    if rows_request.columns is not None or rows_request.mode == "delete":
        return response
    try:
        bad = validate_rows(table, rows_request.rows()).bad
    except SchemaMismatchError:
        return response
    body = json.loads(bytes(response.body))
    body["error"]["bad_rows"] = [row.to_json() for row in bad[:BAD_ROWS_SHOWN]]
    return JSONResponse(body, response.status_code)


def _revalidate_rows(table: Table, rows_request: _RowsRequest) -> Sequence[RejectedRow]:
    """Return the bad rows of a request that is already stored, by the current columns."""
    if rows_request.bad_rows == "refuse":
        return ()
    try:
        return validate_rows(table, rows_request.rows()).bad
    except SchemaMismatchError:
        return ()


def _parse_key_value(text: str, column: pa.Field, table: Table) -> pa.Array:
    """Parse the value of a key column as in CSV."""
    try:
        return decode_field(pa.array([text]), column)
    except (pa.ArrowException, ValueError, SchemaMismatchError) as error:
        raise InvalidOptionError(f"table {table.name}: the key does not have the columns' types: {error}") from error


def _parse_start(text: str) -> Any:
    if text in ("latest", "earliest"):
        return text
    try:
        return LogPosition.from_json(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise InvalidOptionError(f"from={text[:80]!r}: expected latest, earliest, or the id of an event") from error


def _parse_limit(text: str | None, default: int, most: int) -> int:
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 12 or int(text) > most:
        raise InvalidOptionError(f"limit={text[:40]!r}: expected a number of rows of at most {most:,}")
    return int(text)


def _parse_content_length(text: str | None) -> int:
    """Return the declared length of a body; 0 if it is not declared."""
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise InvalidOptionError(f"Content-Length is {text[:40]!r}, expected a number of bytes")
    return int(text)


def _too_large_response() -> Response:
    error = InvalidOptionError(f"the body has more than {BODY_BYTES_MAX >> 20} MiB; send the rows in several requests")
    response = error_response(error)
    response.status_code = 413
    return response


def _busy_response(text: str) -> Response:
    body = {"error": {"condition": "BUSY", "kind": "unavailable", "message": f"BUSY: {text}"}}
    return JSONResponse(body, 429, {"Retry-After": str(RETRY_AFTER_S)})


class Followers:
    """Counts the followers of a server. Must be used in the server's event loop only."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._threads: CapacityLimiter | None = None

    @property
    def threads(self) -> CapacityLimiter:
        """The limit of threads in which followers wait for rows. Other requests have other threads."""
        self._threads = self._threads or CapacityLimiter(FOLLOWERS_MAX)
        return self._threads

    def admit(self, client: str) -> str | None:
        """Count a follower, which must be released later. Return the reason of a rejection, or None."""
        if self._counts.total() >= FOLLOWERS_MAX:
            return f"{FOLLOWERS_MAX} clients already follow tables of this server; retry later, or use another server"
        if self._counts[client] >= FOLLOWERS_OF_CLIENT_MAX:
            return f"this client already follows {FOLLOWERS_OF_CLIENT_MAX} tables of this server; close a stream first"
        self._counts[client] += 1
        return None

    def release(self, client: str) -> None:
        self._counts[client] -= 1
        if not self._counts[client]:
            del self._counts[client]


class FollowResponse(StreamingResponse):
    """Sends the events of a tail until its client disconnects."""

    def __init__(
        self,
        tail: Tail,
        stop: threading.Event,
        *,
        threads: CapacityLimiter,
        has_ended: Callable[[], bool],
        release: Callable[[], None],
    ) -> None:
        """``has_ended`` returns whether the client's token expired; ``release`` is called once at the end."""
        super().__init__(
            self._events(tail, threads, has_ended),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )
        self._stop = stop
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stop.set()
            self._release()

    @staticmethod
    async def _events(tail: Tail, threads: CapacityLimiter, has_ended: Callable[[], bool]) -> AsyncIterator[str]:
        # The first event contains the start position, after which all rows follow.
        yield _format_event("begin", tail.position, "[]")
        events = tail_events(tail)
        pending: asyncio.Task[str | None] | None = None
        while not has_ended():
            pending = pending or asyncio.ensure_future(to_thread.run_sync(next, events, None, limiter=threads))
            done, _ = await asyncio.wait([pending], timeout=_HEARTBEAT_S)
            if not done:
                yield ": waiting\n\n"
                continue
            event, pending = pending.result(), None
            if event is None:
                return
            yield event


def tail_events(tail: Tail) -> Iterator[str]:
    """Yield events with rows, whose ids are the positions after the rows. An error is the last event."""
    try:
        for batch in tail:
            yield from _batch_events(batch, tail.position)
    except StreamhouseError as error:
        yield f"event: error\ndata: {json.dumps(str(error))}\n\n"


def _batch_events(batch: pa.RecordBatch, position: LogPosition) -> Iterator[str]:
    num_rows = max(1, min(EVENT_ROWS_MAX, EVENT_BYTES_MAX * batch.num_rows // max(1, batch.nbytes)))
    for start in range(0, batch.num_rows, num_rows):
        rows = batch.slice(start, num_rows)
        is_last = start + num_rows >= batch.num_rows
        yield _format_event(
            "rows", position if is_last else _position_after(rows, position), f"[{', '.join(encode_row_texts(rows))}]"
        )


def _position_after(rows: pa.RecordBatch, position: LogPosition) -> LogPosition:
    """Return the position after ``rows``, the first rows of a batch of one bucket that ends at ``position``."""
    bucket, offset = (rows.column(name)[-1].as_py() for name in (BUCKET.name, LOG_OFFSET.name))
    return replace(position, offsets={**position.offsets, bucket: offset + 1})


def _format_event(kind: str, position: LogPosition, rows: str) -> str:
    at = json.dumps(position.to_json(), separators=(",", ":"))
    return f"id: {at}\nevent: {kind}\ndata: {rows}\n\n"


def describe_table(table: Table, client: Client) -> dict[str, Any]:
    """Describe the cached state of a table to a client, without storage requests."""
    state = table.state
    columns = [{"name": f.name, "type": str(f.type), "nullable": f.nullable} for f in table.schema]
    return {
        "table": table.name,
        "version": state.version,
        "primary_key": list(state.primary_key),
        "partition_by": list(state.parsed.partitioned_by),
        "columns": columns,
        "buckets": state.num_buckets,
        "properties": {key: value for key, value in state.properties.items() if key != VIEW},
        "rounds": _describe_rounds(state),
        "readers": _describe_readers(state),
        "writers": _describe_writers(state),
        "view": describe_view_properties(state.properties, table.name) if can_see_definition(client, state) else None,
    }


def describe_failures(table: Table) -> dict[str, Any]:
    """Describe the recorded failures of rounds, latest first, with one storage request."""
    failures = [failure.to_json(table.state) for failure in list_failures(table.storage, table.uuid)]
    for entry in failures:
        entry |= {"first_at": _format_time(entry.pop("first_ms")), "last_at": _format_time(entry.pop("last_ms"))}
    return {"failed_rounds": failures}


def _describe_rounds(state: TableState) -> list[dict[str, Any]]:
    """Describe the tiering rounds whose snapshots the log records, latest first."""
    rounds = []
    for before, after in pairwise(state.lake_history):
        rows = sum(max(0, end - before.offsets.get(bucket, 0)) for bucket, end in after.offsets.items())
        rounds.append({"snapshot_id": str(after.snapshot_id), "recorded_at": _format_time(after.time_ms), "rows": rows})
    return rounds[::-1]


def _describe_readers(state: TableState) -> list[dict[str, Any]]:
    """Describe the consumers that report their positions, such as streams with a ``consumerId``."""
    ends = state.ends
    return [
        {
            "consumer": name,
            "lag_rows": sum(max(0, end - entry.offsets.get(bucket, 0)) for bucket, end in ends.items()),
            "seen_at": _format_time(entry.time_ms),
        }
        for name, entry in sorted(state.consumers.items())
    ]


def _describe_writers(state: TableState) -> list[dict[str, Any]]:
    """Describe the writers whose transaction versions are recorded, such as streams, latest first."""
    newest = sorted(state.transactions.items(), key=lambda item: (-item[1].time_ms, item[0]))
    return [
        {"writer": name, "version": entry.version, "wrote_at": _format_time(entry.time_ms)}
        for name, entry in newest
        if not is_reserved(name)
    ]


def _format_time(time_ms: int) -> str:
    return dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def openapi() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of this API."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "streamhouse serve", "version": version("streamhouse-spark")},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
        "paths": {
            "/api/v1/overview": {
                "get": _operation("All tables with rows and lag, or changes if there is a primary key (rows_unit).")
            },
            "/api/v1/tables": {"get": _operation("The names of all tables.")},
            "/api/v1/tables/{table}": {
                "get": _operation(
                    "Columns, keys, recent and failed rounds, readers and writers of a table.",
                    _TABLE,
                    _query("costs", "With any value: also an estimate of monthly requests and dollars."),
                )
            },
            "/api/v1/tables/{table}/rows": {
                "get": _operation(
                    "Rows of a table, or of a system table such as orders$lake or orders$history.",
                    _TABLE,
                    _query("where", "A condition, such as: amount > 5 AND customer = 'ann'"),
                    _query("columns", "Column names, separated by commas."),
                    _query("limit", "Number of rows, 100 by default."),
                    answers=_ROWS,
                ),
                "post": {
                    **_operation(
                        "Write rows atomically. The rows are durable when the response arrives.",
                        _TABLE,
                        _query(
                            "mode", "append, upsert or delete; the default is upsert with a primary key, else append."
                        ),
                        _query("columns", "With upsert: write only these columns and the key."),
                        _query("bad_rows", "refuse (all rows or none), skip, or dead-letter."),
                        _query("dead_letters", "The table for bad rows, such as sales.bad."),
                        _header(
                            IDEMPOTENCY_KEY,
                            "A unique string per request, retained for 24 hours. A retry with the same key and body "
                            "gets the first response and adds nothing.",
                            "8e03978e-40d5-43dd-bc93-6894a57f9324",
                        ),
                        _header(PRODUCER_ID, f"With {PRODUCER_SEQUENCE}, instead of {IDEMPOTENCY_KEY}.", "checkout-7"),
                        _header(PRODUCER_SEQUENCE, "Starts at 0 per table, and increases by one.", "42"),
                        errors={
                            "409": "The request is in flight, or the producer's sequence has a gap or goes back.",
                            "422": "The key or sequence number belongs to a request with another body.",
                        },
                    ),
                    "requestBody": {"required": True, "content": _ROWS},
                },
            },
            "/api/v1/tables/{table}/lookup": {
                "get": _operation("The current row of a key, whose columns are parameters.", _TABLE)
            },
            "/api/v1/tables/{table}/changes": {
                "get": _operation(
                    "New rows, as server-sent events.",
                    _TABLE,
                    _query("from", "latest, earliest, or the id of an event."),
                    answers={"text/event-stream": {"schema": {"type": "string"}}},
                )
            },
        },
    }


def _query(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}


def _header(name: str, text: str, example: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": text, "schema": {"type": "string"}, "example": example}


def _operation(
    summary: str,
    *parameters: dict[str, Any],
    answers: dict[str, Any] | None = None,
    errors: dict[str, str] | None = None,
) -> dict[str, Any]:
    content = answers or {JSON: {"schema": {"type": "object"}}}
    responses = {
        "200": {"description": "OK", "content": content},
        **{status: {"description": text} for status, text in (errors or {}).items()},
        "default": {"description": "An error as JSON: 401, 403, 429, or an error of the table."},
    }
    return {"summary": summary, "parameters": list(parameters), "responses": responses}
