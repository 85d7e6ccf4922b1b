"""The conditions of CHECK constraints: SQL text to a tree whose parts have types.

::

    condition := and ("OR" and)*
    and := not ("AND" not)*
    not := "NOT" not | test
    test := sum [("=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">=") sum
          | ["NOT"] ("IN" "(" sum ("," sum)* ")" | "BETWEEN" sum "AND" sum | "LIKE" 'pattern')
          | "IS" ["NOT"] "NULL"]
    sum := product (("+" | "-") product)*
    product := factor ("*" factor)*
    factor := "-" factor | "(" condition ")" | number | 'text' | TRUE | FALSE | column | "LENGTH" "(" sum ")"

Every part is of a family of types, and only values of one family are compared, so a condition that was parsed can be
evaluated for any row. Texts beside dates and timestamps are converted to these.
"""

from __future__ import annotations

import decimal
import re
from typing import Any, Final

import pyarrow as pa

from streamhouse_spark.core.values import dataclass
from streamhouse_spark.schema.sql_tokens import SqlTokens
from streamhouse_spark.schema.table_schema import TableSchema

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![A-Za-z0-9_])
      | '(?P<text>(?:[^']|'')*)'
      | `(?P<quoted>(?:[^`]|``)+)`
      | (?P<operator><=|>=|<>|!=|==|=|<|>|\(|\)|,|\+|-|\*)
      | (?P<word>[^\W\d]\w*))""",
    re.VERBOSE,
)
_COMPARISONS: Final = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_LENGTHS: Final = ("length", "char_length", "character_length")
_WORDS: Final = frozenset(["and", "or", "not", "in", "between", "like", "is", "null", "true", "false"])
DIGITS_MAX: Final = 76
"""Digits of the widest decimal; a sum or product that may have more is refused."""
_INT_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 19}
_POSSIBLE: Final = (
    "possible are columns, numbers and 'texts', + - *, length(…), comparisons, IN, BETWEEN, LIKE, IS NULL, AND, OR, NOT"
)


@dataclass(frozen=True, slots=True)
class Kind:
    """The family of a part's values; exact numbers also have digits before and behind the point."""

    family: str
    whole: int = 0
    scale: int = 0


CONDITION: Final = Kind("boolean")
_FLOAT: Final = Kind("float")
_STRING: Final = Kind("string")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a condition: an operator with its operands, a column or a constant."""

    operator: str
    kind: Kind
    operands: tuple[Part, ...] = ()
    value: Any = None
    """The name of a column, the value of a constant, or the pattern of LIKE."""

    def columns(self) -> frozenset[str]:
        """Return the names of the columns in it."""
        if self.operator == "column":
            return frozenset([self.value])
        return frozenset[str]().union(*(operand.columns() for operand in self.operands))


def parse_condition(text: str, schema: TableSchema, what: str) -> Part:
    """Parse the condition of ``what``, which errors name.

    Raises `InvalidOptionError` naming the part that is not understood, an unknown column, or values that are not
    compared with one another.
    """
    return _Parser(text, schema, what).parse()


class _Parser:
    def __init__(self, text: str, schema: TableSchema, what: str) -> None:
        self._tokens = SqlTokens(text, schema, _TOKEN, where=f"{what} CHECK", possible=_POSSIBLE)

    def parse(self) -> Part:
        part = self._condition()
        self._tokens.require_end(part.columns())
        return part

    def _condition(self) -> Part:
        with self._tokens.deeper():
            return self._chain("or")

    def _chain(self, word: str) -> Part:
        begin = self._tokens.at
        parts = [self._link(word)]
        while self._tokens.accept_word(word):
            parts.append(self._link(word))
        if len(parts) == 1:
            return parts[0]
        for part in parts:
            self._require(part, CONDITION, begin)
        return Part(word, CONDITION, tuple(parts))

    def _link(self, word: str) -> Part:
        return self._chain("and") if word == "or" else self._negation()

    def _negation(self) -> Part:
        begin, negated = self._tokens.at, False
        while self._tokens.accept_word("not"):
            negated = not negated
        part = self._test()
        if self._tokens.at == begin or not negated:
            return part
        self._require(part, CONDITION, begin)
        return _not(part)

    def _test(self) -> Part:
        begin = self._tokens.at
        left = self._sum()
        if self._tokens.is_next(*_COMPARISONS):
            _, operator, _ = self._tokens.take()
            return self._compared(_COMPARISONS[operator], left, self._sum(), begin)
        if self._tokens.accept_word("is"):
            negated = self._tokens.accept_word("not")
            self._tokens.expect_word("null")
            found = Part("is null", CONDITION, (left,))
            return _not(found) if negated else found
        negated = self._tokens.accept_word("not")
        if self._tokens.accept_word("in"):
            found = self._among(left, begin)
        elif self._tokens.accept_word("between"):
            low = self._sum()
            self._tokens.expect_word("and")
            ends = (self._compared(">=", left, low, begin), self._compared("<=", left, self._sum(), begin))
            found = Part("and", CONDITION, ends)
        elif self._tokens.accept_word("like"):
            found = self._like(left, begin)
        elif negated:
            self._tokens.refuse("is not understood")
        else:
            return left
        return _not(found) if negated else found

    def _among(self, left: Part, begin: int) -> Part:
        self._tokens.expect("(")
        found = [self._compared("=", left, self._sum(), begin)]
        while self._tokens.accept(","):
            found.append(self._compared("=", left, self._sum(), begin))
        self._tokens.expect(")")
        return found[0] if len(found) == 1 else Part("or", CONDITION, tuple(found))

    def _like(self, left: Part, begin: int) -> Part:
        self._require(left, _STRING, begin)
        kind, value, at = self._tokens.peek()
        if kind != "text":
            self._tokens.refuse("is no pattern in 'single quotes'")
        pattern = value.replace("''", "'")
        if re.search(r"(?<!\\)(?:\\\\)*\\(?![%_\\])", pattern):
            self._tokens.refuse("has a backslash before another character than % _ and backslash", at)
        self._tokens.take()
        return Part("like", CONDITION, (left,), pattern)

    def _compared(self, operator: str, left: Part, right: Part, begin: int) -> Part:
        left, right = self._as(left, right.kind), self._as(right, left.kind)
        pair = {left.kind.family, right.kind.family}
        if pair == {"exact", "float"} or (len(pair) == 1 and "other" not in pair):
            if pair == {"exact"}:
                self._sized(max(left.kind.whole, right.kind.whole), max(left.kind.scale, right.kind.scale), begin)
            return Part(operator, CONDITION, (left, right))
        self._tokens.refuse(f"compares a {left.kind.family} with a {right.kind.family}", begin)

    def _as(self, part: Part, other: Kind) -> Part:
        """Return a constant text as a value of the other side's family."""
        types = {"date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}
        if part.operator != "constant" or part.kind != _STRING or other.family not in types:
            return part
        try:
            value = pa.scalar(part.value, pa.string()).cast(types[other.family])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            self._tokens.refuse(f"compares a {other.family} with {part.value!r}, which is none", 0)
        return Part("constant", other, (), value)

    def _sum(self) -> Part:
        return self._arithmetic(("+", "-"), lambda: self._arithmetic(("*",), self._factor))

    def _arithmetic(self, operators: tuple[str, ...], operand: Any) -> Part:
        begin = self._tokens.at
        left: Part = operand()
        while self._tokens.is_next(*operators):
            _, operator, _ = self._tokens.take()
            left = self._calculated(operator, left, operand(), begin)
        return left

    def _calculated(self, operator: str, left: Part, right: Part, begin: int) -> Part:
        families = {left.kind.family, right.kind.family}
        if not families <= {"exact", "float"}:
            self._tokens.refuse(f"calculates with a {(families - {'exact', 'float'}).pop()}", begin)
        if "float" in families:
            return Part(operator, _FLOAT, (left, right))
        a, b = left.kind, right.kind
        if operator == "*":
            whole, scale = a.whole + b.whole + 1, a.scale + b.scale
        else:
            whole, scale = max(a.whole, b.whole) + 1, max(a.scale, b.scale)
        return Part(operator, self._sized(whole, scale, begin), (left, right))

    def _sized(self, whole: int, scale: int, begin: int) -> Kind:
        if whole + scale > DIGITS_MAX:
            self._tokens.refuse(f"may have more than {DIGITS_MAX} digits", begin)
        return Kind("exact", whole, scale)

    def _factor(self) -> Part:
        kind, value, at = self._tokens.take()
        if (kind, value) == ("operator", "-"):
            return self._negative(at)
        if (kind, value) == ("operator", "("):
            part = self._condition()
            self._tokens.expect(")")
            return part
        if kind == "number":
            return self._number(value, at)
        if kind == "text":
            return Part("constant", _STRING, (), value.replace("''", "'"))
        if kind == "word" and value.lower() in ("true", "false"):
            return Part("constant", CONDITION, (), value.lower() == "true")
        if kind == "word" and self._tokens.is_next("("):
            return self._length(value, at)
        if kind == "quoted" or (kind == "word" and value.lower() not in _WORDS):
            return self._column(value.replace("``", "`"), at)
        self._tokens.refuse("is not understood", at)

    def _negative(self, at: int) -> Part:
        with self._tokens.deeper(at):
            part = self._factor()
        if part.operator == "constant" and part.kind.family == "exact":
            return Part("constant", part.kind, (), -part.value)
        zero = Part("constant", Kind("exact", 1), (), decimal.Decimal(0))
        return self._calculated("-", zero, part, at)

    def _number(self, text: str, at: int) -> Part:
        value = decimal.Decimal(text)
        if "e" in text.lower():
            return Part("constant", _FLOAT, (), float(value))
        scale = len(text.partition(".")[2])
        return Part("constant", self._sized(max(1, len(text.partition(".")[0].lstrip("0"))), scale, at), (), value)

    def _length(self, name: str, at: int) -> Part:
        if name.lower() not in _LENGTHS:
            self._tokens.refuse(f"calls {name}(…), which is not understood", at)
        self._tokens.expect("(")
        part = self._sum()
        self._require(part, _STRING, at)
        self._tokens.expect(")")
        return Part("length", Kind("exact", 10), (part,))

    def _column(self, name: str, at: int) -> Part:
        column = self._tokens.column(name, at)
        return Part("column", _kind(column.type), (), column.name)

    def _require(self, part: Part, kind: Kind, begin: int) -> None:
        if part.kind.family != kind.family:
            wanted = "condition" if kind == CONDITION else kind.family
            self._tokens.refuse(f"is a {part.kind.family} where a {wanted} is needed", begin)


def _not(part: Part) -> Part:
    return Part("not", CONDITION, (part,))


def _kind(column: pa.DataType) -> Kind:
    types = pa.types
    if types.is_integer(column):
        return Kind("exact", _INT_DIGITS[column.bit_width])
    if types.is_decimal(column):
        return Kind("exact", column.precision - column.scale, column.scale)
    if types.is_floating(column):
        return _FLOAT
    if types.is_timestamp(column):
        return Kind("timestamp" if column.tz else "timestamp_ntz")
    simple = {pa.string(): "string", pa.binary(): "binary", pa.bool_(): "boolean", pa.date32(): "date"}
    return Kind(simple.get(column, "other"))
