"""Validation of event rows against the table's rules before they are written.

Spark expressions convert each value to its type, but only writers enforce constraints, text lengths and generated
columns. Here the tasks run the checks of the writers on the rows of a micro-batch, so that rejected rows become dead
letters. Only queries with a dead-letter table, for tables with such rules, need this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.expressions.check_constraints import Check
from streamhouse_spark.expressions.generated_columns import Generated, fill_generated_columns
from streamhouse_spark.schema.column_defaults import evaluate_defaults
from streamhouse_spark.schema.default_expressions import StatementContext
from streamhouse_spark.schema.identity import Identity, reject_identity_values
from streamhouse_spark.schema.paimon_limits import check_paimon_values
from streamhouse_spark.schema.row_conversion import convert_to_schema
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.table import Table

_REASON_CHARS_MAX = 500


@dataclass(frozen=True, slots=True)
class RowRules:
    """The rules for rows of a table."""

    table: str
    schema: TableSchema
    checks: tuple[Check, ...]
    generated: tuple[Generated, ...]
    identity: Identity | None
    limited_columns: tuple[str, ...]

    @classmethod
    def of(cls, table: Table, columns: StructType) -> RowRules | None:
        """Return the rules of the table's last read state for rows with these columns. Returns None if it has none.

        Raises `SchemaMismatchError` if the table no longer accepts rows with these columns.
        """
        state = table.state
        properties = state.parsed
        schema = evaluate_defaults(state.schema, StatementContext.of(table.world))
        has_sizes = any(column.size is not None for column in schema.columns)
        limited = properties.limited_columns
        if not (properties.checks or properties.generated or properties.identity or has_sizes or limited):
            return None
        fields = [field.remove_metadata() for field in spark_versions.arrow_schema_of(columns)]
        convert_to_schema(pa.schema(fields).empty_table(), schema, table=table.name, older=state.schemas)
        return cls(table.name, schema, properties.checks, properties.generated, properties.identity, limited)

    def find_rejected_rows(self, rows: pa.Table) -> dict[int, str]:
        """Return index → reason of the rows that the table rejects."""
        reasons: dict[int, str] = {}
        self._collect_rejected(rows, np.arange(rows.num_rows), reasons)
        return reasons

    def _collect_rejected(self, rows: pa.Table, places: npt.NDArray[np.int64], reasons: dict[int, str]) -> None:
        """Collect the rejected rows. A batch with an invalid row is halved until single rows remain, so a few bad rows
        cost a few passes over the batch.
        """
        if not len(places):
            return
        try:
            stored = self._convert_for_storage(rows.take(pa.array(places)))
        except SchemaMismatchError as error:
            if len(places) == 1:
                reasons[int(places[0])] = str(error)[:_REASON_CHARS_MAX]
                return
            middle = len(places) // 2
            self._collect_rejected(rows, places[:middle], reasons)
            self._collect_rejected(rows, places[middle:], reasons)
            return
        for check in self.checks:
            reason = f"its row violates constraint '{check.name}' CHECK ({check.text})"[:_REASON_CHARS_MAX]
            for place in places[_true_mask(check.find_violations(stored))].tolist():
                reasons.setdefault(place, reason)

    def _convert_for_storage(self, new_rows: pa.Table) -> pa.Table:
        """Return the rows that a writer would store, without identity values. Raises `SchemaMismatchError` for an
        invalid row.
        """
        coerced = convert_to_schema(new_rows, self.schema, table=self.table)
        reject_identity_values(self.identity, coerced, self.table)
        rows = fill_generated_columns(self.generated, coerced, self.table)
        check_paimon_values(self.table, {name: rows.column(name) for name in self.limited_columns})
        return rows


def validate_rows(rules: RowRules, kind: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Set the ``reason`` of valid events for which the table rejects a row of this kind in ``changes``."""
    for batch in batches:
        reasons, changes = batch.column("reason"), batch.column("changes")
        items, events = pc.list_flatten(changes), pc.list_parent_indices(changes)
        counts = pc.and_(pc.equal(pc.struct_field(items, "kind"), kind), pc.is_null(reasons).take(events))
        places = np.flatnonzero(_true_mask(counts))
        rows = pa.Table.from_struct_array(pc.struct_field(items, "row")).take(pa.array(places))
        if not (rejected := rules.find_rejected_rows(rows)):
            yield batch
            continue
        reason_by_event: dict[int, str] = {}
        for place in sorted(rejected):
            reason_by_event.setdefault(events[int(places[place])].as_py(), rejected[place])
        mask = np.zeros(batch.num_rows, np.bool_)
        mask[list(reason_by_event)] = True
        new_reasons = pa.array([reason_by_event[event] for event in sorted(reason_by_event)], reasons.type)
        position = batch.schema.get_field_index("reason")
        replaced = pc.replace_with_mask(reasons, pa.array(mask), new_reasons)
        yield batch.set_column(position, batch.schema.field(position), replaced)


def _true_mask(values: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = pc.fill_null(values, fill_value=False).to_numpy(zero_copy_only=False)
    return mask
