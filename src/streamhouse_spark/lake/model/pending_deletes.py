"""Deletions that a round applies by file position or equality, in addition to those by offset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.core.offset_ranges import OffsetSet

if TYPE_CHECKING:
    from streamhouse_spark.log.commits.delete_vectors import Deletion


@dataclass(frozen=True, slots=True)
class RewrittenRows:
    """Deleted rows that are in no file with offsets anymore."""

    rows: Mapping[int, OffsetSet]
    """Bucket → offsets."""
    foreign: str | None
    """A file without offsets that may hold some of them."""


class LogRowReader(Protocol):
    """The log as a source of deleted rows."""

    def read(self, rows: Mapping[int, OffsetSet]) -> tuple[pa.Table, Mapping[int, OffsetSet]]:
        """Return the rows that the log still has, in the table's columns, and the offsets of the rest.

        Rows of dropped partitions are in neither, as far as known: no file of the lake holds them.
        """


@dataclass(frozen=True, slots=True)
class PendingDeletes:
    file_deletes: tuple[Deletion, ...] = ()
    """Deletions of rows in files without offsets."""
    recorded: int | None = None
    """The recorded lake snapshot, which holds rows whose files other engines have replaced since."""
    applied_through: int = 0
    """The latest record whose deletions the lake had applied when the round was planned."""
    log: LogRowReader | None = None
    """The log, for rows that the recorded snapshot does not have yet."""

    def read_log_rows(self, moved: RewrittenRows, schema: pa.Schema) -> tuple[pa.Table, RewrittenRows]:
        """Return the moved rows that the log still has, and the rest."""
        if self.log is None or not moved.rows:
            return schema.empty_table(), moved
        deleted, left = self.log.read(moved.rows)
        return deleted, replace(moved, rows=left)


NO_PENDING_DELETES: Final = PendingDeletes()
