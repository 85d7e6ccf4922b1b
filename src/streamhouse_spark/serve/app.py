"""Web application of ``streamhouse serve``: its routes and middleware."""

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
from streamhouse_spark.serve.admission import Admission
from streamhouse_spark.serve.app_context import AppContext
from streamhouse_spark.serve.guard import HEALTH, ICEBERG, Guard
from streamhouse_spark.serve.iceberg.rest import iceberg_routes
from streamhouse_spark.serve.iceberg.stale_fallback import StaleFallback
from streamhouse_spark.serve.iceberg.system_metadata import SystemDocuments
from streamhouse_spark.serve.iceberg.vending import CredentialVendor
from streamhouse_spark.serve.iceberg.virtual_tables import VirtualTables
from streamhouse_spark.serve.metrics import ServerCounters
from streamhouse_spark.serve.open_tables import OpenTables
from streamhouse_spark.serve.openapi import openapi
from streamhouse_spark.serve.options import ServeOptions
from streamhouse_spark.serve.overview import Overview
from streamhouse_spark.serve.rest_api import rows_routes
from streamhouse_spark.warehouse.warehouse import Warehouse

logger = logging.getLogger(__name__)

API: Final = "/api/v1"
_PUBLIC_PATHS: Final = ("/", HEALTH, f"{ICEBERG}/v1/config", f"{API}/openapi.json")
"""Paths that need no token: they reveal nothing about the warehouse."""
_AREAS: Final = ("iceberg", "api", "metrics", "health", "page")


def make_app(warehouse: Warehouse, options: ServeOptions | None = None) -> Starlette:
    """Build the application. It keeps no state that another process would miss, so any number of them may run."""
    options = options or ServeOptions()
    clock = warehouse.world.clock
    admission = Admission(options.access, clock)
    opened = OpenTables(warehouse)
    tables = VirtualTables(warehouse, grace_ms=options.grace_ms)
    counts = ServerCounters()
    overview = Overview(warehouse, counts)
    vending = CredentialVendor(warehouse, options.vend) if options.vend is not None else None
    stale_fallback = StaleFallback(options.lake_after_s, counts) if options.lake_after_s is not None else None
    system = SystemDocuments(grace_ms=options.grace_ms)
    routes = [
        Route(HEALTH, _health, methods=["GET", "HEAD"]),
        Route(f"{API}/openapi.json", _openapi, methods=["GET"]),
        *overview.routes(),
        Mount(API, routes=rows_routes(opened, counts)),
        Mount(ICEBERG, routes=iceberg_routes(tables, options.client_config, vending, system, stale_fallback)),
    ]
    middleware = [
        Middleware(_RequestCounter, counts=counts, clock=clock),
        Middleware(Guard, admission, warehouse, _PUBLIC_PATHS, options.audit, options.sites),
    ]
    app = Starlette(routes=routes, middleware=middleware)
    app.state.tables = tables
    app.state.measures = overview.measures
    app.state.shared = AppContext(opened, admission, counts, options.audit)
    return app


class _RequestCounter:
    """Middleware that counts and logs requests by area and status."""

    def __init__(self, app: ASGIApp, counts: ServerCounters, clock: Clock) -> None:
        self._app = app
        self._counts = counts
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_ms = self._clock.boot_ms()
        area = "page" if scope["path"] == "/" else scope["path"].lstrip("/").partition("/")[0]
        area = area if area in _AREAS else "other"

        async def send_and_count(message: Message) -> None:
            if message["type"] == "http.response.start":
                busy_s = (self._clock.boot_ms() - began_ms) / 1000
                self._counts.count_request(scope["method"], area, message["status"], busy_s)
                state = scope.get("state", {})
                client = state.get("client")
                of = {"method": scope["method"], "path": scope["path"], "status": message["status"], "busy_s": busy_s}
                of |= {"request": state.get("request_id"), "client": client.name if client else None}
                logger.info("answered a request", extra={f"streamhouse_{name}": value for name, value in of.items()})
            await send(message)

        await self._app(scope, receive, send_and_count)


def _health(request: Request) -> Response:  # noqa: ARG001 - a handler
    return JSONResponse({"status": "ok"})


def _openapi(request: Request) -> Response:  # noqa: ARG001 - a handler
    return JSONResponse(openapi())
