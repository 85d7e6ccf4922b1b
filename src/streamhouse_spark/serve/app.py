"""Web application of ``streamhouse serve``: its routes and middleware, and the overview of all tables."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamhouse_spark.core.clock import Clock
from streamhouse_spark.core.concurrency import new_lock
from streamhouse_spark.metrics import Metric, format_prometheus, process_metrics, store_metrics
from streamhouse_spark.serve.acl import Client
from streamhouse_spark.serve.app_context import AppContext, OpenTables
from streamhouse_spark.serve.auth import HEALTH, ICEBERG, Authenticator, AuthMiddleware, client_of, make_route
from streamhouse_spark.serve.iceberg.rest import iceberg_routes
from streamhouse_spark.serve.iceberg.served_tables import ServedTables, StaleFallback
from streamhouse_spark.serve.iceberg.system_table_metadata import SystemTableMetadata
from streamhouse_spark.serve.iceberg.vending import CredentialVendor
from streamhouse_spark.serve.options import ServeOptions
from streamhouse_spark.serve.responses import parse_parameters
from streamhouse_spark.serve.rest_api import openapi, rest_routes
from streamhouse_spark.serve.server_metrics import ServerCounters, make_server_metrics
from streamhouse_spark.storage.request_metrics import RequestCounts
from streamhouse_spark.table.status import TableOverview, read_overdue_failures
from streamhouse_spark.warehouse.table_batch import open_all
from streamhouse_spark.warehouse.warehouse import Warehouse

REFRESH_MS: Final = 2_000
"""Time for which the description of the tables is cached."""
logger = logging.getLogger(__name__)
API: Final = "/api/v1"
_PUBLIC_PATHS: Final = ("/", HEALTH, f"{ICEBERG}/v1/config", f"{API}/openapi.json")
"""Paths that require no token, because they reveal nothing about the warehouse."""
_AREAS: Final = ("iceberg", "api", "metrics", "health", "page")


class Overview:
    """Describes all tables, at most once per `REFRESH_MS`. Safe for threads."""

    def __init__(self, warehouse: Warehouse, counts: ServerCounters) -> None:
        self._warehouse = warehouse
        self._counts = counts
        self._lock = new_lock()
        self._refreshed_ms: int | None = None
        self._tables: list[dict[str, Any]] = []

    def routes(self) -> list[Route]:
        exists = self._warehouse.exists
        return [
            make_route("/", self._page, exists),
            make_route("/metrics", self._metrics, exists),
            make_route("/api/v1/overview", self._json, exists),
        ]

    def tables(self) -> Sequence[Mapping[str, Any]]:
        """Return the descriptions of all tables. The description of an unreadable table has an ``error``."""
        with self._lock:
            now_ms = self._warehouse.world.clock.boot_ms()
            if self._refreshed_ms is None or now_ms - self._refreshed_ms >= REFRESH_MS:
                opened = open_all(self._warehouse)
                failures = read_overdue_failures(self._warehouse.storage, opened.tables)
                descriptions = opened.each(
                    lambda table: TableOverview.of(table, failures.get(table.uuid, ())).to_json()
                )
                descriptions += [{"table": name, "error": str(error)} for name, error in opened.failed.items()]
                self._tables = sorted(descriptions, key=lambda description: str(description["table"]))
                self._refreshed_ms = now_ms
            return self._tables

    def metrics(self) -> list[Metric]:
        """Return the metrics of all tables and requests. Raises `StorageError`."""
        return make_server_metrics(self.tables(), self._counts)

    def _page(self, request: Request) -> Response:  # noqa: ARG002 - a handler
        """Return the overview page, which contains no data and requests it with the user's token."""
        text = files("streamhouse_spark.serve").joinpath("page.html").read_text(encoding="utf-8")
        policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
        return HTMLResponse(text, headers={"Content-Security-Policy": policy, "X-Frame-Options": "DENY"})

    def _json(self, request: Request) -> Response:
        parse_parameters(request, ())
        return JSONResponse({"warehouse": self._warehouse.url, "tables": self._readable_tables(client_of(request))})

    def _readable_tables(self, client: Client) -> list[Mapping[str, Any]]:
        return [description for description in self.tables() if client.filter_readable([str(description["table"])])]

    def _metrics(self, request: Request) -> Response:
        """Return metrics of the tables that a client may read, and of the process if it may read all tables."""
        client = client_of(request)
        sees_all = client.can_read_all()
        counts = self._counts if sees_all else ServerCounters()
        process = process_metrics() if sees_all else store_metrics(RequestCounts())
        kind, text = format_prometheus([*make_server_metrics(self._readable_tables(client), counts), *process])
        return Response(text, media_type=kind)


def make_app(warehouse: Warehouse, options: ServeOptions | None = None) -> Starlette:
    """Build the application. It has no state that other servers need, so several servers may run concurrently."""
    options = options or ServeOptions()
    clock = warehouse.world.clock
    admission = Authenticator(options.access, clock)
    opened = OpenTables(warehouse)
    tables = ServedTables(warehouse, grace_ms=options.grace_ms)
    counts = ServerCounters()
    overview = Overview(warehouse, counts)
    vending = CredentialVendor(warehouse, options.vend) if options.vend is not None else None
    stale_fallback = StaleFallback(options.lake_after_s, counts) if options.lake_after_s is not None else None
    system = SystemTableMetadata(grace_ms=options.grace_ms)
    routes = [
        Route(HEALTH, _health, methods=["GET", "HEAD"]),
        Route(f"{API}/openapi.json", _openapi, methods=["GET"]),
        *overview.routes(),
        Mount(API, routes=rest_routes(opened, counts)),
        Mount(ICEBERG, routes=iceberg_routes(tables, options.client_config, vending, system, stale_fallback)),
    ]
    middleware = [
        Middleware(_RequestMetrics, counts=counts, clock=clock),
        Middleware(AuthMiddleware, admission, warehouse, _PUBLIC_PATHS, options.audit, options.sites),
    ]
    app = Starlette(routes=routes, middleware=middleware)
    app.state.tables = tables
    app.state.metrics = overview.metrics
    app.state.shared = AppContext(opened, admission, counts, options.audit)
    return app


class _RequestMetrics:
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
