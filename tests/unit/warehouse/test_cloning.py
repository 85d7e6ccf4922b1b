"""Clones: a version of a table under another name, without a copy of lake files; each table lives on alone."""

from __future__ import annotations

import shutil

import pytest

from faults.sim import SimClock, sim_world
from kit.rows import ids, rows
from kit.tables import add, new_table, tier
from streamhouse_spark import Transaction, Warehouse, relocate
from streamhouse_spark.config.table_properties import VIEW, ViewDefinition
from streamhouse_spark.errors import InvalidOptionError, SnapshotExpiredError, TableExistsError, TableNotFoundError
from streamhouse_spark.log.transactions import REFRESHES
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.write.auto_compaction import compact_inline_rows

DAY_MS = 24 * 3600 * 1000
STORES = pytest.mark.parametrize("store", ["memory"], indirect=True)
pytestmark = STORES
KINDS = pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])


def lake_files(table):
    return sorted(file["file_path"] for file in table.lake.files().to_pylist())


def keys_of(storage, table):
    return {info.key for info in storage.list(f"{table.state.lake_location}/")}


def upkeep(wh, clock, *tables):
    """Do everything that takes files away, with days between."""
    for _ in range(3):
        clock.advance(2 * DAY_MS)
        for table in tables:
            table.maintain()
            if table.has_lake and table.refresh().recorded_lake is not None:
                table.lake.expire_snapshots(retain_last=1, older_than_ms=table.storage.now_ms())
                table.lake.remove_orphan_files()
        wh.clean_dropped()


@KINDS
@pytest.mark.parametrize("lake", [None, "iceberg"])
def test_a_clone_has_the_rows_and_both_live_on_alone(wh, clock, keyed, lake):
    table = new_table(wh, keyed=keyed, lake=lake)
    add(table, *range(10))
    if lake:
        tier(table)
    add(table, *range(10, 14))
    clone = wh.clone_table("d.t", "d.c")
    assert ids(clone.to_arrow()) == list(range(14))
    add(clone, 100)
    add(table, 200)
    assert ids(wh.table("d.c").to_arrow()) == [*range(14), 100]
    assert ids(wh.table("d.t").to_arrow()) == [*range(14), 200]
    if lake:
        assert lake_files(clone) == lake_files(table)
        tier(clone)
        tier(table)
        assert ids(clone.lake.to_arrow()) == [*range(14), 100]
        assert ids(table.lake.to_arrow()) == [*range(14), 200]
    upkeep(wh, clock, table, clone)
    assert ids(wh.table("d.c").to_arrow()) == [*range(14), 100]
    assert ids(wh.table("d.t").to_arrow()) == [*range(14), 200]


@KINDS
def test_a_clone_reads_what_the_other_table_no_longer_has(wh, clock, keyed):
    table = new_table(wh, keyed=keyed, lake="iceberg")
    add(table, *range(10))
    tier(table)
    clone = wh.clone_table("d.t", "d.c")
    table.truncate()
    add(table, 77)
    tier(table)
    upkeep(wh, clock, table, clone)
    assert ids(wh.table("d.t").to_arrow()) == [77]
    assert ids(wh.table("d.c").to_arrow()) == list(range(10))
    assert ids(wh.table("d.c").lake.to_arrow()) == list(range(10))


@KINDS
def test_a_clone_that_was_rewritten_and_expired_leaves_the_other_tables_files(wh, clock, keyed):
    table = new_table(wh, keyed=keyed, lake="iceberg")
    for number in range(6):
        add(table, number)
        tier(table)
    clone = wh.clone_table("d.t", "d.c")
    before = keys_of(wh.storage, table)
    clone.truncate()
    add(clone, 500)
    tier(clone)
    upkeep(wh, clock, clone)
    assert before <= keys_of(wh.storage, table)
    assert ids(wh.table("d.t").to_arrow()) == list(range(6))
    assert ids(wh.table("d.c").to_arrow()) == [500]


