"""Storage in an HDFS folder, with WebHDFS over HTTP: the NameNode responds, and redirects data requests to a DataNode.

Hadoop's own library would need a JVM in the process.

An object is written under a temporary name in its folder, which starts with ``.tmp-``, and then renamed. Readers could
see a half-written file that was written in place, but a rename is atomic at the NameNode. After a crash the temporary
file remains: `list` omits it, and orphan cleaning finds it with `list_temporary` and deletes it.

Put-if-absent is ``RENAME`` with ``renameoptions=NONE``: the NameNode decides it under one lock, and it fails if the
destination exists. Without this parameter, ``RENAME`` responds ``false`` without a reason, and moves the file into an
existing folder of that name.

Durable means what HDFS guarantees for a closed file: each DataNode of its pipeline has the bytes, at least in memory,
and the journal of the NameNode has the file and its name.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote, urlsplit

from streamhouse_spark.core.clock import SystemClock, World
from streamhouse_spark.core.concurrency import parallel_map
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError, MissingExtraError, ObjectNotFoundError, StorageError
from streamhouse_spark.storage.base import Bytes, Names, ObjectInfo, Objects, Sink
from streamhouse_spark.storage.remote.client import ClientCache, StoreClock, open_token_file
from streamhouse_spark.storage.remote.conditional_put_probe import TEMPORARY, is_object, prove_writable, require_clock
from streamhouse_spark.storage.remote.multipart_upload import PART_BYTES
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
    parse_key_prefix,
    parse_seconds,
    parse_url,
    select_settings,
)
from streamhouse_spark.storage.remote.storage import READS_MAX, RemoteStorage

_PREFIX: Final = "hdfs."
_ADDRESS: Final = "hdfs.webhdfs.address"
_USER: Final = "hdfs.user"
_TOKEN: Final = "hdfs.delegation-token"  # noqa: S105 - the name of a setting
TOKEN_FILE: Final = "hdfs.delegation-token-file"  # noqa: S105 - the name of a setting
_NAMES: Final = (_ADDRESS, _USER, _TOKEN, TOKEN_FILE, "hdfs.connect-timeout", "hdfs.request-timeout")
_KERBEROS: Final = "hdfs.kerberos_ticket"
_IGNORED: Final = ("hdfs.host", "hdfs.port")
"""Settings of pyiceberg that the location already defines."""
_HTTP_PORT: Final = 9870
_URL: Final = re.compile(
    r"hdfs://(?P<host>[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)(?::\d{1,5})?(?:/(?P<path>.*))?\Z", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class HdfsAddress:
    """A cluster, and the settings to reach it. ``repr`` shows no secret."""

    namenodes: tuple[str, ...]
    """The WebHDFS URLs of the NameNodes. At most one NameNode is active."""
    user: str | None
    """The user of requests, or None with a token, which identifies the user."""
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    """The path of a file with a delegation token that is renewed externally."""
    connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS
    request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS

    @classmethod
    def parse(cls, url: str, settings: Mapping[str, str]) -> tuple[HdfsAddress, str]:
        """Return the address and the path of the warehouse without outer slashes. Raises `InvalidOptionError`."""
        match = _URL.match(url)
        if match is None:
            shown = "a user name in it" if "@" in url else repr(url)
            raise InvalidOptionError(
                f"warehouse URL: found {shown}, expected hdfs://<host>:<port>/<path> with the NameNode's host, or the "
                f"name of a nameservice; a user belongs in the setting {_USER}"
            )
        path = parse_key_prefix(url, match["path"], "path")
        if ":" in path:
            raise InvalidOptionError(f"warehouse URL {url!r}: its path holds a colon, which HDFS does not take")
        ours = select_settings(settings, _PREFIX, (*_NAMES, _KERBEROS, *_IGNORED))
        if _KERBEROS in ours:
            raise InvalidOptionError(
                f"{_KERBEROS}: Kerberos is not supported; get a delegation token with the WebHDFS operation "
                f"GETDELEGATIONTOKEN, and set {_TOKEN}"
            )
        token, token_file = ours.get(_TOKEN) or None, ours.get(TOKEN_FILE) or None
        if token and token_file:
            raise InvalidOptionError(f"{_TOKEN} and {TOKEN_FILE} exclude each other: set one of them")
        if (token or token_file) and ours.get(_USER):
            raise InvalidOptionError(
                f"{_TOKEN if token else TOKEN_FILE} and {_USER} exclude each other: the token identifies the user"
            )
        address = cls(
            namenodes=_namenodes(ours.get(_ADDRESS), match["host"]),
            user=None if token or token_file else ours.get(_USER) or _own_user(),
            token=token,
            token_file=token_file,
            connect_timeout_seconds=parse_seconds(ours, "hdfs.connect-timeout", CONNECT_TIMEOUT_SECONDS),
            request_timeout_seconds=parse_seconds(ours, "hdfs.request-timeout", REQUEST_TIMEOUT_SECONDS),
        )
        return address, path

    def client(self) -> WebHdfsClient:
        return CLIENTS.get(self)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must never appear in a message."""
        return list_secrets_to_mask(self.token)


