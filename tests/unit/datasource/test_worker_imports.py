"""Spark imports the data source anew in each Python worker, so it loads nothing that a role does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from kit.tables import tier
from streamhouse_spark import Table, Warehouse

HEAVY = {
    "pandas",
    "pyarrow.dataset",
    "pyarrow.acero",
    "pyarrow.parquet",
    "pyiceberg",
    "pydantic",
    "pyparsing",
    "strictyaml",
    "pypaimon",
    "fsspec",
    "lmdb",
    "boto3",
    "click",
}
WRITING = {
    "write",
    "log.staging",
    "log.compaction",
    "log.segments.packed_objects",
    "schema.row_conversion",
    "datasource.write",
}
UPKEEP = {"service", "table.maintenance", "table.drop_partition"}
MOVING = {"warehouse.adoption", "warehouse.relocation"}
KEYED = {"kv.upsert_commit", "kv.change_staging", "kv.tablet", "kv.row_codec", "kv.lmdb", "lookup"}
LAKES = {"lake.iceberg", "lake.paimon", "lake.formats"}
READING = {"datasource.read", "read.scan_planning", "read.scan_executor", "lake.parquet", "lake.base"}
CATALOG = {"datasource.catalog.rpc", "datasource.scan", "datasource.catalog.ddl"}
MAINTENANCE = {
    "lake.iceberg.compaction",
    "lake.iceberg.drop_partition",
    "lake.iceberg.expiry",
    "lake.iceberg.tiering_commit",
    "lake.iceberg.file_spec",
    "lake.iceberg.relocation",
}
COMMON = {"cli", "demo", "datasource.catalog.procedures", "datasource.lookup_joins", *UPKEEP, *MOVING}
READER = COMMON | WRITING | KEYED | LAKES
WRITER = COMMON | READING | LAKES | CATALOG
APPENDER = WRITER | {"kv", "read", "expressions.filters", "table.system_views", "write.upsert"}
PARQUET = {"pyarrow.parquet"}
LOADED = PARQUET | {"pyiceberg", "pydantic", "pyparsing", "strictyaml"}
LIBRARY = {"lake.iceberg.catalog", "lake.iceberg.scan", "lake.iceberg.schema", "lake.iceberg.file_io"}
"""Modules that load the library, which takes longer than all others: the newest snapshot is found without it."""
ICEBERG = (READER - LAKES - {"schema.row_conversion"}) | {"lake.paimon", *MAINTENANCE}

BEGIN = """
import json, pickle, sys
from importlib.abc import MetaPathFinder
from traceback import extract_stack

class Chains(MetaPathFinder):
    '''Notes the files that were importing each other when a module was first asked for.'''
    found = {}

    def find_spec(self, name, path=None, target=None):
        files = [f"{frame.filename}:{frame.lineno}" for frame in extract_stack()[:-1]]
        self.found.setdefault(name, [file for file in files if "importlib" not in file][-12:])

sys.meta_path.insert(0, Chains())
from pyspark.sql.types import LongType, StringType, StructField, StructType
from streamhouse_spark.datasource.rpc_arguments import ARGUMENTS_OPTION, CALL_OPTION
from streamhouse_spark.datasource.source import StreamhouseDataSource

WAREHOUSE, NAME, HANDED = sys.argv[1:4]
ROWS = StructType([StructField("id", LongType()), StructField("name", StringType())])

def source(**options):
    return StreamhouseDataSource({"warehouse": WAREHOUSE, "path": NAME, **options})

def ask(operation, **arguments):
    options = {"warehouse": WAREHOUSE, CALL_OPTION: operation, ARGUMENTS_OPTION: json.dumps(arguments)}
    answer = StreamhouseDataSource(options).schema().fields[0].metadata
    return json.loads(answer["json"])["ok"]

def hand_on(*values):
    with open(HANDED, "wb") as file:
        pickle.dump(values, file)

def handed():
    with open(HANDED, "rb") as file:
        return pickle.load(file)
"""
END = """
print(json.dumps({name: Chains.found.get(name, []) for name in sys.modules}))
"""
ROLES = {
    "plan": """
database, name = NAME.split(".")
table = ask("load", database=database, table=name)
equal = {"op": "=", "children": [{"column": ["name"]}, {"literal": "a", "type": '"string"'}]}
planned = ask("plan", snapshot=table["snapshot"], columns=["id", "name"], filters=[equal])
assert planned["rows"] == 1 or NAME == "sales.keyed"
""",
    "load a lake": """
