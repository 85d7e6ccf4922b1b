"""CREATE, DESCRIBE and DROP TABLE, and the requests that a CREATE TABLE costs."""

from __future__ import annotations

import datetime as dt
import decimal
import json

import pyarrow as pa
import pytest

from kit.round_trips import RemoteStorage
from kit.tables import tier
from kit.warehouses import new_store, open_warehouse
from streamhouse_spark import (
    InvalidNameError,
    InvalidOptionError,
    SchemaMismatchError,
    TableExistsError,
    TableNotFoundError,
)
from streamhouse_spark.datasource.table_definition import describe_properties, format_partitioning
from streamhouse_spark.lake.tiering.record_snapshot import record_latest_snapshot
from streamhouse_spark.warehouse import process_cache
from streamhouse_spark.warehouse.process_cache import Connection, OpenTables, _Process
from unit.datasource.calls import Catalog, bucket, identity, struct

BAD_NAMES = ["a b", "a`b", "a'b", 'a"b', "a.b", "..", "../x", "größe", "", "x/y", "a\nb", ".", "b.c"]
ODD_COLUMNS = ["a b", "a`b", "it's", 'a"b', "a$b", "a.b", "größe", "日本", "a,b", "a(b)", "–", "a/b", "a=b", "😀"]


def test_a_table_is_created_listed_described_and_dropped(catalog):
    catalog.create(
        "sales",
        "Orders",
        "id bigint not null comment 'key', dt date, note string",
        [identity("DT"), bucket(4, "ID")],
        properties={"comment": "it's `all`", "table.log.ttl": "1d", "owner": "me", "provider": "streamhouse"},
    )
    assert catalog.call("tables", database="SALES") == {"tables": ["orders"]}
    table = catalog.connection.table("sales.orders")
    assert table.partition_by == ("dt",)
    assert (table.num_buckets, table.properties.bucket_key) == (4, ("id",))
    assert table.properties.comment == "it's `all`"
    assert table.state.schema.columns[0].comment == "key"
    assert format_partitioning(table.state) == [identity("dt"), bucket(4, "id")]
    shown = catalog.call("load", database="sales", table="orders")["properties"]
    assert shown["comment"] == "it's `all`"
    assert shown["provider"] == "streamhouse"
    assert shown["table.log.ttl"] == "1d"
    assert shown["location"].endswith(f"/tables/{table.uuid}")
    assert catalog.call("drop_table", database="sales", table="orders", purge=False) == {"dropped": True}
    assert catalog.call("drop_table", database="sales", table="orders", purge=True) == {"dropped": False}
    assert catalog.call("tables", database="sales") == {"tables": []}


def test_status_facts_follow_log_and_lake(catalog):
    catalog.create("sales", "orders", "id bigint", properties={"bucket.num": "2", "bucket.key": "id"})
    table = catalog.connection.table("sales.orders")
    table.append(pa.table({"id": [0, 1, 2, 3]}))
    shown = describe_properties(table)
    ends = json.loads(shown["status.log.end-offsets"])
    assert sum(ends.values()) == 4
    assert shown["status.log.start-offsets"] == '{"0": 0, "1": 0}'
    assert (shown["status.lake.snapshot"], shown["status.lake.lag-rows"]) == ("none", "4")
    tier(table)
    shown = describe_properties(table)
    assert shown["status.lake.snapshot"] == str(table.state.lake.snapshot_id)
    assert json.loads(shown["status.lake.offsets"]) == ends
    assert (shown["status.buckets"], shown["status.lake.lag-rows"]) == ("2", "0")
    assert (shown["status.lake.format"], "/lake/sales/orders" in shown["status.lake.location"]) == ("iceberg", True)
    table.alter_properties({"table.datalake.enabled": "false"})
    shown = describe_properties(table)
    assert json.loads(shown["status.lake.offsets"]) == ends, "what the lake holds is read all the same"


def test_the_names_of_openlineage_are_shown_and_copied_to_no_other_table(catalog):
    catalog.create("sales", "orders", "id bigint")
    table = catalog.connection.table("sales.orders")
    shown = describe_properties(table)
    names = shown["openlineage.dataset.namespace"], shown["openlineage.dataset.name"]
    assert names == ("file", f"{table.storage.url}/sales.orders")
    catalog.create("sales", "again", "id bigint", properties={k: v for k, v in shown.items() if "lineage" in k})
    again = catalog.connection.table("sales.again")
    assert "openlineage.dataset.name" not in again.state.properties
    assert describe_properties(again)["openlineage.dataset.name"].endswith("/sales.again")


