"""The rows of a table that an UPDATE, DELETE or MERGE may have read, by the filters that Spark pushed into its scan."""

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
"""Number of parts, each with bounds of its own, into which rows are cut: they are in the order of their keys."""


@dataclass(frozen=True, slots=True)
class ReadSet:
    """The way in which a statement read the table that it writes."""

    reads_once: bool
    """Whether the statement read the table by one scan alone, and not in a subquery, or as a source, too."""
    schema_id: int
    """The schema whose columns the filters use."""
    filters: tuple[Mapping[str, Any], ...]
    """Predicate trees that hold for every row that counts; none for all rows."""

    @classmethod
    def from_text(cls, text: str) -> ReadSet:
        fields = json.loads(text)
        return cls(fields["reads_once"], fields["schema_id"], tuple(fields["filters"]))

    def of(self, base: ReadVersion) -> ReadVersion:
        """Return the base of the statement."""
        return replace(base, is_strict=not self.reads_once, scope=self.may_have_read if self.filters else None)

    def may_have_read(self, state: TableState, rows: pa.RecordBatch) -> bool:
        """Tell whether one of these rows may satisfy the filters; also if names may mean other columns by now."""
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
