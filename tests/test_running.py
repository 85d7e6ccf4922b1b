"""Whoever runs the tests learns how to run again what failed, and runs them without Paimon too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FAILING = """
import pytest

@pytest.mark.parametrize("name", ["it's one"])
def test_fails(name):
    raise ValueError(name)
"""

IMPORT = re.compile(r"^(?:import (\S+)|from (\S+) import (\([^)]*\)|.*))", re.MULTILINE)
"""An import that is done as its module is, not in a function or for types."""


def test_a_failing_test_says_the_command_that_runs_it_alone(tmp_path):
    (tmp_path / "test_it.py").write_text(FAILING)
    options = ["-q", "-p", "conftest", "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path]
    command = [sys.executable, "-m", "pytest", *options, "test_it.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "STREAMHOUSE_TEST_MASTER": "local[1]"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    (line,) = [line for line in done.stdout.splitlines() if " -m pytest " in line]
    assert line.startswith("STREAMHOUSE_TEST_MASTER='local[1]' ")
    assert line.endswith("""test_it.py::test_fails[it'"'"'s one]'""")


def test_tests_that_are_not_named_after_paimon_are_collected_without_it():
    """`make matrix-newest` has no Paimon, and a module that it cannot import fails there alone."""
    importers = defaultdict(set)
    for path in [*ROOT.glob("tests/**/*.py"), *ROOT.glob("src/**/*.py")]:
        for name in imported(path):
            importers[name].add(path)
    new = set().union(*(paths for name, paths in importers.items() if name.partition(".")[0] == "pypaimon"))
    reached: set[Path] = set()
    while new:
        reached |= new
        new = set().union(*(importers[name_of(path)] for path in new)) - reached
    assert ROOT / "tests/unit/lake/paimon/test_commit.py" in reached
    collected = {path for folder in ("unit", "contract") for path in ROOT.glob(f"tests/{folder}/**/*.py")}
    assert not [path for path in reached & collected if "paimon" not in path.relative_to(ROOT).as_posix()]


def imported(path: Path) -> Iterator[str]:
    for whole, package, names in IMPORT.findall(path.read_text("utf-8")):
        yield whole or package
        yield from (f"{package}.{name}" for name in re.findall(r"\w+", names))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts[1:])
