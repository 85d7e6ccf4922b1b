"""A server in a thread of the test, which listens before anybody is told of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from streamhouse_spark import Warehouse
from streamhouse_spark.serve.options import ServeOptions


@contextmanager
def served(warehouse: Warehouse, options: ServeOptions | None = None) -> Iterator[str]:
    """Yield its URL."""
    import uvicorn

    from streamhouse_spark.serve.app import make_app

    config = uvicorn.Config(make_app(warehouse, options), port=0, log_level="error")
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
