"""Guard of HTTP requests: authentication, rate limit, same-site checks, and the audit log."""

from __future__ import annotations

from typing import Any, Final

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.serve.admission import Admission
from streamhouse_spark.serve.audit import AuditLog
from streamhouse_spark.serve.refusal import Refusal
from streamhouse_spark.serve.responses import error_response, iceberg_error, iceberg_error_response
from streamhouse_spark.serve.same_site import AllowedSites
from streamhouse_spark.warehouse.warehouse import Warehouse

ICEBERG: Final = "/iceberg"
HEALTH: Final = "/health"
_DENIED: Final = (401, 403, 421, 429)
_CONDITIONS: Final = {
    401: ("NOT_AUTHENTICATED", "NotAuthorizedException"),
    403: ("FOREIGN_ORIGIN", "ForbiddenException"),
    421: ("UNKNOWN_HOST", "BadRequestException"),
    429: ("TOO_MANY_REQUESTS", "TooManyRequestsException"),
}
"""Status → the condition of our own API, and the exception of Iceberg clients."""


class Guard:
    """Middleware that authenticates a request and stores its client in the request state; handlers check rights.

    Without reading the body, it rejects a request without a token with 401, above its client's limit with 429, and from
    a page of another site with 403 or 421.
    """

    def __init__(
        self,
        app: ASGIApp,
        admission: Admission,
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
            else:  # it may request keys from the provider
                client = await to_thread.run_sync(access.client_of, authorization)
        except StreamhouseError as error:
            return iceberg_error_response(error) if request.scope["path"].startswith(ICEBERG) else error_response(error)
        if client is not None:
            state["client"] = client
        admitted = self._admission.admit(access, client, address)
        return _refusal_response(request, admitted) if isinstance(admitted, Refusal) else None

    def _write_audit(self, request: Request, state: dict[str, Any], status: int) -> None:
        """Write the audit line of a request that needs a right or was rejected."""
        if self._audit is None or ("right" not in state and status not in _DENIED):
            return
        client = state.get("client")
        credentials = {name: state[name] for name in ("credentials_until",) if name in state}
        self._audit.write(
            {
                "request": state["request_id"],
                "client": client.name if client else None,
                "address": request.client.host if request.client else None,
                "method": request.method,
                "path": request.scope["path"],
                "right": state.get("right"),
                "table": state.get("table"),
                "rows": state.get("rows"),
                "status": status,
                "allowed": status not in _DENIED and not state.get("denied"),
                **credentials,
            }
        )


def _refusal_response(request: Request, refusal: Refusal) -> Response:
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
