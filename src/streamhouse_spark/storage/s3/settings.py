"""The settings of an S3 store: pyiceberg's names, so that the log and the lake are configured alike."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from streamhouse_spark.errors import InvalidOptionError

_PREFIX = "s3."
_CONNECT_TIMEOUT_SECONDS = 10.0
_REQUEST_TIMEOUT_SECONDS = 60.0
_SECRET_CHARS_MIN = 6


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Checked settings. The usual AWS chain supplies those that are None; the text form shows no secret."""

    endpoint: str | None = None
    region: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    connect_timeout_seconds: float = _CONNECT_TIMEOUT_SECONDS
    request_timeout_seconds: float = _REQUEST_TIMEOUT_SECONDS
    virtual_addressing: bool | None = None

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> S3Settings:
        """Choose the settings that begin with ``s3.``; others belong to other components. Raises
        `InvalidOptionError`.
        """
        ours = {name: value for name, value in settings.items() if name.startswith(_PREFIX)}
        for name in ours:
            if name not in _NAMES:
                raise InvalidOptionError(_unknown(name))
        parsed = cls(
            endpoint=_endpoint(ours.get("s3.endpoint")),
            region=ours.get("s3.region") or None,
            access_key_id=ours.get("s3.access-key-id") or None,
            secret_access_key=ours.get("s3.secret-access-key") or None,
            session_token=ours.get("s3.session-token") or None,
            connect_timeout_seconds=_seconds(ours, "s3.connect-timeout", _CONNECT_TIMEOUT_SECONDS),
            request_timeout_seconds=_seconds(ours, "s3.request-timeout", _REQUEST_TIMEOUT_SECONDS),
            virtual_addressing=_boolean(ours, "s3.force-virtual-addressing"),
        )
        if (parsed.access_key_id is None) != (parsed.secret_access_key is None):
            raise InvalidOptionError(
                "s3.access-key-id and s3.secret-access-key go together: found one of them; set both, or neither to use "
                "the AWS credentials of this machine",
            )
        return parsed

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must never appear in a message. (Shorter ones are no secrets, and cutting them out garbles every
        text.)
        """
        held = (self.access_key_id, self.secret_access_key, self.session_token)
        return tuple(s for s in held if s and len(s) >= _SECRET_CHARS_MIN)


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


def _unknown(name: str) -> str:
    nearest = difflib.get_close_matches(name, _NAMES, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(_NAMES)}"
    return f"unknown storage setting {name}: {hint}"


def _endpoint(text: str | None) -> str | None:
    if not text:
        return None
    parts = urlsplit(text)
    if "@" in parts.netloc:
        raise InvalidOptionError("s3.endpoint holds a user name: put credentials into s3.access-key-id and the like")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidOptionError(f"s3.endpoint: found {text!r}, expected a URL like https://storage.example.com")
    return text.rstrip("/")


def _seconds(settings: Mapping[str, str], name: str, default: float) -> float:
    text = settings.get(name)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InvalidOptionError(f"{name}: found {text!r}, expected a number of seconds above 0")
    return seconds


def _boolean(settings: Mapping[str, str], name: str) -> bool | None:
    text = settings.get(name)
    if text is None:
        return None
    if text.lower() not in ("true", "false"):
        raise InvalidOptionError(f"{name}: found {text!r}, expected true or false")
    return text.lower() == "true"
