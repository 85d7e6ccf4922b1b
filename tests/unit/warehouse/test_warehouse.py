"""Warehouses, databases and tables: created, found, listed, dropped, and created again."""

from __future__ import annotations

import re
import threading

import pyarrow as pa
import pytest

from faults.sim import sim_world
from streamhouse_spark import (
    FormatVersionError,
    InvalidNameError,
    InvalidOptionError,
    SchemaMismatchError,
    TableExistsError,
    TableNotFoundError,
    Warehouse,
    WarehouseNotFoundError,
)
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import WAREHOUSE_KEY, commit_key, name_key
from streamhouse_spark.log.catalog import names
from streamhouse_spark.storage.memory import MemoryStorage

ORDERS = "id BIGINT NOT NULL, note STRING"


class Untouchable:
    """A store that must not be asked for anything."""

    url = "nowhere://"

    def __getattr__(self, name):
        if name == "read_many":  # whether it can is no question to the store
            raise AttributeError(name)
        raise AssertionError(f"storage.{name} was used")


def keys(store) -> set[str]:
    return {info.key for info in store.list("")}


class TestOpening:
    def test_a_warehouse_is_lazy(self, tmp_path):
        wh = Warehouse(str(tmp_path / "absent"))
        Warehouse("x", storage=Untouchable())
        assert wh.url == str(tmp_path / "absent")
        assert repr(wh) == f"Warehouse('{tmp_path}/absent')"
        assert not (tmp_path / "absent").exists()

    def test_a_path_object_is_a_location(self, tmp_path):
        Warehouse(tmp_path / "wh").create_table("t", ORDERS)
        assert Warehouse(f"file://{tmp_path}/wh").tables() == ["default.t"]

    def test_settings_are_not_shown(self, tmp_path):
        wh = Warehouse(str(tmp_path), {"s3.secret-access-key": "canary"})
        assert "canary" not in repr(wh)
        assert wh.settings["s3.secret-access-key"] == "canary"

    def test_reading_an_absent_warehouse_is_an_error(self, wh, store):
        for ask in (
            wh.tables,
            wh.databases,
            lambda: wh.exists("a.b"),
            lambda: wh.table("a.b"),
            lambda: wh.view("a.b$changelog"),
            lambda: wh.drop_table("a.b"),
            lambda: wh.drop_table("a.b", if_exists=True),
        ):
            with pytest.raises(WarehouseNotFoundError, match=r"holds no streamhouse.json.*create_table"):
                ask()
        assert keys(store) == set()

    def test_a_warehouse_made_later_is_found(self, wh, other_process):
        with pytest.raises(WarehouseNotFoundError):
            wh.tables()
        other_process().create_table("t", ORDERS)
        assert wh.tables() == ["default.t"]

    def test_the_first_table_makes_the_warehouse(self, wh, store):
        wh.create_table("sales.orders", ORDERS)
        assert WAREHOUSE_KEY in keys(store)
        assert wh.databases() == ["sales"]

    def test_a_foreign_directory_is_refused(self, wh, store):
        store.put("readme.txt", b"mine")
        for make in (lambda: wh.create_table("t", ORDERS), lambda: wh.create_database("d")):
            with pytest.raises(WarehouseNotFoundError, match=r"readme\.txt.*nothing was written.*empty or new"):
                make()
        assert keys(store) == {"readme.txt"}

    def test_lost_and_found_is_not_foreign(self, wh, store):
        store.put("lost+found/x", b"")
        assert wh.create_table("t", ORDERS).name == "default.t"

    def test_racing_creators_agree_on_one_warehouse(self, store, clock):
        barrier = threading.Barrier(4)
        errors = []

        def create(seed):
            barrier.wait()
            try:
                Warehouse("wh", storage=store, world=sim_world(seed, clock)).create_table(f"t{seed}", ORDERS)
            except Exception as error:  # noqa: BLE001 - shown by the assertion below
                errors.append(error)

        threads = [threading.Thread(target=create, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert Warehouse("wh", storage=store).tables() == [f"default.t{i}" for i in range(4)]


class TestDatabases:
    def test_databases_are_created_once_and_listed(self, wh):
        wh.create_database("Sales")
        wh.create_database("sales")
        wh.create_database("air")
        assert wh.databases() == ["air", "sales"]
        with pytest.raises(TableExistsError, match="DATABASE_EXISTS"):
            wh.create_database("SALES", if_not_exists=False)

    @pytest.mark.parametrize("name", ["tables", "lake", "streamhouse", "Tables"])
    def test_the_warehouses_own_folders_are_no_databases(self, wh, store, name):
        with pytest.raises(InvalidNameError, match="reserved"):
            wh.create_database(name)
        with pytest.raises(InvalidNameError, match="reserved"):
            wh.create_table(f"{name}.t", ORDERS)
        assert keys(store) == set()

    def test_tables_are_listed_by_database(self, wh):
        for name in ("b.y", "a.x", "b.x", "plain"):
            wh.create_table(name, ORDERS)
        assert wh.tables() == ["a.x", "b.x", "b.y", "default.plain"]
        assert wh.tables("B") == ["b.x", "b.y"]
        wh.create_database("empty")
        assert wh.tables("empty") == []

    def test_listing_an_unknown_database_suggests_the_nearest(self, wh):
        wh.create_table("sales.orders", ORDERS)
        with pytest.raises(TableNotFoundError, match=r"DATABASE_NOT_FOUND: database sale .*did you mean sales\?"):
            wh.tables("sale")


class TestNames:
    @pytest.mark.parametrize("spelling", ["Sales.Orders", "SALES.ORDERS", "sales.orders"])
    def test_names_of_tables_ignore_case(self, wh, spelling):
        table = wh.create_table(spelling, ORDERS)
        assert table.name == "sales.orders"
        assert table.path == TablePath("sales", "orders")
        assert wh.exists("sAlEs.oRdErS")
        with pytest.raises(TableExistsError):
            wh.create_table("sales.orders", ORDERS)

    def test_a_bare_name_means_the_default_database(self, wh):
        assert wh.create_table("orders", ORDERS).name == "default.orders"
        assert wh.table("default.orders").uuid == wh.table("orders").uuid

    def test_names_may_have_128_characters(self, wh):
        name = "x" * 128
        assert wh.create_table(f"{name}.{name}", ORDERS).name == f"{name}.{name}"
        assert wh.tables() == [f"{name}.{name}"]

    @pytest.mark.parametrize("suffix", ["lake", "changelog", "lake$snapshots", "nonsense"])
    def test_suffixed_names_are_read_only(self, wh, suffix):
        wh.create_table("orders", ORDERS)
        name = f"orders${suffix}"
        for ask in (
            lambda: wh.create_table(name, ORDERS),
            lambda: wh.drop_table(name),
            lambda: wh.table(name),
        ):
            with pytest.raises(InvalidNameError, match=r"read-only; use default\.orders"):
                ask()
        assert wh.tables() == ["default.orders"]

    def test_an_unknown_table_names_the_nearest(self, wh):
        wh.create_table("sales.orders", ORDERS)
        with pytest.raises(TableNotFoundError, match=r"did you mean sales\.orders\?"):
            wh.table("sales.ordres")
        with pytest.raises(TableNotFoundError, match=r"available: sales\.orders"):
            wh.table("zzz.qqqqqqqqqq")
        assert wh.exists("sales.ordres") is False


class TestCreating:
    def test_what_was_said_is_what_is_there(self, wh, other_process):
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("dt", pa.date32()), ("v", pa.float64())])
        made = wh.create_table(
            "sales.orders",
            schema,
            partition_by=["DT"],
            buckets=4,
            properties={"bucket.key": "id", "table.log.ttl": "1d", "comment": "all of them"},
        )
        found = other_process().table("sales.orders")
        for table in (made, found):
            assert table.schema == schema
            assert table.partition_by == ("dt",)
            assert table.num_buckets == 4
            assert table.properties.bucket_key == ("id",)
            assert table.properties.log_ttl_ms == 86_400_000
            assert table.properties.comment == "all of them"
            assert table.state.lake_location == "lake/sales/orders"
            assert repr(table) == "Table(sales.orders: 3 columns, 4 buckets, 0 rows)"
        assert made.uuid == found.uuid

    def test_a_table_is_created_from_ddl_or_a_struct_type(self, wh):
        types = pytest.importorskip("pyspark.sql.types")
        struct = types.StructType().add("id", types.LongType(), nullable=False).add("note", types.StringType())
        assert wh.create_table("a", struct).schema == wh.create_table("b", ORDERS).schema

    def test_buckets_and_the_property_may_agree(self, wh):
        assert wh.create_table("a", ORDERS, buckets=3, properties={"bucket.num": "3"}).num_buckets == 3
        with pytest.raises(InvalidOptionError, match=r"buckets=2 and bucket\.num=3; give one"):
            wh.create_table("b", ORDERS, buckets=2, properties={"bucket.num": "3"})

    def test_if_not_exists_gives_the_one_that_is_there(self, wh):
        first = wh.create_table("t", ORDERS, buckets=2)
        first.append([{"id": 1}])
        again = wh.create_table("t", "other STRING", if_not_exists=True)
        assert again.uuid == first.uuid
        assert again.to_arrow().num_rows == 1
        with pytest.raises(TableExistsError, match="drop it first"):
            wh.create_table("t", ORDERS)

    def test_a_primary_key_is_not_null_and_buckets_the_table(self, wh):
        table = wh.create_table("t", "id BIGINT, dt STRING, name STRING", primary_key=["dt", "ID"], partition_by=["dt"])
        assert [field.nullable for field in table.schema] == [False, False, True]
        assert table.state.primary_key == ("dt", "id")
        assert table.properties.bucket_key == ("id",)
        assert table.properties.primary_key == ("dt", "id")

    @pytest.mark.parametrize(
        ("asked", "words"),
        [
            ({"primary_key": ["nope"]}, "no column 'nope'"),
            ({"primary_key": ["id", "ID"]}, "distinct columns"),
            ({"primary_key": ["tags"]}, "choose columns of scalar types"),
            ({"primary_key": ["id"], "partition_by": ["dt"]}, "'dt' is not in primary.key id; add it"),
            ({"primary_key": ["id"], "properties": {"primary.key": "dt"}}, "leave one out"),
            ({"primary_key": ["id"], "properties": {"bucket.key": "dt"}}, "a column of the primary key id"),
            ({"primary_key": ["price"], "buckets": 2}, "needs a bucket key"),
            (
                {"primary_key": ["id"], "properties": {"table.merge-engine": "best"}},
                "versioned or aggregation",
            ),
            ({"properties": {"fields.price.agg": "sum"}}, "requires a primary key; set primary.key"),
        ],
    )
    def test_a_key_that_cannot_be(self, wh, store, asked, words):
        with pytest.raises((InvalidOptionError, SchemaMismatchError), match=re.escape(words)):
            wh.create_table("t", "id BIGINT, dt STRING, price DOUBLE, tags ARRAY<INT>", **asked)
        assert keys(store) == set()

    def test_racing_creators_of_one_table_get_one_table(self, store, clock):
        barrier = threading.Barrier(4)
        found, refused = [], []

        def create(seed):
            wh = Warehouse("wh", storage=store, world=sim_world(seed, clock))
            barrier.wait()
            try:
                found.append(wh.create_table("t", ORDERS).uuid)
            except TableExistsError:
                refused.append(seed)

        threads = [threading.Thread(target=create, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 1
        assert len(refused) == 3
        assert Warehouse("wh", storage=store).table("t").uuid == found[0]


class TestDropping:
    def test_a_dropped_table_is_gone_for_every_process(self, wh, other_process):
        wh.create_table("sales.orders", ORDERS)
        assert wh.drop_table("sales.orders") is True
        for each in (wh, other_process()):
            assert each.exists("sales.orders") is False
            assert each.tables() == []
            assert each.drop_table("sales.orders", if_exists=True) is False
            with pytest.raises(TableNotFoundError):
                each.drop_table("sales.orders")
            with pytest.raises(TableNotFoundError):
                each.table("sales.orders")

    def test_the_old_handle_neither_writes_nor_reads(self, wh, other_process):
        old = wh.create_table("t", ORDERS)
        old.append([{"id": 1}])
        following = old.tail("earliest")
        assert next(following).num_rows == 1
        other_process().drop_table("t")
        for ask in (
            lambda: old.append([{"id": 2}]),
            lambda: old.alter_properties({"comment": "x"}),
            old.to_arrow,
            old.tail,
            lambda: next(following),
            old.inspect.buckets,
        ):
            with pytest.raises(TableNotFoundError, match="was dropped"):
                ask()

    @pytest.mark.usefixtures("own_cache")
    def test_writes_that_change_nothing_say_so_too(self, wh, other_process):
        log = wh.create_table("t", ORDERS)
        keyed = wh.create_table("k", "id BIGINT, x INT", primary_key=["id"])
        keyed.upsert([{"id": 1, "x": 1}])
        keyed.delete([1])
        for name in ("t", "k"):
            other_process().drop_table(name)
        for ask in (
            lambda: log.append([]),
            lambda: log.overwrite([]),
            lambda: keyed.delete([5]),
            lambda: keyed.upsert([]),
        ):
            with pytest.raises(TableNotFoundError, match="was dropped"):
                ask()

    def test_the_name_may_be_used_again(self, wh, other_process):
        old = wh.create_table("sales.orders", ORDERS)
        old.append([{"id": 1}])
        wh.drop_table("sales.orders")
        new = other_process().create_table("sales.orders", "name STRING")
        assert new.uuid != old.uuid
        assert new.to_arrow().num_rows == 0
        with pytest.raises(TableNotFoundError, match="was dropped"):
            old.append([{"id": 2}])
        new.append([{"name": "x"}])
        assert wh.table("sales.orders").to_arrow().to_pylist() == [{"name": "x"}]
        assert new.state.lake_location == f"lake/sales/orders-{new.uuid[:8]}"

    def test_twenty_lives_of_one_name(self, wh, other_process):
        uuids = set()
        for life in range(20):
            table = wh.create_table("t", f"c{life} INT")
            uuids.add(table.uuid)
            table.append([{f"c{life}": life}])
            assert other_process().table("t").to_arrow().to_pylist() == [{f"c{life}": life}]
            wh.drop_table("t")
        assert len(uuids) == 20

    def test_a_drop_that_stopped_halfway_is_a_drop(self, wh, store, other_process, world):
        """The drop record is there, the pointer to nothing is not: the crash between the two."""
        table = wh.create_table("t", ORDERS)
        pointer = names.resolve(store, table.path)
        wh.drop_table("t")
        store.delete(name_key(table.path, pointer.number + 1))
        each = other_process()
        assert each.exists("t") is False
        assert each.tables() == []
        assert each.drop_table("t", if_exists=True) is False
        assert each.create_table("t", ORDERS).uuid != table.uuid
        assert wh.tables() == ["default.t"]

    def test_a_creation_that_stopped_halfway_is_none(self, wh, store, other_process):
        """The first record is there, the name is not."""
        table = wh.create_table("t", ORDERS)
        store.delete(name_key(table.path, 1))
        assert other_process().tables() == []
        assert store.read(commit_key(table.uuid, 1))
        assert other_process().create_table("t", ORDERS).uuid != table.uuid


def test_a_folder_renamed_by_hand_is_noticed(world):
    store = MemoryStorage(world)
    wh = Warehouse("wh", storage=store, world=world)
    wh.create_table("a.t", ORDERS)
    store.put("b/database.json", store.read("a/database.json"))
    store.put("b/t/names/00000001.json", store.read("a/t/names/00000001.json"))
    with pytest.raises(InvalidNameError, match="renamed by hand"):
        wh.table("b.t")


@pytest.mark.parametrize("key", ["streamhouse.json", "sales/database.json", "sales/orders/names/00000001.json"])
def test_a_newer_format_is_refused_before_anything_is_written(key):
    store = MemoryStorage(World())
    Warehouse("wh", storage=store).create_table("sales.orders", ORDERS)
    store.put(key, store.read(key).replace(b'"version":1', b'"version":9', 1))
    before = keys(store)
    wh = Warehouse("wh", storage=store)
    asked = [
        lambda: wh.create_table("sales.orders", ORDERS),
        lambda: wh.create_table("sales.orders", ORDERS, if_not_exists=True),
    ]
    if key == "streamhouse.json":
        asked.append(wh.tables)
    else:
        assert wh.tables() == ["sales.orders"], "it is there, and hides no other"
    if "database" not in key:  # opening a table reads the pointer of its name alone
        asked.append(lambda: wh.table("sales.orders"))
    for ask in asked:
        with pytest.raises(FormatVersionError, match=r"version 9, expected at most [123]; upgrade"):
            ask()
    assert keys(store) == before
