"""A script that is run by a Python that no PATH names: Spark's workers run the same one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.spark41, pytest.mark.classic]

JOB = """
import sys
from pyspark.sql import SparkSession
import streamhouse_spark as sh

builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
spark = sh.configure(builder, warehouse=sys.argv[1]).getOrCreate()
spark.sql("CREATE DATABASE streamhouse.d")
spark.sql("CREATE TABLE streamhouse.d.t (id BIGINT, n BIGINT, PRIMARY KEY (id))")
spark.sql("INSERT INTO streamhouse.d.t SELECT id, id FROM range(10)")
print("sum", spark.sql("SELECT sum(n) FROM streamhouse.d.t").collect()[0][0])
"""


@pytest.mark.long
def test_workers_run_the_python_of_the_script(tmp_path: Path) -> None:
    """Without it the first query fails: the ``python3`` of the PATH lacks the package."""
    folder = tmp_path / "bin"
    folder.mkdir()
    other = folder / "python3"
    other.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # without site-packages
    other.chmod(0o755)
    (tmp_path / "job.py").write_text(JOB)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "PYTHON", "SPARK"))}
    environ["PATH"] = f"{folder}:/usr/bin:/bin"
    if "JAVA_HOME" in os.environ:
        environ["JAVA_HOME"] = os.environ["JAVA_HOME"]
    command = [sys.executable, str(tmp_path / "job.py"), str(tmp_path / "warehouse")]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert "sum 45" in done.stdout, done.stdout + done.stderr
