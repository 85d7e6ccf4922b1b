"""Checks of an HTTP request before its handler: same-site check, authentication, rate limit, right, and audit log.

`AuthMiddleware` authenticates the client of a request, and the routes of `make_route` check its right on the requested
table.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from typing import Any, Final

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamhouse_spark.core.clock import Clock
from streamhouse_spark.core.concurrency import new_lock
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.serve.acl import Access, AccessOf, Client, Right, hide_names, require_right
from streamhouse_spark.serve.audit import AuditLog
from streamhouse_spark.serve.responses import error_response, iceberg_error, iceberg_error_response
from streamhouse_spark.serve.same_site import AllowedSites, Rejection
from streamhouse_spark.warehouse.warehouse import Warehouse

_BURST_S: Final = 2.0
"""After a pause, a client may send the requests of this time in a burst."""
_CLIENTS_MAX: Final = 10_000
"""Maximum number of token buckets. A client without a bucket starts with a full one."""
_WRONG_TOKENS_PER_S: Final = 5.0
"""Requests without a valid token per address and second. Further requests are rejected with status 429."""
ICEBERG: Final = "/iceberg"
HEALTH: Final = "/health"
_CONDITIONS: Final = {
    401: ("NOT_AUTHENTICATED", "NotAuthorizedException"),
    403: ("FOREIGN_ORIGIN", "ForbiddenException"),
    421: ("UNKNOWN_HOST", "BadRequestException"),
    429: ("TOO_MANY_REQUESTS", "TooManyRequestsException"),
}
"""Status → the error condition of our API, and the exception of Iceberg clients."""


class RateLimit:
    """A rate limit per client, by token buckets (Turner 1986) of this process. Safe for threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = new_lock()
        self._buckets: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def wait_s(self, client: str, requests_per_s: float) -> int:
        """Count a request and return 0, or reject the request and return the whole seconds until a retry."""
        capacity = max(1.0, requests_per_s * _BURST_S)
        now_ms = self._clock.boot_ms()
        with self._lock:
            tokens, last_ms = self._buckets.pop(client, (capacity, now_ms))
            tokens = min(capacity, tokens + (now_ms - last_ms) / 1000 * requests_per_s)
            is_free = tokens >= 1
            self._buckets[client] = (tokens - is_free, now_ms)
            if len(self._buckets) > _CLIENTS_MAX:
                self._buckets.popitem(last=False)
        return 0 if is_free else max(1, math.ceil((1 - tokens) / requests_per_s))


class Authenticator:
    """Authenticates clients, and limits their requests over all protocols. Safe for threads."""

    def __init__(self, access: AccessOf, clock: Clock) -> None:
        self._access = access
        self._limit = RateLimit(clock)

    @property
    def access(self) -> Access:
        """The current access rights."""
        return self._access()

    def authenticate(self, authorization: str | None, address: str) -> Client | Rejection:
        """Return the client of a request. Raises the errors of `Access.client_of`."""
        access = self.access
        return self.admit(access, access.client_of(authorization), address)

    def admit(self, access: Access, client: Client | None, address: str) -> Client | Rejection:
        """Count a request of an authenticated client, or of an address without a valid token."""
        if client is None:
            wait_s = self._limit.wait_s(f"wrong tokens of {address}", _WRONG_TOKENS_PER_S)
            if wait_s:
                return Rejection(429, "this address sent too many requests without a valid token", wait_s)
            return Rejection(401, "found no valid token; send Authorization: Bearer TOKEN")
        rate = client.requests_per_s or access.requests_per_s
        key = f"{address} {client.name}" if access.is_open else client.name
        wait_s = self._limit.wait_s(key, rate) if rate else 0
        if rate and wait_s:
            return Rejection(429, f"the client {client.name} sends more than {rate:g} requests/s", wait_s)
        return client


