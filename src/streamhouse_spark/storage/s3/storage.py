"""Storage on Amazon S3, and on stores with its protocol.

Put-if-absent is ``If-None-Match: *``. Requests are sent once through the client of s3fs, with its credentials chain and
event loop. Retries are decided here, so that an unknown outcome of a conditional write reaches the caller, which reads
the object back. The HTTP layer may resend a request after a broken connection. So even `ObjectExistsError` may refer to
the caller's own object.

A killed writer can leave the parts of an unfinished upload behind. Give the bucket a lifecycle rule that aborts
incomplete multipart uploads.
"""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Callable, Coroutine, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from streamhouse_spark.core.clock import World
from streamhouse_spark.errors import InvalidOptionError, ObjectExistsError, ObjectNotFoundError, StorageError
from streamhouse_spark.storage.base import Bytes, ObjectInfo, Sink
from streamhouse_spark.storage.prefetch import RangePlan
from streamhouse_spark.storage.remote.client import StoreClock
from streamhouse_spark.storage.remote.conditional_put_probe import TEMPORARY, is_object, prove_writable, require_clock
from streamhouse_spark.storage.remote.multipart_upload import ATTEMPT, PARTS_IN_FLIGHT_MAX, UploadSink
from streamhouse_spark.storage.remote.retry import FailureKind, RetryPolicy, send_with_retries
from streamhouse_spark.storage.remote.setting_parsers import parse_key_prefix
from streamhouse_spark.storage.request_metrics import METER, RequestCounts
from streamhouse_spark.storage.s3.client import CLIENTS, CountedClient, S3Client, failures, put_concurrently
from streamhouse_spark.storage.s3.settings import S3Settings

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
Outcomes = list[StorageError | None]  # inside the class below, `list` is a method

_FETCHES_MAX = 16
_READS_MAX = 48
"""Maximum number of concurrent reads of small objects, which equals the number of connections."""
_URL = re.compile(r"s3a?://(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]{1,254})(?:/(?P<prefix>.*))?\Z", re.DOTALL)


