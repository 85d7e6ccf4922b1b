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
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import pyarrow as pa

from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.schema.ddl import parse_type, type_name
from streamhouse_spark.schema.generated.functions import FUNCTIONS, UnsuitableError, cast_function, function_of
from streamhouse_spark.schema.table_schema import TableSchema

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>\d+)(?![A-Za-z0-9_.])
      | '(?P<text>(?:[^'\\]|'')*)'
      | `(?P<quoted>(?:[^`]|``)+)`
      | (?P<operator>\|\||\(|\)|,|\+|-|\*)
      | (?P<word>[^\W\d]\w*))""",
    re.VERBOSE,
)
_DEPTH_MAX: Final = 50
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
        self._text, self._schema, self._what = text, schema, what
        self._others = frozenset(others)
        self._position = self._depth = 0
        self._tokens: list[tuple[str, str, int]] = []
        end = 0
        while text[end:].strip():
            match = _TOKEN.match(text, end)
            if match is None:
                self._refuse("is not understood", end + len(text[end:]) - len(text[end:].lstrip()))
            kind = match.lastgroup or ""
            self._tokens.append((kind, match[kind], match.start(kind)))
            end = match.end()

    def parse(self) -> Part:
        part = self._sum()
        if self._position < len(self._tokens):
            self._refuse("is not understood")
        if not part.columns():
            self._refuse("names no column", 0)
        return part

    def _sum(self) -> Part:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            self._refuse(f"lies deeper than {_DEPTH_MAX} levels")
        part = self._product()
        while self._peek()[0] == "operator" and self._peek()[1] in ("+", "-", "||"):
            _, operator, at = self._take()
            part = self._called(_SUMS[operator], [part, self._product()], at)
        self._depth -= 1
        return part

    def _product(self) -> Part:
        part = self._factor()
        while self._peek()[:2] == ("operator", "*"):
            at = self._take()[2]
            part = self._called("multiply", [part, self._factor()], at)
        return part

    def _factor(self) -> Part:
        kind, value, at = self._take()
        if (kind, value) == ("operator", "-"):
            return self._negative(at)
        if (kind, value) == ("operator", "("):
            part = self._sum()
            self._expect(")")
            return part
        if kind == "number":
            return self._number(int(value), at)
        if kind == "text":
            return Part("constant", pa.string(), (), value.replace("''", "'"))
        if kind == "word" and self._peek()[:2] == ("operator", "("):
            self._take()
            return self._cast(at) if value.lower() == "cast" else self._function(value, at)
        if kind in ("word", "quoted"):
            return self._column(value.replace("``", "`"), at)
        return self._refuse("is not understood", at)

    def _negative(self, at: int) -> Part:
        kind, value, _ = self._peek()
        if kind == "number":
            self._take()
            return self._number(-int(value), at)
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            self._refuse(f"lies deeper than {_DEPTH_MAX} levels", at)
        part = self._called("negative", [self._factor()], at)
        self._depth -= 1
        return part

    def _number(self, value: int, at: int) -> Part:
        for kind, bits in ((pa.int32(), 31), (pa.int64(), 63)):
            if -(1 << bits) <= value < 1 << bits:
                return Part("constant", kind, (), value)
        return self._refuse("is larger than a BIGINT", at)

    def _cast(self, at: int) -> Part:
        part = self._sum()
        if self._take()[1].lower() != "as":
            self._refuse("stands where AS is needed", self._tokens[self._position - 1][2])
        begin = self._peek()[2]
        depth = 0
        while self._position < len(self._tokens) and (depth or self._peek()[:2] != ("operator", ")")):
            depth += {"(": 1, ")": -1}.get(self._take()[1], 0)
        try:
            wanted = parse_type(self._text[begin : self._peek()[2]].strip())
        except SchemaMismatchError:
            self._refuse("is no type", begin)
        self._expect(")")
        try:
            return Part(cast_function(part.type, wanted), wanted, (part,))
        except UnsuitableError as error:
            return self._refuse(f"casts a {type_name(part.type)} to {type_name(wanted)}, {error}", at)

    def _function(self, name: str, at: int) -> Part:
        if name.lower() not in FUNCTIONS:
            self._refuse(f"calls {name}(…), which is not understood", at)
        arguments = []
        if not self._accept(")"):
            arguments.append(self._sum())
            while self._accept(","):
                arguments.append(self._sum())
            self._expect(")")
        return self._called(name.lower(), arguments, at)

    def _called(self, name: str, arguments: Sequence[Part], at: int) -> Part:
        constants = [part.value if part.operator == "constant" else None for part in arguments]
        try:
            operator, kind, places, value = function_of(name, [part.type for part in arguments], constants)
        except UnsuitableError as error:
            given = ", ".join(type_name(part.type) for part in arguments)
            return self._refuse(f"takes ({given}): {error}", at)
        return Part(operator, kind, tuple(arguments[place] for place in places), value)

    def _column(self, name: str, at: int) -> Part:
        column = self._schema.find(name)
        if column is None:
            self._refuse(f"names a column '{name}' that is not there; the columns are "
                         f"{', '.join(self._schema.names[:30])}", at)  # fmt: skip
        if column.name in self._others:
            self._refuse(f"names '{column.name}', which is generated itself", at)
        if column.size is not None and column.size.kind == "char":
            self._refuse(f"names '{column.name}' of type CHAR(n), whose texts end in blanks", at)
        return Part("column", column.type, (), column.name)

    def _peek(self) -> tuple[str, str, int]:
        return self._tokens[self._position] if self._position < len(self._tokens) else ("end", "", len(self._text))

    def _take(self) -> tuple[str, str, int]:
        found = self._peek()
        self._position += 1
        return found

    def _accept(self, operator: str) -> bool:
        found = self._peek()[:2] == ("operator", operator)
        self._position += found
        return found

    def _expect(self, operator: str) -> None:
        if not self._accept(operator):
            self._refuse(f"stands where {operator!r} is needed")

    def _refuse(self, why: str, position: int | None = None) -> NoReturn:
        at = self._peek()[2] if position is None else position
        found = repr(self._text[at : at + 30]) if self._text[at:].strip() else "the end"
        known = f"; {_POSSIBLE}" if "understood" in why else ""
        raise InvalidOptionError(
            f"{self._what} GENERATED ALWAYS AS ({self._text}): {found} at character {at + 1} {why}{known}"
        )
