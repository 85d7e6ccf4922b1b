"""Which column of the table is which field of its lake table: exact, whatever either is called.

The map is a property of the lake table and changes in the same commit as the lake's schema. It keeps columns that were
dropped, for readers of older states, and says which of the table's schemas the lake was last brought up to: a process
that knows only an older one leaves the lake alone. A lake table from before there were maps has none. It was made when
columns could only be added, so each column is the field that has its first name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from streamhouse_spark.errors import CorruptDataError
from streamhouse_spark.lake.spec import LakeTableSpec
from streamhouse_spark.schema import TableSchema
from streamhouse_spark.schema_evolution import ambiguous_columns

COLUMNS_PROPERTY = "streamhouse.columns"


@dataclass(frozen=True, slots=True)
class LakeField:
    id: int
    name: str
    """What we called it: another name in the lake is another engine's."""


@dataclass(frozen=True, slots=True)
class ColumnMap:
    fields: Mapping[int, LakeField] = field(default_factory=dict)
    """Id of the column → field. Columns that the lake never had are absent."""
    schema_id: int | None = None
    """The table's schema that the lake was brought up to; None for a lake table without a map."""
    ambiguous: frozenset[int] = field(default=frozenset(), compare=False)
    """Ids of columns that a name alone does not tell, where a file has no field ids."""

    def field_id(self, column_id: int) -> int | None:
        found = self.fields.get(column_id)
        return None if found is None else found.id

    def columns(self) -> dict[int, int]:
        """Field id → id of the column."""
        return {found.id: column_id for column_id, found in self.fields.items()}

    def to_text(self, table_uuid: str) -> str:
        """For the lake table's property. It counts only for this table, should another adopt the lake table later."""
        fields = {str(column_id): [found.id, found.name] for column_id, found in sorted(self.fields.items())}
        return json.dumps({"table": table_uuid, "schema": self.schema_id, "fields": fields}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str, table_uuid: str, *, where: str) -> ColumnMap | None:
        """What `to_text` gave; None where that was of another table. Raises `CorruptDataError`."""
        try:
            value = json.loads(text)
            if value["table"] != table_uuid:
                return None
            fields = {int(i): LakeField(int(f), str(name)) for i, (f, name) in value["fields"].items()}
            return cls(fields, int(value["schema"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptDataError(
                f"lake table {where}: its property {COLUMNS_PROPERTY} is {text[:100]!r}, which is no map of columns; "
                "restore it from an older metadata file"
            ) from error


def column_map(
    properties: Mapping[str, str], fields: Iterable[tuple[int, str]], spec: LakeTableSpec, *, where: str
) -> ColumnMap:
    """The lake table's map. ``fields`` are the ids and names that its columns have now."""
    text = properties.get(COLUMNS_PROPERTY)
    found = None if text is None else ColumnMap.from_text(text, spec.table_uuid, where=where)
    found = ColumnMap(_by_first_names(fields, spec)) if found is None else found
    return replace(found, ambiguous=ambiguous_columns(spec.schemas.values()))


def map_by_name(fields: Iterable[tuple[int, str]], schema: TableSchema, schema_id: int | None = None) -> ColumnMap:
    """The map of a lake table that has the schema's own names."""
    by_name = {name.casefold(): LakeField(field_id, name) for field_id, name in fields}
    found = {column.id: by_name.get(column.name.casefold()) for column in schema.columns}
    return ColumnMap({column_id: there for column_id, there in found.items() if there is not None}, schema_id)


def _by_first_names(fields: Iterable[tuple[int, str]], spec: LakeTableSpec) -> dict[int, LakeField]:
    """The oldest column of a name has the field: a newer one of that name came after it was dropped."""
    left = {name.casefold(): LakeField(field_id, name) for field_id, name in fields}
    first: dict[int, str] = {}
    for schema in (*(known for _, known in sorted(spec.schemas.items())), spec.schema):
        for column in schema.columns:
            first.setdefault(column.id, column.name)
    found = {column_id: left.pop(name.casefold(), None) for column_id, name in sorted(first.items())}
    return {column_id: there for column_id, there in found.items() if there is not None}
