"""The boundary that keeps tracebacks out of Spark's text; tests/spark/test_errors.py has the texts themselves."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from types import ModuleType, SimpleNamespace

import pytest
from pyspark.sql.types import StructType

from streamhouse_spark import InvalidOptionError, TableNotFoundError, Warehouse
from streamhouse_spark.datasource.rpc_arguments import UUID_OPTION
from streamhouse_spark.datasource.source import StreamhouseDataSource, UnsupportedStream
from streamhouse_spark.datasource.worker import ErrorBoundary

HIDDEN = "SPARK_HIDE_TRACEBACK"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv(HIDDEN, "")


@pytest.fixture
def worker(monkeypatch):
    """This process looks as one that Spark started."""
    main = ModuleType("__main__")
    main.__spec__ = SimpleNamespace(name="pyspark.daemon")
    monkeypatch.setitem(sys.modules, "__main__", main)


def source(path, **options):
    wh = Warehouse(str(path))
    wh.create_table("default.log", "id BIGINT", if_not_exists=True)
    return StreamhouseDataSource({"warehouse": wh.url, "path": "default.nope", **options})


class Part(ErrorBoundary):
    def typed(self):
        raise InvalidOptionError("no")

    def defect(self):
        raise KeyError("no")

    def rows(self):
        yield 1
        raise InvalidOptionError("no")


def test_in_a_worker_the_text_is_one_line_and_the_log_has_the_traceback(tmp_path, worker, caplog):
    with pytest.raises(TableNotFoundError):
        source(tmp_path).schema()
    assert os.environ[HIDDEN] == "1"
    (logged,) = caplog.records
    assert "TABLE_NOT_FOUND" in logged.getMessage()
    # The record itself: once a Spark session lives in this process, pyspark writes texts of logs in a form of its own.
    raised = logged.exc_info[2]
    assert "schema" in [frame.f_code.co_name for frame, _ in traceback.walk_tb(raised)]


def test_through_the_catalog_the_text_keeps_it(tmp_path, worker):
    with pytest.raises(TableNotFoundError):
        source(tmp_path, **{UUID_OPTION: "x"}).schema()
    assert os.environ[HIDDEN] == ""


def test_a_process_of_the_user_keeps_its_environment(tmp_path, caplog):
    with pytest.raises(TableNotFoundError):
        source(tmp_path).schema()
    assert os.environ[HIDDEN] == ""
    assert not caplog.records


def test_rows_are_inside_too(worker):
    rows = Part().rows()
    assert next(rows) == 1
    assert os.environ[HIDDEN] == ""
    with pytest.raises(InvalidOptionError):
        next(rows)
    assert os.environ[HIDDEN] == "1"


def test_a_defect_keeps_its_traceback(worker):
    with pytest.raises(KeyError):
        Part().defect()
    assert os.environ[HIDDEN] == ""


def test_a_part_is_told_as_its_source(tmp_path, worker):
    part = Part().with_tracebacks(source(tmp_path, **{UUID_OPTION: "x"}))
    with pytest.raises(InvalidOptionError):
        part.typed()
    assert os.environ[HIDDEN] == ""
    with pytest.raises(InvalidOptionError):
        part.with_tracebacks(source(tmp_path)).typed()
    assert os.environ[HIDDEN] == "1"


@pytest.mark.parametrize("options", [{}, {UUID_OPTION: "x"}])
def test_a_stream_that_cannot_be_says_so_when_it_is_asked(tmp_path, options):
    """Spark stops the reader that it did not get, and tells of that instead."""
    stream = source(tmp_path, **options).streamReader(StructType())
    assert isinstance(stream, UnsupportedStream)
    stream = pickle.loads(pickle.dumps(stream))
    asked = (stream.initialOffset, stream.latestOffset, lambda: stream.partitions({}, {}), lambda: stream.read(None))
    for ask in asked:
        with pytest.raises(TableNotFoundError, match="nope"):
            ask()
    stream.stop()