def test_a_dropped_table_is_kept_until_its_clones_are_gone(wh, clock):
    table = new_table(wh, lake="iceberg")
    add(table, *range(10))
    tier(table)
    location = table.state.lake_location
    clone = wh.clone_table("d.t", "d.c")
    uuid = table.uuid
    wh.drop_table("d.t")
    clock.advance(2 * DAY_MS)
    assert "1 clones, which read files of its lake" in wh.clean_dropped().skipped[uuid]
    upkeep(wh, clock, clone)
    assert ids(wh.table("d.c").to_arrow()) == list(range(10))
    assert ids(wh.undrop_table("d.t").to_arrow()) == list(range(10))
    wh.drop_table("d.t")
    wh.drop_table("d.c")
    for _ in range(6):
        clock.advance(2 * DAY_MS)
        wh.clean_dropped()
    left = [info.key for prefix in ("lake/", "tables/") for info in wh.storage.list(prefix)]
    assert [key for key in left if "/floors/" not in key] == []
    assert not [key for key in left if key.startswith(f"{location}/data")]


def test_the_tag_of_a_clone_goes_with_the_clone(wh, clock):
    table = new_table(wh, lake="iceberg")
    add(table, 1)
    tier(table)
    clone = wh.clone_table("d.t", "d.c")
    assert [tag.name for tag in table.tags()] == [f"clone:{clone.uuid}"]
    wh.drop_table("d.c")
    table.maintain()
    assert len(table.tags()) == 1, "the clone may be brought back"
    for _ in range(2):
        clock.advance(2 * DAY_MS)
        wh.clean_dropped()
    assert table.maintain(dry_run=True).cleaned.untagged == [f"clone:{clone.uuid}"]
    table.maintain()
    assert table.tags() == []


def test_a_clone_of_a_clone_outlives_both(wh, clock):
    table = new_table(wh, lake="iceberg")
    add(table, *range(5))
    tier(table)
    first = wh.clone_table("d.t", "d.c")
    add(first, 10)
    tier(first)
    second = wh.clone_table("d.c", "e.c2")
    wh.drop_table("d.t")
    wh.drop_table("d.c")
    upkeep(wh, clock, second)
    assert ids(wh.table("e.c2").to_arrow()) == [*range(5), 10]
    add(second, 11)
    tier(second)
    upkeep(wh, clock, second)
    assert ids(second.lake.to_arrow()) == [*range(5), 10, 11]


def test_an_older_version_and_a_tag_are_cloned(wh, clock):
    table = new_table(wh, lake="iceberg")
    add(table, 1)
    tier(table)
    at = table.refresh().version
    table.create_tag("a")
    add(table, 2)
    tier(table)
    assert ids(wh.clone_table("d.t", "d.by_number", version=at).to_arrow()) == [1]
    upkeep(wh, clock, table)
    for number in range(3, 60):
        add(table, number)
    upkeep(wh, clock, table)
    assert ids(wh.clone_table("d.t", "d.by_tag", version="a").to_arrow()) == [1]
    table.drop_tag("a")
    upkeep(wh, clock, table)
    assert ids(wh.table("d.by_tag").to_arrow()) == [1]


def test_streams_transactions_and_offsets_go_on_from_the_version(wh):
    table = new_table(wh, lake="iceberg")
    table.append(rows(1), transaction=Transaction("app", 1))
    clone = wh.clone_table("d.t", "d.c")
    clone.append(rows(1), transaction=Transaction("app", 1))
    ends = clone.refresh().ends
    assert ends == table.state.ends
    add(clone, 5, 6, 7)
    assert sum(clone.refresh().ends.values()) == sum(ends.values()) + 3
    assert clone.state.consumers == {}


def test_history_of_a_clone_begins_with_it(wh):
    table = new_table(wh, lake="iceberg")
    for number in range(5):
        add(table, number)
    version = table.refresh().version
    clone = wh.clone_table("d.t", "d.c")
    found = clone.inspect.history()["version"].to_pylist()
    assert min(found) > version
    assert clone.state.version >= version
    with pytest.raises((InvalidOptionError, SnapshotExpiredError)):
        clone.read_version(version - 2)


