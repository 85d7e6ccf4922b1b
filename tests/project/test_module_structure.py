"""Modules form layers without cycles, and ``__init__`` modules hold no logic. import-linter checks the layers."""

from __future__ import annotations

import ast
import tomllib

from doc_pages import ROOT
from project.source_trees import parse_sources, walk


def import_graph(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Return each module → the modules of the package that it imports, also inside functions and for types."""
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): t for name, t in trees.items()}
    graph: dict[str, set[str]] = {}
    for module, tree in modules.items():
        for node in walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("streamhouse_spark"):
                base = node.module.removeprefix("streamhouse_spark").removeprefix(".")
                names = {f"{base}.{alias.name}".removeprefix(".") for alias in node.names}
                imported = {name if name in modules else base for name in names} & modules.keys()
                graph.setdefault(module, set()).update(imported)
    return {module: imported - {module} for module, imported in graph.items()}


def find_cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the modules on a path into a cycle, by removing modules that import none of the remaining ones."""
    remaining = {module: set(imported) for module, imported in graph.items()}
    while leaves := {module for module, imported in remaining.items() if not imported & remaining.keys()}:
        remaining = {module: imported for module, imported in remaining.items() if module not in leaves}
    return [[module, *sorted(imported & remaining.keys())] for module, imported in sorted(remaining.items())]


def test_no_modules_import_each_other():
    assert find_cycles(import_graph(parse_sources())) == []


def test_an_import_cycle_is_found():
    code = {"a.py": "from streamhouse_spark.b import x", "b.py": "def f():\n    from streamhouse_spark import a"}
    assert find_cycles(import_graph({name: ast.parse(text) for name, text in code.items()})) == [["a", "b"], ["b", "a"]]


def test_every_layer_contract_is_exhaustive_and_has_no_exception():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    expected = {"package", "log", "lake", "storage", "read", "datasource", "catalog"}
    assert expected <= {contract["id"] for contract in contracts}
    for contract in contracts:
        assert contract["exhaustive"], contract["id"]
        assert set(contract) <= {"id", "name", "type", "containers", "exhaustive", "layers"}, contract["id"]
        assert not any(":" in layer or "(" in layer for layer in contract["layers"]), contract["id"]


def test_init_modules_hold_no_logic():
    for name, tree in parse_sources().items():
        if name.endswith("__init__.py") and not name.startswith(".."):
            logic = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
            assert {getattr(node, "name", "") for node in logic} <= {"__getattr__", "__dir__"}, name
