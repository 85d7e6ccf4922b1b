"""The commands and the Python code that the pages show run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from doc_pages import PAGES, blocks, in_reading_order

RUNNER = """
import contextlib, io, json, sys
from pathlib import Path

shared = {}
for page, code, outputs in json.loads(Path("pages.json").read_text()):
    names = dict(shared)
    print("running", page, file=sys.stderr)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, page, "exec"), names)
    for output in outputs:
        assert output.strip() in printed.getvalue(), printed.getvalue()
    shared = shared or names
shared["spark"].stop()
"""
"""Each page has the names that the quickstart leaves, and its own. All share one Spark session and one warehouse."""
OUTPUT = 'text title="Output"'
WARNINGS_OF_SPARK = ("Utils: Your hostname", "Utils: Set SPARK_LOCAL_IP", "NativeCodeLoader: Unable to load native")


@pytest.mark.always
def test_the_quickstart_of_the_readme_runs(tmp_path):
    stderr = run_python_of(["README.md"], tmp_path)
    warnings = [line.partition(" WARN ")[2] for line in stderr.splitlines() if " WARN " in line]
    assert [line for line in warnings if not line.startswith(WARNINGS_OF_SPARK)] == []


@pytest.mark.long
@pytest.mark.spark
def test_every_block_of_python_runs(tmp_path):
    run_python_of(in_reading_order(), tmp_path)


def run_python_of(pages: list[str], tmp_path: Path) -> str:
    """Run the Python of some pages and return what it wrote to stderr."""
    code = [(page, "\n".join(blocks(PAGES[page], "python")), blocks(PAGES[page], OUTPUT)) for page in pages]
    (tmp_path / "pages.json").write_text(json.dumps([page for page in code if page[1]]))
    (tmp_path / "runner.py").write_text(RUNNER)
    return run(["python", "runner.py"], tmp_path, {**os.environ, "PYSPARK_PYTHON": sys.executable}).stderr


LOCAL = "export STREAMHOUSE_WAREHOUSE=./"
"""A block of commands with this line needs nothing but a directory. Others install, or need a bucket or a cluster."""


@pytest.mark.long
def test_every_block_of_the_command_line_runs(tmp_path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shells = [shell for text in PAGES.values() for shell in blocks(text, "sh") if LOCAL in shell]
    assert shells
    for number, shell in enumerate(shells):
        (folder := tmp_path / str(number)).mkdir()
        printed = run(["bash", "-euc", shell], folder, {**os.environ, "PATH": path}).stdout
        if "verify" in shell:
            assert '{"visitor": 1, "page": "/", "at": "2026-01-31T12:00:00Z"}' in printed
            assert "all files exist and match their checksums" in printed


def run(command: list[str], folder: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable if word == "python" else word for word in command]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done
