"""An object store with a synchronous client, as the store: all that Azure's and Google's have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Final

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.parallel import in_parallel
from streamhouse_spark.errors import ObjectNotFoundError, StorageError
from streamhouse_spark.storage.base import Bytes, ObjectInfo, Offer, OnlyTurn, Sink, Turn
from streamhouse_spark.storage.remote.blob_parts import BlobParts
from streamhouse_spark.storage.remote.blobs import Blobs, Page
from streamhouse_spark.storage.remote.byte_ranges import RangePlan
from streamhouse_spark.storage.remote.probe import TEMPORARY, is_object, prove_writable, require_clock
from streamhouse_spark.storage.remote.sender import Bucket, Sender
from streamhouse_spark.storage.remote.upload import Upload

READS_MAX: Final = 48
"""Requests that are under way at the same time: as many as there are connections."""


class BlobStorage:
    """A prefix of a bucket. Safe for threads, after ``fork`` and by pickle: the client is looked up at each use.

    Temporary errors are retried for a minute at most, those of a conditional write only where the store says that it
    did nothing.
    """

    def __init__(self, url: str, prefix: str, bucket: Bucket, world: World | None = None) -> None:
        """``prefix`` is the root's name in the bucket, empty or without slashes at its ends."""
        self._url = url.rstrip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._bucket = bucket
        self._world = world or World()
        self._sender = Sender(self._url, self._prefix, bucket, self._world)
        self._send = self._sender.send

    def __repr__(self) -> str:
        return f"BlobStorage({self._url!r})"

    def __reduce__(self) -> tuple[type[BlobStorage], tuple[str, str, Bucket, World]]:
        return BlobStorage, (self._url, self._prefix.rstrip("/"), self._bucket, self._world)

    @property
    def url(self) -> str:
        return self._url

    def read(self, key: str) -> bytes:
        return self._send("gets", "read", key, lambda blobs, name: blobs.get(name), received=len)

    def read_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read whole objects at the same time; None stands for an absent one."""
        return list(in_parallel(self._read_if_there, keys, threads_max=READS_MAX))

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        plan = RangePlan.of(ranges)
        if not plan.pieces:
            self.size_bytes(key)
            return [b""] * len(plan.wanted)

        def fetch(piece: tuple[int, int]) -> bytes:
            return self._send("gets", "read", key, lambda blobs, name: blobs.get_range(name, *piece), received=len)

        found = in_parallel(fetch, plan.pieces, threads_max=READS_MAX)
        return plan.assemble(dict(zip(plan.pieces, found, strict=True)))

    def size_bytes(self, key: str) -> int:
        return self._send("heads", "read", key, lambda blobs, name: blobs.size_bytes(name))

    def put_if_absent(self, key: str, data: Bytes) -> None:
        self._put(key, bytes(data), is_absent=True)

    def ensure_durable(self, key: str) -> None:
        self.size_bytes(key)  # a visible object is durable

    def put(self, key: str, data: Bytes) -> None:
        self._put(key, bytes(data), is_absent=False)

    def create(self, key: str) -> AbstractContextManager[Sink]:
        require_clock(self, self._world)
        attempt = self._world.ids.new_uuid()
        return Upload(BlobParts(self._sender, key, attempt), key, attempt)

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

    def delete(self, key: str) -> None:
        with suppress(ObjectNotFoundError):
            self._send("deletes", "delete", key, lambda blobs, name: blobs.delete(name))

    def now_ms(self) -> int:
        if (now_ms := self._bucket.blobs().clock.now_ms()) is not None:
            return now_ms
        failure: StorageError | None = None
        try:
            self._send("heads", "ask the time of", "", lambda blobs, _: blobs.ask_time())
        except StorageError as error:
            failure = error  # a refusal tells the time too
        now_ms = self._bucket.blobs().clock.now_ms()
        if now_ms is None:
            raise failure or StorageError(f"{self._url}: the store's answers have no Date header; check the endpoint")
        return now_ms

    def local_path(self, key: str) -> str | None:  # noqa: ARG002
        return None

    def contention_hint(self, key: str, offer: Offer | None = None) -> AbstractContextManager[Turn]:  # noqa: ARG002
        return nullcontext(OnlyTurn())

    def check_writable(self) -> None:
        """Try reading, put-if-absent, read-after-write and deleting on objects of its own, which it removes.

        Puts race as well where the endpoint is not the maker's own, which is known to decide between them.
        """
        blobs = self._bucket.blobs()
        prove_writable(self, self._world, blobs.condition, is_known=blobs.is_known)

    def _read_if_there(self, key: str) -> bytes | None:
        try:
            return self.read(key)
        except ObjectNotFoundError:
            return None

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
