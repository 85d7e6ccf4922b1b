"""A session of its own for random queries and statements outside pytest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamhouse_spark


def session(folder: Path) -> Any:
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.ui.liveUpdate.period", "-1")
        .config("spark.ui.retainedJobs", "10")
        .config("spark.ui.retainedStages", "10")
        .config("spark.sql.ui.retainedExecutions", "10")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "spark-warehouse"))
        .config("spark.log.level", "ERROR")
        .config("spark.driver.memory", "4g")  # broadcast relations stay until a collection of garbage
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.worker.faulthandler.enabled", "true")  # a worker that crashes tells where
        .config("spark.sql.execution.pyspark.udf.faulthandler.enabled", "true")
    )
    return streamhouse_spark.configure(builder, warehouse=str(folder / "warehouse")).getOrCreate()
