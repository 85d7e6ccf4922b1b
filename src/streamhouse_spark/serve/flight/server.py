"""Bulk reads over Arrow Flight: ``streamhouse serve --flight-port``.

`GetFlightInfo` pins a table state and returns one ticket per part; `DoGet` streams a part. Rows are read as the client
consumes them: gRPC's back-pressure pauses the read while a client is slow. Every call requires a token and a right on
its table, also `DoGet`, because its ticket may come from another client.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, Final, NoReturn, TypeVar
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyarrow import flight

from streamhouse_spark.core.concurrency import new_event, new_lock
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.errors import InvalidOptionError, StreamhouseError
from streamhouse_spark.serve.acl import require_definition
from streamhouse_spark.serve.app_context import AppContext
from streamhouse_spark.serve.flight.middleware import (
    Call,
    CallRejectedError,
    FlightCallRunner,
    flight_error,
    internal_error,
    rejection_error,
)
from streamhouse_spark.serve.flight.read_service import FlightReadPlan, FlightReadService, count_rows
from streamhouse_spark.serve.flight.requests import (
    ReadRequest,
    ReadTicket,
    parse_command,
    parse_path,
    parse_ticket,
)
from streamhouse_spark.serve.options import ListenAddress
from streamhouse_spark.serve.same_site import Rejection
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.table_batch import open_all

logger = logging.getLogger(__name__)

STREAMS_MAX: Final = 64
STREAMS_OF_CLIENT_MAX: Final = 32
"""Maximum streams per client, so that a client cannot exclude other clients."""
_READ_ONLY: Final = (
    "Arrow Flight is read-only (GetFlightInfo, GetSchema, ListFlights, DoGet); write rows with POST "
    "/api/v1/tables/<table>/rows, or with Python or Spark"
)

Stream = Iterator[pa.RecordBatch]
Method = TypeVar("Method", bound=Callable[..., Any])


def _hide_file_path(method: Method) -> Method:
    """Hide the path of a method's file in tracebacks, which pyarrow sends to clients."""
    assert isinstance(method, FunctionType)
    method.__code__ = method.__code__.replace(co_filename="streamhouse")
    return method


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """The Arrow Flight server. It listens once it is constructed. Safe for threads: each call has a thread."""

    def __init__(self, shared: AppContext, listening: ListenAddress) -> None:
        """Raises `InvalidOptionError` for an unavailable address."""
        self._shared = shared
        self._calls = FlightCallRunner(shared)
        self._reads = FlightReadService(shared.tables)
        self._clock = shared.tables.warehouse.world.clock
        self._stopping = new_event()
        self._lock = new_lock()
        self._streams: WeakKeyDictionary[Stream, str] = WeakKeyDictionary()
        scheme, port = "grpc+tls" if listening.tls_cert else "grpc", listening.flight_port or 0
        base = f"{scheme}://{listening.url_host}"
        try:
            _require_free_port(listening.host, port)
            super().__init__(
                f"{base}:{port}",
                middleware=self._calls.middleware(),
                tls_certificates=_read_certificates(listening),
            )
        except (OSError, pa.ArrowException) as error:
            raise InvalidOptionError(
                f"cannot listen at {listening.host}:{port}: the port is in use, or the address is not one of this "
                "machine; use another --flight-port"
            ) from error
        self.url = f"{base}:{self.port}"

    def stop(self, timeout_s: float) -> bool:
        """Reject new calls, and end streams between two batches. Return whether all streams have ended.

        A stream whose client consumes nothing is abandoned. Its gRPC thread waits forever, also at interpreter exit.
        """
        self._stopping.set()
        ending = threading.Thread(target=self.shutdown, daemon=True)
        ending.start()
        ending.join(timeout_s)
        if ending.is_alive():
            logger.warning("clients of Arrow Flight consumed nothing for %g s and were abandoned", timeout_s)
        return not ending.is_alive()

    # -- calls that read ----------------------------------------------------------------------------------------------

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        """List the tables that the client may read, optionally of the database in ``criteria``."""
        return iter(self._calls.run_call("ListFlights", context, lambda call: self._list_tables(call, criteria)))

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        def answer(call: Call) -> flight.FlightInfo:
            request = self._parse_descriptor(call, descriptor)
            return _to_flight_info(self._reads.plan_read(request), descriptor)

        return self._calls.run_call("GetFlightInfo", context, answer)

    @_hide_file_path
    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        """Return the columns.

        Clients get errors as Arrow's `UnknownError`, because pyarrow does not convert Flight errors of this method. The
        text starts with the condition.
        """

        def answer(call: Call) -> flight.SchemaResult:
            return flight.SchemaResult(self._reads.schema(self._parse_descriptor(call, descriptor)))

        try:
            return self._calls.run_call("GetSchema", context, answer)
        except flight.FlightError as error:
            failed = error.with_traceback(None)
        raise failed

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        """Stream the rows of a ticket. The stream raises the errors of `RowStream.batches`."""

        def answer(call: Call) -> flight.FlightDataStream:
            parsed = parse_ticket(ticket.ticket)
            self._require_read(call, parsed.request.table)
            self._require_room(call)
            rows = self._reads.rows(parsed)
            return flight.GeneratorStream(rows.schema, self._register_stream(call, rows.batches))

        return self._calls.run_call("DoGet", context, answer)

    def _parse_descriptor(self, call: Call, descriptor: flight.FlightDescriptor) -> ReadRequest:
        """Parse the request of a descriptor, and check the right to read its table."""
        is_path = descriptor.descriptor_type == flight.DescriptorType.PATH
        request = parse_path(descriptor.path) if is_path else parse_command(descriptor.command or b"")
        self._require_read(call, request.table)
        return request

    def _require_read(self, call: Call, table: str) -> None:
        """Raise `TableNotFoundError` if the client may not read a table or system table."""
        call.require_read(table)
        if (name := parse_table_name(table)).suffix is not None:
            require_definition(call.client_or_unknown, name, self._shared.tables.table(str(name.path)).state)

    def _list_tables(self, call: Call, criteria: bytes) -> list[flight.FlightInfo]:
        database = criteria.decode("utf-8", "replace") or None
        if database is not None and not self._can_see_database(call, database):
            return []
        opened = open_all(self._shared.tables.warehouse, database)
        opened.tables = [table for table in opened.tables if call.client_or_unknown.can("read", table.path)]
        return opened.each(_make_listed_info)

    def _can_see_database(self, call: Call, database: str) -> bool:
        """Return whether a database exists, and the client has a right on one of its tables."""
        return call.client_or_unknown.can_read_all() or (
            call.client_or_unknown.can_see_database(database) and database in self._shared.tables.warehouse.databases()
        )

    # -- streams ------------------------------------------------------------------------------------------------------

    def _require_room(self, call: Call) -> None:
        with self._lock:
            self._require_free_stream(self._stream_owner(call))

    def _require_free_stream(self, name: str) -> None:
        running = list(self._streams.values())
        if len(running) >= STREAMS_MAX or running.count(name) >= STREAMS_OF_CLIENT_MAX:
            raise CallRejectedError(
                Rejection(503, f"this server allows {STREAMS_MAX} streams, and {STREAMS_OF_CLIENT_MAX} per client", 1)
            )

    def _stream_owner(self, call: Call) -> str:
        """Return the name by which a client's streams are counted, or without tokens its address."""
        return call.address if self._shared.admission.access.is_open else call.client_or_unknown.name

    def _register_stream(self, call: Call, rows: Iterator[pa.RecordBatch]) -> Stream:
        """Count a stream while it exists, even if its client disconnects before the first batch.

        Raises `CallRejectedError` if other streams reached the limit since `_require_room`.
        """
        stream, name = self._stream_batches(call, rows), self._stream_owner(call)
        with self._lock:
            self._require_free_stream(name)
            self._streams[stream] = name
        return stream

    def _stream_batches(self, call: Call, rows: Iterator[pa.RecordBatch]) -> Stream:
        """Yield the batches until the server stops or the client's token expires. Raises only Flight errors."""
        expires_s = call.client_or_unknown.expires_s
        try:
            for batch in rows:
                if self._stopping.is_set():
                    raise rejection_error(Rejection(503, "this server is stopping; retry later, or use another server"))
                if expires_s is not None and self._clock.now_ms() / 1000 >= expires_s:
                    raise rejection_error(Rejection(401, "the token has expired; send a valid token"))
                yield batch
        except StreamhouseError as error:
            raise flight_error(error) from None
        except flight.FlightError:
            raise
        except Exception:
            logger.exception("a stream over Arrow Flight failed, request %s", call.request_id)
            raise internal_error(call.request_id) from None

    # -- calls that are refused ---------------------------------------------------------------------------------------

    def do_put(self, context: flight.ServerCallContext, *stream: Any) -> NoReturn:  # noqa: ARG002 - as its base
        self._refuse("DoPut", context)

    def do_exchange(self, context: flight.ServerCallContext, *stream: Any) -> NoReturn:  # noqa: ARG002 - as its base
        self._refuse("DoExchange", context)

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> NoReturn:  # noqa: ARG002
        self._refuse("DoAction", context)

    def list_actions(self, context: flight.ServerCallContext) -> list[flight.ActionType]:
        """Return no actions."""
        return self._calls.run_call("ListActions", context, lambda _: [])

    def _refuse(self, method: str, context: flight.ServerCallContext) -> NoReturn:
        def answer(call: Call) -> NoReturn:  # noqa: ARG001 - for any client
            raise InvalidOptionError(_READ_ONLY)

        self._calls.run_call(method, context, answer)
        raise AssertionError


