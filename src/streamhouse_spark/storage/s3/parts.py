"""S3's multipart upload."""

from __future__ import annotations

import io
from typing import Any, Protocol

from streamhouse_spark.storage.remote.multipart_upload import ATTEMPT, PARTS_IN_FLIGHT_MAX


class Send(Protocol):
    def __call__(self, doing: str, key: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Send one request for one object, with retries. Raises `StorageError` and its subclasses."""


class S3Parts:
    """The requests of one upload, as `Parts` defines them."""

    in_flight_max = PARTS_IN_FLIGHT_MAX

    def __init__(self, send: Send, key: str, attempt: str) -> None:
        self._send = send
        self._key = key
        self._metadata = {ATTEMPT: attempt}
        self._upload_id = ""
        self._sent: dict[int, str] = {}

    def put_whole(self, body: io.BytesIO) -> None:
        self._send("write", self._key, "put_object", Body=body, Metadata=self._metadata, IfNoneMatch="*")

    def begin(self) -> None:
        self._upload_id = self._send("write", self._key, "create_multipart_upload", Metadata=self._metadata)["UploadId"]

    def send(self, number: int, body: io.BytesIO, *, is_last: bool) -> None:  # noqa: ARG002 - S3 need not know
        answer = self._send("write", self._key, "upload_part", UploadId=self._upload_id, PartNumber=number, Body=body)
        self._sent[number] = answer["ETag"]

    def finish(self) -> None:
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in sorted(self._sent.items())]
        self._send(
            "write",
            self._key,
            "complete_multipart_upload",
            UploadId=self._upload_id,
            MultipartUpload={"Parts": parts},
            IfNoneMatch="*",
        )

    def abort(self) -> None:
        self._send("abort the upload of", self._key, "abort_multipart_upload", UploadId=self._upload_id)

    def stored_attempt(self) -> str | None:
        metadata: dict[str, str] = self._send("read", self._key, "head_object").get("Metadata") or {}
        return metadata.get(ATTEMPT)
