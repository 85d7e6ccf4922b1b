"""Clients that follow a table over HTTP: their limits, and the server-sent events that they receive.

A follower holds one event and one Arrow batch in memory, however slow its client is: the next event is built when the
connection has room for it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa
from anyio import CapacityLimiter, to_thread
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.log.commits.log_position import LogPosition
from streamhouse_spark.log.segments.metadata_columns import BUCKET, LOG_OFFSET
from streamhouse_spark.read.tail import Tail
from streamhouse_spark.schema.json_values import encode_row_texts

FOLLOWERS_MAX: Final = 200
FOLLOWERS_OF_CLIENT_MAX: Final = 100
"""Followers per client, so that one client cannot keep others out."""
EVENT_ROWS_MAX: Final = 1_000
EVENT_BYTES_MAX: Final = 64 << 10
"""Approximate Arrow bytes of an event's rows; a larger row is an event of its own."""
_HEARTBEAT_S: Final = 10.0


class Followers:
    """Counts the followers of a server. Use it only in the server's event loop."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._threads: CapacityLimiter | None = None

    @property
    def threads(self) -> CapacityLimiter:
        """The threads in which followers wait for rows, separate from those of other requests."""
        self._threads = self._threads or CapacityLimiter(FOLLOWERS_MAX)
        return self._threads

    def admit(self, client: str) -> str | None:
        """Count a follower, which must be released. Return the reason of a rejection, or None."""
        if self._counts.total() >= FOLLOWERS_MAX:
            return f"{FOLLOWERS_MAX} clients already follow tables here; retry later, or on another server"
        if self._counts[client] >= FOLLOWERS_OF_CLIENT_MAX:
            return f"this client follows {FOLLOWERS_OF_CLIENT_MAX} tables here already; end one of these streams first"
        self._counts[client] += 1
        return None

    def release(self, client: str) -> None:
        self._counts[client] -= 1
        if not self._counts[client]:
            del self._counts[client]


class FollowResponse(StreamingResponse):
    """The events of a tail, until its client disconnects."""

    def __init__(
        self,
        tail: Tail,
        stop: threading.Event,
        *,
        threads: CapacityLimiter,
        has_ended: Callable[[], bool],
        release: Callable[[], None],
    ) -> None:
        """``has_ended`` returns whether the client's token expired; ``release`` is called exactly once at the end."""
        super().__init__(
            self._events(tail, threads, has_ended),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )
        self._stop = stop
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stop.set()
            self._release()

    @staticmethod
    async def _events(tail: Tail, threads: CapacityLimiter, has_ended: Callable[[], bool]) -> AsyncIterator[str]:
        # The first event contains the start position: all rows written after it follow.
        yield _format_event("begin", tail.position, "[]")
        events = tail_events(tail)
        pending: asyncio.Task[str | None] | None = None
        while not has_ended():
            pending = pending or asyncio.ensure_future(to_thread.run_sync(next, events, None, limiter=threads))
            done, _ = await asyncio.wait([pending], timeout=_HEARTBEAT_S)
            if not done:
                yield ": waiting\n\n"
                continue
            event, pending = pending.result(), None
            if event is None:
                return
            yield event


def tail_events(tail: Tail) -> Iterator[str]:
    """Yield events of some rows each, whose id is the position after them; an error is the last event."""
    try:
        for batch in tail:
            yield from _batch_events(batch, tail.position)
    except StreamhouseError as error:
        yield f"event: error\ndata: {json.dumps(str(error))}\n\n"


def _batch_events(batch: pa.RecordBatch, position: LogPosition) -> Iterator[str]:
    num_rows = max(1, min(EVENT_ROWS_MAX, EVENT_BYTES_MAX * batch.num_rows // max(1, batch.nbytes)))
    for start in range(0, batch.num_rows, num_rows):
        rows = batch.slice(start, num_rows)
        is_last = start + num_rows >= batch.num_rows
        yield _format_event(
            "rows", position if is_last else _position_after(rows, position), f"[{', '.join(encode_row_texts(rows))}]"
        )


def _position_after(rows: pa.RecordBatch, position: LogPosition) -> LogPosition:
    """Return the position after the first rows of a batch of one bucket, given that after the whole batch."""
    bucket, offset = (rows.column(name)[-1].as_py() for name in (BUCKET.name, LOG_OFFSET.name))
    return replace(position, offsets={**position.offsets, bucket: offset + 1})


def _format_event(kind: str, position: LogPosition, rows: str) -> str:
    at = json.dumps(position.to_json(), separators=(",", ":"))
    return f"id: {at}\nevent: {kind}\ndata: {rows}\n\n"
