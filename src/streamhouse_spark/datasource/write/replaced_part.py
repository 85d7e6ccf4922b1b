"""The part of a table that a Spark write replaces. Tasks collect the partitions of new rows, and the driver commits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from streamhouse_spark.core.arrow_rows import distinct_rows
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.dml.validation import (
    limit_to_partitions,
    require_deletable,
    require_matching_rows,
    require_partitioned,
    require_partitioned_by,
)
from streamhouse_spark.expressions.filters import Filter, parse_filter
from streamhouse_spark.expressions.partition_filter import (
    OverwriteFilter,
    OverwriteFilterFactory,
    PartitionOverwriteFilter,
    partitions_of,
)
from streamhouse_spark.expressions.where import parse_where
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.log.state import TableState
from streamhouse_spark.schema.partitioning import PartitionField
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table_handle import TableHandle


@dataclass(frozen=True, slots=True)
class ReplacedPart:
    """The rows that match a condition, or the partitions of the new rows."""

    condition: Filter | None = None
    """Condition for the rows to replace. None to replace the partitions of the new rows."""
    read: ReadVersion | None = None
    """The version of this table from which the new rows were computed; None if they are from other sources."""
    fields: tuple[PartitionField, ...] = ()
    """The table's partition fields; set by `bind`."""

    def bind(self, state: TableState) -> ReplacedPart:
        """Return the part for tasks, with a state's partition fields. Raises the errors of `require_replaceable`."""
        self.require_replaceable(state)
        return replace(self, fields=state.parsed.partition_fields)

    def require_replaceable(self, state: TableState) -> None:
        """Raise `InvalidOptionError` or `SchemaMismatchError` if this part of the table cannot be replaced."""
        if not state.primary_key:
            require_deletable(state)
        if self.condition is None:
            require_partitioned(state)
        else:
            self._condition_filter(self.condition, state)(state.schema)

    def partitions_of_rows(self, rows: pa.Table, schema: TableSchema, table: str) -> pa.Table:
        """Return the distinct partitions of a task's new rows. With a condition, check that the rows match it, and
        return no partitions.

        Raises the errors of `require_matching_rows`.
        """
        if self.condition is None:
            return partitions_of(rows, self.fields)
        require_matching_rows(self.condition.bind(schema.arrow), rows.select(list(schema.names)), table)
        return rows.schema.empty_table().select([])

    def choose(self, state: TableState, partitions_by_task: Iterable[pa.Table | None]) -> OverwriteFilterFactory:
        """Choose the rows to replace: those that match the condition, or those in partitions that the tasks collected.
        Raises `CommitConflictError` if the table's partitioning changed since `bind`.
        """
        if self.condition is not None:
            return self._condition_filter(self.condition, state)
        new_partitions = [partitions for partitions in partitions_by_task if partitions is not None]
        require_partitioned_by(state, self.fields)
        none = partitions_of(state.schema.arrow.empty_table(), self.fields)
        choice = PartitionOverwriteFilter(distinct_rows(pa.concat_tables([none, *new_partitions])), self.fields)
        return lambda _: choice

    @staticmethod
    def _condition_filter(condition: Filter, state: TableState) -> OverwriteFilterFactory:
        def choose(schema: TableSchema) -> OverwriteFilter:
            return condition.bind(schema.arrow)

        return limit_to_partitions(choose, state) if state.primary_key else choose


def parse_replace_where(table: TableHandle, text: str) -> ReplacedPart:
    """Parse the option ``replaceWhere``, a condition in SQL. Raises the errors of `parse_where`."""
    condition = parse_filter(parse_where(text, table.state.schema.arrow))
    assert condition is not None
    return ReplacedPart(condition)
