"""Row changes that Spark passes to the tasks of an UPDATE, DELETE or MERGE, and the rows that the statement read.

Each inserted, updated or deleted row has the operation, the identity of the row that was read (null for an insert), and
the table's columns (null for a delete). The read set is derived from the filters that Spark pushed into the statement's
scan.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.datasource.scan.pushed_filters import column_types, parse_filters
from streamhouse_spark.expressions.predicates import Node, family_of, may_match
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.log.segments.statistics import collect_stats, stats_bounds
from streamhouse_spark.log.state import TableState
from streamhouse_spark.schema.table_schema import INTERNAL, TableSchema, require_distinct_names

KIND: Final = f"{INTERNAL}kind"
"""Operation column, set by Java: ``insert``, ``update`` or ``delete``."""
_SLICES: Final = 64
"""Number of slices of the rows, each with separate bounds."""


def read_name(column: str) -> str:
    """Return the name of the identity column that contains the value of ``column`` that was read."""
    return f"{INTERNAL}read_{column}"


def make_row_delta_schema(schema: TableSchema, identity: Iterable[pa.Field]) -> pa.Schema:
    """Return the schema of the row changes.

    Raises `SchemaMismatchError` for an older table with a column whose name is now reserved.
    """
    read = [pa.field(read_name(field.name), field.type) for field in identity]
    require_distinct_names(
        schema.names, [KIND, *(f.name for f in read)], "the row changes of an UPDATE, DELETE or MERGE"
    )
    columns = [pa.field(column.name, column.type) for column in schema.columns]
    return pa.schema([pa.field(KIND, pa.string(), nullable=False), *read, *columns])


@dataclass(frozen=True, slots=True)
class ReadSet:
    """The rows of its target table that a statement may have read."""

    reads_once: bool
    """Whether a single scan reads the table, without a subquery or source that reads it again."""
    schema_id: int
    """Id of the schema to which the filters refer."""
    filters: tuple[Mapping[str, Any], ...]
    """Spark's filters, which every row that the statement read matches; empty if it read all rows."""

    @classmethod
    def from_text(cls, text: str) -> ReadSet:
        fields = json.loads(text)
        return cls(fields["reads_once"], fields["schema_id"], tuple(fields["filters"]))

    def restrict(self, base: ReadVersion) -> ReadVersion:
        """Return the read version of the statement, restricted to these rows."""
        return replace(base, is_strict=not self.reads_once, scope=self.may_have_read if self.filters else None)

    def may_have_read(self, state: TableState, rows: pa.RecordBatch) -> bool:
        """Return whether a row may match the filters. True if the schema changed, because names may differ."""
        if state.schema_id != self.schema_id:
            return True
        node = parse_filters(self.filters, column_types(state.schema))
        step = max(1, -(-rows.num_rows // _SLICES))
        return any(_may_match(node, rows.slice(start, step)) for start in range(0, rows.num_rows, step))


def _may_match(node: Node, rows: pa.RecordBatch) -> bool:
    types = {field.name: field.type for field in rows.schema if field.name in node.columns()}
    names = [name for name, type_ in types.items() if family_of(type_) not in (None, "binary")]
    stats = collect_stats(rows, names)
    return may_match(
        node, {name: stats_bounds(column_stats, types[name], rows.num_rows) for name, column_stats in stats.items()}
    )
