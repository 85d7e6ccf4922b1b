"""A proxy before an S3 server that spoils chosen requests.

::

    with running_s3_proxy(server) as proxy:
        proxy.plan = nth("PUT", 0, Fault.LOST_ACK)      # the first PUT from now on
        ...
        assert proxy.methods == ["PUT", "PUT"]          # what arrived since the plan was set
"""

from __future__ import annotations

import email.utils
import enum
import http.client
import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from storage.quiet_server import QuietServer
from storage.s3_server import ACCESS_KEY_ID, SECRET_ACCESS_KEY, S3Server


class Fault(enum.Enum):
    LOST_ACK = "forwarded, then the connection breaks"
    ERROR_AFTER = "forwarded, then 500"
    ERROR_BEFORE = "500, not forwarded"
    DROP_BEFORE = "the connection breaks, not forwarded"
    SLOW_DOWN = "503 SlowDown, not forwarded"
    CONFLICT = "409 ConditionalRequestConflict, not forwarded"
    TRUNCATED = "forwarded, half of the body comes back"
    NOT_IMPLEMENTED = "501, not forwarded"
    FORBIDDEN = "403, not forwarded, with credentials in the message"
    EXPIRED = "400 ExpiredToken, not forwarded"
    ABSENT = "404 NoSuchKey, not forwarded"
    HANG = "not forwarded, and no answer for as long as a client waits"
    GATEWAY_ABSENT = "404 of a web server that knows nothing of S3, not forwarded"
    PRECONDITION_BARE = "412 without saying which condition, not forwarded"
    IGNORE_CONDITION = "forwarded without If-None-Match"
    IGNORE_RANGE = "forwarded without Range"
    CHECK_THEN_WRITE = "forwarded without If-None-Match, some time after a look whether the object is there"


