"""A large object on its way to S3."""

from __future__ import annotations

import io
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Protocol, Self

from streamhouse_spark.errors import StorageError
from streamhouse_spark.storage.base import Bytes

PART_BYTES = 8 << 20
PARTS_IN_FLIGHT_MAX = 4
PARTS_MAX = 10_000
_ATTEMPT = "attempt"


class Send(Protocol):
    def __call__(self, doing: str, key: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Send one request on one object, and again while that may help. Raises `StorageError` and its subclasses."""


class Upload:
    """The sink of `S3Storage.create`.

    Holds at most ``PARTS_IN_FLIGHT_MAX + 2`` parts of ``PART_BYTES`` in memory; an object has at most 78 GiB. An object
    of one part is one request. An exception in the context, or a failed request, aborts the upload and leaves nothing.

    The object carries the identity of this attempt, so that a request that was stored but not acknowledged is
    recognised, whatever the store said about it.
    """

    def __init__(self, send: Send, key: str, attempt: str) -> None:
        self._send = send
        self._key = key
        self._attempt = attempt
        self._buffer = io.BytesIO()
        self._upload_id: str | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._in_flight: deque[Future[dict[str, Any]]] = deque()
        self._parts: list[dict[str, Any]] = []
        self._parts_begun = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
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
                self._begin_part()
            written += self._buffer.write(view[written : written + PART_BYTES - self._buffer.tell()])
        return written

    def _begin_part(self) -> None:
        if self._parts_begun == PARTS_MAX:
            raise StorageError(
                f"cannot write {self._key}: it is larger than {PARTS_MAX * PART_BYTES >> 30} GiB, the limit of one "
                "object; write smaller batches",
            )
        if self._upload_id is None:
            answer = self._send("write", self._key, "create_multipart_upload", Metadata=self._metadata)
            self._upload_id = answer["UploadId"]
            self._pool = ThreadPoolExecutor(PARTS_IN_FLIGHT_MAX, thread_name_prefix="streamhouse-upload")
        assert self._pool is not None
        while len(self._in_flight) >= PARTS_IN_FLIGHT_MAX:
            self._end_oldest_part()
        self._parts_begun += 1
        body, self._buffer = self._buffer, io.BytesIO()
        self._in_flight.append(self._pool.submit(self._send_part, self._parts_begun, body))

    def _send_part(self, number: int, body: io.BytesIO) -> dict[str, Any]:
        answer = self._send("write", self._key, "upload_part", UploadId=self._upload_id, PartNumber=number, Body=body)
        return {"PartNumber": number, "ETag": answer["ETag"]}

    def _end_oldest_part(self) -> None:
        self._parts.append(self._in_flight.popleft().result())

    def _finish(self) -> None:
        try:
            if self._upload_id is None:
                self._send(
                    "write", self._key, "put_object", Body=self._buffer, Metadata=self._metadata, IfNoneMatch="*"
                )
                return
            self._begin_part()
            while self._in_flight:
                self._end_oldest_part()
            self._send(
                "write",
                self._key,
                "complete_multipart_upload",
                UploadId=self._upload_id,
                MultipartUpload={"Parts": self._parts},
                IfNoneMatch="*",
            )
        except StorageError:
            if not self._is_stored():
                raise
        self._end_pool()

    def _is_stored(self) -> bool:
        """Tell whether the object exists and is this attempt's own, although a request failed."""
        try:
            answer = self._send("read", self._key, "head_object")
        except StorageError:
            return False
        metadata: dict[str, str] = answer.get("Metadata") or {}
        return metadata.get(_ATTEMPT) == self._attempt

    def _abandon(self, reason: BaseException) -> None:
        self._end_pool()
        if self._upload_id is None:
            return
        try:
            self._send("abort the upload of", self._key, "abort_multipart_upload", UploadId=self._upload_id)
        except StorageError as error:
            reason.add_note(f"the parts uploaded so far remain: {error}")

    def _end_pool(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    @property
    def _metadata(self) -> dict[str, str]:
        return {_ATTEMPT: self._attempt}
