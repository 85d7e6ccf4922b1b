"""Spark sessions of commands. The only module of the command line that imports PySpark."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from streamhouse_spark.cli.diagnostics import check_java, find_java, os_release
from streamhouse_spark.datasource.session import set_worker_python
from streamhouse_spark.errors import MissingExtraError, StreamhouseError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG_SETTINGS = Path(__file__).with_name("spark_log.properties")
"""Configures Spark to log errors only, because the command prints its own messages."""


def open_spark(
    app_name: str,
    master: str | None,
    config: Mapping[str, str] | None = None,
    *,
    java_options: str = "",
    catalog_of: tuple[str, Mapping[str, str]] | None = None,
) -> SparkSession:
    """Open a session whose local workers run this Python, and which logs errors only.

    ``catalog_of`` is the location and the settings of a warehouse for the catalog ``streamhouse``. The catalog must be
    configured at the start, because a jar that is added later is unknown to other threads. Raises `MissingExtraError`
    if Java or PySpark is missing.
    """
    require_java()
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f'Spark requires {error.name}, which is not installed; run: pip install "streamhouse-spark[spark,iceberg]"'
        ) from error
    set_worker_python(sys.executable, {"spark.master": master} if master else {}, os.environ)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    options = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()} {java_options}"
    builder = builder.config("spark.driver.extraJavaOptions", options)
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    if master:
        builder = builder.master(master)
    for key, value in (config or {}).items():
        builder = builder.config(key, value)
    if catalog_of is not None:
        from streamhouse_spark.spark import configure

        builder = configure(builder, warehouse=catalog_of[0], settings=catalog_of[1])
    return builder.getOrCreate()


@contextmanager
def translate_spark_errors() -> Iterator[None]:
    """Convert Spark errors to `StreamhouseError`, which the command line prints without a traceback."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise StreamhouseError(str(error), condition=error.getCondition() or "SPARK_FAILED") from error


def require_java() -> None:
    """Raise `MissingExtraError` with the command that installs a suitable Java."""
    finding = check_java(find_java(os.environ), platform.system(), os_release())
    if finding.level == "fail":
        raise MissingExtraError(f"{finding.found}; {finding.remedy}", condition="JAVA_NOT_FOUND")
