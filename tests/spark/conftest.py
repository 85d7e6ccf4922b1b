"""One Spark session and one warehouse for all tests of this folder: starting a JVM costs more than most tests."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import streamhouse_spark
from spark.dml import KEYED
from streamhouse_spark import Warehouse
from streamhouse_spark.datasource import spark_versions

CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""Spark's default on a local disk starts several `readlink` processes for each file of a checkpoint."""


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _mark_further_cases(items)
    if spark_versions.HAS_ADMISSION_CONTROL:
        return
    for item in items:  # PySpark 4.1 leaves the sockets of collected results to the garbage collector
        item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


def _mark_further_cases(items: list[pytest.Item]) -> None:
    """Leave all but the first case of each test on Spark to the long run."""
    seen: set[str] = set()
    for item in items:
        if item.get_closest_marker("spark") and hasattr(item, "callspec"):
            name = item.nodeid.partition("[")[0]
            if name in seen:
                item.add_marker(pytest.mark.long)
            seen.add(name)


@pytest.fixture(scope="session")
def warehouse_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("shared") / "warehouse")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, warehouse_url: str) -> Iterator[object]:
    """A session with the catalog ``streamhouse``.

    ``STREAMHOUSE_TEST_MASTER`` names another master, such as ``local-cluster[2,1,1024]``;
    ``STREAMHOUSE_TEST_CONNECT=1`` puts a Spark Connect server between the tests and Spark.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    master = os.environ.get("STREAMHOUSE_TEST_MASTER", "local[2]")
    connect = os.environ.get("STREAMHOUSE_TEST_CONNECT") == "1"
    builder = SparkSession.builder.remote(master) if connect else SparkSession.builder.master(master)
    builder = (
        builder.config("spark.app.name", "streamhouse tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.streaming.checkpointFileManagerClass", CHECKPOINT_FILES)
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("spark-warehouse")))
        .config("spark.sql.session.timeZone", "America/New_York")  # nothing may depend on it
        .config("spark.log.level", "ERROR")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
    )
    if connect:  # else it sends its own stack trace as a part of each error's text
        builder = builder.config("spark.sql.connect.serverStacktrace.enabled", "false")
    with warnings.catch_warnings():
        if connect:  # the client sets again what its local server was started with, and Spark warns of each
            warnings.simplefilter("ignore", UserWarning)
        session = streamhouse_spark.configure(builder, warehouse=warehouse_url).getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def wh(warehouse_url: str) -> Warehouse:
    """A warehouse that all tests share; each makes tables of its own in it."""
    return Warehouse(warehouse_url)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


@pytest.fixture
def make(spark: Any, wh: Warehouse, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Makes tables of this test, with a primary key unless it says otherwise; their names in SQL."""
    wh.create_database("dml")

    def make(suffix: str = "", columns: str = KEYED, **properties: str) -> str:
        bare = re.sub(r"\W+", "_", request.node.name.removeprefix("test_")).strip("_")[:60]
        sum_ = zlib.crc32(request.node.nodeid.encode())  # other tests have names that begin so, or the same
        name = f"{bare}_{sum_:08x}{suffix}"
        texts = {"bucket.num": "3", **{key.replace("__", "-").replace("_", "."): v for key, v in properties.items()}}
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in texts.items())
        spark.sql(f"CREATE TABLE streamhouse.dml.{name} ({columns}) TBLPROPERTIES ({listed})")
        return f"streamhouse.dml.{name}"

    return make


@pytest.fixture
def filled(spark: Any, make: Callable[..., str]) -> str:
    """A table with a primary key and ten rows: ``(i, 'n<i>', i)``."""
    name = make()
    spark.sql(f"INSERT INTO {name} SELECT id, concat('n', id), id FROM range(10)")
    return name


@pytest.fixture
def meanwhile(spark: Any, tmp_path: Path) -> Callable[[Callable[[], Any]], Any]:
    """Registers a function of SQL that does something while the statement that calls it runs; it gives its argument."""
    from pyspark.sql import functions as f

    done = tmp_path / "done"

    def once(do: Callable[[], Any]) -> None:
        with contextlib.suppress(FileExistsError):
            done.touch(exist_ok=False)
            do()

    return lambda do: spark.udf.register("meanwhile", f.udf(lambda value: (once(do), value)[1], "int"))