def _namenodes(setting: str | None, host: str) -> tuple[str, ...]:
    names = [name.strip() for name in (setting or "").split(",") if name.strip()] or [f"{host}:{_HTTP_PORT}"]
    urls = [parse_url(_ADDRESS, name if "://" in name else f"http://{name}", _USER) for name in names]
    return tuple(url for url in urls if url)


def _own_user() -> str:
    """Return the user that Hadoop's own clients would use."""
    try:
        return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    except (OSError, KeyError) as error:  # a container may run under a number without a name
        raise InvalidOptionError(f"the user of this process has no name ({error}): set {_USER}") from error


try:
    import requests
except ImportError as import_error:
    raise MissingExtraError(
        f"a warehouse on hdfs:// needs the package {import_error.name}, which is not installed: "
        "pip install 'streamhouse-spark[hdfs]'"
    ) from import_error

Body = bytes | Iterable[bytes]

_CONNECTIONS_MAX: Final = 48
_UNREACHABLE_MS: Final = 60_000
"""Time for which an unreachable DataNode is avoided. The NameNode notices its failure after some minutes."""
_NOTHING: Final[Mapping[str, str]] = {}
_EXCLUDED: Final = "excludedatanodes"
_TOKEN_IN_URL: Final = re.compile(r"(?i)(delegation=)[^&\s'\")]+")
_NOT_ACTIVE: Final = frozenset({"StandbyException", "ObserverRetryOnActiveException"})
_DID_NOTHING: Final = _NOT_ACTIVE | {"SafeModeException", "RetriableException", "ServerTooBusyException"}
_DENIED: Final = frozenset({
    "AccessControlException", "AuthenticationException", "AuthorizationException", "InvalidToken", "SecurityException",
})  # fmt: skip
_FINAL: Final = _DENIED | {
    "DSQuotaExceededException", "IllegalArgumentException", "InvalidPathException",
    "MaxDirectoryItemsExceededException", "NSQuotaExceededException", "ParentNotDirectoryException",
    "PathComponentTooLongException", "PathIsNotEmptyDirectoryException", "QuotaByStorageTypeExceededException",
    "UnsupportedOperationException",
}  # fmt: skip
_KERBEROS_REMEDY: Final = (
    "this cluster asks for Kerberos, which is not supported: get a delegation token with the WebHDFS operation "
    "GETDELEGATIONTOKEN, and set hdfs.delegation-token"
)
_NOT_WEBHDFS: Final = (
    "set hdfs.webhdfs.address to the HTTP address of the NameNode (dfs.namenode.http-address, port 9870 by default), "
    "and see that dfs.webhdfs.enabled is true there"
)
_REMEDIES: Final = {
    "AccessControlException": "grant this user the right to read and write there, or set hdfs.user to one that has it",
    "InvalidToken": "the token has expired or was cancelled: get another, and set hdfs.delegation-token, or write it "
    "into the file of hdfs.delegation-token-file",
    "NSQuotaExceededException": "raise the quota of names of the folder (hdfs dfsadmin -setQuota)",
    "DSQuotaExceededException": "raise the quota of space of the folder (hdfs dfsadmin -setSpaceQuota)",
    "MaxDirectoryItemsExceededException": "raise dfs.namenode.fs-limits.max-directory-items of the NameNode",
    "SafeModeException": "the NameNode is in safe mode: wait until it has left it (hdfs dfsadmin -safemode get)",
    "StandbyException": "name the addresses of all NameNodes in hdfs.webhdfs.address, with commas between them",
}


