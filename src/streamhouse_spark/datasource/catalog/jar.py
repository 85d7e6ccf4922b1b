"""Where the jar of the catalog's Java class lies."""

from __future__ import annotations

from pathlib import Path

from streamhouse_spark.errors import MissingExtraError

CATALOG_CLASS = "io.streamhouse.spark.StreamhouseCatalog"
JAR_NAME = "streamhouse-spark.jar"


def jar_path() -> Path:
    """The jar, for ``spark.jars`` and ``--jars``. Raises `MissingExtraError` where the installation lacks it."""
    path = Path(__file__).with_name(JAR_NAME)
    if not path.is_file():
        raise MissingExtraError(
            f"{path} is missing: install streamhouse-spark again, or build the jar with make jar in a checkout",
        )
    return path
