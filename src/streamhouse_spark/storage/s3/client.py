"""One connected S3 client per process and settings, over s3fs. The only module that imports s3fs and fsspec.

Counts the requests of S3 as they are sent.
"""

from __future__ import annotations

import asyncio
import atexit
import io
import os
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from streamhouse_spark.core.clock import SystemClock
from streamhouse_spark.core.concurrency import new_lock, reinit_after_fork
from streamhouse_spark.errors import MissingExtraError
from streamhouse_spark.storage.remote.client import StoreClock
from streamhouse_spark.storage.remote.retry import FailureKind
from streamhouse_spark.storage.request_metrics import METER, Kind, RequestCounts
from streamhouse_spark.storage.s3.settings import S3Settings

try:
    import fsspec.asyn
    import s3fs
    from botocore.handlers import add_expect_header

    from streamhouse_spark.storage.s3 import errors as failures
    from streamhouse_spark.storage.s3.fast_get import Answer, FastGetClient
except ImportError as import_error:
    raise MissingExtraError(
        f"a warehouse on s3:// needs the package {import_error.name}, which is not installed: "
        "pip install 'streamhouse-spark[s3]'",
    ) from import_error

__all__ = ["CLIENTS", "Answer", "Client", "failures"]

T = TypeVar("T")

_CONNECTIONS_MAX = 48
_CLIENTS_MAX = 8
_CLOSE_SECONDS_MAX = 1.0
_BODY_BYTES_INLINE_MAX = 1 << 19
_BEFORE_CALL = "before-call.s3"


