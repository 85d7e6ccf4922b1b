"""Parser of ``where`` conditions: a subset of SQL, as a filter with which reads can skip files and segments.

::

    condition := and ("OR" and)*
    and := not ("AND" not)*
    not := "NOT" not | "(" condition ")" | test
    test := column ("=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">=") literal
          | column ["NOT"] "IN" "(" literal ("," literal)* ")" | column "IS" ["NOT"] "NULL"
    literal := number | 'text' | TRUE | FALSE

Texts are converted to the column's type: ``day >= '2026-01-31'``, ``at < '2026-01-31T12:00:00Z'``.
"""

from __future__ import annotations

import decimal
import re
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.option_parsing import find_nearest
from streamhouse_spark.core.python_values import from_text
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError, quote
from streamhouse_spark.expressions.filters import Filter, Predicate

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
      | '(?P<text>(?:[^']|'')*)'
      | `(?P<quoted>[^`]+)`
      | (?P<operator><=|>=|<>|!=|==|=|<|>|\(|\)|,)
      | (?P<word>[A-Za-z_][A-Za-z0-9_$]*))""",
    re.VERBOSE,
)
_COMPARISONS: Final = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_DEPTH_MAX: Final = 50


def parse_where(text: str, schema: pa.Schema) -> list[Predicate] | pc.Expression:
    """Parse a condition to a filter for `Table.to_arrow`: predicates if all of them must hold, else an expression.

    Raises `InvalidOptionError` with the position of unsupported syntax, `SchemaMismatchError` for an unknown column.
    """
    tree = _Parser(text, schema).parse()
    if _is_predicate(tree):
        return [tree]
    if tree[0] == "and" and all(_is_predicate(t) for t in tree[1]):
        return list(tree[1])
    return _to_expression(tree, schema)


def _is_predicate(tree: Any) -> bool:
    return len(tree) == 3


def _to_expression(tree: Any, schema: pa.Schema) -> pc.Expression:
    if _is_predicate(tree):
        return Filter(None, (tree,)).bound(schema).expression
    parts = [_to_expression(t, schema) for t in tree[1]]
    if tree[0] == "not":
        return ~parts[0]
    result = parts[0]
    for part in parts[1:]:
        result = result & part if tree[0] == "and" else result | part
    return result


class _Parser:
    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._text = text
        self._schema = schema
        self._tokens = self._split(text)
        self._position = 0
        self._depth = 0

    def _split(self, text: str) -> list[tuple[str, str, int]]:
        """Yield (kind, value, position in the text) of each token."""
        tokens = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                self._refuse("a column, an operator or a literal", len(text[:position]))
            kind = match.lastgroup or ""
            tokens.append((kind, match[kind], match.start(kind)))
            position = match.end()
        return tokens

    def parse(self) -> Any:
        tree = self._chain("or")
        if self._position < len(self._tokens):
            self._refuse("AND, OR or the end")
        return tree

    def _chain(self, word: str) -> Any:
        parts = [self._link(word)]
        while self._take_word(word):
            parts.append(self._link(word))
        return parts[0] if len(parts) == 1 else (word, parts)

    def _link(self, word: str) -> Any:
        return self._chain("and") if word == "or" else self._negation()

    def _negation(self) -> Any:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            self._refuse(f"at most {_DEPTH_MAX} levels of parentheses and NOT")
        try:
            if self._take_word("not"):
                return ("not", [self._negation()])
            if self._take_operator("("):
                tree = self._chain("or")
                if not self._take_operator(")"):
                    self._refuse("a closing parenthesis")
                return tree
            return self._test()
        finally:
            self._depth -= 1

    def _test(self) -> Any:
        column = self._column()
        if self._take_word("is"):
            negated = self._take_word("not")
            if not self._take_word("null"):
                self._refuse("NULL")
            return (column.name, "not null" if negated else "is null", None)
        if self._take_word("not"):
            if not self._take_word("in"):
                self._refuse("IN")
            return ("not", [(column.name, "in", self._literals(column))])
        if self._take_word("in"):
            return (column.name, "in", self._literals(column))
        kind, value, _ = self._peek()
        if kind != "operator" or value not in _COMPARISONS:
            self._refuse("=, !=, <, <=, >, >=, IN or IS NULL")
        self._position += 1
        return (column.name, _COMPARISONS[value], self._literal(column))

    def _column(self) -> pa.Field:
        kind, name, _ = self._peek()
        if kind not in ("word", "quoted"):
            self._refuse("a column")
        self._position += 1
        folded = {field.name.casefold(): field for field in self._schema}
        if name.casefold() not in folded:
            nearest_name = find_nearest(name, self._schema.names)
            hint = (
                f"; did you mean '{nearest_name}'?"
                if nearest_name
                else f"; the columns are {', '.join(self._schema.names[:30])}"
            )
            raise SchemaMismatchError(f"where names an unknown column '{name}'{hint}")
        return folded[name.casefold()]

    def _literals(self, column: pa.Field) -> list[Any]:
        if not self._take_operator("("):
            self._refuse("a list such as (1, 2)")
        values = [self._literal(column)]
        while self._take_operator(","):
            values.append(self._literal(column))
        if not self._take_operator(")"):
            self._refuse("a comma or a closing parenthesis")
        return values

    def _literal(self, column: pa.Field) -> Any:
        kind, value, _ = self._peek()
        if kind == "text":
            value = value.replace("''", "'")
        elif not (kind == "number" or (kind == "word" and value.lower() in ("true", "false"))):
            self._refuse("a number, a text in 'single quotes', TRUE or FALSE")
        if kind == "text" and pa.types.is_floating(column.type):
            self._refuse(f"a number, because column {column.name} has type {column.type},")
        if kind != "text" and (pa.types.is_string(column.type) or pa.types.is_temporal(column.type)):
            self._refuse(f"a text in 'single quotes', because column {column.name} has type {column.type},")
        converted = self._convert_literal(value, column)
        self._position += 1
        return converted

    def _convert_literal(self, value: str, column: pa.Field) -> Any:
        if pa.types.is_integer(column.type) or pa.types.is_decimal(column.type):
            try:
                return decimal.Decimal(value)  # is compared exactly with any numeric column
            except decimal.InvalidOperation:
                self._refuse(f"a number, because column {column.name} has type {column.type},")
        try:
            scalar = from_text(value, column.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeEncodeError) as error:
            raise InvalidOptionError(
                f"where compares column '{column.name}' of type {column.type} with {quote(value)}, which is no such "
                f"value ({str(error).splitlines()[0]})",
            ) from error
        return scalar if pa.types.is_temporal(column.type) else scalar.as_py()

    def _peek(self) -> tuple[str, str, int]:
        return self._tokens[self._position] if self._position < len(self._tokens) else ("end", "", len(self._text))

    def _take_word(self, word: str) -> bool:
        kind, value, _ = self._peek()
        is_match = kind == "word" and value.lower() == word
        self._position += is_match
        return is_match

    def _take_operator(self, operator: str) -> bool:
        kind, value, _ = self._peek()
        is_match = kind == "operator" and value == operator
        self._position += is_match
        return is_match

    def _refuse(self, expected: str, position: int | None = None) -> NoReturn:
        at = self._peek()[2] if position is None else position
        context = repr(self._text[at : at + 20]) if self._text[at:].strip() else "the end"
        raise InvalidOptionError(
            f"where {self._text!r}: expected {expected} at character {at + 1}, found {context}; an example is "
            "\"amount > 5 AND customer = 'ann'\"",
        )
