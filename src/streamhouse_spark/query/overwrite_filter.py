"""Overwrite filters: the rows that an operation replaces, chosen by a condition or by partition. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.arrow_groupby import distinct_rows
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.python_values import scalar_to_ticks
from streamhouse_spark.query.filter_parsing import Filter
from streamhouse_spark.query.predicates import UNKNOWN, And, In, IsNull, Node, Or
from streamhouse_spark.schema.partition_fields import PartitionField
from streamhouse_spark.schema.table_schema import TableSchema

Bools = npt.NDArray[np.bool_]

_TESTED_MAX: Final = 256
"""Above this number of partitions, files are not pruned by partition, because the tests would take longer."""


class OverwriteFilter(Protocol):
    """Chooses rows by the columns of one schema."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that the filter needs; None if unknown."""

    @property
    def node(self) -> Node:
        """Predicate that all chosen rows satisfy, for skipping files and segments."""

    @property
    def expression(self) -> pc.Expression | None:
        """True for exactly the chosen rows; None if only `mask` can tell."""

    def mask(self, rows: pa.Table) -> Bools:
        """Return which of the rows are chosen. They have at least `columns`."""


OverwriteFilterFactory = Callable[[TableSchema], OverwriteFilter]
"""Creates the filter for a schema. Raises `SchemaMismatchError`, `InvalidOptionError` if that is impossible."""


@dataclass(frozen=True, slots=True)
class ConditionOverwriteFilter:
    """The rows for which a condition is true; null does not match."""

    expression: pc.Expression
    node: Node
    columns: tuple[str, ...] | None

    @classmethod
    def of(cls, filter_: Filter, schema: TableSchema) -> ConditionOverwriteFilter:
        """Raises `SchemaMismatchError` for an unknown column, `InvalidOptionError` for an impossible comparison."""
        bound = filter_.bound(schema.arrow)
        return cls(bound.expression, bound.node, bound.columns)

    def mask(self, rows: pa.Table) -> Bools:
        from pyarrow import acero  # imports pandas if installed

        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(rows))
        projection = acero.Declaration("project", acero.ProjectNodeOptions([self.expression], ["chosen"]), [source])
        column = projection.to_table(use_threads=False).column("chosen")
        matches: Bools = pc.fill_null(column, False).to_numpy()
        return matches


@dataclass(frozen=True, slots=True)
class PartitionOverwriteFilter:
    """The rows of some partitions, by the values of all fields. Null and NaN are values."""

    partitions: pa.Table
    """The distinct partitions: one column per field."""
    fields: tuple[PartitionField, ...]

    @classmethod
    def of(cls, rows: pa.Table, fields: Sequence[PartitionField]) -> PartitionOverwriteFilter:
        """Choose the partitions of the rows."""
        return cls(partitions_of(rows, fields), tuple(fields))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(field.column for field in self.fields))

    @property
    def expression(self) -> None:
        return None

    @property
    def node(self) -> Node:
        columns = zip(self.fields, self.partitions.columns, strict=True)
        return And(tuple(_in_node(f.column, column) for f, column in columns if f.transform == "identity"))

    def mask(self, rows: pa.Table) -> Bools:
        if not self.partitions.num_rows or not rows.num_rows:
            return np.zeros(rows.num_rows, np.bool_)
        partition_codes = np.zeros(self.partitions.num_rows, np.int64)
        codes, is_in_partition = np.zeros(rows.num_rows, np.int64), np.ones(rows.num_rows, np.bool_)
        for field, column in zip(self.fields, self.partitions.columns, strict=True):
            values = pc.unique(column)
            partition_codes = partition_codes * len(values) + _value_indices(column, values)
            places = _value_indices(field.values(rows.column(field.column)), values)
            is_in_partition &= places >= 0
            codes = codes * len(values) + places
            distinct_codes, partition_codes = np.unique(
                partition_codes, return_inverse=True
            )  # keeps codes small for any number of columns
            at = np.minimum(np.searchsorted(distinct_codes, codes), len(distinct_codes) - 1)
            is_in_partition &= distinct_codes[at] == codes
            codes = at
        return is_in_partition


def partitions_of(rows: pa.Table, fields: Sequence[PartitionField]) -> pa.Table:
    """Return the distinct partitions of the rows: one column of values per field."""
    values = [field.values(rows.column(field.column)) for field in fields]
    return distinct_rows(pa.table(values, names=[str(field) for field in fields]))


def _value_indices(column: pa.ChunkedArray, values: pa.Array) -> npt.NDArray[np.int64]:
    """Return the index of each value in ``values``, or -1."""
    places = pc.fill_null(pc.index_in(column, value_set=values), -1)
    indices: npt.NDArray[np.int64] = places.to_numpy().astype(np.int64)
    return indices


def _in_node(name: str, column: pa.ChunkedArray) -> Node:
    if pa.types.is_floating(column.type):
        return UNKNOWN
    values = pc.unique(column)
    if len(values) > _TESTED_MAX:
        return UNKNOWN
    ticks = tuple(scalar_to_ticks(value) for value in values.drop_null())
    of_values = In(name, ticks, has_null=False)
    if not values.null_count:
        return of_values
    return Or((of_values, IsNull(name))) if ticks else IsNull(name)
