"""Spark DDL: the grammar of column lists, of type names, and of a ``StructType``'s JSON.

The types of tables are canonical Arrow types:

=====================  =====================================  =====================================
Spark                  Arrow                                  accepted synonyms
=====================  =====================================  =====================================
boolean                bool
tinyint                int8                                   byte
smallint               int16                                  short
int                    int32                                  integer
bigint                 int64                                  long
float                  float32                                real
double                 float64
decimal(p,s)           decimal128(p, s), p ≤ 38               dec, numeric; (10,0) by default
string                 string                                 char(n), varchar(n), with a `TextLength`
binary                 binary
date                   date32
timestamp_ntz          timestamp[us]
timestamp              timestamp[us, UTC]                     timestamp_ltz
array<t>               list<element>
map<k,v>               map
struct<a:t,…>          struct
variant                `VARIANT`                              not nested in another type
=====================  =====================================  =====================================

Nested fields are always nullable, and nested strings have no length.

CHAR(n) and VARCHAR(n) are stored as plain strings, in the lake too. They are fitted on write as in Spark's tables:
longer strings lose trailing blanks and are rejected if they are still too long; shorter CHAR strings are padded with
blanks. Lengths are in characters (code points).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, NoReturn, Self, cast

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.sql_parser import SqlParser, Token
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.schema.variant import VARIANT, is_variant

LENGTH_MAX: Final = (1 << 31) - 1
_NAME: Final = re.compile(
    r"\s*(?:(?P<varchar>varchar)|char(?:acter)?)\s*\(\s*(?P<length>\d+)\s*\)(?:\s*collate\s+utf8_binary)?\s*",
    re.IGNORECASE,
)
DECIMAL_PRECISION_MAX: Final = 38
NESTING_DEPTH_MAX: Final = 64
"""Deeper types are rejected, so that a hostile schema cannot exhaust the stack."""
_PLAIN: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "variant": VARIANT,
}
_NAMES: Final = {arrow: name for name, arrow in _PLAIN.items()}
_SYNONYMS: Final = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
}
_REFUSED: Final = {
    "void": "it holds only nulls; specify the type that the column will have",
    "null": "it holds only nulls; specify the type that the column will have",
    "interval": "no lake format stores intervals; use bigint with the unit in the column's name",
    "time": "use bigint with the unit in the column's name, or string",
    "geometry": "use binary with WKB in it",
    "geography": "use binary with WKB in it",
    "udt": "use the type that the user-defined type is stored as",
}
_PLAIN_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<word>\w+)
      | `(?P<quoted>(?:[^`]|``)*)`
      | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
      | (?P<operator>[<>(),:;.+-])
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES: Final = {
    "n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a", "%": "\\%", "_": "\\_"
}  # fmt: skip
"""Escapes in Spark SQL literals. LIKE keeps the backslash before % and _."""
DEFAULT_METADATA: Final = "CURRENT_DEFAULT"
"""Metadata key of a column's default, an SQL expression, in Spark's ``StructField``."""
PARENTS: Final = "streamhouse.parents"
"""JSON member of a field with `DdlColumn.parents`, which only this package writes."""


@dataclass(frozen=True, slots=True)
class TextLength:
    """The length of a CHAR(n) or VARCHAR(n) column."""

    kind: Literal["char", "varchar"]
    length: int

    def __str__(self) -> str:
        return f"{self.kind}({self.length})"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Parse a type name such as ``varchar(10)``; None for another type, and for an invalid length."""
        match = _NAME.fullmatch(name)
        if match is None or not 1 <= int(match["length"]) <= LENGTH_MAX:
            return None
        return cls("varchar" if match["varchar"] else "char", int(match["length"]))

    def holds(self, other: TextLength | None) -> bool:
        """Return whether strings of the size ``other`` need no change for this size."""
        if other is None:
            return False
        return other == self or (self.kind == "varchar" and other.length <= self.length)

    def fit_texts(self, texts: pa.ChunkedArray) -> pa.ChunkedArray:
        """Cut and pad strings to this size. Returns the same object if nothing changes. Raises `TextTooLongError`."""
        lengths = pc.utf8_length(texts)
        if pc.any(pc.greater(lengths, self.length)).as_py():
            is_too_long = pc.greater(pc.utf8_length(pc.utf8_rtrim(texts, " ")), self.length)
            if pc.any(is_too_long).as_py():
                raise TextTooLongError(cast("int", pc.index(is_too_long, True).as_py()))
            texts = pc.utf8_slice_codeunits(texts, 0, self.length)
        if self.kind == "char" and pc.any(pc.less(lengths, self.length)).as_py():
            texts = pc.utf8_rpad(texts, self.length, " ")
        return texts

    def fit_text(self, text: str) -> str:
        """Cut and pad one string as `fit_texts` does."""
        return cast("str", self.fit_texts(pa.chunked_array([[text]], pa.string()))[0].as_py())


