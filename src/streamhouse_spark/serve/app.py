"""The web application of ``streamhouse serve``: its routes, and the check of rights before each."""

from __future__ import annotations

import logging
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamhouse_spark.core.clock import Clock
from streamhouse_spark.serve.access import Access
from streamhouse_spark.serve.answers import iceberg_error
from streamhouse_spark.serve.counts import ServedCounts
from streamhouse_spark.serve.iceberg_rest import iceberg_routes
from streamhouse_spark.serve.openapi import openapi
from streamhouse_spark.serve.options import ServeOptions
from streamhouse_spark.serve.overview import Overview
from streamhouse_spark.serve.rows_api import rows_routes
from streamhouse_spark.serve.virtual_tables import VirtualTables
from streamhouse_spark.warehouse.warehouse import Warehouse

logger = logging.getLogger(__name__)

ICEBERG: Final = "/iceberg"
API: Final = "/api/v1"
_OPEN_PATHS: Final = ("/", "/health", f"{ICEBERG}/v1/config", f"{API}/openapi.json")
"""Answered without a token: they tell nothing of the warehouse."""
_AREAS: Final = ("iceberg", "api", "metrics", "health", "page")
_READS_BY_POST: Final = "/metrics"
"""End of the one path that engines post to while they read."""


def make_app(warehouse: Warehouse, options: ServeOptions | None = None) -> Starlette:
    """Make the application. It holds no state that another process would miss: any number of them may run."""
    options = options or ServeOptions()
    tables = VirtualTables(warehouse, grace_ms=options.grace_ms)
    counts = ServedCounts()
    routes = [
        Route("/health", _health, methods=["GET", "HEAD"]),
        Route(f"{API}/openapi.json", _openapi, methods=["GET"]),
        *Overview(warehouse, counts).routes(),
        Mount(API, routes=rows_routes(warehouse, counts)),
        Mount(ICEBERG, routes=iceberg_routes(tables, options.client_config)),
    ]
    clock = warehouse.world.clock
    middleware = [Middleware(_Counted, counts=counts, clock=clock), Middleware(_Guard, access=options.access)]
    app = Starlette(routes=routes, middleware=middleware)
    app.state.tables = tables
    return app


class _Counted:
    """Counts requests by area and status."""

    def __init__(self, app: ASGIApp, counts: ServedCounts, clock: Clock) -> None:
        self._app = app
        self._counts = counts
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_ms = self._clock.boot_ms()
        area = scope["path"].split("/")[1] or "page"
        area = area if area in _AREAS else "other"

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                busy_s = (self._clock.boot_ms() - began_ms) / 1000
                self._counts.answered(scope["method"], area, message["status"], busy_s)
                of = {"method": scope["method"], "path": scope["path"], "status": message["status"], "busy_s": busy_s}
                logger.info("answered a request", extra={f"streamhouse_{name}": value for name, value in of.items()})
            await send(message)

        await self._app(scope, receive, noted)


class _Guard:
    """Lets a request pass whose token has the right for it."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refused(Request(scope)) if scope["type"] == "http" else None
        if refused is None:
            await self._app(scope, receive, send)
        else:
            await refused(scope, receive, send)

    def _refused(self, request: Request) -> Response | None:
        path = request.url.path
        if self._access.is_open or path in _OPEN_PATHS:
            return None
        right = self._access.right_of(request.headers.get("authorization"))
        reads = request.method in ("GET", "HEAD") or (path.startswith(ICEBERG) and path.endswith(_READS_BY_POST))
        if right == "write" or (right == "read" and reads):
            return None
        if right is None:
            status, kind, text = 401, "NotAuthorizedException", "send a token: Authorization: Bearer TOKEN"
        else:
            status, kind, text = 403, "ForbiddenException", "this token may read, and not write"
        if path.startswith(ICEBERG):
            return iceberg_error(status, kind, text)
        body = {"error": {"condition": "NOT_AUTHORIZED", "kind": "invalid", "message": f"NOT_AUTHORIZED: {text}"}}
        return JSONResponse(body, status, {"WWW-Authenticate": "Bearer"} if right is None else None)


def _health(request: Request) -> Response:  # noqa: ARG001 - a handler
    return JSONResponse({"status": "ok"})


def _openapi(request: Request) -> Response:  # noqa: ARG001 - a handler
    return JSONResponse(openapi())