class AuthMiddleware:
    """Middleware that authenticates a request and stores its client in the request state; handlers check rights.

    It rejects requests without a valid token with status 401, above the client's limit with 429, and from a page of
    another site with 403 or 421, without reading their body.
    """

    def __init__(
        self,
        app: ASGIApp,
        admission: Authenticator,
        warehouse: Warehouse,
        open_paths: tuple[str, ...],
        audit: AuditLog | None,
        sites: AllowedSites,
    ) -> None:
        self._app = app
        self._admission = admission
        self._ids = warehouse.world.ids
        self._open_paths = open_paths
        self._audit = audit
        self._sites = sites

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        state = scope.setdefault("state", {})
        state["request_id"] = self._ids.new_uuid()
        refused = self._check_site(request)
        if refused is None and scope["path"] not in self._open_paths:
            refused = await self._check_client(request, state)

        async def send_with_audit(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", state["request_id"].encode())]
                self._write_audit(request, state, message["status"])
            await send(message)

        await (refused or self._app)(scope, receive, send_with_audit)

    def _check_site(self, request: Request) -> Response | None:
        if request.scope["path"] == HEALTH:  # load balancers use their own host names
            return None
        requires_token = not self._admission.access.is_open
        refusal = self._sites.check(request.headers, requires_token=requires_token)
        return _refusal_response(request, refusal) if refusal is not None else None

    async def _check_client(self, request: Request, state: dict[str, Any]) -> Response | None:
        access, address = self._admission.access, request.client.host if request.client else ""
        authorization = request.headers.get("authorization")
        try:
            if access.issuer is None:
                client = access.client_of(authorization)
            else:  # may request the provider's keys
                client = await to_thread.run_sync(access.client_of, authorization)
        except StreamhouseError as error:
            return iceberg_error_response(error) if request.scope["path"].startswith(ICEBERG) else error_response(error)
        if client is not None:
            state["client"] = client
        admitted = self._admission.admit(access, client, address)
        return _refusal_response(request, admitted) if isinstance(admitted, Rejection) else None

    def _write_audit(self, request: Request, state: dict[str, Any], status: int) -> None:
        if self._audit is None:
            return
        client = state.get("client")
        self._audit.write_request(
            state["request_id"],
            client=client.name if client else None,
            address=request.client.host if request.client else None,
            method=request.method,
            path=request.scope["path"],
            right=state.get("right"),
            table=state.get("table"),
            rows=state.get("rows"),
            status=status,
            is_denied=bool(state.get("denied")),
            **{name: state[name] for name in ("credentials_until",) if name in state},
        )


def _refusal_response(request: Request, refusal: Rejection) -> Response:
    status, text = refusal.status, refusal.text
    condition, exception = _CONDITIONS[status]
    if request.scope["path"].startswith(ICEBERG):
        answer = iceberg_error(status, exception, text)
    else:
        kind = "unavailable" if status == 429 else "invalid"
        body = {"condition": condition, "kind": kind, "message": f"{condition}: {text}"}
        answer = JSONResponse({"error": body}, status)
    if status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    if refusal.wait_s:
        answer.headers["Retry-After"] = str(refusal.wait_s)
    return answer


# -- rights -----------------------------------------------------------------------------------------------------------


def client_of(request: Request) -> Client:
    """Return the client that `AuthMiddleware` authenticated, else a client without rights."""
    client = request.scope.get("state", {}).get("client")
    return client if isinstance(client, Client) else Client("unknown")


def require_request_right(request: Request, right: Right, table: str) -> None:
    """Check the right of a request's client on a table. Raises the errors of `require_right`."""
    path = parse_table_name(table).path
    state = request.scope.setdefault("state", {})
    state.update(right=right, table=str(path), denied=True)
    require_right(client_of(request), right, path)
    state["denied"] = False


def _path_table(request: Request) -> str:
    return str(request.path_params["table"])


def make_route(
    path: str,
    handler: Callable[[Request], Any],
    exists: Callable[[str], bool],
    *,
    right: Right | None = None,
    table_of: Callable[[Request], str] = _path_table,
    to_response: Callable[[StreamhouseError], Response] = error_response,
    methods: Sequence[str] = ("GET",),
) -> Route:
    """Return a route that checks the client's right on a table, runs the handler, and responds to its errors.

    A handler that is not a coroutine runs in a thread. ``exists`` returns whether a table exists, so that errors can
    hide tables that the client may not see.
    """

    async def answer(request: Request) -> Response:
        try:
            if right is not None:
                require_request_right(request, right, table_of(request))
            if iscoroutinefunction(handler):
                response: Response = await handler(request)
            else:
                response = await to_thread.run_sync(handler, request)
            return response
        except StreamhouseError as error:
            table = request.scope.get("state", {}).get("table")
            return to_response(await to_thread.run_sync(hide_names, error, client_of(request), table, exists))

    return Route(path, answer, methods=list(methods))
