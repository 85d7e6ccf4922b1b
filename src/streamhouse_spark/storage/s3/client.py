"""The connected S3 client of a process and its settings, over s3fs. The only module that imports s3fs and fsspec."""

from __future__ import annotations

import asyncio
import atexit
import io
import os
import ssl
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future, wait
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from streamhouse_spark.core.clock import SystemClock
from streamhouse_spark.errors import MissingExtraError
from streamhouse_spark.storage.remote.client import ClientCache, StoreClock
from streamhouse_spark.storage.remote.retry import counts_of_failure
from streamhouse_spark.storage.request_metrics import METER, Kind, RequestCounts
from streamhouse_spark.storage.s3.settings import S3Settings

try:
    import aiohttp
    import fsspec.asyn
    import s3fs
    from botocore.handlers import add_expect_header

    from streamhouse_spark.storage.s3 import errors as failures
    from streamhouse_spark.storage.s3.fast_get import FastGetClient, FastGetResponse
except ImportError as import_error:
    raise MissingExtraError(
        f"a warehouse on s3:// needs the package {import_error.name}, which is not installed: "
        "pip install 'streamhouse-spark[s3]'"
    ) from import_error

__all__ = ["CLIENTS", "CountedClient", "S3Client", "failures", "put_concurrently"]

T = TypeVar("T")

_CONNECTIONS_MAX = 48
_CLOSE_SECONDS_MAX = 1.0
_BODY_BYTES_INLINE_MAX = 1 << 19
_BEFORE_CALL = "before-call.s3"


