"""Every notebook runs in a kernel of its own, and prints what is committed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
WITH_SPARK = ("01_ten_minute_tour",)
MACHINE = re.compile(r"/tmp/|/home/|/root|\b\d+\.\d+\.\d+\.\d+\b")


def code_cells(path: Path) -> list[dict]:
    return [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.spark] if path.stem in WITH_SPARK else [], id=path.stem)
        for path in NOTEBOOKS
    ],
)
def test_a_notebook_runs_and_prints_what_is_committed(path):
    command = [sys.executable, ROOT / "tools" / "run_notebooks.py", "--check", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_with_outputs_and_without_traces_of_a_machine(path):
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = json.dumps([cell["outputs"] for cell in cells])
    assert '"error"' not in outputs
    without_images = re.sub(r'"image/png": "[^"]*"', "", outputs)
    assert not MACHINE.search(without_images), MACHINE.search(without_images)
    assert sum(bool(cell["outputs"]) for cell in cells) > len(cells) // 2


def test_the_tour_has_a_plot():
    (plot,) = [
        output["data"]["image/png"]
        for cell in code_cells(NOTEBOOKS[0])
        for output in cell["outputs"]
        if "image/png" in output.get("data", {})
    ]
    assert len(plot) > 10_000
