"""The Java tests of `jvm/` pass, and its files are as short as ours."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
FILES = sorted((ROOT / "jvm").rglob("*.java"))


@pytest.mark.long
def test_the_java_tests_pass(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import java_tests

    if shutil.which("javac") is None:
        pytest.skip("only a JRE is here, which Spark is content with; the Java tests need a JDK")
    if java_tests.junit_jar() is None:
        pytest.skip("JUnit is not here, which the Java tests need: make test-java fetches it")
    script = [sys.executable, str(ROOT / "tools" / "java_tests.py")]
    found = subprocess.run(script, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "[         0 tests skipped " in found.stdout


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_java_files_hold_a_type_each_and_are_short(path):
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) <= (500 if "test" in path.parts else 400)
    assert max(map(len, lines)) <= 120
    types = [
        line
        for line in lines
        if line.startswith(("class ", "final class ", "public class ", "public final class ", "interface "))
    ]
    assert len(types) == 1
    assert path.stem in types[0].replace("<", " ").split()
