"""Location and settings of a Google Cloud Storage bucket, with pyiceberg's names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Final
from urllib.parse import urlsplit

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.storage.remote.settings import (
    CONNECT_TIMEOUT_SECONDS,
    REQUEST_TIMEOUT_SECONDS,
    mask_secrets,
    parse_boolean,
    parse_seconds,
    parse_url,
    select_settings,
)

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
"""Settings of pyiceberg without effect here."""
_URL: Final = re.compile(r"gs://(?P<bucket>[a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?:/(?P<prefix>.*))?\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class GcsAddress:
    """A bucket, and the settings to reach it. ``repr`` shows no secret.

    Without a token the application default credentials of this machine are used.
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
        """Return the address and the root's name in the bucket. Raises `InvalidOptionError`."""
        match = _URL.match(url)
        if match is None:
            shown = "credentials in it" if "@" in url else repr(url)
            raise InvalidOptionError(f"warehouse URL: found {shown}, expected gs://<bucket>/<prefix>")
        prefix = (match["prefix"] or "").rstrip("/")
        if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
            raise InvalidOptionError(f"warehouse URL {url!r}: its prefix has an empty, '.' or '..' part; remove it")
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
    def is_googles(self) -> bool:
        """Whether requests go to Google itself."""
        host = urlsplit(self.host).hostname or ""
        return host == "storage.googleapis.com" or host.endswith(".storage.googleapis.com")

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must never appear in a message."""
        return mask_secrets(self.token)
