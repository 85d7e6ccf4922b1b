"""Storage on Google Cloud Storage, with its JSON API. The only module that imports google-auth.

Google's own storage client loads gRPC, whose threads do not survive a fork, but Spark forks its workers. google-auth
handles credentials and their renewal; the few requests are sent here. Put-if-absent is ``ifGenerationMatch=0``.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, urlsplit

from streamhouse_spark.core.clock import SystemClock, World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError, MissingExtraError
from streamhouse_spark.storage.base import Bytes
from streamhouse_spark.storage.remote.client import (
    ClientCache,
    ListedBlob,
    ListingPage,
    MultipartUpload,
    StoreClock,
    TokenFile,
    open_token_file,
)
from streamhouse_spark.storage.remote.multipart_upload import ATTEMPT
from streamhouse_spark.storage.remote.retry import (
    SLOW_DOWN,
    UNKNOWN_OUTCOME,
    Failure,
    FailureKind,
    RetryPolicy,
    to_one_line,
)
from streamhouse_spark.storage.remote.setting_parsers import (
    CONNECT_TIMEOUT_SECONDS,
    REQUEST_TIMEOUT_SECONDS,
    list_secrets_to_mask,
    parse_boolean,
    parse_key_prefix,
    parse_seconds,
    parse_url,
    select_settings,
)
from streamhouse_spark.storage.remote.storage import BlobStorage

_PREFIX: Final = "gcs."
_HOST: Final = "https://storage.googleapis.com"
_NAMES: Final = (
    "gcs.service.host",
    "gcs.project-id",
    "gcs.oauth2.token",
    "gcs.oauth2.token-file",
    "gcs.anonymous",
    "gcs.connect-timeout",
    "gcs.request-timeout",
)
_IGNORED: Final = ("gcs.oauth2.token-expires-at", "gcs.access", "gcs.consistency", "gcs.default-bucket-location")
"""Settings of pyiceberg that have no effect."""
_URL: Final = re.compile(r"gs://(?P<bucket>[a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?:/(?P<prefix>.*))?\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class GcsAddress:
    """A bucket, and the settings to reach it. ``repr`` shows no secret.

    Without a token, the application default credentials of this machine are used.
    """

    bucket: str
    host: str = _HOST
    project_id: str | None = None
    """The project to bill, for requester-pays buckets."""
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    """The path of a file with an access token that is renewed externally."""
    is_anonymous: bool = False
    connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS
    request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS

    @classmethod
    def parse(cls, url: str, settings: Mapping[str, str]) -> tuple[GcsAddress, str]:
        """Return the address, and the key prefix of the warehouse in the bucket. Raises `InvalidOptionError`."""
        match = _URL.match(url)
        if match is None:
            shown = "credentials in it" if "@" in url else repr(url)
            raise InvalidOptionError(f"warehouse URL: found {shown}, expected gs://<bucket>/<prefix>")
        prefix = parse_key_prefix(url, match["prefix"])
        ours = select_settings(settings, _PREFIX, (*_NAMES, *_IGNORED))
        address = cls(
            bucket=match["bucket"],
            host=parse_url("gcs.service.host", ours.get("gcs.service.host"), "gcs.oauth2.token") or _HOST,
            project_id=ours.get("gcs.project-id") or None,
            token=ours.get("gcs.oauth2.token") or None,
            token_file=ours.get("gcs.oauth2.token-file") or None,
            is_anonymous=bool(parse_boolean(ours, "gcs.anonymous")),
            connect_timeout_seconds=parse_seconds(ours, "gcs.connect-timeout", CONNECT_TIMEOUT_SECONDS),
            request_timeout_seconds=parse_seconds(ours, "gcs.request-timeout", REQUEST_TIMEOUT_SECONDS),
        )
        if sum(map(bool, (address.token, address.token_file, address.is_anonymous))) > 1:
            raise InvalidOptionError(
                "gcs.oauth2.token, gcs.oauth2.token-file and gcs.anonymous exclude each other: set one of them"
            )
        return address, prefix

    @property
    def is_google(self) -> bool:
        """Whether requests go to Google itself."""
        host = urlsplit(self.host).hostname or ""
        return host == "storage.googleapis.com" or host.endswith(".storage.googleapis.com")

    def client(self) -> GcsBucketClient:
        return CLIENTS.get(self)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must never appear in a message."""
        return list_secrets_to_mask(self.token)


