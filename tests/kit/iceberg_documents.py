"""Rows of an Iceberg document, as a reader that knows nothing of us finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamhouse_spark.storage.base import Storage

if TYPE_CHECKING:
    from streamhouse_spark.serve.iceberg.served_tables import ServedMetadata


def rows_of(storage: Storage, document: ServedMetadata) -> list[dict[str, Any]]:
    """Read the document with pyiceberg."""
    from pyiceberg.table import Table as IcebergTable
    from pyiceberg.table.metadata import TableMetadataUtil

    from streamhouse_spark.lake.iceberg.catalog import FileCatalog
    from streamhouse_spark.lake.iceberg.file_io import StorageFileIO

    metadata = TableMetadataUtil.parse_raw(document.text)
    io = StorageFileIO(storage, {})
    table = IcebergTable(("served", "table"), metadata, document.location, io, FileCatalog(storage))
    return table.scan().to_arrow().to_pylist()
