"""Iceberg's table metadata parsed once, and changed without a copy of every snapshot.

A round looks at the newest metadata about ten times, and nearly always finds the bytes that this process read, or
wrote, last. A round of a table with hundreds of snapshots would spend most of its time with parsing them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Self

from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.update import TableUpdate, update_table_metadata

from streamhouse_spark.core.fork_safety import new_lock

REMEMBERED = 8
"""Number of remembered documents: those of so many tables that are tiered side by side."""

_documents: OrderedDict[bytes, TableMetadata] = OrderedDict()
_lock = new_lock()


def parse_metadata(data: bytes) -> TableMetadata:
    """Return the metadata in these bytes; looked up by content, so never out of date. Never change it.

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
    """Remember that ``data`` is the JSON text of ``metadata``."""
    with _lock:
        _documents[data] = metadata
        while len(_documents) > REMEMBERED:
            _documents.popitem(last=False)


def apply_updates(metadata: TableMetadata, updates: tuple[TableUpdate, ...], location: str) -> TableMetadata:
    """Return the metadata after these updates; its snapshots are the same objects, which nobody changes."""
    shared = metadata.model_copy(
        update={"snapshots": _Shared(metadata.snapshots), "snapshot_log": _Shared(metadata.snapshot_log)}
    )
    changed = update_table_metadata(shared, updates, metadata_location=location)
    return changed.model_copy(update={"snapshots": list(changed.snapshots), "snapshot_log": list(changed.snapshot_log)})


class _Shared(list[Any]):
    """A list that pyiceberg's deep copy takes over uncopied."""

    def __add__(self, other: Iterable[Any]) -> Self:
        return type(self)([*self, *other])

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self
