"""The pages: their code runs, their tables say what the code says, their links lead somewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from doc_pages import INDEX, INTERNALS, PAGES, ROOT, anchors_of, blocks, in_reading_order, links_of
from streamhouse_spark.cli.app import streamhouse
from streamhouse_spark.config.properties import (
    _KNOWN,
    FIXED_PROPERTIES,
    PRIMARY_KEY,
    TableProperties,
    is_keyed_property,
    parse_properties,
)
from streamhouse_spark.config.spark_options import OPTIONS
from streamhouse_spark.kv.keyed_properties import parse_keyed_properties
from streamhouse_spark.schema.table_schema import TableSchema

MODES = ("read", "readStream", "write", "writeStream")


def rows_after(page: str, marker: str) -> list[list[str]]:
    """The cells of the first table behind a marker of a page, without its header."""
    lines = PAGES[page][PAGES[page].index(marker) :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| ---")) + 1
    end = next((i for i, line in enumerate(lines[start:], start) if not line.startswith("|")), len(lines))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:end]]


RUNNER = """
import json, sys
from pathlib import Path

shared = {}
for page, code in json.loads(Path("pages.json").read_text()):
    names = dict(shared)
    print("running", page, file=sys.stderr)
    exec(compile(code, page, "exec"), names)
    shared = shared or names
shared["spark"].stop()
"""
"""Each page has the names that the quickstart leaves, and its own. All share one Spark session and one warehouse."""


@pytest.mark.long
@pytest.mark.spark
def test_every_block_of_python_runs(tmp_path):
    code = [(page, "\n".join(blocks(PAGES[page], "python"))) for page in in_reading_order()]
    (tmp_path / "pages.json").write_text(json.dumps([(page, lines) for page, lines in code if lines]))
    (tmp_path / "runner.py").write_text(RUNNER)
    run(["python", "runner.py"], tmp_path, {**os.environ, "PYSPARK_PYTHON": sys.executable})


LOCAL = "export STREAMHOUSE_WAREHOUSE=./"
"""A block of commands with this line needs nothing but a directory. Others install, or need a bucket or a cluster."""


@pytest.mark.long
def test_every_block_of_the_command_line_runs(tmp_path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shells = [shell for text in PAGES.values() for shell in blocks(text, "sh") if LOCAL in shell]
    assert shells
    for number, shell in enumerate(shells):
        (folder := tmp_path / str(number)).mkdir()
        printed = run(["bash", "-euc", shell], folder, {**os.environ, "PATH": path})
        if "verify" in shell:
            assert '{"visitor": 1, "page": "/", "at": "2026-01-31T12:00:00Z"}' in printed
            assert "everything is there and matches its checksums" in printed


def run(command: list[str], folder: Path, environ: dict[str, str]) -> str:
    command = [sys.executable if word == "python" else word for word in command]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_readme_is_a_page():
    readme = PAGES["README.md"]
    assert len(readme.splitlines()) <= 150
    assert len([line for line in blocks(readme, "python")[0].splitlines() if line.strip()]) <= 15
    assert blocks(readme, "sh")[0].startswith("make demo")


def test_options_are_those_of_the_code():
    expected = [[f"`{o.name}`", "all" if o.modes == MODES else ", ".join(o.modes), o.meaning] for o in OPTIONS]
    shown = "\n".join(f"| {' | '.join(row)} |" for row in expected)
    assert rows_after("docs/reference/spark-options.md", "<!-- options:") == expected, f"the table should be\n{shown}"


def test_properties_are_those_of_the_code():
    rows = rows_after("docs/reference/table-properties.md", "<!-- properties:")
    assert [name for name, _, _ in rows] == [f"`{name}`" for name in _KNOWN]
    schema = TableSchema.of("a INT NOT NULL")
    for name, default, meaning in rows:
        key = name.strip("`")
        assert meaning.endswith("*Fixed.*") == (key in FIXED_PROPERTIES or key.startswith("fields.")), key
        if default and is_keyed_property(key):
            if not key.startswith("fields."):  # these have no meaning alone
                found = parse_keyed_properties({PRIMARY_KEY: "a", key: default.strip("`")}, schema)
                assert found == parse_keyed_properties({PRIMARY_KEY: "a"}, schema), key
        elif default:
            assert parse_properties({key: default.strip("`")}, schema) == TableProperties(), key


def test_commands_are_those_of_the_code():
    named = {row[0].strip("`").split()[1] for row in rows_after("docs/reference/command-line.md", "# Command line")}
    assert named == set(streamhouse.commands)


def test_links_lead_somewhere():
    others = {name: (ROOT / name).read_text("utf-8") for name in ("ARCHITECTURE.md", "CHANGELOG.md")}
    texts = {**PAGES, **others}
    for page, text in texts.items():
        for path, anchor in links_of(page, text):
            assert (ROOT / path).exists(), f"{page}: {path}"
            assert not anchor or anchor in anchors_of(texts[path]), f"{page}: {path}#{anchor}"


def test_the_index_links_every_page():
    linked = {path for path, _ in links_of(INDEX, PAGES[INDEX])} | {"README.md", INDEX}
    assert [page for page in PAGES if page not in linked and not page.startswith(INTERNALS)] == []
