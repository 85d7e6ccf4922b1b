"""`Table.inspect`: the system tables under Python names."""

from __future__ import annotations

import pyarrow as pa

from streamhouse_spark.core.argument_validation import checks_arguments
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.read.system_tables import SystemTables


@checks_arguments(unless=("read",))
class Inspect:
    """Reads the newest state with each method and returns one system table, with the columns of `SYSTEM_TABLES`, or of
    `partitions_schema`.
    """

    def __init__(self, table: TableHandle) -> None:
        self._table = table

    def read(self, name: str) -> pa.Table:
        return SystemTables(self._table.storage, self._table.refresh()).read(name)

    def buckets(self) -> pa.Table:
        """Log start and end, lake offset and lag of each bucket."""
        return self.read("buckets")

    def segments(self) -> pa.Table:
        """List the live segments of the hot log; ``file`` is null for rows that lie in a commit record."""
        return self.read("segments")

    def commits(self) -> pa.Table:
        """List the commit records that are still kept, oldest first."""
        return self.read("commits")

    def history(self, limit: int | None = None) -> pa.Table:
        """List the commits that are still kept, oldest first: what each did, by whom; of the newest ``limit`` at most.

        Raises `InvalidOptionError` for a limit that is no number, or below 1.
        """
        if limit is not None and limit < 1:
            raise InvalidOptionError(f"limit must be at least 1, got {limit}")
        return SystemTables(self._table.storage, self._table.refresh(), limit).read("history")

    def partitions(self) -> pa.Table:
        """Count the rows of each partition in log and lake; the first columns are the table's partition columns.

        See `partition_stats.partition_table`. Raises `InvalidNameError` for a table without any.
        """
        from streamhouse_spark.table.system_views import PARTITIONS, open_view

        return open_view(self._table, PARTITIONS).to_arrow()

    def lineage(self) -> pa.Table:
        """List the versions of its sources that each refresh of a materialised table brought it to, oldest first."""
        return self.read("lineage")

    def refs(self) -> pa.Table:
        """List the names of versions: the newest as ``main``, then the tags."""
        return self.read("refs")

    def schemas(self) -> pa.Table:
        return self.read("schemas")

    def options(self) -> pa.Table:
        """List the table's properties."""
        return self.read("options")

    def tiering(self) -> pa.Table:
        """List the recorded lake snapshots and the offsets they hold."""
        return self.read("tiering")
