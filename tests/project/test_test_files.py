"""Unit tests lie in the folder of the module that they test, and every test is named by a phrase."""

from __future__ import annotations

import ast
from pathlib import Path

from doc_pages import ROOT
from project.source_trees import PACKAGE, walk

TESTS = ROOT / "tests"
FOLDERS_WITHOUT_A_PACKAGE = {"advice", "golden"}
"""The advice of errors, and files of the stored formats, concern all packages."""
WORDS_MIN = 3


def short_names(tree: ast.Module) -> list[str]:
    """Return the names of tests with fewer words than a phrase has."""
    functions = (node.name for node in walk(tree) if isinstance(node, ast.FunctionDef))
    return [name for name in functions if name.startswith("test_") and name.count("_") < WORDS_MIN]


def test_each_folder_of_unit_tests_mirrors_a_package():
    folders = {path.parent.relative_to(TESTS / "unit") for path in (TESTS / "unit").rglob("test_*.py")}
    mirrored = {path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")}
    assert folders - mirrored == {Path(name) for name in FOLDERS_WITHOUT_A_PACKAGE}


def test_every_test_is_named_by_a_phrase():
    named = {path: short_names(ast.parse(path.read_text("utf-8"))) for path in sorted(TESTS.rglob("test_*.py"))}
    assert {path.relative_to(TESTS).as_posix(): names for path, names in named.items() if names} == {}


def test_a_test_that_is_named_by_a_word_is_found():
    tree = ast.parse("def test_values(): ...\ndef test_a_round(): ...\ndef test_a_round_commits_all_rows(): ...")
    assert short_names(tree) == ["test_values", "test_a_round"]
