import pytest

from faults.sim import SimClock, SimIds
from kit.round_trips import RemoteStorage
from streamhouse_spark import TableNotFoundError, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.warehouse_layout import commit_key, table_prefix, watermarks_prefix
from streamhouse_spark.log.actions import Create
from streamhouse_spark.log.record import Record, encode_record
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.memory import MemoryStorage

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def sim():
    clock = SimClock()
    world = World(clock, SimIds(7))
    storage = MemoryStorage(world)
    return clock, world, storage, Warehouse("", storage=storage, world=world)


def files(storage, uuid):
    return {i.key for i in storage.list(table_prefix(uuid)) if not i.key.startswith(watermarks_prefix(uuid))}


def test_a_dropped_table_loses_its_files_after_two_graces_and_keeps_a_tombstone(sim):
    clock, _, storage, warehouse = sim
    table = warehouse.create_table("db.t", "a INT", properties={"table.datalake.enabled": "false"})
    table.append([{"a": 1}])
    warehouse.drop_table("db.t")
    dropped = files(storage, table.uuid)
    assert warehouse.clean_dropped().deleted == []
    clock.advance(DAY_MS + 1)
    assert warehouse.clean_dropped().deleted == []  # buries it, and writes the tombstone
    before = files(storage, table.uuid)
    assert before - dropped == {commit_key(table.uuid, 4)}
    clock.advance(DAY_MS + 1)
    assert set(warehouse.clean_dropped(dry_run=True).deleted) == before == files(storage, table.uuid)
    assert set(warehouse.clean_dropped().deleted) == before
    assert files(storage, table.uuid) == set()
    assert storage.list(watermarks_prefix(table.uuid))
    assert warehouse.tables() == []
    assert warehouse.create_table("db.t", "a INT").uuid != table.uuid


def test_many_files_are_deleted_at_the_same_time(sim):
    clock, world, storage, warehouse = sim
    remote = RemoteStorage(storage)
    table = warehouse.create_table("db.t", "a INT", properties={"table.datalake.enabled": "false"})
    for _ in range(150):
        table.append([{"a": 1}])
    warehouse.drop_table("db.t")
    clock.advance(DAY_MS + 1)
    warehouse.clean_dropped()  # buries it
    clock.advance(DAY_MS + 1)
    with remote.measured() as cost:
        report = Warehouse("", storage=remote, world=world).clean_dropped()
    assert len(report.deleted) > 150 < cost.requests
    assert cost.depth <= 15
    assert files(storage, table.uuid) == set()


def test_a_writer_that_slept_through_the_deletion_is_not_acknowledged(sim):
    clock, world, storage, warehouse = sim
    table = warehouse.create_table("db.t", "a INT", properties={"table.datalake.enabled": "false"})
    zombie = Warehouse("", storage=storage, world=world).table("db.t")
    zombie.append([{"a": 1}])
    warehouse.drop_table("db.t")
    for _ in range(3):
        clock.advance(DAY_MS + 1)
        warehouse.clean_dropped()
    assert files(storage, table.uuid) == set()
    with pytest.raises(TableNotFoundError, match="dropped"):
        zombie.append([{"a": 2}])


def test_a_table_that_never_got_its_name_is_dropped_and_deleted(sim):
    clock, world, storage, warehouse = sim
    warehouse.create_table("db.named", "a INT", properties={"table.datalake.enabled": "false"})
    uuid = world.ids.new_uuid()
    create = Create("db.lost", TableSchema.of("a INT"), (), 1, {"table.datalake.enabled": "false"}, "lake/db/lost")
    storage.put_if_absent(commit_key(uuid, 1), encode_record(Record(1, uuid, "x", clock.now_ms(), (create,)), uuid)[0])
    for _ in range(4):
        clock.advance(DAY_MS + 1)
        warehouse.clean_dropped()
    assert files(storage, uuid) == set()
    assert warehouse.tables() == ["db.named"]


def test_a_damaged_table_is_listed_can_be_dropped_and_does_not_stop_cleaning(sim, caplog):
    clock, _, storage, warehouse = sim
    damaged = warehouse.create_table("db.damaged", "a INT", properties={"table.datalake.enabled": "false"})
    warehouse.create_table("db.whole", "a INT", properties={"table.datalake.enabled": "false"})
    storage.put(commit_key(damaged.uuid, 1), b"not a record")
    fresh = Warehouse("", storage=storage, world=warehouse.world)
    assert fresh.tables() == ["db.damaged", "db.whole"]
    assert fresh.drop_table("db.damaged")
    assert fresh.tables() == ["db.whole"]
    clock.advance(DAY_MS + 1)
    assert fresh.clean_dropped().deleted == []
    assert "damaged" in caplog.text