try:
    import google.auth
    import google.auth.credentials
    import google.oauth2.credentials
    import requests
    from google.auth.exceptions import GoogleAuthError, RefreshError, TransportError
    from google.auth.transport.requests import AuthorizedSession
except ImportError as import_error:
    raise MissingExtraError(
        f"a warehouse on gs:// needs the package {import_error.name}, which is not installed: "
        "pip install 'streamhouse-spark[gcs]'"
    ) from import_error

_CONNECTIONS_MAX: Final = 48
_PAGE_OBJECTS: Final = 1_000
_SCOPE: Final = "https://www.googleapis.com/auth/devstorage.read_write"
_NO_OBJECT: Final = ("No such object", "Not Found")
_UNFINISHED: Final = 308
"""The status of the response to a part that is not the last."""
_BYTES: Final = "application/octet-stream"
_JSON: Final = "application/json; charset=UTF-8"
_DENIED: Final = (
    "grant the role Storage Object User on the bucket (without the right to list, the store reports denied access "
    "instead of an absent object)"
)
_CREDENTIALS: Final = (
    "run 'gcloud auth application-default login', set GOOGLE_APPLICATION_CREDENTIALS, or set gcs.oauth2.token"
)


class ResponseError(Exception):
    """A response that reports a failure."""

    def __init__(self, response: requests.Response, *, is_put: bool) -> None:
        self.status = response.status_code
        self.is_put = is_put
        try:
            details = response.json()["error"]
            message, reason = str(details["message"]), str((details.get("errors") or [{}])[0].get("reason") or "")
        except (ValueError, LookupError, TypeError, AttributeError):
            message, reason = response.text, ""
        self.reason = reason
        self.message = message
        super().__init__(message)

    @property
    def is_about_object(self) -> bool:
        """Whether a 404 is the store's own statement about an object.

        Another 404 may come from a gateway, or refer to the bucket.
        """
        if "bucket does not exist" in self.message:
            return False
        return self.reason == "notFound" or self.message.startswith(_NO_OBJECT)


