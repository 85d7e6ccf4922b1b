"""Running the command line inside the test's process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner

from streamhouse_spark import Warehouse
from streamhouse_spark.cli.app import streamhouse


@dataclass(frozen=True)
class Result:
    """The output of a command and its exit code."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        return json.loads(self.stdout)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.stdout.splitlines()]


@pytest.fixture
def run(warehouse_path: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command on the test's warehouse; exceptions that no user should see are raised."""
    monkeypatch.setenv("STREAMHOUSE_WAREHOUSE", warehouse_path)

    def call(*args: str, stdin: str | bytes | None = None, code: int = 0) -> Result:
        found = CliRunner().invoke(streamhouse, args, input=stdin, catch_exceptions=False)
        result = Result(found.exit_code, found.stdout, found.stderr)
        assert result.code == code, result
        return result

    return call


@pytest.fixture
def warehouse(warehouse_path: str) -> Warehouse:
    return Warehouse(warehouse_path)
