"""SQL expressions of CHECK constraints and generated columns: parser, types and evaluation.

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

Every node of the tree has the type that Spark infers in ANSI mode. Evaluation returns exactly Spark's value, and fails
where Spark raises an overflow error. Read filters may keep extra rows, and use `predicates` instead.

A comparison requires values of one type family. Strings are converted if they are compared with dates or timestamps.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.sql_parser import DEPTH_MAX, SqlParser
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.expressions.functions import (
    FUNCTIONS,
    UnsuitableError,
    compare,
    evaluate_function,
    exact_scalar,
    resolve_cast,
    resolve_function,
    to_decimal256,
    to_float,
)
from streamhouse_spark.schema.ddl import DECIMAL_PRECISION_MAX, parse_type, type_name, unquote_text
from streamhouse_spark.schema.table_schema import TableSchema

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![A-Za-z0-9_.])
      | (?P<text>'(?:[^'\\]|\\.|'')*')
      | `(?P<quoted>(?:[^`]|``)+)`
      | (?P<operator>\|\||<=|>=|<>|!=|==|=|<|>|\(|\)|,|\+|-|\*)
      | (?P<word>[^\W\d]\w*))""",
    re.VERBOSE | re.DOTALL,
)
COMPARISONS: Final = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_ARITHMETIC: Final = {"+": "add", "-": "subtract", "||": "concat", "*": "multiply"}
_WORDS: Final = frozenset(["and", "or", "not", "in", "between", "like", "escape", "is", "null", "true", "false"])
_BOOLEAN: Final = pa.bool_()
_NULL: Final = pa.null()
_SUPPORTED: Final = (
    "supported are columns, numbers and 'strings', + - * ||, comparisons, IN, BETWEEN, LIKE, IS NULL, AND, OR, NOT, "
    f"CAST(… AS …) and {', '.join(sorted(FUNCTIONS))}"
)


@dataclass(frozen=True, slots=True)
class SqlExpression:
    """A node of a typed expression tree: a column, a constant, or an operator or function with its operands."""

    operator: str
    type: pa.DataType
    operands: tuple[SqlExpression, ...] = ()
    value: Any = None
    """The name of a column, the value of a constant, the pattern of LIKE, or a further argument of a function."""

    def columns(self) -> frozenset[str]:
        """Return the names of the columns that the expression references."""
        if self.operator == "column":
            return frozenset([self.value])
        return frozenset[str]().union(*(operand.columns() for operand in self.operands))


def parse_expression(text: str, schema: TableSchema, where: str, generated: Sequence[str] = ()) -> SqlExpression:
    """Parse an expression over columns that are not ``generated``. Errors name ``where``.

    Raises `InvalidOptionError` for unsupported syntax, an unknown column, and operands of unsuitable types.
    """
    return _Parser(text, schema, where, generated).parse()


