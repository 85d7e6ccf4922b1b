"""A Spark session in a JVM of its own. Spark fetches packages as a JVM starts, and PySpark keeps one JVM for all
sessions of a process: without this, the packages of the first session would be those of all that follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