class GcsBucketClient:
    """The objects of one bucket."""

    failures: tuple[type[Exception], ...] = (ResponseError, GoogleAuthError, requests.RequestException, OSError)
    condition = "ifGenerationMatch=0"
    parts_in_flight_max = 1
    """The parts of a resumable upload are sequential."""

    def __init__(self, address: GcsAddress) -> None:
        self._boot_ms = SystemClock().boot_ms
        self.clock = StoreClock(self._boot_ms)
        self.is_known = address.is_google
        self.token_file = open_token_file(address.token_file, "gcs.oauth2.token-file")
        self._secrets = address.secrets
        self._timeouts = (address.connect_timeout_seconds, address.request_timeout_seconds)
        self._parameters = {"userProject": address.project_id} if address.project_id else {}
        self._bucket = f"{address.host}/storage/v1/b/{address.bucket}"
        self._uploads = f"{address.host}/upload/storage/v1/b/{address.bucket}/o"
        self._session = _session(address, self.token_file)

    def classify_failure(self, error: Exception) -> Failure:
        kind = _kind_of(error)
        status = error.status if isinstance(error, ResponseError) else 0
        refused = kind is FailureKind.FINAL and (status in (401, 403) or isinstance(error, GoogleAuthError))
        reason = error.reason if isinstance(error, ResponseError) and error.reason else type(error).__name__
        head = f"{reason} (HTTP {status})" if status else reason
        message = to_one_line(str(error), self._secrets + (self.token_file.secrets if self.token_file else ()))
        return Failure(kind, f"{head}: {message}" if message else head, _remedy(error, kind, status), refused)

    def get(self, name: str) -> bytes:
        return self._call("GET", self._object(name), alt="media").content

    def get_range(self, name: str, start: int, end: int) -> bytes:
        try:
            response = self._call("GET", self._object(name), f"bytes={start}-{end - 1}", alt="media")
        except ResponseError as error:
            if error.status == 416:  # the object ends before the range
                return b""
            raise
        # A store may ignore Range and send everything.
        return response.content if response.status_code == 206 else response.content[start:end]

    def size_bytes(self, name: str) -> int:
        return int(self._call("GET", self._object(name), fields="size").json().get("size", 0))

    def attempt(self, name: str) -> str | None:
        metadata = self._call("GET", self._object(name), fields="metadata").json().get("metadata") or {}
        return str(metadata[ATTEMPT]) if ATTEMPT in metadata else None

    def put(self, name: str, body: Bytes, *, is_absent: bool, attempt: str | None = None) -> None:
        condition = {"ifGenerationMatch": "0"} if is_absent else {}
        about = json.dumps({"name": name, "metadata": {ATTEMPT: attempt} if attempt else {}}).encode()
        boundary = f"part-{hashlib.blake2b(body, digest_size=16).hexdigest()}"  # no body contains its own digest
        parts = b"".join(
            (
                f"--{boundary}\r\nContent-Type: {_JSON}\r\n\r\n".encode(),
                about,
                f"\r\n--{boundary}\r\nContent-Type: {_BYTES}\r\n\r\n".encode(),
                body,
                f"\r\n--{boundary}--\r\n".encode(),
            )
        )
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        self._put(parts, headers, uploadType="multipart", **condition)

    def begin(self, name: str, attempt: str) -> MultipartUpload:
        about = json.dumps({"metadata": {ATTEMPT: attempt}}).encode()
        headers = {"Content-Type": _JSON, "X-Upload-Content-Type": _BYTES}
        response = self._put(about, headers, uploadType="resumable", name=name, ifGenerationMatch="0")
        return _Resumable(self, response.headers["Location"])

    def page(self, prefix: str, delimiter: str | None, page_token: str | None) -> ListingPage:
        about = {"prefix": prefix, "maxResults": str(_PAGE_OBJECTS)}
        about |= {"delimiter": delimiter} if delimiter else {}
        about |= {"pageToken": page_token} if page_token else {}
        fields = "items(name,size,updated),prefixes,nextPageToken"
        listing = self._call("GET", f"{self._bucket}/o", fields=fields, **about).json()
        blobs = [
            ListedBlob(item["name"], int(item.get("size", 0)), _time_ms(item["updated"]))
            for item in listing.get("items", ())
        ]
        return ListingPage(blobs, listing.get("prefixes", ()), listing.get("nextPageToken") or None)

    def delete(self, name: str) -> None:
        self._call("DELETE", self._object(name))

    def request_time(self) -> None:
        self._call("GET", self._bucket, fields="name")

    def send_part(self, session_url: str, body: bytes, span: str) -> requests.Response:
        """Send a part of an upload. ``span`` is its range, as in ``Content-Range``."""
        headers = {"Content-Range": f"bytes {span}"}
        return self._request("PUT", session_url, headers, body, {}, allowed=_UNFINISHED)

    def cancel(self, session_url: str) -> None:
        self._request("DELETE", session_url, {}, None, {}, allowed=499)

    def _object(self, name: str) -> str:
        return f"{self._bucket}/o/{quote(name, safe='')}"

    def _put(self, body: bytes, headers: dict[str, str], **parameters: str) -> requests.Response:
        return self._request("POST", self._uploads, headers, body, parameters | self._parameters)

    def _call(self, method: str, url: str, byte_range: str = "", **parameters: str) -> requests.Response:
        headers = {"Range": byte_range} if byte_range else {}
        return self._request(method, url, headers, None, parameters | self._parameters)

    def _request(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        body: bytes | None,
        parameters: dict[str, str],
        *,
        allowed: int = 0,
    ) -> requests.Response:
        """Send one request. Raises one of the `failures`. ``allowed`` is a status that is not a failure."""
        sent_ms = self._boot_ms()
        response: requests.Response = self._session.request(
            method, url, params=parameters, headers=headers, data=body, timeout=self._timeouts, allow_redirects=False
        )
        self.clock.observe(response.headers.get("Date"), sent_ms, self._boot_ms())
        if response.status_code >= 300 and response.status_code != allowed:
            raise ResponseError(response, is_put=method in ("POST", "PUT"))
        return response


