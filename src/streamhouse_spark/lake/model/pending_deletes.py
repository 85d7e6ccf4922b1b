"""Deleted rows of which a round is told beside those at offsets, and where they lay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass, replace
from streamhouse_spark.core.offset_ranges import OffsetRuns

if TYPE_CHECKING:
    from streamhouse_spark.log.commits.delete_vectors import Deletion


@dataclass(frozen=True, slots=True)
class RewrittenRows:
    """Deleted rows that no file with offsets has any more."""

    rows: Mapping[int, OffsetRuns]
    """Bucket → offsets."""
    foreign: str | None
    """A file without offsets that may have some."""


class LogRowReader(Protocol):
    """The log, as a lake sees it that looks for deleted rows."""

    def read(self, rows: Mapping[int, OffsetRuns]) -> tuple[pa.Table, Mapping[int, OffsetRuns]]:
        """Return those of the rows that the log still has, in the table's columns, and the offsets of the rest.

        Rows of dropped partitions are neither, as far as they are known: no file of the lake has them.
        """


@dataclass(frozen=True, slots=True)
class PendingDeletes:
    file_deletes: tuple[Deletion, ...] = ()
    """Deletions of rows of files without offsets."""
    recorded: int | None = None
    """The recorded lake snapshot: it has the rows at offsets that files with offsets no longer have."""
    told: int = 0
    """The newest record whose deleted rows the lake lacked as the round was planned."""
    log: LogRowReader | None = None
    """The log has the rows that the recorded snapshot does not have yet, whatever became of their files since."""

    def read_log_rows(self, moved: RewrittenRows, schema: pa.Schema) -> tuple[pa.Table, RewrittenRows]:
        """Return the moved rows that the log still has, and the rest."""
        if self.log is None or not moved.rows:
            return schema.empty_table(), moved
        deleted, left = self.log.read(moved.rows)
        return deleted, replace(moved, rows=left)


NO_PENDING_DELETES: Final = PendingDeletes()
