"""ls, describe, create, alter, drop."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamhouse_spark import StorageError
from streamhouse_spark.config.table_properties import VIEW, ViewDefinition
from streamhouse_spark.core.warehouse_layout import commit_key
from streamhouse_spark.log.tiering_failures import describe_failure, record_failure
from streamhouse_spark.table.refresh_commit import pause_refreshes

DDL = "order_id BIGINT NOT NULL, customer STRING COMMENT 'who', amount DECIMAL(12,2), day DATE"


@pytest.fixture
def orders(run):
    run(
        "create",
        "sales.orders",
        "--schema",
        DDL,
        "--buckets",
        "2",
        "-p",
        "bucket.key=order_id",
        "--partition-by",
        "day",
    )


def test_create_and_describe_take_partition_transforms(run, warehouse):
    run("create", "sales.at", "--schema", "at TIMESTAMP, name STRING", "--partition-by", "days(at),truncate(4, name)")
    assert warehouse.table("sales.at").state.parsed.partitioned_by == ("days(at)", "truncate(4, name)")
    assert "days(at), truncate(4, name)" in run("describe", "sales.at").stdout


def test_create_makes_the_table_as_asked(run, warehouse, orders):
    table = warehouse.table("sales.orders")
    assert table.state.schema.ddl() == DDL
    assert (table.num_buckets, table.partition_by, table.properties.bucket_key) == (2, ("day",), ("order_id",))


def test_create_prints_what_it_made(run):
    result = run("create", "orders", "--schema", "a INT", "--output", "json")
    assert result.document["table"] == "default.orders"
    assert result.document["columns"] == [
        {"id": 1, "name": "a", "type": "int", "nullable": True, "comment": None},
    ]
    assert "created default.other (a INT) with 1 bucket" in run("create", "other", "--schema", "a INT").stdout


def test_create_rejects_an_existing_table(run, orders):
    failed = run("create", "sales.orders", "--schema", "a INT", code=1)
    assert failed.stderr.startswith("TABLE_EXISTS: table sales.orders exists")
    assert failed.stdout == ""
    same = run("create", "sales.orders", "--schema", "a INT", "--if-not-exists", "-o", "json")
    assert len(same.document["columns"]) == 4


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "jsonl"])
def test_create_takes_the_columns_of_a_file(run, warehouse, tmp_path, suffix):
    rows = pa.table(
        {"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"], "at": pa.array([0, 1], pa.timestamp("us", "UTC"))}
    )
    path = tmp_path / f"rows.{suffix}"
    write(rows, path)
    run("create", "t", "--like", str(path))
    assert warehouse.table("t").schema.names == ["id", "name", "at"]
    run("append", "t", str(path))
    assert warehouse.table("t").to_arrow(columns=["id", "name"]).to_pylist() == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": "b"},
    ]


def write(rows: pa.Table, path: Path) -> None:
    match path.suffix:
        case ".parquet":
            pq.write_table(rows, path)
        case ".arrow":
            with pa.ipc.new_file(path, rows.schema) as writer:
                writer.write_table(rows)
        case ".csv":
            path.write_text("id,name,at\n1,a,1970-01-01T00:00:00Z\n2,b,1970-01-01T00:00:01Z\n")
        case ".jsonl":
            lines = ({**row, "at": row["at"].isoformat()} for row in rows.to_pylist())
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("arguments", [[], ["--schema", "a INT", "--like", "x.parquet"]])
def test_create_needs_one_source_of_columns(run, arguments):
    assert "either --schema or --like" in run("create", "t", *arguments, code=2).stderr


def test_create_refuses_bad_input_in_one_line(run, warehouse_path):
    for arguments, condition in (
        (["t", "--schema", "a NOTHING"], "SCHEMA_MISMATCH"),
        (["../t", "--schema", "a INT"], "INVALID_NAME"),
        (["t", "--schema", "a INT", "-p", "bucket.keys=a"], "INVALID_OPTION"),
        (["t", "--schema", "a INT", "--partition-by", "b"], "SCHEMA_MISMATCH"),
    ):
        failed = run("create", *arguments, code=1)
        assert failed.stderr.startswith(f"{condition}: "), failed
        assert len(failed.stderr.splitlines()) == 1
    assert not Path(warehouse_path).exists()


def test_ls_lists_tables_with_their_sizes(run, warehouse, orders):
    run("create", "other.t", "--schema", "a INT", "-p", "table.datalake.enabled=false")
    warehouse.table("sales.orders").append([{"order_id": 1}])
    found = run("ls", "--output", "json").lines
    assert [row["table"] for row in found] == ["other.t", "sales.orders"]
    assert found[1] == {"table": "sales.orders", "columns": 4, "buckets": 2, "rows": 1, "lake_rows": 0, "lag": 1}
    assert found[0]["lag"] is None
    assert [row["table"] for row in run("ls", "sales", "-o", "json").lines] == ["sales.orders"]
    text = run("ls").stdout
    assert "sales.orders" in text
    assert "lake_rows" in text


def test_ls_without_a_warehouse_fails(run):
    assert run("ls", code=1).stderr.startswith("WAREHOUSE_NOT_FOUND: ")


def test_describe_shows_partitions_and_properties(run, warehouse, orders):
    warehouse.table("sales.orders").append([{"order_id": i} for i in range(10)])
    found = run("describe", "sales.orders", "--output", "json").document
    assert found["table"] == "sales.orders"
    assert found["partition_by"] == ["day"]
    assert found["properties"] == {"bucket.key": "order_id", "bucket.num": "2"}
    assert [b["bucket"] for b in found["buckets"]] == [0, 1]
    assert (
        sum(b["log_end_offset"] - b["log_start_offset"] for b in found["buckets"])
        == found["rows"]
        == found["lag"]
        == 10
    )
    assert found["lake"]["enabled"] is True
    assert found["lake"]["location"].endswith("lake/sales/orders")
    text = run("describe", "sales.orders").stdout
    for part in ("order_id", "decimal(12,2)", "who", "bucket.key", "log_end_offset", "none yet"):
        assert part in text


def test_describe_shows_rounds_that_failed(run, warehouse, orders):
    table = warehouse.table("sales.orders")
    table.append([{"order_id": 1}])
    assert run("describe", "sales.orders", "--output", "json").document["failed_rounds"] == []
    hours_ago_ms = table.storage.now_ms() - 5 * 3_600_000
    error = StorageError("the store is away")
    failed = describe_failure("tiering", error, host="tierer-0", rows=1, now_ms=hours_ago_ms, duration_ms=70)
    record_failure(table.storage, table.uuid, failed)
    (found,) = run("describe", "sales.orders", "--output", "json").document["failed_rounds"]
    assert (found["error"], found["host"], found["over"]) == ("StorageError", "tierer-0", False)
    text = " ".join(run("describe", "sales.orders").stdout.split())
    assert "tiering failed last 5 h ago on tierer-0: STORAGE: the store is away; no service has retried since" in text


def test_describe_says_how_often_a_view_is_refreshed(run, warehouse):
    definition = ViewDefinition("SELECT 1 AS k", "full", 1500, ("k",), "bag", {}).to_text()
    view = warehouse.create_table("gold.v", "k INT NOT NULL", primary_key=["k"], properties={VIEW: definition})
    assert "refreshes       every 1.5 s" in run("describe", "gold.v").stdout
    pause_refreshes(view)
    assert "refreshes       paused" in run("describe", "gold.v").stdout
    assert run("describe", "gold.v", "-o", "json").document["view"]["paused"] is True


def test_describe_of_an_unknown_table_names_the_nearest(run, orders):
    failed = run("describe", "sales.ordres", code=1)
    assert failed.stderr == (
        f"TABLE_NOT_FOUND: table sales.ordres does not exist in {failed_url(failed)}; did you mean sales.orders?\n"
    )


def failed_url(failed) -> str:
    return failed.stderr.split(" in ")[1].split(";")[0]


def test_alter_sets_and_unsets_properties(run, warehouse, orders):
    run("alter", "sales.orders", "--set", "table.log.ttl=1d", "--set", "table.datalake.freshness=10s")
    assert warehouse.table("sales.orders").properties.log_ttl_ms == 86_400_000
    found = run("alter", "sales.orders", "--unset", "table.log.ttl", "-o", "json").lines
    assert {row["key"] for row in found} == {"bucket.key", "bucket.num", "table.datalake.freshness"}
    assert run("alter", "sales.orders", "--set", "bucket.num=3", code=1).stderr.startswith("INVALID_OPTION: ")
    assert "found no change" in run("alter", "sales.orders", code=2).stderr


def test_alter_needs_keys_and_values(run, orders):
    assert "expected KEY=VALUE" in run("alter", "sales.orders", "--set", "table.log.ttl", code=2).stderr


def test_drop_asks_and_can_be_told(run, warehouse, orders):
    warehouse.table("sales.orders").append([{"order_id": 1}])
    assert "would drop sales.orders with 1 row (" in run("drop", "sales.orders", "--dry-run").stdout
    refused = run("drop", "sales.orders", stdin="n\n", code=1)
    assert "drop sales.orders with 1 row (" in refused.stderr
    run("drop", "sales.orders", code=1)  # nobody answers
    assert warehouse.exists("sales.orders")
    run("drop", "sales.orders", stdin="y\n")
    assert not warehouse.exists("sales.orders")


def test_drop_with_yes_and_if_exists(run, warehouse, orders):
    assert run("drop", "sales.orders", "--yes", "-o", "json").document["dropped"] is True
    assert run("drop", "sales.orders", "--yes", code=1).stderr.startswith("TABLE_NOT_FOUND: ")
    assert run("drop", "sales.orders", "--if-exists", "-o", "json").document["dropped"] is False


def test_undrop_restores_a_listed_dropped_table(run, warehouse, orders):
    warehouse.table("sales.orders").append([{"order_id": 1}])
    assert run("ls", "--dropped", "-o", "json").lines == []
    uuid = warehouse.table("sales.orders").uuid
    run("drop", "sales.orders", "--yes")
    (listed,) = run("ls", "sales", "--dropped", "-o", "json").lines
    assert (listed["table"], listed["uuid"], listed["rows"]) == ("sales.orders", uuid, 1)
    assert run("ls", "other", "--dropped", "-o", "json").stdout == ""
    assert "restored sales.orders with 1 row\n" in run("undrop", "sales.orders").stdout
    assert run("undrop", "sales.orders", code=1).stderr.startswith("TABLE_EXISTS: ")
    run("drop", "sales.orders", "--yes")
    again = ("undrop", "sales.orders", "--uuid", uuid, "--to", "sales.old", "-o", "json")
    assert run(*again).document == {"table": "sales.old", "uuid": uuid, "rows": 1}
    assert run("undrop", "sales.orders", code=1).stderr.startswith("TABLE_NOT_FOUND: ")


def test_suffixed_names_are_read_only(run, orders):
    assert run("drop", "sales.orders$lake", "--yes", code=1).stderr.startswith("INVALID_NAME: ")
    assert run("alter", "sales.orders$lake", "--set", "table.log.ttl=1d", code=1).stderr.startswith("INVALID_NAME: ")


def test_alter_adds_and_comments_columns(run, warehouse, orders):
    found = run(
        "alter", "sales.orders", "--add-column", "note STRING COMMENT 'a, b'", "--add-column", "`x y` INT",
        "--comment", "note=why = because", "--set", "comment=orders", "-o", "json",
    ).document  # fmt: skip
    assert [c["name"] for c in found["columns"]][-2:] == ["note", "x y"]
    assert found["columns"][-2]["comment"] == "why = because"
    assert found["properties"]["comment"] == "orders"
    assert "altered sales.orders (" in run("alter", "sales.orders", "--add-column", "z DATE").stdout
    assert run("alter", "sales.orders", "--add-column", "z DATE", code=1).stderr.startswith("SCHEMA_MISMATCH: ")
    assert run("alter", "sales.orders", "--comment", "nope=x", code=1).stderr.startswith("SCHEMA_MISMATCH: ")


def test_alter_changes_fields_inside_columns(run, warehouse):
    warehouse.create_table("sales.nested", "id INT, s STRUCT<a: INT, b: STRING>, r ARRAY<STRUCT<x: INT>>")
    found = run(
        "alter", "sales.nested", "--add-column", "s.c INT", "--rename-column", "s.a=d", "--drop-column", "s.b",
        "--widen-column", "r.element.x=bigint", "-o", "json",
    ).document  # fmt: skip
    assert [c["type"] for c in found["columns"]] == ["int", "struct<d:int,c:int>", "array<struct<x:bigint>>"]
    refused = run("alter", "sales.nested", "--drop-column", "s.nope", code=1).stderr
    assert refused.startswith("SCHEMA_MISMATCH: field 's.nope' does not exist")


def test_alter_sets_and_drops_defaults(run, warehouse, orders):
    table = warehouse.table("sales.orders")
    found = run(
        "alter", "sales.orders", "--default", "customer='a = b'", "--add-column", "n INT DEFAULT 5", "-o", "json"
    ).document  # fmt: skip
    assert [c.get("default") for c in found["columns"]] == [None, "a = b", None, None, 5]
    table.append([{"order_id": 1}])
    assert "'a = b'" in run("describe", "sales.orders").stdout
    run("alter", "sales.orders", "--default", "customer=NULL", "--default", "m=6", "--rename-column", "n=m")
    assert table.refresh().schema.columns[1].default is None
    table.append([{"order_id": 2}])
    found = table.to_arrow(columns=["order_id", "customer", "m"]).sort_by("order_id").to_pylist()
    assert [tuple(row.values()) for row in found] == [(1, "a = b", 5), (2, None, 6)]
    failed = run("alter", "sales.orders", "--default", "m=rand()", code=1)
    assert failed.stderr.startswith("SCHEMA_MISMATCH: column 'm': DEFAULT rand() is not a constant")


def test_alter_columns_that_are_there(run, warehouse, orders):
    table = warehouse.table("sales.orders")
    table.append([{"order_id": 1, "customer": "ann", "amount": 1}])
    found = run(
        "alter", "sales.orders", "--rename-column", "customer=amount", "--rename-column", "amount=customer",
        "--widen-column", "amount=decimal(20,2)", "--add-column", "`a, b` INT", "-o", "json",
    ).document  # fmt: skip
    assert [c["name"] for c in found["columns"]] == ["order_id", "amount", "customer", "day", "a, b"]
    run("alter", "sales.orders", "--drop-column", "a, b", "--drop-column", "customer")
    table.refresh()
    assert table.state.schema.ddl() == "order_id BIGINT NOT NULL, amount STRING COMMENT 'who', day DATE"
    assert table.to_arrow(columns=["amount"])["amount"].to_pylist() == ["ann"]
    for option in ("--rename-column=nope=x", "--widen-column=amount=int", "--drop-column=nope"):
        assert run("alter", "sales.orders", option, code=1).stderr.startswith("SCHEMA_MISMATCH: ")


def test_rename_moves_a_table_to_another_name(run, warehouse, orders):
    assert "renamed sales.orders to sales.sold" in run("rename", "sales.orders", "sales.sold").stdout
    assert "was renamed to sales.sold" in run("describe", "sales.orders", code=1).stderr
    assert run("rename", "sales.sold", "sales.orders", "-o", "json").document["table"] == "sales.orders"
    assert run("rename", "sales.orders", "nope.orders", code=1).stderr.startswith("DATABASE_NOT_FOUND: ")
    assert run("rename", "sales.orders", "sales.orders$lake", code=1).stderr.startswith("INVALID_NAME: ")


def test_truncate_asks_and_can_be_told(run, warehouse, orders):
    table = warehouse.table("sales.orders")
    table.append([{"order_id": 1}])
    dry_run = run("truncate", "sales.orders", "--dry-run").stdout
    assert "would remove all of sales.orders: 1 row, 0 of them in the lake" in dry_run
    refused = run("truncate", "sales.orders", stdin="n\n", code=1)
    assert "remove all of sales.orders: 1 row" in refused.stderr
    run("truncate", "sales.orders", code=1)  # nobody answers
    assert table.to_arrow().num_rows == 1
    run("truncate", "sales.orders", stdin="y\n")
    assert table.to_arrow().num_rows == 0
    assert run("truncate", "sales.orders", "--yes", "-o", "json").document["truncated"] is True
    (listed,) = run("ls", "-o", "json").lines
    assert (listed["rows"], listed["lake_rows"], listed["lag"]) == (0, 0, 0)
    assert run("truncate", "sales.orders$lake", "--yes", code=1).stderr.startswith("INVALID_NAME: ")


def test_describe_shows_the_costs_of_a_table(run, warehouse, orders):
    warehouse.table("sales.orders").append([{"order_id": 1}])
    found = run("describe", "sales.orders", "--costs", "-o", "json").document
    assert found["workload"]["buckets"] == 2
    assert found["estimate"]["total_usd"] > 0
    text = run("describe", "sales.orders", "--costs").stdout
    for part in ("commits", "PUT, LIST", "per month", "Amazon S3 Standard"):
        assert part in text
    free = [f"--price={name}=0" for name in ("puts_usd_per_1000", "gets_usd_per_1000", "stored_usd_per_gib_month")]
    assert run("describe", "sales.orders", "--costs", *free, "-o", "json").document["estimate"]["total_usd"] == 0


def test_costs_of_all_tables(run, warehouse, orders):
    warehouse.table("sales.orders").append([{"order_id": 1}])
    quiet = warehouse.create_table("other.quiet", "id INT")
    found = run("costs", "-o", "json").document
    assert sorted(found["tables"]) == ["other.quiet", "sales.orders"]
    assert found["estimate"]["total_usd"] > found["tables"]["sales.orders"]["estimate"]["total_usd"] > 0
    assert list(run("costs", "other", "--price=gets_usd_per_1000=0", "-o", "json").document["tables"]) == [quiet.name]
    lines = run("costs").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["sales.orders", "other.quiet", "total", "prices:"]
    quiet.storage.put(commit_key(quiet.uuid, 1), b"damaged")
    failed = run("costs", "-o", "json", code=1)
    assert list(failed.document["tables"]) == ["sales.orders"]
    assert "other.quiet is not in the estimate: CORRUPT_DATA" in failed.stderr


def test_prices_that_cannot_be(run, orders):
    assert (
        "--price requires --costs" in run("describe", "sales.orders", "--price", "gets_usd_per_1000=1", code=2).stderr
    )
    for wrong in ("gets_usd_per_1000=x", "gets_usd_per_1000=-1", "gets=1"):
        assert "price" in run("describe", "sales.orders", "--costs", "--price", wrong, code=1).stderr


def test_describe_shows_the_location_of_the_log(run, warehouse, tmp_path):
    place = tmp_path / "fast"
    run("create", "apart", "--schema", "id INT", "-p", f"table.log.location={place}")
    warehouse.table("apart").append([{"id": 1}])
    uuid = warehouse.table("apart").uuid
    assert run("describe", "apart", "--output", "json").document["log"] == f"{place}/tables/{uuid}"
    assert run("verify", "apart", "--output", "json").document["problems"] == []
    (place / "tables" / uuid / "owner.json").unlink()
    found = run("verify", "apart", "--output", "json", code=1).document["problems"]
    assert len(found) == 1
    assert "owner.json is missing" in found[0]
