from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from kit.tables import tier
from streamhouse_spark import InvalidNameError, InvalidOptionError, LakeMismatchError, TableNotFoundError
from streamhouse_spark.config.table_properties import VIEW, ViewDefinition
from streamhouse_spark.warehouse.process_cache import Connection
from unit.datasource.calls import Catalog
from unit.datasource.catalog.ddl.test_tables import BAD_NAMES


@pytest.fixture(params=["iceberg", "paimon"])
def table(catalog, request):
    properties = {"bucket.num": "2", "bucket.key": "id", "table.datalake.format": request.param}
    catalog.create("sales", "orders", "id bigint", properties=properties)
    return catalog.connection.table("sales.orders")


@pytest.fixture
def in_iceberg(catalog):
    """Paimon joins manifests with every commit, and its tables are not adopted."""
    catalog.create("sales", "orders", "id bigint", properties={"bucket.num": "2", "bucket.key": "id"})
    return catalog.connection.table("sales.orders")


@pytest.fixture
def call(catalog):
    def run(name, **arguments):
        found = catalog.call("call_procedure", name=name, arguments=arguments)
        names = [field["name"] for field in json.loads(found["schema"])["fields"]]
        assert all(len(row) == len(names) for row in found["rows"])
        return [dict(zip(names, row, strict=True)) for row in found["rows"]]

    return run


def test_procedures_say_their_parameters_and_results(catalog):
    found = {p["name"]: p for p in catalog.call("procedures")["procedures"]}
    assert set(found) == {
        "tier",
        "retier",
        "compact",
        "optimize",
        "expire_snapshots",
        "remove_orphan_files",
        "rewrite_manifests",
        "adopt",
        "drop_consumer",
        "drop_partition",
        "set_partitioning",
        "table_status",
        "undrop_table",
        "relocate",
        "rollback_to_version",
        "rollback_to_timestamp",
        "create_tag",
        "drop_tag",
        "create_branch",
        "drop_branch",
        "fast_forward",
        "clone",
        "materialize",
        "refresh",
        "pause",
        "resume",
    }
    expire = {p["name"]: (p["type"], p["default"]) for p in found["expire_snapshots"]["parameters"]}
    assert expire == {
        "table": ('"string"', None),
        "older_than": ('"timestamp"', "NULL"),
        "retain_last": ('"integer"', "10"),
        "dry_run": ('"boolean"', "false"),
    }
    for procedure in found.values():
        assert json.loads(procedure["result"])["fields"]
        assert procedure["description"]


def test_views_are_paused_and_refreshed_in_a_session_alone(catalog, call):
    definition = ViewDefinition("SELECT id FROM sales.t", "incremental", 1000, ("id",), "natural", {})
    warehouse = catalog.connection.warehouse()
    warehouse.create_table("sales.v", "id BIGINT NOT NULL", primary_key=["id"], properties={VIEW: definition.to_text()})
    for verb, changed in (("pause", True), ("pause", False), ("resume", True), ("resume", False)):
        assert call(verb, table="sales.v") == [{"table": "sales.v", "changed": changed}]
    warehouse.create_table("sales.plain", "id BIGINT")
    for verb in ("pause", "resume"):
        with pytest.raises(InvalidOptionError, match="is not a materialized table"):
            call(verb, table="sales.plain")
    with pytest.raises(InvalidOptionError, match="jar is from another version"):
        call("refresh", table="sales.v")


def test_partitions_are_dropped_by_some_of_their_columns(catalog, call):
    warehouse = catalog.connection.warehouse()
    table = warehouse.create_table("sales.parts", "id bigint, day date, n int", partition_by=["day", "n"])
    rows = [{"id": i, "day": dt.date(2026, 1, 1 + i % 2), "n": None if i < 4 else i} for i in range(8)]
    table.append(rows)
    day, null = '{"day": "2026-01-01"}', '{"DAY": "2026-01-02", "n": null}'
    shown = call("drop_partition", table="sales.parts", partition=day, dry_run=True)
    assert [(row["rows"], row["snapshot"], row["dry_run"]) for row in shown] == [(4, None, True)]
    assert call("drop_partition", table="sales.parts", partition=null)[0]["rows"] == 2
    assert call("drop_partition", table="sales.parts", partition='{"n": 7}')[0]["files"] == 1
    assert call("drop_partition", table="sales.parts", partition=day)[0]["rows"] == 4
    assert table.to_arrow()["id"].to_pylist() == [5]
    for text in ("day=2026-01-01", "[]", '{"day": ["2026-01-01"]}', "{}", '{"id": 1}'):
        with pytest.raises(InvalidOptionError):
            call("drop_partition", table="sales.parts", partition=text)


