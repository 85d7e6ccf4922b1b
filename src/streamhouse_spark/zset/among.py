"""Conditions that a column has one of some values, by which a source leaves out files and segments. Pure."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from typing import Final

VALUES_MAX: Final = 1_000
_PLAIN_TEXT: Final = re.compile(r"[A-Za-z0-9 _.:/@+-]*")


def among(column: str, values: Sequence[object]) -> str:
    """Return the condition in SQL; empty where the values are too many, or have no plain literals."""
    if len(values) > VALUES_MAX:
        return ""
    literals = [_literal(value) for value in values if value is not None]
    if None in literals:
        return ""
    parts = [f"{column} IN ({', '.join(map(str, literals))})"] if literals else []
    if len(literals) < len(values):
        parts.append(f"{column} IS NULL")
    return f"({' OR '.join(parts)})" if parts else ""


def _literal(value: object) -> str | None:
    if type(value) is int:
        return str(value)
    if type(value) is dt.date:
        return f"DATE'{value:%Y-%m-%d}'" if value.year > 999 else None
    return f"'{value}'" if isinstance(value, str) and _PLAIN_TEXT.fullmatch(value) else None