_CANNED = {
    Fault.ERROR_BEFORE: (500, "InternalError", "We encountered an internal error"),
    Fault.ERROR_AFTER: (500, "InternalError", "We encountered an internal error"),
    Fault.SLOW_DOWN: (503, "SlowDown", "Please reduce your request rate"),
    Fault.CONFLICT: (409, "ConditionalRequestConflict", "A conflicting operation is in progress"),
    Fault.NOT_IMPLEMENTED: (501, "NotImplemented", "A header you provided implies functionality not implemented"),
    Fault.FORBIDDEN: (
        403,
        "AccessDenied",
        f"no access for {ACCESS_KEY_ID}\nwith {SECRET_ACCESS_KEY}, AKIA0123456789ABCDEF",
    ),
    Fault.EXPIRED: (400, "ExpiredToken", "The provided token has expired."),
    Fault.ABSENT: (404, "NoSuchKey", "The specified key does not exist"),
    Fault.PRECONDITION_BARE: (412, "PreconditionFailed", ""),
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it arrived; ``number`` counts those of its method since the plan was set."""

    method: str
    number: int
    path: str
    asks_first: bool = False
    """Whether the client waits for a word of the store before it sends the body."""
    wanted: str | None = None
    """The range of bytes that is asked for."""
    caller: str = ""
    """The access key that signed the request."""


Plan = Callable[[Request], Fault | None]


def nothing(_: Request) -> None:
    return None


def nth(method: str, number: int, fault: Fault, *, times: int = 1) -> Plan:
    """The requests ``number`` and following of a method, ``times`` of them."""
    return lambda r: fault if r.method == method and number <= r.number < number + times else None


def always(fault: Fault, *methods: str) -> Plan:
    return lambda r: fault if not methods or r.method in methods else None


class S3Proxy:
    """The plan, and the requests that arrived since it was set. ``date_shift_seconds`` falsifies the store's clock;
    each request takes ``delay_seconds`` longer.
    """

    def __init__(self, server: S3Server) -> None:
        self.server = server
        self.date_shift_seconds: float | None = 0.0
        self.delay_seconds = 0.0
        self.port = 0
        self._plan: Plan = nothing
        self._log: list[tuple[Request, Fault | None]] = []
        self._lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def plan(self) -> Plan:
        return self._plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        with self._lock:
            self._plan = plan
            self._log = []

    @property
    def log(self) -> list[tuple[Request, Fault | None]]:
        with self._lock:
            return list(self._log)

    @property
    def methods(self) -> list[str]:
        return [request.method for request, _ in self.log]

    @property
    def faults_fired(self) -> int:
        return sum(fault is not None for _, fault in self.log)

    def arrived(
        self, method: str, path: str, *, asks_first: bool, wanted: str | None = None, caller: str = ""
    ) -> Fault | None:
        with self._lock:
            number = sum(r.method == method for r, _ in self._log)
            request = Request(method, number, path, asks_first, wanted, caller)
            fault = self._plan(request)
            self._log.append((request, fault))
            return fault


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: S3Proxy

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        wanted = self.headers.get("Range")
        caller = self.headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0]
        fault = self.proxy.arrived(
            self.command, self.path, asks_first="Expect" in self.headers, wanted=wanted, caller=caller
        )
        time.sleep(self.proxy.delay_seconds)
        if fault is Fault.DROP_BEFORE:
            self._drop()
        elif fault is Fault.HANG:
            self._hang()
        elif fault is Fault.GATEWAY_ABSENT:
            self._answer(404, [("Content-Type", "text/html")], b"<html>nothing here</html>")
        elif fault in _CANNED and fault is not Fault.ERROR_AFTER:
            self._answer_canned(fault)
        else:
            status, headers, answer = self._forward(body, fault)
            if fault is Fault.LOST_ACK:
                self._drop()
            elif fault is Fault.ERROR_AFTER:
                self._answer_canned(fault)
            else:
                self._answer(status, headers, answer, truncated=fault is Fault.TRUNCATED)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815

    def _forward(self, body: bytes, fault: Fault | None) -> tuple[int, list[tuple[str, str]], bytes]:
        dropped = {"expect", "connection"}
        if fault is Fault.CHECK_THEN_WRITE:
            if self._is_there():
                return 412, [], b"<?xml version='1.0'?><Error><Code>PreconditionFailed</Code></Error>"
            time.sleep(0.2)
        if fault in (Fault.IGNORE_CONDITION, Fault.CHECK_THEN_WRITE):
            dropped.add("if-none-match")
        if fault is Fault.IGNORE_RANGE:
            dropped.add("range")
        upstream = http.client.HTTPConnection(self.proxy.server.host, self.proxy.server.port, timeout=240)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
            upstream.request(self.command, self.path, body, headers)
            answer = upstream.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            upstream.close()

    def _is_there(self) -> bool:
        upstream = http.client.HTTPConnection(self.proxy.server.host, self.proxy.server.port, timeout=240)
        try:
            upstream.request("HEAD", self.path, headers={"Authorization": self.headers["Authorization"]})
            return upstream.getresponse().status == 200
        finally:
            upstream.close()

    def _answer_canned(self, fault: Fault) -> None:
        status, code, message = _CANNED[fault]
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
        self._answer(status, [("Content-Type", "application/xml")], text.encode())

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, *, truncated: bool = False) -> None:
        self.send_response_only(status)
        length = str(len(body))
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            if name.lower() not in ("content-length", "connection", "transfer-encoding", "date"):
                self.send_header(name, value)
        if self.proxy.date_shift_seconds is not None:
            shifted = email.utils.localtime().timestamp() + self.proxy.date_shift_seconds
            self.send_header("Date", email.utils.formatdate(shifted, usegmt=True))
        if status != 204:
            self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if truncated else body)
        if truncated:
            self.wfile.flush()
            self._drop()

    def _hang(self) -> None:
        """Wait until the client is gone."""
        self.connection.settimeout(240)
        with suppress(OSError):
            self.rfile.read(1)
        self.close_connection = True

    def _drop(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def running_s3_proxy(server: S3Server) -> Iterator[S3Proxy]:
    proxy = S3Proxy(server)
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    with QuietServer(("127.0.0.1", 0), handler) as listener:
        proxy.port = listener.server_address[1]
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            listener.shutdown()
            thread.join()
