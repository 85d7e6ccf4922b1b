"""Python workers of Spark that begin quickly, for the many that a long run starts."""

from __future__ import annotations

import os
from pathlib import Path

_BEGINNING = """
import sys

if "pyspark.daemon" in sys.orig_argv:
    import duckdb, pyarrow.dataset, pyarrow.parquet
    import pyspark.worker
    import pyspark.sql.worker.create_data_source, pyspark.sql.worker.write_into_data_source
    import pyspark.sql.worker.commit_data_source_write, pyspark.sql.worker.plan_data_source_read
    import streamhouse_spark.datasource.source, streamhouse_spark.datasource.write.spark_writer
    import streamhouse_spark.datasource.scan.scan, streamhouse_spark.lake.iceberg.scan
"""
"""Spark's daemon forks a worker for each kind of work and thread, and stops workers that were idle for a minute. Each
worker would import all modules again, so the daemon imports them once.
"""


def begin_quickly(folder: Path) -> None:
    """Let the daemons of the next Spark import modules once; create `folder` for this alone."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_BEGINNING)
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{others}" if others else str(folder)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
