"""Table schemas: the ids, names, types and nullability of columns.

`TableSchema` is immutable. Its `arrow` schema is exactly the schema of every segment, batch and reader of the table.
`schema.ddl` defines the types; `schema.row_conversion` converts a user's rows to a schema.

The names of the metadata columns that readers add to rows are reserved. Names compare case-insensitively, as in SQL and
in the lake formats. A reserved name is rejected wherever a column is named: at creation, adoption, column addition and
renaming. An older table with such a column remains readable, but results with two columns of the same name are rejected
(`require_distinct_names`).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final, Protocol, Self

import pyarrow as pa

from streamhouse_spark.core.arrow_rows import is_any_list
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import is_unicode
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.schema import ddl
from streamhouse_spark.schema import default_expressions as constants
from streamhouse_spark.schema.ddl import TextLength, TextTooLongError
from streamhouse_spark.schema.default_expressions import Default, DefaultFunction, default_from_json, parse_default
from streamhouse_spark.schema.nested_fields import FieldIds, count_fields
from streamhouse_spark.schema.variant import VARIANT, holds_variant, is_marked, is_variant

FOUND: Final = "_found"
"""The last column of the result of a `lookup`."""
INTERNAL: Final = "__streamhouse_"
"""Prefix of columns passed between tasks."""

_OURS: Final = frozenset(
    {
        "__bucket",
        "__offset",
        "__timestamp",
        "_bucket",
        "_change_type",
        "_commit_timestamp",
        "_commit_version",
        "_log_offset",
        FOUND,
    }
)
_ICEBERG: Final = frozenset(
    {
        "_change_ordinal",
        "_commit_snapshot_id",
        "_deleted",
        "_file",
        "_last_updated_sequence_number",
        "_partition",
        "_pos",
        "_row_id",
        "_spec_id",
    }
)
"""Metadata columns of Iceberg readers, which cannot read a table with a column of that name."""
_PAIMON: Final = frozenset({"_level", "_row_id", "_sequence_number", "_value_kind"})
_PAIMON_PREFIX: Final = "_key_"
_ONLY_PAIMON: Final = frozenset({"rowkind"})
"""Names that are reserved only in tables with a Paimon lake."""
_PARTITION_COUNTS: Final = frozenset({"hot_rows", "lake_files", "lake_rows", "lake_size_bytes"})
"""Columns of ``$partitions`` in addition to the partition columns."""

RESERVED_NAMES: Final = _OURS | _ICEBERG | _PAIMON
RESERVED_PREFIXES: Final = (INTERNAL, _PAIMON_PREFIX)
COLUMN_NAME_LENGTH_MAX: Final = 255
COLUMN_COUNT_MAX: Final = 10_000
_STORED_AS_IS = (
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
)
_WIDENED: Final[dict[pa.DataType, pa.DataType]] = {
    **{arrow: arrow for arrow in _STORED_AS_IS},
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}


def require_unreserved_name(name: str) -> None:
    """Raise `SchemaMismatchError` if a column cannot have this name."""
    folded = name.casefold()
    if folded in _OURS or folded.startswith(INTERNAL):
        whose = "a metadata column of this package"
    elif folded in _ICEBERG:
        whose = "a metadata column of Iceberg readers"
    elif folded in _PAIMON or folded.startswith(_PAIMON_PREFIX):
        whose = "a metadata column of Paimon"
    else:
        return
    raise SchemaMismatchError(f"the column name '{name}' is reserved for {whose}; rename the column")


def require_unreserved_partition_name(name: str) -> None:
    """Raise `SchemaMismatchError` if a partition column cannot have this name."""
    if name.casefold() in _PARTITION_COUNTS:
        raise SchemaMismatchError(
            f"the column name '{name}' is reserved for a column of $partitions; rename the column, or partition by "
            "other columns"
        )


def is_reserved_by_paimon(name: str) -> bool:
    """Return whether Paimon files have a column with this name."""
    folded = name.casefold()
    return folded in _PAIMON | _ONLY_PAIMON or folded.startswith(_PAIMON_PREFIX)


def require_distinct_names(names: Iterable[str], added: Iterable[str], source: str, advice: str = "") -> None:
    """Raise `SchemaMismatchError` if an older table has a column whose name was reserved later.

    ``source`` is the reader or result that adds the columns ``added``; ``advice`` is an alternative remedy.
    """
    folded = {name.casefold() for name in added}
    for name in names:
        if name.casefold() in folded:
            raise SchemaMismatchError(
                f"{source} adds a column '{name}', and the table has a column of this name; rename the table's column"
                f"{advice}"
            )


class SparkSchema(Protocol):
    """A PySpark ``StructType``, recognised by its method, because pyspark is not imported."""

    def json(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. Its id is never reused for another column of the table, even if that has the same name."""

    id: int
    name: str
    type: pa.DataType
    """A canonical Arrow type, see `streamhouse_spark.schema.ddl`."""
    nullable: bool = True
    comment: str | None = None
    default: Default | None = None
    """The constant or function for new rows whose writer omits the column; None means null."""
    size: TextLength | None = None
    """Length of CHAR(n) and VARCHAR(n)."""
    field_ids: FieldIds | None = None
    """Ids of nested fields; None until a nested field is changed."""

    @property
    def inner_ids(self) -> tuple[int, ...]:
        """The ids of the nested fields, in the order of `nested_fields.list_field_paths`."""
        return self.all_field_ids.ids

    @property
    def all_field_ids(self) -> FieldIds:
        if self.field_ids is not None:
            return self.field_ids
        number = count_fields(self.type)
        return FieldIds(tuple(range(1, number + 1)), number)

    @property
    def default_scalar(self) -> pa.Scalar:
        """The default as a value of the column's type, or null.

        A default function has a value only within a write, see `schema.column_defaults.evaluate_defaults`.
        """
        if self.default is None:
            return pa.nulls(1, self.type)[0]  # pa.scalar(None, …) would load pandas
        if isinstance(self.default, DefaultFunction):
            message = f"the default {self.default.sql} of column '{self.name}' has no value outside a write"
            raise AssertionError(message)  # noqa: TRY004 - a defect of this package
        return constants.constant_from_json(self.default, self.type)

    @property
    def default_sql(self) -> str | None:
        if isinstance(self.default, DefaultFunction):
            return self.default.sql
        return None if self.default is None else constants.constant_to_sql(self.default, self.type)

    def to_json(self) -> dict[str, Any]:
        json_column = {
            "id": self.id,
            "name": self.name,
            "type": ddl.type_name(self.type),
            "nullable": self.nullable,
            "comment": self.comment,
        }
        if self.default is not None:
            default = self.default
            json_column["default"] = default.to_json() if isinstance(default, DefaultFunction) else default
        if self.field_ids is not None:
            json_column |= {"fields": list(self.field_ids.ids), "last_field": self.field_ids.last}
        return json_column if self.size is None else {**json_column, "size": str(self.size)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read a column from JSON. Raises `SchemaMismatchError`, or ``KeyError`` for a missing member."""
        kind = ddl.parse_type(data["type"])
        column = cls(
            data["id"],
            data["name"],
            kind,
            data["nullable"],
            data.get("comment"),
            default_from_json(data.get("default"), kind, data["name"]),
            _size_of(data),
            FieldIds.of(data["fields"], data["last_field"], kind) if "fields" in data else None,
        )
        if isinstance(column.default, DefaultFunction):
            return column
        try:
            _ = column.default_scalar
        except (pa.ArrowException, ArithmeticError, ValueError, TypeError) as error:
            raise SchemaMismatchError(
                f"column '{column.name}' of type {data['type']} has the default {data['default']!r}, which is "
                f"invalid: {error}"
            ) from None
        return column


@dataclass(frozen=True, slots=True)
class TableSchema:
    """Columns in order, with unique ids and case-insensitively unique names."""

    columns: tuple[Column, ...]
    arrow: pa.Schema = field(init=False, repr=False, compare=False)
    """The Arrow schema of the table's rows, without metadata."""
    _by_folded_name: Mapping[str, Column] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.columns) <= COLUMN_COUNT_MAX:
            raise SchemaMismatchError(f"the schema has {len(self.columns)} columns, expected 1 to {COLUMN_COUNT_MAX}")
        by_folded_name: dict[str, Column] = {}
        for column in self.columns:
            other = by_folded_name.setdefault(column.name.casefold(), column)
            if other is not column:
                raise SchemaMismatchError(
                    f"the schema has the columns '{other.name}' and '{column.name}', expected names that differ "
                    "case-insensitively; rename one"
                )
            if holds_variant(column.type) and not is_variant(column.type):
                raise SchemaMismatchError(
                    f"column '{column.name}' of type {ddl.type_name(column.type)} has VARIANT inside another type; "
                    "change the whole column to VARIANT, which also holds arrays and objects"
                )
        if len({column.id for column in self.columns}) != len(self.columns):
            raise SchemaMismatchError(f"the schema uses a column id twice: {[c.id for c in self.columns]}")
        arrow = pa.schema([pa.field(c.name, c.type, nullable=c.nullable) for c in self.columns])
        object.__setattr__(self, "arrow", arrow)
        object.__setattr__(self, "_by_folded_name", by_folded_name)

    @classmethod
    def of(cls, schema: pa.Schema | str | SparkSchema, *, previous: Self | None = None) -> Self:
        """Create the schema of a new table from an Arrow schema, Spark DDL, a PySpark ``StructType`` or rows.

        Arrow types become the nearest canonical type that holds all their values (``large_string`` → ``string``,
        ``uint8`` → ``smallint``, any timestamp unit → microseconds). Columns get the ids 1, 2, 3, … A default in DDL or
        in Spark's metadata must be a constant or a supported function. Column names of ``previous``, the schema of a
        replaced table, are not validated.

        Raises `SchemaMismatchError` for unsupported types, and for reserved or duplicate names.
        """
        return cls.of_columns(_columns_of(schema), previous=previous)

    @classmethod
    def of_columns(cls, columns: Sequence[ddl.DdlColumn], *, previous: Self | None = None) -> Self:
        """Create a schema from parsed columns, as `of` does."""
        for column in columns:
            if previous is None or previous.find(column.name) is None:
                check_column_name(column.name)
        return cls(
            tuple(
                Column(i, c.name, c.type, c.nullable, c.comment, _default_of(c), c.size)
                for i, c in enumerate(columns, start=1)
            )
        )

    @classmethod
    def from_json(cls, columns: Iterable[Mapping[str, Any]]) -> Self:
        """Read the result of `constant_to_json`. Raises `SchemaMismatchError`, or ``KeyError`` for a missing member."""
        return cls(tuple(Column.from_json(column) for column in columns))

    def to_json(self) -> list[dict[str, Any]]:
        return [column.to_json() for column in self.columns]

    def ddl(self) -> str:
        """Return one-line Spark DDL of the columns, which Spark and `of` can parse."""
        return ddl.columns_ddl(
            [ddl.DdlColumn(c.name, c.type, c.nullable, c.comment, c.default_sql, c.size) for c in self.columns]
        )

    @property
    def has_field_ids(self) -> bool:
        """Whether a nested field was changed.

        Every stored schema records it, so that older versions of this package reject the schema instead of reading
        nested fields by name.
        """
        return any(column.field_ids is not None for column in self.columns)

    @property
    def has_variants(self) -> bool:
        """Whether a column is VARIANT.

        Every stored schema records it, so that older versions of this package, which do not support the type, reject
        the schema.
        """
        return any(is_variant(column.type) for column in self.columns)

    @property
    def storage_columns(self) -> tuple[Column, ...]:
        """The columns without comments, defaults and other properties that do not affect existing rows.

        Two schemas with equal storage columns hold the same rows.
        """
        return tuple(replace(c, comment=None, default=None, field_ids=c.all_field_ids) for c in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """Return the column with that name, case-insensitively. Raises `SchemaMismatchError` with the nearest name."""
        column = self.find(name)
        if column is None:
            raise SchemaMismatchError(f"there is no column '{name}'{self.hint(name)}")
        return column

    def find(self, name: object) -> Column | None:
        return self._by_folded_name.get(name.casefold()) if isinstance(name, str) else None

    def hint(self, name: str) -> str:
        """Return the end of an error about an unknown column: the nearest name, and up to 30 column names."""
        matches = difflib.get_close_matches(str(name)[:128].casefold(), self._by_folded_name, n=1, cutoff=0.6)
        nearest = f"; did you mean '{self._by_folded_name[matches[0]].name}'?" if matches else ";"
        listed = ", ".join(self.names[:30]) + (", …" if len(self.columns) > 30 else "")
        return f"{nearest} The columns are {listed}"

    def with_added(self, added: Self, first_id: int) -> Self:
        """Return the schema with these columns appended. Their new ids start with ``first_id``.

        Raises `SchemaMismatchError` for an existing name, case-insensitively, and for a NOT NULL column, because
        existing rows have no value for it.
        """
        for column in added.columns:
            if (existing := self.find(column.name)) is not None:
                raise SchemaMismatchError(f"column '{existing.name}' already exists; choose another name")
            if not column.nullable:
                raise SchemaMismatchError(
                    f"the new column '{column.name}' is NOT NULL, and existing rows have no value for it; remove NOT "
                    "NULL"
                )
        new = (replace(column, id=first_id + i) for i, column in enumerate(added.columns))
        return type(self)((*self.columns, *new))

    def with_comments(self, comments: Mapping[str, str | None]) -> Self:
        """Return the schema with these column comments; None removes a comment. Raises `SchemaMismatchError`."""
        changed = {self.column(name).id: comment for name, comment in comments.items()}
        for name, comment in comments.items():
            if comment is not None and not is_unicode(comment):
                raise SchemaMismatchError(f"the comment of column '{name}' is not valid Unicode; correct it")
        return type(self)(tuple(replace(c, comment=changed.get(c.id, c.comment)) for c in self.columns))

    def of_names(self, names: Collection[str] | None, *, also: Collection[str] = ()) -> TableSchema:
        """Return the columns whose names are among these, at least one column; None for all columns."""
        columns = tuple(c for c in self.columns if names is None or c.name in names or c.name in also)
        return TableSchema(columns or self.columns[:1])

    def select(self, names: Sequence[str]) -> Self:
        """Return the schema of only these columns, in this order. Raises `SchemaMismatchError`."""
        return type(self)(tuple(self.column(name) for name in names))


def check_column_name(name: str) -> None:
    """Raise `SchemaMismatchError` for a name that is invalid or reserved."""
    if not name or len(name) > COLUMN_NAME_LENGTH_MAX or not name.isprintable():
        raise SchemaMismatchError(
            f"column name is {name[:40]!r}, expected 1 to {COLUMN_NAME_LENGTH_MAX} printable characters"
        )
    require_unreserved_name(name)


def canonical_type(arrow: pa.DataType, *, column: str) -> pa.DataType:
    """Return the canonical type that holds all values of an Arrow type.

    Raises `SchemaMismatchError`, naming the column, for an unsupported type.
    """
    types = pa.types
    simple = _WIDENED.get(arrow)
    if simple is not None:
        return simple
    if types.is_timestamp(arrow):
        return pa.timestamp("us") if arrow.tz is None else pa.timestamp("us", tz="UTC")
    if types.is_decimal(arrow):
        return ddl.decimal_type(arrow.precision, arrow.scale)
    if types.is_fixed_size_binary(arrow):
        return pa.binary()
    if types.is_dictionary(arrow) or types.is_run_end_encoded(arrow):
        return canonical_type(arrow.value_type, column=column)
    if is_any_list(arrow):
        return ddl.list_type(canonical_type(arrow.value_type, column=f"{column}.element"))
    if types.is_map(arrow):
        return pa.map_(
            canonical_type(arrow.key_type, column=f"{column}.key"),
            canonical_type(arrow.item_type, column=f"{column}.value"),
        )
    if is_marked(arrow):
        return VARIANT
    if types.is_struct(arrow):
        return ddl.struct_type([(f.name, canonical_type(f.type, column=f"{column}.{f.name}")) for f in arrow])
    raise SchemaMismatchError(
        f"column '{column}' has the Arrow type {arrow}, which a table cannot store; cast it to one of boolean, "
        "integers, floats, decimal, string, binary, date, timestamp, variant, list, map or struct"
    )


def new_columns(schema: pa.Schema | str | SparkSchema) -> tuple[list[ddl.DdlColumn], list[ddl.DdlColumn]]:
    """Return the columns to add to a table, and the nested fields to add to its columns.

    Raises the errors of `TableSchema.of`, and `SchemaMismatchError` for a field with a clause that only columns have.
    """
    columns = _columns_of(schema, paths=True)
    fields = [column for column in columns if column.parents]
    for new in fields:
        has = "NOT NULL" if not new.nullable else "DEFAULT" if new.default is not None else None
        has = "COMMENT" if has is None and new.comment is not None else has
        has = f"the length {new.size}" if has is None and new.size is not None else has
        if has is not None:
            raise SchemaMismatchError(
                f"the new field '{'.'.join((*new.parents, new.name))}' has {has}, which only columns can have; "
                "leave the clause out, or use STRING"
            )
    return [column for column in columns if not column.parents], fields


def _columns_of(schema: pa.Schema | str | SparkSchema, *, paths: bool = False) -> list[ddl.DdlColumn]:
    if isinstance(schema, pa.Schema):
        return [
            ddl.DdlColumn(f.name, canonical_type(f.type, column=f.name), f.nullable, _arrow_comment(f)) for f in schema
        ]
    if isinstance(schema, str):
        return ddl.parse_columns(schema, paths=paths)
    if callable(getattr(schema, "json", None)):
        return ddl.parse_struct_json(json.loads(schema.json()))
    return _columns_of(_schema_of_rows(schema))


def _schema_of_rows(rows: Any) -> pa.Schema:
    """Return the columns of a frame or of anything else with Arrow's C stream."""
    kind = type(rows)
    try:
        if kind.__name__ == "DataFrame" and kind.__module__.partition(".")[0] == "pandas":
            return pa.Schema.from_pandas(rows, preserve_index=False)
        return pa.RecordBatchReader.from_stream(rows).schema
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaMismatchError(
            f"the schema is a {kind.__name__}, expected a pyarrow.Schema, a Spark DDL string, a StructType, or rows "
            "such as a frame, whose columns the table gets"
        ) from error


def _default_of(column: ddl.DdlColumn) -> Default | None:
    default = None if column.default is None else parse_default(column.default, column.type, column.name)
    return fit_default(default, column.name, column.size)


def fit_default(default: Default | None, name: str, size: TextLength | None) -> Default | None:
    """Pad a default to the column's length. Raises `SchemaMismatchError` if the default is, or may be, longer."""
    if size is not None and isinstance(default, DefaultFunction):
        raise SchemaMismatchError(
            f"the default {default.sql} of column '{name}' may be longer than {size}; change the column to STRING"
        )
    if size is None or not isinstance(default, str):
        return default
    try:
        return size.fit_text(default)
    except TextTooLongError:
        raise SchemaMismatchError(
            f"the default of column '{name}' has {len(default)} characters, expected {size}; shorten the default"
        ) from None


def _size_of(data: Mapping[str, Any]) -> TextLength | None:
    if "size" not in data:
        return None
    size = TextLength.parse(str(data["size"]))
    if size is None:
        raise SchemaMismatchError(f"column '{data['name']}' has the size {data['size']!r}, expected varchar(10)")
    return size


def _arrow_comment(arrow: pa.Field) -> str | None:
    comment = (arrow.metadata or {}).get(b"comment")
    return comment.decode(errors="replace") if comment is not None else None
