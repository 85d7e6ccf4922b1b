"""Expressions of generated columns: SQL text to a tree whose parts have types.

::

    sum := product (("+" | "-" | "||") product)*
    product := factor ("*" factor)*
    factor := "-" factor | "(" sum ")" | integer | 'text' | column | CAST "(" sum AS type ")" | function "(" … ")"

Types are those of the table's columns, and every part has the type that Spark gives it, so that a value is the one that
Spark's own expression has, overflow included. `functions` has the functions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from streamhouse_spark.core.values import dataclass
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.schema.ddl import parse_type, type_name
from streamhouse_spark.schema.generated.functions import FUNCTIONS, UnsuitableError, cast_function, function_of
from streamhouse_spark.schema.sql_tokens import SqlTokens
from streamhouse_spark.schema.table_schema import TableSchema

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>\d+)(?![A-Za-z0-9_.])
      | '(?P<text>(?:[^'\\]|'')*)'
      | `(?P<quoted>(?:[^`]|``)+)`
      | (?P<operator>\|\||\(|\)|,|\+|-|\*)
      | (?P<word>[^\W\d]\w*))""",
    re.VERBOSE,
)
_SUMS: Final = {"+": "add", "-": "subtract", "||": "concat", "*": "multiply"}
_POSSIBLE: Final = (
    f"possible are columns, whole numbers, 'texts', + - * ||, CAST(… AS …) and {', '.join(sorted(FUNCTIONS))}"
)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an expression: a column, a constant, or a function of other parts."""

    operator: str
    """``column``, ``constant`` or the name of a function."""
    type: pa.DataType
    operands: tuple[Part, ...] = ()
    value: Any = None
    """The name of a column, the value of a constant, or what a function was told beside its operands."""

    def columns(self) -> frozenset[str]:
        """Return the names of the columns in it."""
        if self.operator == "column":
            return frozenset([self.value])
        return frozenset[str]().union(*(operand.columns() for operand in self.operands))


def parse_expression(text: str, schema: TableSchema, what: str, others: Sequence[str]) -> Part:
    """Parse the expression of ``what``, which errors name, over columns that are not among ``others``.

    Raises `InvalidOptionError` naming the part that is not understood or whose types do not fit.
    """
    return _Parser(text, schema, what, others).parse()


class _Parser:
    def __init__(self, text: str, schema: TableSchema, what: str, others: Sequence[str]) -> None:
        self._tokens = SqlTokens(text, schema, _TOKEN, where=f"{what} GENERATED ALWAYS AS", possible=_POSSIBLE)
        self._others = frozenset(others)

    def parse(self) -> Part:
        part = self._sum()
        self._tokens.require_end(part.columns())
        return part

    def _sum(self) -> Part:
        with self._tokens.deeper():
            part = self._product()
            while self._tokens.is_next("+", "-", "||"):
                _, operator, at = self._tokens.take()
                part = self._called(_SUMS[operator], [part, self._product()], at)
            return part

    def _product(self) -> Part:
        part = self._factor()
        while self._tokens.is_next("*"):
            at = self._tokens.take()[2]
            part = self._called("multiply", [part, self._factor()], at)
        return part

    def _factor(self) -> Part:
        kind, value, at = self._tokens.take()
        if (kind, value) == ("operator", "-"):
            return self._negative(at)
        if (kind, value) == ("operator", "("):
            part = self._sum()
            self._tokens.expect(")")
            return part
        if kind == "number":
            return self._number(int(value), at)
        if kind == "text":
            return Part("constant", pa.string(), (), value.replace("''", "'"))
        if kind == "word" and self._tokens.accept("("):
            return self._cast(at) if value.lower() == "cast" else self._function(value, at)
        if kind in ("word", "quoted"):
            return self._column(value.replace("``", "`"), at)
        return self._tokens.refuse("is not understood", at)

    def _negative(self, at: int) -> Part:
        kind, value, _ = self._tokens.peek()
        if kind == "number":
            self._tokens.take()
            return self._number(-int(value), at)
        with self._tokens.deeper(at):
            return self._called("negative", [self._factor()], at)

    def _number(self, value: int, at: int) -> Part:
        for kind, bits in ((pa.int32(), 31), (pa.int64(), 63)):
            if -(1 << bits) <= value < 1 << bits:
                return Part("constant", kind, (), value)
        return self._tokens.refuse("is larger than a BIGINT", at)

    def _cast(self, at: int) -> Part:
        part = self._sum()
        self._tokens.expect_word("as")
        text, begin = self._tokens.take_type()
        try:
            wanted = parse_type(text)
        except SchemaMismatchError:
            self._tokens.refuse("is no type", begin)
        self._tokens.expect(")")
        try:
            return Part(cast_function(part.type, wanted), wanted, (part,))
        except UnsuitableError as error:
            return self._tokens.refuse(f"casts a {type_name(part.type)} to {type_name(wanted)}, {error}", at)

    def _function(self, name: str, at: int) -> Part:
        if name.lower() not in FUNCTIONS:
            self._tokens.refuse(f"calls {name}(…), which is not understood", at)
        arguments = []
        if not self._tokens.accept(")"):
            arguments.append(self._sum())
            while self._tokens.accept(","):
                arguments.append(self._sum())
            self._tokens.expect(")")
        return self._called(name.lower(), arguments, at)

    def _called(self, name: str, arguments: Sequence[Part], at: int) -> Part:
        constants = [part.value if part.operator == "constant" else None for part in arguments]
        try:
            operator, kind, places, value = function_of(name, [part.type for part in arguments], constants)
        except UnsuitableError as error:
            given = ", ".join(type_name(part.type) for part in arguments)
            return self._tokens.refuse(f"takes ({given}): {error}", at)
        return Part(operator, kind, tuple(arguments[place] for place in places), value)

    def _column(self, name: str, at: int) -> Part:
        column = self._tokens.column(name, at)
        if column.name in self._others:
            self._tokens.refuse(f"names '{column.name}', which is generated itself", at)
        return Part("column", column.type, (), column.name)