def test_what_is_shown_creates_the_same_table(catalog):
    catalog.create("sales", "a", "id bigint, dt date", [identity("dt"), bucket(3, "id")], properties={"comment": "c"})
    table = catalog.connection.table("sales.a")
    shown = {k: v for k, v in describe_properties(table).items() if k not in ("location", "is_managed_location")}
    catalog.create("sales", "b", "id bigint, dt date", format_partitioning(table.state), properties=shown)
    copy = catalog.connection.table("sales.b")
    assert dict(copy.state.properties) == dict(table.state.properties)
    assert copy.partition_by == table.partition_by


def test_the_same_bucket_may_be_said_twice_but_not_two_buckets(catalog):
    same = {"bucket.num": "4", "bucket.key": "ID"}
    catalog.create("sales", "a", "id bigint, x int", [bucket(4, "id")], properties=same)
    with pytest.raises(InvalidOptionError, match=r"bucket\(4, id\).*bucket\(8, id\)"):
        catalog.create("sales", "b", "id bigint, x int", [bucket(4, "id")], properties={"bucket.num": "8"})
    with pytest.raises(InvalidOptionError, match="bucket"):
        catalog.create("sales", "b", "id bigint, x int", [bucket(4, "id")], properties={"bucket.key": "x"})


CLUSTERED = {"transform": "cluster_by", "columns": [["id"], ["dt"]], "arguments": []}


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"properties": {"provider": "parquet"}}, InvalidOptionError, "USING parquet"),
        ({"properties": {"location": "/x"}}, InvalidOptionError, "LOCATION '/x'"),
        ({"properties": {"external": "true"}}, InvalidOptionError, "EXTERNAL"),
        ({"properties": {"option.a": "b", "a": "b"}}, InvalidOptionError, r"OPTIONS \(a\)"),
        ({"properties": {"collation": "UNICODE_CI"}}, InvalidOptionError, "COLLATION"),
        ({"properties": {"bucket.nun": "4"}}, InvalidOptionError, "did you mean bucket.num"),
        ({"properties": {"table.a'`$b": "4"}}, InvalidOptionError, "unknown table property"),
        ({"properties": {"comment": "token=abc123"}}, InvalidOptionError, "credential"),
        ({"primary_key": ["nope"]}, SchemaMismatchError, "no column 'nope'"),
        ({"partitioning": [{"transform": "hours", "columns": [["dt"]], "arguments": []}]}, InvalidOptionError, "hours"),
        ({"partitioning": [bucket(4, "id", "dt")]}, InvalidOptionError, "one column"),
        ({"partitioning": [bucket(4, "id"), bucket(2, "dt")]}, InvalidOptionError, "second bucket transform"),
        ({"partitioning": [bucket(0, "id")]}, InvalidOptionError, r"bucket\(0, id\): found 0 buckets"),
        ({"partitioning": [{**identity("x"), "columns": [["s", "a"]]}]}, InvalidOptionError, "field of a struct"),
        ({"partitioning": [CLUSTERED]}, InvalidOptionError, r"CLUSTER BY \(id, dt\) is .*bucket.num and bucket.key"),
        ({"partitioning": [identity("nope")]}, SchemaMismatchError, "no column 'nope'"),
        ({"schema": "a int, A int"}, SchemaMismatchError, "expected names that differ"),
        ({"schema": "_bucket int"}, SchemaMismatchError, "reserved"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(catalog, given, error, words):
    with pytest.raises(error, match=words):
        catalog.create("sales", "orders", **given)
    assert catalog.call("tables", database="sales") == {"tables": []}


def test_an_expression_is_a_property(catalog):
    schema = json.loads(struct("id bigint, next bigint"))
    schema["fields"][1]["metadata"] = {"GENERATION_EXPRESSION": "id * 2"}
    for name, is_query in (("t", False), ("u", True)):
        given = {"table": name, "schema": json.dumps(schema), "as_select": is_query}
        catalog.call("create_table", database="sales", **given)
        found = catalog.call("load", database="sales", table=name)["properties"]
        assert found.get("table.generated.next") == (None if is_query else "id * 2")


def test_a_table_like_another_hands_out_numbers_of_its_own(catalog):
    like = {"table.identity.id": "ALWAYS START WITH 5 INCREMENT BY 1", "primary.key": "name"}
    given = {"schema": struct("id bigint, name string not null"), "like": like}
    catalog.call("create_table", database="sales", table="t", **given)
    found = catalog.call("load", database="sales", table="t")["properties"]
    assert found["table.identity.id"] == like["table.identity.id"]


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"CURRENT_DEFAULT": "rand()", "EXISTS_DEFAULT": "1"}, "is not a constant"),
        ({"__COLLATIONS": {"id": "icu.UNICODE_CI"}}, "COLLATE"),
    ],
)
def test_column_clauses_that_are_not_stored_are_refused(catalog, metadata, words):
    schema = json.loads(struct("id bigint"))
    schema["fields"][0]["metadata"] = metadata
    with pytest.raises(SchemaMismatchError, match=words):
        catalog.call("create_table", database="sales", table="t", schema=json.dumps(schema))


