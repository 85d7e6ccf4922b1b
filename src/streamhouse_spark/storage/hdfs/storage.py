"""Storage in an HDFS folder.

An object is written under a temporary name in its folder, which starts with ``.tmp-``, and then renamed. A file that is
written in place could be read half-written, and a rename is atomic at the NameNode. A crash leaves the temporary file
behind; `list` does not return it, and orphan cleaning deletes it (`list_temporary`).

Durable means what HDFS guarantees for a closed file: each DataNode of its pipeline has the bytes, at least in memory,
and the NameNode's journal has the file and its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import Final, Self

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.concurrency import parallel_map
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import ObjectNotFoundError, StorageError
from streamhouse_spark.storage.base import Bytes, Names, ObjectInfo, Objects, Sink
from streamhouse_spark.storage.hdfs.client import CLIENTS, Entries, Entry, WebHdfs
from streamhouse_spark.storage.hdfs.settings import HdfsAddress
from streamhouse_spark.storage.remote.conditional_put_probe import TEMPORARY, is_object, prove_writable, require_clock
from streamhouse_spark.storage.remote.multipart_upload import PART_BYTES
from streamhouse_spark.storage.remote.remote_storage import READS_MAX, RemoteStorage
from streamhouse_spark.storage.remote.retry import RetryPolicy


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster."""

    address: HdfsAddress

    def blobs(self) -> WebHdfs:
        return CLIENTS.get(self.address)


@dataclass(slots=True)
class _TemporaryNames:
    """Unique temporary names in a folder."""

    folder: str
    world: World
    names: Names = field(default_factory=list)

    def fresh(self) -> str:
        self.names.append(f"{self.folder}/{TEMPORARY}{self.world.ids.new_uuid()}".removeprefix("/"))
        return self.names[-1]


def hdfs_storage(url: str, settings: Mapping[str, str], world: World | None = None) -> HdfsStorage:
    """Return the store at ``hdfs://host:port/path``, with the settings ``hdfs.*``. Raises `InvalidOptionError`."""
    address, path = HdfsAddress.parse(url, settings)
    return HdfsStorage(url, path, Cluster(address), world, RetryPolicy.parse(settings))


class HdfsStorage(RemoteStorage[WebHdfs]):
    """A folder of a cluster."""

    def put_if_absent(self, key: str, data: Bytes) -> None:
        """Store the object, unless one exists. **Commit point:** the rename at the NameNode."""
        body = bytes(data)
        with self._temporary(key) as temporary:
            self._rename(key, self._write(key, temporary, body, len(body)), resend_unclear=False)

    def put(self, key: str, data: Bytes) -> None:
        """Store or replace the object. **Commit point:** the rename at the NameNode."""
        body = bytes(data)
        with self._temporary(key) as temporary:

            def replace(hdfs: WebHdfs, name: str) -> None:
                written = temporary.fresh()
                hdfs.write(written, body)
                hdfs.rename(written, name, replace=True)

            self._send("puts", "write", key, replace, sent_bytes=len(body))

    @contextmanager
    def create(self, key: str) -> Iterator[Sink]:
        """Buffer the object on this host until the context ends: a partly sent file cannot be continued safely.

        **Commit point:** the rename at the NameNode.
        """
        with HeldFile() as held, self._temporary(key) as temporary:
            yield held
            written = self._write(key, temporary, held, held.size_bytes)
            entry = self._send("heads", "read", key, lambda hdfs, _: hdfs.entry(written))
            if entry.size_bytes != held.size_bytes:
                raise StorageError(
                    f"cannot write {self._url}/{key}: HDFS has {entry.size_bytes} of {held.size_bytes} bytes; try again"
                )
            try:
                self._rename(key, written, resend_unclear=True)
            except StorageError:
                if not self._is_stored(key, entry):
                    raise

    def list(self, prefix: str) -> Objects:
        return [info for info in self._walk(prefix) if is_object(info.key)]

    def list_temporary(self, prefix: str) -> Objects:
        """List the temporary files that crashed writers left behind."""
        return [info for info in self._walk(prefix) if not is_object(info.key)]

    def list_names(self, prefix: str) -> Names:
        return sorted(entry.name for entry in self._children(prefix) if not entry.name.startswith(TEMPORARY))

    def check_writable(self) -> None:
        """Test reads, put-if-absent, read-after-write, deletes and racing puts on probe objects, which are removed."""
        hdfs = self._bucket.blobs()
        prove_writable(self, self._world, hdfs.condition, is_trusted=hdfs.is_known)

    @contextmanager
    def _temporary(self, key: str) -> Iterator[_TemporaryNames]:
        """Provide temporary names next to the object. Remaining files are deleted, so that a rename in flight does
        nothing.
        """
        if ":" in key:
            raise StorageError(f"{key!r} holds a colon, which HDFS does not take: use another name")
        require_clock(self, self._world)
        names = _TemporaryNames((self._prefix + key).rpartition("/")[0], self._world)
        is_named = False
        try:
            yield names
            is_named = True
        finally:
            hdfs = self._bucket.blobs()
            for name in names.names[:-1] if is_named else names.names:
                with suppress(*hdfs.failures):  # orphan cleaning deletes it
                    hdfs.delete(name)

    def _write(self, key: str, temporary: _TemporaryNames, body: bytes | HeldFile, size_bytes: int) -> str:
        """Write a file, and return its name. Each attempt has its own name.

        An abandoned attempt may still start at a DataNode, and would overwrite a complete file with a partial one.
        """

        def write(hdfs: WebHdfs, _: str) -> str:
            name = temporary.fresh()
            hdfs.write(name, body)
            return name

        return self._send("puts", "write", key, write, sent_bytes=size_bytes)

    def _rename(self, key: str, written: str, *, resend_unclear: bool) -> None:
        def rename(hdfs: WebHdfs, name: str) -> None:
            hdfs.rename(written, name, replace=False)

        self._send("puts", "write", key, rename, resend_unclear=resend_unclear)

    def _is_stored(self, key: str, entry: Entry) -> bool:
        """Return whether the object is this very file, although the response to its rename failed."""
        try:
            return self._send("heads", "read", key, lambda hdfs, name: hdfs.entry(name)).file_id == entry.file_id
        except StorageError:
            return False

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        """List all files whose key starts with the prefix, the folders of one depth concurrently."""
        folders = [prefix[: prefix.rfind("/") + 1]]
        while folders:
            deeper: Names = []
            contents = parallel_map(self._children, folders, threads_max=READS_MAX)
            for folder, entries in zip(folders, contents, strict=True):
                for entry in entries:
                    key = f"{folder}{entry.name}"
                    if not key.startswith(prefix):
                        continue
                    if entry.is_folder:
                        deeper.append(f"{key}/")
                    else:
                        yield ObjectInfo(key, entry.size_bytes, entry.modified_ms)
            folders = deeper

    def _children(self, folder: str) -> Entries:
        """List the entries of a folder (which ends with a slash, or is the root); empty if it is absent."""
        children: Entries = []
        more = True
        while more:
            after = children[-1].name if children else None

            def ask(hdfs: WebHdfs, name: str, mark: str | None = after) -> tuple[Entries, bool]:
                return hdfs.children(name.rstrip("/"), mark)

            try:
                entries, more = self._send("lists", "list", folder, ask)
            except ObjectNotFoundError:
                return children
            children.extend(entries)
        return children


_CHUNK_BYTES: Final = 1 << 20


class HeldFile:
    """A sink that later is the body of a request, which may be sent several times.

    The object is buffered on this host: in memory, and above `PART_BYTES` in a file.
    """

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
