"""Iceberg documents that include hot rows: one state of the table each, in few requests."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from faults.sim import sim_world
from interop import foreign_iceberg as foreign_lake
from kit.iceberg_documents import rows_of
from kit.round_trips import RemoteStorage
from kit.tables import tier
from kit.warehouses import new_store, open_warehouse
from streamhouse_spark import TableNotFoundError, Warehouse
from streamhouse_spark.core.warehouse_layout import VIRTUAL_PREFIX
from streamhouse_spark.lake.iceberg import virtual_table
from streamhouse_spark.lake.tiering.job import TieringJob
from streamhouse_spark.serve.iceberg import served_tables
from streamhouse_spark.serve.iceberg.served_tables import BACKDATED_MS, ROUNDS_MAX, ServedTables
from streamhouse_spark.storage.memory import MemoryStorage

GRACE_MS = 600_000
COLUMNS = "id BIGINT, name STRING"


@pytest.fixture
def storage(clock):
    return MemoryStorage(sim_world(0, clock))


@pytest.fixture
def warehouse(storage, clock):
    return Warehouse("wh", storage=storage, world=sim_world(1, clock))


@pytest.fixture
def served(warehouse):
    return ServedTables(warehouse, grace_ms=GRACE_MS)


def rows(*ids, name="x"):
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [name] * len(ids)})


def shown(storage, served, name="s.t"):
    document = served.table(name).latest_metadata()
    return sorted(row["id"] for row in rows_of(storage, document))


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_log_table_is_served_through_its_life(storage, warehouse, served, partitioned):
    by = ["name"] if partitioned else []
    table = warehouse.create_table("s.t", COLUMNS, buckets=2, partition_by=by)
    assert shown(storage, served) == []
    table.append(rows(1, 2, 3))
    assert shown(storage, served) == [1, 2, 3], "nothing is in the lake yet"
    tier(table)
    assert shown(storage, served) == [1, 2, 3], "nothing is in the log alone"
    table.append(rows(4, 5, name="y"))
    assert shown(storage, served) == [1, 2, 3, 4, 5]
    table.delete(where=[("id", "in", [2, 5])])
    assert shown(storage, served) == [1, 3, 4], "one deleted row is cold, one is hot"
    table.add_columns("price DOUBLE")
    table.append(pa.table({"id": [6], "name": ["x"], "price": [1.5]}))
    document = served.table("s.t").latest_metadata()
    assert sorted((row["id"], row["price"]) for row in rows_of(storage, document)) == [
        (1, None),
        (3, None),
        (4, None),
        (6, 1.5),
    ]
    if partitioned:
        table.drop_partition({"name": "y"})
        assert shown(storage, served) == [1, 3, 6]
    table.truncate()
    assert shown(storage, served) == []
    table.append(rows(7))
    assert shown(storage, served) == [7]
    tier(table)
    assert shown(storage, served) == [7]


def test_a_document_is_whole_while_the_partitioning_changes(storage, warehouse, served):
    table = warehouse.create_table("s.t", COLUMNS, buckets=2, partition_by=["name"])
    table.append(rows(1, 2))
    tier(table)
    table.append(rows(3, name="y"))
    assert shown(storage, served) == [1, 2, 3]
    table.set_partitioning(["truncate(2, id)"])
    table.append(rows(4, name="z"))
    assert shown(storage, served) == [1, 2, 3, 4], "of a lake that has the former partitions alone"
    tier(table)
    table.append(rows(5))
    assert shown(storage, served) == [1, 2, 3, 4, 5]


def test_a_keyed_table_is_served_through_its_life(storage, warehouse, served):
    table = warehouse.create_table("s.t", "id BIGINT NOT NULL, name STRING", primary_key=["id"], buckets=2)

    def found():
        return {row["id"]: row["name"] for row in rows_of(storage, served.table("s.t").latest_metadata())}

    table.upsert(rows(1, 2, 3, name="a"))
    tier(table)
    table.upsert(rows(2, 4, name="b"))
    assert found() == {1: "a", 2: "b", 3: "a", 4: "b"}
    table.delete(pa.table({"id": [3, 4]}))
    assert found() == {1: "a", 2: "b"}
    table.upsert(rows(2, 3, name="c"))
    assert found() == {1: "a", 2: "c", 3: "c"}
    tier(table)
    assert found() == {1: "a", 2: "c", 3: "c"}


def test_a_table_without_a_lake_is_all_hot(storage, warehouse, served):
    table = warehouse.create_table("s.t", COLUMNS, properties={"table.datalake.enabled": "false"})
    table.append(rows(1, 2))
    assert shown(storage, served) == [1, 2]
    with pytest.raises(TableNotFoundError, match="no lake table yet"):
        served.table("s.t").lake_metadata()


def test_the_lake_is_not_touched(storage, clock, warehouse, served):
    table = warehouse.create_table("s.t", COLUMNS)
    table.append(rows(1))
    tier(table)

    def lake_objects():
        return {i.key: storage.read(i.key) for i in storage.list("lake/") if not i.key.startswith(VIRTUAL_PREFIX)}

    before, version = lake_objects(), table.refresh().version
    table.append(rows(2))
    assert shown(storage, served) == [1, 2]
    assert lake_objects() == before
    assert table.refresh().version == version + 1, "the log has no record of it"
    assert [row["id"] for row in rows_of(storage, served.table("s.t").lake_metadata())] == [1]
    clock.advance(GRACE_MS)
    assert table.lake.remove_orphan_files(grace_ms=GRACE_MS) == []
    assert shown(storage, served) == [1, 2]


def test_an_unchanged_table_costs_no_write(storage, warehouse, served):
    table = warehouse.create_table("s.t", COLUMNS)
    table.append(rows(1))
    first = served.table("s.t").latest_metadata()
    objects = {info.key for info in storage.list("")}
    assert served.table("s.t").latest_metadata() is first
    assert {info.key for info in storage.list("")} == objects


def test_processes_share_their_work(storage, warehouse, served):
    table = warehouse.create_table("s.t", COLUMNS)
    table.append(rows(1, 2))
    first = served.table("s.t").latest_metadata()
    files = {info.key for info in storage.list(VIRTUAL_PREFIX)}
    other = ServedTables(Warehouse("wh", storage=storage, world=sim_world(2)), grace_ms=GRACE_MS)
    assert other.table("s.t").latest_metadata().location == first.location
    assert {info.key for info in storage.list(VIRTUAL_PREFIX)} == files
    table.append(rows(3))
    assert shown(storage, other) == shown(storage, served) == [1, 2, 3]


def test_files_do_not_grow_with_the_rounds(storage, warehouse, served):
    table = warehouse.create_table("s.t", COLUMNS, buckets=1)
    for number in range(3 * ROUNDS_MAX):
        table.append(rows(number))
        document = served.table("s.t").latest_metadata()
        assert len(rows_of(storage, document)) == number + 1
        assert len(json.loads(document.text)["snapshots"]) <= ROUNDS_MAX


def test_no_snapshot_is_younger_than_a_reader_by_its_own_clock(warehouse, served):
    table = warehouse.create_table("s.t", COLUMNS)
    for number in range(3):
        table.append(rows(number))
        found = json.loads(served.table("s.t").latest_metadata().text)
        times = [snapshot["timestamp-ms"] for snapshot in found["snapshots"]]
        assert times == sorted(set(times)), "of two with one time, readers take either"
        assert max(times) <= warehouse.world.clock.now_ms() - BACKDATED_MS + 1_000


def test_an_old_transaction_of_duckdb_finds_no_log_of_metadata_that_is_all_newer(warehouse, served):
    table = warehouse.create_table("s.t", COLUMNS)
    table.append(rows(0))
    tier(table)
    for number in range(1, 4):
        table.append(rows(number))
        assert json.loads(served.table("s.t").latest_metadata().text)["metadata-log"] == []


def test_a_state_is_given_up_and_its_files_go_after_the_grace(storage, clock, warehouse, served):
    table = warehouse.create_table("s.t", COLUMNS)
    table.append(rows(1))
    first = served.table("s.t").latest_metadata()
    tier(table)
    served.table("s.t").latest_metadata()
    assert len(storage.list_names(VIRTUAL_PREFIX)) == 2
    assert served.clean() == []
    clock.advance(GRACE_MS)
    assert shown(storage, served) == [1]
    assert served.clean() == [], "who began just before the epoch's end has the whole grace"
    assert [row["id"] for row in rows_of(storage, first)] == [1]
    clock.advance(GRACE_MS)
    assert len(served.clean(dry_run=True)) == 2
    gone = served.clean()
    assert len(gone) == 2
    assert shown(storage, served) == [1]
    with pytest.raises(Exception, match=r"(?i)no such|not found|FileNotFound|data"):
        rows_of(storage, first)


def test_a_renamed_table_is_served_under_its_new_name(warehouse, served):
    warehouse.create_table("s.t", COLUMNS).append(rows(1))
    with pytest.raises(TableNotFoundError):
        served.table("s.absent")
    served.table("s.t").latest_metadata()
    warehouse.rename_table("s.t", "s.u")
    with pytest.raises(TableNotFoundError):
        served.table("s.t")
    served.table("s.u").latest_metadata()
    warehouse.drop_table("s.u")
    warehouse.create_table("s.u", COLUMNS)
    document = served.table("s.u").latest_metadata()
    assert json.loads(document.text)["table-uuid"].replace("-", "") == warehouse.table("s.u").uuid


@pytest.mark.paimon
def test_a_paimon_table_is_refused(warehouse, served):
    warehouse.create_table("s.t", COLUMNS, properties={"table.datalake.format": "paimon"})
    with pytest.raises(TableNotFoundError, match="paimon lake"):
        served.table("s.t").latest_metadata()


def test_a_lake_that_moved_on_while_a_document_was_made(storage, clock, warehouse, served, monkeypatch):
    """The log is trimmed up to the newest lake snapshot between the two looks: the second try begins there."""
    table = warehouse.create_table("s.t", COLUMNS, properties={"table.log.ttl": "1ms"})
    table.append(rows(1, 2))
    original, calls = served_tables.tier_to_virtual_table, []

    def tiered_meanwhile(*args):
        calls.append(1)
        if len(calls) == 1:
            tier(table)
            clock.advance(100 * GRACE_MS)
            table.maintain(grace_ms=GRACE_MS)
            assert table.refresh().buckets[0].start == 2, "the log was trimmed"
        return original(*args)

    monkeypatch.setattr(served_tables, "tier_to_virtual_table", tiered_meanwhile)
    assert shown(storage, served) == [1, 2]
    assert len(calls) == 2


def test_deleted_rows_of_foreign_files_are_not_served(storage, clock, warehouse, served):
    """By their positions, and where the files were replaced since, by all of their values."""
    world = sim_world(1, clock)
    table = foreign_lake.adopted(storage, world)
    table.delete(where=[("id", "in", [1, 4])])
    assert shown(storage, served, table.name) == [0, 2, 3, 5]
    foreign_lake.rewritten(storage, world)
    table.append([foreign_lake.row(9)])
    table.delete(where=[("id", "=", 0)])
    for _ in range(2):
        assert shown(storage, served, table.name) == [2, 3, 5, 9]
    tier(table)
    assert shown(storage, served, table.name) == [2, 3, 5, 9]


@pytest.mark.parametrize("gone", ["deleted", "dropped"])
def test_rows_that_went_from_the_lake_while_it_was_looked_at_do_not_come_back(
    storage, clock, warehouse, served, monkeypatch, gone
):
    """The log forgets them as soon as it knows a snapshot without them: an older snapshot has them still."""
    by = ["name"] if gone == "dropped" else []
    table = warehouse.create_table("s.t", COLUMNS, partition_by=by, properties={"table.log.ttl": "1ms"})
    table.append(rows(1, 2, name="a"))
    table.append(rows(3, name="b"))
    tier(table)
    clock.advance(100 * GRACE_MS)
    table.maintain(grace_ms=GRACE_MS)
    original, looks = served_tables.read_latest_metadata, []

    def looked_at(lake):
        found = original(lake)
        looks.append(found)
        if len(looks) == 1:
            table.drop_partition({"name": "a"}) if gone == "dropped" else table.delete(where=[("name", "=", "a")])
            table.append(rows(4, name="b"))
            tier(table)
            assert not any(one.rows for one in table.refresh().deletions), "the log knows them no more"
        return found

    monkeypatch.setattr(served_tables, "read_latest_metadata", looked_at)
    assert shown(storage, served) == [3, 4]
    assert len(looks) >= 2


def test_a_recorded_snapshot_that_was_expired_is_no_reason_to_look_again(
    storage, clock, warehouse, served, monkeypatch
):
    """The lake is ahead of the log's record, and no longer has the recorded snapshot."""
    table = warehouse.create_table("s.t", COLUMNS)
    table.append(rows(1))
    tier(table)
    recorded = table.refresh().lake.snapshot_id
    monkeypatch.setattr(TieringJob, "_record", lambda *_: None)
    table.append(rows(2))
    tier(table)
    table.open_lake().binding.load().maintenance.expire_snapshots().by_id(recorded).commit()  # as another engine does
    assert recorded not in [one.snapshot_id for one in table.open_lake().binding.load().metadata.snapshots]
    assert table.refresh().lake.snapshot_id == recorded
    table.append(rows(3))
    assert shown(storage, served) == [1, 2, 3]


