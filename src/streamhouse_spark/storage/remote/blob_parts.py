"""Multipart upload to a store with a synchronous client."""

from __future__ import annotations

import io

from streamhouse_spark.storage.remote.blobs import Blobs, LargeBlob
from streamhouse_spark.storage.remote.request_executor import RequestExecutor


class BlobParts:
    """The requests of one upload, as `multipart_upload.Parts` defines them."""

    def __init__(self, sender: RequestExecutor[Blobs], key: str, attempt: str) -> None:
        self.in_flight_max = sender.bucket.blobs().parts_in_flight_max
        self._sender = sender
        self._key = key
        self._attempt = attempt
        self._begun: LargeBlob | None = None

    @property
    def _large(self) -> LargeBlob:
        assert self._begun is not None, "begin comes first"
        return self._begun

    def put_whole(self, body: io.BytesIO) -> None:
        data = body.getvalue()
        self._sender.send(
            "puts",
            "write",
            self._key,
            lambda blobs, name: blobs.put(name, data, is_absent=True, attempt=self._attempt),
            sent_bytes=len(data),
        )

    def begin(self) -> None:
        self._begun = self._sender.send(
            "puts", "write", self._key, lambda blobs, name: blobs.begin(name, self._attempt)
        )

    def send(self, number: int, body: io.BytesIO, *, is_last: bool) -> None:
        self._sender.send(
            "puts",
            "write",
            self._key,
            lambda _, __: self._large.send(number, body, is_last=is_last),
            sent_bytes=body.getbuffer().nbytes,
        )

    def finish(self) -> None:
        self._sender.send("puts", "write", self._key, lambda _, __: self._large.finish())

    def abort(self) -> None:
        self._sender.send("deletes", "abort the upload of", self._key, lambda _, __: self._large.abort())

    def stored_attempt(self) -> str | None:
        return self._sender.send("heads", "read", self._key, lambda blobs, name: blobs.attempt(name))