class S3Client:
    """A connected client and the store's clock. Requests run on the event loop of s3fs, in its thread."""

    def __init__(self, settings: S3Settings) -> None:
        self._boot_ms = SystemClock().boot_ms
        self.clock = StoreClock(self._boot_ms)
        self._loop = fsspec.asyn.get_loop()
        # `asynchronous` keeps s3fs from closing the client itself, which after a fork would harm the parent.
        filesystem = s3fs.S3FileSystem(
            asynchronous=True,
            skip_instance_cache=True,
            use_listings_cache=False,
            default_cache_type="none",
            endpoint_url=settings.endpoint,
            key=settings.access_key_id,
            secret=settings.secret_access_key,
            token=settings.session_token,
            client_kwargs={"region_name": settings.region} if settings.region else {},
            config_kwargs=_config(settings),
        )
        self._api = fsspec.asyn.sync(self._loop, filesystem.set_session)
        self._api.meta.events.unregister(_BEFORE_CALL, add_expect_header)
        self._api.meta.events.register(_BEFORE_CALL, _ask_before_large_bodies)
        self._short = FastGetClient(self._api)
        self._finalizer = weakref.finalize(self, _close, self._api, self._loop, os.getpid())
        self._finalizer.atexit = False

    @property
    def is_amazon(self) -> bool:
        """Whether requests go to Amazon S3 itself, even if its endpoint was configured."""
        host = urlsplit(self._api.meta.endpoint_url).hostname or ""
        return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))

    def run(self, request: Callable[[S3Client], Coroutine[Any, Any, T]]) -> T:
        result: T = fsspec.asyn.sync(self._loop, request, self)
        return result

    def close(self) -> None:
        """Close the connections at the end of the process. The client must not be used afterwards."""
        if (finalizer := self._finalizer.detach()) is not None:
            _, _, arguments, _ = finalizer
            if (closing := _close(*arguments)) is not None:
                wait([closing], timeout=_CLOSE_SECONDS_MAX)

    async def send(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Send a request once. A ``Body`` is bytes or `io.BytesIO`."""
        body = parameters.get("Body", b"")
        if isinstance(body, io.BytesIO):
            body.seek(0)
        elif len(body) > _BODY_BYTES_INLINE_MAX:
            parameters["Body"] = io.BytesIO(body)  # sent in pieces, without blocking the loop
        sent_ms = self._boot_ms()
        try:
            response: dict[str, Any] = await failures.with_credentials(getattr(self._api, operation)(**parameters))
        except failures.S3_FAILURES as error:
            self.clock.observe(failures.response_date(error), sent_ms, self._boot_ms())
            raise
        self.clock.observe(response["ResponseMetadata"]["HTTPHeaders"].get("date"), sent_ms, self._boot_ms())
        return response

    async def get(self, bucket: str, key: str, byte_range: str | None) -> FastGetResponse:
        """Read an object or byte range with one request, and learn the endpoint for `FastGetClient`."""
        ranged = {} if byte_range is None else {"Range": byte_range}
        with self._short.observe_get(bucket, key):
            response = await self.send("get_object", Bucket=bucket, Key=key, **ranged)
            async with response["Body"] as body:
                data: bytes = await body.read()  # checks Content-Length
        about = response["ResponseMetadata"]
        return FastGetResponse(about["HTTPStatusCode"], about["HTTPHeaders"], data)

    def can_get_fast(self, bucket: str) -> bool:
        return self._short.of(bucket) is not None

    async def get_fast(self, bucket: str, key: str, byte_range: str | None) -> FastGetResponse | None:
        """Read an object or byte range with `FastGetClient`.

        Returns None if the bucket has no learned endpoint, or if its endpoint failed and was dropped.
        """
        if (way := self._short.of(bucket)) is None:
            return None
        sent_ms = self._boot_ms()
        try:
            response = await failures.with_credentials(way.get(key, byte_range))
        except failures.S3_FAILURES as error:
            self.clock.observe(failures.response_date(error), sent_ms, self._boot_ms())
            raise
        if response is None:
            self._short.forget(bucket)
        else:
            self.clock.observe(response.headers.get("date"), sent_ms, self._boot_ms())
        return response

    async def put_url(self, bucket: str, key: str) -> str:
        """Return a presigned URL for a put-if-absent of the object within a minute."""
        parameters = {"Bucket": bucket, "Key": key, "IfNoneMatch": "*"}
        url: str = await self._api.generate_presigned_url("put_object", Params=parameters, ExpiresIn=60)
        return url


def _ask_before_large_bodies(params: dict[str, Any], **_: Any) -> None:
    """Let the store reject a large body before it is sent. For small bodies, this would double the latency."""
    body = params.get("body")
    if isinstance(body, io.BytesIO) and body.getbuffer().nbytes > _BODY_BYTES_INLINE_MAX:
        params["headers"]["Expect"] = "100-continue"


def _config(settings: S3Settings) -> dict[str, Any]:
    styles = {None: "auto", True: "virtual", False: "path"}
    return {
        "retries": {"mode": "standard", "total_max_attempts": 1},
        "connect_timeout": settings.connect_timeout_seconds,
        "read_timeout": settings.request_timeout_seconds,
        "max_pool_connections": _CONNECTIONS_MAX,
        "signature_version": "s3v4",  # in some regions, presigned URLs default to an older version without conditions
        "s3": {"addressing_style": styles[settings.virtual_addressing]},
        # Segments and records have their own checksums; many stores reject Amazon's newer ones.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }


class _Clients(ClientCache[S3Settings, S3Client]):
    """The clients of this process."""

    def forget(self, settings: S3Settings, client: S3Client) -> None:
        """Drop the client, so that the next request creates a new one, which resolves credentials again."""
        with self._lock:
            if self._clients.get(settings) is client:
                del self._clients[settings]

    def renew_in_child(self) -> None:
        super().renew_in_child()
        fsspec.asyn.reset_lock()  # fsspec's own hook drops the loop, but not the lock for creating a loop

    def close(self) -> None:
        while self._clients:
            self._clients.popitem()[1].close()


def _close(api: Any, loop: asyncio.AbstractEventLoop, process_id: int) -> Future[None] | None:
    if process_id != os.getpid() or not loop.is_running():
        return None
    return asyncio.run_coroutine_threadsafe(api.__aexit__(None, None, None), loop)


CLIENTS = _Clients(S3Client)
atexit.register(CLIENTS.close)


_KINDS: Final[dict[str, Kind]] = {
    "get_object": "gets",
    "head_object": "heads",
    "head_bucket": "heads",
    "put_object": "puts",
    "create_multipart_upload": "puts",
    "upload_part": "puts",
    "complete_multipart_upload": "puts",
    "abort_multipart_upload": "deletes",
    "list_objects_v2": "lists",
    "delete_object": "deletes",
}


class CountedClient:
    """A client that counts each request by its key, relative to the root of the store."""

    def __init__(self, client: S3Client, url: str, root: str) -> None:
        self._client = client
        self._url = url
        self._root = root

    async def send(self, operation: str, **parameters: Any) -> dict[str, Any]:
        key = str(parameters.get("Key", parameters.get("Prefix", ""))).removeprefix(self._root)
        sent_bytes = _size_bytes(parameters.get("Body", b""))
        response = await self._counted(self._client.send(operation, **parameters), key, operation, sent_bytes)
        self._note(key, operation, RequestCounts(sent_bytes=sent_bytes))
        return response

    async def get(self, bucket: str, key: str, byte_range: str | None = None) -> FastGetResponse:
        """Read an object or byte range, with a fast GET if possible, otherwise through the client."""
        within = key.removeprefix(self._root)
        response: FastGetResponse | None = None
        if self._client.can_get_fast(bucket):
            response = await self._counted(self._client.get_fast(bucket, key, byte_range), within, "get_object")
            if response is None:
                self._note(within, "get_object", RequestCounts(failures=1))
        if response is None:
            response = await self._counted(self._client.get(bucket, key, byte_range), within, "get_object")
        self._note(within, "get_object", RequestCounts(received_bytes=len(response.data)))
        return response

    async def _counted(self, request: Coroutine[Any, Any, T], key: str, operation: str, sent_bytes: int = 0) -> T:
        """Await the request, and count it if it fails."""
        try:
            return await request
        except failures.S3_FAILURES as error:
            self._note(key, operation, counts_of_failure(failures.classify_failure(error), sent_bytes))
            raise

    def _note(self, key: str, operation: str, about: RequestCounts) -> None:
        METER.note(self._url, key, RequestCounts(**{_KINDS[operation]: 1}) + about)


def _size_bytes(body: bytes | io.BytesIO) -> int:
    return body.getbuffer().nbytes if isinstance(body, io.BytesIO) else len(body)


# -- concurrent puts ---------------------------------------------------------------------------------------------------

_CHECK_SECONDS: Final = 0.1
"""Time for the store to check for the object after the last put has arrived."""
_RACE_SECONDS_MAX: Final = 20.0


class _Gate:
    """Opens when each concurrent put has arrived or already has a response."""

    def __init__(self, racers: int) -> None:
        self._awaited = set(range(racers))
        self._is_open = asyncio.Event()

    def arrive(self, racer: int) -> None:
        self._awaited.discard(racer)
        if not self._awaited:
            self._is_open.set()

    async def body(self, racer: int, data: bytes) -> AsyncIterator[bytes]:
        yield data[:-1]
        self.arrive(racer)
        await self._is_open.wait()
        await asyncio.sleep(_CHECK_SECONDS)
        yield data[-1:]


async def put_concurrently(url: str, bodies: Sequence[bytes]) -> list[int]:
    """Put each body to a presigned ``url`` with ``If-None-Match: *``, and return the status of each response.

    A put without a response has status 0. All puts are in flight before the first one can end: the last byte of each
    body is held back until all other bytes were sent and the store had time to check. A store that checks for the
    object when a request starts, and writes when its body has arrived, acknowledges all of them.
    """
    gate = _Gate(len(bodies))
    context = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE") or None)
    connector = aiohttp.TCPConnector(limit=0, ssl=context)
    timeout = aiohttp.ClientTimeout(total=_RACE_SECONDS_MAX)

    unsigned = ("Content-Type",)

    async def put(session: aiohttp.ClientSession, racer: int, body: bytes) -> int:
        headers = {"If-None-Match": "*", "Content-Length": str(len(body))}
        try:
            async with session.put(
                url, data=gate.body(racer, body), headers=headers, skip_auto_headers=unsigned
            ) as response:
                await response.read()
                return response.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            return 0
        finally:
            gate.arrive(racer)

    async with aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=True) as session:
        return list(await asyncio.gather(*(put(session, racer, body) for racer, body in enumerate(bodies))))
