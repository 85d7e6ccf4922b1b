"""Puts of one key that are all in flight before the first one can end.

A store that checks for the object when a request starts, and writes when its body has arrived, lets all of them win.
The last byte of each body is therefore held back until all others were sent and the store had time to check.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Final

import aiohttp

_LOOK_SECONDS: Final = 0.1
"""Time for the store to check for the object after the last racer's arrival."""
_SECONDS_MAX: Final = 20.0


class _Gate:
    """Opens when each racer has arrived, or has its response already."""

    def __init__(self, racers: int) -> None:
        self._awaited = set(range(racers))
        self._is_open = asyncio.Event()

    def arrive(self, racer: int) -> None:
        self._awaited.discard(racer)
        if not self._awaited:
            self._is_open.set()

    async def body(self, racer: int, data: bytes) -> AsyncIterator[bytes]:
        yield data[:-1]
        self.arrive(racer)
        await self._is_open.wait()
        await asyncio.sleep(_LOOK_SECONDS)
        yield data[-1:]


async def put_together(url: str, bodies: Sequence[bytes]) -> list[int]:
    """Put each body to a presigned ``url`` with ``If-None-Match: *``, and return the status of each response.

    0 stands for no response.
    """
    gate = _Gate(len(bodies))
    context = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE") or None)
    connector = aiohttp.TCPConnector(limit=0, ssl=context)
    timeout = aiohttp.ClientTimeout(total=_SECONDS_MAX)

    unsigned = ("Content-Type",)

    async def put(session: aiohttp.ClientSession, racer: int, body: bytes) -> int:
        headers = {"If-None-Match": "*", "Content-Length": str(len(body))}
        try:
            async with session.put(
                url, data=gate.body(racer, body), headers=headers, skip_auto_headers=unsigned
            ) as answer:
                await answer.read()
                return answer.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            return 0
        finally:
            gate.arrive(racer)

    async with aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=True) as session:
        return list(await asyncio.gather(*(put(session, racer, body) for racer, body in enumerate(bodies))))
