"""Modules, and the functions and methods that users call, have docstrings."""

from __future__ import annotations

import ast
import inspect

import streamhouse_spark
from project.source_trees import parse_sources


def test_every_module_has_a_docstring():
    missing = [name for name, tree in parse_sources().items() if tree.body and not ast.get_docstring(tree)]
    assert not missing, f"modules without a docstring: {missing}"


def test_the_public_interface_is_described():
    missing = []
    for name in streamhouse_spark.__all__:
        value = getattr(streamhouse_spark, name)
        if inspect.isclass(value) and issubclass(value, Exception):
            continue  # the module of errors describes their tree
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        missing += [] if value.__doc__ else [name]
        methods = vars(value).items() if inspect.isclass(value) else ()
        missing += [f"{name}.{m}" for m, f in methods if inspect.isfunction(f) and m[0] != "_" and not f.__doc__]
    assert not missing, f"public, without a docstring: {missing}"