def test_a_table_is_partitioned_anew(catalog, call):
    table = catalog.connection.warehouse().create_table("sales.anew", "id BIGINT, at TIMESTAMP", partition_by=["id"])
    found = call("set_partitioning", table="sales.anew", partitioning="days(at), truncate(10, id)")
    assert found == [{"table": "sales.anew", "partitioning": "days(at), truncate(10, id)", "former_partitioning": "id"}]
    assert table.refresh().parsed.partitioned_by == ("days(at)", "truncate(10, id)")
    assert call("set_partitioning", table="sales.anew", partitioning="")[0]["partitioning"] == ""
    with pytest.raises(InvalidOptionError, match="unknown transform"):
        call("set_partitioning", table="sales.anew", partitioning="weeks(at)")


def test_a_table_is_rolled_back_to_a_version_and_to_a_time(catalog, call):
    lake = {"table.datalake.format": "iceberg"}
    table = catalog.connection.warehouse().create_table("sales.back", "id BIGINT", properties=lake)
    table.append(pa.table({"id": [1, 2]}))
    version, at_ms = table.refresh().version, table.state.time_ms
    table.append(pa.table({"id": [3]}))
    newest = table.refresh().version
    (shown,) = call("rollback_to_version", table="sales.back", version=version, dry_run=True)
    assert (shown["version"], shown["seen_version"], shown["rows_deleted"], shown["dry_run"]) == (
        version,
        newest,
        1,
        True,
    )
    assert table.refresh().version == newest
    (done,) = call("rollback_to_version", table="sales.back", version=version)
    assert (done["rows_deleted"], done["rows_added"]) == (1, 0)
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2]
    (again,) = call("rollback_to_timestamp", table="sales.back", timestamp=(at_ms + 10**9) * 1000, dry_run=True)
    assert (again["rows_deleted"], again["rows_added"]) == (0, 0)
    with pytest.raises(InvalidOptionError, match="before 1970"):
        call("rollback_to_timestamp", table="sales.back", timestamp=-1)


def test_create_tag_names_a_version(catalog, call):
    table = catalog.connection.warehouse().create_table("sales.named", "id BIGINT")
    table.append([{"id": 1}])
    version = table.refresh().version
    table.append([{"id": 2}])
    (made,) = call("create_tag", table="sales.named", tag="one", version=version, retain_days=3)
    assert (made["tag"], made["version"], made["lake_snapshot_id"]) == ("one", version, None)
    (newest,) = call("create_tag", table="sales.named", tag="two")
    assert newest["version"] == version + 2
    (one, two) = table.tags()
    assert (one.expires_ms - one.created_ms, two.expires_ms) == (3 * 24 * 3600 * 1000, None)
    assert table.read_version("one")["id"].to_pylist() == [1]
    assert call("drop_tag", table="sales.named", tag="one") == [{"table": "sales.named", "tag": "one"}]
    assert [tag.name for tag in table.tags()] == ["two"]


def test_create_branch_returns_the_made_branch(catalog, call):
    table = catalog.connection.warehouse().create_table("sales.branched", "id BIGINT")
    table.append([{"id": 1}])
    (made,) = call("create_branch", table="sales.branched", branch="audit")
    assert made == {
        "table": "sales.branched",
        "branch": "audit",
        "version": table.state.version,
        "lake_snapshot_id": None,
    }
    table.branch("audit").append([{"id": 2}, {"id": 3}])
    for name in ("audit", "other"):
        with pytest.raises(InvalidOptionError, match="expected 'main', the table itself"):
            call("fast_forward", table="sales.branched", branch=name, to="main")
    (done,) = call("fast_forward", table="sales.branched", branch="main", to="audit")
    assert done == {
        "table": "sales.branched",
        "branch": "audit",
        "version": table.refresh().version,
        "rows_written": 2,
        "rows_deleted": 0,
    }
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2, 3]
    call("create_branch", table="sales.branched", branch="b")
    assert call("drop_branch", table="sales.branched", branch="b") == [{"table": "sales.branched", "branch": "b"}]
    with pytest.raises(InvalidNameError, match="a branch supports only reads and writes of rows"):
        call("tier", table="sales.branched$branch_b")


