"""Storage on a store with a synchronous client: the common part of Azure, Google Cloud Storage and HDFS.

Requests are retried and counted. Their failures are raised as this package's errors.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final, Generic, Protocol, TypeVar

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.concurrency import parallel_map
from streamhouse_spark.errors import ObjectNotFoundError, StorageError
from streamhouse_spark.storage.base import Bytes, ObjectInfo, Sink
from streamhouse_spark.storage.prefetch import RangePlan
from streamhouse_spark.storage.remote.client import BucketClient, ListingPage, MultipartUpload, StoreClient
from streamhouse_spark.storage.remote.conditional_put_probe import TEMPORARY, is_object, prove_writable, require_clock
from streamhouse_spark.storage.remote.multipart_upload import UploadSink
from streamhouse_spark.storage.remote.retry import USUAL, RetryPolicy, counts_of_failure, send_with_retries
from streamhouse_spark.storage.request_metrics import METER, Kind, RequestCounts

READS_MAX: Final = 48
"""Maximum number of concurrent requests, which equals the number of connections."""

T = TypeVar("T")
R = TypeVar("R", bound=StoreClient)
R_co = TypeVar("R_co", bound=StoreClient, covariant=True)


class Address(Protocol[R_co]):
    """A bucket or cluster, and the settings to reach it. Supports pickling."""

    def client(self) -> R_co:
        """Return the client of this process."""


class RemoteStorage(Generic[R]):
    """A prefix of a bucket. Thread-safe, and safe after ``fork`` and pickling: the client is looked up at each use.

    Transient errors are retried for at most a minute. Those of a conditional write are retried only if the store
    reports that nothing was written. A configured ``retry_policy`` applies to both.
    """

    def __init__(
        self, url: str, prefix: str, address: Address[R], world: World | None = None, patience: RetryPolicy = USUAL
    ) -> None:
        """``prefix`` is the key prefix of the warehouse in the bucket, without slashes at its ends. It may be empty."""
        self._url = url.rstrip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._address = address
        self._world = world or World()
        self._patience = patience

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    def __reduce__(self) -> tuple[type[Any], tuple[str, str, Address[R], World, RetryPolicy]]:
        return type(self), (self._url, self._prefix.rstrip("/"), self._address, self._world, self._patience)

    @property
    def url(self) -> str:
        return self._url

    @property
    def client(self) -> R:
        return self._address.client()

    def send(
        self,
        kind: Kind,
        verb: str,
        key: str,
        request: Callable[[R, str], T],
        *,
        sent_bytes: int = 0,
        received: Callable[[T], int] = lambda _: 0,
        retry_unknown_outcome: bool = True,
    ) -> T:
        """Send a request for the object at ``key``. ``request`` gets the client and the complete name of the object.

        Without ``retry_unknown_outcome``, a request with an unknown outcome is not retried, unless a retry policy was
        configured. If the store rejects the secret of a file, the request is retried once with the renewed secret.
        Raises `StorageError` and its subclasses.
        """
        client = self.client
        secret = client.token_file
        version = secret.version if secret else 0

        def send_once() -> T:
            try:
                response = request(client, self._prefix + key)
            except client.failures as error:
                self._count(kind, key, counts_of_failure(client.classify_failure(error).kind, sent_bytes))
                raise
            self._count(kind, key, RequestCounts(sent_bytes=sent_bytes, received_bytes=received(response)))
            return response

        may_renew = True
        while True:
            try:
                return send_with_retries(
                    send_once,
                    self._world,
                    client.failures,
                    lambda error: client.classify_failure(error).kind,
                    retry_unknown_outcome=retry_unknown_outcome,
                    patience=self._patience,
                )
            except client.failures as error:
                failure = client.classify_failure(error)
                is_renewed = may_renew and failure.is_refused and secret is not None and secret.renew(version)
                if not is_renewed:
                    raise failure.error(verb, f"{self._url}/{key}") from error
                may_renew = False

    def _count(self, kind: Kind, key: str, about: RequestCounts) -> None:
        METER.note(self._url, key, RequestCounts(**{kind: 1}) + about)

    def read(self, key: str) -> bytes:
        return self.send("gets", "read", key, lambda client, name: client.get(name), received=len)

    def read_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read whole objects concurrently. Returns None for an absent object."""
        return list(parallel_map(self._read_or_none, keys, threads_max=READS_MAX))

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        plan = RangePlan.of(ranges)
        if not plan.pieces:
            self.size_bytes(key)
            return [b""] * len(plan.requested)

        def fetch(piece: tuple[int, int]) -> bytes:
            return self.send("gets", "read", key, lambda client, name: client.get_range(name, *piece), received=len)

        contents = parallel_map(fetch, plan.pieces, threads_max=READS_MAX)
        return plan.assemble(dict(zip(plan.pieces, contents, strict=True)))

    def size_bytes(self, key: str) -> int:
        return self.send("heads", "read", key, lambda client, name: client.size_bytes(name))

    def ensure_durable(self, key: str) -> None:
        self.size_bytes(key)  # in an object store, a visible object is durable

    def delete(self, key: str) -> None:
        with suppress(ObjectNotFoundError):
            self.send("deletes", "delete", key, lambda client, name: client.delete(name))

    def now_ms(self) -> int:
        if (now_ms := self.client.clock.now_ms()) is not None:
            return now_ms
        failure: StorageError | None = None
        try:
            self.send("heads", "ask the time of", "", lambda client, _: client.request_time())
        except StorageError as error:
            failure = error  # a rejection has a Date header too
        now_ms = self.client.clock.now_ms()
        if now_ms is None:
            raise failure or StorageError(f"{self._url}: the store's responses have no Date header; check the endpoint")
        return now_ms

    def local_path(self, key: str) -> str | None:  # noqa: ARG002
        return None

    def commit_lock(self, key: str) -> AbstractContextManager[None]:  # noqa: ARG002 - the interface
        return nullcontext()

    def _read_or_none(self, key: str) -> bytes | None:
        try:
            return self.read(key)
        except ObjectNotFoundError:
            return None


