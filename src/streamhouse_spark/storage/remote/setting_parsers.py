"""Parsers of the settings of remote stores. The names are pyiceberg's, so that log and lake have the same settings."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

from streamhouse_spark.errors import InvalidOptionError

CONNECT_TIMEOUT_SECONDS: Final = 10.0
REQUEST_TIMEOUT_SECONDS: Final = 60.0
_SECRET_CHARS_MIN: Final = 6


def select_settings(settings: Mapping[str, str], prefix: str, names: Collection[str]) -> dict[str, str]:
    """Return the settings that start with ``prefix``. Raises `InvalidOptionError` for an unknown name among them."""
    ours = {name: value for name, value in settings.items() if name.startswith(prefix)}
    for name in ours:
        if name not in names:
            nearest = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(names)}"
            raise InvalidOptionError(f"unknown storage setting {name}: {hint}")
    return ours


def parse_key_prefix(url: str, prefix: str | None, noun: str = "prefix") -> str:
    """Return the key prefix of the warehouse in the bucket or container, without a trailing slash.

    Raises `InvalidOptionError` for an empty, ``.`` or ``..`` part. ``noun`` names the prefix in the error.
    """
    prefix = (prefix or "").rstrip("/")
    if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
        raise InvalidOptionError(f"warehouse URL {url!r}: its {noun} has an empty, '.' or '..' part; remove it")
    return prefix


def parse_url(name: str, text: str | None, instead: str) -> str | None:
    """Return a URL without a trailing slash. ``instead`` is a setting for credentials, which must not be in the URL."""
    if not text:
        return None
    parts = urlsplit(text)
    if "@" in parts.netloc:
        raise InvalidOptionError(f"{name} holds a user name: put credentials into {instead} and the like")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidOptionError(f"{name}: found {text!r}, expected a URL like https://storage.example.com")
    return text.rstrip("/")


def parse_seconds(settings: Mapping[str, str], name: str, default: float) -> float:
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


def parse_boolean(settings: Mapping[str, str], name: str) -> bool | None:
    text = settings.get(name)
    if text is None:
        return None
    if text.lower() not in ("true", "false"):
        raise InvalidOptionError(f"{name}: found {text!r}, expected true or false")
    return text.lower() == "true"


def list_secrets_to_mask(*secrets: str | None) -> tuple[str, ...]:
    """Return the texts to mask in messages. Short texts are not secrets, and masking them would garble messages."""
    return tuple(text for text in secrets if text and len(text) >= _SECRET_CHARS_MIN)
