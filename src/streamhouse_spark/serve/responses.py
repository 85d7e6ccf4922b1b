"""Query parameters of requests, and error responses of our API and of Iceberg's REST protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse

from streamhouse_spark.core.option_parsing import find_nearest
from streamhouse_spark.errors import (
    ErrorKind,
    IdempotencyKeyReusedError,
    InvalidNameError,
    InvalidOptionError,
    NotAuthorizedError,
    StorageRefusedError,
    StreamhouseError,
    TableNotFoundError,
    WriterFullError,
    quote,
)

_STATUS: Final = {
    ErrorKind.CONFLICT: 409,
    ErrorKind.FENCED: 409,
    ErrorKind.UNAVAILABLE: 503,
    ErrorKind.INVALID: 400,
    ErrorKind.CORRUPT: 500,
    ErrorKind.INTERNAL: 500,
}
RETRY_AFTER_S: Final = 1


def parse_parameters(request: Request, allowed: Sequence[str]) -> Mapping[str, str]:
    """Return the parameters of a request. Raises `InvalidOptionError` for an unknown or repeated parameter."""
    items = request.query_params.multi_items()
    for name, _ in items:
        if name not in allowed:
            near = find_nearest(name, allowed)
            hint = f"did you mean {near}?" if near else f"expected {', '.join(allowed) or 'none'}"
            raise InvalidOptionError(f"{request.method} {request.scope['path']} has no parameter {quote(name)}; {hint}")
    if len(items) > len(request.query_params):
        names = [name for name, _ in items]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidOptionError(f"parameter {quote(twice)} occurs {names.count(twice)} times, expected once")
    return request.query_params


def status_of(error: StreamhouseError) -> int:
    """Return the HTTP status of an error."""
    match error:
        case TableNotFoundError():
            return 404
        case IdempotencyKeyReusedError():
            return 422
        case InvalidOptionError(condition="UNSUPPORTED_MEDIA_TYPE"):
            return 415
        case WriterFullError():
            return 429
        case NotAuthorizedError() | StorageRefusedError():
            return 403
    return _STATUS[error.kind]


def error_response(error: StreamhouseError) -> JSONResponse:
    """Return the error response of our API."""
    status = status_of(error)
    is_retryable = status in (429, 503) or error.condition == "REQUEST_IN_FLIGHT"
    headers = {"Retry-After": str(RETRY_AFTER_S)} if is_retryable else None
    body = {"error": {"condition": error.condition, "kind": error.kind.value, "message": str(error)}}
    return JSONResponse(body, status, headers)


def iceberg_error(status: int, kind: str, message: str) -> JSONResponse:
    """Return an error response of Iceberg's REST protocol (``ErrorModel``)."""
    return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status)


def iceberg_error_response(error: StreamhouseError, absent: str = "NoSuchTableException") -> JSONResponse:
    """Return the response that Iceberg clients convert to an exception, which is ``absent`` for a missing object."""
    match error:
        case TableNotFoundError() | InvalidNameError():
            return iceberg_error(404, absent, str(error))
    status = status_of(error)
    kinds = {503: "ServiceUnavailableException", 400: "BadRequestException", 403: "ForbiddenException"}
    return iceberg_error(status, kinds.get(status, error.condition), str(error))