def test_calls_that_wait_share_one_look(storage, warehouse, served):
    """Twenty engines ask while rows stream in: nobody waits for more than the work under way and one more."""
    table = warehouse.create_table("s.t", COLUMNS)
    table.append(rows(0))
    one = served.table("s.t")
    original, made, inside, waiting = one._build, [], threading.Event(), threading.Event()

    def slow(*looked):
        found = original(*looked)
        made.append(found.metadata.version)
        inside.set()
        waiting.wait(30)
        return found

    one._build = slow
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(one.latest_metadata)
        assert inside.wait(30)
        table.append(rows(1))
        others = [pool.submit(one.latest_metadata) for _ in range(19)]
        time.sleep(0.2)
        waiting.set()
        found = [other.result().version for other in others]
        assert first.result().version == made[0]
    assert len(made) == 2
    assert set(found) == {made[0] + 1}, "each has the row that was there before it asked"


def test_a_lake_with_many_snapshots_shows_the_newest(storage, warehouse, served, monkeypatch):
    monkeypatch.setattr(virtual_table, "SNAPSHOTS_MAX", 3)
    table = warehouse.create_table("s.t", COLUMNS)
    for number in range(6):
        table.append(rows(number))
        tier(table)
    table.append(rows(6))
    document = served.table("s.t").latest_metadata()
    assert sorted(row["id"] for row in rows_of(storage, document)) == list(range(7))
    assert len(json.loads(document.text)["snapshots"]) == 4
    assert len(json.loads(served.table("s.t").lake_metadata().text)["snapshots"]) == 6


@pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
def test_a_lake_in_another_catalog_is_served(tmp_path, keyed):
    settings = {"lake.iceberg.catalog.type": "sql", "lake.iceberg.catalog.uri": f"sqlite:///{tmp_path}/catalog.db"}
    warehouse = Warehouse(str(tmp_path / "wh"), settings)
    table = warehouse.create_table("s.t", "id BIGINT NOT NULL, n INT", primary_key=["id"] if keyed else [])
    write = table.upsert if keyed else table.append
    write([{"id": 1, "n": 1}, {"id": 2, "n": 1}])
    tier(table)
    before = table.lake.snapshots()
    write([{"id": 3, "n": 2}])
    table.delete([{"id": 1}]) if keyed else table.delete(where=[("id", "=", 1)])
    served = ServedTables(warehouse)
    for number in range(4, 6):
        assert shown(table.storage, served) == list(range(2, number))
        write([{"id": number, "n": 2}])
    assert table.lake.snapshots() == before
    assert [row["id"] for row in rows_of(table.storage, served.table("s.t").lake_metadata())] == [1, 2]


@pytest.fixture
def remote():
    return RemoteStorage(new_store())


def test_a_document_takes_few_requests_with_and_without_new_rows(remote):
    warehouse = open_warehouse(remote, 1)
    table = warehouse.create_table("s.t", "id BIGINT", buckets=2)
    table.append([{"id": n} for n in range(100)])
    tier(table)
    table.append([{"id": 100}])
    served = ServedTables(warehouse)
    with remote.measured() as first:
        served.table("s.t").latest_metadata()
    with remote.measured() as unchanged:
        served.table("s.t").latest_metadata()
    table.append([{"id": 101}])
    with remote.measured() as further:
        served.table("s.t").latest_metadata()
    for name, cost, depth, requests in [
        ("first", first, 22, 48),
        ("unchanged", unchanged, 3, 5),
        ("further", further, 19, 38),
    ]:
        assert cost.depth <= depth, (name, cost)
        assert cost.requests <= requests, (name, cost)
