"""Rows over HTTP, below ``/api/v1``: write, read, look up, and follow them."""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import field
from typing import Any, Final

import pyarrow as pa
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from streamhouse_spark.core.fork_safety import new_event
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import find_nearest
from streamhouse_spark.core.types import BucketOffsets, Transaction
from streamhouse_spark.errors import (
    InvalidOptionError,
    SchemaMismatchError,
    StreamhouseError,
    TableNotFoundError,
    quote,
)
from streamhouse_spark.log.commits.log_position import LogPosition
from streamhouse_spark.query.sql_condition import parse_where
from streamhouse_spark.read.tail import Tail
from streamhouse_spark.schema.default_functions import StatementContext
from streamhouse_spark.schema.defaults import default_scalars, evaluate_defaults
from streamhouse_spark.schema.json_values import encode_row_texts
from streamhouse_spark.serve.body_codecs import body_type, media_type, parse_rows, write_rows
from streamhouse_spark.serve.followers import Followers, FollowResponse
from streamhouse_spark.serve.metrics import ServerCounters
from streamhouse_spark.serve.open_tables import OpenTables
from streamhouse_spark.serve.parameters import parse_parameters
from streamhouse_spark.serve.request_identity import RequestIdentity, RequestsInFlight
from streamhouse_spark.serve.responses import RETRY_AFTER_S, error_response
from streamhouse_spark.serve.rights import ANONYMOUS, client_of, hide_names, requested_table, require
from streamhouse_spark.serve.row_rejection import Body, RejectedRow, parse_bad_rows, parse_body, validate_rows
from streamhouse_spark.serve.table_facts import describe_failures, describe_table
from streamhouse_spark.table.dead_letters import DEAD_LETTERS
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.preview import first_rows, schema_of
from streamhouse_spark.warehouse.warehouse import Warehouse
from streamhouse_spark.write.csv_rows import decode_field
from streamhouse_spark.write.file_readers import CsvOptions

BODY_BYTES_MAX: Final = 64 << 20
IN_FLIGHT_BYTES_MAX: Final = 256 << 20
"""Bytes of bodies in flight; a request beyond them is rejected with 429 before it is read in full."""
BAD_ROWS_SHOWN: Final = 100
ROWS_DEFAULT: Final = 100
ROWS_MAX: Final = 100_000
_IN_FLIGHT_FULL: Final = "too many rows of other requests are in flight; retry later"
_MODES: Final = ("append", "upsert", "delete")
_READ_PARAMETERS: Final = ("where", "columns", "limit")
_WRITE_PARAMETERS: Final = ("mode", "columns", "bad_rows", "dead_letters")

Handler = Callable[[Request], Awaitable[Response]]


def rows_routes(tables: OpenTables, counts: ServerCounters) -> list[Route]:
    """Return the routes below ``/api/v1/tables``."""
    api = _RowsApi(tables, counts)
    return [
        Route("/tables", _handle_errors(api.list, tables.warehouse), methods=["GET"]),
        Route("/tables/{table}", _handle_errors(api.describe, tables.warehouse), methods=["GET"]),
        Route("/tables/{table}/rows", _handle_errors(api.read, tables.warehouse), methods=["GET"]),
        Route("/tables/{table}/rows", _handle_errors(api.write, tables.warehouse), methods=["POST"]),
        Route("/tables/{table}/lookup", _handle_errors(api.lookup, tables.warehouse), methods=["GET"]),
        Route("/tables/{table}/changes", _handle_errors(api.changes, tables.warehouse), methods=["GET"]),
    ]


def _handle_errors(handler: Handler, warehouse: Warehouse) -> Handler:
    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except StreamhouseError as error:
            client, table = client_of(request), requested_table(request)
            return error_response(await run_in_threadpool(hide_names, error, client, table, warehouse.exists))

    return handle


