"""A project of dbt over the catalog, run twice with dbt's own runner: every result, exactly."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamhouse_spark import Warehouse
from streamhouse_spark.datasource.catalog.jar import jar_path

pytestmark = [pytest.mark.dbt, pytest.mark.filterwarnings("ignore")]

HERE = Path(__file__).parent
MACROS = HERE.parents[1] / "integrations" / "dbt"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    shutil.copytree(HERE / "project", folder)
    (folder / "packages.yml").write_text(f"packages:\n  - local: {MACROS}\n")
    monkeypatch.setenv("STREAMHOUSE_WAREHOUSE", str(tmp_path / "warehouse"))
    monkeypatch.setenv("STREAMHOUSE_JAR", str(jar_path()))
    monkeypatch.setenv("DBT_PROFILES_DIR", str(folder))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def dbt(project: Path) -> Iterator[Callable[..., Any]]:
    from dbt.cli.main import dbtRunner
    from pyspark.sql import SparkSession

    def run(*command: str) -> Any:
        done = dbtRunner().invoke([*command, "--quiet"])
        failures = [
            f"{one.node.name}: {one.message}"
            for one in getattr(done.result, "results", [])
            if hasattr(one, "node") and str(one.status) not in ("success", "pass")
        ]
        assert done.success, (command, done.exception, failures)
        return done.result

    run("deps")
    yield run
    if (session := SparkSession.getActiveSession()) is not None:
        session.stop()


def rows(wh: Warehouse, name: str, *columns: str) -> list[tuple[Any, ...]]:
    found = wh.table(name).to_arrow(columns=list(columns) or None).to_pylist()
    return sorted((tuple(row.values()) for row in found), key=str)


def all_at_once(dbt: Callable[..., Any]) -> None:
    for command in ("seed", "run", "snapshot", "test"):
        dbt(command)


def test_a_project_runs_twice(dbt, project: Path):
    wh = Warehouse(os.environ["STREAMHOUSE_WAREHOUSE"])
    orders = wh.create_table("shop.orders", "id BIGINT, customer BIGINT, amount BIGINT, day STRING", primary_key=["id"])
    orders.upsert(
        [
            {"id": 1, "customer": 1, "amount": 5, "day": "a"},
            {"id": 2, "customer": 2, "amount": 10, "day": "a"},
            {"id": 3, "customer": 2, "amount": 20, "day": "b"},
        ]
    )
    all_at_once(dbt)
    assert rows(wh, "marts.totals") == [(1, 5), (2, 30)]
    assert rows(wh, "marts.named_totals") == [(1, "Ada", 5), (2, "Bob", 30)]
    uuids = {name: wh.table(name).uuid for name in wh.tables()}

    orders.upsert(
        [
            {"id": 2, "customer": 9, "amount": 11, "day": "a"},
            {"id": 4, "customer": 1, "amount": 40, "day": "b"},
            {"id": 5, "customer": 1, "amount": 7, "day": "c"},
        ]
    )
    (project / "seeds" / "customers.csv").write_text("id,name,since\n1,Ada L,2024-03-01\n3,Cyd,2024-03-01\n")
    all_at_once(dbt)
    assert rows(wh, "marts.totals") == [(1, 52), (2, 20), (9, 11)]
    assert rows(wh, "marts.named_totals") == [(1, "Ada L", 52)]
    assert rows(wh, "marts.appended") == [(1, 5), (2, 10), (3, 20), (4, 40), (5, 7)]
    assert rows(wh, "marts.merged") == [(1, 1, 5), (2, 9, 11), (3, 2, 20), (4, 1, 40), (5, 1, 7)]
    assert rows(wh, "marts.merged_log") == [(1, 1, 5), (2, 2, 11), (3, 2, 20), (4, 1, 40), (5, 1, 7)]
    assert rows(wh, "marts.by_day") == [(1, 5, "a"), (2, 10, "a"), (3, 20, "b"), (4, 40, "b"), (5, 7, "c")]
    history = ("id", "name", "dbt_valid_to")
    by_time = [(key, name, str(until)) for key, name, until in rows(wh, "marts_snapshots.customers_by_time", *history)]
    assert by_time == [(1, "Ada L", "None"), (1, "Ada", "2024-03-01"), (2, "Bob", "None"), (3, "Cyd", "None")]
    by_check = [
        (key, name, until is None) for key, name, until in rows(wh, "marts_snapshots.customers_by_check", *history)
    ]
    assert by_check == [(1, "Ada L", True), (1, "Ada", False), (2, "Bob", False), (3, "Cyd", True)]

    kept = {name for name, uuid in uuids.items() if wh.exists(name) and wh.table(name).uuid == uuid}
    assert set(uuids) - kept == {"marts.customers"}, "a seed is dropped and made again; all others stay the same tables"
    assert wh.table("marts.merged").state.primary_key == ("id",)
    assert wh.table("marts.named_totals").state.primary_key == ("customer",)
    assert wh.table("marts.by_day").state.partition_by == ("day",)

    dbt("docs", "generate")
    catalog = json.loads((project / "target" / "catalog.json").read_text())
    nodes = {name.split(".")[-1]: node for name, node in catalog["nodes"].items()}
    assert list(nodes["large_orders"]["columns"]) == ["id", "customer", "amount"]
    assert (nodes["large_orders"]["metadata"]["type"], nodes["totals"]["metadata"]["type"]) == ("view", "table")
    assert "marts.large_orders" not in wh.tables(), "it is a view"

    dbt("run", "--full-refresh", "--select", "appended", "merged")
    assert [amount for _, amount in rows(wh, "marts.appended")] == [5, 11, 20, 40, 7]