def test_a_name_that_is_taken_and_tables_that_cannot_be_cloned(wh):
    table = new_table(wh, lake="iceberg")
    add(table, 1)
    with pytest.raises(TableExistsError, match=r"table d\.t cannot be cloned to d\.t"):
        wh.clone_table("d.t", "d.t")
    with pytest.raises(TableNotFoundError):
        wh.clone_table("d.nothing", "d.c")
    with pytest.raises(InvalidOptionError, match="no commit 99"):
        wh.clone_table("d.t", "d.c", version=99)
    tier(table)
    at = table.refresh().version
    table.alter(add_columns="more INT")
    with pytest.raises(InvalidOptionError, match=r"columns of d\.t changed after commit"):
        wh.clone_table("d.t", "d.c", version=at)
    assert wh.tables() == ["d.t"]


@KINDS
def test_a_clone_has_the_comments_defaults_and_constraints_of_its_version(wh, keyed):
    table = new_table(wh, keyed=keyed, lake="iceberg")
    add(table, 1, 2)
    tier(table)
    add(table, 3)
    at = table.refresh().version
    table.alter(comments={"day": "of the week"}, defaults={"day": 6})
    table.alter_properties({"table.constraint.early": "id < 50"})
    add(table, 4)
    tier(table)
    clone = wh.clone_table("d.t", "d.c", version=at)
    assert (clone.state.schema.columns[1].comment, clone.state.schema.columns[1].default) == (None, None)
    assert ids(clone.to_arrow()) == [1, 2, 3]
    add(clone, 100)
    tier(clone)
    assert ids(clone.lake.to_arrow()) == ids(clone.to_arrow()) == [1, 2, 3, 100]
    clone.add_columns("more INT")
    add(clone, 101)
    tier(clone)
    assert ids(clone.lake.to_arrow()) == [1, 2, 3, 100, 101]
    assert ids(table.to_arrow()) == [1, 2, 3, 4]


def test_a_version_whose_partitioning_the_lake_does_not_have_yet(wh):
    columns = "id BIGINT NOT NULL, day INT"
    table = wh.create_table("d.t", columns, partition_by=["truncate(2, day)"])
    add(table, 1, 2)
    tier(table)
    table.set_partitioning(["day"])
    clone = wh.clone_table("d.t", "d.c")
    add(clone, 3)
    for each, wanted in ((clone, [1, 2, 3]), (table, [1, 2])):
        tier(each)
        assert ids(each.lake.to_arrow()) == ids(each.to_arrow()) == wanted


@pytest.mark.paimon
def test_a_table_that_has_rows_in_paimon_cannot_be_cloned(wh):
    table = new_table(wh, lake="paimon", name="d.p")
    add(table, 1)
    assert ids(wh.clone_table("d.p", "d.p_hot").to_arrow()) == [1]
    tier(table)
    with pytest.raises(InvalidOptionError, match="has a Paimon lake, whose files two tables cannot share"):
        wh.clone_table("d.p", "d.p2")
    assert wh.tables() == ["d.p", "d.p_hot"]


@pytest.mark.usefixtures("store")
def test_a_lake_in_a_catalog_outside_is_not_shared(tmp_path):
    (tmp_path / "there").mkdir()
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": str(tmp_path / "there")}
    wh = Warehouse(tmp_path / "wh", {f"lake.iceberg.catalog.{key}": value for key, value in catalog.items()})
    table = new_table(wh, lake="iceberg")
    add(table, 1)
    tier(table)
    with pytest.raises(InvalidOptionError, match="is in a catalog outside the warehouse, so other engines may delete"):
        wh.clone_table("d.t", "d.c")
    assert wh.tables() == ["d.t"]


@KINDS
def test_other_engines_read_a_clone_and_are_told_to_delete_nothing(wh, keyed):
    table = new_table(wh, keyed=keyed, lake="iceberg")
    add(table, *range(5))
    tier(table)
    clone = wh.clone_table("d.t", "d.c")
    add(clone, 10)
    tier(clone)
    found = clone.open_lake().binding.require()
    assert found.properties["gc.enabled"] == "false"
    assert sorted(found.scan().to_arrow()["id"].to_pylist()) == [*range(5), 10]
    assert len(found.metadata.snapshots) == 2
    assert found.metadata.table_uuid != table.open_lake().binding.require().metadata.table_uuid


