"""Moto as a process of its own, with the one thing that S3 guarantees and moto does not: writes are atomic.

Moto looks whether a key is there and puts it in two steps, so of two threads that put the same key with
``If-None-Match: *`` both may win. Here one request that writes is answered after the other. Prints its port; ends with
its standard input.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


def atomic_writes(application: Application) -> Application:
    writing = threading.Lock()

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return application(environ, start_response)
        if environ.get("CONTENT_LENGTH"):  # a slow client must not hold up the others
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        with writing:
            return application(environ, start_response)

    return answer


def serve() -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = atomic_writes(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=MotoRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)  # noqa: T201 - how the parent learns it
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    serve()
