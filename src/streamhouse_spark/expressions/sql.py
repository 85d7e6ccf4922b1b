"""Parser of SQL expressions in CHECK constraints and generated columns: text to a tree with Spark's types.

::

    condition := and ("OR" and)*
    and := not ("AND" not)*
    not := "NOT" not | test
    test := sum [("=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">=") sum
          | ["NOT"] ("IN" "(" sum ("," sum)* ")" | "BETWEEN" sum "AND" sum | "LIKE" 'pattern' ["ESCAPE" 'character'])
          | "IS" ["NOT"] "NULL"]
    sum := product (("+" | "-" | "||") product)*
    product := factor ("*" factor)*
    factor := "-" factor | "(" condition ")" | number | 'text' | TRUE | FALSE | NULL | column
          | "CAST" "(" condition "AS" type ")" | function "(" … ")"

Every part has the type that Spark infers in ANSI mode, so values equal Spark's, overflow included. Only values of one
type family are compared. Texts compared with dates and timestamps are converted. `functions` has the functions.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.expressions.functions import FUNCTIONS, UnsuitableError, cast_function, function_of
from streamhouse_spark.schema.ddl import DECIMAL_PRECISION_MAX, parse_type, type_name, unquote_text
from streamhouse_spark.schema.table_schema import Column, TableSchema

_DEPTH_MAX: Final = 50

Token = tuple[str, str, int]
"""Kind, text and start position."""


class SqlTokens:
    """Token stream over a text. The group names of the pattern are the token kinds: ``operator``, ``word`` and others.

    Errors are `InvalidOptionError`. They start with ``where`` and show the text, the position, the problem and, for
    unsupported syntax, what is ``possible``.
    """

    def __init__(self, text: str, schema: TableSchema, pattern: re.Pattern[str], *, where: str, possible: str) -> None:
        self._text, self._schema, self._where, self._possible = text, schema, where, possible
        self._position = self._depth = 0
        self._tokens: list[Token] = []
        end = 0
        while text[end:].strip():
            match = pattern.match(text, end)
            if match is None:
                self.refuse("is not understood", end + len(text[end:]) - len(text[end:].lstrip()))
            kind = match.lastgroup or ""
            self._tokens.append((kind, match[kind], match.start(kind)))
            end = match.end()

    @property
    def at(self) -> int:
        """The position of the next token."""
        return self.peek()[2]

    @property
    def is_at_end(self) -> bool:
        return self._position >= len(self._tokens)

    def peek(self) -> Token:
        return ("end", "", len(self._text)) if self.is_at_end else self._tokens[self._position]

    def take(self) -> Token:
        token = self.peek()
        self._position += 1
        return token

    def take_type(self) -> tuple[str, int]:
        """Consume everything up to the closing parenthesis; return the text and its position."""
        begin, depth = self.at, 0
        while not self.is_at_end and (depth or not self.is_next(")")):
            depth += {"(": 1, ")": -1}.get(self.take()[1], 0)
        return self._text[begin : self.at].strip(), begin

    def is_next(self, *operators: str) -> bool:
        kind, value, _ = self.peek()
        return kind == "operator" and value in operators

    def accept(self, operator: str) -> bool:
        is_match = self.is_next(operator)
        self._position += is_match
        return is_match

    def accept_word(self, word: str) -> bool:
        kind, value, _ = self.peek()
        is_match = kind == "word" and value.lower() == word
        self._position += is_match
        return is_match

    def expect(self, operator: str) -> None:
        if not self.accept(operator):
            self.refuse(f"stands where {operator!r} is needed")

    def expect_word(self, word: str) -> None:
        if not self.accept_word(word):
            self.refuse(f"stands where {word.upper()} is needed")

    @contextmanager
    def deeper(self, at: int | None = None) -> Iterator[None]:
        """Enter a nesting level, at most 50, so that no text exhausts the stack."""
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            self.refuse(f"lies deeper than {_DEPTH_MAX} levels", at)
        yield
        self._depth -= 1

    def column(self, name: str, at: int) -> Column:
        column = self._schema.find(name)
        if column is None:
            names = ", ".join(self._schema.names[:30])
            self.refuse(f"names an unknown column '{name}'; the columns are {names}", at)
        if column.size is not None and column.size.kind == "char":
            self.refuse(f"names '{column.name}' of type CHAR(n), whose texts end in blanks", at)
        return column

    def require_end(self, columns: frozenset[str]) -> None:
        """Reject remaining tokens, and a text without columns."""
        if not self.is_at_end:
            self.refuse("is not understood")
        if not columns:
            self.refuse("names no column", 0)

    def refuse(self, why: str, position: int | None = None) -> NoReturn:
        at = self.at if position is None else position
        context = repr(self._text[at : at + 30]) if self._text[at:].strip() else "the end"
        possible = f"; {self._possible}" if "understood" in why else ""
        raise InvalidOptionError(f"{self._where} ({self._text}): {context} at character {at + 1} {why}{possible}")


_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![A-Za-z0-9_.])
      | (?P<text>'(?:[^'\\]|\\.|'')*')
      | `(?P<quoted>(?:[^`]|``)+)`
      | (?P<operator>\|\||<=|>=|<>|!=|==|=|<|>|\(|\)|,|\+|-|\*)
      | (?P<word>[^\W\d]\w*))""",
    re.VERBOSE | re.DOTALL,
)
_COMPARISONS: Final = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_ARITHMETIC: Final = {"+": "add", "-": "subtract", "||": "concat", "*": "multiply"}
_WORDS: Final = frozenset(["and", "or", "not", "in", "between", "like", "escape", "is", "null", "true", "false"])
_BOOLEAN: Final = pa.bool_()
_NULL: Final = pa.null()
_POSSIBLE: Final = (
    "possible are columns, numbers and 'texts', + - * ||, comparisons, IN, BETWEEN, LIKE, IS NULL, AND, OR, NOT, "
    f"CAST(… AS …) and {', '.join(sorted(FUNCTIONS))}"
)