@pytest.mark.usefixtures("store")
@KINDS
def test_a_warehouse_with_a_clone_is_moved_whole_and_becomes_no_copy(tmp_path, keyed):
    wh = Warehouse(tmp_path / "a")
    table = new_table(wh, keyed=keyed, lake="iceberg")
    for number in range(4):
        add(table, number)
        tier(table)
    if keyed:
        table.delete([{"id": 0}])
        tier(table)
    wh.clone_table("d.t", "d.c")
    expected = ids(table.to_arrow())
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with pytest.raises(InvalidOptionError, match=r"d\.t of .* has clones, which refer to uuids"):
        relocate(tmp_path / "b", copy=True)
    relocate(tmp_path / "b")
    shutil.rmtree(tmp_path / "a")
    moved = Warehouse(tmp_path / "b")
    clone = moved.table("d.c")
    add(clone, 10)
    tier(clone)
    assert ids(clone.lake.to_arrow()) == [*expected, 10]
    assert ids(moved.table("d.t").lake.to_arrow()) == expected
    assert sorted(clone.open_lake().binding.require().scan().to_arrow()["id"].to_pylist()) == [*expected, 10]


@pytest.mark.usefixtures("store")
def test_a_warehouse_becomes_a_copy_without_its_clones(tmp_path):
    clock = SimClock()

    def at(folder):
        world = sim_world(1, clock)
        storage = LocalStorage(str(tmp_path / folder), fsync=False, world=world)
        return Warehouse(str(tmp_path / folder), storage=storage, world=world)

    wh = at("a")
    table = new_table(wh, lake="iceberg")
    add(table, 1)
    tier(table)
    wh.clone_table("d.t", "d.c")
    wh.drop_table("d.c")
    for _ in range(3):
        clock.advance(2 * DAY_MS)
        wh.clean_dropped()
        table.maintain()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    relocate(at("b"), copy=True)
    assert ids(at("b").table("d.t").to_arrow()) == [1]


@pytest.mark.usefixtures("store")
def test_a_log_that_lies_elsewhere_is_copied_into_the_warehouse(tmp_path):
    (tmp_path / "logs").mkdir()
    wh = Warehouse(tmp_path / "wh")
    table = wh.create_table("d.t", "id BIGINT, day INT", properties={"table.log.location": str(tmp_path / "logs")})
    add(table, 1)
    compact_inline_rows(table)
    add(table, 2)
    wh.clone_table("d.t", "d.c")
    shutil.rmtree(tmp_path / "logs")
    clone = Warehouse(tmp_path / "wh").table("d.c")
    assert "table.log.location" not in clone.state.properties
    assert ids(clone.to_arrow()) == [1, 2]


def test_the_clone_of_a_view_is_a_table_that_nobody_refreshes(wh):
    query = ViewDefinition("SELECT id, 1 AS day FROM d.s", "incremental", 60_000, ("id", "day"), "hash", {})
    view = wh.create_table(
        "d.v", "_key STRING, id BIGINT, day INT", primary_key=["_key"], properties={VIEW: query.to_text()}
    )
    view.upsert([{"_key": "a", "id": 1, "day": 1}], transaction=Transaction(REFRESHES, 1))
    clone = wh.clone_table("d.v", "d.c")
    assert VIEW in view.refresh().properties
    assert VIEW not in clone.state.properties
    assert clone.to_arrow().num_rows == 1


def test_what_another_engine_expired_is_told_before_anything_is_written(wh):
    table = new_table(wh, lake="iceberg")
    add(table, 1)
    tier(table)
    at = table.refresh().version
    for number in (2, 3):
        add(table, number)
        tier(table)
    table.open_lake().expire(keep_last=1, keep_ms=0)
    before = {info.key for info in wh.storage.list("tables/")}
    with pytest.raises(SnapshotExpiredError):
        wh.clone_table("d.t", "d.c", version=at)
    assert {info.key for info in wh.storage.list("tables/")} == before
