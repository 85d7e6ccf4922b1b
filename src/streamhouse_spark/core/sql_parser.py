"""Base class of the parsers of SQL texts: column lists, expressions and conditions."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn, TypeVar

DEPTH_MAX: Final = 50
"""Levels of nested expressions."""
Token = tuple[str, str, int]
"""Kind, text and start position."""
_Tree = TypeVar("_Tree")


class SqlParser(ABC):
    """A recursive-descent parser over the tokens of a text. The group names of ``pattern`` are the token kinds."""

    def __init__(self, text: str, pattern: re.Pattern[str]) -> None:
        self._text = text
        self._position = self._depth = 0
        self._tokens: list[Token] = []
        end = 0
        while text[end:].strip():
            match = pattern.match(text, end)
            if match is None:
                self.refuse_token(end + len(text[end:]) - len(text[end:].lstrip()))
            kind = match.lastgroup or ""
            self._tokens.append((kind, match[kind], match.start(kind)))
            end = match.end()

    @abstractmethod
    def refuse_token(self, at: int) -> NoReturn:
        """Raise `InvalidOptionError` for invalid text at a position."""

    @property
    def at(self) -> int:
        """The position of the next token."""
        return self.peek()[2]

    @property
    def is_at_end(self) -> bool:
        return self._position >= len(self._tokens)

    def excerpt(self, at: int, length: int) -> str:
        """Return the text at a position for an error text."""
        return repr(self._text[at : at + length]) if self._text[at:].strip() else "the end"

    def peek(self, ahead: int = 0) -> Token:
        position = self._position + ahead
        return self._tokens[position] if position < len(self._tokens) else ("end", "", len(self._text))

    def take(self) -> Token:
        token = self.peek()
        self._position += 1
        return token

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

    def operands(self, word: str, operand: Callable[[], _Tree]) -> list[_Tree]:
        """Parse operands that a word connects."""
        parts = [operand()]
        while self.accept_word(word):
            parts.append(operand())
        return parts

    @contextmanager
    def enter_nesting(self, refuse: Callable[[], NoReturn]) -> Iterator[None]:
        """Enter a nesting level. Call ``refuse`` above `DEPTH_MAX` levels, so that no text exhausts the stack."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            refuse()
        yield
        self._depth -= 1
