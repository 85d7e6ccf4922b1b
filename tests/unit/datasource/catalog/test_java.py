"""The Java tests of `jvm/` pass."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


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