def test_a_table_is_cloned(catalog, call):
    warehouse = catalog.connection.warehouse()
    table = warehouse.create_table("sales.origin", "id BIGINT")
    table.append([{"id": 1}])
    version = table.refresh().version
    table.create_tag("one")
    table.append([{"id": 2}])
    (made,) = call("clone", source="sales.origin", target="sales.newest")
    assert made == {
        "source": "sales.origin",
        "target": "sales.newest",
        "version": version + 2,
        "lake_snapshot_id": None,
    }
    assert warehouse.table("sales.newest").to_arrow()["id"].to_pylist() == [1, 2]
    call("clone", source="sales.origin", target="sales.by_number", version=version)
    call("clone", source="sales.origin", target="sales.by_tag", tag="one")
    for name in ("sales.by_number", "sales.by_tag"):
        assert warehouse.table(name).to_arrow()["id"].to_pylist() == [1]
    with pytest.raises(InvalidOptionError, match="found version and tag"):
        call("clone", source="sales.origin", target="sales.wrong", version=1, tag="one")


def test_a_partition_by_a_decimal_is_told_exactly(catalog, call):
    table = catalog.connection.warehouse().create_table("sales.exact", "id BIGINT, d DECIMAL(20,3)", partition_by=["d"])
    near = ["12345678901234567.999", "12345678901234568.000"]
    table.append([{"id": i, "d": Decimal(text)} for i, text in enumerate(near)])
    assert call("drop_partition", table="sales.exact", partition=f'{{"d": {near[0]}}}')[0]["rows"] == 1
    assert table.to_arrow()["id"].to_pylist() == [1]
    with pytest.raises(InvalidOptionError, match="expected a JSON object"):
        call("drop_partition", table="sales.exact", partition='{"d": 1, "d": 2}')


def test_snapshots_are_expired_but_for_the_newest(call, table):
    for i in range(4):
        table.append(pa.table({"id": [i]}))
        tier(table)
    now_us = (table.storage.now_ms() + 1) * 1000 - 1000
    assert call("expire_snapshots", table="sales.orders")[0]["snapshots"] == 0, "a day is kept by default"
    shown = call("expire_snapshots", table="sales.orders", older_than=now_us, retain_last=2, dry_run=True)
    assert (shown[0]["table"], shown[0]["snapshots"], shown[0]["dry_run"]) == ("sales.orders", 2, True)
    assert table.lake.snapshots().num_rows == 4
    done = call("EXPIRE_SNAPSHOTS", TABLE="sales.orders", older_than=now_us, retain_last=2)
    assert (done[0]["snapshots"], done[0]["files"], done[0]["dry_run"]) == (2, shown[0]["files"], False)
    assert table.lake.snapshots().num_rows == 2
    assert table.to_arrow().num_rows == 4


def test_a_table_is_tiered_compacted_and_its_manifests_are_joined(call, in_iceberg):
    for i in range(7):
        in_iceberg.append(pa.table({"id": [2 * i]}))
        (done,) = call("tier", table="sales.orders")
        assert (done["table"], done["rows"], done["snapshots"]) == ("sales.orders", 1, 1)
    assert call("tier", table="sales.orders")[0]["snapshots"] == 0
    lake = in_iceberg.open_lake()
    assert len(lake.metadata_table("manifests")) == 7
    (shown,) = call("rewrite_manifests", table="sales.orders", dry_run=True)
    assert (shown["manifests_removed"], shown["manifests_added"], shown["dry_run"]) == (7, 1, True)
    assert len(lake.metadata_table("manifests")) == 7
    assert call("rewrite_manifests", table="sales.orders") == [{**shown, "dry_run": False}]
    assert len(lake.metadata_table("manifests")) == 1
    assert call("rewrite_manifests", table="sales.orders")[0]["manifests_removed"] == 0
    files = len(lake.metadata_table("files"))
    (shown,) = call("compact", table="sales.orders", dry_run=True)
    assert shown["files_removed"] >= 5
    assert len(lake.metadata_table("files")) == files
    (done,) = call("compact", table="sales.orders")
    assert (done["files_removed"], done["rows"], done["dry_run"]) == (shown["files_removed"], shown["rows"], False)
    assert len(lake.metadata_table("files")) == files - done["files_removed"] + done["files_added"]
    assert sorted(in_iceberg.to_arrow()["id"].to_pylist()) == list(range(0, 14, 2))


