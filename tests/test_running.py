"""A test that fails prints the command that runs it alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FAILING = """
import pytest

@pytest.mark.parametrize("name", ["it's one"])
def test_fails(name):
    raise ValueError(name)
"""


def test_a_failing_test_says_the_command_that_runs_it_alone(tmp_path):
    (tmp_path / "test_it.py").write_text(FAILING)
    options = ["-q", "-p", "conftest", "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path]
    command = [sys.executable, "-m", "pytest", *options, "test_it.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "STREAMHOUSE_TEST_MASTER": "local[1]"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    (line,) = [line for line in done.stdout.splitlines() if " -m pytest " in line]
    assert line.startswith("STREAMHOUSE_TEST_MASTER='local[1]' ")
    assert line.endswith("""test_it.py::test_fails[it'"'"'s one]'""")
