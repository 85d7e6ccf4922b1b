"""A pyiceberg `FileIO` over the warehouse's `Storage`, with the package's errors, also for a moved table.

Only this module defines which values of metadata, manifest lists and manifests are locations. Readers of a moved
warehouse read through it, and relocation stores its results.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Final

from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.reader import DoubleReader
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    ResolveError,
    TableAlreadyExistsError,
)
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream, load_file_io
from pyiceberg.manifest import ManifestFile, read_manifest_list
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import EMPTY_DICT, Properties

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import canonical_root, rebase_uri
from streamhouse_spark.errors import CommitStateUnknownError, ObjectNotFoundError, StorageError, StreamhouseError
from streamhouse_spark.lake.avro import encode_avro, read_avro, require_whole_avro
from streamhouse_spark.lake.iceberg.schema import PATH_ID
from streamhouse_spark.lake.metadata_cache import prefetch_metadata
from streamhouse_spark.lake.metadata_errors import translate_damage_errors, translate_missing_file_errors
from streamhouse_spark.lake.parquet.parquet_io import RangeReader, StorageFiles
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import SupportsBatchReads, map_with_store_concurrency

_RESPONSES = (CommitFailedException, NamespaceAlreadyExistsError, NoSuchTableError, TableAlreadyExistsError)
"""Responses of a catalog about the state that it found, which callers handle."""

_PATH_PROPERTIES: Final = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
_DAMAGE = (
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    ArithmeticError,
    AssertionError,
    SystemError,
    zlib.error,
    struct.error,
    ResolveError,
)
"""Errors of pyiceberg's Avro decoder for bytes that are not the expected manifest."""


@contextmanager
def translate_catalog_errors(action: str) -> Iterator[None]:
    """Run catalog calls that change nothing or are idempotent.

    Raises `StorageError` for an error that is neither a response of the catalog nor one of this package. ``action`` is
    a clause such as "table t was loaded".
    """
    try:
        yield
    except (*_RESPONSES, StreamhouseError):
        raise
    except Exception as error:
        raise StorageError(f"the Iceberg catalog failed while {action} ({_first_line(error)}); retry later") from error


@contextmanager
def translate_commit_errors(action: str) -> Iterator[None]:
    """Run commits. Raises `CommitStateUnknownError` for an error that is not a response of the catalog."""
    try:
        yield
    except (*_RESPONSES, StreamhouseError):
        raise
    except CommitStateUnknownException as error:
        raise CommitStateUnknownError(f"{action}: {_first_line(error)}; the outcome is unknown, retry") from error
    except Exception as error:
        raise CommitStateUnknownError(
            f"{action}: the Iceberg catalog failed ({_first_line(error)}); the outcome is unknown, retry"
        ) from error