class ResponseError(Exception):
    """A response that reports a failure."""

    def __init__(
        self, status: int, name: str, message: str, operation: str, *, asks_for_kerberos: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.name = name
        """The class of Hadoop's exception, or empty if the response is not from WebHDFS."""
        self.operation = operation
        self.asks_for_kerberos = asks_for_kerberos

    @classmethod
    def of(cls, response: requests.Response, operation: str) -> ResponseError:
        asks_for_kerberos = "negotiate" in response.headers.get("WWW-Authenticate", "").lower()
        try:
            details = response.json()["RemoteException"]
            message, name = str(details["message"]), str(details["exception"]).rpartition("$")[2]
        except (ValueError, LookupError, TypeError):
            message, name = str(response.reason or ""), ""
        message = message.partition("\n")[0]  # a stack trace may follow
        return cls(response.status_code, name, message, operation, asks_for_kerberos=asks_for_kerberos)


class InvalidResponseError(Exception):
    """A response that does not conform to WebHDFS."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or a folder."""

    name: str
    """Its name in its folder, or empty if the entry itself was requested."""
    is_folder: bool
    size_bytes: int
    modified_ms: int
    file_id: int
    """The id of the file, which survives renames and is never reused."""

    @classmethod
    def of(cls, status: dict[str, Any]) -> Entry:
        return cls(
            name=str(status["pathSuffix"]),
            is_folder=status["type"] == "DIRECTORY",
            size_bytes=int(status["length"]),
            modified_ms=int(status["modificationTime"]),
            file_id=int(status["fileId"]),
        )


Entries = list[Entry]


class WebHdfsClient:
    """The files of one cluster. Names are paths without the leading slash."""

    failures: tuple[type[Exception], ...] = (ResponseError, InvalidResponseError, requests.RequestException, OSError)
    condition = "RENAME with renameoptions=NONE"
    is_known = False
    """Gateways implement the same API on other stores."""

    def __init__(self, address: HdfsAddress) -> None:
        self._boot_ms = SystemClock().boot_ms
        self.clock = StoreClock(self._boot_ms)
        self._secrets = address.secrets
        self._timeouts = (address.connect_timeout_seconds, address.request_timeout_seconds)
        self._namenodes = address.namenodes
        self._active = 0
        """The NameNode to use first. Concurrent updates are harmless: each thread continues with the next one."""
        self._unreachable: dict[str, int] = {}
        """Address of an unreachable DataNode → the time until which it is avoided, by the boot clock."""
        self.token_file = open_token_file(address.token_file, TOKEN_FILE)
        self._fixed_identity = {"delegation": address.token} if address.token else {"user.name": address.user or ""}
        self._session = requests.Session()
        for scheme in ("https://", "http://"):
            self._session.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=_CONNECTIONS_MAX))

    # -- requests ---------------------------------------------------------------------------------------------------

    def get(self, name: str) -> bytes:
        return self._open(name, {})

    def get_range(self, name: str, start: int, end: int) -> bytes:
        try:
            return self._open(name, {"offset": str(start), "length": str(end - start)})
        except ResponseError as error:
            if error.name == "IOException" and start >= self.size_bytes(name):  # the file ends before the range
                return b""
            raise

    def size_bytes(self, name: str) -> int:
        return self.entry(name).size_bytes

    def entry(self, name: str) -> Entry:
        """Return the entry of a file. Raises `ResponseError` for a folder."""
        response = self._send_to_namenode("GET", "GETFILESTATUS", name)
        entry = Entry.of(response.json()["FileStatus"])
        if entry.is_folder:
            raise ResponseError(404, "FileNotFoundException", f"/{name} is a folder", "GETFILESTATUS")
        return entry

    def children(self, folder: str, after: str | None) -> tuple[Entries, bool]:
        """Return a page of the entries of a folder after a name, and whether more follow."""
        response = self._send_to_namenode(
            "GET", "LISTSTATUS_BATCH", folder, {} if after is None else {"startafter": after}
        )
        listing = response.json()["DirectoryListing"]
        entries = [Entry.of(status) for status in listing["partialListing"]["FileStatuses"]["FileStatus"]]
        if any(entry.name == after for entry in entries):
            raise InvalidResponseError(f"a listing of /{folder} begins again at {after!r}")
        return [entry for entry in entries if entry.name], bool(listing["remainingEntries"])

    def write(self, name: str, body: Body) -> None:
        """Write a file under a unique name, and create its folders. Readers can see the file half-written."""
        response = self._send_to_namenode(
            "PUT", "CREATE", name, {"overwrite": "false", **self._exclude_unreachable()}, allowed=307
        )
        self._send_to_datanode("PUT", "CREATE", response, body)

    def rename(self, name: str, to: str, *, replace: bool) -> None:
        """Rename a file. Without ``replace``, fail if the new name exists."""
        options = "OVERWRITE" if replace else "NONE"
        response = self._send_to_namenode("PUT", "RENAME", name, {"destination": f"/{to}", "renameoptions": options})
        if response.content:
            raise InvalidResponseError(f"RENAME takes no renameoptions here, and says {response.text[:60]!r}")

    def delete(self, name: str) -> None:
        self._send_to_namenode("DELETE", "DELETE", name, {"recursive": "false"})

    def request_time(self) -> None:
        self._send_to_namenode("GET", "GETFILESTATUS", "")

    # -- responses --------------------------------------------------------------------------------------------------

    def classify_failure(self, error: Exception) -> Failure:
        kind = _kind_of(error)
        secrets = self._secrets + (self.token_file.secrets if self.token_file else ())
        message = to_one_line(_TOKEN_IN_URL.sub(r"\1***", _text_of(error)), secrets)
        refused, head = False, type(error).__name__
        if isinstance(error, ResponseError):
            is_denied = error.name in _DENIED or (not error.name and error.status in (401, 403))
            refused = kind is FailureKind.FINAL and is_denied
            head = f"{error.name} (HTTP {error.status})" if error.name else f"HTTP {error.status}"
        return Failure(kind, f"{head}: {message}" if message else head, _remedy(error, kind), refused)

    @property
    def _identity(self) -> dict[str, str]:
        return {"delegation": self.token_file.text} if self.token_file else self._fixed_identity

    def _open(self, name: str, about: dict[str, str]) -> bytes:
        response = self._send_to_namenode("GET", "OPEN", name, {**about, **self._exclude_unreachable()}, allowed=307)
        if response.status_code == 307:
            response = self._send_to_datanode("GET", "OPEN", response, None)
        length = response.headers.get("Content-Length")
        if length is not None and int(length) != len(response.content):
            raise ConnectionError(f"{len(response.content)} of {length} bytes arrived")
        return response.content

    def _send_to_namenode(
        self, method: str, operation: str, name: str, about: Mapping[str, str] = _NOTHING, *, allowed: int = 0
    ) -> requests.Response:
        """Send a request to the NameNode that responded last. After a failure, the next request uses another one."""
        at, sent_ms = self._active, self._boot_ms()
        url = f"{self._namenodes[at]}/webhdfs/v1/{quote(name)}"
        try:
            response = self._request(method, url, None, {"op": operation, **self._identity, **about})
        except requests.RequestException:
            self._active = (at + 1) % len(self._namenodes)
            raise
        date = response.headers.get("Date", "")
        self.clock.observe(date[: date.find("GMT") + 3], sent_ms, self._boot_ms())  # Jetty may send the date twice
        if response.status_code >= 300 and response.status_code != allowed:
            error = ResponseError.of(response, operation)
            if error.name in _NOT_ACTIVE:
                self._active = (at + 1) % len(self._namenodes)
            if _EXCLUDED in about:  # perhaps no DataNode is left
                self._unreachable.clear()
            raise error
        return response

    def _send_to_datanode(
        self, method: str, operation: str, response: requests.Response, body: Body | None
    ) -> requests.Response:
        """Send the request to the DataNode that the NameNode chose. Its URL contains all parameters."""
        location = response.headers.get("Location", "")
        if urlsplit(location).scheme not in ("http", "https"):
            raise InvalidResponseError(f"the response to {operation} has no URL of a DataNode")
        try:
            response = self._request(method, location, body, {})
        except requests.ConnectionError:
            self._unreachable[_address_of(urlsplit(location).hostname or "")] = self._boot_ms() + _UNREACHABLE_MS
            raise
        if response.status_code >= 300:
            raise ResponseError.of(response, operation)
        return response

    def _exclude_unreachable(self) -> dict[str, str]:
        now_ms = self._boot_ms()
        away = sorted(address for address, until_ms in tuple(self._unreachable.items()) if now_ms < until_ms)
        return {_EXCLUDED: ",".join(away)} if away else {}

    def _request(self, method: str, url: str, body: Body | None, parameters: Mapping[str, str]) -> requests.Response:
        return self._session.request(
            method, url, params=parameters, data=body, timeout=self._timeouts, allow_redirects=False
        )