class _Parser(SqlParser):
    """Errors start with ``where`` and show the text, the position, the problem and the supported syntax."""

    def __init__(self, text: str, schema: TableSchema, where: str, generated: Sequence[str]) -> None:
        self._schema, self._where, self._generated = schema, where, frozenset(generated)
        super().__init__(text, _TOKEN)

    def refuse_token(self, at: int) -> NoReturn:
        self._refuse_syntax(at)

    def _refuse_syntax(self, at: int | None = None) -> NoReturn:
        self._refuse(f"is not supported; {_SUPPORTED}", at)

    def _refuse(self, why: str, position: int | None = None) -> NoReturn:
        at = self.at if position is None else position
        raise InvalidOptionError(f"{self._where} ({self._text}): {self.excerpt(at, 30)} at character {at + 1} {why}")

    def parse(self) -> SqlExpression:
        part = self._condition()
        if not self.is_at_end:
            self._refuse_syntax()
        if not part.columns():
            self._refuse("names no column", 0)
        return part

    def _expect(self, operator: str) -> None:
        if not self.accept(operator):
            self._refuse(f"was found, expected {operator!r}")

    def _expect_word(self, word: str) -> None:
        if not self.accept_word(word):
            self._refuse(f"was found, expected {word.upper()}")

    def _refuse_depth(self, at: int | None = None) -> NoReturn:
        self._refuse(f"is nested deeper than {DEPTH_MAX} levels", at)

    def _condition(self) -> SqlExpression:
        with self.enter_nesting(self._refuse_depth):
            return self._chain("or", lambda: self._chain("and", self._negation))

    def _chain(self, word: str, operand: Callable[[], SqlExpression]) -> SqlExpression:
        begin = self.at
        parts = self.operands(word, operand)
        if len(parts) == 1:
            return parts[0]
        for part in parts:
            self._require_condition(part, begin)
        return SqlExpression(word, _BOOLEAN, tuple(parts))

    def _negation(self) -> SqlExpression:
        begin, is_negated, has_not = self.at, False, False
        while self.accept_word("not"):
            is_negated, has_not = not is_negated, True
        part = self._test()
        if has_not:
            self._require_condition(part, begin)
        return _not(part) if is_negated else part

    def _test(self) -> SqlExpression:
        begin = self.at
        left = self._sum()
        if self.is_next(*COMPARISONS):
            _, operator, _ = self.take()
            return self._comparison(COMPARISONS[operator], left, self._sum(), begin)
        if self.accept_word("is"):
            is_negated = self.accept_word("not")
            self._expect_word("null")
            part = SqlExpression("is null", _BOOLEAN, (left,))
            return _not(part) if is_negated else part
        is_negated = self.accept_word("not")
        if self.accept_word("in"):
            part = self._membership(left, begin)
        elif self.accept_word("between"):
            low = self._sum()
            self._expect_word("and")
            bounds = (self._comparison(">=", left, low, begin), self._comparison("<=", left, self._sum(), begin))
            part = SqlExpression("and", _BOOLEAN, bounds)
        elif self.accept_word("like"):
            part = self._like(left, begin)
        elif is_negated:
            self._refuse_syntax()
        else:
            return left
        return _not(part) if is_negated else part

    def _membership(self, left: SqlExpression, begin: int) -> SqlExpression:
        values = self._arguments()
        if any(pa.types.is_floating(part.type) for part in (left, *values)):  # Spark compares all in one common type
            left, values = _as_double(left), [_as_double(value) for value in values]
        tests = tuple(self._comparison("=", left, value, begin) for value in values)
        return tests[0] if len(tests) == 1 else SqlExpression("or", _BOOLEAN, tests)

    def _arguments(self) -> list[SqlExpression]:
        self._expect("(")
        values = [self._condition()]
        while self.accept(","):
            values.append(self._condition())
        self._expect(")")
        return values

    def _like(self, left: SqlExpression, begin: int) -> SqlExpression:
        if left.type != pa.string():
            self._refuse(f"is a {_name(left.type)}, expected a string", begin)
        at = self.at
        pattern, escape = self._text_literal("a pattern"), "\\"
        if self.accept_word("escape"):
            escape = self._text_literal("a character")
            if len(escape) != 1:
                self._refuse("has an ESCAPE that is not one character", at)
        escaped = re.escape(escape)
        if re.sub(rf"{escaped}[%_{escaped}]", "", pattern, flags=re.DOTALL).count(escape):
            self._refuse(f"has a {escape} before another character than % _ and {escape}", at)
        return SqlExpression("like", _BOOLEAN, (left,), _with_backslashes(pattern, escape))

    def _text_literal(self, expected: str) -> str:
        kind, literal, _ = self.peek()
        if kind != "text":
            self._refuse(f"was found, expected {expected} in 'single quotes'")
        self.take()
        return unquote_text(literal)

    def _comparison(self, operator: str, left: SqlExpression, right: SqlExpression, begin: int) -> SqlExpression:
        left, right = self._convert_part(left, right.type), self._convert_part(right, left.type)
        families = {_family(left.type), _family(right.type)}
        if len(families) > 1 or families & {"other", "null"}:
            self._refuse(f"compares a {_name(left.type)} with a {_name(right.type)}", begin)
        return SqlExpression(operator, _BOOLEAN, (left, right))

    def _convert_part(self, part: SqlExpression, target: pa.DataType) -> SqlExpression:
        """Convert NULL, and a string that is compared with dates or timestamps, to a constant of type ``target``."""
        if part.type == _NULL:
            return SqlExpression("constant", target, (), None)
        if part.operator != "constant" or part.type != pa.string() or not pa.types.is_temporal(target):
            return part
        try:
            value = pa.scalar(part.value, pa.string()).cast(target)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            self._refuse(f"compares a {_name(target)} with {part.value!r}, which is not a {_name(target)}", 0)
        return SqlExpression("constant", target, (), value)

    def _sum(self) -> SqlExpression:
        return self._arithmetic(("+", "-", "||"), lambda: self._arithmetic(("*",), self._factor))

    def _arithmetic(self, operators: tuple[str, ...], operand: Callable[[], SqlExpression]) -> SqlExpression:
        part = operand()
        while self.is_next(*operators):
            _, operator, at = self.take()
            part = self._function_call(_ARITHMETIC[operator], [part, operand()], at)
        return part

    def _factor(self) -> SqlExpression:
        kind, value, at = self.peek()
        if kind == "text":
            return SqlExpression("constant", pa.string(), (), self._text_literal("a string"))
        self.take()
        if (kind, value) == ("operator", "-"):
            return self._negative(at)
        if (kind, value) == ("operator", "("):
            part = self._condition()
            self._expect(")")
            return part
        if kind == "number":
            return self._number(value, at)
        if kind == "word" and value.lower() in ("true", "false"):
            return SqlExpression("constant", _BOOLEAN, (), value.lower() == "true")
        if kind == "word" and value.lower() == "null":
            return SqlExpression("constant", _NULL)
        if kind == "word" and self.is_next("("):
            return self._cast(at) if value.lower() == "cast" else self._function(value, at)
        if kind == "quoted" or (kind == "word" and value.lower() not in _WORDS):
            return self._column(value.replace("``", "`"), at)
        return self._refuse_syntax(at)

    def _negative(self, at: int) -> SqlExpression:
        kind, value, _ = self.peek()
        if kind == "number":
            self.take()
            return self._number(f"-{value}", at)
        with self.enter_nesting(lambda: self._refuse_depth(at)):
            return self._function_call("negative", [self._factor()], at)

    def _number(self, text: str, at: int) -> SqlExpression:
        if "e" in text.lower():
            return SqlExpression("constant", pa.float64(), (), float(text))
        if "." not in text:
            for kind, bits in ((pa.int32(), 31), (pa.int64(), 63)):
                if -(1 << bits) <= int(text) < 1 << bits:
                    return SqlExpression("constant", kind, (), int(text))
        value = decimal.Decimal(text)
        scale = len(text.partition(".")[2])
        digits = max(len(value.as_tuple().digits), scale)
        if digits > DECIMAL_PRECISION_MAX:
            self._refuse(f"has more than {DECIMAL_PRECISION_MAX} digits", at)
        return SqlExpression("constant", pa.decimal128(max(digits, 1), scale), (), value)

    def _cast(self, at: int) -> SqlExpression:
        self._expect("(")
        part = self._condition()
        self._expect_word("as")
        begin, depth = self.at, 0
        while not self.is_at_end and (depth or not self.is_next(")")):
            depth += {"(": 1, ")": -1}.get(self.take()[1], 0)
        try:
            target = parse_type(self._text[begin : self.at].strip())
        except SchemaMismatchError:
            self._refuse("is not a type", begin)
        self._expect(")")
        try:
            return SqlExpression(resolve_cast(part.type, target), target, (part,))
        except UnsuitableError as error:
            return self._refuse(f"casts a {_name(part.type)} to {type_name(target)}, {error}", at)

    def _function(self, name: str, at: int) -> SqlExpression:
        if name.lower() not in FUNCTIONS:
            self._refuse(f"calls {name}(…), which is not supported; {_SUPPORTED}", at)
        return self._function_call(name.lower(), self._arguments(), at)

    def _function_call(self, name: str, arguments: Sequence[SqlExpression], at: int) -> SqlExpression:
        constants = [part.value if part.operator == "constant" else None for part in arguments]
        try:
            operator, kind, places, value = resolve_function(name, [part.type for part in arguments], constants)
        except UnsuitableError as error:
            types = ", ".join(_name(part.type) for part in arguments)
            return self._refuse(f"has operands ({types}): {error}", at)
        return SqlExpression(operator, kind, tuple(arguments[place] for place in places), value)

    def _column(self, name: str, at: int) -> SqlExpression:
        column = self._schema.find(name)
        if column is None:
            names = ", ".join(self._schema.names[:30])
            self._refuse(f"names an unknown column '{name}'; the columns are {names}", at)
        if column.size is not None and column.size.kind == "char":
            self._refuse(f"names '{column.name}' of type CHAR(n), whose values are padded with blanks", at)
        if column.name in self._generated:
            self._refuse(f"names '{column.name}', which is also a generated column", at)
        return SqlExpression("column", column.type, (), column.name)

    def _require_condition(self, part: SqlExpression, begin: int) -> None:
        if part.type != _BOOLEAN:
            self._refuse(f"is a {_name(part.type)}, expected a condition", begin)


