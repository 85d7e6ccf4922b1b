"""A storage whose answer is an error although the write is still under way, and lands a few calls later.

A client that gave up waiting does not know that a front end of an object store still holds its request.
"""

from __future__ import annotations

from typing import TypeVar

from faults.faulty_storage import Fault, FaultyStorage, Op
from streamhouse_spark import StorageError
from streamhouse_spark.storage.base import Bytes, Storage

T = TypeVar("T")


class LateStorage(FaultyStorage):
    """Put-if-absent number ``at`` fails and is applied ``calls_late`` calls later. Other calls fail unapplied."""

    def __init__(self, inner: Storage, at: int, *, calls_late: int) -> None:
        super().__init__(inner, {at: Fault.ERROR_BEFORE})
        self._at = at
        self._due = at + calls_late
        self._pending: tuple[str, bytes] | None = None

    def put_if_absent(self, key: str, data: Bytes) -> None:
        if len(self.trace) == self._at:
            self._pending = key, bytes(data)
        super().put_if_absent(key, data)

    def _begin(self, method: str, key: str) -> tuple[Op, Fault | None]:
        if self._pending is not None and len(self.trace) >= self._due:
            self.land()
        return super()._begin(method, key)

    def land(self) -> None:
        """The write that was given up arrives, if it was not there already."""
        if self._pending is None:
            return
        key, data = self._pending
        self._pending = None
        try:
            self.inner.put_if_absent(key, data)
        except StorageError:
            return
