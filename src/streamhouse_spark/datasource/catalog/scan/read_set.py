"""Read set of an UPDATE, DELETE or MERGE: the rows it may have read, by the filters that Spark pushed into its scan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.datasource.catalog.scan.pushed_filters import column_types, parse_filters
from streamhouse_spark.kv.read_version import ReadVersion
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.segments.statistics import collect_stats, stats_bounds
from streamhouse_spark.query.predicates import Node, family_of, may_match

_PARTS: Final = 64
"""Number of slices of sorted rows, each with its own bounds."""


@dataclass(frozen=True, slots=True)
class ReadSet:
    """How a statement read the table that it writes."""

    reads_once: bool
    """Whether a single scan reads the table, without a subquery or source that reads it again."""
    schema_id: int
    """Schema of the columns in the filters."""
    filters: tuple[Mapping[str, Any], ...]
    """Predicate trees that every relevant row satisfies; empty for all rows."""

    @classmethod
    def from_text(cls, text: str) -> ReadSet:
        fields = json.loads(text)
        return cls(fields["reads_once"], fields["schema_id"], tuple(fields["filters"]))

    def of(self, base: ReadVersion) -> ReadVersion:
        """Return the read version of the statement."""
        return replace(base, is_strict=not self.reads_once, scope=self.may_have_read if self.filters else None)

    def may_have_read(self, state: TableState, rows: pa.RecordBatch) -> bool:
        """Return whether one of these rows may match the filters. True if the schema changed, because names may
        differ.
        """
        if state.schema_id != self.schema_id:
            return True
        node = parse_filters(self.filters, column_types(state.schema))
        step = max(1, -(-rows.num_rows // _PARTS))
        return any(_may_match(node, rows.slice(start, step)) for start in range(0, rows.num_rows, step))


def _may_match(node: Node, rows: pa.RecordBatch) -> bool:
    types = {field.name: field.type for field in rows.schema if field.name in node.columns()}
    names = [name for name, type_ in types.items() if family_of(type_) not in (None, "binary")]
    stats = collect_stats(rows, names)
    return may_match(
        node, {name: stats_bounds(column_stats, types[name], rows.num_rows) for name, column_stats in stats.items()}
    )
