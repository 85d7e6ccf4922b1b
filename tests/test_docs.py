"""The README: its code runs, its tables say what the code says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
MODES = ("read", "readStream", "write", "writeStream")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def rows_after(marker: str) -> list[list[str]]:
    """The cells of the first table behind a marker, without its header."""
    lines = README[README.index(marker) :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| ---")) + 1
    end = next(i for i, line in enumerate(lines[start:], start) if not line.startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:end]]


@pytest.mark.slow
@pytest.mark.spark
def test_every_block_of_python_and_of_the_command_line_runs(tmp_path):
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    script = "\n".join(blocks("python"))
    proofs = """
assert sorted(r.order_id for r in spark.table("streamhouse.sales.orders").collect()) == [1, 2, 3, 4, 5]
spark.stop()
"""
    (tmp_path / "readme.py").write_text(script + proofs)
    run(["python", "readme.py"], tmp_path, environ)
    (shell,) = [block for block in blocks("sh") if "STREAMHOUSE_WAREHOUSE" in block]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    printed = run(["bash", "-euc", shell], tmp_path, {**environ, "PATH": path})
    assert '{"visitor": 1, "page": "/", "at": "2026-01-31T12:00:00Z"}' in printed
    assert "everything is there and matches its checksums" in printed


def run(command: list[str], folder: Path, environ: dict[str, str]) -> str:
    command = [sys.executable if word == "python" else word for word in command]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_quickstart_is_short():
    lines = [line for line in blocks("python")[0].splitlines() if line.strip()]
    assert len(lines) <= 15


def test_the_two_commands_come_first():
    assert blocks("sh")[0].split("\n")[0].startswith("make demo")
    assert README.index("make demo") < README.index("```python")


def test_options_are_those_of_the_code():
    expected = [[f"`{o.name}`", "all" if o.modes == MODES else ", ".join(o.modes), o.meaning] for o in OPTIONS]
    shown = "\n".join(f"| {' | '.join(row)} |" for row in expected)
    assert rows_after("<!-- options:") == expected, f"the table should be\n{shown}"


def test_properties_are_those_of_the_code():
    rows = rows_after("<!-- properties:")
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
    named = {row[0].strip("`").split()[1] for row in rows_after("## Command line")}
    assert named == set(streamhouse.commands)


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target
