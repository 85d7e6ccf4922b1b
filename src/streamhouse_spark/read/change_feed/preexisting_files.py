"""Lake files that a table had before a range of commits: no row in them was added in it."""

from __future__ import annotations

from streamhouse_spark.core.fork_safety import cached_property
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.log.commits.delete_vectors import FileRows
from streamhouse_spark.log.commits.history import state_at
from streamhouse_spark.read.change_feed.dropped_partition_rows import EXPIRED_ERRORS


class PreexistingFiles:
    """The files of the lake snapshot that a table had before the commit ``first``, which is looked up where it is
    needed.
    """

    def __init__(self, table: TableHandle, first: int) -> None:
        self._table, self._first = table, first

    def contain(self, rows: FileRows) -> bool:
        """Tell whether all these rows are in such files. False where that snapshot is no longer kept."""
        return rows.keys() <= self._names if rows else True

    @cached_property
    def _names(self) -> frozenset[str]:
        table = self._table
        try:
            before = state_at(table.log, table.storage, self._first - 1)
            if before.lake is None:
                return frozenset()
            files = table.open_lake().with_state(before).named_files(before.lake.snapshot_id)
        except EXPIRED_ERRORS:
            return frozenset()
        return frozenset(map(StorageFiles(table.storage).name_of, files))