def _not(part: SqlExpression) -> SqlExpression:
    return SqlExpression("not", _BOOLEAN, (part,))


def _as_double(part: SqlExpression) -> SqlExpression:
    is_exact = pa.types.is_integer(part.type) or pa.types.is_decimal(part.type)
    return SqlExpression("as nearest", pa.float64(), (part,)) if is_exact else part


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


def evaluate(part: SqlExpression, rows: pa.Table | pa.RecordBatch) -> Any:
    """Return the expression's value for each row. Raises ``pa.ArrowInvalid`` if a number overflows its type."""
    match part.operator:
        case "column":
            return rows.column(part.value)
        case "constant":
            return part.value if isinstance(part.value, pa.Scalar) else pa.scalar(part.value, part.type)
        case "and" | "or":
            return _evaluate_chain(part, rows)
    operands = [evaluate(operand, rows) for operand in part.operands]
    match part.operator:
        case "not":
            return pc.invert(operands[0])
        case "is null":
            return pc.is_null(operands[0])
        case "like":
            return pc.match_like(operands[0], part.value)
    if part.operator in COMPARISONS.values():
        return _compare(part, *operands)
    return evaluate_function(part.operator, part.type, operands, part.value)


def _evaluate_chain(part: SqlExpression, rows: pa.Table | pa.RecordBatch) -> Any:
    """Evaluate AND or OR. As in Spark, rows that an earlier operand decides may overflow in a later operand."""
    connect = pc.and_kleene if part.operator == "and" else pc.or_kleene
    answer = evaluate(part.operands[0], rows)
    for operand in part.operands[1:]:
        try:
            values = evaluate(operand, rows)
        except pa.ArrowInvalid:
            if isinstance(answer, pa.Scalar):
                raise
            is_open = pc.fill_null(pc.equal(answer, part.operator == "and"), True)
            undecided = pc.indices_nonzero(is_open)
            places = pc.index_in(pa.array(range(rows.num_rows), pa.uint64()), value_set=undecided)
            values = pc.take(evaluate(operand, rows.take(undecided)), places)
        answer = connect(answer, values)
    return answer


