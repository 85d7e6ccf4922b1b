"""pypaimon's `FileIO` over the warehouse's `Storage`, and the translation of its decoders' errors.

Paimon's own classes read metadata through it. The files that they write stay in memory until the commit stores them
durably, before it references them.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow.fs as pafs
from pypaimon.common.file_io import FileIO

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CorruptDataError, ObjectNotFoundError
from streamhouse_spark.lake.avro import require_whole_avro
from streamhouse_spark.lake.metadata_cache import prefetch_metadata
from streamhouse_spark.lake.metadata_errors import translate_damage_errors, translate_missing_file_errors
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles

MANIFEST_FOLDER = "manifest"


class StorageFileIO(FileIO):  # type: ignore[misc]
    """Files of lake tables in the warehouse, by location."""

    def __init__(self, files: StorageFiles) -> None:
        self.files = files
        self.written: dict[str, bytes] = {}
        """Location → bytes written there."""
        self.sizes: dict[str, int] = {}
        """Location → size of a metadata file, from the file that references it."""
        self._ahead: dict[str, bytes] = {}

    def expect(self, files: Iterable[tuple[str, int]]) -> None:
        """Prefetch immutable metadata files, given as (location, bytes). Does nothing on a local store."""
        self._ahead |= prefetch_metadata(self.files.storage, ((self.files.key_of(at), size) for at, size in files))

    def new_input_stream(self, path: str) -> io.BytesIO:
        if path in self.written:
            return _Input(self.written[path], path)
        key = self.files.key_of(path)
        try:
            data = self._ahead[key] if key in self._ahead else self.files.storage.read(key)
        except ObjectNotFoundError as error:
            raise FileNotFoundError(str(error)) from error
        if len(data) != self.sizes.get(path, len(data)):
            raise CorruptDataError(
                f"lake file {path} has {len(data)} bytes, expected {self.sizes[path]}; restore it, or rebuild the "
                "lake from the log (streamhouse retier)"
            )
        return _Input(require_whole_avro(data, path) if path.split("/")[-2:-1] == [MANIFEST_FOLDER] else data, path)

    def new_output_stream(self, path: str) -> io.BytesIO:
        return _BufferedOutput(self.written, path)

    def exists(self, path: str) -> bool:
        try:
            self.files.storage.size_bytes(self.files.key_of(path))
        except ObjectNotFoundError:
            return bool(self.files.storage.list_names(f"{self.files.key_of(path)}/"))
        return True

    def get_file_status(self, path: str) -> Any:
        size_bytes = self.files.storage.size_bytes(self.files.key_of(path))
        return _Status(path, pafs.FileType.File, size_bytes)

    def list_status(self, path: str) -> list[Any]:
        prefix = path.rstrip("/")
        names = self.files.storage.list_names(f"{self.files.key_of(prefix)}/")
        return [_Status(f"{prefix}/{name}", pafs.FileType.File) for name in names]

    def mkdirs(self, path: str) -> bool:  # noqa: ARG002 - pypaimon's signature; keys need no folders
        return True

    def delete(self, path: str, recursive: bool = False) -> bool:  # noqa: FBT001, FBT002 - pypaimon's signature
        raise NotImplementedError(f"cannot delete {path}: reads and commits delete nothing")

    def rename(self, src: str, dst: str) -> bool:
        raise NotImplementedError(
            f"cannot rename {src} to {dst}: renames are not supported, because commits use put-if-absent"
        )


@dataclass(frozen=True, slots=True)
class _Status:
    """The part of Arrow's ``FileInfo`` that pypaimon uses."""

    path: str
    type: Any
    size: int | None = None

    @property
    def base_name(self) -> str:
        return self.path.rpartition("/")[2]


class _Input(io.BytesIO):
    def __init__(self, data: bytes, location: str) -> None:
        super().__init__(data)
        self.location = location


def _location(value: object) -> str | None:
    return value.location if isinstance(value, _Input) else None


class _BufferedOutput(io.BytesIO):
    def __init__(self, written: dict[str, bytes], path: str) -> None:
        super().__init__()
        self._written = written
        self._path = path

    def close(self) -> None:
        if not self.closed:
            self._written[self._path] = self.getvalue()
        super().close()


@contextmanager
def translate_metadata_errors(location: str) -> Iterator[None]:
    """Run decoding of metadata, and translate pypaimon's errors on damaged or missing files."""
    # A decoder may raise any error on damaged bytes.
    with (
        translate_missing_file_errors(location),
        translate_damage_errors(location, (Exception,), _location, "its metadata"),
    ):
        yield
