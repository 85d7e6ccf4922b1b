"""Errors over Arrow Flight, with condition, kind and HTTP status as JSON in ``extra_info``.

Only Flight errors are raised to pyarrow: it would send a traceback of any other error to the client.
"""

from __future__ import annotations

import json
from typing import Final

from pyarrow import flight

from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.serve.refusal import Refusal
from streamhouse_spark.serve.responses import status_of

_TEXT_BYTES_MAX: Final = 1_200
"""Bytes of an error text: gRPC clients accept 8 KiB of headers, which contain it several times."""
_KINDS: Final = {
    401: flight.FlightUnauthenticatedError,
    403: flight.FlightUnauthorizedError,
    429: flight.FlightUnavailableError,
    503: flight.FlightUnavailableError,
    500: flight.FlightInternalError,
}
_CONDITIONS: Final = {401: "NOT_AUTHENTICATED", 429: "TOO_MANY_REQUESTS", 503: "BUSY"}


def flight_error(error: StreamhouseError) -> flight.FlightError:
    """Return the error as a Flight error."""
    return _error(status_of(error), error.condition, error.kind.value, str(error))


def rejection_error(refusal: Refusal) -> flight.FlightError:
    """Return the error of a call that is not authenticated or exceeds its limit."""
    condition = _CONDITIONS[refusal.status]
    kind = "invalid" if refusal.status == 401 else "unavailable"
    wait = f"; send it again in {refusal.wait_s} s" if refusal.wait_s else ""
    return _error(refusal.status, condition, kind, f"{condition}: {refusal.text}{wait}")


def internal_error(request_id: str) -> flight.FlightError:
    """Return the error of a defect. It has no details; the server's log does."""
    text = f"INTERNAL: the server failed, its log has the reason under request {request_id}"
    return _error(500, "INTERNAL", "internal", text)


def _error(status: int, condition: str, kind: str, text: str) -> flight.FlightError:
    info = json.dumps({"condition": condition, "kind": kind, "status": status})
    return _KINDS.get(status, flight.FlightServerError)(_fit_header(text), info.encode())


def _fit_header(text: str) -> str:
    """Return a text that fits into a header, shortened in the middle: its end has the remedy."""
    text = text.encode("ascii", "backslashreplace").decode()
    if len(text) <= _TEXT_BYTES_MAX:
        return text
    return f"{text[: _TEXT_BYTES_MAX // 2]} ... {text[-_TEXT_BYTES_MAX // 2 :]}"
