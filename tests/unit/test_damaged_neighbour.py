"""Damage to one table, or to its name, stays there: all others are listed, read, written, dropped and tiered."""

from __future__ import annotations

import threading

import pytest

import streamhouse_spark as sh
from kit.waiting import wait_for
from streamhouse_spark import CorruptDataError
from streamhouse_spark.cli.diagnostics import check_warehouse
from streamhouse_spark.core.warehouse_layout import commit_key, name_key, parse_table_name
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.service.tiering_service import Service
from streamhouse_spark.warehouse.process_cache import Connection

BAD, GOOD = "sales.bad", "sales.good"
DAMAGES = ["record", "pointer", "database"]


@pytest.fixture(params=DAMAGES)
def wh(request, warehouse_path):
    """A warehouse in which the newest record of one table, its name or the file of its database is damaged."""
    warehouse = sh.Warehouse(warehouse_path)
    bad = "other.bad" if request.param == "database" else BAD
    table = warehouse.create_table(bad, "id BIGINT", properties={"table.datalake.freshness": "1s"})
    table.append([{"id": 1}])
    warehouse.create_table(GOOD, "id BIGINT", properties={"table.datalake.freshness": "1s"}).append([{"id": 1}])
    key = {
        "record": commit_key(table.uuid, 2),
        "pointer": name_key(parse_table_name(bad).path, 1),
        "database": "other/database.json",
    }[request.param]
    path = warehouse.storage.local_path(key)
    with open(path, "r+b") as file:  # noqa: PTH123
        file.seek(60)
        byte = file.read(1)
        file.seek(60)
        file.write(bytes([byte[0] ^ 1]))
    return sh.Warehouse(warehouse_path), bad, request.param


def good_is_well(warehouse) -> None:
    table = warehouse.table(GOOD)
    table.append([{"id": 2}])
    assert table.to_arrow().num_rows >= 2


def test_other_tables_are_listed_opened_created_and_dropped(wh):
    warehouse, bad, what = wh
    good_is_well(warehouse)
    assert set(warehouse.tables()) == {bad, GOOD}
    if what != "database":
        with pytest.raises(CorruptDataError, match=r"tables/.*/commits/|/names/"):
            warehouse.table(bad)
        with pytest.raises(sh.TableNotFoundError, match="did you mean"):
            warehouse.table("sales.goood")
    warehouse.create_table("sales.new", "id BIGINT")
    assert warehouse.drop_table("sales.new")
    assert [table.name for table in warehouse.dropped_tables()] == ["sales.new"]
    warehouse.undrop_table("sales.new")
    warehouse.clean_dropped()
    warehouse.rename_table("sales.new", "sales.newer")
    assert warehouse.drop_database("sales", cascade=True)


def test_the_damaged_one_can_be_dropped_and_its_name_used_again(wh):
    warehouse, bad, what = wh
    if what == "database":
        return
    assert warehouse.drop_table(bad)
    assert warehouse.tables() == [GOOD]
    made = warehouse.create_table(bad, "id BIGINT")
    made.append([{"id": 7}])
    assert warehouse.table(bad).to_arrow()["id"].to_pylist() == [7]


def test_the_service_tiers_the_others_and_says_which_it_cannot(wh):
    warehouse, bad, what = wh
    run_tasks = run_tasks_locally(warehouse.storage, warehouse.settings, warehouse.world)
    service = Service(run_tasks, Connection.of(warehouse.url, {}))
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        wait_for(lambda: warehouse.table(GOOD).refresh().lake is not None, "a round of the good table")
        status = {found.table: found for found in service.status()}
    finally:
        service.stop()
        thread.join(240)
    assert status[GOOD].error is None
    if what != "database":
        assert status[bad].doing == "failed"
        assert "CORRUPT_DATA" in status[bad].error


def test_doctor_goes_on_and_names_it(wh):
    warehouse, bad, what = wh
    findings = {finding.check: finding for finding in check_warehouse(warehouse.url, None, warehouse.world)}
    assert findings["put-if-absent"].level == "ok"
    if what != "database":
        assert findings[f"table {bad}"].level == "fail"
