"""The read set of an UPDATE, DELETE or MERGE: the rows that the statement may have read, for conflict detection.

It is derived from the filters that Spark pushed into the statement's scan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.datasource.scan.pushed_filters import column_types, parse_filters
from streamhouse_spark.expressions.predicates import Node, family_of, may_match
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.log.segments.statistics import collect_stats, stats_bounds
from streamhouse_spark.log.state import TableState

_SLICES: Final = 64
"""Number of slices of the rows, each with separate bounds."""


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