@dataclass(frozen=True, slots=True)
class Part:
    """A node of an expression: a column, a constant, or an operator or function with its operands."""

    operator: str
    type: pa.DataType
    operands: tuple[Part, ...] = ()
    value: Any = None
    """The name of a column, the value of a constant, the pattern of LIKE, or a further argument of a function."""

    def columns(self) -> frozenset[str]:
        """Return the names of the columns that it references."""
        if self.operator == "column":
            return frozenset([self.value])
        return frozenset[str]().union(*(operand.columns() for operand in self.operands))


def parse_expression(text: str, schema: TableSchema, where: str, generated: Sequence[str] = ()) -> Part:
    """Parse an expression over columns that are not ``generated``. Errors name ``where``.

    Raises `InvalidOptionError` for unsupported syntax, an unknown column, and operands of unsuitable types.
    """
    return _Parser(text, schema, where, generated).parse()


class _Parser:
    def __init__(self, text: str, schema: TableSchema, where: str, generated: Sequence[str]) -> None:
        self._tokens = SqlTokens(text, schema, _TOKEN, where=where, possible=_POSSIBLE)
        self._generated = frozenset(generated)

    def parse(self) -> Part:
        part = self._condition()
        self._tokens.require_end(part.columns())
        return part

    def _condition(self) -> Part:
        with self._tokens.deeper():
            return self._chain("or", lambda: self._chain("and", self._negation))

    def _chain(self, word: str, operand: Callable[[], Part]) -> Part:
        begin = self._tokens.at
        parts = [operand()]
        while self._tokens.accept_word(word):
            parts.append(operand())
        if len(parts) == 1:
            return parts[0]
        for part in parts:
            self._require_condition(part, begin)
        return Part(word, _BOOLEAN, tuple(parts))

    def _negation(self) -> Part:
        begin, is_negated, has_not = self._tokens.at, False, False
        while self._tokens.accept_word("not"):
            is_negated, has_not = not is_negated, True
        part = self._test()
        if has_not:
            self._require_condition(part, begin)
        return _not(part) if is_negated else part

    def _test(self) -> Part:
        begin = self._tokens.at
        left = self._sum()
        if self._tokens.is_next(*_COMPARISONS):
            _, operator, _ = self._tokens.take()
            return self._comparison(_COMPARISONS[operator], left, self._sum(), begin)
        if self._tokens.accept_word("is"):
            is_negated = self._tokens.accept_word("not")
            self._tokens.expect_word("null")
            part = Part("is null", _BOOLEAN, (left,))
            return _not(part) if is_negated else part
        is_negated = self._tokens.accept_word("not")
        if self._tokens.accept_word("in"):
            part = self._membership(left, begin)
        elif self._tokens.accept_word("between"):
            low = self._sum()
            self._tokens.expect_word("and")
            bounds = (self._comparison(">=", left, low, begin), self._comparison("<=", left, self._sum(), begin))
            part = Part("and", _BOOLEAN, bounds)
        elif self._tokens.accept_word("like"):
            part = self._like(left, begin)
        elif is_negated:
            self._tokens.refuse("is not understood")
        else:
            return left
        return _not(part) if is_negated else part

    def _membership(self, left: Part, begin: int) -> Part:
        values = self._arguments()
        if any(pa.types.is_floating(part.type) for part in (left, *values)):  # Spark compares all in one common type
            left, values = _as_double(left), [_as_double(value) for value in values]
        tests = tuple(self._comparison("=", left, value, begin) for value in values)
        return tests[0] if len(tests) == 1 else Part("or", _BOOLEAN, tests)

    def _arguments(self) -> list[Part]:
        self._tokens.expect("(")
        values = [self._condition()]
        while self._tokens.accept(","):
            values.append(self._condition())
        self._tokens.expect(")")
        return values

    def _like(self, left: Part, begin: int) -> Part:
        if left.type != pa.string():
            self._tokens.refuse(f"is a {_name(left.type)} where a string is needed", begin)
        at = self._tokens.at
        pattern, escape = self._text("is no pattern in 'single quotes'"), "\\"
        if self._tokens.accept_word("escape"):
            escape = self._text("is no character in 'single quotes'")
            if len(escape) != 1:
                self._tokens.refuse("has an ESCAPE that is not one character", at)
        escaped = re.escape(escape)
        if re.sub(rf"{escaped}[%_{escaped}]", "", pattern, flags=re.DOTALL).count(escape):
            self._tokens.refuse(f"has a {escape} before another character than % _ and {escape}", at)
        return Part("like", _BOOLEAN, (left,), _with_backslashes(pattern, escape))

    def _text(self, reason: str) -> str:
        kind, literal, _ = self._tokens.peek()
        if kind != "text":
            self._tokens.refuse(reason)
        self._tokens.take()
        return unquote_text(literal)

    def _comparison(self, operator: str, left: Part, right: Part, begin: int) -> Part:
        left, right = self._convert_part(left, right.type), self._convert_part(right, left.type)
        families = {_family(left.type), _family(right.type)}
        if len(families) > 1 or families & {"other", "null"}:
            self._tokens.refuse(f"compares a {_name(left.type)} with a {_name(right.type)}", begin)
        return Part(operator, _BOOLEAN, (left, right))

    def _convert_part(self, part: Part, target: pa.DataType) -> Part:
        """Return a NULL constant, or a text next to dates and timestamps, as a constant of the other operand's type."""
        if part.type == _NULL:
            return Part("constant", target, (), None)
        if part.operator != "constant" or part.type != pa.string() or not pa.types.is_temporal(target):
            return part
        try:
            value = pa.scalar(part.value, pa.string()).cast(target)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            self._tokens.refuse(f"compares a {_name(target)} with {part.value!r}, which is none", 0)
        return Part("constant", target, (), value)

    def _sum(self) -> Part:
        return self._arithmetic(("+", "-", "||"), lambda: self._arithmetic(("*",), self._factor))

    def _arithmetic(self, operators: tuple[str, ...], operand: Callable[[], Part]) -> Part:
        part = operand()
        while self._tokens.is_next(*operators):
            _, operator, at = self._tokens.take()
            part = self._function_call(_ARITHMETIC[operator], [part, operand()], at)
        return part

    def _factor(self) -> Part:
        kind, value, at = self._tokens.peek()
        if kind == "text":
            return Part("constant", pa.string(), (), self._text(""))
        self._tokens.take()
        if (kind, value) == ("operator", "-"):
            return self._negative(at)
        if (kind, value) == ("operator", "("):
            part = self._condition()
            self._tokens.expect(")")
            return part
        if kind == "number":
            return self._number(value, at)
        if kind == "word" and value.lower() in ("true", "false"):
            return Part("constant", _BOOLEAN, (), value.lower() == "true")
        if kind == "word" and value.lower() == "null":
            return Part("constant", _NULL)
        if kind == "word" and self._tokens.is_next("("):
            return self._cast(at) if value.lower() == "cast" else self._function(value, at)
        if kind == "quoted" or (kind == "word" and value.lower() not in _WORDS):
            return self._column(value.replace("``", "`"), at)
        return self._tokens.refuse("is not understood", at)

    def _negative(self, at: int) -> Part:
        kind, value, _ = self._tokens.peek()
        if kind == "number":
            self._tokens.take()
            return self._number(f"-{value}", at)
        with self._tokens.deeper(at):
            return self._function_call("negative", [self._factor()], at)

    def _number(self, text: str, at: int) -> Part:
        if "e" in text.lower():
            return Part("constant", pa.float64(), (), float(text))
        if "." not in text:
            for kind, bits in ((pa.int32(), 31), (pa.int64(), 63)):
                if -(1 << bits) <= int(text) < 1 << bits:
                    return Part("constant", kind, (), int(text))
        value = decimal.Decimal(text)
        scale = len(text.partition(".")[2])
        digits = max(len(value.as_tuple().digits), scale)
        if digits > DECIMAL_PRECISION_MAX:
            self._tokens.refuse(f"has more than {DECIMAL_PRECISION_MAX} digits", at)
        return Part("constant", pa.decimal128(max(digits, 1), scale), (), value)

    def _cast(self, at: int) -> Part:
        self._tokens.expect("(")
        part = self._condition()
        self._tokens.expect_word("as")
        text, begin = self._tokens.take_type()
        try:
            target = parse_type(text)
        except SchemaMismatchError:
            self._tokens.refuse("is no type", begin)
        self._tokens.expect(")")
        try:
            return Part(cast_function(part.type, target), target, (part,))
        except UnsuitableError as error:
            return self._tokens.refuse(f"casts a {_name(part.type)} to {type_name(target)}, {error}", at)

    def _function(self, name: str, at: int) -> Part:
        if name.lower() not in FUNCTIONS:
            self._tokens.refuse(f"calls {name}(…), which is not understood", at)
        return self._function_call(name.lower(), self._arguments(), at)

    def _function_call(self, name: str, arguments: Sequence[Part], at: int) -> Part:
        constants = [part.value if part.operator == "constant" else None for part in arguments]
        try:
            operator, kind, places, value = function_of(name, [part.type for part in arguments], constants)
        except UnsuitableError as error:
            types = ", ".join(_name(part.type) for part in arguments)
            return self._tokens.refuse(f"takes ({types}): {error}", at)
        return Part(operator, kind, tuple(arguments[place] for place in places), value)

    def _column(self, name: str, at: int) -> Part:
        column = self._tokens.column(name, at)
        if column.name in self._generated:
            self._tokens.refuse(f"names '{column.name}', which is generated itself", at)
        return Part("column", column.type, (), column.name)

    def _require_condition(self, part: Part, begin: int) -> None:
        if part.type != _BOOLEAN:
            self._tokens.refuse(f"is a {_name(part.type)} where a condition is needed", begin)


def _not(part: Part) -> Part:
    return Part("not", _BOOLEAN, (part,))


def _as_double(part: Part) -> Part:
    is_exact = pa.types.is_integer(part.type) or pa.types.is_decimal(part.type)
    return Part("as nearest", pa.float64(), (part,)) if is_exact else part


def _with_backslashes(pattern: str, escape: str) -> str:
    """Return a pattern with backslash as its escape character."""
    if escape == "\\":
        return pattern
    plain = pattern.replace("\\", "\\\\")
    return re.sub(rf"{re.escape(escape)}(.)", lambda match: _escape(match[1]), plain, flags=re.DOTALL)


def _escape(character: str) -> str:
    return f"\\{character}" if character in "%_\\" else character


def _family(kind: pa.DataType) -> str:
    """Return the type family within which values are comparable."""
    types = pa.types
    if types.is_integer(kind) or types.is_decimal(kind) or types.is_floating(kind):
        return "number"
    plain = (pa.string(), pa.binary(), pa.bool_(), pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"))
    return str(kind) if kind in plain else "null" if kind == _NULL else "other"


def _name(kind: pa.DataType) -> str:
    return "NULL" if kind == _NULL else type_name(kind)
