"""Storage on Azure Blob Storage. The only module that imports Azure's packages.

Requests use the blob endpoint, which accounts with and without a hierarchical namespace have. This endpoint honours
``If-None-Match`` for a put and for a committed block list.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

from streamhouse_spark.core.clock import SystemClock, World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError, MissingExtraError, StorageError
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
from streamhouse_spark.storage.remote.multipart_upload import ATTEMPT, PARTS_IN_FLIGHT_MAX
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
    select_settings,
)
from streamhouse_spark.storage.remote.storage import BlobStorage

_PREFIX: Final = "adls."
_NAMES: Final = (
    "adls.account-key",
    "adls.sas-token",
    "adls.sas-token-file",
    "adls.tenant-id",
    "adls.client-id",
    "adls.client-secret",
    "adls.blob-storage-authority",
    "adls.blob-storage-scheme",
    "adls.connect-timeout",
    "adls.request-timeout",
)
_IGNORED: Final = ("adls.account-name", "adls.account-host", "adls.dfs-storage-authority", "adls.dfs-storage-scheme")
"""Settings of pyiceberg that the location already defines."""
_URL: Final = re.compile(
    r"abfss?://(?P<container>[a-z0-9](?:-?[a-z0-9]){2,62})@(?P<account>[a-z0-9]{3,24})\.dfs\."
    r"(?P<domain>[a-z0-9.-]+)(?:/(?P<prefix>.*))?\Z",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class AzureAddress:
    """A container, and the settings to reach it. ``repr`` shows no secret.

    Without credentials, the Azure identity of this machine is used.
    """

    account: str
    domain: str
    """The end of the account's host: ``core.windows.net`` except in sovereign clouds."""
    container: str
    authority: str | None = None
    """Host and port of an emulator, whose URLs have the account in their path."""
    scheme: str = "https"
    account_key: str | None = field(default=None, repr=False)
    sas_token: str | None = field(default=None, repr=False)
    sas_token_file: str | None = None
    """The path of a file with a shared access signature that is renewed externally."""
    tenant_id: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS
    request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS

    @classmethod
    def parse(cls, url: str, settings: Mapping[str, str]) -> tuple[AzureAddress, str]:
        """Return the address, and the key prefix of the warehouse in the container. Raises `InvalidOptionError`."""
        match = _URL.match(url)
        if match is None:
            raise InvalidOptionError(
                f"warehouse URL: found {url!r}, expected "
                "abfss://<container>@<account>.dfs.core.windows.net/<prefix>; credentials belong into the settings "
                "adls.account-key and the like"
            )
        prefix = parse_key_prefix(url, match["prefix"])
        ours = select_settings(settings, _PREFIX, (*_NAMES, *_IGNORED))
        address = cls(
            account=match["account"],
            domain=match["domain"],
            container=match["container"],
            authority=ours.get("adls.blob-storage-authority") or None,
            scheme=ours.get("adls.blob-storage-scheme") or "https",
            account_key=ours.get("adls.account-key") or None,
            sas_token=ours.get("adls.sas-token") or None,
            sas_token_file=ours.get("adls.sas-token-file") or None,
            tenant_id=ours.get("adls.tenant-id") or None,
            client_id=ours.get("adls.client-id") or None,
            client_secret=ours.get("adls.client-secret") or None,
            connect_timeout_seconds=parse_seconds(ours, "adls.connect-timeout", CONNECT_TIMEOUT_SECONDS),
            request_timeout_seconds=parse_seconds(ours, "adls.request-timeout", REQUEST_TIMEOUT_SECONDS),
        )
        address._require_consistent()
        return address, prefix

    def _require_consistent(self) -> None:
        if self.scheme not in ("http", "https"):
            raise InvalidOptionError(f"adls.blob-storage-scheme: found {self.scheme!r}, expected http or https")
        if self.sas_token and self.sas_token_file:
            raise InvalidOptionError("adls.sas-token and adls.sas-token-file exclude each other: set one of them")
        client = (self.tenant_id, self.client_id, self.client_secret)
        if self.client_secret and not all(client):
            raise InvalidOptionError(
                "adls.tenant-id, adls.client-id and adls.client-secret go together: set all three, or none to use the "
                "Azure identity of this machine"
            )

    @property
    def account_url(self) -> str:
        """The URL of the account's blob endpoint."""
        if self.authority is None:
            return f"{self.scheme}://{self.account}.blob.{self.domain}"
        if self.authority.startswith("."):
            return f"{self.scheme}://{self.account}{self.authority}"
        return f"{self.scheme}://{self.authority}/{self.account}"

    @property
    def is_microsoft(self) -> bool:
        """Whether requests go to Azure itself."""
        clouds = ("core.windows.net", "core.chinacloudapi.cn", "core.usgovcloudapi.net")
        return self.authority is None and self.domain in clouds

    def client(self) -> AzureContainerClient:
        return CLIENTS.get(self)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must never appear in a message."""
        return list_secrets_to_mask(self.account_key, self.sas_token, self.client_secret)


try:
    import requests
    from azure.core import MatchConditions
    from azure.core.credentials import AzureSasCredential
    from azure.core.exceptions import (
        AzureError,
        ClientAuthenticationError,
        HttpResponseError,
        ServiceRequestError,
        ServiceResponseError,
    )
    from azure.core.pipeline.transport import RequestsTransport
    from azure.storage.blob import BlobBlock, BlobClient, BlobPrefix, ContainerClient
except ImportError as import_error:
    raise MissingExtraError(
        f"a warehouse on abfss:// needs the package {import_error.name}, which is not installed: "
        "pip install 'streamhouse-spark[azure]'"
    ) from import_error

_CONNECTIONS_MAX: Final = 48
_PAGE_BLOBS: Final = 5_000
_SINGLE_BYTES_MAX: Final = 64 << 20
"""Objects of up to this size are one request."""
_FOLDER: Final = "hdi_isfolder"
"""Metadata of the blobs that represent folders in a hierarchical namespace."""
_DENIED: Final = (
    "grant the role Storage Blob Data Contributor on the container, or correct adls.account-key, adls.sas-token (or "
    "its file) or adls.client-secret"
)
_REMEDIES: Final = {
    "ContainerNotFound": "create the container, or correct its name in the warehouse URL",
    "ContainerBeingDeleted": "the container is being deleted: use another, or wait",
    "InvalidAuthenticationInfo": _DENIED,
    "BlobImmutableDueToPolicy": "the container keeps blobs from changes: use one without a policy of immutability",
}
_EXISTS: Final = frozenset({"BlobAlreadyExists", "ConditionNotMet", "UnauthorizedBlobOverwrite"})


class AzureContainerClient:
    """The blobs of one container."""

    failures: tuple[type[Exception], ...] = (AzureError, requests.RequestException, OSError)
    condition = "If-None-Match"
    parts_in_flight_max = PARTS_IN_FLIGHT_MAX

    def __init__(self, address: AzureAddress) -> None:
        boot_ms = SystemClock().boot_ms
        self.clock = StoreClock(boot_ms)
        self.is_known = address.is_microsoft
        self.token_file = open_token_file(address.sas_token_file, "adls.sas-token-file")
        self._secrets = address.secrets
        self._container = ContainerClient(
            address.account_url,
            address.container,
            credential=_SignatureOfFile(self.token_file) if self.token_file else _credential(address),
            transport=_TimedTransport(self.clock, address),
            retry_total=0,
            max_single_put_size=_SINGLE_BYTES_MAX,
            max_single_get_size=_SINGLE_BYTES_MAX,
            max_chunk_get_size=_SINGLE_BYTES_MAX,
        )

    def classify_failure(self, error: Exception) -> Failure:
        status = int(getattr(error, "status_code", None) or 0)
        code = str(getattr(getattr(error, "error_code", None), "value", getattr(error, "error_code", None)) or "")
        kind = _kind_of(error, status, code)
        refused = kind is FailureKind.FINAL and (status in (401, 403) or isinstance(error, ClientAuthenticationError))
        remedy = _REMEDIES.get(code)
        if remedy is None:
            remedy = {FailureKind.TRANSIENT: UNKNOWN_OUTCOME, FailureKind.THROTTLED: SLOW_DOWN}.get(
                kind, _DENIED if refused else "check the account, the container and the adls.* settings"
            )
        head = f"{code or type(error).__name__} (HTTP {status})" if status else type(error).__name__
        secrets = self._secrets + (self.token_file.secrets if self.token_file else ())
        message = to_one_line(str(getattr(error, "message", "") or error), secrets)
        return Failure(kind, f"{head}: {message}" if message else head, remedy, refused)

    def get(self, name: str) -> bytes:
        return self._blob(name).download_blob().readall()

    def get_range(self, name: str, start: int, end: int) -> bytes:
        try:
            return self._blob(name).download_blob(offset=start, length=end - start).readall()
        except HttpResponseError as error:
            if error.status_code == 416:  # the object ends before the range
                return b""
            raise

    def size_bytes(self, name: str) -> int:
        return int(self._blob(name).get_blob_properties().size)

    def attempt(self, name: str) -> str | None:
        metadata: Mapping[str, str] = self._blob(name).get_blob_properties().metadata or {}
        return metadata.get(ATTEMPT)

    def put(self, name: str, body: Bytes, *, is_absent: bool, attempt: str | None = None) -> None:
        metadata = {ATTEMPT: attempt} if attempt else None
        self._blob(name).upload_blob(bytes(body), overwrite=not is_absent, metadata=metadata)

    def begin(self, name: str, attempt: str) -> MultipartUpload:
        return _Blocks(self._blob(name), attempt)

    def page(self, prefix: str, delimiter: str | None, page_token: str | None) -> ListingPage:
        about: dict[str, Any] = {"name_starts_with": prefix, "include": ["metadata"], "results_per_page": _PAGE_BLOBS}
        listing = (
            self._container.walk_blobs(delimiter=delimiter, **about)
            if delimiter
            else self._container.list_blobs(**about)
        )
        pages = listing.by_page(page_token)
        items = list(next(pages, ()))
        blobs = [
            ListedBlob(item.name, int(item.size), round(item.last_modified.timestamp() * 1000))
            for item in items
            if not isinstance(item, BlobPrefix) and (item.metadata or {}).get(_FOLDER) != "true"
        ]
        prefixes = [item.name for item in items if isinstance(item, BlobPrefix)]
        return ListingPage(blobs, prefixes, getattr(pages, "continuation_token", None) or None)

    def delete(self, name: str) -> None:
        self._blob(name).delete_blob(delete_snapshots="include")

    def request_time(self) -> None:
        self._container.get_container_properties()

    def _blob(self, name: str) -> BlobClient:
        if "\\" in name:
            raise StorageError(f"{name!r} holds a backslash, which Azure takes for a slash: use another name")
        return self._container.get_blob_client(name)


class _Blocks:
    """A blob that is sent in blocks. Azure deletes uncommitted blocks within a week."""

    def __init__(self, blob: BlobClient, attempt: str) -> None:
        self._blob = blob
        self._attempt = attempt
        self._sent: dict[int, str] = {}

    def send(self, number: int, body: io.BytesIO, *, is_last: bool) -> None:  # noqa: ARG002 - blocks need not know
        block_id = f"{number:08d}"
        data = body.getvalue()
        self._blob.stage_block(block_id, data, length=len(data))
        self._sent[number] = block_id

    def finish(self) -> None:
        blocks = [BlobBlock(block_id) for _, block_id in sorted(self._sent.items())]
        self._blob.commit_block_list(
            blocks, metadata={ATTEMPT: self._attempt}, match_condition=MatchConditions.IfMissing
        )

    def abort(self) -> None:
        """Do nothing: uncommitted blocks are not an object and cannot be removed individually."""


class _SignatureOfFile(AzureSasCredential):
    """A shared access signature that is read from a file for each request."""

    def __init__(self, file: TokenFile) -> None:
        super().__init__(file.text)
        self._file = file

    @property
    def signature(self) -> str:
        return self._file.text


class _TimedTransport(RequestsTransport):  # type: ignore[misc]
    """Sends requests on its own connections, and derives the store's time from the responses."""

    def __init__(self, clock: StoreClock, address: AzureAddress) -> None:
        session = requests.Session()
        for scheme in ("https://", "http://"):
            session.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=_CONNECTIONS_MAX))
        super().__init__(
            session=session,
            session_owner=False,
            connection_timeout=address.connect_timeout_seconds,
            read_timeout=address.request_timeout_seconds,
        )
        self._clock = clock
        self._boot_ms = SystemClock().boot_ms

    def send(self, request: Any, **options: Any) -> Any:
        sent_ms = self._boot_ms()
        response = super().send(request, **options)
        self._clock.observe(response.headers.get("Date"), sent_ms, self._boot_ms())
        return response