def _compare(part: SqlExpression, left: Any, right: Any) -> Any:
    first, second = part.operands
    if pa.types.is_floating(first.type) or pa.types.is_floating(second.type):
        left, right = to_float(left, pa.float64()), to_float(right, pa.float64())
    elif first.type != second.type:
        left, right = _align_exact_numbers(first, second, left, right)
    return compare(part.operator, left, right)


def _align_exact_numbers(first: SqlExpression, second: SqlExpression, left: Any, right: Any) -> tuple[Any, Any]:
    """Convert integers and decimals to one type: the column's type if it can hold the constant."""
    for constant, part, values, is_left in ((first, second, right, True), (second, first, left, False)):
        if constant.operator == "constant" and (scalar := exact_scalar(constant.value, part.type)) is not None:
            return (scalar, values) if is_left else (values, scalar)
    if pa.types.is_integer(first.type) and pa.types.is_integer(second.type):
        return pc.cast(left, pa.int64()), pc.cast(right, pa.int64())
    left, right = to_decimal256(left), to_decimal256(right)
    integer_digits = max(side.type.precision - side.type.scale for side in (left, right))
    scale = max(left.type.scale, right.type.scale)
    kind = pa.decimal256(integer_digits + scale, scale)
    return pc.cast(left, kind), pc.cast(right, kind)
