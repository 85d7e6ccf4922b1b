"""Overview of all tables: a page for people, JSON for programs, and metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from streamhouse_spark.core.fork_safety import new_lock
from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.metrics.metrics import Metric, process_metrics, store_metrics
from streamhouse_spark.serve.metrics import ServerCounters, server_measures
from streamhouse_spark.serve.parameters import parse_parameters
from streamhouse_spark.serve.responses import error_response
from streamhouse_spark.serve.rights import Client, client_of
from streamhouse_spark.storage.request_metrics import RequestCounts
from streamhouse_spark.table.table_status import TableOverview, read_overdue_failures
from streamhouse_spark.warehouse.table_batch import open_all
from streamhouse_spark.warehouse.warehouse import Warehouse

REFRESH_MS: Final = 2_000
"""Time for which all clients share one description of the tables."""


class Overview:
    """Describes all tables, at most once per `REFRESH_MS`. Safe for threads."""

    def __init__(self, warehouse: Warehouse, counts: ServerCounters) -> None:
        self._warehouse = warehouse
        self._counts = counts
        self._lock = new_lock()
        self._refreshed_ms: int | None = None
        self._tables: list[dict[str, Any]] = []

    def routes(self) -> list[Route]:
        return [
            Route("/", self._page, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            Route("/api/v1/overview", self._json, methods=["GET"]),
        ]

    def tables(self) -> Sequence[Mapping[str, Any]]:
        """Return a description of each table. An unreadable table has an ``error``."""
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

    def measures(self) -> list[Metric]:
        """Return the metrics of all tables and requests. Raises `StorageError`."""
        return server_measures(self.tables(), self._counts)

    def _page(self, request: Request) -> Response:  # noqa: ARG002 - a handler
        """Return the page: it has no data of the warehouse, and requests them with the reader's token."""
        text = files("streamhouse_spark.serve").joinpath("page.html").read_text(encoding="utf-8")
        policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
        return HTMLResponse(text, headers={"Content-Security-Policy": policy, "X-Frame-Options": "DENY"})

    def _json(self, request: Request) -> Response:
        try:
            parse_parameters(request, ())
            return JSONResponse({"warehouse": self._warehouse.url, "tables": self._readable_tables(client_of(request))})
        except StreamhouseError as error:
            return error_response(error)

    def _readable_tables(self, client: Client) -> list[Mapping[str, Any]]:
        return [description for description in self.tables() if client.filter_readable([str(description["table"])])]

    def _metrics(self, request: Request) -> Response:
        """Return the metrics of the tables that a client may read; those of the process only if it may read all
        tables.
        """
        from streamhouse_spark.metrics.prometheus import as_prometheus

        client = client_of(request)
        sees_all = client.can_read_all()
        counts = self._counts if sees_all else ServerCounters()
        process = process_metrics() if sees_all else store_metrics(RequestCounts())
        kind, text = as_prometheus([*server_measures(self._readable_tables(client), counts), *process])
        return Response(text, media_type=kind)