def test_a_lake_is_laid_out_by_a_column(call, in_iceberg):
    for i in range(4):
        in_iceberg.append(pa.table({"id": [2 * i, 2 * i + 1]}))
        call("tier", table="sales.orders")
    (shown,) = call("optimize", table="sales.orders", order_by="id", where="id >= 4", dry_run=True)
    assert (shown["table"], 0 < shown["rows"] < 8, shown["dry_run"]) == ("sales.orders", True, True)
    (done,) = call("optimize", table="sales.orders", order_by="id")
    assert (done["rows"], done["files_removed"] > done["files_added"] > 0, done["dry_run"]) == (8, True, False)
    assert call("optimize", table="sales.orders", order_by="id")[0]["rows"] == 0
    assert sorted(in_iceberg.lake.to_arrow()["id"].to_pylist()) == list(range(8))


def test_a_lake_is_built_anew(call, table):
    table.append([{"id": i} for i in range(10)])
    call("tier", table="sales.orders")
    for info in table.storage.list(f"{table.refresh().lake_location}/"):
        table.storage.delete(info.key)
    (planned,) = call("retier", table="sales.orders", dry_run=True)
    assert (planned["rows"], planned["lost_rows"], planned["dry_run"]) == (10, 0, True)
    (done,) = call("retier", table="sales.orders")
    assert done["lake_location"] == table.refresh().lake_location
    assert call("tier", table="sales.orders")[0]["rows"] == 10
    assert table.lake.to_arrow().num_rows == table.to_arrow().num_rows == 10


def test_an_iceberg_table_is_adopted(catalog, call, in_iceberg):
    in_iceberg.append(pa.table({"id": [1, 2, 3]}))
    tier(in_iceberg)
    lake = in_iceberg.open_lake().binding.load()
    with lake.transaction() as transaction:
        transaction.remove_properties("streamhouse.table-uuid")
    (shown,) = call("adopt", table="sales.again", lake="sales.orders", dry_run=True)
    assert (shown["table"], shown["rows"], shown["dry_run"]) == ("sales.again", 3, True)
    assert call("adopt", table="sales.again", lake="sales.orders") == [{**shown, "dry_run": False}]
    adopted = catalog.connection.table("sales.again")
    assert sorted(adopted.to_arrow()["id"].to_pylist()) == [1, 2, 3]
    with pytest.raises(LakeMismatchError, match=r"no Iceberg table sales\.absent"):
        call("adopt", table="sales.absent")


def test_orphans_are_found_and_deleted_after_their_grace(call, table):
    table.append(pa.table({"id": [1]}))
    tier(table)
    assert call("remove_orphan_files", table="sales.orders") == []
    assert call("remove_orphan_files", table="sales.orders", dry_run=True) == []
    now_us = table.storage.now_ms() * 1000
    with pytest.raises(InvalidOptionError, match="grace"):
        call("remove_orphan_files", table="sales.orders", older_than=now_us)


def test_a_consumer_is_shown_and_forgotten(call, table):
    table.append(pa.table({"id": [1]}))
    table.move_consumer("it's `me`", {0: 0})
    shown = call("drop_consumer", table="sales.orders", consumer_id="it's `me`", dry_run=True)
    assert shown == [{"table": "sales.orders", "consumer_id": "it's `me`", "offsets": '{"0": 0}', "dry_run": True}]
    assert "it's `me`" in table.refresh().consumers
    assert call("drop_consumer", table="sales.orders", consumer_id="it's `me`")[0]["dry_run"] is False
    assert not table.refresh().consumers
    with pytest.raises(InvalidOptionError, match="no consumer"):
        call("drop_consumer", table="sales.orders", consumer_id="it's `me`")


