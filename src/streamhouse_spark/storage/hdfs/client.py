"""A client of HDFS, with WebHDFS over HTTP: a NameNode responds, and redirects to a DataNode for bytes.

Hadoop's own library would need a JVM in the process. Put-if-absent is ``RENAME`` of a file that was written under
another name, with ``renameoptions=NONE``: the NameNode decides it under one lock, and it fails if the destination
exists. Without this parameter ``RENAME`` responds ``false`` then, without a reason, and moves the file into a folder of
that name.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote, urlsplit

from streamhouse_spark.core.clock import SystemClock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import MissingExtraError
from streamhouse_spark.storage.hdfs.settings import TOKEN_FILE, HdfsAddress
from streamhouse_spark.storage.remote.client_cache import ClientCache
from streamhouse_spark.storage.remote.failures import SLOW_DOWN, UNKNOWN_OUTCOME, Failure, FailureKind, to_one_line
from streamhouse_spark.storage.remote.store_clock import StoreClock
from streamhouse_spark.storage.remote.token_file import token_file

try:
    import requests
except ImportError as import_error:
    raise MissingExtraError(
        f"a warehouse on hdfs:// needs the package {import_error.name}, which is not installed: "
        "pip install 'streamhouse-spark[hdfs]'",
    ) from import_error

Body = bytes | Iterable[bytes]

_CONNECTIONS_MAX: Final = 48
_AWAY_MS: Final = 60_000
"""An unreachable DataNode is avoided for this time: the NameNode notices after some minutes."""
_NOTHING: Final[Mapping[str, str]] = {}
_EXCLUDED: Final = "excludedatanodes"
_TOKEN_IN_URL: Final = re.compile(r"(?i)(delegation=)[^&\s'\")]+")
_ASKED_OF_ANOTHER: Final = frozenset({"StandbyException", "ObserverRetryOnActiveException"})
_DID_NOTHING: Final = _ASKED_OF_ANOTHER | {"SafeModeException", "RetriableException", "ServerTooBusyException"}
_DENIED: Final = frozenset({
    "AccessControlException", "AuthenticationException", "AuthorizationException", "InvalidToken", "SecurityException",
})  # fmt: skip
_FINAL: Final = _DENIED | {
    "DSQuotaExceededException", "IllegalArgumentException", "InvalidPathException",
    "MaxDirectoryItemsExceededException", "NSQuotaExceededException", "ParentNotDirectoryException",
    "PathComponentTooLongException", "PathIsNotEmptyDirectoryException", "QuotaByStorageTypeExceededException",
    "UnsupportedOperationException",
}  # fmt: skip
_KERBEROS: Final = (
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


class AnswerError(Exception):
    """A response that reports a failure."""

    def __init__(
        self, status: int, name: str, message: str, operation: str, *, asks_for_kerberos: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.name = name
        """The class of Hadoop's exception; empty if the response is not one of WebHDFS."""
        self.operation = operation
        self.asks_for_kerberos = asks_for_kerberos

    @classmethod
    def of(cls, answer: requests.Response, operation: str) -> AnswerError:
        asks_for_kerberos = "negotiate" in answer.headers.get("WWW-Authenticate", "").lower()
        try:
            details = answer.json()["RemoteException"]
            message, name = str(details["message"]), str(details["exception"]).rpartition("$")[2]
        except (ValueError, LookupError, TypeError):
            message, name = str(answer.reason or ""), ""
        message = message.partition("\n")[0]  # a stack trace may follow
        return cls(answer.status_code, name, message, operation, asks_for_kerberos=asks_for_kerberos)


class ForeignAnswerError(Exception):
    """A response that WebHDFS does not give."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or a folder."""

    name: str
    """Its name in its folder; empty if it was requested itself."""
    is_folder: bool
    size_bytes: int
    modified_ms: int
    file_id: int
    """The id of this file. It survives renames, and is never reused."""

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


