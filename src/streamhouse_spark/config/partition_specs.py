"""Partitionings that change: the action, and those of rows that were stored before. Pure.

A partitioning begins with a schema of its own, of the same columns. So the schema of a segment says by which columns
its partitions are named, and whatever was planned by an older schema is told apart.
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
    """A partitioning that a table had. The columns of it keep their names, types and places."""

    schema_id: int
    """The last schema that it held for."""
    columns: tuple[str, ...]
    """The partition columns."""
    fields: str
    """All fields in their order, as `join_fields` writes them, by the names of that schema."""

    def parsed(self, schemas: Mapping[int, TableSchema]) -> tuple[PartitionField, ...]:
        """Return all fields, by the names of its schema."""
        return parse_fields(split_fields(self.fields), schemas[self.schema_id])

    def to_json(self) -> list[Any]:
        return [self.schema_id, list(self.columns), self.fields]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> FormerPartitioning:
        schema_id, columns, fields = data
        return cls(schema_id, tuple(columns), fields)


@dataclass(frozen=True, slots=True)
class SetPartitioning:
    """Rows are partitioned by these fields from now on; those that are there stay where they are. Older versions of
    this package do not know the action, and so stop.
    """

    schema_id: int
    """The schema that begins here, of the same columns."""
    columns: tuple[str, ...]
    """The partition columns."""
    fields: str
    """All fields, where one is a transform of a column; else empty."""

    def to_json(self) -> dict[str, Any]:
        columns = list(self.columns)
        return {"type": "partitioning", "schema_id": self.schema_id, "columns": columns, "fields": self.fields}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SetPartitioning:
        return cls(data["schema_id"], tuple(data["columns"]), data["fields"])

    def changes(
        self, schemas: Mapping[int, TableSchema], schema: TableSchema, properties: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return the fields of a state that become others, with their values behind the action."""
        other_properties = {name: text for name, text in properties.items() if name != PARTITION_FIELDS}
        return {
            "schema_id": self.schema_id,
            "schemas": {**schemas, self.schema_id: schema},
            "partition_by": self.columns,
            "properties": {**other_properties, PARTITION_FIELDS: self.fields} if self.fields else other_properties,
        }


def former_partitioning(schema_id: int, columns: tuple[str, ...], properties: Mapping[str, str]) -> FormerPartitioning:
    """Return the partitioning of a table, for when it has another."""
    fields = properties.get(PARTITION_FIELDS) or join_fields(PartitionField(name) for name in columns)
    return FormerPartitioning(schema_id, columns, fields)


def columns_at(
    former_partitionings: Sequence[FormerPartitioning], current_columns: tuple[str, ...], schema_id: int
) -> tuple[str, ...]:
    """Return the partition columns by which segments of a schema name their partitions.

    ``former_partitionings`` are the table's former partitionings, oldest first; ``current_columns`` are its partition
    columns.
    """
    return next((spec.columns for spec in former_partitionings if schema_id <= spec.schema_id), current_columns)
