"""Sends requests of a synchronous client with metrics, retries and the package's errors.

Storage on a store with a synchronous client: reads, deletes, and the store's time.

Storage on an object store with a synchronous client: the common part of Azure and Google Cloud Storage.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final, Generic, Protocol, TypeVar

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.concurrency import parallel_map
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import ObjectNotFoundError, StorageError
from streamhouse_spark.storage.base import Bytes, ObjectInfo, Sink
from streamhouse_spark.storage.prefetch import RangePlan
from streamhouse_spark.storage.remote.client import BlobClient, Blobs, MultipartUpload, Page
from streamhouse_spark.storage.remote.conditional_put_probe import TEMPORARY, is_object, prove_writable, require_clock
from streamhouse_spark.storage.remote.multipart_upload import UploadSink
from streamhouse_spark.storage.remote.retry import USUAL, FailureKind, RetryPolicy, send_with_retries
from streamhouse_spark.storage.request_metrics import METER, Kind, RequestCounts

T = TypeVar("T")
R = TypeVar("R", bound=BlobClient)
R_co = TypeVar("R_co", bound=BlobClient, covariant=True)


class Bucket(Protocol[R_co]):
    """A bucket and the settings to reach it. Can be pickled."""

    def blobs(self) -> R_co:
        """Return this process's client of the bucket."""


@dataclass(frozen=True, slots=True)
class RequestExecutor(Generic[R]):
    """Sends all requests of one store."""

    url: str
    prefix: str
    """The root's name in the bucket, with a slash at its end, or empty."""
    bucket: Bucket[R]
    world: World
    patience: RetryPolicy = USUAL

    def send(
        self,
        kind: Kind,
        doing: str,
        key: str,
        request: Callable[[R, str], T],
        *,
        sent_bytes: int = 0,
        received: Callable[[T], int] = lambda _: 0,
        resend_unclear: bool = True,
    ) -> T:
        """Send a request for the object at ``key``. ``request`` gets the client and the object's complete name.

        Without ``resend_unclear`` a request with an unknown outcome is not retried, unless patience was configured. A
        rejected one is retried with the secret of a file that was renewed. Raises `StorageError` and its subclasses.
        """
        blobs = self.bucket.blobs()
        secret = blobs.token_file
        version = secret.version if secret else 0

        def counted() -> T:
            try:
                answer = request(blobs, self.prefix + key)
            except blobs.failures as error:
                outcome = blobs.judge(error).kind
                refused = int(outcome is FailureKind.EXISTS)
                failed = int(outcome not in (FailureKind.EXISTS, FailureKind.ABSENT))
                self._note(key, kind, RequestCounts(refused_puts=refused, failures=failed, sent_bytes=sent_bytes))
                raise
            self._note(key, kind, RequestCounts(sent_bytes=sent_bytes, received_bytes=received(answer)))
            return answer

        def patiently() -> T:
            return send_with_retries(
                counted,
                self.world,
                blobs.failures,
                lambda e: blobs.judge(e).kind,
                resend_unclear=resend_unclear,
                patience=self.patience,
            )

        where = f"{self.url}/{key}"
        try:
            return patiently()
        except blobs.failures as error:
            failure = blobs.judge(error)
            if not failure.is_refused or secret is None or not secret.renew(version):
                raise failure.error(doing, where) from error
        try:
            return patiently()
        except blobs.failures as error:
            raise blobs.judge(error).error(doing, where) from error

    def _note(self, key: str, kind: Kind, about: RequestCounts) -> None:
        METER.note(self.url, key, RequestCounts(**{kind: 1}) + about)


READS_MAX: Final = 48
"""Concurrent requests: as many as there are connections."""


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
