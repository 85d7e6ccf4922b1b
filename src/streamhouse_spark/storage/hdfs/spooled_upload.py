"""A large object that is buffered on this host until it is sent: in memory, and above some size in a file."""

from __future__ import annotations

from collections.abc import Iterator
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import Final, Self

from streamhouse_spark.storage.base import Bytes
from streamhouse_spark.storage.remote.multipart_upload import PART_BYTES

_CHUNK_BYTES: Final = 1 << 20


class HeldFile:
    """A sink that later is the body of a request, which may be sent several times."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(max_size=PART_BYTES)  # noqa: SIM115 - closed by __exit__
        self.size_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, data: Bytes) -> int:
        written = self._file.write(data)
        self.size_bytes += written
        return written

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        while chunk := self._file.read(_CHUNK_BYTES):
            yield chunk
