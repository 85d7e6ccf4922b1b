"""Identifiers are named by what they hold or do, and not by a grammatical state or a private word."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from project.source_trees import PACKAGE

WHOLE = frozenset(
    """
    found known wanted gone told given there then what taken asked kept begun made seen beside among behind
    others news anew looked stands settled those them both
    """.split()  # noqa: SIM905
)
"""Words that are no name: they say nothing about the value. Banned if an identifier has no other word."""
PARTS = frozenset(
    """
    told begun beside among anew lacks lacking wanted whoever somebody nobody mended stand stands
    """.split()  # noqa: SIM905
)
"""Words that no identifier has as a part, because the field has another one."""
ALLOWED = {
    "cli/diagnostics.py": {"found"},  # printed by `streamhouse doctor`
    "config/table_properties.py": {"_KNOWN"},
    "core/lazy_dataclass.py": {"_ANEW", "_KNOWN"},
    "lake/types.py": {"there"},  # sent to the JVM
    "log/tiering_failures.py": {"mended_ms"},  # stored
    "schema/table_schema.py": {"FOUND", "_BESIDE_PARTITIONS"},  # `_found` is a column that users see
    "views/ivm/refresh_sql.py": {"GONE"},
}
"""File → names that stay: public, stored, or sent to another process."""


def identifiers(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield each name that a module binds, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name):
                yield name, node.lineno
            case ast.Name(id=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno


def is_banned(name: str) -> bool:
    words = name.lower().strip("_").split("_")
    return bool(PARTS & {*words}) or (len(words) == 1 and words[0] in WHOLE)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_identifiers_say_what_they_hold(path: Path):
    allowed = ALLOWED.get(path.relative_to(PACKAGE).as_posix(), ())
    banned = {
        f"{line}: {name}"
        for name, line in identifiers(ast.parse(path.read_text("utf-8")))
        if is_banned(name) and name not in allowed
    }
    assert not banned


@pytest.mark.parametrize("name", ["found", "_found", "is_told", "rows_beside", "given", "wanted_rows", "then"])
def test_a_banned_name_is_noticed(name):
    assert is_banned(name)


@pytest.mark.parametrize("name", ["known_versions", "num_found", "rows", "is_known", "standard"])
def test_other_names_are_allowed(name):
    assert not is_banned(name)
