"""Multipart upload of a large object."""

from __future__ import annotations

import io
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, Protocol, Self

from streamhouse_spark.errors import StorageError
from streamhouse_spark.storage.base import Bytes

PART_BYTES: Final = 8 << 20
PARTS_IN_FLIGHT_MAX: Final = 4
PARTS_MAX: Final = 10_000
ATTEMPT: Final = "attempt"
"""The metadata key of the attempt id. Each attempt to write an object has its own id."""


class UploadRequests(Protocol):
    """The requests of one upload, which are retried. They raise `StorageError`."""

    in_flight_max: int
    """Number of parts that the store accepts concurrently."""

    def put_whole(self, body: io.BytesIO) -> None:
        """Store an object of one part if the key is absent."""

    def begin(self) -> None:
        """Start an upload of several parts."""

    def send(self, number: int, body: io.BytesIO, *, is_last: bool) -> None:
        """Send a part. Numbers start at 1."""

    def finish(self) -> None:
        """Make the object visible if the key is absent."""

    def abort(self) -> None:
        """Remove the uploaded parts."""

    def stored_attempt(self) -> str | None:
        """Return the attempt id of the stored object. Raises `ObjectNotFoundError`."""


class UploadSink:
    """The sink of `Storage.create` on an object store.

    Holds at most ``PARTS_IN_FLIGHT_MAX + 2`` parts of ``PART_BYTES`` in memory. An object has at most 78 GiB; an object
    of one part needs one request. An exception in the context, or a failed request, aborts the upload and leaves
    nothing. The attempt id in the object's metadata identifies an object that was stored despite a reported failure.
    """

    def __init__(self, parts: UploadRequests, key: str, attempt: str) -> None:
        self._requests = parts
        self._key = key
        self._attempt = attempt
        self._buffer = io.BytesIO()
        self._is_started = False
        self._pool: ThreadPoolExecutor | None = None
        self._in_flight: deque[Future[None]] = deque()
        self._num_parts_started = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc is not None:
            self._abandon(exc)
            return
        try:
            self._finish()
        except BaseException as error:
            self._abandon(error)
            raise

    def write(self, data: Bytes) -> int:
        view = memoryview(data).cast("B")
        written = 0
        while written < view.nbytes:
            if self._buffer.tell() == PART_BYTES:
                self._begin_part(is_last=False)
            written += self._buffer.write(view[written : written + PART_BYTES - self._buffer.tell()])
        return written

    def _begin_part(self, *, is_last: bool) -> None:
        if self._num_parts_started == PARTS_MAX:
            raise StorageError(
                f"cannot write {self._key}: it is larger than {PARTS_MAX * PART_BYTES >> 30} GiB, the limit of one "
                "object; write smaller batches"
            )
        if self._pool is None:
            self._requests.begin()
            self._is_started = True
            self._pool = ThreadPoolExecutor(self._requests.in_flight_max, thread_name_prefix="streamhouse-upload")
        while len(self._in_flight) >= self._requests.in_flight_max:
            self._in_flight.popleft().result()
        self._num_parts_started += 1
        body, self._buffer = self._buffer, io.BytesIO()
        self._in_flight.append(self._pool.submit(self._requests.send, self._num_parts_started, body, is_last=is_last))

    def _finish(self) -> None:
        try:
            if not self._is_started:
                self._requests.put_whole(self._buffer)
                return
            self._begin_part(is_last=True)
            while self._in_flight:
                self._in_flight.popleft().result()
            self._requests.finish()
        except StorageError:
            if not self._is_stored():
                raise
        self._end_pool()

    def _is_stored(self) -> bool:
        """Return whether the object was stored by this attempt although a request failed."""
        try:
            return self._requests.stored_attempt() == self._attempt
        except StorageError:
            return False

    def _abandon(self, reason: BaseException) -> None:
        self._end_pool()
        if not self._is_started:
            return
        try:
            self._requests.abort()
        except StorageError as error:
            reason.add_note(f"the uploaded parts remain: {error}")

    def _end_pool(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