def _address_of(host: str) -> str:
    """Return the IP address of a DataNode, which is its name at the NameNode."""
    try:
        return socket.gethostbyname(host)
    except OSError:
        return host


def _kind_of(error: Exception) -> FailureKind:
    if not isinstance(error, ResponseError):
        return FailureKind.FINAL if isinstance(error, InvalidResponseError) else FailureKind.TRANSIENT
    if error.name == "FileAlreadyExistsException" and error.operation == "RENAME":
        return FailureKind.EXISTS
    if error.name == "FileNotFoundException":  # a rename reports its source file
        return FailureKind.FINAL if error.operation == "RENAME" else FailureKind.ABSENT
    if error.name in _DID_NOTHING or error.status in (429, 503):
        return FailureKind.THROTTLED
    if error.status >= 500 or error.status == 408:
        return FailureKind.TRANSIENT
    # An I/O error of the NameNode or a DataNode. A retry may use another node.
    return FailureKind.FINAL if error.name in _FINAL or not error.name else FailureKind.TRANSIENT


def _remedy(error: Exception, kind: FailureKind) -> str:
    if isinstance(error, InvalidResponseError):
        return _NOT_WEBHDFS
    if isinstance(error, ResponseError):
        if error.asks_for_kerberos:
            return _KERBEROS_REMEDY
        if error.name in _REMEDIES:
            return _REMEDIES[error.name]
        if not error.name and kind is FailureKind.FINAL:
            return _NOT_WEBHDFS
    if kind is FailureKind.TRANSIENT:
        return UNKNOWN_OUTCOME
    if kind is FailureKind.THROTTLED:
        return SLOW_DOWN
    return "check the cluster, the path and the hdfs.* settings"


