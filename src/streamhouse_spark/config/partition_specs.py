"""Partition evolution: the action that changes a partitioning, and former partitionings. Pure.

A new partitioning starts with a new schema of the same columns. So the schema of a segment determines the columns of
its partitions, and plans made with an older schema are recognised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamhouse_spark.config.properties import PARTITION_FIELDS
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.schema.partition_fields import PartitionField, join_fields, parse_fields, split_fields
from streamhouse_spark.schema.table_schema import TableSchema


@dataclass(frozen=True, slots=True)
class FormerPartitioning:
    """A former partitioning of a table. Its columns keep their names, types and positions."""

    schema_id: int
    """The last schema with this partitioning."""
    columns: tuple[str, ...]
    """The partition columns."""
    fields: str
    """All fields in order, as by `join_fields`, with the names of that schema."""

    def parsed(self, schemas: Mapping[int, TableSchema]) -> tuple[PartitionField, ...]:
        """Return all fields, with the names of its schema."""
        return parse_fields(split_fields(self.fields), schemas[self.schema_id])

    def to_json(self) -> list[Any]:
        return [self.schema_id, list(self.columns), self.fields]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> FormerPartitioning:
        schema_id, columns, fields = data
        return cls(schema_id, tuple(columns), fields)


@dataclass(frozen=True, slots=True)
class SetPartitioning:
    """Change the partition fields of new rows. Older versions of this package reject the action."""

    schema_id: int
    """The schema that starts here, with the same columns."""
    columns: tuple[str, ...]
    """The partition columns."""
    fields: str
    """All fields, if one is a transform of a column; else empty."""

    def to_json(self) -> dict[str, Any]:
        columns = list(self.columns)
        return {"type": "partitioning", "schema_id": self.schema_id, "columns": columns, "fields": self.fields}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SetPartitioning:
        return cls(data["schema_id"], tuple(data["columns"]), data["fields"])

    def changes(
        self, schemas: Mapping[int, TableSchema], schema: TableSchema, properties: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return the changed fields of a state, with their values after the action."""
        other_properties = {name: text for name, text in properties.items() if name != PARTITION_FIELDS}
        return {
            "schema_id": self.schema_id,
            "schemas": {**schemas, self.schema_id: schema},
            "partition_by": self.columns,
            "properties": {**other_properties, PARTITION_FIELDS: self.fields} if self.fields else other_properties,
        }


def former_partitioning(schema_id: int, columns: tuple[str, ...], properties: Mapping[str, str]) -> FormerPartitioning:
    """Return the partitioning of a table, for when it is replaced."""
    fields = properties.get(PARTITION_FIELDS) or join_fields(PartitionField(name) for name in columns)
    return FormerPartitioning(schema_id, columns, fields)


def partition_columns_at(
    former_partitionings: Sequence[FormerPartitioning], current_columns: tuple[str, ...], schema_id: int
) -> tuple[str, ...]:
    """Return the partition columns of segments of a schema.

    ``former_partitionings`` are the table's former partitionings, oldest first; ``current_columns`` are its partition
    columns.
    """
    return next((spec.columns for spec in former_partitionings if schema_id <= spec.schema_id), current_columns)
