"""A schema registry in one small HTTP server, with the answers of Confluent's REST interface.

::

    with running_registry() as registry:
        number = registry.register({"type": "record", …})
        registry.answers = [(503, b"")]      # the next answers, before it is itself again
        ...
        assert registry.asked == [number]
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Registry:
    """What the server has, and what it was asked."""

    url: str = ""
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    answers: list[tuple[int, bytes]] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    authorizations: set[str | None] = field(default_factory=set)
    wanted: str | None = None
    """The header that a request needs."""

    def register(self, schema: object, **more: Any) -> int:
        """Put a schema there; its id."""
        number = len(self.schemas) + 100_001
        self.schemas[number] = {"schema": schema if isinstance(schema, str) else json.dumps(schema), **more}
        return number

    def answer(self, path: str, authorization: str | None) -> tuple[int, bytes]:
        self.authorizations.add(authorization)
        if self.wanted is not None and authorization != self.wanted:
            return 401, b'{"error_code": 40101, "message": "Unauthorized"}'
        begin, _, number = path.rpartition("/")
        if begin != "/schemas/ids":
            return 404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}'
        self.asked.append(int(number))
        if self.answers:
            return self.answers.pop(0)
        if int(number) not in self.schemas:
            return 404, b'{"error_code": 40403, "message": "Schema not found"}'
        return 200, json.dumps(self.schemas[int(number)]).encode()


@contextmanager
def running_registry() -> Iterator[Registry]:
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = registry.answer(self.path, self.headers.get("Authorization"))
            if status == 0:  # it dies in the middle of its answer
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        registry.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
