"""Checks of Arrow Flight calls: authentication, rate limit, counters, audit log, and errors.

They correspond to the checks of HTTP requests in `auth.py` and `app.py`, and share their `AppContext`, so rate limits
count requests of both protocols. Only Flight errors are raised to pyarrow, which would send a traceback of any other
error to the client.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from pyarrow import flight

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.serve.acl import Client, hide_names, require_right
from streamhouse_spark.serve.app_context import AppContext
from streamhouse_spark.serve.responses import status_of
from streamhouse_spark.serve.same_site import Rejection

_TEXT_BYTES_MAX: Final = 1_200
"""Maximum bytes of an error. gRPC clients accept 8 KiB of headers, which contain the error several times."""
_KINDS: Final = {
    401: flight.FlightUnauthenticatedError,
    403: flight.FlightUnauthorizedError,
    429: flight.FlightUnavailableError,
    503: flight.FlightUnavailableError,
    500: flight.FlightInternalError,
}
_CONDITIONS: Final = {401: "NOT_AUTHENTICATED", 429: "TOO_MANY_REQUESTS", 503: "BUSY"}
logger = logging.getLogger(__name__)
AREA: Final = "flight"
_HEADERS: Final = "headers"
T = TypeVar("T")


def flight_error(error: StreamhouseError) -> flight.FlightError:
    """Convert an error to a Flight error."""
    return _error(status_of(error), error.condition, error.kind.value, str(error))


def rejection_error(refusal: Rejection) -> flight.FlightError:
    """Return the Flight error of a rejected call."""
    condition = _CONDITIONS[refusal.status]
    kind = "invalid" if refusal.status == 401 else "unavailable"
    wait = f"; retry in {refusal.wait_s} s" if refusal.wait_s else ""
    return _error(refusal.status, condition, kind, f"{condition}: {refusal.text}{wait}")


def internal_error(request_id: str) -> flight.FlightError:
    """Return the Flight error of a defect. The details are in the server's log only."""
    text = f"INTERNAL: the server failed; see its log for request {request_id}"
    return _error(500, "INTERNAL", "internal", text)


def _error(status: int, condition: str, kind: str, text: str) -> flight.FlightError:
    info = json.dumps({"condition": condition, "kind": kind, "status": status})
    return _KINDS.get(status, flight.FlightServerError)(_fit_header(text), info.encode())


def _fit_header(text: str) -> str:
    """Shorten a text in the middle so that it fits into a header. Its end has the remedy."""
    text = text.encode("ascii", "backslashreplace").decode()
    if len(text) <= _TEXT_BYTES_MAX:
        return text
    return f"{text[: _TEXT_BYTES_MAX // 2]} ... {text[-_TEXT_BYTES_MAX // 2 :]}"


class CallRejectedError(Exception):
    """A call that is rejected before it runs."""

    def __init__(self, refusal: Rejection) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


class HeaderMiddleware(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no types
    """The headers of a call. The response contains the request id of the logs."""

    def __init__(self, request_id: str, authorization: str | None) -> None:
        self.request_id = request_id
        self.authorization = authorization

    def sending_headers(self) -> Mapping[str, str]:
        return {"x-request-id": self.request_id}


class HeaderMiddlewareFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, world: World) -> None:
        self._ids = world.ids

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[str | bytes]]) -> HeaderMiddleware:  # noqa: ARG002
        authorizations = [
            value for name, values in headers.items() if name.lower() == "authorization" for value in values
        ]
        authorization = authorizations[0] if len(authorizations) == 1 else None
        return HeaderMiddleware(self._ids.new_uuid(), authorization if isinstance(authorization, str) else None)


@dataclass(slots=True)
class Call:
    method: str
    request_id: str
    address: str
    client: Client | None = None
    table: str | None = None
    """The table on which the call requires a right."""
    is_denied: bool = False
    """Whether the client does not have the right."""

    def require_read(self, table: str) -> None:
        """Raise `TableNotFoundError` if the client may not read a table, and `InvalidNameError`."""
        path = parse_table_name(table).path
        self.table, self.is_denied = str(path), True
        require_right(self.client_or_unknown, "read", path)
        self.is_denied = False

    @property
    def client_or_unknown(self) -> Client:
        return self.client or Client("unknown")


class FlightCallRunner:
    """Runs calls of authenticated clients. Safe for threads."""

    def __init__(self, shared: AppContext) -> None:
        self._shared = shared
        self._world = shared.tables.warehouse.world

    def middleware(self) -> Mapping[str, flight.ServerMiddlewareFactory]:
        return {_HEADERS: HeaderMiddlewareFactory(self._world)}

    def run_call(self, method: str, context: flight.ServerCallContext, answer: Callable[[Call], T]) -> T:
        """Authenticate the client of a call, and run it. Raises only Flight errors."""
        headers = context.get_middleware(_HEADERS)
        call, began_ms = Call(method, headers.request_id, address_of(context.peer())), self._world.clock.boot_ms()
        status = 500
        try:
            admitted = self._shared.admission.authenticate(headers.authorization, call.address)
            if isinstance(admitted, Rejection):
                raise CallRejectedError(admitted)
            call.client = admitted
            result = answer(call)
            status = 200
        except StreamhouseError as error:
            warehouse = self._shared.tables.warehouse
            shown = hide_names(error, call.client_or_unknown, call.table, warehouse.exists)
            status = status_of(shown)
            raise flight_error(shown) from None
        except CallRejectedError as error:
            status = error.refusal.status
            raise rejection_error(error.refusal) from None
        except Exception:
            logger.exception("a call over Arrow Flight failed, request %s", call.request_id)
            raise internal_error(call.request_id) from None
        finally:
            self._record_call(call, status, (self._world.clock.boot_ms() - began_ms) / 1000)
        return result

    def _record_call(self, call: Call, status: int, busy_s: float) -> None:
        self._shared.counts.count_request(call.method, AREA, status, busy_s)
        client = call.client.name if call.client else None
        of = {"method": call.method, "path": AREA, "status": status, "busy_s": busy_s}
        of |= {"request": call.request_id, "client": client}
        logger.info("answered a request", extra={f"streamhouse_{name}": value for name, value in of.items()})
        if self._shared.audit is not None:
            self._shared.audit.write_request(
                call.request_id,
                client=client,
                address=call.address,
                method=call.method,
                path=AREA,
                right="read" if call.table else None,
                table=call.table,
                rows=None,
                status=status,
                is_denied=call.is_denied,
            )


def address_of(peer: str) -> str:
    """Return the address of a gRPC peer such as ``ipv4:127.0.0.1:40302`` or ``ipv6:%5B::1%5D:40302``."""
    host = peer.partition(":")[2].rpartition(":")[0]
    return host.replace("%5B", "").replace("%5D", "").strip("[]") or peer
