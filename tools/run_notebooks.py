"""Run notebooks and write their outputs, or compare the outputs with those in the file.

``python tools/run_notebooks.py`` runs all of ``examples/notebooks``; arguments name some of them. With ``--check`` no
file changes: the exit code is 1 if a cell fails or prints another text than the file has. Cells tagged ``live`` measure
times and are not compared. What a cell writes to stderr is dropped: warnings of a JVM name the machine.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"
CELL_SECONDS_MAX = 600


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("notebooks", nargs="*", type=Path, default=sorted(FOLDER.glob("*.ipynb")))
    options = parser.parse_args(arguments)
    differences = []
    for path in options.notebooks:
        committed = nbformat.read(path, as_version=4)
        executed = run(committed)
        if options.check:
            differences += compare(path.name, texts_of(committed), texts_of(executed))
        else:
            nbformat.write(executed, path)
    sys.stdout.writelines(differences)
    return 1 if differences else 0


def run(committed: NotebookNode) -> NotebookNode:
    """Return a copy of a notebook with the outputs of its cells, run in an empty folder."""
    notebook = nbformat.from_dict(committed)
    with tempfile.TemporaryDirectory(prefix="notebook-") as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(
            notebook, timeout=CELL_SECONDS_MAX, kernel_name="python3", record_timing=False, resources=resources
        ).execute()
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def texts_of(notebook: NotebookNode) -> list[str]:
    """Return the source and output texts of all cells that print the same in each run."""
    lines = []
    for cell in notebook.cells:
        if cell.cell_type == "code" and "live" not in cell.metadata.get("tags", []):
            lines += [f">>> {line}\n" for line in cell.source.splitlines()]
            for output in cell.outputs:
                text = output.get("text") or output.get("data", {}).get("text/plain", "")
                lines += [f"{line}\n" for line in text.splitlines()]
    return lines


def compare(name: str, committed: list[str], executed: list[str]) -> list[str]:
    return list(difflib.unified_diff(committed, executed, f"{name} (committed)", f"{name} (executed)"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