class _Resumable:
    """A resumable upload. Its condition is sent with the first request, and checked at the end."""

    def __init__(self, blobs: GcsBucketClient, session_url: str) -> None:
        self._blobs = blobs
        self._url = session_url
        self._begin = 0
        """Bytes of the previous parts."""

    def send(self, number: int, body: io.BytesIO, *, is_last: bool) -> None:  # noqa: ARG002 - parts come in order
        data = body.getvalue()
        end = self._begin + len(data)
        total = str(end) if is_last else "*"
        stored = self._begin
        while True:
            span = f"{stored}-{end - 1}/{total}" if stored < end else f"*/{total}"
            response = self._blobs.send_part(self._url, data[stored - self._begin :], span)
            if response.status_code != _UNFINISHED:
                break
            before, stored = stored, _count_stored_bytes(response)
            if stored >= end and not is_last:
                break
            if stored <= before:  # the caller retries the part, or restarts the upload
                raise ConnectionError(f"the upload has {stored} bytes after a part that ends at {end}")
        self._begin = end

    def finish(self) -> None:
        """Do nothing: the last part ended the upload."""

    def abort(self) -> None:
        self._blobs.cancel(self._url)


def _count_stored_bytes(response: requests.Response) -> int:
    held = response.headers.get("Range", "")
    return int(held.rpartition("-")[2]) + 1 if held else 0


def _time_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def _kind_of(error: Exception) -> FailureKind:
    if isinstance(error, ResponseError):
        if error.status == 412 and error.is_put:
            return FailureKind.EXISTS
        if error.status == 404 and error.is_about_object:
            return FailureKind.ABSENT
        if error.status in (429, 503):
            return FailureKind.THROTTLED
        return FailureKind.TRANSIENT if error.status >= 500 or error.status == 408 else FailureKind.FINAL
    if isinstance(error, RefreshError | TransportError) and error.retryable:
        return FailureKind.TRANSIENT
    return FailureKind.FINAL if isinstance(error, GoogleAuthError) else FailureKind.TRANSIENT


def _remedy(error: Exception, kind: FailureKind, status: int) -> str:
    if kind is FailureKind.TRANSIENT:
        return UNKNOWN_OUTCOME
    if kind is FailureKind.THROTTLED:
        return SLOW_DOWN
    if isinstance(error, GoogleAuthError) or status == 401:
        return _CREDENTIALS
    if status == 403:
        return _DENIED
    if status == 404:
        return "create the bucket, or correct its name in the warehouse URL"
    return "check the bucket and the gcs.* settings"


class _TokenOfFile(google.auth.credentials.Credentials):
    """An access token that is read from a file for each request."""

    def __init__(self, file: TokenFile) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._file = file

    def before_request(self, request: Any, method: str, url: str, headers: dict[str, str]) -> None:  # noqa: ARG002
        headers["authorization"] = f"Bearer {self._file.text}"

    def refresh(self, request: Any) -> None:  # noqa: ARG002 - retries read the file again
        raise RefreshError("the store rejects the token of the file")  # type: ignore[no-untyped-call]


def _session(address: GcsAddress, file: TokenFile | None) -> requests.Session:
    if address.is_anonymous:
        session = requests.Session()
    else:
        session = AuthorizedSession(_TokenOfFile(file) if file else _credentials(address))  # type: ignore[no-untyped-call]
    for scheme in ("https://", "http://"):
        session.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=_CONNECTIONS_MAX))
    return session


def _credentials(address: GcsAddress) -> Any:
    if address.token:
        return google.oauth2.credentials.Credentials(address.token)  # type: ignore[no-untyped-call]
    return google.auth.default(scopes=[_SCOPE], quota_project_id=address.project_id)[0]


CLIENTS: ClientCache[GcsAddress, GcsBucketClient] = ClientCache(GcsBucketClient)


def open_gcs_storage(url: str, settings: Mapping[str, str], world: World | None = None) -> BlobStorage:
    """Return the store at ``gs://bucket/prefix``, with pyiceberg's ``gcs.*`` settings.

    By default, it uses the application default credentials of this machine. Raises `InvalidOptionError`.
    """
    address, prefix = GcsAddress.parse(url, settings)
    return BlobStorage(url, prefix, address, world, RetryPolicy.parse(settings))
