"""Conversion between table columns and Spark columns: schemas of names, columns of ``.schema(…)``, and batches.

Spark validates only the schema of the first batch. So every batch is converted to exactly Spark's schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.types import CharType, StringType, StructType, VarcharType

from streamhouse_spark.core.arrow_rows import combine_small_chunks
from streamhouse_spark.core.option_parsing import find_nearest
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.errors import CorruptDataError, SchemaMismatchError
from streamhouse_spark.schema import ddl
from streamhouse_spark.schema.conversion import Conversion
from streamhouse_spark.schema.table_schema import TableSchema, canonical_type

BATCH_ROWS_MIN = 1 << 14
BATCH_ROWS_MAX = 1 << 16
_EXISTING_METADATA = "EXISTS_DEFAULT"
"""Metadata key of the value of a column, as SQL, in files that do not have the column."""
EXPRESSION_METADATA = "GENERATION_EXPRESSION"
"""Metadata key of a generated column's expression, as SQL."""
SIZE_METADATA = "__CHAR_VARCHAR_TYPE_STRING"
"""Metadata key of a CHAR or VARCHAR type."""
_DECLARATION_METADATA = (ddl.DEFAULT_METADATA, _EXISTING_METADATA, EXPRESSION_METADATA)
"""Metadata keys of the default or expression in a column's declaration."""


def canonical_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with types that Spark supports."""
    return pa.schema(
        [
            pa.field(
                f.name, pa.string() if pa.types.is_null(f.type) else canonical_type(f.type, column=f.name), f.nullable
            )
            for f in schema
        ]
    )


def read_schema(available: pa.Schema, table: TableSchema, *, sizes: bool = False, defaults: bool = False) -> StructType:
    """Return the schema of a read without ``.schema(…)``, with the table's comments.

    ``sizes`` adds CHAR and VARCHAR lengths, because Spark pads values that it compares with a CHAR. ``defaults`` adds
    the values that Spark fills in for columns that a statement omits. In files without such a column, its value is
    null.
    """
    spark_schema = spark_versions.spark_schema_of(available)
    for shown, field in zip(spark_schema.fields, available, strict=True):
        column = table.find(field.name)
        if column is not None and column.comment is not None and column.type.equals(field.type):
            shown.metadata = {"comment": column.comment}
        if sizes and column is not None and column.size is not None:
            sized = CharType if column.size.kind == "char" else VarcharType
            shown.dataType = sized(column.size.length)
        if defaults and column is not None and column.default_sql is not None:
            shown.metadata = {**shown.metadata, ddl.DEFAULT_METADATA: column.default_sql, _EXISTING_METADATA: "NULL"}
    return spark_schema


def add_text_lengths(schema: StructType, table: TableSchema) -> StructType:
    """Add CHAR and VARCHAR lengths to the column metadata of a DataFrame. Spark pads values that it compares with a
    CHAR, but does not support CHAR as a type of DataFrame columns.
    """
    for shown in schema.fields:
        column = table.find(shown.name)
        if column is not None and column.size is not None and isinstance(shown.dataType, StringType):
            shown.metadata = {**shown.metadata, SIZE_METADATA: str(column.size)}
    return schema


def split_defaults(schema: str) -> tuple[str, dict[str, str]]:
    """Return the JSON of a ``StructType`` without defaults and expressions, and column → default in SQL."""
    struct = json.loads(schema)
    defaults = {}
    for field in struct["fields"]:
        metadata = field.get("metadata") or {}
        if ddl.DEFAULT_METADATA in metadata:
            defaults[field["name"]] = metadata[ddl.DEFAULT_METADATA]
        field["metadata"] = {k: v for k, v in metadata.items() if k not in _DECLARATION_METADATA}
    return json.dumps(struct), defaults


def select_columns(requested: StructType, available: pa.Schema, name: str) -> tuple[str, ...]:
    """Return the columns of ``available`` in the order of the requested schema.

    The schema of a user selects columns, and cannot rename or cast them. Raises `SchemaMismatchError` for an unknown
    column, another type, or NOT NULL for a nullable column.
    """
    by_folded_name = {field.name.casefold(): field for field in available}
    columns = []
    for column in ddl.parse_struct_json(json.loads(requested.json())):
        field = by_folded_name.get(column.name.casefold())
        if field is None:
            near = find_nearest(column.name, available.names)
            hint = f"did you mean '{near}'?" if near else f"expected some of {', '.join(available.names[:30])}"
            raise SchemaMismatchError(f"the schema has column '{column.name}', which {name} does not have; {hint}")
        if not field.type.equals(column.type):
            raise SchemaMismatchError(
                f"the schema has column '{column.name}' of {name} as {ddl.type_name(column.type)}, expected "
                f"{ddl.type_name(field.type)}; use this type, and cast in the query"
            )
        if field.nullable and not column.nullable:
            raise SchemaMismatchError(
                f"the schema has column '{column.name}' of {name} as NOT NULL, but it is nullable; omit NOT NULL"
            )
        columns.append(field.name)
    return tuple(columns)


def narrow_binlog_schema(requested: StructType, available: pa.Schema) -> pa.Schema:
    """Return the schema of ``$binlog`` with only those columns of before and after rows that a DataFrame requests."""
    requested_row = next((f.dataType for f in requested if f.name.casefold() in ("before", "after")), None)
    row = available.field("after").type
    if not isinstance(requested_row, StructType) or not {f.name for f in row}.issuperset(requested_row.names):
        return available
    narrower = pa.struct([field for field in row if field.name in requested_row.names])
    return pa.schema([f.with_type(narrower) if f.name in ("before", "after") else f for f in available])


class SparkColumns:
    """Converts batches to exactly the schema that Spark expects, and merges or splits them to a suitable size."""

    def __init__(self, schema: StructType, columns: tuple[str, ...], name: str) -> None:
        self._schema = spark_versions.arrow_schema_of(schema)
        self._columns = columns
        self._conversions = [Conversion(name, column) for column in columns]
        self._name = name

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the same rows in batches of 16k to 64k rows, if there are enough."""
        pending: list[pa.RecordBatch] = []
        pending_rows = 0
        for batch in batches:
            shaped = self.reshape(batch)
            if pending and pending_rows + shaped.num_rows > BATCH_ROWS_MAX:
                yield from self._combine(pending)
                pending, pending_rows = [], 0
            if shaped.num_rows >= BATCH_ROWS_MIN and not pending:
                yield from self._cut(shaped)
                continue
            pending.append(shaped)
            pending_rows += shaped.num_rows
            if pending_rows >= BATCH_ROWS_MIN:
                yield from self._combine(pending)
                pending, pending_rows = [], 0
        yield from self._combine(pending)

    def reshape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = batch.schema.names
        arrays = []
        for field, name, conversion in zip(self._schema, self._columns, self._conversions, strict=True):
            array = batch.column(names.index(name))
            if not array.type.equals(field.type):
                array = conversion.cast(array, field.type)
            if not field.nullable and array.null_count:
                raise CorruptDataError(
                    f"{self._name}: column '{name}' is NOT NULL, but {array.null_count} stored rows have null in it; "
                    "check whether another engine changed the lake table"
                )
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _combine(self, pending: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if len(pending) == 1:
            yield from self._cut(pending[0])
        elif pending:
            for batch in combine_small_chunks(pa.Table.from_batches(pending)).to_batches():
                yield from self._cut(batch)

    @staticmethod
    def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for start in range(0, batch.num_rows, BATCH_ROWS_MAX):
            yield batch.slice(start, BATCH_ROWS_MAX)