def _kind_of(error: Exception, status: int, code: str) -> FailureKind:
    if isinstance(error, HttpResponseError) and status:
        if code in _EXISTS:
            return FailureKind.EXISTS
        if code == "BlobNotFound":  # another 404 may come from a gateway
            return FailureKind.ABSENT
        if status in (429, 503):
            return FailureKind.THROTTLED
        return FailureKind.TRANSIENT if status >= 500 or status == 408 else FailureKind.FINAL
    transient = (ServiceRequestError, ServiceResponseError, HttpResponseError, requests.RequestException, OSError)
    return FailureKind.TRANSIENT if isinstance(error, transient) else FailureKind.FINAL


def _credential(address: AzureAddress) -> Any:
    if address.account_key:
        return {"account_name": address.account, "account_key": address.account_key}
    if address.sas_token:
        return address.sas_token
    try:
        from azure.identity import ClientSecretCredential, DefaultAzureCredential
    except ImportError as error:
        raise MissingExtraError(
            f"the Azure identity of this machine needs the package {error.name}, which is not installed: "
            "pip install 'streamhouse-spark[azure]'"
        ) from error
    if address.client_secret and address.tenant_id and address.client_id:
        return ClientSecretCredential(address.tenant_id, address.client_id, address.client_secret)
    return DefaultAzureCredential(managed_identity_client_id=address.client_id)


CLIENTS: ClientCache[AzureAddress, AzureContainerClient] = ClientCache(AzureContainerClient)


def open_azure_storage(url: str, settings: Mapping[str, str], world: World | None = None) -> BlobStorage:
    """Return the store at ``abfss://container@account.dfs.core.windows.net/prefix``, with pyiceberg's ``adls.*``
    settings.

    The default is the Azure identity of this machine. Raises `InvalidOptionError`.
    """
    address, prefix = AzureAddress.parse(url, settings)
    return BlobStorage(url, prefix, address, world, RetryPolicy.parse(settings))
