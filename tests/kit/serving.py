"""A server in a thread of the test, which listens before anybody is told of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from streamhouse_spark import Warehouse
from streamhouse_spark.serve.options import ServeOptions

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.testclient import TestClient


def http_client(app: Starlette, **options: Any) -> TestClient:
    """Return a client of the application in this process, under a name that every server answers to."""
    from starlette.testclient import TestClient

    return TestClient(app, base_url="http://127.0.0.1", **options)


@contextmanager
def served(warehouse: Warehouse, options: ServeOptions | None = None) -> Iterator[str]:
    """Yield its URL."""
    import uvicorn

    from streamhouse_spark.serve.app import make_app
    from streamhouse_spark.serve.http_protocol import HttpProtocol

    config = uvicorn.Config(make_app(warehouse, options), port=0, log_level="error", http=HttpProtocol, ws="none")
    socket = config.bind_socket()
    socket.listen()
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=60)
        assert not thread.is_alive()