class _RowsApi:
    def __init__(self, tables: OpenTables, counts: ServerCounters) -> None:
        self._warehouse = tables.warehouse
        self._counts = counts
        self._tables = tables
        self._in_flight_bytes = 0
        self._requests = RequestsInFlight()
        self._followers = Followers()

    async def list(self, request: Request) -> Response:
        parse_parameters(request, ())
        return JSONResponse(
            {"tables": client_of(request).filter_readable(await run_in_threadpool(self._warehouse.tables))}
        )

    async def describe(self, request: Request) -> Response:
        require(request, "read", request.path_params["table"])
        return await run_in_threadpool(self._describe, request)

    def _describe(self, request: Request) -> Response:
        table = self._open_table(request)
        costs = table.costs().to_json() if "costs" in parse_parameters(request, ("costs",)) else None
        return JSONResponse(
            describe_table(table) | describe_failures(table) | ({"costs": costs} if costs is not None else {})
        )

    # -- writing ------------------------------------------------------------------------------------------------------

    async def write(self, request: Request) -> Response:
        """Write the rows of a body: all of them, or none. Answers when the rows are durable.

        **Commit point:** one record of the table's log, which other requests may share.
        """
        require(request, "write", request.path_params["table"])
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
                if (more := len(body) - size_bytes) > 0:  # a client that declared no length
                    if self._in_flight_bytes + more > IN_FLIGHT_BYTES_MAX:
                        return _busy_response(_IN_FLIGHT_FULL)
                    self._in_flight_bytes += more
                    size_bytes += more
            return await run_in_threadpool(self._write, request, bytes(body))
        except ClientDisconnect as error:  # the client disconnected, and nothing was written
            raise InvalidOptionError("the connection ended before the body; send the request again") from error
        finally:
            self._in_flight_bytes -= size_bytes

    def _write(self, request: Request, body: bytes) -> Response:
        table = self._open_table(request)
        mode = parse_parameters(request, _WRITE_PARAMETERS).get("mode")
        mode = mode or ("upsert" if table.state.primary_key else "append")
        if mode not in _MODES:
            raise InvalidOptionError(f"mode={mode[:60]!r}: expected {', '.join(_MODES)}")
        rows_request = _RowsRequest.of(request, table, mode, body)
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
                self._counts.count_rows(table.name, mode, offsets.num_rows)
        request.scope["state"]["rows"] = offsets.num_rows
        ranges = {str(bucket): [r.start, r.end] for bucket, r in offsets.items()}
        answer = {"table": table.name, "rows": offsets.num_rows, "offsets": ranges}
        return JSONResponse(answer | ({"bad_rows": [row.to_json() for row in bad]} if bad else {}))

    def _store_rows(
        self, request: Request, table: Table, rows_request: _RowsRequest, identity: RequestIdentity | None
    ) -> tuple[BucketOffsets, Sequence[RejectedRow]]:
        """Write the valid rows; before them, the invalid ones into the named dead-letter table.

        A retry, because the server died between the two commits, adds nothing twice.
        """
        transaction = identity.transaction if identity else None
        if rows_request.bad_rows == "refuse":
            return rows_request.store(
                table, parse_rows(rows_request.body, rows_request.kind, rows_request.rules), transaction
            ), ()
        validated = validate_rows(table, rows_request.rows())
        if validated.bad and rows_request.dead_letters:
            require(request, "write", rows_request.dead_letters)
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

    async def read(self, request: Request) -> Response:
        require(request, "read", request.path_params["table"])
        return await run_in_threadpool(self._read, request)

    def _read(self, request: Request) -> Response:
        name, parameters = request.path_params["table"], parse_parameters(request, _READ_PARAMETERS)
        limit = _parse_limit(parameters.get("limit"), ROWS_DEFAULT, ROWS_MAX)
        kind = media_type(request.headers.get("accept"))
        columns = [c.strip() for c in parameters["columns"].split(",")] if parameters.get("columns") else None
        where = parse_where(parameters["where"], schema_of(self._warehouse, name)) if parameters.get("where") else None
        rows = first_rows(self._warehouse, name, limit, columns=columns, filter_=where)
        return Response(write_rows(rows, kind), media_type=kind)

    async def lookup(self, request: Request) -> Response:
        require(request, "read", request.path_params["table"])
        return await run_in_threadpool(self._lookup, request)

    def _lookup(self, request: Request) -> Response:
        table = self._open_table(request)
        key = list(table.state.primary_key)
        key_texts = parse_parameters(request, key) if key else {}
        if sorted(key_texts) != sorted(key) or not key:
            names = "&".join(f"{name}=…" for name in key) if key else "none: the table has no primary key"
            raise InvalidOptionError(f"table {table.name}: a lookup names each column of the primary key ({names})")
        columns = [table.schema.field(name) for name in key]
        rows = table.lookup(
            pa.table({column.name: _parse_key_value(key_texts[column.name], column, table) for column in columns})
        )
        if not rows["_found"][0].as_py():
            raise TableNotFoundError(f"table {table.name} has no row with this key", condition="ROW_NOT_FOUND")
        row = next(encode_row_texts(rows.drop_columns(["_found"])))
        return Response(row, media_type="application/json")

    async def changes(self, request: Request) -> Response:
        """Follow the table: server-sent events of some rows each, whose id is the position after them.

        The stream ends when the client's token expires; the client continues from the last event with a new token. Each
        follower that waits for rows holds a thread of a separate pool, so that other requests are answered.
        """
        require(request, "read", request.path_params["table"])
        client, parameters = client_of(request), parse_parameters(request, ("from",))
        name = client.name
        if client is ANONYMOUS and request.client is not None:
            name = request.client.host  # without tokens, clients are distinguished by address
        if (refusal := self._followers.admit(name)) is not None:
            return _busy_response(refusal)
        stop = new_event()
        try:
            start = _parse_start(request.headers.get("last-event-id") or parameters.get("from") or "latest")
            tail = await run_in_threadpool(self._open_tail, request, start, stop)
        except BaseException:
            self._followers.release(name)
            raise
        clock = self._warehouse.world.clock
        return FollowResponse(
            tail,
            stop,
            threads=self._followers.threads,
            has_ended=lambda: client.ends_s is not None and clock.now_ms() / 1000 >= client.ends_s,
            release=lambda: self._followers.release(name),
        )

    def _open_tail(self, request: Request, start: Any, stop: threading.Event) -> Tail:
        return self._open_table(request).tail(start, include_metadata=True, stop=stop)

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
    def of(cls, request: Request, table: Table, mode: str, body: bytes) -> _RowsRequest:
        parameters = parse_parameters(request, _WRITE_PARAMETERS)
        columns = [c.strip() for c in parameters["columns"].split(",")] if parameters.get("columns") else None
        dead_letters = parameters.get("dead_letters")
        bad_rows = parse_bad_rows(parameters.get("bad_rows"), dead_letters)
        if columns is not None and mode != "upsert":
            raise InvalidOptionError(
                f"columns= is for mode=upsert, a partial update by primary key, and not for {mode}"
            )
        if bad_rows != "refuse" and (columns is not None or mode == "delete"):
            raise InvalidOptionError(
                f"bad_rows={bad_rows} is for whole rows; leave it out, and all rows are taken or none"
            )
        schema, key = table.schema, table.state.primary_key
        if mode == "delete" or columns is not None:
            _require_key_and_columns(table, columns or ())
            schema = pa.schema([field for field in schema if field.name in (*key, *(columns or ()))])
        rules = CsvOptions(
            schema, defaults=default_scalars(evaluate_defaults(table.state.schema, StatementContext.of(table.world)))
        )
        kind = body_type(request.headers.getlist("content-type"))
        return cls(mode, body, kind, rules, columns, bad_rows, dead_letters or None)

    @property
    def parts(self) -> Sequence[bytes]:
        """The body, and all parameters that affect what is stored."""
        columns = ",".join(self.columns) if self.columns is not None else ""
        texts = (self.mode, self.kind, columns, self.bad_rows, self.dead_letters or "")
        return (self.body, *(text.encode() for text in texts))

    def rows(self) -> Body:
        return parse_body(self.body, self.kind, self.rules)

    def store(self, table: Table, rows: pa.Table, transaction: Transaction | None) -> BucketOffsets:
        match self.mode:
            case "upsert":
                return table.upsert(rows, columns=self.columns, transaction=transaction)
            case "delete":
                return table.delete(rows, transaction=transaction)
        return table.append(rows, transaction=transaction)


