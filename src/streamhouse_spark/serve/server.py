"""The server of ``streamhouse serve``: where it listens, and what it refuses to do there."""

from __future__ import annotations

import ipaddress
import logging
import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from streamhouse_spark.core.forks import new_event
from streamhouse_spark.errors import InvalidOptionError, MissingExtraError, StreamhouseError
from streamhouse_spark.metrics.otel import exporting
from streamhouse_spark.serve.access import Access

if TYPE_CHECKING:
    import uvicorn

    from streamhouse_spark.serve.options import ServeOptions
    from streamhouse_spark.serve.virtual_tables import VirtualTables
    from streamhouse_spark.warehouse.warehouse import Warehouse

logger = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
PORT: Final = 8181
_CLEANINGS_PER_GRACE: Final = 4


@dataclass(frozen=True, slots=True)
class Listening:
    """The address of a server, and its certificate."""

    host: str = HOST
    port: int = PORT
    """0 takes a free one."""
    tls_cert: str | None = None
    tls_key: str | None = field(default=None, repr=False)
    allows_insecure: bool = False

    def require_safe(self, access: Access) -> None:
        """Raise `InvalidOptionError` where others on the network could read or write without a token, or read along."""
        if bool(self.tls_cert) != bool(self.tls_key):
            raise InvalidOptionError("--tls-cert and --tls-key belong together: give both, or neither")
        if self.allows_insecure or _is_loopback(self.host):
            return
        missing = ["--token-file or --access"] if access.is_open else []
        missing += [] if self.tls_cert else ["--tls-cert and --tls-key"]
        if missing:
            raise InvalidOptionError(
                f"--host {self.host} is reached by other machines, and {' and '.join(missing)} is missing: anybody "
                "there could read and write, or read along; give it, or say --insecure where something before this "
                "server does both"
            )

    def require_certificate(self) -> None:
        """Raise `InvalidOptionError` where the certificate and its key cannot be used."""
        if self.tls_cert is None:
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_cert, self.tls_key)
        except (OSError, ValueError) as error:  # `ssl.SSLError` is an OSError
            raise InvalidOptionError(
                f"the certificate {self.tls_cert} and its key cannot be used: {error}; give both as PEM files"
            ) from error


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(warehouse: Warehouse, options: ServeOptions, listening: Listening, started: Callable[[str], None]) -> None:
    """Answer until SIGINT or SIGTERM; requests under way are finished. ``started`` gets the URL once it answers.

    Raises `InvalidOptionError` for an address that is not safe, or that nothing can listen at, `MissingExtraError`
    without the extra ``serve``.
    """
    try:
        import uvicorn

        from streamhouse_spark.serve.app import make_app
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("streamhouse_spark"):
            raise
        raise MissingExtraError(
            f"the server needs {error.name}, which is not installed; run: pip install 'streamhouse-spark[serve]'"
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
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=10,
    )
    server = _server_of(config)
    try:
        socket = config.bind_socket()
    except SystemExit as error:  # uvicorn's way to say that it cannot
        raise InvalidOptionError(
            f"nothing can listen at {listening.host}:{listening.port}: it is taken, or not an address of this machine; "
            "give another --port"
        ) from error
    socket.listen(config.backlog)  # before anybody is told of the address
    scheme = "https" if listening.tls_cert else "http"
    host = f"[{listening.host}]" if ":" in listening.host else listening.host
    stop = new_event()
    cleaner = threading.Thread(target=_clean, args=(app.state.tables, stop, options.grace_ms), daemon=True)
    cleaner.start()
    started(f"{scheme}://{host}:{socket.getsockname()[1]}")
    try:
        with exporting(app.state.measures):
            server.run(sockets=[socket])
    finally:
        stop.set()
        cleaner.join(timeout=5)


def _server_of(config: uvicorn.Config) -> uvicorn.Server:
    """Return a server that ends well on SIGINT and SIGTERM: uvicorn's own raises the signal again when it has
    stopped.
    """
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


def _clean(tables: VirtualTables, stop: threading.Event, grace_ms: int) -> None:
    while not stop.wait(grace_ms / 1000 / _CLEANINGS_PER_GRACE):
        try:
            gone = tables.clean()
        except StreamhouseError as error:
            logger.warning("files of hot rows that nobody needs were not deleted, the next time tries again: %s", error)
        else:
            if gone:
                logger.info("deleted the hot rows' files of %d former states", len(gone))
