"""`streamhouse demo` through the installed script, and then the commands that it suggests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(sys.executable).parent / "streamhouse"


def call(command: list[str | Path] | str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        shell=isinstance(command, str),
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.long
@pytest.mark.spark
def test_the_demo_proves_itself_and_suggests_commands_that_work(tmp_path):
    done = call([SCRIPT, "demo", "--fast", "--seconds", "4", "--rows", "5000"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    proofs = re.findall(r"^✓ (.+)$", done.stdout, flags=re.MULTILINE)
    assert len(proofs) == 7, done.stdout
    assert "✗" not in done.stdout
    assert "5,000 rows × 19 columns are equal, one by one" in done.stdout
    assert [p.name for p in tmp_path.iterdir() if "artifacts" not in p.name] == ["demo-warehouse"]
    suggested = re.findall(r"^  \d\. .+\n     (.+)$", done.stdout, flags=re.MULTILINE)
    assert len(suggested) == 5
    for command in suggested:
        tried = call(command, tmp_path)
        assert tried.returncode == 0, command + tried.stdout + tried.stderr
        assert tried.stdout.strip()


def test_the_demo_refuses_a_directory_that_is_not_its_own(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    refused = call([SCRIPT, "demo", "--warehouse", tmp_path], tmp_path)
    assert refused.returncode == 1
    assert "found thesis.txt, expected an empty location" in refused.stderr
    assert (tmp_path / "thesis.txt").exists()


def test_without_java_the_demo_says_what_to_install(tmp_path):
    refused = call([SCRIPT, "demo"], tmp_path, JAVA_HOME=str(tmp_path), PATH="/nowhere")
    assert refused.returncode == 1
    assert refused.stderr.startswith("JAVA_NOT_FOUND: none: ")
    assert "Spark requires Java 17 or later: " in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
