"""Storage settings with pyiceberg's names, so that the log and the lake are configured alike."""

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
    """Return the settings that start with ``prefix``; others belong to other components.

    Raises `InvalidOptionError` for an unknown name.
    """
    ours = {name: value for name, value in settings.items() if name.startswith(prefix)}
    for name in ours:
        if name not in names:
            nearest = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(names)}"
            raise InvalidOptionError(f"unknown storage setting {name}: {hint}")
    return ours


def parse_url(name: str, text: str | None, instead: str) -> str | None:
    """Return a URL without a trailing slash. ``instead`` is the setting for credentials."""
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


def mask_secrets(*held: str | None) -> tuple[str, ...]:
    """Return the texts that must never appear in a message. Short texts are not secrets, and masking them would garble
    messages.
    """
    return tuple(text for text in held if text and len(text) >= _SECRET_CHARS_MIN)
