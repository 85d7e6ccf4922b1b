"""Storage in memory, for tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.concurrency import new_lock
from streamhouse_spark.errors import ObjectExistsError, ObjectNotFoundError
from streamhouse_spark.storage.base import Bytes, Names, ObjectInfo


class MemoryStorage:
    """Objects of one process. Every operation is atomic under one lock."""

    def __init__(self, world: World | None = None, name: str = "test") -> None:
        self._world = world or World()
        self._name = name
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._lock = new_lock()

    @property
    def url(self) -> str:
        return f"memory://{self._name}"

    def read(self, key: str) -> bytes:
        with self._lock:
            entry = self._objects.get(key)
        if entry is None:
            raise ObjectNotFoundError.of(f"{self.url}/{key}")
        return entry[0]

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        data = self.read(key)
        return [data[start:end] for start, end in ranges]

    def size_bytes(self, key: str) -> int:
        return len(self.read(key))

    def put_if_absent(self, key: str, data: Bytes) -> None:
        with self._lock:
            if key in self._objects:
                raise ObjectExistsError(f"{self.url}/{key} exists")
            self._objects[key] = (bytes(data), self._world.clock.now_ms())

    def ensure_durable(self, key: str) -> None:
        self.size_bytes(key)

    def put(self, key: str, data: Bytes) -> None:
        with self._lock:
            self._objects[key] = (bytes(data), self._world.clock.now_ms())

    @contextmanager
    def create(self, key: str) -> Iterator[_MemorySink]:
        sink = _MemorySink()
        yield sink
        self.put(key, bytes(sink.buffer))

    def list(self, prefix: str) -> list[ObjectInfo]:
        with self._lock:
            return [ObjectInfo(k, len(d), ms) for k, (d, ms) in self._objects.items() if k.startswith(prefix)]

    def list_names(self, prefix: str) -> Names:
        with self._lock:
            return sorted({k[len(prefix) :].split("/", 1)[0] for k in self._objects if k.startswith(prefix)})

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(key, None)

    def now_ms(self) -> int:
        return self._world.clock.now_ms()

    def local_path(self, key: str) -> str | None:  # noqa: ARG002 - the interface
        return None

    def commit_lock(self, key: str) -> AbstractContextManager[None]:  # noqa: ARG002 - the interface
        return nullcontext()

    def check_writable(self) -> None:
        return


class _MemorySink:
    def __init__(self) -> None:
        self.buffer = bytearray()

    def write(self, data: Bytes) -> int:
        self.buffer += data
        return len(memoryview(data).cast("B"))
