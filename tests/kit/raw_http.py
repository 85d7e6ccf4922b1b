"""HTTP as bytes over a socket: requests that no client library would send, and whatever comes back."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Answer:
    status: int
    """0 where the connection was closed without an answer."""
    headers: list[str] = field(default_factory=list)
    body: bytes = b""

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.body)["error"]


def exchange(authority: str, request: bytes, *, timeout_s: float = 30, patience_s: float = 30) -> Answer:
    """Send bytes to ``host:port``, and read until the server closes. Where nothing comes for ``patience_s``, say that
    no more bytes follow.

    Raises `TimeoutError` where the server neither answers nor closes.
    """
    host, _, port = authority.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
        received = bytearray()
        try:
            connection.sendall(request)
            connection.settimeout(patience_s)
            try:
                while chunk := connection.recv(1 << 16):
                    received += chunk
                return parse_answer(bytes(received))
            except TimeoutError:
                connection.shutdown(socket.SHUT_WR)
            connection.settimeout(timeout_s)
            while chunk := connection.recv(1 << 16):
                received += chunk
        except TimeoutError:
            raise
        except OSError:  # reset, or closed before all was sent
            pass
    return parse_answer(bytes(received))


def parse_answer(received: bytes) -> Answer:
    """Parse the first answer of a connection that closes behind it."""
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ", 2)
    if not words[0].startswith("HTTP/1.") or len(words) < 2:
        return Answer(0, [], received)
    return Answer(int(words[1]), lines[1:], body)
