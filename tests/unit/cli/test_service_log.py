"""The log of commands that run for long."""

from __future__ import annotations

import json
import logging

import pytest

from streamhouse_spark import InvalidOptionError
from streamhouse_spark.cli.output import log_to_stderr


@pytest.fixture(autouse=True)
def restored():
    root = logging.getLogger("streamhouse_spark")
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_text_has_warnings_alone(monkeypatch, capsys):
    monkeypatch.delenv("STREAMHOUSE_LOG", raising=False)
    log_to_stderr()
    logger = logging.getLogger("streamhouse_spark.some.module")
    logger.info("done")
    logger.warning("table %s failed", "s.t")
    assert capsys.readouterr().err == "table s.t failed\n"


def test_json_has_an_object_a_line(monkeypatch, capsys):
    monkeypatch.setenv("STREAMHOUSE_LOG", "json")
    log_to_stderr()
    log_to_stderr()
    logger = logging.getLogger("streamhouse_spark.some.module")
    logger.info("a round\nof %s", "s.t", extra={"streamhouse_table": "s.t", "streamhouse_rows": 5})
    (line,) = capsys.readouterr().err.splitlines()
    found = json.loads(line)
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "INFO",
        "logger": "streamhouse_spark.some.module",
        "message": "a round\nof s.t",
        "table": "s.t",
        "rows": 5,
    }


def test_another_form_is_refused(monkeypatch):
    monkeypatch.setenv("STREAMHOUSE_LOG", "xml")
    with pytest.raises(InvalidOptionError, match="text or json"):
        log_to_stderr()