class TextTooLongError(ValueError):
    """A string is longer than its column, even without trailing blanks. The caller names the column."""

    def __init__(self, row: int) -> None:
        super().__init__(f"the text in row {row} is too long")
        self.row = row


@dataclass(frozen=True, slots=True)
class DdlColumn:
    """A column in Spark DDL or in a ``StructType``."""

    name: str
    type: pa.DataType
    nullable: bool = True
    comment: str | None = None
    default: str | None = None
    """The expression of the DEFAULT clause, see `streamhouse_spark.schema.default_expressions`."""
    size: TextLength | None = None
    parents: tuple[str, ...] = ()
    """Path of the struct to which a nested field is added, starting with the column; empty for a column."""


def parse_columns(text: str, *, paths: bool = False) -> list[DdlColumn]:
    """Parse the columns of a Spark DDL string, ``order_id BIGINT NOT NULL COMMENT 'key', tags ARRAY<STRING>``.

    The columns may be enclosed in ``struct<…>``, and names may end with colons. ``paths`` permits nested fields, such
    as ``address.zip STRING``. Raises `SchemaMismatchError`.
    """
    return _Parser(text, paths=paths).whole_schema()


def parse_type(text: str) -> pa.DataType:
    """Parse the Arrow type of a type name such as ``array<decimal(12,2)>``. Raises `SchemaMismatchError`."""
    return _Parser(text).whole_type()


def parse_struct_json(struct: Mapping[str, Any]) -> list[DdlColumn]:
    """Parse the columns of a ``StructType`` in its ``json()`` form. Raises `SchemaMismatchError`."""
    if struct.get("type") != "struct" or not isinstance(struct.get("fields"), list):
        raise SchemaMismatchError(f"the schema is JSON of type {struct.get('type')!r}, expected a struct with fields")
    return [
        DdlColumn(
            name=field["name"],
            type=_json_type(field["type"], depth=0),
            nullable=bool(field.get("nullable", True)),
            comment=(field.get("metadata") or {}).get("comment"),
            default=(field.get("metadata") or {}).get(DEFAULT_METADATA),
            size=TextLength.parse(field["type"]) if isinstance(field["type"], str) else None,
            parents=tuple(field.get(PARENTS, ())),
        )
        for field in struct["fields"]
    ]


