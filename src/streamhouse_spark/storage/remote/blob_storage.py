"""Storage on an object store with a synchronous client: the common part of Azure and Google Cloud Storage."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import AbstractContextManager

from streamhouse_spark.storage.base import Bytes, ObjectInfo, Sink
from streamhouse_spark.storage.remote.blobs import Blobs, MultipartUpload, Page
from streamhouse_spark.storage.remote.conditional_put_probe import TEMPORARY, is_object, prove_writable, require_clock
from streamhouse_spark.storage.remote.multipart_upload import UploadSink
from streamhouse_spark.storage.remote.remote_storage import RemoteStorage
from streamhouse_spark.storage.remote.request_executor import RequestExecutor


class BlobStorage(RemoteStorage[Blobs]):
    """A prefix of a bucket."""

    def put_if_absent(self, key: str, data: Bytes) -> None:
        self._put(key, bytes(data), is_absent=True)

    def put(self, key: str, data: Bytes) -> None:
        self._put(key, bytes(data), is_absent=False)

    def create(self, key: str) -> AbstractContextManager[Sink]:
        require_clock(self, self._world)
        attempt = self._world.ids.new_uuid()
        return UploadSink(BlobParts(self._sender, key, attempt), key, attempt)

    def list_names(self, prefix: str) -> list[str]:
        skipped = len(self._prefix) + len(prefix)
        names: set[str] = set()
        for page in self._pages(prefix, "/"):
            names.update(blob.name[skipped:] for blob in page.blobs)
            names.update(folder[skipped:-1] for folder in page.prefixes)
        return sorted(name for name in names if name and not name.startswith(TEMPORARY))

    def list(self, prefix: str) -> list[ObjectInfo]:
        return [
            ObjectInfo(key, blob.size_bytes, blob.modified_ms)
            for page in self._pages(prefix, None)
            for blob in page.blobs
            if is_object(key := blob.name[len(self._prefix) :])
        ]

    def check_writable(self) -> None:
        """Test reads, put-if-absent, read-after-write and deletes on probe objects, which are removed.

        Racing puts are tested too if the endpoint is not the vendor's, which is known to decide between writers.
        """
        blobs = self._bucket.blobs()
        prove_writable(self, self._world, blobs.condition, is_trusted=blobs.is_known)

    def _put(self, key: str, data: bytes, *, is_absent: bool) -> None:
        require_clock(self, self._world)

        def put(blobs: Blobs, name: str) -> None:
            blobs.put(name, data, is_absent=is_absent)

        self._send("puts", "write", key, put, sent_bytes=len(data), resend_unclear=not is_absent)

    def _pages(self, prefix: str, delimiter: str | None) -> Iterator[Page]:
        following: str | None = None
        while True:

            def ask(blobs: Blobs, name: str, mark: str | None = following) -> Page:
                return blobs.page(name, delimiter, mark)

            page = self._send("lists", "list", prefix, ask)
            yield page
            following = page.following
            if following is None:
                return


class BlobParts:
    """The requests of one upload, as `multipart_upload.Parts` defines them."""

    def __init__(self, sender: RequestExecutor[Blobs], key: str, attempt: str) -> None:
        self.in_flight_max = sender.bucket.blobs().parts_in_flight_max
        self._sender = sender
        self._key = key
        self._attempt = attempt
        self._large_blob: MultipartUpload | None = None

    @property
    def _large(self) -> MultipartUpload:
        assert self._large_blob is not None, "begin comes first"
        return self._large_blob

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
        self._large_blob = self._sender.send(
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
