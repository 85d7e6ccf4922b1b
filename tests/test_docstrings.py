"""The form of docstrings: the first sentence begins with a verb or names its subject, so that it can be read alone."""

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import streamhouse_spark

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"

CLAUSES = {"what", "who", "whose", "whom", "whoever", "whatever", "that", "which", "where", "of", "those", "these"}
"""First words of a clause without its noun, or of an attribute of a subject that is not named."""
FRAGMENTS = CLAUSES | {"also", "as", "at", "because", "by", "for", "from", "in", "not", "than", "then", "till", "with"}
"""First words of half a sentence: the verb or the noun before it is missing. An attribute may begin with them, because
its name is the noun."""

Defined = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str, set[str]]]:
    """Line, text and forbidden first words of each docstring, those of attributes included."""
    for node in ast.walk(tree):
        if isinstance(node, Defined) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text, FRAGMENTS
        body = node.body if isinstance(node, Defined) else []
        for before, after in pairwise(body):
            match (before, after):
                case (ast.Assign() | ast.AnnAssign(), ast.Expr(ast.Constant(str(text)))):
                    yield after.lineno, inspect.cleandoc(text), CLAUSES


def test_docstrings_begin_with_a_verb_or_a_noun():
    half = [
        f"{path.relative_to(ROOT)}:{line} {text.splitlines()[0]}"
        for path in sorted(SRC.rglob("*.py"))
        for line, text, words in docstrings(ast.parse(path.read_text()))
        if text.split(maxsplit=1)[0].strip(":,;.").lower() in words
    ]
    assert not half, "begin with a verb, or with the noun that is described:\n" + "\n".join(half)


def test_modules_say_what_they_are_for():
    silent = [
        str(path.relative_to(ROOT))
        for path in sorted(SRC.rglob("*.py"))
        if (tree := ast.parse(path.read_text())).body and not ast.get_docstring(tree)
    ]
    assert not silent, f"a module without a docstring: {silent}"


def test_the_public_interface_is_described():
    silent = []
    for name in streamhouse_spark.__all__:
        found = getattr(streamhouse_spark, name)
        if inspect.isclass(found) and issubclass(found, Exception):
            continue  # the tree of errors stands in its module
        if not (inspect.isclass(found) or inspect.isfunction(found)):
            continue
        silent += [] if found.__doc__ else [name]
        methods = vars(found).items() if inspect.isclass(found) else ()
        silent += [f"{name}.{m}" for m, f in methods if inspect.isfunction(f) and m[0] != "_" and not f.__doc__]
    assert not silent, f"public, without a docstring: {silent}"