database, name = NAME.split(".")
assert json.loads(ask("load", database=database, table=f"{name}$lake")["snapshot"])["lake_snapshot"] is not None
""",
    "warm_up": """
assert ask("warm_up", part="reads") == {}
""",
    "plan a read": """
reader = source().reader(source().schema())
hand_on(reader, reader.partitions())
""",
    "read": """
reader, partitions = handed()
assert sum(batch.num_rows for partition in partitions for batch in reader.read(partition)) >= 1
""",
    "stream": """
reader = source(startingOffsets="earliest").streamReader(ROWS)
assert reader.initialOffset()["offsets"] == {"0": 0}
""",
    "plan a write": """
hand_on(source().writer(ROWS, False))
""",
    "commit": """
writer, = handed()
writer.commit([])
""",
}
"""A role of a worker, and what Spark has it do. A role that takes something takes what the role before it handed on."""


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory) -> Warehouse:
    warehouse = Warehouse(str(tmp_path_factory.mktemp("imports") / "warehouse"))
    warehouse.create_database("sales")
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    for name, lake in (("orders", None), ("iceberg", "iceberg")):
        properties = {"table.datalake.enabled": "true", "table.datalake.format": lake} if lake else {}
        table = warehouse.create_table(f"sales.{name}", schema, properties=properties)
        table.append([{"id": 1, "name": "a"}])
        if lake:
            tier(table)
    keyed = warehouse.create_table("sales.keyed", "id BIGINT NOT NULL, name STRING", primary_key=["id"])
    keyed.upsert([{"id": 1, "name": "a"}])
    return warehouse


def chains(table: Table, warehouse: Warehouse, handed: Path, role: str) -> dict[str, list[str]]:
    """Return the modules that a role of a worker loads, each with the files that led to it."""
    code = BEGIN + ROLES[role] + END
    command = [sys.executable, "-c", code, warehouse.url, str(table.name), str(handed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded: dict[str, list[str]] = json.loads(done.stdout)
    return loaded


def needless(loaded: dict[str, list[str]], ours: set[str], libraries: set[str]) -> dict[str, list[str]]:
    """Return the loaded modules that are, or lie in, forbidden ones, with the files that led to them."""
    forbidden = {f"streamhouse_spark.{name}" for name in ours} | (HEAVY - libraries)
    return {name: chain for name, chain in loaded.items() if any(f"{name}.".startswith(f"{one}.") for one in forbidden)}


@pytest.mark.parametrize(
    ("name", "roles", "ours", "libraries"),
    [
        ("orders", ["plan"], READER - {"datasource.catalog.scan"}, PARQUET),
        ("orders", ["plan a read", "read"], READER | CATALOG, set()),
        ("orders", ["stream"], READER | CATALOG, set()),
        ("orders", ["plan a write", "commit"], APPENDER, set()),
        ("keyed", ["plan"], READER, PARQUET),
        ("keyed", ["plan a read"], READER | CATALOG, set()),
        ("keyed", ["plan a write"], WRITER, set()),
        ("iceberg", ["load a lake"], ICEBERG | LIBRARY, PARQUET),
        ("iceberg", ["warm_up"], ICEBERG | LIBRARY, PARQUET),
        ("iceberg", ["plan"], ICEBERG, LOADED),
        ("iceberg", ["plan a read"], ICEBERG, LOADED),
        ("iceberg", ["stream"], READER | CATALOG, set()),
    ],
    ids=lambda value: " and ".join(value) if isinstance(value, list) else value if isinstance(value, str) else "",
)
def test_a_worker_loads_what_its_role_needs(warehouse, tmp_path, name, roles, ours, libraries):
    table = warehouse.table(f"sales.{name}")
    for role in roles:
        assert needless(chains(table, warehouse, tmp_path / "handed", role), ours, libraries) == {}, role


def test_a_needless_module_is_shown_with_the_files_that_led_to_it(warehouse, tmp_path):
    found = needless(chains(warehouse.table("sales.orders"), warehouse, tmp_path / "handed", "stream"), {"log"}, set())
    assert any("process_cache.py" in file for file in found["streamhouse_spark.log.state"])
