"""A secret in a file that is renewed externally, such as a mounted Kubernetes secret."""

from __future__ import annotations

from pathlib import Path

from streamhouse_spark.core.fork_safety import new_lock
from streamhouse_spark.errors import StorageRefusedError
from streamhouse_spark.storage.remote.settings import mask_secrets


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
