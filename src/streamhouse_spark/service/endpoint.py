"""HTTP endpoint of a tiering service: liveness, readiness, and Prometheus metrics.

``GET /livez`` answers 200 while the service's loop turns, and 503 after `STUCK_MS` without a turn: then a restart
helps. ``GET /readyz`` answers 200 once the tables of the warehouse were listed, and 503 while they cannot be. ``GET
/metrics`` returns the metrics in Prometheus' text format. None of them makes a storage request: they read what the
service records as it runs. Names and base units follow https://prometheus.io/docs/practices/naming/.
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
from streamhouse_spark.metrics import Metric, MetricSource, as_prometheus, export_until_exit, process_metrics
from streamhouse_spark.service.tiering_service import ServiceHealth, TableStatus

STUCK_MS: Final = 300_000
"""The loop may wait for storage, whose timeouts are much shorter."""
TEXT: Final = "text/plain; charset=utf-8"
Address = tuple[str, int]
"""Host and port."""
Answer = tuple[HTTPStatus, str, bytes]
"""Status, content type, content."""
S = TypeVar("S")
Definitions = Mapping[str, tuple[str, Callable[[S], float]]]
"""Name of a metric, without the ``_total`` that the format adds to counters → its help, and its value by status."""
GAUGES: Final[Definitions[TableStatus]] = {
    "streamhouse_table_lag_rows": ("Rows that the lake does not hold yet.", lambda s: s.lag_rows),
    "streamhouse_table_lag_seconds": ("Age of the oldest row that the lake does not hold.", lambda s: s.lag_ms / 1000),
    "streamhouse_table_freshness_seconds": (
        "Age that no row outside the lake should reach: table.datalake.freshness.",
        lambda s: s.freshness_ms / 1000,
    ),
    "streamhouse_tiering_failures": ("Failures since the last round that succeeded.", lambda s: s.failures),
    "streamhouse_tiering_last_round_seconds": (
        "Duration of the last round.",
        lambda s: s.last_report.duration_ms / 1000 if s.last_report is not None else 0,
    ),
    "streamhouse_maintenance_failures": (
        "Failures since the last maintenance that succeeded.",
        lambda s: s.maintenance.failures,
    ),
}
COUNTERS: Final[Definitions[TableStatus]] = {
    "streamhouse_tiering_rounds": ("Rounds that moved rows.", lambda s: s.rounds),
    "streamhouse_tiering_rows": ("Rows moved into the lake.", lambda s: s.rows),
    "streamhouse_healed_rows": ("Duplicates of other engines removed from the lake.", lambda s: s.healed_rows),
    "streamhouse_compactions": ("Lake snapshots by compaction.", lambda s: s.maintenance.compactions),
    "streamhouse_compacted_files": ("Lake files that compaction replaced.", lambda s: s.maintenance.compacted_files),
    "streamhouse_expired_snapshots": ("Lake snapshots that were expired.", lambda s: s.maintenance.expired_snapshots),
    "streamhouse_deleted_lake_files": ("Lake files that were deleted.", lambda s: s.maintenance.deleted_files),
    "streamhouse_maintenance_conflicts": ("Steps of maintenance that lost a race.", lambda s: s.maintenance.conflicts),
}


class ServiceSnapshot(Protocol):
    """A service, as the endpoint needs it."""

    def status(self) -> list[TableStatus]: ...

    def health(self) -> ServiceHealth: ...


def no_more_metrics() -> Sequence[Metric]:
    """Return the metrics of a process that only runs its tiering service."""
    return ()


def collect_measures(service: ServiceSnapshot, more: MetricSource = no_more_metrics) -> list[Metric]:
    return [*service_measures(service.status(), service.health()), *more()]


def export_service_metrics(
    service: ServiceSnapshot, more: MetricSource = no_more_metrics
) -> AbstractContextManager[None]:
    """Export the metrics of a service, and ``more``, to OpenTelemetry until the block ends, if its API is installed."""
    return export_until_exit(partial(collect_measures, service, more))


def parse_address(text: str) -> Address:
    """Parse ``HOST:PORT``, ``[IPv6]:PORT`` or ``PORT``, which is on 127.0.0.1. Port 0 takes a free one.

    Raises `InvalidOptionError` for anything else.
    """
    host, _, port = text.strip().rpartition(":")
    if port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) < 1 << 16:
        return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)
    raise InvalidOptionError(f"{text!r} is no address to listen at, expected HOST:PORT, such as 127.0.0.1:9464")


@contextmanager
def serve_until_exit(
    service: ServiceSnapshot, address: Address, more: MetricSource = no_more_metrics
) -> Iterator[Address]:
    """Serve at an address in a background thread until the block ends; yields the address with the actual port.

    ``more`` returns metrics of the rest of the process. Raises `StorageError` if the address is unavailable,
    `MissingExtraError` without the extra ``metrics``.
    """
    try:
        as_prometheus(())  # loads the library
    except ImportError as error:
        raise MissingExtraError(
            f"the endpoint of a tiering service needs {error.name}; pip install 'streamhouse-spark[metrics]'"
        ) from error

    class Handler(_Handler):
        answers = {  # noqa: RUF012 - the class is made for this one server
            "/livez": lambda: _check_liveness(service.health()),
            "/readyz": lambda: _check_readiness(service.health()),
            "/metrics": lambda: (
                HTTPStatus.OK,
                *as_prometheus([*collect_measures(service, more), *process_metrics()]),
            ),
        }

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        daemon_threads = True

    try:
        server = Server(address, Handler)
    except OSError as error:
        raise StorageError(
            f"cannot listen at {address[0]}:{address[1]}: {error.strerror or error}; choose another address, or "
            "stop the process that uses it",
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
    timeout = 30  # seconds, for a peer that sends nothing

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        answer = self.answers.get(path)
        missing = (HTTPStatus.NOT_FOUND, TEXT, f"nothing at {path}; there are {', '.join(self.answers)}\n".encode())
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
        """Log nothing: probes come every few seconds."""


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


def service_measures(tables: Sequence[TableStatus], health: ServiceHealth) -> list[Metric]:
    """Return the metrics of a service and its tables. Counters start with the service."""
    turned = [] if health.turned_ms_ago is None else [((), health.turned_ms_ago / 1000)]
    up = float(health.tables is not None and health.listing_error is None)
    return [
        Metric("streamhouse_service_turned_seconds", "Time since the loop's last turn.", "gauge", (), turned),
        Metric("streamhouse_service_ready", "1 while the tables can be listed.", "gauge", (), [((), up)]),
        *table_metrics(GAUGES, COUNTERS, {status.table: status for status in tables}),
        doing_metric("streamhouse_table_doing", [(status.table, status.doing) for status in tables]),
    ]


def table_metrics(gauges: Definitions[S], counters: Definitions[S], statuses: Mapping[str, S]) -> list[Metric]:
    """Return the metrics of tables by name."""
    kinds: tuple[tuple[Literal["gauge", "counter"], Definitions[S]], ...] = (("gauge", gauges), ("counter", counters))
    return [
        Metric(name, text, kind, ("table",), [((table,), float(value(status))) for table, status in statuses.items()])
        for kind, definitions in kinds
        for name, (text, value) in definitions.items()
    ]


def doing_metric(name: str, doing: Sequence[tuple[str, str]]) -> Metric:
    return Metric(name, "1 for what is done with it.", "gauge", ("table", "doing"), [(labels, 1) for labels in doing])
