"""Access to data files outside the warehouse, in the storage of the configured catalog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from streamhouse_spark.errors import LakeMismatchError, ObjectNotFoundError
from streamhouse_spark.lake.parquet.parquet_io import FileAccess
from streamhouse_spark.storage.base import Bytes, Sink

if TYPE_CHECKING:
    from pyiceberg.io import FileIO, OutputStream

CATALOG_SETTINGS = "lake.iceberg.catalog."
"""Prefix of warehouse settings that are properties of a pyiceberg catalog, used instead of the file catalog."""


class CatalogFiles:
    """Data files outside the warehouse, through pyiceberg's file access; read-only unless an external catalog keeps
    them there.
    """

    def __init__(self, file_io: FileIO, *, is_writable: bool) -> None:
        self._io = file_io
        self._is_writable = is_writable

    def open_input(self, location: str) -> pa.NativeFile:
        try:
            return pa.PythonFile(self._io.new_input(location).open(), mode="r")
        except FileNotFoundError as error:
            raise ObjectNotFoundError.of(f"lake file {location}") from error

    def create(self, location: str) -> AbstractContextManager[Sink]:
        """Create a file. Raises `LakeMismatchError` if no external catalog is configured."""
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
        # After an error a truncated file remains as an orphan, which orphan removal deletes.
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
    """Return the access to data files outside the warehouse, by the settings of the warehouse and its lake catalog."""
    from pyiceberg.io import load_file_io

    is_writable = any(name.startswith(CATALOG_SETTINGS) for name in settings)
    return CatalogFiles(load_file_io(catalog_properties(settings), location), is_writable=is_writable)


def catalog_properties(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the properties for pyiceberg's catalog and file access among the warehouse's settings."""
    storage = {k: v for k, v in settings.items() if k.startswith(("s3.", "gcs.", "adls.", "client."))}
    named = {k.removeprefix(CATALOG_SETTINGS): v for k, v in settings.items() if k.startswith(CATALOG_SETTINGS)}
    return {**storage, **named}
