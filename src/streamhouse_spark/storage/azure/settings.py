"""Location and settings of an Azure container, with pyiceberg's names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.storage.remote.settings import (
    CONNECT_TIMEOUT_SECONDS,
    REQUEST_TIMEOUT_SECONDS,
    mask_secrets,
    parse_seconds,
    select_settings,
)

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
_IGNORED: Final = (
    "adls.account-name",
    "adls.account-host",
    "adls.dfs-storage-authority",
    "adls.dfs-storage-scheme",
)
"""Settings of pyiceberg that the location already defines."""
_URL: Final = re.compile(
    r"abfss?://(?P<container>[a-z0-9](?:-?[a-z0-9]){2,62})@(?P<account>[a-z0-9]{3,24})\.dfs\."
    r"(?P<domain>[a-z0-9.-]+)(?:/(?P<prefix>.*))?\Z",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class AzureAddress:
    """A container, and the settings to reach it. ``repr`` shows no secret.

    Without credentials the Azure identity of this machine is used.
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
        """Return the address and the root's name in the container. Raises `InvalidOptionError`."""
        match = _URL.match(url)
        if match is None:
            raise InvalidOptionError(
                f"warehouse URL: found {url!r}, expected "
                "abfss://<container>@<account>.dfs.core.windows.net/<prefix>; credentials belong into the settings "
                "adls.account-key and the like",
            )
        prefix = (match["prefix"] or "").rstrip("/")
        if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
            raise InvalidOptionError(f"warehouse URL {url!r}: its prefix has an empty, '.' or '..' part; remove it")
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
                "Azure identity of this machine",
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
    def is_microsofts(self) -> bool:
        """Whether requests go to Azure itself."""
        clouds = ("core.windows.net", "core.chinacloudapi.cn", "core.usgovcloudapi.net")
        return self.authority is None and self.domain in clouds

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must never appear in a message."""
        return mask_secrets(self.account_key, self.sas_token, self.client_secret)
