"""Settings of an S3 store, with pyiceberg's names, so that the log and the lake have the same settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.storage.remote.setting_parsers import (
    CONNECT_TIMEOUT_SECONDS,
    REQUEST_TIMEOUT_SECONDS,
    list_secrets_to_mask,
    parse_boolean,
    parse_seconds,
    parse_url,
    select_settings,
)

_PREFIX = "s3."


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Validated settings. The AWS default chain replaces those that are None. ``repr`` shows no secret."""

    endpoint: str | None = None
    region: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS
    request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS
    virtual_addressing: bool | None = None

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> S3Settings:
        """Parse the settings that start with ``s3.``. Raises `InvalidOptionError`."""
        ours = select_settings(settings, _PREFIX, _NAMES)
        parsed = cls(
            endpoint=parse_url("s3.endpoint", ours.get("s3.endpoint"), "s3.access-key-id"),
            region=ours.get("s3.region") or None,
            access_key_id=ours.get("s3.access-key-id") or None,
            secret_access_key=ours.get("s3.secret-access-key") or None,
            session_token=ours.get("s3.session-token") or None,
            connect_timeout_seconds=parse_seconds(ours, "s3.connect-timeout", CONNECT_TIMEOUT_SECONDS),
            request_timeout_seconds=parse_seconds(ours, "s3.request-timeout", REQUEST_TIMEOUT_SECONDS),
            virtual_addressing=parse_boolean(ours, "s3.force-virtual-addressing"),
        )
        if (parsed.access_key_id is None) != (parsed.secret_access_key is None):
            raise InvalidOptionError(
                "s3.access-key-id and s3.secret-access-key go together: found one of them; set both, or neither to use "
                "the AWS credentials of this machine"
            )
        return parsed

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must never appear in a message."""
        return list_secrets_to_mask(self.access_key_id, self.secret_access_key, self.session_token)


_NAMES = (
    "s3.endpoint",
    "s3.region",
    "s3.access-key-id",
    "s3.secret-access-key",
    "s3.session-token",
    "s3.connect-timeout",
    "s3.request-timeout",
    "s3.force-virtual-addressing",
)