@pytest.mark.parametrize("as_select", [False, True])
def test_defaults_are_those_of_the_statement_not_of_what_it_reads(catalog, as_select):
    schema = json.loads(struct("id bigint, n int"))
    schema["fields"][0]["metadata"] = {"comment": "c"}
    schema["fields"][1]["metadata"] = {"CURRENT_DEFAULT": "7", "EXISTS_DEFAULT": "7"}
    catalog.call("create_table", database="sales", table="t", schema=json.dumps(schema), as_select=as_select)
    column = catalog.connection.table("sales.t").state.schema.columns[1]
    assert column.default == (None if as_select else 7)


def test_a_table_needs_its_database_and_a_free_name(catalog):
    with pytest.raises(TableNotFoundError) as raised:
        catalog.create("nope", "orders")
    assert raised.value.condition == "DATABASE_NOT_FOUND"
    catalog.create("sales", "orders")
    with pytest.raises(TableExistsError):
        catalog.create("sales", "ORDERS")


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_neither_break_nor_escape(catalog, name):
    catalog.create("sales", "orders")
    for database, table in (("sales", name), (name, "orders")):
        with pytest.raises(InvalidNameError):
            catalog.create(database, table)
        for operation in ("drop_table", "partition_values"):
            with pytest.raises(InvalidNameError):
                catalog.call(operation, database=database, table=table)
    assert catalog.call("tables", database="sales") == {"tables": ["orders"]}
    assert catalog.call("databases") == {"databases": ["default", "sales"]}


def test_names_with_a_suffix_are_read_only(catalog):
    catalog.create("sales", "orders")
    with pytest.raises(InvalidNameError, match="read-only"):
        catalog.call("drop_table", database="sales", table="orders$lake")
    with pytest.raises(InvalidNameError, match="read-only"):
        catalog.create("sales", "new$lake")
    assert catalog.call("tables", database="sales") == {"tables": ["orders"]}


@pytest.mark.parametrize("column", ODD_COLUMNS)
def test_any_printable_text_names_a_column_in_every_role(catalog, column):
    quoted = column.replace("`", "``")
    schema = f"`{quoted}` string comment 'a `''$ b', `x{quoted}` int, y int"
    catalog.create("sales", "t", schema, [identity(column), bucket(2, f"x{column}")], properties={"comment": column})
    table = catalog.connection.table("sales.t")
    assert table.partition_by == (column,)
    assert table.properties.bucket_key == (f"x{column}",)
    assert format_partitioning(table.state) == [identity(column), bucket(2, f"x{column}")]
    assert describe_properties(table)["comment"] == column
    table.append(pa.table({column: [column, "b"], f"x{column}": pa.array([1, 2], pa.int32())}))
    tier(table)
    table.append(pa.table({column: ["c"], f"x{column}": pa.array([1], pa.int32())}))
    found = catalog.call("partition_values", database="sales", table="t", names=[], values=[])
    assert sorted(found["partitions"]) == sorted([[column], ["b"], ["c"]])
    one = catalog.call("partition_values", database="sales", table="t", names=[column], values=[column])
    assert one == {"partitions": [[column]]}
    assert table.drop_partition({column: column}).rows == 1
    assert sorted(table.to_arrow()[column].to_pylist()) == ["b", "c"]


def test_partitions_are_those_of_lake_and_log_in_sparks_form(catalog):
    schema = "dt date, d decimal(6,2), b binary, ts timestamp, f double, ok boolean, x int"
    columns = ["dt", "d", "b", "ts", "f", "ok"]
    catalog.create("sales", "t", schema, [identity(c) for c in columns])
    table = catalog.connection.table("sales.t")
    moment = dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    row = {
        "dt": dt.date(1970, 1, 11),
        "d": decimal.Decimal("1.50"),
        "b": b"\x00\xff",
        "ts": moment,
        "f": float("nan"),
        "ok": True,
        "x": 1,
    }
    in_json = [10, "1.50", "AP8=", 1_000_000, "NaN", True]
    table.append([row, {**row, "x": 2}])
    tier(table)
    table.append([{**row, "x": 3}, {**row, "f": float("-inf")}, {"x": 4}])

    def shown(**wanted):
        names, values = list(wanted), list(wanted.values())
        return catalog.call("partition_values", database="sales", table="t", names=names, values=values)["partitions"]

    negative = [*in_json[:4], "-Infinity", True]
    assert sorted(map(str, shown())) == sorted(map(str, [[None] * 6, in_json, negative]))
    assert shown(DT=10, f="NaN") == [in_json]
    assert shown(d="1.5", f="-Infinity") == [negative]
    assert shown(dt=None) == [[None] * 6]
    assert shown(dt=11) == []

    def drop(*partitions):
        catalog.call("drop_partitions", database="sales", table="t", uuid=table.uuid, partitions=list(partitions))

    drop(in_json, in_json)
    assert sorted(map(str, shown())) == sorted(map(str, [[None] * 6, negative]))
    drop([None] * 6, negative)
    assert shown() == []
    with pytest.raises(TableNotFoundError):
        catalog.call("drop_partitions", database="sales", table="t", uuid="f" * 32, partitions=[in_json])


