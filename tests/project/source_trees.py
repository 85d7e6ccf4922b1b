"""Syntax trees of the package's modules, and the names that a tree imports and calls."""

from __future__ import annotations

import ast
import functools
import gc
from pathlib import Path

from doc_pages import ROOT

SRC = ROOT / "src"
PACKAGE = SRC / "streamhouse_spark"
SOURCES = sorted(SRC.rglob("*.py"))


def name_source(path: Path) -> str:
    """Return the path of a source relative to the package; sources of the shim start with ``..``."""
    if path.is_relative_to(PACKAGE):
        return path.relative_to(PACKAGE).as_posix()
    return f"../{path.relative_to(SRC).as_posix()}"


@functools.cache
def parse_sources() -> dict[str, ast.Module]:
    """Return the name of each source → its tree, parsed once per process.

    The nodes live until the process ends; frozen, they are not traversed by each garbage collection.
    """
    gc.disable()
    trees = {name_source(path): ast.parse(path.read_text("utf-8")) for path in SOURCES}
    gc.freeze()
    gc.enable()
    return trees


@functools.cache
def walk(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return all nodes of a tree, as `ast.walk` yields them, computed once."""
    return tuple(ast.walk(tree))


@functools.cache
def imported_modules(tree: ast.Module) -> set[str]:
    """Return every module that is imported, at the top or inside functions."""
    modules: set[str] = set()
    for node in walk(tree):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module)
    return modules


@functools.cache
def called_names(tree: ast.AST) -> set[tuple[str | None, str]]:
    """Return every call and attribute as (name before the last dot, last name); a plain name has None before it."""
    names: set[tuple[str | None, str]] = set()
    for node in walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value
            names.add((owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", None), node.attr))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names.add((None, node.func.id))
    return names
