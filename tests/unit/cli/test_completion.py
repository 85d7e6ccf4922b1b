"""The shell completes commands, options and tables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from streamhouse_spark.cli.app import streamhouse


def complete(*words: str) -> list[str]:
    *arguments, incomplete = words
    completion = ShellComplete(streamhouse, {}, "streamhouse", "_STREAMHOUSE_COMPLETE")
    return [item.value for item in completion.get_completions(list(arguments), incomplete)]


@pytest.fixture
def tables(warehouse, monkeypatch, warehouse_path):
    monkeypatch.setenv("STREAMHOUSE_WAREHOUSE", warehouse_path)
    for name in ("sales.orders", "sales.visits", "air.flights"):
        warehouse.create_table(name, "a INT")


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["app"], ["append"]),
        (["--war"], ["--warehouse"]),
        (["append", "sales."], ["sales.orders", "sales.visits"]),
        (["append", "--format", "p"], ["parquet"]),
        (["head", ""], ["air.flights", "sales.orders", "sales.visits"]),
        (["tier", "air.flights", "s"], ["sales.orders", "sales.visits"]),
        (["pause", "a"], ["air.flights"]),
        (["clone", "a"], ["air.flights"]),
        (["tag", "sales.orders", ""], []),
        (["describe", "x"], []),
    ],
)
def test_words_are_completed(tables, words, values):
    assert complete(*words) == values


def test_files_are_completed_by_the_shell(tables):
    completion = ShellComplete(streamhouse, {}, "streamhouse", "_STREAMHOUSE_COMPLETE")
    (item,) = completion.get_completions(["append", "sales.orders"], "data/o")
    assert (item.value, item.type) == ("data/o", "file")


@pytest.mark.parametrize("before", [True, False])
def test_tables_are_those_of_the_named_warehouse(tables, warehouse_path, monkeypatch, before):
    monkeypatch.delenv("STREAMHOUSE_WAREHOUSE")
    assert complete("head", "a") == []
    option = ["--warehouse", warehouse_path]
    assert complete(*(option if before else []), "head", *([] if before else option), "a") == ["air.flights"]


@pytest.mark.parametrize("place", ["absent", "s3://[", ""])
def test_no_table_is_completed_without_a_warehouse(monkeypatch, place):
    monkeypatch.setenv("STREAMHOUSE_WAREHOUSE", place)
    assert complete("head", "") == []


def test_the_installed_program_answers_the_shell(tables):
    program = Path(sys.executable).with_name("streamhouse")
    environment = {**os.environ, "COMP_WORDS": "streamhouse head air", "COMP_CWORD": "2"}
    done = subprocess.run(
        [program],
        env={**environment, "_STREAMHOUSE_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["plain,air.flights"]