class WebHdfs:
    """The files of one cluster. Names are paths without the leading slash."""

    failures: tuple[type[Exception], ...] = (AnswerError, ForeignAnswerError, requests.RequestException, OSError)
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
        self._away: dict[str, int] = {}
        """Address of an unreachable DataNode → the time until which it is avoided."""
        self.token_file = token_file(address.token_file, TOKEN_FILE)
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
        except AnswerError as error:
            if error.name == "IOException" and start >= self.size_bytes(name):  # the file ends before the range
                return b""
            raise

    def size_bytes(self, name: str) -> int:
        return self.entry(name).size_bytes

    def entry(self, name: str) -> Entry:
        """Return the entry of a file. Raises an error for a folder."""
        answer = self._ask("GET", "GETFILESTATUS", name)
        entry = Entry.of(answer.json()["FileStatus"])
        if entry.is_folder:
            raise AnswerError(404, "FileNotFoundException", f"/{name} is a folder", "GETFILESTATUS")
        return entry

    def children(self, folder: str, after: str | None) -> tuple[Entries, bool]:
        """Return the next entries of a folder in name order, and whether more follow."""
        answer = self._ask("GET", "LISTSTATUS_BATCH", folder, {} if after is None else {"startafter": after})
        listing = answer.json()["DirectoryListing"]
        entries = [Entry.of(status) for status in listing["partialListing"]["FileStatuses"]["FileStatus"]]
        if any(entry.name == after for entry in entries):
            raise ForeignAnswerError(f"a listing of /{folder} begins again at {after!r}")
        return [entry for entry in entries if entry.name], bool(listing["remainingEntries"])

    def write(self, name: str, body: Body) -> None:
        """Write a file under a name that no other writer uses, and create its folders. Readers can see it
        half-written.
        """
        answer = self._ask("PUT", "CREATE", name, {"overwrite": "false", **self._without_away()}, allowed=307)
        self._send_on("PUT", "CREATE", answer, body)

    def rename(self, name: str, to: str, *, replace: bool) -> None:
        """Rename a file. Without ``replace``, only if the new name is free."""
        options = "OVERWRITE" if replace else "NONE"
        answer = self._ask("PUT", "RENAME", name, {"destination": f"/{to}", "renameoptions": options})
        if answer.content:
            raise ForeignAnswerError(f"RENAME takes no renameoptions here, and says {answer.text[:60]!r}")

    def delete(self, name: str) -> None:
        self._ask("DELETE", "DELETE", name, {"recursive": "false"})

    def ask_time(self) -> None:
        self._ask("GET", "GETFILESTATUS", "")

    # -- answers ----------------------------------------------------------------------------------------------------

    def judge(self, error: Exception) -> Failure:
        kind = _kind_of(error)
        secrets = self._secrets + (self.token_file.secrets if self.token_file else ())
        message = to_one_line(_TOKEN_IN_URL.sub(r"\1***", _text_of(error)), secrets)
        refused = kind is FailureKind.FINAL and isinstance(error, AnswerError) and _is_denied(error)
        head = type(error).__name__
        if isinstance(error, AnswerError):
            head = f"{error.name} (HTTP {error.status})" if error.name else f"HTTP {error.status}"
        return Failure(kind, f"{head}: {message}" if message else head, _remedy(error, kind), refused)

    @property
    def _identity(self) -> dict[str, str]:
        return {"delegation": self.token_file.text} if self.token_file else self._fixed_identity

    def _open(self, name: str, about: dict[str, str]) -> bytes:
        answer = self._ask("GET", "OPEN", name, {**about, **self._without_away()}, allowed=307)
        if answer.status_code == 307:
            answer = self._send_on("GET", "OPEN", answer, None)
        length = answer.headers.get("Content-Length")
        if length is not None and int(length) != len(answer.content):
            raise ConnectionError(f"{len(answer.content)} of {length} bytes arrived")
        return answer.content

    def _ask(
        self, method: str, operation: str, name: str, about: Mapping[str, str] = _NOTHING, *, allowed: int = 0
    ) -> requests.Response:
        """Send a request to the NameNode that responded last; after a failure the next request goes to another one."""
        at, sent_ms = self._active, self._boot_ms()
        url = f"{self._namenodes[at]}/webhdfs/v1/{quote(name)}"
        try:
            answer = self._request(method, url, None, {"op": operation, **self._identity, **about})
        except requests.RequestException:
            self._active = (at + 1) % len(self._namenodes)
            raise
        date = answer.headers.get("Date", "")
        self.clock.observe(date[: date.find("GMT") + 3], sent_ms, self._boot_ms())  # Jetty may send it twice
        if answer.status_code >= 300 and answer.status_code != allowed:
            error = AnswerError.of(answer, operation)
            if error.name in _ASKED_OF_ANOTHER:
                self._active = (at + 1) % len(self._namenodes)
            if _EXCLUDED in about:  # maybe no DataNode is left
                self._away.clear()
            raise error
        return answer

    def _send_on(self, method: str, operation: str, answer: requests.Response, body: Body | None) -> requests.Response:
        """Send the request to the DataNode that the NameNode chose; its URL has all parameters."""
        location = answer.headers.get("Location", "")
        if urlsplit(location).scheme not in ("http", "https"):
            raise ForeignAnswerError(f"{operation} is answered without the URL of a DataNode")
        try:
            answer = self._request(method, location, body, {})
        except requests.ConnectionError:
            self._away[_address_of(urlsplit(location).hostname or "")] = self._boot_ms() + _AWAY_MS
            raise
        if answer.status_code >= 300:
            raise AnswerError.of(answer, operation)
        return answer

    def _without_away(self) -> dict[str, str]:
        now_ms = self._boot_ms()
        away = sorted(address for address, until_ms in tuple(self._away.items()) if now_ms < until_ms)
        return {_EXCLUDED: ",".join(away)} if away else {}

    def _request(self, method: str, url: str, body: Body | None, parameters: Mapping[str, str]) -> requests.Response:
        return self._session.request(
            method, url, params=parameters, data=body, timeout=self._timeouts, allow_redirects=False
        )


