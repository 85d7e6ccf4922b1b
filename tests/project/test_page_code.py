"""Each block of code of the pages has a known language and can be parsed in it. `tests/test_docs.py` runs them."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Callable

import pytest
import sqlglot
import yaml

from doc_pages import PAGES

FENCE = re.compile(r"^```(\w*)(?: [^\n]*)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def parse_python(code: str) -> None:
    compile(code, "block", "exec")


def parse_shell(code: str) -> None:
    subprocess.run(["bash", "-n"], input=code, text=True, check=True, capture_output=True)


def parse_sql(code: str) -> None:
    dialect = "duckdb" if code.startswith("-- DuckDB") else "spark"
    assert sqlglot.parse(code, dialect=dialect)


def parse_yaml(code: str) -> None:
    assert list(yaml.safe_load_all(code))


PARSERS: dict[str, Callable[[str], object]] = {
    "python": parse_python,
    "py": parse_python,
    "sh": parse_shell,
    "bash": parse_shell,
    "sql": parse_sql,
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": parse_yaml,
}
PLAIN = {"", "text", "properties", "jinja"}
BLOCKS = [
    pytest.param(language, code, id=f"{page}:{text[: match.start()].count(chr(10)) + 1}")
    for page, text in PAGES.items()
    for match in FENCE.finditer(text)
    for language, code in [match.groups()]
    if language not in PLAIN
]


@pytest.mark.parametrize(("language", "code"), BLOCKS)
def test_a_block_of_code_can_be_parsed(language, code):
    PARSERS[language](code)
