"""Commands for all tables do what they can, list what they cannot, and end with exit code 1."""

from __future__ import annotations

import pytest

import streamhouse_spark as sh
from streamhouse_spark.core.warehouse_layout import commit_key


@pytest.fixture
def damaged(warehouse_path):
    warehouse = sh.Warehouse(warehouse_path)
    for name in ("bad", "good"):
        table = warehouse.create_table(name, "id BIGINT")
        table.append([{"id": 1}])
        if name == "bad":
            with open(warehouse.storage.local_path(commit_key(table.uuid, 2)), "ab") as file:  # noqa: PTH123
                file.write(b"?")
    return warehouse


@pytest.mark.parametrize("command", [["ls"], ["maintain"], ["tier", "--once"]])
def test_the_others_have_their_turn(run, damaged, command):
    result = run(*command, "--output", "json", code=1)
    done = {row["table"]: row for row in result.lines}
    assert "default.good" in done
    assert "CORRUPT_DATA" in result.stderr
    if command == ["ls"]:
        assert done["default.bad"]["rows"] is None
    if command[0] == "tier":
        assert damaged.table("good").lake.to_arrow().num_rows == 1


def test_a_lake_is_built_anew(run, warehouse_path):
    table = sh.Warehouse(warehouse_path).create_table("t", "id BIGINT")
    table.append([{"id": 1}])
    run("tier", "--once")
    for info in table.storage.list(f"{table.state.lake_location}/"):
        table.storage.delete(info.key)
    assert "streamhouse retier" in run("tier", "--once", "t", code=1).stderr
    assert run("retier", "t", "--dry-run", "--output", "json").document["rows"] == 1
    assert "next: streamhouse tier --once default.t" in run("retier", "t").stdout
    run("tier", "--once", "t")
    assert sh.Warehouse(warehouse_path).table("t").lake.to_arrow()["id"].to_pylist() == [1]