@pytest.mark.parametrize("lake_format", ["iceberg", "paimon"])
def test_partition_values_are_listed_for_both_lakes(catalog, lake_format):
    schema, columns = "x int, dt date, n tinyint, s string", ["dt", "n", "s"]
    properties = {"table.datalake.format": lake_format}
    catalog.create("sales", "t", schema, [identity(c) for c in columns], properties=properties)
    table = catalog.connection.table("sales.t")
    table.append([{"dt": dt.date(1969, 12, 31), "n": -1, "s": "a/b=%20"}, {"x": 1, "s": ""}, {"x": 2, "s": "é"}])
    tier(table)
    table.append([{"x": 3, "n": 5}])

    def shown(*names_and_value):
        names, values = [[each] for each in names_and_value] or [[], []]
        return catalog.call("partition_values", database="sales", table="t", names=names, values=values)["partitions"]

    in_lake = [[None, None, ""], [None, None, "é"], [-1, -1, "a/b=%20"]]
    assert sorted(map(str, shown())) == sorted(map(str, [*in_lake, [None, 5, None]]))
    assert shown("s", "") == [[None, None, ""]]
    catalog.call("drop_partitions", database="sales", table="t", uuid=table.uuid, partitions=[in_lake[2], in_lake[0]])
    assert sorted(map(str, shown())) == sorted(map(str, [in_lake[1], [None, 5, None]]))
    table.lake.expire_snapshots(retain_last=1, older_than_ms=table.storage.now_ms())
    assert len(shown()) == 2


def test_files_without_partition_values_list_no_partition(catalog):
    catalog.create("sales", "t", "x int, s string", [identity("s")])
    table = catalog.connection.table("sales.t")
    table.append([{"x": 1, "s": "a"}])
    tier(table)
    lake = table.open_lake().binding.load()
    with lake.update_spec() as update:
        update.remove_field("s")
    lake.append(pa.table({"x": pa.array([2, 3], pa.int32()), "s": ["b", None]}))
    with lake.update_spec() as update:
        update.add_identity("s")
    table.append([{"x": 4, "s": "c"}])
    found = catalog.call("partition_values", database="sales", table="t", names=[], values=[])["partitions"]
    assert found == [["a"], ["c"]], "as reads do until the log knows of the other rows"
    record_latest_snapshot(table.log, table.open_lake())
    found = catalog.call("partition_values", database="sales", table="t", names=[], values=[])["partitions"]
    assert found == [[None], ["a"], ["b"], ["c"]]


def test_partition_values_of_other_columns_are_rejected(catalog):
    catalog.create("sales", "plain")
    with pytest.raises(InvalidOptionError, match="not partitioned"):
        catalog.call("partition_values", database="sales", table="plain", names=[], values=[])
    catalog.create("sales", "t", "id bigint, dt date", [identity("dt")])
    assert catalog.call("partition_values", database="sales", table="t", names=[], values=[]) == {"partitions": []}
    with pytest.raises(InvalidOptionError, match="not a partition column"):
        catalog.call("partition_values", database="sales", table="t", names=["id"], values=[1])


class Process(_Process):
    """A process that has opened nothing yet."""

    def __init__(self, remote: RemoteStorage) -> None:
        self.warehouse = open_warehouse(remote, 2)
        self.tables = OpenTables()


@pytest.mark.parametrize("others", [1, 20])
@pytest.mark.parametrize("has_open", [False, True])
def test_creating_a_table_does_not_ask_for_the_others(monkeypatch, others, has_open):
    remote = RemoteStorage(new_store(1))
    mine = open_warehouse(remote, 1)
    for number in range(others):
        mine.create_table(f"s.t{number}", "id INT")
    process = Process(remote)
    monkeypatch.setattr(process_cache, "_open_process", lambda *_: process)
    catalog = Catalog(Connection.of("wh", {}))
    if has_open:
        catalog.call("load", database="s", table="t0")
    with remote.measured() as cost:
        with pytest.raises(TableNotFoundError, match="SHOW TABLES"):
            catalog.call("load", database="s", table="fresh")
        catalog.create("s", "fresh")
    assert cost.requests <= 15, cost
    assert cost.depth <= 6, cost
