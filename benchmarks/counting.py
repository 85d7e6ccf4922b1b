"""A relay before an HTTP server of this host that counts the requests to it, and the bytes of its answers."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

_CHUNK_BYTES: Final = 1 << 18
_REQUEST: Final = re.compile(rb"(?:GET|HEAD|PUT|POST|DELETE) /\S* HTTP/1\.1\r\n")
_LINE_BYTES_MAX: Final = 4_096


@dataclass
class Counts:
    """What was counted since the relay began."""

    port: int = 0
    requests: int = 0
    answered_bytes: int = 0
    ready: threading.Event = field(default_factory=threading.Event)


@contextmanager
def counted(target: int) -> Iterator[Counts]:
    """Run a relay to a port; what it counts."""
    counts = Counts()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(_serve(target, counts),), daemon=True)
    thread.start()
    if not counts.ready.wait(30):
        raise TimeoutError("the relay did not begin")
    yield counts


async def _serve(target: int, counts: Counts) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", target)
        ways = [_there(reader, upstream_writer, counts), _back(upstream_reader, writer, counts)]
        with suppress(ConnectionError, OSError):
            await asyncio.wait([asyncio.create_task(way) for way in ways], return_when=asyncio.FIRST_COMPLETED)
        for one in (writer, upstream_writer):
            one.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=_CHUNK_BYTES)
    counts.port = server.sockets[0].getsockname()[1]
    counts.ready.set()
    await server.serve_forever()


async def _there(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counts: Counts) -> None:
    begun = b""
    while data := await reader.read(_CHUNK_BYTES):
        seen = begun + data
        found = list(_REQUEST.finditer(seen))
        counts.requests += len(found)
        begun = seen[max(found[-1].end() if found else 0, len(seen) - _LINE_BYTES_MAX) :]
        writer.write(data)
        await writer.drain()


async def _back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counts: Counts) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        counts.answered_bytes += len(data)
        writer.write(data)
        await writer.drain()
