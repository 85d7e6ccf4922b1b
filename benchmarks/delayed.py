"""``python -m benchmarks.delayed TARGET MS``: a relay before an HTTP server of this host: delays, counts.

Each piece of a request arrives that much later, all pieces alike, and answers come at once: so a request takes MS
longer, and requests side by side do not wait for each other. Prints its port; ends with its standard input, whose lines
are orders: ``delay MS``, and ``count``, which is answered by JSON: the requests since the last such order, and the
bytes of their answers.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from contextlib import suppress

_CHUNK_BYTES = 1 << 18
_REQUEST = re.compile(rb"(GET|HEAD|PUT|POST|DELETE) (/\S*) HTTP/1\.1\r\n")
_LINE_BYTES_MAX = 4_096


class Relay:
    def __init__(self, target: int, delay_ms: float) -> None:
        self._target = target
        self._delay_s = delay_ms / 1e3
        self._requests: list[str] = []
        self._answered_bytes = 0

    async def serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=_CHUNK_BYTES)
        print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - the parent reads it
        loop = asyncio.get_running_loop()
        while order := await loop.run_in_executor(None, sys.stdin.readline):
            self._obey(*order.split())

    def _obey(self, order: str, *values: str) -> None:
        if order == "delay":
            self._delay_s = float(values[0]) / 1e3
            print("done", flush=True)  # noqa: T201 - the parent waits for it
        else:
            found = {"requests": self._requests, "answered_bytes": self._answered_bytes}
            print(json.dumps(found), flush=True)  # noqa: T201 - the parent reads it
            self._requests, self._answered_bytes = [], 0

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._target)
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        tasks = [
            asyncio.create_task(self._take(reader, late)),
            asyncio.create_task(self._pass_on(late, upstream_writer)),
            asyncio.create_task(self._answer(upstream_reader, writer)),
        ]
        with suppress(OSError):
            await asyncio.wait(tasks[1:], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # a connection that ends in the middle is no error here
        for one in (writer, upstream_writer):
            one.close()

    async def _take(self, reader: asyncio.StreamReader, late: asyncio.Queue[tuple[float, bytes]]) -> None:
        loop = asyncio.get_running_loop()
        begun = b""
        with suppress(OSError):  # a client that is done with a connection may reset it
            while data := await reader.read(_CHUNK_BYTES):
                late.put_nowait((loop.time() + self._delay_s, data))
                begun = self._counted(begun + data)
        late.put_nowait((loop.time(), b""))

    def _counted(self, seen: bytes) -> bytes:
        """Count the requests that begin here; the end, which may be the beginning of another one, is returned."""
        end = 0
        for found in _REQUEST.finditer(seen):
            self._requests.append(f"{found[1].decode()} {found[2].decode()}")
            end = found.end()
        return seen[max(end, len(seen) - _LINE_BYTES_MAX) :]

    async def _pass_on(self, late: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await late.get()
            if not data:
                return
            if (wait_s := due - loop.time()) > 0:
                await asyncio.sleep(wait_s)
            writer.write(data)
            await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            self._answered_bytes += len(data)
            writer.write(data)
            await writer.drain()


if __name__ == "__main__":
    asyncio.run(Relay(int(sys.argv[1]), float(sys.argv[2])).serve())
