"""HTTP/1 connections that respond reliably to malformed requests."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from http import HTTPStatus
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger(__name__)

HEAD_BYTES_MAX: Final = 64 << 10
"""Bytes of the request line and headers."""
_DISCARDED_BYTES_MAX: Final = 64 << 20
_DISCARDING_S: Final = 5.0
_VERSIONS: Final = (b"1.0", b"1.1")
_TEXTS: Final = {
    400: "this is not a valid HTTP request: {error}",
    414: f"the URL has more than {HEAD_BYTES_MAX >> 10} KiB; send a shorter condition, or use Arrow Flight",
    431: f"the headers of the request have more than {HEAD_BYTES_MAX >> 10} KiB; send fewer headers",
    501: "the transfer encoding is not supported: {error}; send chunked, or a Content-Length",
    505: "the HTTP version is not supported; use HTTP/1.1",
}


class StrictConnection(h11.Connection):
    """Rejects requests that two chained servers could parse differently (request smuggling)."""

    def next_event(self) -> Any:
        """Return the next event. Raises `h11.RemoteProtocolError` with the status of the response."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = [name for name, _ in event.headers]
            # The base class checks the size of incomplete heads only.
            if len(event.target) > HEAD_BYTES_MAX:
                raise h11.RemoteProtocolError("the target is too long", error_status_hint=414)
            if sum(len(name) + len(value) + len(": \r\n") for name, value in event.headers) > HEAD_BYTES_MAX:
                raise h11.RemoteProtocolError("the headers are too long", error_status_hint=431)
            if event.http_version not in _VERSIONS:
                raise h11.RemoteProtocolError("the version is unknown", error_status_hint=505)
            if b"content-length" in names and b"transfer-encoding" in names:
                raise h11.RemoteProtocolError("Content-Length and Transfer-Encoding exclude each other")
        return event


class HttpProtocol(H11Protocol):
    """Responds to a malformed request, and discards the following bytes for a while.

    If a connection is closed with unread bytes, TCP resets it, and the client may lose the response.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn = StrictConnection(h11.SERVER, HEAD_BYTES_MAX)
        self._discarded_bytes: int | None = None
        """None while the connection is open for requests."""
        self._closing: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        if self._discarded_bytes is None:
            super().data_received(data)
            return
        self._discarded_bytes += len(data)
        if self._discarded_bytes > _DISCARDED_BYTES_MAX:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._closing is not None:
            self._closing.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Respond to the current protocol error, and close the connection."""
        self._unset_keepalive_if_required()
        error = sys.exception() if sys.version_info >= (3, 12) else sys.exc_info()[1]
        if self.cycle is not None and not self.cycle.response_complete:  # type: ignore[redundant-expr]
            self.cycle.disconnected = True  # the rest of its body cannot be read
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
            if status == 431 and self.conn.their_state is h11.ERROR and b"\n" not in self.conn.trailing_data[0]:
                status = 414  # the request line has no end
            self.transport.write(_error_response(status, str(error or msg)))
        if not self.transport.can_write_eof():  # TLS
            self.transport.close()
            return
        self.transport.write_eof()
        self.transport.resume_reading()
        self._discarded_bytes = 0
        self._closing = self.loop.call_later(_DISCARDING_S, self.transport.close)


def _error_response(status: int, error: str) -> bytes:
    """Return a complete response, without use of the state of the connection, which is unknown."""
    text = _TEXTS.get(status, _TEXTS[400]).format(error=error[:100])
    phrase = HTTPStatus(status).phrase
    condition = phrase.upper().replace(" ", "_").replace("-", "_")
    body = {"error": {"condition": condition, "kind": "invalid", "message": f"{condition}: {text}"}}
    content = json.dumps(body)
    logger.info("rejected a request: %s", text)
    head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    return f"{head}Connection: close\r\n\r\n{content}".encode()
