"""The server of ``streamhouse serve``: startup and shutdown."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from streamhouse_spark.core.concurrency import new_event
from streamhouse_spark.errors import InvalidOptionError, MissingExtraError, StreamhouseError
from streamhouse_spark.metrics import export_until_exit
from streamhouse_spark.serve.options import ListenAddress

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette

    from streamhouse_spark.serve.flight.server import FlightServer
    from streamhouse_spark.serve.iceberg.served_tables import ServedTables
    from streamhouse_spark.serve.options import ServeOptions
    from streamhouse_spark.warehouse.warehouse import Warehouse

logger = logging.getLogger(__name__)

_CLEANINGS_PER_GRACE: Final = 4
_IDLE_S: Final = 75
"""Idle timeout of a connection. Engines keep connections open for longer than uvicorn's default of five seconds, and
get a network error if they use a connection that is just closed."""
_FLIGHT_ENDS_S: Final = 5
"""Time at shutdown in which Arrow Flight streams can send their current batch."""


def serve(
    warehouse: Warehouse, options: ServeOptions, listening: ListenAddress, announce: Callable[[str, str | None], None]
) -> bool:
    """Serve until SIGINT or SIGTERM, and finish requests in flight.

    When the server is listening, ``announce`` is called with its URL and the URL of Arrow Flight. Returns False if a
    thread still waits for a client; then the caller should exit the process. Raises `InvalidOptionError` for an address
    that is unsafe or unavailable, and `MissingExtraError` without the extra ``serve``.
    """
    try:
        import uvicorn

        from streamhouse_spark.serve.app import make_app
        from streamhouse_spark.serve.http_protocol import HttpProtocol
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("streamhouse_spark"):
            raise
        raise MissingExtraError(
            f"the server requires {error.name}, which is not installed; run: pip install 'streamhouse-spark[serve]'"
        ) from error
    listening.require_safe(options.access())
    listening.require_certificate()
    app = make_app(warehouse, options)
    config = uvicorn.Config(
        app,
        host=listening.host,
        port=listening.port,
        ssl_certfile=listening.tls_cert,
        ssl_keyfile=listening.tls_key,
        http=HttpProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=10,
    )
    server = _create_server(config)
    try:
        socket = config.bind_socket()
    except SystemExit as error:  # uvicorn exits if it cannot bind
        raise InvalidOptionError(
            f"cannot listen at {listening.host}:{listening.port}: the port is in use, or the address is not one of "
            "this machine; use another --port"
        ) from error
    socket.listen(config.backlog)  # before the address is announced
    scheme = "https" if listening.tls_cert else "http"
    reads = _start_flight(app, listening) if listening.flight_port is not None else None
    stop, has_ended = new_event(), True
    cleaner = threading.Thread(
        target=_clean_virtual_tables, args=(app.state.tables, stop, options.grace_ms), daemon=True
    )
    cleaner.start()
    url = f"{scheme}://{listening.url_host}:{socket.getsockname()[1]}"
    try:
        with (
            server.capture_signals(),
            export_until_exit(app.state.metrics),
        ):  # a client may stop the server once it is announced
            announce(url, reads.url if reads is not None else None)
            server.run(sockets=[socket])
    finally:
        stop.set()
        if reads is not None:
            has_ended = reads.stop(_FLIGHT_ENDS_S)
        cleaner.join(timeout=5)
    return has_ended


def _start_flight(app: Starlette, listening: ListenAddress) -> FlightServer:
    """Start Arrow Flight with the `AppContext` of the web application."""
    try:
        from streamhouse_spark.serve.flight.server import FlightServer
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("streamhouse_spark"):
            raise
        raise MissingExtraError(
            "--flight-port requires Arrow Flight, which the installed pyarrow does not have; run: pip install pyarrow"
        ) from error
    return FlightServer(app.state.shared, listening)


def _create_server(config: uvicorn.Config) -> uvicorn.Server:
    """Return a uvicorn server that exits cleanly on SIGINT and SIGTERM instead of raising the signal again."""
    import uvicorn

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            previous = {s: signal.signal(s, self.handle_exit) for s in (signal.SIGINT, signal.SIGTERM)}
            try:
                yield
            finally:
                for number, handler in previous.items():
                    signal.signal(number, handler)

    return Server(config)


def _clean_virtual_tables(tables: ServedTables, stop: threading.Event, grace_ms: int) -> None:
    while not stop.wait(grace_ms / 1000 / _CLEANINGS_PER_GRACE):
        try:
            deleted = tables.clean()
        except StreamhouseError as error:
            logger.warning("cannot delete expired files of hot rows, retrying later: %s", error)
        else:
            if deleted:
                logger.info("deleted %d expired virtual tables", len(deleted))
