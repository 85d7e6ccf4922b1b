"""HTTP endpoint of a tiering service: liveness, readiness, and Prometheus metrics.

``GET /livez`` returns 503 if the last iteration of the service's loop began more than `STUCK_MS` ago; then restart the
service. ``GET /readyz`` returns 503 before the tables were listed, and while listing fails. ``GET /metrics`` returns
metrics in Prometheus' text format. No request causes a storage request: the responses contain what the service
recorded. Names and base units follow https://prometheus.io/docs/practices/naming/.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Literal, Protocol, TypeVar

from streamhouse_spark.errors import InvalidOptionError, MissingExtraError, StorageError
from streamhouse_spark.metrics import Metric, MetricSource, export_until_exit, format_prometheus, process_metrics
from streamhouse_spark.service.tiering_service import ServiceHealth, TableStatus

STUCK_MS: Final = 300_000
"""Much longer than the timeouts of storage requests, for which the loop may wait."""
TEXT: Final = "text/plain; charset=utf-8"
Address = tuple[str, int]
"""Host and port."""
Answer = tuple[HTTPStatus, str, bytes]
"""Status, content type and content of a response."""
S = TypeVar("S")
Definitions = Mapping[str, tuple[str, Callable[[S], float]]]
"""Name of a metric without the suffix ``_total`` → its help, and the function from a status to its value."""
GAUGES: Final[Definitions[TableStatus]] = {
    "streamhouse_table_lag_rows": ("Rows that are not tiered yet.", lambda s: s.lag_rows),
    "streamhouse_table_lag_seconds": ("Age of the oldest row that is not tiered yet.", lambda s: s.lag_ms / 1000),
    "streamhouse_table_freshness_seconds": (
        "Target for the maximum age of rows that are not tiered yet: table.datalake.freshness.",
        lambda s: s.freshness_ms / 1000,
    ),
    "streamhouse_tiering_failures": ("Failures since the last successful round.", lambda s: s.failures),
    "streamhouse_tiering_last_round_seconds": (
        "Duration of the last round.",
        lambda s: s.last_report.duration_ms / 1000 if s.last_report is not None else 0,
    ),
    "streamhouse_maintenance_failures": (
        "Failures since the last successful maintenance.",
        lambda s: s.maintenance.failures,
    ),
}
COUNTERS: Final[Definitions[TableStatus]] = {
    "streamhouse_tiering_rounds": ("Rounds that moved rows.", lambda s: s.rounds),
    "streamhouse_tiering_rows": ("Rows moved into the lake.", lambda s: s.rows),
    "streamhouse_healed_rows": ("Duplicates of other engines removed from the lake.", lambda s: s.healed_rows),
    "streamhouse_compactions": ("Lake snapshots of compactions.", lambda s: s.maintenance.compactions),
    "streamhouse_compacted_files": ("Lake files that compaction replaced.", lambda s: s.maintenance.compacted_files),
    "streamhouse_expired_snapshots": ("Expired lake snapshots.", lambda s: s.maintenance.expired_snapshots),
    "streamhouse_deleted_lake_files": ("Deleted lake files.", lambda s: s.maintenance.deleted_files),
    "streamhouse_maintenance_conflicts": (
        "Maintenance steps with commit conflicts.",
        lambda s: s.maintenance.conflicts,
    ),
}


class MonitoredService(Protocol):
    """The part of a service that the endpoint uses."""

    def status(self) -> list[TableStatus]: ...

    def health(self) -> ServiceHealth: ...


def no_metrics() -> Sequence[Metric]:
    """Return no metrics, for a process that runs only a tiering service."""
    return ()


def collect_measures(service: MonitoredService, extra_metrics: MetricSource = no_metrics) -> list[Metric]:
    return [*make_service_metrics(service.status(), service.health()), *extra_metrics()]


def export_service_metrics(
    service: MonitoredService, extra_metrics: MetricSource = no_metrics
) -> AbstractContextManager[None]:
    """Export the metrics of a service, and ``extra_metrics``, to OpenTelemetry until the block ends.

    Does nothing if OpenTelemetry's API is not installed.
    """
    return export_until_exit(partial(collect_measures, service, extra_metrics))


def parse_address(text: str) -> Address:
    """Parse ``HOST:PORT``, ``[IPv6]:PORT`` or ``PORT``. The default host is 127.0.0.1; port 0 selects a free port.

    Raises `InvalidOptionError`.
    """
    host, _, port = text.strip().rpartition(":")
    if port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) < 1 << 16:
        return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)
    raise InvalidOptionError(f"invalid address {text!r}, expected HOST:PORT or PORT, such as 127.0.0.1:9464")


@contextmanager
def serve_until_exit(
    service: MonitoredService, address: Address, extra_metrics: MetricSource = no_metrics
) -> Iterator[Address]:
    """Serve in a background thread until the block ends, and yield the address with the actual port.

    ``extra_metrics`` returns other metrics of the process. Raises `StorageError` if the address is unavailable, and
    `MissingExtraError` without the extra ``metrics``.
    """
    try:
        format_prometheus(())  # loads the library
    except ImportError as error:
        raise MissingExtraError(
            f"the endpoint of a tiering service requires {error.name}, which is not installed; run: pip install "
            "'streamhouse-spark[metrics]'"
        ) from error

    class Handler(_Handler):
        answers = {  # noqa: RUF012 - the class belongs to this server
            "/livez": lambda: _check_liveness(service.health()),
            "/readyz": lambda: _check_readiness(service.health()),
            "/metrics": lambda: (
                HTTPStatus.OK,
                *format_prometheus([*collect_measures(service, extra_metrics), *process_metrics()]),
            ),
        }

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        daemon_threads = True

    try:
        server = Server(address, Handler)
    except OSError as error:
        raise StorageError(
            f"cannot listen at {address[0]}:{address[1]}: {error.strerror or error}; use another address, or stop the "
            "process that uses it",
            condition="CANNOT_LISTEN",
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="streamhouse-endpoint", daemon=True)
    thread.start()
    try:
        yield str(server.server_address[0]), server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    answers: dict[str, Callable[[], Answer]]
    timeout = 30  # seconds

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        answer = self.answers.get(path)
        missing = (HTTPStatus.NOT_FOUND, TEXT, f"there is no {path}, expected {', '.join(self.answers)}\n".encode())
        status, content_type, body = answer() if answer is not None else missing
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def version_string(self) -> str:
        return "streamhouse"

    def log_message(self, *_: Any) -> None:
        """Log nothing, because probes are sent every few seconds."""


def _check_liveness(health: ServiceHealth) -> Answer:
    if health.turned_ms_ago is None or health.turned_ms_ago < STUCK_MS:
        return _answer(HTTPStatus.OK, "alive", health)
    return _answer(HTTPStatus.SERVICE_UNAVAILABLE, "stuck", health)


def _check_readiness(health: ServiceHealth) -> Answer:
    if health.stopping:
        return _answer(HTTPStatus.SERVICE_UNAVAILABLE, "stopping", health)
    if health.listing_error is not None:
        return _answer(HTTPStatus.SERVICE_UNAVAILABLE, "cannot list tables", health)
    if health.tables is None:
        return _answer(HTTPStatus.SERVICE_UNAVAILABLE, "starting", health)
    return _answer(HTTPStatus.OK, "ready", health)


def _answer(status: HTTPStatus, word: str, health: ServiceHealth) -> Answer:
    document = {"status": word, "tables": health.tables, "turned_ms_ago": health.turned_ms_ago}
    return status, "application/json", json.dumps({**document, "error": health.listing_error}).encode() + b"\n"


def make_service_metrics(tables: Sequence[TableStatus], health: ServiceHealth) -> list[Metric]:
    """Return the metrics of a service and its tables. Counters start with the service."""
    turned = [] if health.turned_ms_ago is None else [((), health.turned_ms_ago / 1000)]
    up = float(health.tables is not None and health.listing_error is None)
    return [
        Metric(
            "streamhouse_service_turned_seconds",
            "Time since the last iteration of the loop began.",
            "gauge",
            (),
            turned,
        ),
        Metric("streamhouse_service_ready", "1 while the tables can be listed.", "gauge", (), [((), up)]),
        *table_metrics(GAUGES, COUNTERS, {status.table: status for status in tables}),
        doing_metric("streamhouse_table_doing", [(status.table, status.doing) for status in tables]),
    ]


def table_metrics(gauges: Definitions[S], counters: Definitions[S], statuses: Mapping[str, S]) -> list[Metric]:
    """Return metrics of tables, given their statuses by name."""
    kinds: tuple[tuple[Literal["gauge", "counter"], Definitions[S]], ...] = (("gauge", gauges), ("counter", counters))
    return [
        Metric(name, text, kind, ("table",), [((table,), float(value(status))) for table, status in statuses.items()])
        for kind, definitions in kinds
        for name, (text, value) in definitions.items()
    ]


def doing_metric(name: str, doing: Sequence[tuple[str, str]]) -> Metric:
    return Metric(name, "1 for the current activity.", "gauge", ("table", "doing"), [(labels, 1) for labels in doing])
