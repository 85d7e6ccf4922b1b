"""Texts for people count by `count_of`, so that one row is "1 row"."""

from __future__ import annotations

import ast
import re

import pytest

from project.source_trees import PACKAGE

PLURAL = re.compile(
    r" (?:lake |new |micro-)?(?:rows|files|columns|tables|segments|changes|buckets|snapshots|queries|offsets|batches"
    r"|commits|versions|lines|records|rounds)\b"
)
PATHS = [path for folder in ("cli", "demo", "views") for path in sorted((PACKAGE / folder).rglob("*.py"))]


def is_padded(value: ast.FormattedValue) -> bool:
    """Return whether the value has a width or decimals: a cell of a table, or an average."""
    return value.format_spec is not None and ast.unparse(value.format_spec) != "f','"


def counts_of(source: str) -> list[str]:
    """Return the f-strings in which a plural follows a value, unless it follows "of": 1 of 2 rows."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            texts = [part.value if isinstance(part, ast.Constant) else part for part in ["", *node.values, ""]]
            for before, value, after in zip(texts, texts[1:], texts[2:], strict=False):
                is_plain = isinstance(value, ast.FormattedValue) and not is_padded(value)
                if is_plain and isinstance(after, str) and PLURAL.match(after) and not str(before).endswith(" of "):
                    found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_text_for_people_has_no_plural_after_a_plain_number(path):
    assert counts_of(path.read_text("utf-8")) == []


def test_a_plain_number_before_a_plural_is_detected():
    assert counts_of("f'{n:,} rows'") == ["f'{n:,} rows'"]
    assert counts_of("f'{k} of {n} rows, and {count_of(n, noun)} go'") == []