class S3Storage:
    """``s3://bucket/prefix`` with pyiceberg's ``s3.*`` settings, or else the AWS default chain.

    Thread-safe, and safe after ``fork`` and pickling. A pickle contains the settings with their secrets. Transient
    errors are retried for at most a minute. Those of a conditional write are retried only if the store reports that
    nothing was written. A configured retry policy applies to both. If the store rejects credentials of the AWS chain as
    expired, the chain is resolved again.
    """

    def __init__(self, url: str, settings: Mapping[str, str], world: World | None = None) -> None:
        self._url = url.rstrip("/")
        self._bucket, prefix = _parse_url(self._url)
        self._prefix = f"{prefix}/" if prefix else ""
        self._settings = S3Settings.parse(settings)
        self._patience = RetryPolicy.parse(settings)
        self._world = world or World()

    def __repr__(self) -> str:
        return f"S3Storage({self._url!r})"

    @property
    def url(self) -> str:
        return self._url

    def read(self, key: str) -> bytes:
        async def get(client: CountedClient) -> bytes:
            return (await client.get(self._bucket, self._prefix + key)).data

        return self._call("read", key, get)

    def read_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read whole objects concurrently. Returns None for an absent object."""

        async def fetch(client: CountedClient, key: str) -> bytes | None:
            try:
                return (await client.get(self._bucket, self._prefix + key)).data
            except failures.S3_FAILURES as error:
                if failures.classify_failure(error) is not FailureKind.ABSENT:
                    raise
                return None

        contents = self._fetch_all(f"{keys[0]}, …" if len(keys) > 1 else "".join(keys), keys, fetch, _READS_MAX)
        return [contents[key] for key in keys]

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        plan = RangePlan.of(ranges)
        if not plan.pieces:
            self.size_bytes(key)
            return [b""] * len(plan.requested)

        async def fetch(client: CountedClient, piece: tuple[int, int]) -> bytes:
            return await _get_range(client, piece, self._bucket, self._prefix + key)

        return plan.assemble(self._fetch_all(key, plan.pieces, fetch, _FETCHES_MAX))

    def _fetch_all(
        self,
        where: str,
        items: Sequence[K],
        fetch: Callable[[CountedClient, K], Coroutine[Any, Any, T]],
        in_flight_max: int,
    ) -> dict[K, T]:
        """Fetch the items concurrently. A retry fetches the missing ones."""
        results: dict[K, T] = {}

        async def fetch_one(client: CountedClient, item: K, turn: asyncio.Semaphore) -> None:
            async with turn:
                results[item] = await fetch(client, item)

        async def fetch_missing(client: CountedClient) -> None:
            turn = asyncio.Semaphore(in_flight_max)
            missing = [item for item in items if item not in results]
            outcomes = await asyncio.gather(
                *(fetch_one(client, item, turn) for item in missing), return_exceptions=True
            )
            for outcome in outcomes:
                if outcome is not None:
                    raise outcome

        self._call("read", where, fetch_missing)
        return results

    def size_bytes(self, key: str) -> int:
        return int(self._send("read", key, "head_object")["ContentLength"])

    def put_if_absent(self, key: str, data: Bytes) -> None:
        require_clock(self, self._world)
        self._send("write", key, "put_object", retry_unknown_outcome=False, Body=bytes(data), IfNoneMatch="*")

    def ensure_durable(self, key: str) -> None:
        self.size_bytes(key)  # a visible object of S3 is durable

    def put(self, key: str, data: Bytes) -> None:
        require_clock(self, self._world)
        self._send("write", key, "put_object", Body=bytes(data))

    def create(self, key: str) -> AbstractContextManager[Sink]:
        require_clock(self, self._world)
        attempt = self._world.ids.new_uuid()
        return UploadSink(S3UploadRequests(self._send, key, attempt), key, attempt)

    def list_names(self, prefix: str) -> list[str]:
        skipped = len(self._prefix) + len(prefix)
        names: set[str] = set()
        for page in self._pages(prefix, Delimiter="/"):
            names.update(entry["Key"][skipped:] for entry in page.get("Contents", ()))
            names.update(entry["Prefix"][skipped:-1] for entry in page.get("CommonPrefixes", ()))
        return sorted(name for name in names if name and not name.startswith(TEMPORARY))

    def list(self, prefix: str) -> list[ObjectInfo]:
        return [
            ObjectInfo(key, entry["Size"], round(entry["LastModified"].timestamp() * 1000))
            for page in self._pages(prefix)
            for entry in page.get("Contents", ())
            if is_object(key := entry["Key"][len(self._prefix) :])
        ]

    def delete(self, key: str) -> None:
        with suppress(ObjectNotFoundError):
            self._send("delete", key, "delete_object")

    def now_ms(self) -> int:
        clock = self._client().clock
        now_ms = clock.now_ms()
        return self._request_time(clock) if now_ms is None else now_ms

    def local_path(self, key: str) -> str | None:  # noqa: ARG002
        return None

    def commit_lock(self, key: str) -> AbstractContextManager[None]:  # noqa: ARG002 - the interface
        return nullcontext()

    def check_writable(self) -> None:
        """Test reads, put-if-absent, read-after-write and deletes on probe objects, which are removed.

        Racing puts are tested too if the store is not Amazon's, which is known to decide between writers.
        """
        prove_writable(self, self._world, "If-None-Match", is_trusted=self._client().is_amazon)

    def put_concurrently(self, key: str, bodies: Sequence[bytes]) -> Outcomes:
        """Put all bodies under one new key, if absent, so that none ends before all have started.

        Returns None for an acknowledged put.
        """
        where = f"{self._url}/{key}"

        async def put_all(client: S3Client) -> list[int]:
            return await put_concurrently(await client.put_url(self._bucket, self._prefix + key), bodies)

        statuses = self._client().run(put_all)
        METER.note(self._url, key, RequestCounts(puts=len(bodies), sent_bytes=sum(map(len, bodies))))
        return [None if 200 <= status < 300 else _refusal(status, where) for status in statuses]

    # -- internals ------------------------------------------------------------------------------------------------

    def _request_time(self, clock: StoreClock) -> int:
        failure: StorageError | None = None
        try:
            self._call("ask the time of", "", lambda client: client.send("head_bucket", Bucket=self._bucket))
        except StorageError as error:
            failure = error  # a rejection has a Date header too
        now_ms = clock.now_ms()
        if now_ms is None:
            raise failure or StorageError(f"{self._url}: the store's responses have no Date header; check s3.endpoint")
        return now_ms

    def _pages(self, prefix: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        parameters |= {"Bucket": self._bucket, "Prefix": self._prefix + prefix}
        while True:

            async def list_page(client: CountedClient) -> dict[str, Any]:
                return await client.send("list_objects_v2", **parameters)

            page = self._call("list", prefix, list_page)
            yield page
            if not page.get("IsTruncated"):
                return
            parameters["ContinuationToken"] = page["NextContinuationToken"]

    def _send(
        self, verb: str, key: str, operation: str, *, retry_unknown_outcome: bool = True, **parameters: Any
    ) -> dict[str, Any]:
        async def send(client: CountedClient) -> dict[str, Any]:
            return await client.send(operation, Bucket=self._bucket, Key=self._prefix + key, **parameters)

        return self._call(verb, key, send, retry_unknown_outcome=retry_unknown_outcome)

    def _call(
        self,
        verb: str,
        key: str,
        request: Callable[[CountedClient], Coroutine[Any, Any, T]],
        *,
        retry_unknown_outcome: bool = True,
    ) -> T:
        """Send the request with retries. Raises every failure as a `StorageError`."""

        def run(client: S3Client) -> T:
            return client.run(lambda connected: request(CountedClient(connected, self._url, self._prefix)))

        may_renew = self._settings.access_key_id is None
        while True:
            client = self._client()
            try:
                return send_with_retries(
                    partial(run, client),
                    self._world,
                    failures.S3_FAILURES,
                    failures.classify_failure,
                    retry_unknown_outcome=retry_unknown_outcome,
                    patience=self._patience,
                )
            except failures.S3_FAILURES as error:
                if not may_renew or not failures.has_expired_credentials(error):
                    raise failures.storage_error(error, verb, f"{self._url}/{key}", self._settings.secrets) from error
            may_renew = False
            CLIENTS.forget(self._settings, client)

    def _client(self) -> S3Client:
        try:
            return CLIENTS.get(self._settings)
        except failures.S3_FAILURES as error:
            raise failures.storage_error(error, "connect to", self._url, self._settings.secrets) from error


def _refusal(status: int, where: str) -> StorageError:
    if status == 412:
        return ObjectExistsError(f"{where} exists")
    return StorageError(f"cannot write {where}: {f'HTTP {status}' if status else 'no response'}")


def _parse_url(url: str) -> tuple[str, str]:
    match = _URL.match(url)
    if match is None:
        shown = "credentials in it" if "@" in url else repr(url)
        raise InvalidOptionError(f"warehouse URL: found {shown}, expected s3://<bucket>/<prefix>")
    return match["bucket"], parse_key_prefix(url, match["prefix"])


async def _get_range(client: CountedClient, piece: tuple[int, int], bucket: str, name: str) -> bytes:
    start, end = piece
    try:
        response = await client.get(bucket, name, f"bytes={start}-{end - 1}")
    except failures.S3_FAILURES as error:
        if failures.http_status(error) == 416:  # the object ends before the range
            return b""
        raise
    # A store may ignore Range and send everything.
    return response.data if response.status == 206 else response.data[start:end]


class Send(Protocol):
    def __call__(self, verb: str, key: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Send one request for one object with retries. Raises `StorageError` and its subclasses."""


class S3UploadRequests:
    """The requests of one upload. Implements `UploadRequests`."""

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
        response = self._send("write", self._key, "upload_part", UploadId=self._upload_id, PartNumber=number, Body=body)
        self._sent[number] = response["ETag"]

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
