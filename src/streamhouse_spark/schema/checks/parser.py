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
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import pyarrow as pa

from streamhouse_spark.errors import InvalidOptionError
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
_DEPTH_MAX: Final = 50
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
        self._text, self._schema, self._what = text, schema, what
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
        part = self._condition()
        if self._position < len(self._tokens):
            self._refuse("is not understood")
        if not part.columns():
            self._refuse("names no column", 0)
        return part

    def _condition(self) -> Part:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            self._refuse(f"lies deeper than {_DEPTH_MAX} levels")
        part = self._chain("or")
        self._depth -= 1
        return part

    def _chain(self, word: str) -> Part:
        begin = self._at()
        parts = [self._link(word)]
        while self._word(word):
            parts.append(self._link(word))
        if len(parts) == 1:
            return parts[0]
        for part in parts:
            self._require(part, CONDITION, begin)
        return Part(word, CONDITION, tuple(parts))

    def _link(self, word: str) -> Part:
        return self._chain("and") if word == "or" else self._negation()

    def _negation(self) -> Part:
        begin, negated = self._at(), False
        while self._word("not"):
            negated = not negated
        part = self._test()
        if self._at() == begin or not negated:
            return part
        self._require(part, CONDITION, begin)
        return _not(part)

    def _test(self) -> Part:
        begin = self._at()
        left = self._sum()
        kind, value, _ = self._peek()
        if kind == "operator" and value in _COMPARISONS:
            self._position += 1
            return self._compared(_COMPARISONS[value], left, self._sum(), begin)
        if self._word("is"):
            negated = self._word("not")
            self._expect_word("null")
            found = Part("is null", CONDITION, (left,))
            return _not(found) if negated else found
        negated = self._word("not")
        if self._word("in"):
            found = self._among(left, begin)
        elif self._word("between"):
            low = self._sum()
            self._expect_word("and")
            ends = (self._compared(">=", left, low, begin), self._compared("<=", left, self._sum(), begin))
            found = Part("and", CONDITION, ends)
        elif self._word("like"):
            found = self._like(left, begin)
        elif negated:
            self._refuse("is not understood")
        else:
            return left
        return _not(found) if negated else found

    def _among(self, left: Part, begin: int) -> Part:
        self._expect("(")
        found = [self._compared("=", left, self._sum(), begin)]
        while self._operator(","):
            found.append(self._compared("=", left, self._sum(), begin))
        self._expect(")")
        return found[0] if len(found) == 1 else Part("or", CONDITION, tuple(found))

    def _like(self, left: Part, begin: int) -> Part:
        self._require(left, _STRING, begin)
        kind, value, at = self._peek()
        if kind != "text":
            self._refuse("is no pattern in 'single quotes'")
        pattern = value.replace("''", "'")
        if re.search(r"(?<!\\)(?:\\\\)*\\(?![%_\\])", pattern):
            self._refuse("has a backslash before another character than % _ and backslash", at)
        self._position += 1
        return Part("like", CONDITION, (left,), pattern)

    def _compared(self, operator: str, left: Part, right: Part, begin: int) -> Part:
        left, right = self._as(left, right.kind), self._as(right, left.kind)
        pair = {left.kind.family, right.kind.family}
        if pair == {"exact", "float"} or (len(pair) == 1 and "other" not in pair):
            if pair == {"exact"}:
                self._sized(max(left.kind.whole, right.kind.whole), max(left.kind.scale, right.kind.scale), begin)
            return Part(operator, CONDITION, (left, right))
        self._refuse(f"compares a {left.kind.family} with a {right.kind.family}", begin)

    def _as(self, part: Part, other: Kind) -> Part:
        """Return a constant text as a value of the other side's family."""
        types = {"date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}
        if part.operator != "constant" or part.kind != _STRING or other.family not in types:
            return part
        try:
            value = pa.scalar(part.value, pa.string()).cast(types[other.family])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            self._refuse(f"compares a {other.family} with {part.value!r}, which is none", 0)
        return Part("constant", other, (), value)

    def _sum(self) -> Part:
        return self._arithmetic(("+", "-"), lambda: self._arithmetic(("*",), self._factor))

    def _arithmetic(self, operators: tuple[str, ...], operand: Any) -> Part:
        begin = self._at()
        left: Part = operand()
        while self._peek()[0] == "operator" and self._peek()[1] in operators:
            operator = self._peek()[1]
            self._position += 1
            left = self._calculated(operator, left, operand(), begin)
        return left

    def _calculated(self, operator: str, left: Part, right: Part, begin: int) -> Part:
        families = {left.kind.family, right.kind.family}
        if not families <= {"exact", "float"}:
            self._refuse(f"calculates with a {(families - {'exact', 'float'}).pop()}", begin)
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
            self._refuse(f"may have more than {DIGITS_MAX} digits", begin)
        return Kind("exact", whole, scale)

    def _factor(self) -> Part:
        kind, value, at = self._peek()
        if kind == "operator" and value == "-":
            self._position += 1
            return self._negative(at)
        if self._operator("("):
            part = self._condition()
            self._expect(")")
            return part
        self._position += 1
        if kind == "number":
            return self._number(value, at)
        if kind == "text":
            return Part("constant", _STRING, (), value.replace("''", "'"))
        if kind == "word" and value.lower() in ("true", "false"):
            return Part("constant", CONDITION, (), value.lower() == "true")
        if kind == "word" and self._peek()[:2] == ("operator", "("):
            return self._length(value, at)
        if kind == "quoted" or (kind == "word" and value.lower() not in _WORDS):
            return self._column(value.replace("``", "`"), at)
        self._position -= 1
        self._refuse("is not understood")

    def _negative(self, at: int) -> Part:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            self._refuse(f"lies deeper than {_DEPTH_MAX} levels", at)
        part = self._factor()
        self._depth -= 1
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
            self._refuse(f"calls {name}(…), which is not understood", at)
        self._expect("(")
        part = self._sum()
        self._require(part, _STRING, at)
        self._expect(")")
        return Part("length", Kind("exact", 10), (part,))

    def _column(self, name: str, at: int) -> Part:
        column = self._schema.find(name)
        if column is None:
            self._refuse(f"names a column '{name}' that is not there; the columns are "
                         f"{', '.join(self._schema.names[:30])}", at)  # fmt: skip
        if column.size is not None and column.size.kind == "char":
            self._refuse(f"names '{column.name}' of type CHAR(n), whose texts end in blanks", at)
        return Part("column", _kind(column.type), (), column.name)

    def _require(self, part: Part, kind: Kind, begin: int) -> None:
        if part.kind.family != kind.family:
            wanted = "condition" if kind == CONDITION else kind.family
            self._refuse(f"is a {part.kind.family} where a {wanted} is needed", begin)

    def _at(self) -> int:
        return self._peek()[2]

    def _peek(self) -> tuple[str, str, int]:
        return self._tokens[self._position] if self._position < len(self._tokens) else ("end", "", len(self._text))

    def _word(self, word: str) -> bool:
        kind, value, _ = self._peek()
        found = kind == "word" and value.lower() == word
        self._position += found
        return found

    def _operator(self, operator: str) -> bool:
        found = self._peek()[:2] == ("operator", operator)
        self._position += found
        return found

    def _expect(self, operator: str) -> None:
        if not self._operator(operator):
            self._refuse(f"stands where {operator!r} is needed")

    def _expect_word(self, word: str) -> None:
        if not self._word(word):
            self._refuse(f"stands where {word.upper()} is needed")

    def _refuse(self, why: str, position: int | None = None) -> NoReturn:
        at = self._at() if position is None else position
        found = repr(self._text[at : at + 30]) if self._text[at:].strip() else "the end"
        raise InvalidOptionError(f"{self._what} CHECK ({self._text}): {found} at character {at + 1} {why}; {_POSSIBLE}")


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