def _first_line(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"


@dataclass(frozen=True, slots=True)
class PathRebase:
    """A move from the recorded root to the opened one."""

    recorded_root: str
    opened_root: str

    @classmethod
    def to(cls, recorded_root: str, url: str) -> PathRebase:
        return cls(recorded_root, canonical_root(url))

    def of(self, location: str) -> str:
        return rebase_uri(location, self.recorded_root, self.opened_root)

    def inverse(self) -> PathRebase:
        return PathRebase(self.opened_root, self.recorded_root)


def rewrite_metadata_paths(metadata: TableMetadata, move: PathRebase) -> TableMetadata:
    """Return the table's metadata with current locations. Manifest lists and manifests still contain old locations."""
    properties = dict(metadata.properties)
    properties.update({name: move.of(properties[name]) for name in _PATH_PROPERTIES if name in properties})
    snapshots = [s.model_copy(update={"manifest_list": move.of(s.manifest_list)}) for s in metadata.snapshots]
    log = [e.model_copy(update={"metadata_file": move.of(e.metadata_file)}) for e in metadata.metadata_log]
    statistics = [s.model_copy(update={"statistics_path": move.of(s.statistics_path)}) for s in metadata.statistics]
    parts = [
        s.model_copy(update={"statistics_path": move.of(s.statistics_path)}) for s in metadata.partition_statistics
    ]
    return metadata.model_copy(
        update={
            "location": move.of(metadata.location),
            "properties": properties,
            "snapshots": snapshots,
            "metadata_log": log,
            "statistics": statistics,
            "partition_statistics": parts,
        }
    )


def rewrite_avro_paths(data: bytes, location: str, move: PathRebase) -> bytes:
    """Return a manifest list or manifest with the current locations of its files. Raises `CorruptDataError`."""
    file = read_avro(data, location)
    records = [rewrite_record_paths(record, move) for record in file.records]
    return encode_avro(replace(file, records=records))


def rewrite_record_paths(record: Mapping[str, Any], move: PathRebase) -> dict[str, Any]:
    """Return a record of a manifest list, which has a manifest path, or of a manifest, which has a file path."""
    if "manifest_path" in record:
        return {**record, "manifest_path": move.of(record["manifest_path"])}
    file = record["data_file"]
    changed = {**file, "file_path": move.of(file["file_path"])}
    if file.get("content"):  # a delete file contains the path of its data file
        changed.update({name: _drop_path_bounds(file.get(name), move) for name in ("lower_bounds", "upper_bounds")})
        if "referenced_data_file" in file:
            branch, named = file["referenced_data_file"]
            changed["referenced_data_file"] = (branch, named if named is None else move.of(named))
    return {**record, "data_file": {name: changed.get(name, value) for name, value in file.items()}}


def _drop_path_bounds(bounds: Any, move: PathRebase) -> Any:
    """Return the bounds without those of truncated paths, which do not bound the new paths."""
    if bounds is None or bounds[1] is None:
        return bounds
    branch, entries = bounds
    moved = []
    for entry in entries:
        if entry["key"] != PATH_ID:
            moved.append(entry)
            continue
        path = entry["value"].decode("utf-8", "surrogateescape")
        if move.of(path) != path:
            moved.append({**entry, "value": move.of(path).encode("utf-8", "surrogateescape")})
        elif not move.recorded_root.startswith(path[:-1] or path):
            moved.append(entry)
    return branch, moved


# ruff: noqa: ARG001, ARG002, FBT001, FBT002 - the signatures are those of pyiceberg's `FileIO`


def _read_double(self: DoubleReader, decoder: BinaryDecoder) -> float:
    """Read a double in Python. The compiled decoder of pyiceberg 0.12 reads doubles with 32 bits.

    With that decoder (apache/iceberg-python#3808), files would not be found by a partition of doubles, and deletes
    would be written to a partition other than that of their file.
    """
    value: float
    (value,) = struct.unpack("<d", decoder.read(8))
    return value


DoubleReader.read = _read_double  # type: ignore[method-assign]


def prefetch_files(io: FileIO, files: Iterable[tuple[str, int]]) -> None:
    """Prefetch metadata files, by location and size, that will be read."""
    if isinstance(io, StorageFileIO):
        io.expect(files)


def read_snapshot_manifests(io: FileIO, snapshot: Snapshot) -> list[ManifestFile]:
    """Return the snapshot's manifests from its manifest list.

    pyiceberg's own method uses a cache by path, which a commit must not depend on. Raises `CorruptDataError`, and
    `FileNotFoundError` for an expired snapshot.
    """
    with _translate_damage_errors(snapshot.manifest_list):
        return list(read_manifest_list(io.new_input(snapshot.manifest_list)))


@contextmanager
def translate_metadata_errors(location: str) -> Iterator[None]:
    """Run reads of manifests, and translate pyiceberg's errors on damaged or missing files."""
    with translate_missing_file_errors(location), _translate_damage_errors(location):
        yield


def _translate_damage_errors(location: str) -> AbstractContextManager[None]:
    return translate_damage_errors(location, _DAMAGE, _location, "a manifest")


def _location(value: object) -> str | None:
    return value.input_file.location if isinstance(value, AvroFile) else None


class StorageFileIO(FileIO):
    """File access through the warehouse's storage. Files outside are read-only, through pyiceberg's own file access.

    With a ``move``, metadata with the recorded locations is read with the opened locations.
    """

    def __init__(self, storage: Storage, properties: Properties = EMPTY_DICT, move: PathRebase | None = None) -> None:
        super().__init__(properties)
        self.files = StorageFiles(storage)
        self.move = move
        self._ahead: dict[str, bytes] = {}

    def expect(self, files: Iterable[tuple[str, int]]) -> None:
        """Prefetch immutable metadata files, given as (location, bytes). Does nothing on a local store."""
        inside = ((self.files.key_of(at), size_bytes) for at, size_bytes in files if self.files.holds(at))
        self._ahead |= prefetch_metadata(self.files.storage, inside)

    def fetch(self, location: str) -> None:
        """Prefetch a metadata file that is never rewritten, if the store is remote. Ignores a missing file."""
        if self.files.holds(location) and isinstance(self.files.storage, SupportsBatchReads):
            with suppress(ObjectNotFoundError):
                self._ahead[self.files.key_of(location)] = self.files.storage.read(self.files.key_of(location))

    def new_input(self, location: str) -> InputFile:
        if not self.files.holds(location):
            return load_file_io(self.properties, location).new_input(location)
        return _StorageInput(location, self.files, self.move, self._ahead.get(self.files.key_of(location)))

    def new_output(self, location: str) -> OutputFile:
        """Open a file for writing. Raises `LakeMismatchError` outside the warehouse."""
        return _StorageOutput(location, self.files)

    def open_collected(self, written: dict[str, bytes], location: str) -> OutputFile:
        """Open a file whose bytes are added to ``written``, for `store_all`. Raises the errors of `new_output`."""
        return _StorageOutput(location, self.files, written)

    def store_all(self, written: Mapping[str, bytes]) -> None:
        """Store files by location, concurrently on a remote store. They are durable on return."""

        def store(file: tuple[str, bytes]) -> None:
            _StorageOutput(file[0], self.files).store(file[1])

        for _ in map_with_store_concurrency(self.files.storage, store, list(written.items())):
            pass

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file. Raises `LakeMismatchError` outside the warehouse."""
        where = location if isinstance(location, str) else location.location
        self.files.storage.delete(self.files.key_of(where))


class _StorageInput(InputFile):
    def __init__(
        self, location: str, files: StorageFiles, move: PathRebase | None = None, data: bytes | None = None
    ) -> None:
        """``data`` is the content, if it was already read."""
        super().__init__(location)
        self._data = data
        self._files = files
        self._key = files.key_of(location)
        self._move = move

    def __len__(self) -> int:
        return self._files.storage.size_bytes(self._key)

    def exists(self) -> bool:
        try:
            self._files.storage.size_bytes(self._key)
        except ObjectNotFoundError:
            return False
        return True

    def open(self, seekable: bool = True) -> InputStream:
        try:
            if self._key.endswith(".avro"):
                read = self._files.storage.read(self._key) if self._data is None else self._data
                data = require_whole_avro(read, self.location)
                return io.BytesIO(data if self._move is None else rewrite_avro_paths(data, self.location, self._move))
            return RangeReader(self._files.storage, self._key)
        except ObjectNotFoundError as error:
            raise FileNotFoundError(str(error)) from error


class _StorageOutput(OutputFile):
    def __init__(self, location: str, files: StorageFiles, written: dict[str, bytes] | None = None) -> None:
        """With ``written``, collects the bytes there by location, and stores nothing."""
        super().__init__(location)
        self._written = written
        self._files = files
        self._key = files.key_of(location)
        self._size_bytes: int | None = None

    def __len__(self) -> int:
        return self._files.storage.size_bytes(self._key) if self._size_bytes is None else self._size_bytes

    def exists(self) -> bool:
        return self.to_input_file().exists()

    def to_input_file(self) -> InputFile:
        return _StorageInput(self.location, self._files)

    def create(self, overwrite: bool = False) -> OutputStream:
        # Names of manifests and manifest lists contain a new uuid, so there is nothing to overwrite.
        return _BufferedOutput(self)

    def store(self, data: bytes) -> None:
        self._size_bytes = len(data)
        if self._written is not None:
            self._written[self.location] = data
            return
        with self._files.storage.create(self._key) as sink:
            sink.write(data)


class _BufferedOutput(io.BytesIO):
    """Buffers a metadata file, and stores it when it is closed without an error."""

    def __init__(self, output: _StorageOutput) -> None:
        super().__init__()
        self._output = output

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc_type is None:
            self.close()
        else:
            super().close()

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._output.store(data)
