"""The builder of a Spark session that reads S3 by Hadoop's S3A, which Spark fetches, and notes its events."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from streamhouse_spark.cli.diagnostics import check_lake_reader, spark_jars


def s3a_builder(events: Path) -> Any:
    """The builder: with the package that `streamhouse doctor` names, and the events of its session in a folder."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    [finding] = check_lake_reader("s3://bucket/wh", spark_jars({}))
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.jars.packages", finding.remedy.rpartition(" ")[2])
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", events.as_uri())
        .config("spark.eventLog.compress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
    )