def _require_key_and_columns(table: Table, columns: Sequence[str]) -> None:
    """Raise `InvalidOptionError` unless the table has a primary key and ``columns``."""
    _ = table.keyed  # which raises without a primary key
    names = table.schema.names
    for column in columns:
        if column not in names:
            near = find_nearest(column, names)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(names[:20])}"
            raise InvalidOptionError(f"columns= has {quote(column)}, and table {table.name} has no such column; {hint}")


def _rejected_rows_response(error: SchemaMismatchError, table: Table, rows_request: _RowsRequest) -> Response:
    """Return the error that nothing was written, with each bad row if the request has whole rows."""
    answer = error_response(error)
    if rows_request.columns is not None or rows_request.mode == "delete":
        return answer
    try:
        bad = validate_rows(table, rows_request.rows()).bad
    except SchemaMismatchError:
        return answer
    body = json.loads(bytes(answer.body))
    body["error"]["bad_rows"] = [row.to_json() for row in bad[:BAD_ROWS_SHOWN]]
    return JSONResponse(body, answer.status_code)


def _revalidate_rows(table: Table, rows_request: _RowsRequest) -> Sequence[RejectedRow]:
    """Return the bad rows of a request that is stored already, validated against the current columns."""
    if rows_request.bad_rows == "refuse":
        return ()
    try:
        return validate_rows(table, rows_request.rows()).bad
    except SchemaMismatchError:
        return ()


def _parse_key_value(text: str, column: pa.Field, table: Table) -> pa.Array:
    """Return a value of a key column, parsed like a CSV field."""
    try:
        return decode_field(pa.array([text]), column)
    except (pa.ArrowException, ValueError, SchemaMismatchError) as error:
        raise InvalidOptionError(f"table {table.name}: the key is not of the columns' types: {error}") from error


def _parse_start(text: str) -> Any:
    if text in ("latest", "earliest"):
        return text
    try:
        return LogPosition.from_json(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise InvalidOptionError(
            f"from={text[:80]!r}: expected latest, earliest or the id of a received event"
        ) from error


def _parse_limit(text: str | None, default: int, most: int) -> int:
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 12 or int(text) > most:
        raise InvalidOptionError(f"limit={text[:40]!r}: expected a number of rows of at most {most:,}")
    return int(text)


def _parse_content_length(text: str | None) -> int:
    """Return the declared length of a body; 0 if there is none."""
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise InvalidOptionError(f"Content-Length is {text[:40]!r}, expected a number of bytes")
    return int(text)


def _too_large_response() -> Response:
    error = InvalidOptionError(f"the body has more than {BODY_BYTES_MAX >> 20} MiB; send the rows in several requests")
    answer = error_response(error)
    answer.status_code = 413
    return answer


def _busy_response(text: str) -> Response:
    body = {"error": {"condition": "BUSY", "kind": "unavailable", "message": f"BUSY: {text}"}}
    return JSONResponse(body, 429, {"Retry-After": str(RETRY_AFTER_S)})
