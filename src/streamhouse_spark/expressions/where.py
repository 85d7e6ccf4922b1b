"""``where`` conditions: a subset of SQL, parsed to a filter by which reads skip files and segments.

::

    condition := and ("OR" and)*
    and := not ("AND" not)*
    not := "NOT" not | "(" condition ")" | test
    test := column ("=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">=") literal
          | column ["NOT"] "IN" "(" literal ("," literal)* ")" | column "IS" ["NOT"] "NULL"
    literal := number | 'text' | TRUE | FALSE

Strings are converted to the column's type: ``day >= '2026-01-31'``, ``at < '2026-01-31T12:00:00Z'``.
"""

from __future__ import annotations

import decimal
import operator
import re
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, Final, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.python_values import from_text
from streamhouse_spark.core.sql_parser import DEPTH_MAX, SqlParser
from streamhouse_spark.errors import InvalidOptionError, quote
from streamhouse_spark.expressions.filters import AllOf, BoundFilter, Filter, Predicate, find_field, parse_filter
from streamhouse_spark.expressions.sql import COMPARISONS

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
      | '(?P<text>(?:[^']|'')*)'
      | `(?P<quoted>[^`]+)`
      | (?P<operator><=|>=|<>|!=|==|=|<|>|\(|\)|,)
      | (?P<word>[A-Za-z_][A-Za-z0-9_$]*))""",
    re.VERBOSE,
)
_Tree: TypeAlias = "pc.Expression | list[list[Predicate]]"
"""An expression, or lists of predicates of which at least one must hold in full."""
_COMPLEMENTS: Final = {
    "=": "!=",
    "!=": "=",
    "in": "not in",
    "not in": "in",
    "is null": "not null",
    "not null": "is null",
}
"""Operator → the one that is true where it is false, and null where it is null. NaN has none for ``<``."""


@dataclass(frozen=True, slots=True)
class _SqlFilter(Filter):
    """A condition in SQL, whose literals have the types of the columns that it is bound to."""

    text: str = ""

    def bind(self, schema: pa.Schema) -> BoundFilter:
        parsed = parse_filter(parse_where(self.text, schema))
        assert parsed is not None
        return parsed.bind(schema)


def parse_where(text: str, schema: pa.Schema) -> list[Predicate] | list[list[Predicate]] | pc.Expression:
    """Parse a condition to a filter for `parse_filter`: predicates where they can express it, else an expression.

    Raises `InvalidOptionError` with the position of unsupported syntax, `SchemaMismatchError` for an unknown column.
    """
    tree = _Parser(text, schema).parse()
    return tree[0] if isinstance(tree, list) and len(tree) == 1 else tree


def parse_condition(value: Any) -> Filter | None:
    """Parse a filter in any form that users give, see `FilterLike`. None for an empty list.

    Raises as `parse_filter`, and for SQL text when it is bound.
    """
    return _SqlFilter(None, text=value) if isinstance(value, str) else parse_filter(value)


def combine_filters(values: Sequence[Any]) -> Filter | None:
    """Parse filters that must all hold; None if there is none. Raises as `parse_condition`."""
    filters = [filter_ for filter_ in map(parse_condition, values) if filter_ is not None]
    return AllOf(None, filters=tuple(filters)) if len(filters) > 1 else next(iter(filters), None)


class _Parser(SqlParser):
    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._schema = schema
        super().__init__(text, _TOKEN)

    def refuse_token(self, at: int) -> NoReturn:
        self._refuse("a column, an operator or a literal", at)

    def _refuse(self, expected: str, position: int | None = None) -> NoReturn:
        at = self.at if position is None else position
        raise InvalidOptionError(
            f"where {self._text!r}: expected {expected} at character {at + 1}, found {self.excerpt(at, 20)}; "
            "an example is \"amount > 5 AND customer = 'ann'\""
        )

    def parse(self) -> _Tree:
        tree = self._condition()
        if not self.is_at_end:
            self._refuse("AND, OR or the end")
        return tree

    def _condition(self, *, is_negated: bool = False) -> _Tree:
        parts = self.operands("or", partial(self._conjunction, is_negated=is_negated))
        return self._all(parts) if is_negated else self._any(parts)

    def _conjunction(self, *, is_negated: bool) -> _Tree:
        parts = self.operands("and", partial(self._negation, is_negated=is_negated))
        return self._any(parts) if is_negated else self._all(parts)

    def _any(self, parts: list[_Tree]) -> _Tree:
        groups = [group for part in parts if isinstance(part, list) for group in part]
        return groups if self._are_predicates(parts) else reduce(operator.or_, map(self._expression, parts))

    def _all(self, parts: list[_Tree]) -> _Tree:
        groups = [group for part in parts if isinstance(part, list) for group in part]
        if self._are_predicates(parts) and len(groups) == len(parts):
            return [[predicate for group in groups for predicate in group]]
        return parts[0] if len(parts) == 1 else reduce(operator.and_, map(self._expression, parts))

    def _are_predicates(self, parts: list[_Tree]) -> bool:
        return all(isinstance(part, list) for part in parts)

    def _expression(self, tree: _Tree) -> pc.Expression:
        if isinstance(tree, pc.Expression):
            return tree
        return Filter(None, tuple(map(tuple, tree))).bind(self._schema).expression

    def _negation(self, *, is_negated: bool) -> _Tree:
        """Parse a test. A negation is moved to the tests inside it, so that null stays null."""
        with self.enter_nesting(lambda: self._refuse(f"at most {DEPTH_MAX} levels of parentheses and NOT")):
            if self.accept_word("not"):
                return self._negation(is_negated=not is_negated)
            if self.accept("("):
                tree = self._condition(is_negated=is_negated)
                if not self.accept(")"):
                    self._refuse("a closing parenthesis")
                return tree
            column, name, value = self._test()
            if is_negated and name not in _COMPLEMENTS:
                return ~self._expression([[(column, name, value)]])
            return [[(column, _COMPLEMENTS[name] if is_negated else name, value)]]

    def _test(self) -> Predicate:
        column = self._column()
        if self.accept_word("is"):
            is_negated = self.accept_word("not")
            if not self.accept_word("null"):
                self._refuse("NULL")
            return column.name, "not null" if is_negated else "is null", None
        if self.accept_word("not"):
            if not self.accept_word("in"):
                self._refuse("IN")
            return column.name, "not in", self._literals(column)
        if self.accept_word("in"):
            return column.name, "in", self._literals(column)
        if not self.is_next(*COMPARISONS):
            self._refuse("=, !=, <, <=, >, >=, IN or IS NULL")
        return column.name, COMPARISONS[self.take()[1]], self._literal(column)

    def _column(self) -> pa.Field:
        kind, name, _ = self.peek()
        if kind not in ("word", "quoted"):
            self._refuse("a column")
        self.take()
        return find_field(self._schema, name)

    def _literals(self, column: pa.Field) -> list[Any]:
        if not self.accept("("):
            self._refuse("a list such as (1, 2)")
        values = [self._literal(column)]
        while self.accept(","):
            values.append(self._literal(column))
        if not self.accept(")"):
            self._refuse("a comma or a closing parenthesis")
        return values

    def _literal(self, column: pa.Field) -> Any:
        kind, value, _ = self.peek()
        if kind == "text":
            value = value.replace("''", "'")
        elif not (kind == "number" or (kind == "word" and value.lower() in ("true", "false"))):
            self._refuse("a number, a string in 'single quotes', TRUE or FALSE")
        if kind == "text" and pa.types.is_floating(column.type):
            self._refuse(f"a number, because column {column.name} has type {column.type},")
        if kind != "text" and (pa.types.is_string(column.type) or pa.types.is_temporal(column.type)):
            self._refuse(f"a string in 'single quotes', because column {column.name} has type {column.type},")
        converted = self._convert_literal(value, column)
        self.take()
        return converted

    def _convert_literal(self, value: str, column: pa.Field) -> Any:
        if pa.types.is_integer(column.type) or pa.types.is_decimal(column.type):
            try:
                return decimal.Decimal(value)  # compares exactly with any numeric column
            except decimal.InvalidOperation:
                self._refuse(f"a number, because column {column.name} has type {column.type},")
        try:
            scalar = from_text(value, column.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeEncodeError) as error:
            raise InvalidOptionError(
                f"where: cannot compare column '{column.name}' of type {column.type} with {quote(value)} "
                f"({str(error).splitlines()[0]}); use a literal of the column's type"
            ) from error
        return scalar if pa.types.is_temporal(column.type) else scalar.as_py()
