"""Locks, events and locked files are made by core/concurrency.py, so that a forked child can use them."""

from __future__ import annotations

import ast

import pytest

from project.source_trees import called_names, parse_sources, walk

LOCKERS = {"flock", "lockf"}


def find_fork_offences(tree: ast.Module) -> set[str]:
    """Return the names that would stay locked in a child, or wait there for threads that the child does not have."""
    makers = {"Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier", "Timer"}
    contexts = {id(item.context_expr) for node in walk(tree) if isinstance(node, ast.With) for item in node.items}
    types = [getattr(node, name, None) for node in walk(tree) for name in ("annotation", "returns")]
    in_annotations = {id(node) for annotation in types if annotation is not None for node in ast.walk(annotation)}
    offences = set()
    for node in walk(tree):
        if id(node) in in_annotations:
            continue
        if isinstance(node, ast.ImportFrom) and node.module in ("threading", "multiprocessing", "queue", "functools"):
            names = {alias.name for alias in node.names}
            offences |= names if node.module != "functools" else names & {"cached_property"}
        elif isinstance(node, ast.Attribute) and node.attr in ("register_at_fork", "cached_property"):
            offences.add(node.attr)
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "threading" and node.attr in makers:
            offences.add(f"threading.{node.attr}")
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
            if name in {"ThreadPoolExecutor", "ProcessPoolExecutor"} and id(node) not in contexts:
                offences.add(name)
    return offences | find_locked_files(tree)


def find_locked_files(tree: ast.Module) -> set[str]:
    """Return the functions that open a file without forks.py and lock it, directly or through a function of the same
    module.
    """
    if not LOCKERS & {name for _, name in called_names(tree)}:
        return set()
    functions = [node for node in walk(tree) if isinstance(node, ast.FunctionDef)]
    names = {f.name: {n for pair in called_names(f) for n in pair if n} for f in functions}
    lockers = LOCKERS | {name for name, called in names.items() if called & LOCKERS}
    return {f"os.open in {name}" for name, called in names.items() if called & lockers and {"os", "open"} <= called}


def test_locks_are_made_by_forks_alone():
    offences = {name: found for name, tree in parse_sources().items() if (found := find_fork_offences(tree))}
    assert set(offences.pop("core/concurrency.py")) >= {"threading.RLock", "register_at_fork"}
    # An upload is one call in one thread, and its pool ends with it.
    assert offences.pop("storage/remote/multipart_upload.py") == {"ThreadPoolExecutor"}
    assert offences == {}, "take locks, events, cached_property, files to lock from forks.py; pools belong to one call"


@pytest.mark.parametrize(
    "code",
    [
        "import threading\nlock = threading.Lock()",
        "import threading\nfrom dataclasses import field\nlock = field(default_factory=threading.Lock)",
        "from threading import RLock",
        "from functools import cached_property",
        "import os\nos.register_at_fork(before=print)",
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(2)",
        "import fcntl, os\ndef f(p):\n    fd = os.open(p, 0)\n    fcntl.flock(fd, fcntl.LOCK_EX)",
        "import fcntl, os\ndef g(fd):\n    fcntl.flock(fd, 2)\ndef f(p):\n    g(os.open(p, 0))",
    ],
)
def test_a_lock_made_outside_forks_is_found(code):
    assert find_fork_offences(ast.parse(code))
