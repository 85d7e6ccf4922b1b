"""Flink reads hot rows from a server, over a lake on S3. `make interop-servers` runs this."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count

import pytest

from interop.flink_cluster import Flink, FlinkError, running_flink
from interop.served_cases import (
    NAMES,
    QUESTIONS,
    block_with,
    every_answer_is_one_state,
    in_order,
    lake_files,
    make_tables,
    of_the_lake,
    order_rows,
    people_rows,
    right_answer,
    what_writes_change,
)
from kit.serving import served
from kit.tables import tier
from stores.servers import Server, minio
from streamhouse_spark import Warehouse
from streamhouse_spark.serve.acl import Access, Client, digest_of, parse_pattern
from streamhouse_spark.serve.options import ServeOptions

pytestmark = [pytest.mark.engines, pytest.mark.servers]

PAGE = "docs/guides/other-engines.md"
_numbers = count(1)


@pytest.fixture(scope="module")
def flink(tmp_path_factory) -> Iterator[Flink]:
    with running_flink(tmp_path_factory.mktemp("flink")) as found:
        yield found


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Iterator[Server]:
    with minio(tmp_path_factory.mktemp("minio")) as found:
        yield found


@pytest.fixture(scope="module")
def warehouse(store) -> Warehouse:
    made = Warehouse(store.new_url(), store.settings)
    make_tables(made)
    return made


@pytest.fixture(scope="module")
def url(warehouse) -> Iterator[str]:
    with served(warehouse) as found:
        yield found


def properties(url: str, store: Server) -> dict[str, str]:
    """Those of the guide, for this server and this store."""
    found = dict(re.findall(r"'(\S+)' = '(.*)'", block_with(PAGE, "sql", "CREATE CATALOG sh WITH")))
    of_the_store = {
        "uri": f"{url}/iceberg",
        "client.region": store.settings["s3.region"],
        **{key: store.settings[key] for key in ("s3.endpoint", "s3.access-key-id", "s3.secret-access-key")},
    }
    assert set(of_the_store) <= set(found)
    return {**found, **of_the_store}


def session(flink: Flink, its_properties: dict[str, str]) -> Flink:
    """A session of its own, in which a catalog of these properties is the current one."""
    found, name = Flink(flink.url), f"sh{next(_numbers)}"
    found.add_catalog(name, its_properties)
    found.query(f"USE CATALOG {name}")
    return found


@pytest.fixture(scope="module")
def sh(flink, url, store) -> Flink:
    """The catalog of fresh tables."""
    return session(flink, properties(url, store))


@pytest.fixture(scope="module")
def cold(flink, url, store) -> Flink:
    """The catalog of the lake alone."""
    return session(flink, {**properties(url, store), "warehouse": "lake"})


@pytest.mark.parametrize("sql", QUESTIONS, ids=range(len(QUESTIONS)))
def test_answers_are_those_of_the_table(warehouse, sh, sql):
    assert in_order(sh.query(sql)) == right_answer(warehouse, sql)


def test_the_lake_alone_is_a_catalog_of_its_own(warehouse, cold):
    for sql in (QUESTIONS[0], QUESTIONS[2], QUESTIONS[6], QUESTIONS[9], QUESTIONS[15]):
        assert in_order(cold.query(sql)) == right_answer(warehouse, sql, of_the_lake)


def test_the_next_query_has_what_was_written(warehouse, sh):
    orders, people = warehouse.table("sales.orders"), warehouse.table("sales.people")
    of_orders, of_people = QUESTIONS[0], QUESTIONS[6]
    for number in range(3):
        orders.append(order_rows(2_000 + number, 2_001 + number))
        assert in_order(sh.query(of_orders)) == right_answer(warehouse, of_orders)
        people.upsert(people_rows(200 + number, 202 + number, "d"))
        people.delete([{"id": 250 + number}])
        assert in_order(sh.query(of_people)) == right_answer(warehouse, of_people)


@pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
def test_older_states_are_those_of_the_lake(warehouse, sh, keyed):
    name = f"past_{keyed}".lower()
    table = warehouse.create_table(f"sales.{name}", "id BIGINT NOT NULL", primary_key=["id"] if keyed else [])
    write, expected = table.upsert if keyed else table.append, {}
    for number in range(3):
        write([{"id": 10 * number + i} for i in range(10)])
        if number:
            table.delete([{"id": number}]) if keyed else table.delete(where=[("id", "=", number)])
        tier(table)
        expected[table.refresh().lake.snapshot_id] = sorted(table.to_arrow()["id"].to_pylist())
    write([{"id": 100}])
    for snapshot, ids in expected.items():
        found = sh.query(f"SELECT id FROM sales.{name} /*+ OPTIONS('snapshot-id'='{snapshot}') */")
        assert sorted(row[0] for row in found) == ids
    assert sh.query(f"SELECT count(*) FROM sales.{name}") == [(table.to_arrow().num_rows,)]


def test_lists_of_tables_and_columns(warehouse, sh):
    assert ("sales",) in sh.query("SHOW DATABASES")
    assert set(NAMES) <= {row[0] for row in sh.query("SHOW TABLES FROM sales")}
    assert [row[0] for row in sh.query("DESCRIBE sales.people")] == ["id", "name", "balance"]
    snapshots = {row[0] for row in sh.query("SELECT snapshot_id FROM sales.`people$snapshots`")}
    assert warehouse.table("sales.people").refresh().lake.snapshot_id in snapshots


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO sales.young VALUES (1)",
        "INSERT OVERWRITE sales.young VALUES (1)",
        "DROP TABLE sales.young",
        "CREATE TABLE sales.other (a BIGINT)",
        "CREATE DATABASE other",
        "ALTER TABLE sales.young SET ('a' = 'b')",
    ],
)
@pytest.mark.parametrize("of", ["fresh", "lake"])
def test_writes_are_refused_with_the_way_to_write(warehouse, sh, cold, sql, of):
    before = what_writes_change(warehouse)
    if of == "lake":
        sql = sql.replace("young VALUES (1)", "people VALUES (1, 'x', 2.0)").replace("young", "people")
    files = set(lake_files(warehouse))
    with pytest.raises(FlinkError, match=r"this catalog is read-only.*POST /api/v1/tables"):
        (sh if of == "fresh" else cold).query(sql)
    assert what_writes_change(warehouse) == before
    assert files <= set(lake_files(warehouse))


def test_every_answer_is_one_state_while_rows_stream_in(flink, warehouse, url, store):
    def ask():
        return session(flink, properties(url, store)).query

    every_answer_is_one_state(warehouse, ask, readers=1)


def test_flink_reads_what_its_token_may_read(flink, warehouse, store):
    clients = {digest_of("token-of-flink"): Client("flink", readable=(parse_pattern("sales.people"),))}
    with served(warehouse, ServeOptions(access=lambda: Access(clients))) as url:
        own = session(flink, {**properties(url, store), "token": "token-of-flink"})
        assert in_order(own.query(QUESTIONS[6])) == right_answer(warehouse, QUESTIONS[6])
        with pytest.raises(FlinkError, match=r"(?i)may not|forbidden|right"):
            own.query(QUESTIONS[0])
