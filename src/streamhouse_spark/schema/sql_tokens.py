"""`SqlTokens`: a short SQL text over the columns of a table, read token by token. Errors name the place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.schema.table_schema import Column, TableSchema

_DEPTH_MAX: Final = 50

Token = tuple[str, str, int]
"""Its kind, its text and the place where it begins."""


class SqlTokens:
    """The tokens of a text, by a pattern whose groups are their kinds: ``operator``, ``word`` and others.

    Errors are `InvalidOptionError`. They begin with ``where``, show the text, what stands at which character and why it
    cannot stay, and, where it was not understood, what is ``possible``.
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
        """The place of the next token."""
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
        """Take all up to the parenthesis that closes around it; return the text and its place."""
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
        """Go a level down, 50 at most, so that no text ends Python's stack."""
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            self.refuse(f"lies deeper than {_DEPTH_MAX} levels", at)
        yield
        self._depth -= 1

    def column(self, name: str, at: int) -> Column:
        column = self._schema.find(name)
        if column is None:
            names = ", ".join(self._schema.names[:30])
            self.refuse(f"names a column '{name}' that is not there; the columns are {names}", at)
        if column.size is not None and column.size.kind == "char":
            self.refuse(f"names '{column.name}' of type CHAR(n), whose texts end in blanks", at)
        return column

    def require_end(self, columns: frozenset[str]) -> None:
        """Refuse what is left, and a text without columns."""
        if not self.is_at_end:
            self.refuse("is not understood")
        if not columns:
            self.refuse("names no column", 0)

    def refuse(self, why: str, position: int | None = None) -> NoReturn:
        at = self.at if position is None else position
        context = repr(self._text[at : at + 30]) if self._text[at:].strip() else "the end"
        possible = f"; {self._possible}" if "understood" in why else ""
        raise InvalidOptionError(f"{self._where} ({self._text}): {context} at character {at + 1} {why}{possible}")
