"""Calls that the package may not make, or only in one module: the clock, randomness, put-if-absent, unpickling."""

from __future__ import annotations

import ast

import pytest

from project.source_trees import called_names, parse_sources, walk

CLOCK = "core/clock.py"
CLOCK_ONLY = {
    "time": ["time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"],
    "uuid": ["uuid1", "uuid4"],
    "random": None,
    "secrets": None,
    "datetime": ["now", "utcnow", "today"],
}
"""Module → the names that only core/clock.py may use; None: all."""

BANNED_CALLS = {
    ("pickle", "load"): "unpickling runs code; metadata is JSON or Arrow",
    ("pickle", "loads"): "unpickling runs code; metadata is JSON or Arrow",
    ("cloudpickle", "loads"): "unpickling runs code; metadata is JSON or Arrow",
    ("marshal", "loads"): "unmarshalling trusts bytes",
    ("yaml", "load"): "yaml.load runs code",
    ("os", "rename"): "overwrites silently; commits go through put-if-absent",
    ("os", "system"): "no shell",
    (None, "eval"): "runs code",
    (None, "exec"): "runs code",
    (None, "print"): "a library prints nothing; the command line writes through rich",
}
EXCEPTIONS = {
    (None, "exec"): [
        "core/lazy_dataclass.py"
    ],  # generates methods from the names of fields, as the standard library does
}


def is_of_the_clock(module: str | None, name: str) -> bool:
    return module in CLOCK_ONLY and (CLOCK_ONLY[module] is None or name in CLOCK_ONLY[module])


def test_only_the_clock_reads_the_systems_time_and_randomness():
    others = {name: tree for name, tree in parse_sources().items() if name != CLOCK}
    offences = {
        f"{name}: {module}.{called}"
        for name, tree in others.items()
        for module, called in called_names(tree)
        if is_of_the_clock(module, called)
    }
    offences |= {
        f"{name}: from {node.module} import {alias.name}"
        for name, tree in others.items()
        for node in walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if is_of_the_clock(node.module, alias.name)
    }
    assert offences == set(), "take a World instead, see core/clock.py"


def test_put_if_absent_is_called_only_by_storage():
    callers = [name for name, tree in parse_sources().items() if "put_if_absent" in {n for _, n in called_names(tree)}]
    assert [name for name in callers if not name.startswith("storage/")] == [], "see storage/put_if_absent.py"


@pytest.mark.parametrize("banned", BANNED_CALLS, ids=lambda call: ".".join(filter(None, call)))
def test_banned_calls_are_not_made(banned):
    callers = [name for name, tree in parse_sources().items() if banned in called_names(tree)]
    assert callers == EXCEPTIONS.get(banned, []), BANNED_CALLS[banned]