class BlobStorage(RemoteStorage[BucketClient]):
    """A prefix of a bucket of an object store."""

    def put_if_absent(self, key: str, data: Bytes) -> None:
        self._put(key, bytes(data), is_absent=True)

    def put(self, key: str, data: Bytes) -> None:
        self._put(key, bytes(data), is_absent=False)

    def create(self, key: str) -> AbstractContextManager[Sink]:
        require_clock(self, self._world)
        attempt = self._world.ids.new_uuid()
        return UploadSink(BlobUploadRequests(self, key, attempt), key, attempt)

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
        """Verify reads, put-if-absent, read-after-write and deletes with probe objects, which are removed.

        Concurrent puts are also verified, unless the endpoint is the vendor's, whose puts are known to be atomic.
        """
        prove_writable(self, self._world, self.client.condition, is_trusted=self.client.is_known)

    def _put(self, key: str, data: bytes, *, is_absent: bool) -> None:
        require_clock(self, self._world)

        self.send(
            "puts",
            "write",
            key,
            lambda client, name: client.put(name, data, is_absent=is_absent),
            sent_bytes=len(data),
            retry_unknown_outcome=not is_absent,
        )

    def _pages(self, prefix: str, delimiter: str | None) -> Iterator[ListingPage]:
        token: str | None = None
        while True:

            def request_page(client: BucketClient, name: str, page_token: str | None = token) -> ListingPage:
                return client.page(name, delimiter, page_token)

            page = self.send("lists", "list", prefix, request_page)
            yield page
            if (token := page.next_token) is None:
                return


class BlobUploadRequests:
    """The requests of one upload to an object store. Implements `multipart_upload.Parts`."""

    def __init__(self, storage: BlobStorage, key: str, attempt: str) -> None:
        self.in_flight_max = storage.client.parts_in_flight_max
        self._storage = storage
        self._key = key
        self._attempt = attempt
        self._large_blob: MultipartUpload | None = None

    @property
    def _large(self) -> MultipartUpload:
        assert self._large_blob is not None, "begin comes first"
        return self._large_blob

    def put_whole(self, body: io.BytesIO) -> None:
        data = body.getvalue()
        self._storage.send(
            "puts",
            "write",
            self._key,
            lambda client, name: client.put(name, data, is_absent=True, attempt=self._attempt),
            sent_bytes=len(data),
        )

    def begin(self) -> None:
        self._large_blob = self._storage.send(
            "puts", "write", self._key, lambda client, name: client.begin(name, self._attempt)
        )

    def send(self, number: int, body: io.BytesIO, *, is_last: bool) -> None:
        self._storage.send(
            "puts",
            "write",
            self._key,
            lambda _, __: self._large.send(number, body, is_last=is_last),
            sent_bytes=body.getbuffer().nbytes,
        )

    def finish(self) -> None:
        self._storage.send("puts", "write", self._key, lambda _, __: self._large.finish())

    def abort(self) -> None:
        self._storage.send("deletes", "abort the upload of", self._key, lambda _, __: self._large.abort())

    def stored_attempt(self) -> str | None:
        return self._storage.send("heads", "read", self._key, lambda client, name: client.attempt(name))
