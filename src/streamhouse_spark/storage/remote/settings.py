"""Storage settings with pyiceberg's names, so that the log and the lake are configured alike.

A secret in a file that is renewed externally, such as a mounted Kubernetes secret.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from streamhouse_spark.core.concurrency import new_lock
from streamhouse_spark.errors import InvalidOptionError, StorageRefusedError

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


class TokenFile:
    """The secret in a file, read again when a store rejects it. Thread-safe."""

    def __init__(self, path: str, setting: str) -> None:
        """``setting`` names the file. Raises `StorageRefusedError` if it cannot be read."""
        self._path = path
        self._setting = setting
        self._lock = new_lock()
        self.text = self._read()
        self.version = 0
        """Number of renewals."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must never appear in a message."""
        return mask_secrets(self.text)

    def renew(self, version: int) -> bool:
        """Read the file again, and return whether the secret differs from that of ``version``.

        Raises `StorageRefusedError` if it cannot be read.
        """
        with self._lock:
            if version == self.version and (text := self._read()) != self.text:
                self.text = text
                self.version += 1
            return version != self.version

    def _read(self) -> str:
        try:
            text = Path(self._path).read_text().strip()
        except (OSError, ValueError) as error:
            raise StorageRefusedError(
                f"cannot read the file of {self._setting}: {error}; write the secret to it, and make it readable for "
                "this process"
            ) from error
        if not text:
            raise StorageRefusedError(f"the file of {self._setting}, {self._path}, is empty: write the secret into it")
        return text


def token_file(path: str | None, setting: str) -> TokenFile | None:
    return TokenFile(path, setting) if path else None
