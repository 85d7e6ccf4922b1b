"""A NameNode and a DataNode in one small HTTP server, with the answers that Hadoop gives, spoilt where a plan says so.

::

    with running_hdfs() as hdfs:
        hdfs.plan = nth("RENAME", 0, Fault.LOST_ANSWER)
        ...
        assert hdfs.operations == ["CREATE", "CREATE at a DataNode", "RENAME"]
"""

from __future__ import annotations

import enum
import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from urllib.parse import parse_qs, quote, unquote, urlsplit

from storage.quiet_server import QuietServer

AT_DATANODE = " at a DataNode"
_DATANODE = "/datanode"
_PAGE = 3


class Fault(enum.Enum):
    LOST_ANSWER = "done, then the connection breaks"
    ERROR_AFTER = "done, then 500"
    ERROR_BEFORE = "500, not done"
    DROPPED = "the connection breaks, not done"
    STANDBY = "another NameNode is active"
    SAFE_MODE = "nothing is written yet"
    DENIED = "this user may not"
    TOKEN_EXPIRED = "the token is told, too"
    FULL = "no DataNode takes a block"
    KERBEROS = "401, which asks for Negotiate"
    NO_HADOOP = "404 of another web server"
    GATEWAY = "RENAME knows no options, as a gateway's"
    CUT_OFF = "half of the bytes come back"
    HELD = "done when the test says so, and the connection breaks now"


_ANSWERS = {
    Fault.STANDBY: (403, "StandbyException", "Operation category WRITE is not supported in state standby"),
    Fault.SAFE_MODE: (403, "SafeModeException", "Cannot create file. Name node is in safe mode."),
    Fault.DENIED: (403, "AccessControlException", "Permission denied: user=x, access=WRITE\n\tat org.apache.hadoop"),
    Fault.FULL: (403, "IOException", "File could only be written to 0 of the 1 minReplication nodes"),
}

Plan = Callable[[str, int], Fault | None]


def nothing(_operation: str, _number: int) -> None:
    return None


def nth(operation: str, number: int, fault: Fault) -> Plan:
    """The one request of an operation with this number, from 0 on."""
    return lambda name, at: fault if (name, at) == (operation, number) else None


def always(fault: Fault, *operations: str) -> Plan:
    return lambda name, _: fault if not operations or name in operations else None


@dataclass
class File:
    data: bytes
    modified_ms: int
    file_id: int


class RemoteError(Exception):
    """One that the NameNode answers."""

    def __init__(self, status: int, name: str, message: str = "told") -> None:
        super().__init__(message)
        self.status, self.name = status, name


