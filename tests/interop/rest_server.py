"""A catalog server that speaks Iceberg's REST protocol over HTTP, in front of one of pyiceberg's SQL catalogs.

It serves what clients of tables need (configuration, namespaces, tables, commits with requirements), with the
protocol's status codes and error documents. ``plan`` lets calls go wrong as they do on a network: before they are done,
or after. `make catalogs` runs the same tests against the server of Iceberg's own Java library.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog.rest import CreateTableRequest, TableResponse
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest, Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

STATUS = {
    CommitFailedException: 409,
    NamespaceAlreadyExistsError: 409,
    NamespaceNotEmptyError: 409,
    TableAlreadyExistsError: 409,
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
}


class Fault(Enum):
    NONE = auto()
    ERROR_BEFORE = auto()
    """500, and nothing was done."""
    ERROR_AFTER = auto()
    """500, and all was done."""
    GATEWAY_AFTER = auto()
    """504, and all was done."""
    LOST_ANSWER = auto()
    """All was done, and the connection breaks."""


Plan = Callable[[str, str], Fault]
"""What happens to a call, by its method and path."""


class RestCatalog:
    """A running server."""

    def __init__(self, directory: Path, warehouse: str) -> None:
        self.catalog = SqlCatalog("server", uri=f"sqlite:///{directory}/server.db", warehouse=warehouse)
        self.plan: Plan = lambda _method, _path: Fault.NONE
        self.calls: list[tuple[str, str]] = []
        self.fired = 0
        self.lock = threading.Lock()  # SQLite has one writer
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))

    @property
    def settings(self) -> dict[str, str]:
        return {
            "lake.iceberg.catalog.type": "rest",
            "lake.iceberg.catalog.uri": f"http://127.0.0.1:{self.server.server_port}",
        }

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        with self.lock:
            try:
                return self._routed(method, parts[1:], body)
            except tuple(STATUS) as error:
                status = next(code for kind, code in STATUS.items() if isinstance(error, kind))
                document = {"message": str(error), "type": type(error).__name__, "code": status}
                return status, json.dumps({"error": document}).encode()
            except Exception as error:  # noqa: BLE001 - what a server answers to whatever went wrong in it
                return 500, json.dumps({"error": {"message": repr(error), "type": "Failed", "code": 500}}).encode()

    def _routed(self, method: str, parts: list[str], body: bytes) -> tuple[int, bytes]:
        match method, parts:
            case "GET", ["config"]:
                return 200, b'{"defaults": {}, "overrides": {}}'
            case "GET", ["namespaces"]:
                return 200, json.dumps({"namespaces": self.catalog.list_namespaces()}).encode()
            case "POST", ["namespaces"]:
                asked = json.loads(body)
                self.catalog.create_namespace(tuple(asked["namespace"]), asked.get("properties") or {})
                return 200, body
            case "GET", ["namespaces", namespace]:
                found = self.catalog.load_namespace_properties(namespace)
                return 200, json.dumps({"namespace": [namespace], "properties": found}).encode()
            case "HEAD", ["namespaces", namespace]:
                self.catalog.load_namespace_properties(namespace)
                return 204, b""
            case "GET", ["namespaces", namespace, "tables"]:
                names = [{"namespace": list(n[:-1]), "name": n[-1]} for n in self.catalog.list_tables(namespace)]
                return 200, json.dumps({"identifiers": names}).encode()
            case "POST", ["namespaces", namespace, "tables"]:
                return 200, self._create(
                    namespace, CreateTableRequest.model_validate({"location": None, **json.loads(body)})
                )
            case "GET", ["namespaces", namespace, "tables", name]:
                return 200, _loaded(self.catalog.load_table((namespace, name)))
            case "HEAD", ["namespaces", namespace, "tables", name]:
                self.catalog.load_table((namespace, name))
                return 204, b""
            case "POST", ["namespaces", namespace, "tables", name]:
                asked = CommitTableRequest.model_validate_json(body)
                table = self.catalog.load_table((namespace, name))
                done = self.catalog.commit_table(table, asked.requirements, asked.updates)
                return 200, done.model_dump_json().encode()
            case "DELETE", ["namespaces", namespace, "tables", name]:
                self.catalog.drop_table((namespace, name))
                return 204, b""
        return 404, json.dumps({"error": {"message": "no such route", "type": "NotFound", "code": 404}}).encode()

    def _create(self, namespace: str, asked: CreateTableRequest) -> bytes:
        made = self.catalog.create_table(
            (namespace, asked.name),
            asked.table_schema,
            asked.location,
            asked.partition_spec or UNPARTITIONED_PARTITION_SPEC,
            asked.write_order or UNSORTED_SORT_ORDER,
            asked.properties,
        )
        return _loaded(made)


def _loaded(table: Table) -> bytes:
    answer = TableResponse.model_validate({"metadata": table.metadata, "metadata-location": table.metadata_location})
    return answer.model_dump_json().encode()


def _handler(catalog: RestCatalog) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            path = urlsplit(self.path).path
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with catalog.lock:
                fault = catalog.plan(self.command, path)
                catalog.calls.append((self.command, path))
                catalog.fired += fault is not Fault.NONE
            if fault is Fault.ERROR_BEFORE:
                self._send(500, _error(500))
                return
            status, answer = catalog.answer(self.command, path, body)
            match fault:
                case Fault.LOST_ANSWER:
                    self.close_connection = True
                case Fault.ERROR_AFTER:
                    self._send(500, _error(500))
                case Fault.GATEWAY_AFTER:
                    self._send(504, _error(504))
                case _:
                    self._send(status, answer)

        do_GET = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - names of the base class

        def _send(self, status: int, answer: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _error(status: int) -> bytes:
    return json.dumps({"error": {"message": "planned", "type": "Planned", "code": status}}).encode()


@contextmanager
def running_rest_catalog(directory: Path, warehouse: str) -> Iterator[RestCatalog]:
    """A server whose new tables lie in ``warehouse`` unless their creator says where."""
    catalog = RestCatalog(directory, warehouse)
    thread = threading.Thread(target=catalog.server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield catalog
    finally:
        catalog.server.shutdown()
        thread.join()
        catalog.server.server_close()
        catalog.catalog.close()
