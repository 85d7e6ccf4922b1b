"""Spark imports the data source anew in each Python worker, so it loads nothing that a role does not need."""

from __future__ import annotations

import json
import subprocess
import sys

import pyarrow as pa
import pytest

from streamhouse_spark import Warehouse

HEAVY = ("pandas", "pyarrow.dataset", "pyarrow.acero", "pyiceberg", "pypaimon", "fsspec", "lmdb", "boto3", "click")
LOADED = "print(json.dumps(sorted(m for m in sys.argv[2:] if m in sys.modules)))"
PLANNER = """
import json, sys
from streamhouse_spark.datasource.catalog.internal_options import ARGUMENTS_OPTION, CALL_OPTION
from streamhouse_spark.datasource.source import StreamhouseDataSource

def ask(operation, **arguments):
    options = {"warehouse": sys.argv[1], CALL_OPTION: operation, ARGUMENTS_OPTION: json.dumps(arguments)}
    answer = StreamhouseDataSource(options).schema().fields[0].metadata
    return json.loads(answer["json"])["ok"]

table = ask("load", database="sales", table="orders")
equal = {"op": "=", "children": [{"column": ["id"]}, {"literal": 1, "type": '"long"'}]}
planned = ask("plan", pin=table["pin"], columns=["id", "name"], filters=[equal])
assert planned["rows"] == 1
"""
STREAM = """
import json, sys
from streamhouse_spark.datasource.source import StreamhouseDataSource

source = StreamhouseDataSource({"warehouse": sys.argv[1], "path": "sales.orders", "startingOffsets": "earliest"})
reader = source.streamReader(source.schema())
start = reader.initialOffset()
assert start["offsets"] == {"0": 0}
"""
WRITER = """
import json, sys
from pyspark.sql.types import LongType, StringType, StructField, StructType
from streamhouse_spark.datasource.source import StreamhouseDataSource

rows = StructType([StructField("id", LongType()), StructField("name", StringType())])
StreamhouseDataSource({"warehouse": sys.argv[1], "path": "sales.orders"}).writer(rows, False)
"""


@pytest.mark.parametrize("role", [PLANNER, STREAM, WRITER], ids=["a query of the log", "a stream", "an append"])
def test_planning_loads_no_heavy_library(warehouse_path, role):
    warehouse = Warehouse(warehouse_path)
    warehouse.create_database("sales")
    table = warehouse.create_table("sales.orders", pa.schema([("id", pa.int64()), ("name", pa.string())]))
    table.append([{"id": 1, "name": "a"}])
    command = [sys.executable, "-c", role + LOADED, warehouse_path, *HEAVY]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
