"""Each error text of the source that advises something is followed by a case, or by a test that is named here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from unit import test_advice, test_advice_conflicts, test_advice_tables
from unit.error_texts import error_texts

TESTS = Path(__file__).parent.parent
CASES = [a for m in (test_advice, test_advice_conflicts, test_advice_tables) for a in m.ADVICE.values()]
ARGUMENTS = {
    "INVALID_OPTION",
    "INVALID_NAME",
    "SCHEMA_MISMATCH",
    "TABLE_EXISTS",
    "TABLE_NOT_FOUND",
    "WAREHOUSE_NOT_FOUND",
    "DATABASE_NOT_EMPTY",
}
"""Mostly of arguments that cannot be, which say what can. Only those that ask for more than another argument count."""
ASKS_FOR_MORE = re.compile(
    r"retier|relocate|[Ss]et (it|the|table)|TBLPROPERTIES|ALTER TABLE|checkpoint|\bagain\b|[Dd]rop (it|or|the|them|this)"
    r"|\badd a|fill it|new table|use upsert|INSERT"
)
ELSEWHERE: dict[str, str] = {}
"""Words → the test that does what they say."""
NO_ADVICE: set[str] = set()


def uncovered():
    for text in error_texts():
        if text.condition == "MISSING_EXTRA" or (text.condition in ARGUMENTS and not ASKS_FOR_MORE.search(text.text)):
            continue
        if any(a.condition == text.condition and a.words in text.text for a in CASES):
            continue
        if any(words in text.text for words in (*ELSEWHERE, *NO_ADVICE)):
            continue
        yield text


def test_each_is_followed():
    assert [f"{t.where} {t.condition}: {t.text}" for t in uncovered()] == []
