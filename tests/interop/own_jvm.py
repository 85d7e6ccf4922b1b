"""A Spark session in a JVM of its own. Spark fetches packages as a JVM starts, and PySpark keeps one JVM for all
sessions of a process: without this, the packages of the first session would be those of all that follow.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
"""Spark fetches it from Maven Central, and does not start without it."""


@contextmanager
def session_in_own_jvm(builder: Any) -> Iterator[Any]:
    """Give the session of ``builder``, and end its JVM behind it."""
    from pyspark import SparkContext

    assert SparkContext._gateway is None, "a session of before has left its JVM, whose packages are others"
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
        gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
        gateway.shutdown()
        gateway.proc.stdin.close()  # which ends it
        gateway.proc.wait(60)


@contextmanager
def session_with_iceberg() -> Iterator[Any]:
    """Give a session with Iceberg's own Java library, in a JVM of its own."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars.packages", RUNTIME)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "America/New_York")  # nothing may depend on it
        .config("spark.log.level", "ERROR")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
    )
    with session_in_own_jvm(builder) as session:
        yield session
