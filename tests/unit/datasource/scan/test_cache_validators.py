"""While the validators of an answer hold, another call has the same answer; whatever changes it invalidates one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamhouse_spark import Table, Warehouse
from streamhouse_spark.datasource.scan import aggregates
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.warehouse.process_cache import Connection
from unit.datasource.scan.scans import Scans, tier

SCHEMA = pa.schema([("id", pa.int64()), ("dt", pa.string())])
NAMES = ("sales.orders", "sales.orders$lake")


def rows(start: int, end: int) -> list[dict[str, Any]]:
    return [{"id": i, "dt": f"{i % 2}"} for i in range(start, end)]


def hold(validators: list[dict[str, Any]] | None) -> bool:
    """Look at the files as the JVM side does."""
    return validators is not None and all(
        _stamp(Path(validator["path"])) == validator["stamp"] for validator in validators
    )


def _stamp(path: Path) -> str | None:
    if not path.exists():
        return None
    facts = path.stat()
    return f"{facts.st_ino}-{facts.st_size}-{facts.st_mtime_ns}"


@pytest.fixture
def wh(warehouse_path) -> Warehouse:
    return Warehouse(warehouse_path)


@pytest.fixture
def orders(wh) -> Table:
    table = wh.create_table("sales.orders", SCHEMA, properties={"bucket.num": "2", "bucket.key": "id"})
    table.append(rows(0, 100))
    tier(table)
    table.append(rows(100, 120))
    return table


def answers(scans: Scans, name: str) -> list[dict[str, Any]]:
    """The answers that a count, and a query of some rows, rest on."""
    loaded = scans.load(name)
    function = {"function": "count_star", "column": None}
    counted = aggregates.aggregate(scans.connection, {"snapshot": loaded["snapshot"], "aggregates": [function]})
    return [loaded, json.loads(json.dumps(counted)), scans.plan(loaded).reply]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("orders")
def test_the_answers_of_a_table_that_does_not_change_hold(scans, name):
    found = answers(scans, name)
    assert all(hold(answer["validators"]) for answer in found)
    assert found == answers(scans, name)


def _of_lake(table: Table) -> Any:
    place = table.open_lake().binding
    assert isinstance(place, IcebergTableBinding)
    return place.load()


def _another_engine_commits(table: Table) -> None:
    _of_lake(table).delete("id >= 0")


def _another_engine_sets_a_property(table: Table) -> None:
    with _of_lake(table).transaction() as transaction:
        transaction.set_properties({"a": "b"})


def _restored(table: Table) -> None:
    root = Path(table.storage.local_path(""))
    shutil.copytree(root, root.with_name("copy"))
    shutil.rmtree(root)
    root.with_name("copy").rename(root)


OF_BOTH: dict[str, Callable[[Table], Any]] = {
    "append": lambda table: table.append(rows(120, 121)),
    "tiering": tier,
    "truncation": lambda table: table.truncate(),
    "columns": lambda table: table.add_columns("more BIGINT"),
    "restored": _restored,
}
OF_LAKE = {
    "another engine": _another_engine_commits,
    "a property of the lake": _another_engine_sets_a_property,
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", OF_BOTH)
def test_each_change_of_the_table_invalidates_the_answers(orders, scans, name, change):
    found = answers(scans, name)
    OF_BOTH[change](orders)
    assert not any(hold(answer["validators"]) for answer in found)


@pytest.mark.parametrize("change", OF_LAKE)
def test_each_change_of_the_lake_invalidates_the_answers_that_read_it(orders, scans, change):
    union, lake = answers(scans, NAMES[0]), answers(scans, NAMES[1])
    OF_LAKE[change](orders)
    assert not any(hold(answer["validators"]) for answer in lake)
    loaded, *planned = union
    assert not any(hold(answer["validators"]) for answer in planned)
    assert hold(loaded["validators"])
    assert loaded == scans.load(NAMES[0])


@pytest.mark.parametrize("name", NAMES)
def test_a_table_of_another_name_or_none_invalidates_the_answers(wh, orders, scans, name):
    found = answers(scans, name)
    wh.rename_table("sales.orders", "sales.others")
    assert not any(hold(answer["validators"]) for answer in found)
    found = answers(scans, name.replace("orders", "others"))
    wh.drop_table("sales.others")
    assert not any(hold(answer["validators"]) for answer in found)


def test_a_state_that_the_user_chose_a_view_and_an_older_snapshot_have_no_valid_validators(orders, scans):
    older = scans.load("sales.orders")
    orders.append(rows(200, 201))
    assert not hold(scans.plan(older).reply["validators"])
    chosen = scans.load("sales.orders", version="2")
    assert chosen["validators"] is None
    assert scans.plan(chosen).reply["validators"] is None
    assert scans.load("sales.orders$commits")["validators"] is None


def test_a_lake_of_an_older_snapshot_that_an_option_names_rests_on_the_lake(orders, scans):
    snapshot = orders.open_lake().newest().id
    loaded = scans.load("sales.orders")
    planned = scans.plan(loaded, options={"asOfLakeSnapshot": str(snapshot)})
    assert hold(planned.reply["validators"])
    _another_engine_sets_a_property(orders)
    assert not hold(planned.reply["validators"])


@pytest.fixture
def remote(orders, connection, monkeypatch) -> Scans:
    """The table in a store that the JVM cannot look at."""
    table = connection.table("sales.orders")
    monkeypatch.setattr(type(table.storage), "local_path", lambda _self, _key: None)
    return Scans(Connection.of(connection.location, {}))


def test_a_store_that_the_jvm_cannot_look_at_has_none(remote):
    assert [answer["validators"] for answer in answers(remote, NAMES[0])] == [None] * 3


def test_plans_of_a_snapshot_there_hold_and_its_name_is_asked_for_each_time(remote):
    loaded, counted, planned = answers(remote, NAMES[1])
    assert loaded["validators"] is None
    assert counted["validators"] == planned["validators"] == []
    assert remote.plan(loaded).reply == planned


def test_of_a_chosen_snapshot_there_every_plan_is_asked_for(remote, orders):
    snapshot = str(orders.open_lake().newest().id)
    chosen = remote.load(NAMES[1], version=snapshot)
    assert remote.plan(chosen).reply["validators"] is None
    for option in ({"asOfLakeSnapshot": snapshot}, {"asOfTimestamp": "2999-01-01T00:00:00Z"}):
        assert remote.plan(remote.load(NAMES[1]), options=option).reply["validators"] is None
