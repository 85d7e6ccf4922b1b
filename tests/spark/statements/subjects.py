"""The tables of a history as the reference knows them, and the counts of what was done with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from spark.statements.columns import Column, Form


class DifferenceError(AssertionError):
    """The tables are not those of the reference; the text says all about it."""


@dataclass
class Figures:
    """Counts of one history, or of many."""

    statements: Counter[str] = field(default_factory=Counter)
    rejections: Counter[str] = field(default_factory=Counter)
    upkeep: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)

    def add(self, other: Figures) -> None:
        for name in ("statements", "rejections", "upkeep", "checks", "seconds"):
            getattr(self, name).update(getattr(other, name))


@dataclass
class Version:
    """A version whose rows the reference still has, as the table ``copy``."""

    columns: tuple[Column, ...]
    form: Form
    changes: int
    copy: str
    numbers: frozenset[int] = frozenset()
    """The values of the identity column, which the reference does not know."""
    tag: str | None = None


@dataclass
class Subject:
    """A table, as the reference knows it."""

    name: str
    columns: Sequence[Column]
    form: Form
    changes: int = 0
    """How often its columns changed."""
    appended: int = 0
    versions: dict[int, Version] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def has_numbers(self) -> bool:
        return any(column.is_identity for column in self.columns)
