"""The schema of a table's lake table, as another engine reads and changes it: the same for both formats."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyiceberg.types import LongType

from streamhouse_spark import Table
from streamhouse_spark.lake.column_mapping import COLUMNS_PROPERTY, ColumnMapping
from streamhouse_spark.lake.iceberg.evolution import iceberg_columns

Rows = list[tuple[Any, ...]]


def rows_of(found: pa.Table) -> Rows:
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


def place_of(table: Table) -> Any:
    table.refresh()
    return table.open_lake().binding


class IcebergSchema:
    format = "iceberg"
    first_field = 1
    compact_files_min = "streamhouse_spark.lake.iceberg.compaction.COMPACT_FILES_MIN"

    def lake_of(self, table: Table) -> Any:
        return place_of(table).require()

    def fields_of(self, table: Table) -> dict[str, int]:
        return {field.name: field.field_id for field in self.lake_of(table).schema().fields}

    def map_text(self, table: Table) -> str:
        text: str = self.lake_of(table).properties[COLUMNS_PROPERTY]
        return text

    def mapped_schema(self, table: Table) -> int | None:
        return iceberg_columns(self.lake_of(table).metadata, place_of(table).spec).schema_id

    def version(self, table: Table) -> Any:
        return self.lake_of(table).metadata_location

    def set_map(self, table: Table, text: str | None) -> None:
        with self.lake_of(table).transaction() as transaction:
            if text is None:
                transaction.remove_properties(COLUMNS_PROPERTY)
            else:
                transaction.set_properties({COLUMNS_PROPERTY: text})

    def rename(self, table: Table, old: str, new: str) -> None:
        with self.lake_of(table).update_schema() as update:
            update.rename_column(old, new)

    def drop(self, table: Table, name: str) -> None:
        with self.lake_of(table).update_schema() as update:
            update.delete_column(name)

    def add_bigint(self, table: Table, name: str) -> None:
        with self.lake_of(table).update_schema() as update:
            update.add_column(name, LongType())

    def read(self, table: Table) -> Rows:
        """Return the lake's rows, which pyiceberg must read as we do."""
        ours, theirs = table.lake.to_arrow(), self.lake_of(table).scan().to_arrow()
        assert rows_of(theirs) == rows_of(ours)
        return rows_of(ours)


class PaimonSchema:
    format = "paimon"
    first_field = 0
    compact_files_min = "streamhouse_spark.lake.paimon.compaction.COMPACT_FILES_MIN"

    def lake_of(self, table: Table) -> Any:
        return place_of(table).require().schema

    def fields_of(self, table: Table) -> dict[str, int]:
        return {field.name: field.id for field in self.lake_of(table).fields}

    def map_text(self, table: Table) -> str:
        text: str = self.lake_of(table).options[COLUMNS_PROPERTY]
        return text

    def mapped_schema(self, table: Table) -> int | None:
        from streamhouse_spark.lake.paimon.evolution import paimon_columns  # where it is left out, no test gets here

        return paimon_columns(self.lake_of(table), place_of(table).spec).schema_id

    def version(self, table: Table) -> Any:
        return self.lake_of(table).id

    def alter(self, table: Table, change: Callable[[dict[str, Any]], object]) -> None:
        """Write the next schema's file, as another engine does; `change` edits the latest one's JSON."""
        from pypaimon.common.json_util import JSON

        place = place_of(table)
        schema = json.loads(JSON.to_json(place.require().schema))
        schema["id"] += 1
        change(schema)
        place.storage.put(place.schema_key(schema["id"]), json.dumps(schema).encode())

    def set_map(self, table: Table, text: str | None) -> None:
        def change(schema: dict[str, Any]) -> None:
            schema["options"].pop(COLUMNS_PROPERTY)
            schema["options"] |= {} if text is None else {COLUMNS_PROPERTY: text}

        self.alter(table, change)

    def rename(self, table: Table, old: str, new: str) -> None:
        def change(schema: dict[str, Any]) -> None:
            next(field for field in schema["fields"] if field["name"] == old)["name"] = new

        self.alter(table, change)

    def drop(self, table: Table, name: str) -> None:
        def change(schema: dict[str, Any]) -> None:
            schema["fields"] = [field for field in schema["fields"] if field["name"] != name]

        self.alter(table, change)

    def add_bigint(self, table: Table, name: str) -> None:
        def change(schema: dict[str, Any]) -> None:
            schema["highestFieldId"] += 1
            schema["fields"].append({"id": schema["highestFieldId"], "name": name, "type": "BIGINT"})

        self.alter(table, change)

    def read(self, table: Table) -> Rows:
        """Return the lake's rows, which Paimon's own reader must read as ours does."""
        from interop.keyed_cases import read_by_pypaimon

        ours, theirs = table.lake.to_arrow(), read_by_pypaimon(table.storage, table.name)
        assert theirs.column_names == ours.column_names
        assert [field.type for field in theirs.schema] == [field.type for field in ours.schema]
        assert rows_of(theirs) == rows_of(ours)
        return rows_of(ours)


Schema = IcebergSchema | PaimonSchema
SCHEMAS: dict[str, Schema] = {"iceberg": IcebergSchema(), "paimon": PaimonSchema()}


def map_of(schema: Schema, table: Table) -> ColumnMapping:
    return ColumnMapping.from_text(schema.map_text(table), table.uuid, where="here")
