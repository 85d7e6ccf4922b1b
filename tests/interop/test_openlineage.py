"""OpenLineage's own listener in Spark names our tables, and the tiering service's events join them to their lakes.
`make interop` runs this: Spark fetches the listener from Maven Central.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from kit.tables import tier
from streamhouse_spark import Warehouse
from streamhouse_spark.datasource.catalog.jar import jar_path
from streamhouse_spark.service.openlineage import RoundEventEmitter, create_listener

LISTENER = "io.openlineage:openlineage-spark_2.13:1.37.0"

pytestmark = pytest.mark.engines

PROGRAM = """
import sys
from pyspark.sql import SparkSession

jar, warehouse, events, listener = sys.argv[1:]
settings = {
    "spark.jars": jar,
    "spark.jars.packages": listener,
    "spark.extraListeners": "io.openlineage.spark.agent.OpenLineageSparkListener",
    "spark.openlineage.transport.type": "file",
    "spark.openlineage.transport.location": events,
    "spark.sql.catalog.streamhouse": "io.streamhouse.spark.StreamhouseCatalog",
    "spark.sql.catalog.streamhouse.warehouse": warehouse,
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
builder = SparkSession.builder.master("local[2]")
for key, value in settings.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
spark.sql("INSERT INTO streamhouse.s.target SELECT id, name FROM streamhouse.s.source")
spark.stop()
"""


def test_a_statement_and_a_round_are_one_chain(tmp_path):
    warehouse = Warehouse(str(tmp_path / "wh"))
    for name in ("s.source", "s.target"):
        warehouse.create_table(name, "id INT, name STRING")
    warehouse.table("s.source").append([{"id": 1, "name": "a"}])
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(jar_path()), warehouse.url, str(tmp_path / "spark"), LISTENER]
    subprocess.run(command, check=True, env={**os.environ, "PYSPARK_PYTHON": sys.executable}, timeout=600)
    found = [json.loads(line) for line in (tmp_path / "spark").read_text().splitlines()]
    inputs = {(one["namespace"], one["name"]) for event in found for one in event.get("inputs", ())}
    outputs = {(one["namespace"], one["name"]) for event in found for one in event.get("outputs", ())}
    assert ("file", f"{warehouse.storage.url}/s.source") in inputs
    assert ("file", f"{warehouse.storage.url}/s.target") in outputs

    table = warehouse.table("s.target")
    events = RoundEventEmitter(create_listener(str(tmp_path / "rounds")), table, table.world)
    events.emit_start()
    events.emit_end(tier(table))
    rounds = [json.loads(line) for line in (tmp_path / "rounds").read_text().splitlines()]
    assert (rounds[1]["inputs"][0]["namespace"], rounds[1]["inputs"][0]["name"]) in outputs