class Hdfs:
    """The files, the plan, and the requests that arrived since the plan was set."""

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.folders: set[str] = {"/"}
        self.port = 0
        self.dead_datanode: str | None = None
        """The address of one that is chosen unless the client excludes it."""
        self.is_alone = False
        """Whether there is no other DataNode."""
        self.held: list[Callable[[], object]] = []
        self.queries: list[dict[str, str]] = []
        self._ids = count(16_386)
        self._plan: Plan = nothing
        self._log: list[str] = []
        self.lock = threading.RLock()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        return {"hdfs.webhdfs.address": self.address, "hdfs.user": "tester"}

    @property
    def plan(self) -> Plan:
        return self._plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        with self.lock:
            self._plan, self._log, self.queries = plan, [], []

    @property
    def operations(self) -> list[str]:
        with self.lock:
            return list(self._log)

    def arrived(self, operation: str, query: dict[str, str]) -> Fault | None:
        with self.lock:
            fault = self._plan(operation, self._log.count(operation))
            self._log.append(operation)
            self.queries.append(query)
            return fault

    # -- operations -------------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes) -> None:
        with self.lock:
            if any(part in self.files for part in _above(path)):
                raise RemoteError(403, "ParentNotDirectoryException", f"{path} (is not a directory)")
            self.folders.update(_above(path))
            self.files[path] = File(data, time.time_ns() // 1_000_000, next(self._ids))

    def rename(self, path: str, to: str, options: str) -> None:
        with self.lock:
            if path not in self.files:
                raise RemoteError(404, "FileNotFoundException", f"rename source {path} is not found.")
            if to in self.folders:
                raise RemoteError(403, "IOException", f"Source {path} and destination {to} must both be directories")
            if to in self.files and options != "OVERWRITE":
                raise RemoteError(403, "FileAlreadyExistsException", f"rename destination {to} already exists")
            self.files[to] = self.files.pop(path)

    def delete(self, path: str) -> bool:
        with self.lock:
            return self.files.pop(path, None) is not None

    def status(self, path: str) -> dict[str, object]:
        with self.lock:
            file = self.files.get(path)
            if file is None and path not in self.folders:
                raise RemoteError(404, "FileNotFoundException", f"File does not exist: {path}")
            return _status(file, "")

    def listing(self, path: str, after: str) -> dict[str, object]:
        with self.lock:
            if path in self.files:
                entries, rest = [_status(self.files[path], "")], 0
            elif path in self.folders:
                base = path.rstrip("/") + "/"
                names = {p.removeprefix(base): f for p, f in self.files.items() if _is_child(p, base)}
                names |= {p.removeprefix(base): None for p in self.folders if _is_child(p, base)}
                chosen = [name for name in sorted(names) if name > after]
                entries, rest = [_status(names[name], name) for name in chosen[:_PAGE]], len(chosen[_PAGE:])
            else:
                raise RemoteError(404, "FileNotFoundException", f"File {path} does not exist.")
        statuses = {"FileStatuses": {"FileStatus": entries}}
        return {"DirectoryListing": {"partialListing": statuses, "remainingEntries": rest}}

    def part(self, path: str, offset: int, length: int | None) -> bytes:
        with self.lock:
            if path not in self.files:
                raise RemoteError(404, "FileNotFoundException", f"File {path} not found.")
            data = self.files[path].data
        if data and offset >= len(data):
            raise RemoteError(
                403, "IOException", f"Offset={offset} out of the range [0, {len(data)}); OPEN, path={path}"
            )
        return data[offset:] if length is None else data[offset : offset + length]


def _above(path: str) -> list[str]:
    parts = path.split("/")[1:-1]
    return ["/", *("/" + "/".join(parts[:n]) for n in range(1, len(parts) + 1))]


def _is_child(path: str, base: str) -> bool:
    return path != base and path.startswith(base) and "/" not in path[len(base) :]


def _status(file: File | None, name: str) -> dict[str, object]:
    about = {"pathSuffix": name, "owner": "tester", "permission": "644"}
    if file is None:
        return about | {"type": "DIRECTORY", "length": 0, "modificationTime": 0, "fileId": 1}
    known = {"length": len(file.data), "modificationTime": file.modified_ms, "fileId": file.file_id}
    return about | {"type": "FILE"} | known


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hdfs: Hdfs

    def _serve(self) -> None:
        body = self._body()
        url = urlsplit(self.path)
        path = unquote(url.path.partition("/webhdfs/v1")[2]).rstrip("/") or "/"
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        at_datanode = self.path.startswith(_DATANODE)
        operation = query["op"] + (AT_DATANODE if at_datanode else "")
        fault = self.hdfs.arrived(operation, query)

        def act() -> tuple[int, object]:
            return self._at_datanode(path, query, body) if at_datanode else self._at_namenode(path, query, fault)

        if fault in (Fault.LOST_ANSWER, Fault.ERROR_AFTER):
            self._act(act)
        if fault is Fault.HELD:
            self.hdfs.held.append(act)
        if fault in (Fault.LOST_ANSWER, Fault.DROPPED, Fault.HELD):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif fault in (Fault.ERROR_AFTER, Fault.ERROR_BEFORE):
            self._answer(500, b"<html>broken</html>")
        elif fault is Fault.TOKEN_EXPIRED:
            self._tell(RemoteError(403, "SecretManager$InvalidToken", f"token ({query.get('delegation')}) is expired"))
        elif fault is Fault.KERBEROS:
            self._answer(401, b"<html>Authentication required</html>", {"WWW-Authenticate": "Negotiate"})
        elif fault is Fault.NO_HADOOP:
            self._answer(404, b"<html>nothing here</html>")
        elif fault in _ANSWERS:
            self._tell(RemoteError(*_ANSWERS[fault]))
        else:
            self._answer_to(self._act(act), is_cut=fault is Fault.CUT_OFF)

    do_GET = do_PUT = do_DELETE = _serve  # noqa: N815

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while length := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(length))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _act(self, act: Callable[[], tuple[int, object]]) -> tuple[int, object]:
        try:
            return act()
        except RemoteError as error:
            return error.status, error

    def _at_namenode(self, path: str, query: dict[str, str], fault: Fault | None) -> tuple[int, object]:
        hdfs, operation = self.hdfs, query["op"]
        if ":" in path:
            raise RemoteError(400, "InvalidPathException", f"Invalid path name {path}")
        if operation == "RENAME":
            if fault is Fault.GATEWAY:
                return 200, {"boolean": True}
            hdfs.rename(path, query["destination"], query["renameoptions"])
            return 200, b""
        if operation == "DELETE":
            return 200, {"boolean": hdfs.delete(path)}
        if operation == "GETFILESTATUS":
            return 200, {"FileStatus": hdfs.status(path)}
        if operation == "LISTSTATUS_BATCH":
            return 200, hdfs.listing(path, query.get("startafter", ""))
        if operation == "OPEN":
            hdfs.part(path, int(query.get("offset", "0")), 0)
        if query.get("excludedatanodes") and hdfs.is_alone:
            raise RemoteError(403, "IOException", "Failed to find datanode, suggest to check cluster health.")
        if hdfs.dead_datanode and not query.get("excludedatanodes"):
            return 307, f"http://{hdfs.dead_datanode}{_DATANODE}/webhdfs/v1{quote(path)}?{urlsplit(self.path).query}"
        return 307, f"http://{hdfs.address}{_DATANODE}/webhdfs/v1{quote(path)}?{urlsplit(self.path).query}"

    def _at_datanode(self, path: str, query: dict[str, str], body: bytes) -> tuple[int, object]:
        if query["op"] == "CREATE":
            if path in self.hdfs.files and query["overwrite"] != "true":
                raise RemoteError(403, "FileAlreadyExistsException", f"{path} for client 127.0.0.1 already exists")
            self.hdfs.create(path, body)
            return 201, b""
        length = query.get("length")
        return 200, self.hdfs.part(path, int(query.get("offset", "0")), None if length is None else int(length))

    def _answer_to(self, found: tuple[int, object], *, is_cut: bool) -> None:
        status, told = found
        if isinstance(told, RemoteError):
            self._tell(told)
        elif isinstance(told, str):
            self._answer(status, b"", {"Location": told})
        elif isinstance(told, bytes):
            self._answer(status, told, is_cut=is_cut)
        else:
            self._answer(status, json.dumps(told).encode(), {"Content-Type": "application/json"}, is_cut=is_cut)

    def _tell(self, error: RemoteError) -> None:
        about = {"exception": error.name, "javaClassName": f"org.apache.hadoop.{error.name}", "message": str(error)}
        self._answer(error.status, json.dumps({"RemoteException": about}).encode())

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None, *, is_cut: bool = False) -> None:
        self.send_response_only(status)
        date = self.date_time_string()
        for name, value in {"Date": f"{date}, {date}", **(headers or {})}.items():  # as Jetty and Hadoop say it
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if is_cut else body)
        if is_cut:
            self.close_connection = True

    def log_message(self, *_: object) -> None: ...


@contextmanager
def running_hdfs() -> Iterator[Hdfs]:
    hdfs = Hdfs()
    handler = type("Handler", (_Handler,), {"hdfs": hdfs, "disable_nagle_algorithm": True})
    with QuietServer(("127.0.0.1", 0), handler) as listener:
        hdfs.port = listener.server_address[1]
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield hdfs
        finally:
            listener.shutdown()
            thread.join()