def type_name(arrow: pa.DataType) -> str:
    """Return the Spark name of a canonical Arrow type, which `parse_type` can parse. Raises `SchemaMismatchError`."""
    if pa.types.is_decimal128(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    if pa.types.is_list(arrow):
        return f"array<{type_name(arrow.value_type)}>"
    if pa.types.is_map(arrow):
        return f"map<{type_name(arrow.key_type)},{type_name(arrow.item_type)}>"
    if pa.types.is_struct(arrow) and not is_variant(arrow):
        return f"struct<{','.join(f'{quote_identifier(field.name)}:{type_name(field.type)}' for field in arrow)}>"
    name = _NAMES.get(arrow)
    if name is None:
        raise SchemaMismatchError(f"type {arrow} cannot be stored in a table, expected one of {', '.join(_PLAIN)}")
    return name


def columns_ddl(columns: list[DdlColumn]) -> str:
    """Return the columns as one line of DDL that `parse_columns` and Spark can parse."""
    return ", ".join(_column_ddl(column) for column in columns)


def quote_identifier(name: str) -> str:
    """Quote a name for Spark SQL: in backticks unless it is a plain ASCII identifier."""
    if _PLAIN_IDENTIFIER.fullmatch(name):
        return name
    return "`" + name.replace("`", "``") + "`"


def quote_text(text: str) -> str:
    """Quote a string as a Spark SQL literal of one line."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"


def unquote_text(literal: str) -> str:
    """Return the string of a quoted Spark SQL literal."""
    quote = literal[0]

    def unescape(match: re.Match[str]) -> str:
        code_point, octal, escaped = match.groups()
        if code_point or octal:
            return chr(int(code_point[1:], 16) if code_point else int(octal, 8))
        return quote if escaped is None else _ESCAPES.get(escaped, escaped)

    pattern = rf"\\(?:(u[0-9a-fA-F]{{4}}|U[0-9a-fA-F]{{8}})|([01][0-7]{{2}})|(.))|{quote}{quote}"
    return re.sub(pattern, unescape, literal[1:-1], flags=re.DOTALL)


def list_type(element: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", element))


def struct_type(fields: list[tuple[str, pa.DataType]]) -> pa.DataType:
    """Create a struct type. Raises `SchemaMismatchError` for no fields, and for case-insensitively duplicate names."""
    if not fields:
        raise SchemaMismatchError(
            "a struct has no fields, expected at least one, because Parquet cannot store an empty struct; add a field "
            "or remove the struct"
        )
    folded_names: set[str] = set()
    for name, _ in fields:
        if name.casefold() in folded_names:
            raise SchemaMismatchError(f"a struct has the field '{name}' twice (names are case-insensitive); rename one")
        folded_names.add(name.casefold())
    return pa.struct([pa.field(name, arrow) for name, arrow in fields])


def decimal_type(precision: int, scale: int) -> pa.DataType:
    """Create a decimal type. Raises `SchemaMismatchError` if Spark does not support these numbers."""
    if not 1 <= precision <= DECIMAL_PRECISION_MAX or not 0 <= scale <= precision:
        raise SchemaMismatchError(
            f"decimal({precision},{scale}) cannot be stored; expected a precision of 1 to {DECIMAL_PRECISION_MAX} "
            "and a scale from 0 to the precision"
        )
    return pa.decimal128(precision, scale)


def _column_ddl(column: DdlColumn) -> str:
    kind = type_name(column.type) if column.size is None else str(column.size)
    is_nested = pa.types.is_nested(column.type) and not is_variant(column.type)
    words = [quote_identifier(column.name), kind if is_nested else kind.upper()]  # retains the names of nested fields
    if not column.nullable:
        words.append("NOT NULL")
    if column.default is not None:
        words.append(f"DEFAULT {column.default}")
    if column.comment is not None:
        words.append(f"COMMENT {quote_text(column.comment)}")
    return " ".join(words)


def _json_type(value: object, depth: int) -> pa.DataType:
    if depth > NESTING_DEPTH_MAX:
        raise SchemaMismatchError(f"the schema nests types deeper than {NESTING_DEPTH_MAX}")
    if isinstance(value, str):
        return _Parser(value).whole_type(depth)
    if not isinstance(value, Mapping):
        raise SchemaMismatchError(f"the schema's JSON has a type {value!r}, expected a name or an object")
    match value.get("type"):
        case "array":
            return list_type(_json_type(value["elementType"], depth + 1))
        case "map":
            return pa.map_(_json_type(value["keyType"], depth + 1), _json_type(value["valueType"], depth + 1))
        case "struct":
            return struct_type([(f["name"], _json_type(f["type"], depth + 1)) for f in value["fields"]])
        case other:
            raise SchemaMismatchError(f"type {other} cannot be stored: {_REFUSED.get(str(other), 'unknown')}")


class _Parser(SqlParser):
    def __init__(self, text: str, *, paths: bool = False) -> None:
        self._paths = paths
        super().__init__(text.rstrip(), _TOKEN)

    def refuse_token(self, at: int) -> NoReturn:
        self._fail(("operator", self._text[at : at + 1], at), "a name, a type or a comma")

    def _fail(self, token: Token, expected: str) -> NoReturn:
        kind, _, position = token
        single_line = " ".join(self._text.split())
        shown = single_line if len(single_line) <= 200 else single_line[:199] + "…"
        actual = "the end" if kind == "end" else f"'{_value_of(token)}'"
        raise SchemaMismatchError(f"the schema '{shown}' has {actual} at character {position + 1}, expected {expected}")

    def whole_schema(self) -> list[DdlColumn]:
        if self.peek()[1].lower() == "struct" and self.peek(1)[1] == "<":
            self.take()
            columns = self._columns(closing=">")
        else:
            columns = self._columns(closing=None)
        self._expect_end()
        return columns

    def whole_type(self, depth: int = 0) -> pa.DataType:
        self._depth = depth
        arrow = self._type()
        self._expect_end()
        return arrow

    def _columns(self, closing: str | None) -> list[DdlColumn]:
        if closing is not None:
            self._expect("<")
        columns = [self._column()]
        while self.accept(","):
            columns.append(self._column())
        if closing is not None:
            self._expect(closing)
        return columns

    def _column(self) -> DdlColumn:
        name = self._name("a column name")
        parents: list[str] = []
        while self._paths and not self._depth and self.accept("."):
            parents.append(name)
            name = self._name("the name of a field")
        self.accept(":")
        begin, arrow = self.at, self._type()
        size = TextLength.parse(self._text[begin : self.at])
        nullable, comment, default = True, None, None
        while self.peek()[0] == "word":
            clause = self.take()
            match clause[1].upper():
                case "NOT":
                    if self.take()[1].upper() != "NULL":
                        self._fail(clause, "NOT NULL")
                    nullable = False
                case "COMMENT":
                    literal = self.take()
                    if literal[0] != "text":
                        self._fail(literal, "the comment in quotes")
                    comment = unquote_text(literal[1])
                case "DEFAULT":
                    default = self._expression(clause)
                case "GENERATED":
                    property_hint = "set the property table.generated.… or table.identity.… instead"
                    self._fail(clause, f"NOT NULL, DEFAULT, COMMENT or a comma; {property_hint}")
                case _:
                    self._fail(clause, "NOT NULL, DEFAULT, COMMENT or a comma")
        return DdlColumn(name, arrow, nullable, comment, default, size, tuple(parents))

    def _name(self, expected: str) -> str:
        token = self.take()
        if token[0] not in ("word", "quoted") or not token[1]:
            self._fail(token, expected)
        return _value_of(token)

    def _expression(self, clause: Token) -> str:
        """Consume the text after DEFAULT, up to the next clause or column."""
        depth = 0
        while not self.is_at_end:
            kind, value, _ = self.peek()
            if kind == "operator":
                if depth == 0 and value in (",", ">", ";"):
                    break
                depth += {"(": 1, ")": -1}.get(value, 0)
            elif kind == "word" and depth == 0 and value.upper() in ("NOT", "COMMENT", "GENERATED"):
                break
            self.take()
        expression = self._text[clause[2] + len(clause[1]) : self.at].strip()
        if not expression:
            self._fail(self.peek(), "a constant after DEFAULT")
        return expression

    def _type(self) -> pa.DataType:
        token = self.take()
        if token[0] != "word":
            self._fail(token, "a type")
        self._depth += 1
        if self._depth > NESTING_DEPTH_MAX:
            self._fail(token, f"at most {NESTING_DEPTH_MAX} nested types")
        try:
            return self._type_after(token)
        finally:
            self._depth -= 1

    def _skip_collation(self) -> None:
        """Skip the clause of the default collation, which Spark prints in SHOW CREATE TABLE."""
        if self.accept_word("collate"):
            collation = self.take()
            if collation[1].upper() != "UTF8_BINARY":
                self._fail(collation, "UTF8_BINARY, the only supported collation")

    def _type_after(self, token: Token) -> pa.DataType:
        word = token[1].lower()
        word = _SYNONYMS.get(word, word)
        if word == "string":
            self._skip_collation()
        if word in _PLAIN:
            return _PLAIN[word]
        match word:
            case "decimal" | "dec" | "numeric":
                numbers = self._numbers()
                if len(numbers) > 2:
                    self._fail(self.peek(), "decimal(precision, scale)")
                precision, scale = ([*numbers, 0] if len(numbers) == 1 else numbers) or (10, 0)
                return decimal_type(precision, scale)
            case "char" | "varchar" | "character":
                numbers = self._numbers()
                if len(numbers) != 1 or TextLength.parse(f"{word}({numbers[0]})") is None:
                    self._fail(token, f"a length, as in {word}(10), or string")
                if self._depth > 1:
                    self._fail(token, "string, because nested strings have no length")
                self._skip_collation()
                return pa.string()
            case "array":
                self._expect("<")
                arrow = list_type(self._type())
                self._expect(">")
                return arrow
            case "map":
                self._expect("<")
                key = self._type()
                self._expect(",")
                arrow = pa.map_(key, self._type())
                self._expect(">")
                return arrow
            case "struct":
                return self._struct()
        if word in _REFUSED:
            raise SchemaMismatchError(f"type {token[1]} cannot be stored: {_REFUSED[word]}")
        return self._fail(token, f"a type, one of {', '.join(_PLAIN)}, decimal(p,s), array<…>, map<…>, struct<…>")

    def _struct(self) -> pa.DataType:
        opening = self.peek()
        columns = self._columns(closing=">")
        for column in columns:
            if not column.nullable or column.default is not None:
                clause = "DEFAULT" if column.nullable else "NOT NULL"
                self._fail(opening, f"the struct's field '{column.name}' without {clause}, which only columns can have")
        return struct_type([(column.name, column.type) for column in columns])

    def _numbers(self) -> list[int]:
        if not self.accept("("):
            return []
        numbers = [self._number()]
        while self.accept(","):
            numbers.append(self._number())
        self._expect(")")
        return numbers

    def _number(self) -> int:
        token = self.take()
        kind, value, _ = token
        if kind != "word" or not value.isascii() or not value.isdigit() or len(value) > 9:
            self._fail(token, "a number")
        return int(value)

    def _expect_end(self) -> None:
        self.accept(";")
        if not self.is_at_end:
            self._fail(self.peek(), "a comma or the end")

    def _expect(self, operator: str) -> None:
        if not self.accept(operator):
            self._fail(self.peek(), f"'{operator}'")


def _value_of(token: Token) -> str:
    """Return the name or string of a token, without quotes."""
    kind, value, _ = token
    if kind == "quoted":
        return value.replace("``", "`")
    return unquote_text(value) if kind == "text" else value