def test_table_status_shows_one_table_or_all(catalog, call, table):
    table.append(pa.table({"id": [1, 2, 3]}))
    tier(table)
    table.append(pa.table({"id": [4]}))
    catalog.create("sales", "plain", properties={"table.datalake.enabled": "false"})
    (one,) = call("table_status", table="sales.orders")
    assert (one["rows"], one["buckets"], one["lag_rows"]) == (4, 2, 1)
    assert one["lake_format"] == table.properties.datalake_format
    assert one["lake_snapshot"] == table.state.lake.snapshot_id
    assert one["problem"] is None
    rows = {row["table"]: row for row in call("table_status")}
    assert set(rows) == {"sales.orders", "sales.plain"}
    assert (rows["sales.plain"]["lake_format"], rows["sales.plain"]["lag_rows"]) == (None, None)


def test_a_damaged_table_is_a_row_that_says_so(catalog, call, table):
    catalog.create("sales", "plain")
    storage, uuid = table.storage, table.uuid
    key = f"tables/{uuid}/commits/{1:020d}.json"
    data = storage.read(key)
    storage.delete(key)
    storage.put_if_absent(key, data[:-2] + b"x\n")
    elsewhere = Catalog(Connection.of(catalog.connection.location, {"s3.region": "another-process"}))
    found = elsewhere.call("call_procedure", name="table_status", arguments={})
    problems = {row[0]: row[-1] for row in found["rows"]}
    assert problems["sales.plain"] is None
    assert problems["sales.orders"].startswith("CORRUPT_DATA: ")


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("expire_snapshot", {"table": "sales.orders"}, "did you mean expire_snapshots"),
        ("it's `x`$", {}, "unknown procedure"),
        ("table_status", {"tabel": "sales.orders"}, "did you mean table"),
        ("drop_consumer", {"table": "sales.orders"}, "requires consumer_id"),
        ("drop_consumer", {"table": None, "consumer_id": "a"}, "table of procedure drop_consumer is null"),
        ("drop_consumer", {"table": "sales.orders", "consumer_id": 5}, "is 5, expected string"),
        ("expire_snapshots", {"table": "sales.orders", "retain_last": 0}, "at least 1"),
        ("expire_snapshots", {"table": "sales.orders", "retain_last": True}, "expected int"),
        ("expire_snapshots", {"table": "sales.orders", "dry_run": "yes"}, "expected boolean"),
        ("expire_snapshots", {"table": "sales.orders", "older_than": 4 * 10**18}, "in the future"),
        ("expire_snapshots", {"table": "sales.bare"}, "has no lake"),
        ("compact", {"table": "sales.bare"}, "has no lake"),
        ("rewrite_manifests", {"table": "sales.bare"}, "has no lake"),
        ("optimize", {"table": "sales.bare", "order_by": "id"}, "has no lake"),
        ("optimize", {"table": "sales.bare"}, "requires order_by"),
        ("tier", {"table": "sales.bare"}, "has no lake"),
        ("tier", {}, "requires table"),
    ],
)
def test_what_cannot_be_is_refused(catalog, call, table, name, arguments, words):
    catalog.create("sales", "bare", properties={"table.datalake.enabled": "false"})
    with pytest.raises(InvalidOptionError, match=words):
        call(name, **arguments)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_neither_break_nor_escape(call, table, name):
    for procedure, more in (
        ("tier", {}),
        ("compact", {}),
        ("expire_snapshots", {}),
        ("remove_orphan_files", {}),
        ("rewrite_manifests", {}),
        ("drop_consumer", {"consumer_id": "x"}),
        ("table_status", {}),
    ):
        with pytest.raises((InvalidNameError, TableNotFoundError)):
            call(procedure, table=name, **more)
        with pytest.raises((InvalidNameError, TableNotFoundError)):
            call(procedure, table=f"{name}.orders", **more)
