"""Each make target can be made in a new clone: its prerequisites have rules."""

from __future__ import annotations

import re
import subprocess

import pytest

from doc_pages import ROOT

TARGETS = re.findall(r"^([a-z0-9-]+):.*?## ", (ROOT / "Makefile").read_text(), re.MULTILINE)


# A dry run still follows lines that call make, which need an environment: only missing rules count.
@pytest.mark.parametrize("target", TARGETS)
def test_a_target_has_all_its_prerequisites(target, tmp_path):
    (tmp_path / "Makefile").symlink_to(ROOT / "Makefile")
    for part in ("constraints.txt", "pyproject.toml", "tools", "jvm", "tests"):
        (tmp_path / part).symlink_to(ROOT / part)
    done = subprocess.run(["make", "--dry-run", target], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "No rule to make target" not in done.stderr
    assert done.stdout.strip()
