"""The jar of the catalog's Java classes, and valid catalog names."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from streamhouse_spark.errors import InvalidOptionError, MissingExtraError, quote

CATALOG_CLASS = "io.streamhouse.spark.StreamhouseCatalog"
"""The catalog without views, which every supported Spark can load."""
VIEW_CATALOG_CLASS = "io.streamhouse.spark.StreamhouseViewCatalog"
"""The catalog with views, for Spark 4.2 or newer."""
JAR_NAME = "streamhouse-spark.jar"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def jar_path() -> Path:
    """Return the path of the jar, for ``spark.jars`` and ``--jars``. Raises `MissingExtraError` if it is not
    installed.
    """
    path = Path(__file__).with_name(JAR_NAME)
    if not path.is_file():
        raise MissingExtraError(
            f"{path} is missing; reinstall streamhouse-spark, or build the jar with make jar in a checkout"
        )
    return path


def catalog_class() -> str:
    """Return the catalog class for the installed PySpark. Without PySpark, return the class for every Spark."""
    if find_spec("pyspark") is None:
        return CATALOG_CLASS
    from streamhouse_spark.datasource.spark_versions import HAS_VIEWS

    return VIEW_CATALOG_CLASS if HAS_VIEWS else CATALOG_CLASS


def require_catalog_name(name: str) -> None:
    """Raise `InvalidOptionError` for a name that SQL cannot use."""
    if not _NAME.fullmatch(name) or name == "spark_catalog":
        raise InvalidOptionError(
            f"catalog name {quote(name)} cannot be used in SQL: use letters, digits and _, and not spark_catalog"
        )
