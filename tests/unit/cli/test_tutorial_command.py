"""The tour in the terminal, and the notebook that opens instead."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from streamhouse_spark.cli import tutorial_command


def test_the_tour_runs_each_command_and_leaves_nothing(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = run("tutorial", "--terminal").stdout
    parts = text.split("$ streamhouse ")
    assert [part.splitlines()[0] for part in parts[1:]] == [step.command for step in tutorial_command._STEPS]
    lake = next(part for part in parts if part.startswith("head 'sales.orders$lake'"))
    assert ("bob" in lake, "eve" in lake) == (True, False)
    assert "update_after" in parts[-1]
    assert "streamhouse demo" in text
    assert list(tmp_path.iterdir()) == []


def test_the_tour_ends_before_tiering_without_pyiceberg(run, monkeypatch):
    monkeypatch.setattr(tutorial_command, "find_spec", lambda _: None)
    text = run("tutorial").stdout
    assert 'pip install "streamhouse-spark[iceberg]"' in text
    assert "sales.orders$lake" not in text


@pytest.mark.parametrize("code", [0, 3])
def test_a_notebook_is_copied_once_and_opened(run, tmp_path, monkeypatch, code):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tutorial_command, "find_spec", lambda _: object())
    commands = []

    def jupyter(command, check):
        commands.append(command)
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(subprocess, "run", jupyter)
    result = run("tutorial", code=1 if code else 0)
    assert ("--terminal" in result.stderr) == bool(code)
    assert commands == [[sys.executable, "-m", "jupyterlab", "streamhouse-tour.ipynb"]]
    copy = Path("streamhouse-tour.ipynb")
    assert json.loads(copy.read_text("utf-8"))["cells"]
    copy.write_text("edited")
    run("tutorial", code=1 if code else 0)
    assert copy.read_text() == "edited"
