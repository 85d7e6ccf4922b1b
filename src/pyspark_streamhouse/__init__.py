"""A module by whose name Spark finds the data source ``streamhouse``.

Spark imports every top-level module whose name begins with ``pyspark_`` at the first lookup of a data source, in every
session of the machine, and gives up on all of them when one fails. So this module imports only what Spark's lookup has
already imported, and the data source itself when one is opened.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """Stands in for the data source: a call returns the real one."""

    def __new__(cls, options: dict[str, str]) -> Any:
        from streamhouse_spark.datasource.source import StreamhouseDataSource

        return StreamhouseDataSource(options)

    @classmethod
    def name(cls) -> str:
        return "streamhouse"
