# ruff: noqa: ARG001, ARG002, FBT001, FBT002 - the signatures are those of pyiceberg's `FileIO`
"""pyiceberg's `FileIO` over the warehouse's `Storage`, and data files of tables outside the warehouse."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType

import pyarrow as pa
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.reader import DoubleReader
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream, load_file_io
from pyiceberg.manifest import ManifestFile, read_manifest_list
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import EMPTY_DICT, Properties

from streamhouse_spark.errors import CorruptDataError, LakeMismatchError, ObjectNotFoundError, SnapshotExpiredError
from streamhouse_spark.lake.avro import whole_avro
from streamhouse_spark.lake.damaged_metadata import file_of
from streamhouse_spark.lake.files import FileAccess, RangeReader, StorageFiles
from streamhouse_spark.lake.iceberg_moved import Move, moved_avro
from streamhouse_spark.storage import Bytes, Sink, Storage

_DAMAGE = (ValueError, EOFError, LookupError, TypeError, ArithmeticError, AssertionError, SystemError, zlib.error)
"""Errors of pyiceberg's Avro decoder on bytes that are not the expected manifest."""
CATALOG_SETTINGS = "lake.iceberg.catalog."
"""Prefix of warehouse settings that are properties of a pyiceberg catalog to use instead of the files."""


def _read_double(self: DoubleReader, decoder: BinaryDecoder) -> float:
    """Read a double in the interpreter: the compiled decoder of pyiceberg 0.12 reads doubles with 32 bits
    (apache/iceberg-python#3808), so that files would not be found by a partition of doubles, and deletes would be
    written into another partition than that of their file.
    """
    value: float
    (value,) = struct.unpack("<d", decoder.read(8))
    return value


DoubleReader.read = _read_double  # type: ignore[method-assign]


def manifests_of(io: FileIO, snapshot: Snapshot) -> list[ManifestFile]:
    """Return the snapshot's manifests from its manifest list: pyiceberg's own way goes through a cache by path, which a
    commit must not depend on.
    """
    return list(read_manifest_list(io.new_input(snapshot.manifest_list)))


@contextmanager
def lake_metadata(location: str) -> Iterator[None]:
    """Wrap reads of manifests: pyiceberg's errors on damaged or vanished ones become errors of the package."""
    try:
        yield
    except FileNotFoundError as error:
        raise SnapshotExpiredError(
            f"lake table {location}: metadata of the snapshot is gone, it was expired while it was read; run the query "
            f"again. If it is gone then too, build the lake anew from the log, streamhouse retier ({error})"
        ) from error
    except _DAMAGE as error:
        file = file_of(error, _location, "a manifest")
        raise CorruptDataError(
            f"lake table {location}: {file} cannot be read ({type(error).__name__}: {error}); restore it, or build the "
            "lake anew from the log (streamhouse retier)"
        ) from error


def _location(value: object) -> str | None:
    return value.input_file.location if isinstance(value, AvroFile) else None


class StorageFileIO(FileIO):
    """Locations inside the warehouse go through its storage; any other is only read, by pyiceberg's own file access.

    With a ``move``, metadata that was written elsewhere is read as if it had been written here.
    """

    def __init__(self, storage: Storage, properties: Properties = EMPTY_DICT, move: Move | None = None) -> None:
        super().__init__(properties)
        self.files = StorageFiles(storage)
        self.move = move

    def new_input(self, location: str) -> InputFile:
        if not self.files.holds(location):
            return load_file_io(self.properties, location).new_input(location)
        return _StorageInput(location, self.files, self.move)

    def new_output(self, location: str) -> OutputFile:
        """Open a file for writing. Raises `LakeMismatchError` outside the warehouse."""
        return _StorageOutput(location, self.files)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file. Raises `LakeMismatchError` outside the warehouse."""
        where = location if isinstance(location, str) else location.location
        self.files.storage.delete(self.files.key_of(where))


class _StorageInput(InputFile):
    def __init__(self, location: str, files: StorageFiles, move: Move | None = None) -> None:
        super().__init__(location)
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
                data = whole_avro(self._files.storage.read(self._key), self.location)
                return io.BytesIO(data if self._move is None else moved_avro(data, self.location, self._move))
            return RangeReader(self._files.storage, self._key)
        except ObjectNotFoundError as error:
            raise FileNotFoundError(str(error)) from error


class _StorageOutput(OutputFile):
    def __init__(self, location: str, files: StorageFiles) -> None:
        super().__init__(location)
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
        # Names of manifests and manifest lists hold a fresh uuid: there is nothing to overwrite.
        return _BufferedOutput(self)

    def store(self, data: bytes) -> None:
        with self._files.storage.create(self._key) as sink:
            sink.write(data)
        self._size_bytes = len(data)


class _BufferedOutput(io.BytesIO):
    """Collects a metadata file and stores it when closed without an error."""

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


class CatalogFiles:
    """Data files outside the warehouse, through pyiceberg's file access; read only, unless another catalog keeps them
    there.
    """

    def __init__(self, file_io: FileIO, *, is_writable: bool) -> None:
        self._io = file_io
        self._is_writable = is_writable

    def open_input(self, location: str) -> pa.NativeFile:
        try:
            return pa.PythonFile(self._io.new_input(location).open(), mode="r")
        except FileNotFoundError as error:
            raise ObjectNotFoundError(f"lake file {location} does not exist: {error}") from error

    def create(self, location: str) -> AbstractContextManager[Sink]:
        """Create a file. Raises `LakeMismatchError` if no catalog outside the warehouse is named."""
        if not self._is_writable:
            raise LakeMismatchError(
                f"lake file {location} lies outside the warehouse, where nothing is written; name the catalog of the "
                "lake table with lake.iceberg.catalog.* settings, or let write.data.path of the table be inside"
            )
        return self._create(location)

    def is_named(self, name: str, location: str) -> bool:
        return name == location

    @contextmanager
    def _create(self, location: str) -> Iterator[Sink]:
        # A file that is cut short by an error stays behind: nothing names it, and orphan cleaning removes it.
        stream = self._io.new_output(location).create()
        try:
            yield _StreamSink(stream)
        finally:
            stream.close()


class _StreamSink:
    def __init__(self, stream: OutputStream) -> None:
        self._stream = stream

    def write(self, data: Bytes) -> int:
        return self._stream.write(bytes(data))


def outside_files(settings: Mapping[str, str], location: str) -> FileAccess:
    """Return the access to data files outside the warehouse, with the settings of the warehouse and of its lake
    catalog.
    """
    is_writable = any(name.startswith(CATALOG_SETTINGS) for name in settings)
    return CatalogFiles(load_file_io(catalog_properties(settings), location), is_writable=is_writable)


def catalog_properties(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of pyiceberg's catalog and file access among the warehouse's settings."""
    storage = {k: v for k, v in settings.items() if k.startswith(("s3.", "client."))}
    named = {k.removeprefix(CATALOG_SETTINGS): v for k, v in settings.items() if k.startswith(CATALOG_SETTINGS)}
    return {**storage, **named}
