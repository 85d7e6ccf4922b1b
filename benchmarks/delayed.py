"""``python -m benchmarks.delayed TARGET MS``: a relay before a server of this host, which delays what is sent to it.

Each piece of a request arrives that much later, all pieces alike, and answers come at once: so a request takes MS
longer, and requests side by side do not wait for each other. Prints its port; ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

_CHUNK_BYTES = 1 << 18


class Relay:
    def __init__(self, target: int, delay_ms: float) -> None:
        self._target = target
        self._delay_s = delay_ms / 1e3

    async def serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=_CHUNK_BYTES)
        print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - the parent reads it
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._target)
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        tasks = [
            asyncio.create_task(self._take(reader, late)),
            asyncio.create_task(self._pass_on(late, upstream_writer)),
            asyncio.create_task(_copy(upstream_reader, writer)),
        ]
        with suppress(ConnectionError, OSError):
            await asyncio.wait(tasks[1:], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for one in (writer, upstream_writer):
            one.close()

    async def _take(self, reader: asyncio.StreamReader, late: asyncio.Queue[tuple[float, bytes]]) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(_CHUNK_BYTES):
            late.put_nowait((loop.time() + self._delay_s, data))
        late.put_nowait((loop.time(), b""))

    async def _pass_on(self, late: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await late.get()
            if not data:
                return
            await asyncio.sleep(max(0.0, due - loop.time()))
            writer.write(data)
            await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()


if __name__ == "__main__":
    asyncio.run(Relay(int(sys.argv[1]), float(sys.argv[2])).serve())
