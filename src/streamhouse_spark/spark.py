"""What a user calls with a Spark session. PySpark is imported when one of these is called, not before."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> SparkSession:
    """Make ``format("streamhouse")`` known to a session; returns it.

    Not needed where the package was installed before the session started: Spark then finds the data source itself.
    """
    from streamhouse_spark.datasource.source import StreamhouseDataSource

    spark.dataSource.register(StreamhouseDataSource)
    return spark