class Client:
    """A connected client and the store's clock. Requests run on s3fs's event loop, in its thread."""

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
    def is_amazons(self) -> bool:
        """Whether requests go to Amazon S3 itself, wherever the endpoint was configured."""
        host = urlsplit(self._api.meta.endpoint_url).hostname or ""
        return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))

    def run(self, request: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        result: T = fsspec.asyn.sync(self._loop, request, self)
        return result

    def close(self) -> None:
        """Close the connections, at the end of the process. The client must not be used any more."""
        if (finalizer := self._finalizer.detach()) is not None:
            _, _, arguments, _ = finalizer
            if (closing := _close(*arguments)) is not None:
                wait([closing], timeout=_CLOSE_SECONDS_MAX)

    async def send(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Send one request, once. A ``Body`` is bytes or `io.BytesIO`."""
        body = parameters.get("Body", b"")
        if isinstance(body, io.BytesIO):
            body.seek(0)
        elif len(body) > _BODY_BYTES_INLINE_MAX:
            parameters["Body"] = io.BytesIO(body)  # sent in pieces, without blocking the loop
        sent_ms = self._boot_ms()
        try:
            answer: dict[str, Any] = await failures.with_credentials(getattr(self._api, operation)(**parameters))
        except failures.S3_FAILURES as error:
            self.clock.observe(failures.answer_date(error), sent_ms, self._boot_ms())
            raise
        self.clock.observe(answer["ResponseMetadata"]["HTTPHeaders"].get("date"), sent_ms, self._boot_ms())
        return answer

    async def get(self, bucket: str, key: str, byte_range: str | None) -> Answer:
        """Read an object or byte range with one request, and learn the endpoint for `FastGetClient`."""
        ranged = {} if byte_range is None else {"Range": byte_range}
        with self._short.observe_get(bucket, key):
            answer = await self.send("get_object", Bucket=bucket, Key=key, **ranged)
            async with answer["Body"] as body:
                data: bytes = await body.read()  # checks Content-Length
        about = answer["ResponseMetadata"]
        return Answer(about["HTTPStatusCode"], about["HTTPHeaders"], data)

    def can_get_shortly(self, bucket: str) -> bool:
        return self._short.of(bucket) is not None

    async def get_shortly(self, bucket: str, key: str, byte_range: str | None) -> Answer | None:
        """Read an object or byte range with `FastGetClient`; None if it has no endpoint, or this one failed and was
        dropped.
        """
        if (way := self._short.of(bucket)) is None:
            return None
        sent_ms = self._boot_ms()
        try:
            answer = await failures.with_credentials(way.get(key, byte_range))
        except failures.S3_FAILURES as error:
            self.clock.observe(failures.answer_date(error), sent_ms, self._boot_ms())
            raise
        if answer is None:
            self._short.forget(bucket)
        else:
            self.clock.observe(answer.headers.get("date"), sent_ms, self._boot_ms())
        return answer

    async def put_url(self, bucket: str, key: str) -> str:
        """Return a presigned URL for a put-if-absent of the object within a minute."""
        parameters = {"Bucket": bucket, "Key": key, "IfNoneMatch": "*"}
        url: str = await self._api.generate_presigned_url("put_object", Params=parameters, ExpiresIn=60)
        return url


def _ask_before_large_bodies(params: dict[str, Any], **_: Any) -> None:
    """Let the store reject a large body before it is sent. For a small one the extra round trip would double the
    latency.
    """
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
        "signature_version": "s3v4",  # in some regions presigned URLs default to an older one, without conditions
        "s3": {"addressing_style": styles[settings.virtual_addressing]},
        # Segments and records have their own checksums; many stores reject Amazon's newer ones.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }


class _Clients:
    """The clients of this process; the oldest is dropped when there are more than a few."""

    def __init__(self) -> None:
        self._clients: dict[S3Settings, Client] = {}
        self._lock = new_lock()
        self._inherited: list[dict[S3Settings, Client]] = []

    def get(self, settings: S3Settings) -> Client:
        client = self._clients.get(settings)
        if client is not None:
            return client
        with self._lock:
            if (client := self._clients.get(settings)) is None:
                client = Client(settings)
                while len(self._clients) >= _CLIENTS_MAX:
                    self._clients.pop(next(iter(self._clients)))
                self._clients[settings] = client
            return client

    def forget(self, settings: S3Settings, client: Client) -> None:
        """Let the next request create a new client, which resolves credentials again."""
        with self._lock:
            if self._clients.get(settings) is client:
                del self._clients[settings]

    def renew_in_child(self) -> None:
        """Drop the clients: the child must neither use its parent's connections nor close shared ones."""
        self._inherited.append(self._clients)
        self._clients = {}
        fsspec.asyn.reset_lock()  # fsspec's own hook drops the loop, but not the lock that guards its creation

    def close(self) -> None:
        while self._clients:
            self._clients.popitem()[1].close()


def _close(api: Any, loop: asyncio.AbstractEventLoop, process_id: int) -> Future[None] | None:
    if process_id != os.getpid() or not loop.is_running():
        return None
    return asyncio.run_coroutine_threadsafe(api.__aexit__(None, None, None), loop)


CLIENTS = _Clients()
reinit_after_fork(CLIENTS)
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
    """A client that counts each request, by the keys below the store's root."""

    def __init__(self, client: Client, url: str, root: str) -> None:
        self._client = client
        self._url = url
        self._root = root

    async def send(self, operation: str, **parameters: Any) -> dict[str, Any]:
        key = str(parameters.get("Key", parameters.get("Prefix", ""))).removeprefix(self._root)
        sent_bytes = _size_bytes(parameters.get("Body", b""))
        answer = await self._counted(self._client.send(operation, **parameters), key, operation, sent_bytes)
        self._note(key, operation, RequestCounts(sent_bytes=sent_bytes))
        return answer

    async def get(self, bucket: str, key: str, byte_range: str | None = None) -> Answer:
        """Read an object or byte range, with a fast GET if possible, otherwise through the client."""
        within = key.removeprefix(self._root)
        answer: Answer | None = None
        if self._client.can_get_shortly(bucket):
            answer = await self._counted(self._client.get_shortly(bucket, key, byte_range), within, "get_object")
            if answer is None:
                self._note(within, "get_object", RequestCounts(failures=1))
        if answer is None:
            answer = await self._counted(self._client.get(bucket, key, byte_range), within, "get_object")
        self._note(within, "get_object", RequestCounts(received_bytes=len(answer.data)))
        return answer

    async def _counted(self, request: Coroutine[Any, Any, T], key: str, operation: str, sent_bytes: int = 0) -> T:
        """Await the request, and count it if it fails."""
        try:
            return await request
        except failures.S3_FAILURES as error:
            outcome = failures.classify(error)
            refused = int(outcome is FailureKind.EXISTS)
            failed = int(outcome not in (FailureKind.EXISTS, FailureKind.ABSENT))
            self._note(key, operation, RequestCounts(refused_puts=refused, failures=failed, sent_bytes=sent_bytes))
            raise

    def _note(self, key: str, operation: str, about: RequestCounts) -> None:
        METER.note(self._url, key, RequestCounts(**{_KINDS[operation]: 1}) + about)


def _size_bytes(body: bytes | io.BytesIO) -> int:
    return body.getbuffer().nbytes if isinstance(body, io.BytesIO) else len(body)
