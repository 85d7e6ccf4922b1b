"""The first query of a session finds its planner there: one daemon with one worker, which the session began."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamhouse_spark import Warehouse
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.table.maintenance.tiering import tier_table

SESSION = """
import os, sys, json
from pathlib import Path
from pyspark.sql import SparkSession
import streamhouse_spark as sh

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
spark = sh.configure(builder, warehouse=sys.argv[1]).getOrCreate()
"""
QUERY = """
def commands():
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_text().split("\\0")
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
        except (OSError, NotADirectoryError):
            continue
        if "pyspark.daemon" in words:
            yield int(process.name), int(parent), words[words.index("pyspark.daemon") + 1]

count = spark.sql("SELECT sum(id) FROM streamhouse.sales.`orders$lake`").collect()[0][0]
jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
found = list(commands())
daemons = [(pid, module) for pid, parent, module in found if parent == jvm]
workers = [module for _, parent, module in found if parent in dict(daemons)]
print(json.dumps({"count": count, "daemons": [module for _, module in daemons], "workers": workers}))
"""
ERROR = """
try:
    spark.sql("SHOW TABLES IN streamhouse.sales").collect()
except Exception as error:
    print(json.dumps(str(error)))
"""


def said(url: str, code: str, **environ: str) -> object:
    """Return the value that the script prints last."""
    command = [sys.executable, "-c", SESSION + code, url]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    done = subprocess.run(command, env={**kept, **environ}, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    warehouse = Warehouse(str(tmp_path / "warehouse"))
    table = warehouse.create_table("sales.orders", "id BIGINT")
    table.append([{"id": 1}, {"id": 2}])
    tier_table(table, run_tasks_locally(table.storage, table.settings, table.world))
    return warehouse


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are listed as Linux does")
def test_the_first_query_of_a_lake_takes_the_worker_that_the_session_began(warehouse):
    module = "pyspark.sql.worker.create_data_source"
    assert said(warehouse.url, QUERY) == {"count": 3, "daemons": [module], "workers": [module]}


@pytest.mark.long
def test_where_workers_have_no_package_spark_says_so_in_its_own_words(warehouse, tmp_path):
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # without site-packages
    python.chmod(0o755)
    assert "DATA_SOURCE_NOT" in str(said(warehouse.url, ERROR, PYSPARK_PYTHON=str(python)))
