"""Cache of parsed Iceberg table metadata, updated without copying every snapshot.

A round reads the latest metadata about ten times, and nearly always finds the bytes that this process last read or
wrote. Parsing the metadata of a table with hundreds of snapshots would dominate a round.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Self

from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.update import TableUpdate, update_table_metadata

from streamhouse_spark.core.fork_safety import new_lock

REMEMBERED = 8
"""Number of cached documents, for tables that are tiered concurrently."""

_documents: OrderedDict[bytes, TableMetadata] = OrderedDict()
_lock = new_lock()


def parse_metadata(data: bytes) -> TableMetadata:
    """Return the metadata in these bytes. The cache is keyed by content, so never stale. Callers must not change the
    result.

    Raises pyiceberg's errors.
    """
    with _lock:
        parsed = _documents.get(data)
        if parsed is not None:
            _documents.move_to_end(data)
            return parsed
    metadata = TableMetadataUtil.parse_raw(data.decode())
    remember(data, metadata)
    return metadata


def remember(data: bytes, metadata: TableMetadata) -> None:
    """Cache ``metadata`` for its JSON text ``data``."""
    with _lock:
        _documents[data] = metadata
        while len(_documents) > REMEMBERED:
            _documents.popitem(last=False)


def apply_updates(metadata: TableMetadata, updates: tuple[TableUpdate, ...], location: str) -> TableMetadata:
    """Return the metadata after these updates. It shares its immutable snapshots with the original."""
    shared = metadata.model_copy(
        update={"snapshots": _Shared(metadata.snapshots), "snapshot_log": _Shared(metadata.snapshot_log)}
    )
    changed = update_table_metadata(shared, updates, metadata_location=location)
    return changed.model_copy(update={"snapshots": list(changed.snapshots), "snapshot_log": list(changed.snapshot_log)})


class _Shared(list[Any]):
    """A list that pyiceberg's deep copy shares instead of copying."""

    def __add__(self, other: Iterable[Any]) -> Self:
        return type(self)([*self, *other])

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self
