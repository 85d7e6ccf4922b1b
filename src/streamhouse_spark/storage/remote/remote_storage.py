"""Storage on a store with a synchronous client: reads, deletes, and the store's time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final, Generic, TypeVar

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.concurrency import parallel_map
from streamhouse_spark.errors import ObjectNotFoundError, StorageError
from streamhouse_spark.storage.remote.blobs import BlobClient
from streamhouse_spark.storage.remote.byte_ranges import RangePlan
from streamhouse_spark.storage.remote.request_executor import Bucket, RequestExecutor
from streamhouse_spark.storage.remote.retry import USUAL, RetryPolicy

READS_MAX: Final = 48
"""Concurrent requests: as many as there are connections."""

R = TypeVar("R", bound=BlobClient)


class RemoteStorage(Generic[R]):
    """A prefix of a bucket. Thread-safe, and safe after ``fork`` and pickling: the client is looked up at each use.

    Transient errors are retried for at most a minute, those of a conditional write only if the store reports that
    nothing was done. An explicit ``patience`` applies to both.
    """

    def __init__(
        self, url: str, prefix: str, bucket: Bucket[R], world: World | None = None, patience: RetryPolicy = USUAL
    ) -> None:
        """``prefix`` is the root's name in the bucket, empty or without slashes at its ends."""
        self._url = url.rstrip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._bucket = bucket
        self._world = world or World()
        self._sender: RequestExecutor[R] = RequestExecutor(self._url, self._prefix, bucket, self._world, patience)
        self._send = self._sender.send

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    def __reduce__(self) -> tuple[type[Any], tuple[str, str, Bucket[R], World, RetryPolicy]]:
        return type(self), (self._url, self._prefix.rstrip("/"), self._bucket, self._world, self._sender.patience)

    @property
    def url(self) -> str:
        return self._url

    def read(self, key: str) -> bytes:
        return self._send("gets", "read", key, lambda blobs, name: blobs.get(name), received=len)

    def read_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read whole objects concurrently; None stands for an absent one."""
        return list(parallel_map(self._read_if_there, keys, threads_max=READS_MAX))

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        plan = RangePlan.of(ranges)
        if not plan.pieces:
            self.size_bytes(key)
            return [b""] * len(plan.requested)

        def fetch(piece: tuple[int, int]) -> bytes:
            return self._send("gets", "read", key, lambda blobs, name: blobs.get_range(name, *piece), received=len)

        contents = parallel_map(fetch, plan.pieces, threads_max=READS_MAX)
        return plan.assemble(dict(zip(plan.pieces, contents, strict=True)))

    def size_bytes(self, key: str) -> int:
        return self._send("heads", "read", key, lambda blobs, name: blobs.size_bytes(name))

    def ensure_durable(self, key: str) -> None:
        self.size_bytes(key)  # a visible object is durable

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
            failure = error  # a rejection has the time too
        now_ms = self._bucket.blobs().clock.now_ms()
        if now_ms is None:
            raise failure or StorageError(f"{self._url}: the store's answers have no Date header; check the endpoint")
        return now_ms

    def local_path(self, key: str) -> str | None:  # noqa: ARG002
        return None

    def commit_lock(self, key: str) -> AbstractContextManager[None]:  # noqa: ARG002 - the interface
        return nullcontext()

    def _read_if_there(self, key: str) -> bytes | None:
        try:
            return self.read(key)
        except ObjectNotFoundError:
            return None
