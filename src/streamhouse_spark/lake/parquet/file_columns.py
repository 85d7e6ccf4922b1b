"""Columns of a table in one lake file: found by field id, and cast to the table's types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from streamhouse_spark.errors import CorruptDataError, LakeMismatchError
from streamhouse_spark.lake.types import FieldNames, LakeProjection
from streamhouse_spark.schema.evolution import ColumnCast, make_cast
from streamhouse_spark.schema.nested_fields import child_fields, join_path, list_field_paths
from streamhouse_spark.schema.variant import as_variant, has_variant_fields, is_variant

if TYPE_CHECKING:
    import pyarrow.parquet as pq

TABLE_KEY = "streamhouse.table"
FIELD_IDS_KEY = "streamhouse.field-ids"
FIELD_ID = b"PARQUET:field_id"


class FileColumns:
    """The projected columns in one file, and their casts to the table's types."""

    def __init__(
        self, file: pq.ParquetFile, location: str, projection: LakeProjection, field_names: FieldNames = ()
    ) -> None:
        file_schema = file.schema_arrow
        by_id = {
            int(field.metadata[FIELD_ID]): field.name
            for field in file_schema
            if field.metadata and FIELD_ID in field.metadata
        }
        written = (file.metadata.metadata or {}).get(FIELD_IDS_KEY.encode())
        if written is not None and written != field_ids_text(by_id).encode():
            raise CorruptDataError(
                f"lake file {location} has field ids {field_ids_text(by_id)}, expected {written!r} as written; "
                "restore it, or rebuild the lake from the log (streamhouse retier)"
            )
        if field_names:
            unnumbered = set(file_schema.names).difference(by_id.values())
            by_id |= {field_id: name for field_id, name in field_names if name in unnumbered and field_id not in by_id}
        if not by_id and None in projection.lake_names:
            column = projection.schema.columns[projection.lake_names.index(None)].name
            raise LakeMismatchError(
                f"lake file {location} was written by another engine without field ids, and column '{column}' cannot "
                "be found by name, because columns were renamed or dropped; rewrite the file with that engine"
            )
        by_name = {name: name for name in file_schema.names} if not by_id else {}
        self.schema: pa.Schema = projection.schema.arrow
        stored_fields = [
            by_id.get(field_id) if by_id and field_id is not None else by_name.get(lake_name or "")
            for field_id, lake_name in zip(projection.field_ids, projection.lake_names, strict=True)
        ]
        is_own = TABLE_KEY.encode() in (file.metadata.metadata or {})
        self._sources = [
            None
            if name is None
            else (name, _make_column_cast(file_schema.field(name), column.type, ids, location, names))
            for name, column, (ids, first) in zip(
                stored_fields, projection.schema.columns, projection.inside, strict=True
            )
            for names in (_nested_names(name, field_names) if field_names else first if is_own else (),)
        ]
        self.stored = {
            column.name: None if name is None else file_schema.field(name)
            for name, column in zip(stored_fields, projection.schema.columns, strict=True)
        }
        """Column of the table → column of the file, or None if the file does not have it."""
        self.names = [name for name in stored_fields if name is not None]
        if not self.names:
            # Arrow needs at least one column to return the number of rows: read the narrowest.
            self.names = [min(file_schema, key=lambda f: _width_bits(f.type)).name]

    def project(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [
            pa.nulls(batch.num_rows, field.type) if source is None else source[1](batch.column(source[0]))
            for source, field in zip(self._sources, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def field_ids_text(field_ids: Iterable[int]) -> str:
    """Return the column ids of a file for its footer. They detect a flipped bit in an id, which would hide a column."""
    return ",".join(str(field_id) for field_id in field_ids)


def _nested_names(name: str | None, field_names: FieldNames) -> FieldNames:
    """Return the nested fields of a column, with their paths inside the column."""
    begin = "" if name is None else join_path((name,)) + "."
    return tuple((field_id, path.removeprefix(begin)) for field_id, path in field_names if path.startswith(begin))


def _make_column_cast(
    stored: pa.Field, target: pa.DataType, ids: Sequence[int | None] | None, location: str, names: FieldNames
) -> ColumnCast:
    """Return the function that casts a file's column to the table's type.

    ``ids`` are the nested field ids of a column whose nested fields changed. ``names`` are those in a file without ids.
    """
    if is_variant(target) and not stored.type.equals(target):
        if not has_variant_fields(stored.type):
            raise LakeMismatchError(
                f"lake file {location} stores VARIANT column '{stored.name}' shredded ({stored.type}), which is not "
                "supported; rewrite the file without shredding"
            )
        return as_variant
    if is_variant(stored.type) and not is_variant(target):  # another engine's struct with exactly these fields
        loose = pa.struct([field.with_nullable(True) for field in stored.type])
        fitted = _make_column_cast(stored.with_type(loose), target, ids, location, names)
        return lambda column: fitted(column.cast(loose))
    if ids is None:
        return lambda column: column if column.type.equals(target) else column.cast(target)
    own = _nested_ids(stored.type)
    if None in own:
        by_path = {path: field_id for field_id, path in names}
        own = [by_path.get(join_path(path)) for path in list_field_paths(stored.type)]
    if None in own:
        raise LakeMismatchError(
            f"lake file {location} was written by another engine without the ids of the fields inside column "
            f"'{stored.name}', which cannot be found by name, because they changed; rewrite the file with that engine"
        )
    return make_cast(stored.type, own, target, ids)


def _nested_ids(data_type: pa.DataType) -> list[int | None]:
    """Return the ids of nested struct fields of a file's column, parents first."""
    field_ids_inside: list[int | None] = []
    for child in child_fields(data_type):
        if pa.types.is_struct(data_type):
            field_id = (child.metadata or {}).get(FIELD_ID)
            field_ids_inside.append(None if field_id is None else int(field_id))
        field_ids_inside += _nested_ids(child.type)
    return field_ids_inside


def _width_bits(data_type: pa.DataType) -> int:
    try:
        return int(data_type.bit_width)
    except ValueError:
        return 1 << 20