def _text_of(error: Exception) -> str:
    """Return the message of a failure without its URL, which may contain a token."""
    request = getattr(error, "request", None)
    if isinstance(error, requests.RequestException) and request is not None:
        return f"no response from {urlsplit(request.url or '').netloc}"
    return str(error)


CLIENTS: ClientCache[HdfsAddress, WebHdfsClient] = ClientCache(WebHdfsClient)


@dataclass(slots=True)
class _TemporaryNames:
    """Unique temporary names in a folder."""

    folder: str
    world: World
    names: Names = field(default_factory=list)

    def fresh(self) -> str:
        self.names.append(f"{self.folder}/{TEMPORARY}{self.world.ids.new_uuid()}".removeprefix("/"))
        return self.names[-1]


def open_hdfs_storage(url: str, settings: Mapping[str, str], world: World | None = None) -> HdfsStorage:
    """Return the store at ``hdfs://host:port/path``, with the ``hdfs.*`` settings. Raises `InvalidOptionError`."""
    address, path = HdfsAddress.parse(url, settings)
    return HdfsStorage(url, path, address, world, RetryPolicy.parse(settings))


class HdfsStorage(RemoteStorage[WebHdfsClient]):
    """A folder of a cluster."""

    def put_if_absent(self, key: str, data: Bytes) -> None:
        """Store the object if the key is absent. **Commit point:** the rename at the NameNode."""
        body = bytes(data)
        with self._temporary(key) as temporary:
            self._rename(key, self._write(key, temporary, body, len(body)), retry_unknown_outcome=False)

    def put(self, key: str, data: Bytes) -> None:
        """Store or replace the object. **Commit point:** the rename at the NameNode."""
        body = bytes(data)
        with self._temporary(key) as temporary:

            def replace(hdfs: WebHdfsClient, name: str) -> None:
                written = temporary.fresh()
                hdfs.write(written, body)
                hdfs.rename(written, name, replace=True)

            self.send("puts", "write", key, replace, sent_bytes=len(body))

    @contextmanager
    def create(self, key: str) -> Iterator[Sink]:
        """Buffer the object on this host until the context ends, because a partly sent file cannot be continued safely.

        **Commit point:** the rename at the NameNode.
        """
        with BufferedBody() as held, self._temporary(key) as temporary:
            yield held
            written = self._write(key, temporary, held, held.size_bytes)
            entry = self.send("heads", "read", key, lambda hdfs, _: hdfs.entry(written))
            if entry.size_bytes != held.size_bytes:
                raise StorageError(
                    f"cannot write {self._url}/{key}: HDFS has {entry.size_bytes} of {held.size_bytes} bytes; retry"
                )
            try:
                self._rename(key, written, retry_unknown_outcome=True)
            except StorageError:
                if not self._is_stored(key, entry):
                    raise

    def list(self, prefix: str) -> Objects:
        return [info for info in self._walk(prefix) if is_object(info.key)]

    def list_temporary(self, prefix: str) -> Objects:
        """List the temporary files that crashed writers left behind."""
        return [info for info in self._walk(prefix) if not is_object(info.key)]

    def list_names(self, prefix: str) -> Names:
        return sorted(entry.name for entry in self._children(prefix) if not entry.name.startswith(TEMPORARY))

    def check_writable(self) -> None:
        """Verify reads, put-if-absent, read-after-write, deletes and concurrent puts with temporary probe objects."""
        prove_writable(self, self._world, self.client.condition, is_trusted=self.client.is_known)

    @contextmanager
    def _temporary(self, key: str) -> Iterator[_TemporaryNames]:
        """Yield temporary names next to the object.

        On exit, delete the files that were not renamed, so that a rename still in flight finds no source.
        """
        if ":" in key:
            raise StorageError(f"{key!r} holds a colon, which HDFS does not take: use another name")
        require_clock(self, self._world)
        names = _TemporaryNames((self._prefix + key).rpartition("/")[0], self._world)
        is_named = False
        try:
            yield names
            is_named = True
        finally:
            hdfs = self.client
            for name in names.names[:-1] if is_named else names.names:
                with suppress(*hdfs.failures):  # orphan cleaning deletes it
                    hdfs.delete(name)

    def _write(self, key: str, temporary: _TemporaryNames, body: bytes | BufferedBody, size_bytes: int) -> str:
        """Write a file under a new temporary name, and return its name.

        Each attempt has its own name, because an abandoned attempt may still start at a DataNode, and would overwrite a
        complete file with a partial one.
        """

        def write(hdfs: WebHdfsClient, _: str) -> str:
            name = temporary.fresh()
            hdfs.write(name, body)
            return name

        return self.send("puts", "write", key, write, sent_bytes=size_bytes)

    def _rename(self, key: str, written: str, *, retry_unknown_outcome: bool) -> None:
        def rename(hdfs: WebHdfsClient, name: str) -> None:
            hdfs.rename(written, name, replace=False)

        self.send("puts", "write", key, rename, retry_unknown_outcome=retry_unknown_outcome)

    def _is_stored(self, key: str, entry: Entry) -> bool:
        """Return whether the stored object is the file ``entry``, although its rename reported a failure."""
        try:
            return self.send("heads", "read", key, lambda hdfs, name: hdfs.entry(name)).file_id == entry.file_id
        except StorageError:
            return False

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield all files whose key starts with the prefix. Folders of equal depth are listed concurrently."""
        folders = [prefix[: prefix.rfind("/") + 1]]
        while folders:
            deeper: Names = []
            contents = parallel_map(self._children, folders, threads_max=READS_MAX)
            for folder, entries in zip(folders, contents, strict=True):
                for entry in entries:
                    key = f"{folder}{entry.name}"
                    if not key.startswith(prefix):
                        continue
                    if entry.is_folder:
                        deeper.append(f"{key}/")
                    else:
                        yield ObjectInfo(key, entry.size_bytes, entry.modified_ms)
            folders = deeper

    def _children(self, folder: str) -> Entries:
        """Return the entries of a folder, or none if it is absent. ``folder`` ends with a slash; the root is empty."""
        children: Entries = []
        more = True
        while more:
            after = children[-1].name if children else None

            def request_page(hdfs: WebHdfsClient, name: str, last: str | None = after) -> tuple[Entries, bool]:
                return hdfs.children(name.rstrip("/"), last)

            try:
                entries, more = self.send("lists", "list", folder, request_page)
            except ObjectNotFoundError:
                return children
            children.extend(entries)
        return children


_CHUNK_BYTES: Final = 1 << 20


class BufferedBody:
    """A sink whose content becomes the body of a request. The request may be sent several times.

    The object is buffered on this host: in memory, or in a file above `PART_BYTES`.
    """

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(max_size=PART_BYTES)  # noqa: SIM115 - closed by __exit__
        self.size_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, data: Bytes) -> int:
        written = self._file.write(data)
        self.size_bytes += written
        return written

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        while chunk := self._file.read(_CHUNK_BYTES):
            yield chunk
