"""`Table.inspect`: system tables as Python methods."""

from __future__ import annotations

import pyarrow as pa

from streamhouse_spark.core.argument_validation import validates_arguments
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.read.system_tables import SystemTables


@validates_arguments(unless=("read",))
class Inspect:
    """System tables of one table. Each method reads the latest state and returns one system table.

    The columns are those of `SYSTEM_TABLES`, or of `partitions_schema`.
    """

    def __init__(self, table: TableHandle) -> None:
        self._table = table

    def read(self, name: str) -> pa.Table:
        return SystemTables(self._table.storage, self._table.refresh()).read(name)

    def buckets(self) -> pa.Table:
        """Return log start and end, lake offset and lag of each bucket."""
        return self.read("buckets")

    def segments(self) -> pa.Table:
        """Return the live segments of the hot log; ``file`` is null for inline rows."""
        return self.read("segments")

    def commits(self) -> pa.Table:
        """Return the retained commit records, oldest first."""
        return self.read("commits")

    def history(self, limit: int | None = None) -> pa.Table:
        """Return the retained commits with operation and author, oldest first, at most the latest ``limit``.

        Raises `InvalidOptionError` for an invalid limit.
        """
        if limit is not None and limit < 1:
            raise InvalidOptionError(f"limit must be at least 1, got {limit}")
        return SystemTables(self._table.storage, self._table.refresh(), limit).read("history")

    def partitions(self) -> pa.Table:
        """Return the row counts of each partition in log and lake; the first columns are the partition columns.

        See `partitions_table.partition_table`. Raises `InvalidNameError` for an unpartitioned table.
        """
        from streamhouse_spark.table.system_views import PARTITIONS, open_view

        return open_view(self._table, PARTITIONS).to_arrow()

    def lineage(self) -> pa.Table:
        """Return the source versions of each refresh of a materialised table, oldest first."""
        return self.read("lineage")

    def refs(self) -> pa.Table:
        """Return the named versions: the latest as ``main``, then tags and branches."""
        return self.read("refs")

    def schemas(self) -> pa.Table:
        return self.read("schemas")

    def options(self) -> pa.Table:
        """Return the table's properties."""
        return self.read("options")

    def tiering(self) -> pa.Table:
        """Return the recorded lake snapshots and the offsets that they hold."""
        return self.read("tiering")