def _address_of(host: str) -> str:
    """Return the IP address of a DataNode, by which the NameNode knows it."""
    try:
        return socket.gethostbyname(host)
    except OSError:
        return host


def _kind_of(error: Exception) -> FailureKind:
    if not isinstance(error, AnswerError):
        return FailureKind.FINAL if isinstance(error, ForeignAnswerError) else FailureKind.TRANSIENT
    if error.name == "FileAlreadyExistsException" and error.operation == "RENAME":
        return FailureKind.EXISTS
    if error.name == "FileNotFoundException":  # for a rename it is the source file
        return FailureKind.FINAL if error.operation == "RENAME" else FailureKind.ABSENT
    if error.name in _DID_NOTHING or error.status in (429, 503):
        return FailureKind.THROTTLED
    if error.status >= 500 or error.status == 408:
        return FailureKind.TRANSIENT
    # An I/O error of the NameNode or a DataNode: a retry may use another one.
    return FailureKind.FINAL if error.name in _FINAL or not error.name else FailureKind.TRANSIENT


def _is_denied(error: AnswerError) -> bool:
    return error.name in _DENIED or (not error.name and error.status in (401, 403))


def _remedy(error: Exception, kind: FailureKind) -> str:
    if isinstance(error, ForeignAnswerError):
        return _NOT_WEBHDFS
    if isinstance(error, AnswerError):
        if error.asks_for_kerberos:
            return _KERBEROS
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
    """Return the message of a failure without a URL, which may contain a token."""
    request = getattr(error, "request", None)
    if isinstance(error, requests.RequestException) and request is not None:
        return f"no answer of {urlsplit(request.url or '').netloc}"
    return str(error)


CLIENTS: ClientCache[HdfsAddress, WebHdfs] = ClientCache(WebHdfs)
