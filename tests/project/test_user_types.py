"""Users of mypy and pyright: typical code and the pages' examples have no errors, and mistakes are found."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from doc_pages import PAGES, ROOT, blocks, in_reading_order

USER_CODE = Path(__file__).with_name("user_code.py")
CHECKERS = {
    "mypy": ["--strict", "--ignore-missing-imports", "--config-file="],  # pyarrow has no types
    "pyright": ["--pythonpath", sys.executable, "--project"],
}
OF_SPARK = ["index", "operator", "assignment"]
"""What pages leave to the reader: a query of Spark that returns no row, and a name that is used twice."""
OF_PAGES = ["--allow-untyped-defs", "--allow-untyped-calls", *(f"--disable-error-code={code}" for code in OF_SPARK)]
RULES = {
    "enableTypeIgnoreComments": False,
    "reportUnnecessaryTypeIgnoreComment": True,
}  # comments of mypy are not pyright's
RULES_OF_PAGES = RULES | {"reportOptionalSubscript": False, "reportCallIssue": False}  # PySpark lacks an overload


@pytest.fixture(params=CHECKERS)
def checker(request: pytest.FixtureRequest) -> str:
    if find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed: pip install {request.param}")
    return request.param


def check(checker: str, files: list[Path], *, are_pages: bool) -> str:
    """Return what a type checker reports. Files are checked outside of the project, as users' are."""
    folder, options = files[0].parent, CHECKERS[checker]
    (folder / "pyrightconfig.json").write_text(json.dumps(RULES_OF_PAGES if are_pages else RULES))
    named = [str(folder)] if checker == "pyright" else [*(OF_PAGES if are_pages else []), *map(str, files)]
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", checker, *options, *named]
    done = subprocess.run(command, cwd=folder, env=environ, text=True, capture_output=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


def test_typical_code_has_no_errors_and_each_mistake_is_one(checker, tmp_path):
    file = Path(shutil.copy(USER_CODE, tmp_path))
    assert check(checker, [file], are_pages=False) == ""


def test_the_examples_of_the_pages_have_no_errors(checker, tmp_path):
    quickstart = "\n".join(blocks(PAGES["README.md"], "python"))
    files = []
    for page in in_reading_order():
        code = "\n".join(blocks(PAGES[page], "python"))
        if re.search(r"\b(sh|orders)\b", code):
            files.append(tmp_path / f"{re.sub(r'[^a-z]', '_', page.lower())}.py")
            files[-1].write_text(code if page == "README.md" else f"{quickstart}\n{code}")
    assert len(files) > 15
    assert check(checker, files, are_pages=True) == ""
