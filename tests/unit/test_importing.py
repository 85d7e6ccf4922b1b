"""What importing the package costs: heavy libraries are loaded only where they are used."""

from __future__ import annotations

import json
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


STEPS = """
import json, sys
import streamhouse_spark as sh

warehouse, loaded = sh.Warehouse({path!r}), {{}}


def step(name, call):
    before = set(sys.modules)
    result = call()
    new = set(sys.modules) - before
    libraries = {{module.partition(".")[0] for module in new}} & set({heavy!r})
    loaded[name] = sorted(libraries), sum(module.startswith("streamhouse_spark.") for module in new)
    return result


log = step("open", lambda: warehouse.create_table("t", "id BIGINT, s STRING", buckets=2))
step("append", lambda: log.append([{{"id": 1, "s": "x"}}]))
step("read", lambda: log.to_arrow(columns=["s"], filter=[("id", "=", 1)]).to_pylist())
step("tail", lambda: next(log.tail("earliest")))
keyed = step("open keyed", lambda: warehouse.create_table("k", "id BIGINT NOT NULL, s STRING", primary_key=["id"]))
step("upsert", lambda: keyed.upsert([{{"id": 1, "s": "x"}}, {{"id": 2, "s": "x"}}]))
step("delete", lambda: keyed.delete([{{"id": 2}}]))
step("lookup_one", lambda: keyed.lookup_one({{"id": 1}}))
step("lookup", lambda: keyed.lookup([{{"id": 1}}]))
step("read keyed", lambda: keyed.to_arrow())
print(json.dumps(loaded))
"""
FIRST_CALLS = {
    "open": {"pandas"},
    "append": set(),
    "read": set(),
    "tail": set(),
    "open keyed": set(),
    "upsert": {"lmdb"},
    "delete": set(),
    "lookup_one": set(),
    "lookup": set(),
    "read keyed": set(),
}
"""First call of its kind → the heavy libraries that it may load. Arrow loads pandas to look at values of Python."""


def test_first_calls_load_no_heavy_library_and_few_modules(warehouse_path):
    loaded = json.loads(run(STEPS.format(path=warehouse_path, heavy=HEAVY)))
    for name, (heavy, num_modules) in loaded.items():
        assert set(heavy) <= FIRST_CALLS[name], name
        assert num_modules <= (120 if name.startswith("open") else 12), name
    assert loaded.keys() == FIRST_CALLS.keys()


def test_a_command_loads_nothing_before_the_call_that_needs_it(warehouse_path):
    code = f"""
import sys, streamhouse_spark as sh
from streamhouse_spark.table.preloading import disable_preloading
disable_preloading()
sh.Warehouse({warehouse_path!r}).create_table("t", "id BIGINT", primary_key=["id"])
print([m for m in {HEAVY} if m in sys.modules])
"""
    assert run(code) == "[]"