def _to_flight_info(offer: FlightReadPlan, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
    """Return the info without locations, because any server of the warehouse accepts the tickets."""
    endpoints = [flight.FlightEndpoint(ticket.to_bytes(), []) for ticket in offer.tickets]
    num_rows, num_bytes = (-1 if number is None else number for number in (offer.num_rows, offer.num_bytes))
    pinned = json.dumps({"version": offer.version}) if offer.version is not None else "{}"
    return flight.FlightInfo(offer.schema, descriptor, endpoints, num_rows, num_bytes, app_metadata=pinned)


def _make_listed_info(table: Table) -> flight.FlightInfo:
    """Return the info of a table with a ticket for all rows of its latest state."""
    state = table.state
    offer = FlightReadPlan(state.schema.arrow, (ReadTicket(ReadRequest(table.name)),), count_rows(state))
    return _to_flight_info(offer, flight.FlightDescriptor.for_path(table.name))


def _read_certificates(listening: ListenAddress) -> list[tuple[bytes, bytes]] | None:
    if listening.tls_cert is None or listening.tls_key is None:
        return None
    return [(Path(listening.tls_cert).read_bytes(), Path(listening.tls_key).read_bytes())]


def _require_free_port(host: str, port: int) -> None:
    """Raise `OSError` for a port on which another process listens, because gRPC would silently share the port."""
    if not port:
        return
    family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, number) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
