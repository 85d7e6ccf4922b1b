"""What importing the package costs: heavy libraries are loaded only where they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import streamhouse_spark as sh

HEAVY = [
    *("pyspark", "py4j", "pyiceberg", "pypaimon", "lmdb", "s3fs", "fsspec", "boto3", "botocore", "aiobotocore"),
    *("azure", "google", "requests", "opentelemetry", "prometheus_client", "pandas", "polars"),
]


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError):
        _ = sh.nothing_of_the_kind


def run(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_importing_loads_nothing_heavy():
    heavy = [*HEAVY, "pyarrow", "numpy"]
    assert run(f"import sys, streamhouse_spark; print([m for m in {heavy} if m in sys.modules])") == "[]"


def test_names_that_are_loaded_late_are_listed_and_stay():
    code = "import streamhouse_spark as sh; print(set(sh.__all__) <= set(dir(sh)), sh.Table, 'Table' in vars(sh))"
    assert run(code) == "True <class 'streamhouse_spark.table.table.Table'> True"


def test_writing_and_reading_a_local_table_loads_nothing_heavy(warehouse_path):
    code = f"""
import sys, streamhouse_spark as sh
table = sh.Warehouse({warehouse_path!r}).create_table("t", "id BIGINT, s STRING", buckets=2)
table.append([{{"id": 1, "s": "x"}}])
assert table.to_arrow(columns=["s"]).num_rows == 1
assert next(table.tail("earliest")).num_rows == 1
table.inspect.segments()
print([m for m in {HEAVY} if m in sys.modules])
"""
    assert run(code) in ("[]", "['pandas']"), "Arrow itself loads pandas to look at lists"
