"""Trino reads hot rows from a server, over a lake on S3. `make interop-servers` runs this."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

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
from interop.trino_server import Trino, TrinoError, running_trino
from kit.serving import served
from kit.tables import tier
from storage.s3_roles import ALL_OF_STS_AND_S3, document, guarded_s3
from stores.servers import Server, minio
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.serve.acl import Access, Client, digest_of, parse_pattern
from streamhouse_spark.serve.options import ServeOptions, VendOptions

pytestmark = [pytest.mark.engines, pytest.mark.servers]

PAGE = "docs/guides/other-engines.md"
_numbers = count(1)


@pytest.fixture(scope="module")
def trino(tmp_path_factory) -> Iterator[Trino]:
    with running_trino(tmp_path_factory.mktemp("trino")) as found:
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


def properties(url: str, store: Server, **more: str) -> dict[str, str]:
    """Those of the guide, for this server and this store."""
    lines = block_with(PAGE, "properties", "connector.name=").splitlines()
    found = dict(line.split("=", 1) for line in lines)
    of_the_store = {
        "iceberg.rest-catalog.uri": f"{url}/iceberg",
        "s3.region": store.settings["s3.region"],
        "s3.endpoint": store.settings["s3.endpoint"],
        "s3.aws-access-key": store.settings["s3.access-key-id"],
        "s3.aws-secret-key": store.settings["s3.secret-access-key"],
    }
    assert set(of_the_store) <= set(found)
    return {**found, **of_the_store, **{key.replace("__", "."): value for key, value in more.items()}}


def added(trino: Trino, its_properties: dict[str, str]) -> str:
    name = f"sh{next(_numbers)}"
    trino.add_catalog(name, its_properties)
    return name


@pytest.fixture(scope="module")
def sh(trino, url, store) -> str:
    """The catalog of fresh tables."""
    return added(trino, properties(url, store))


@pytest.fixture(scope="module")
def cold(trino, url, store) -> str:
    """The catalog of the lake alone."""
    return added(trino, {**properties(url, store), "iceberg.rest-catalog.warehouse": "lake"})


@pytest.mark.parametrize("sql", QUESTIONS, ids=range(len(QUESTIONS)))
def test_answers_are_those_of_the_table(trino, warehouse, sh, sql):
    assert in_order(trino.query(sql, sh)) == right_answer(warehouse, sql)


def test_the_lake_alone_is_a_catalog_of_its_own(trino, warehouse, cold):
    for sql in (one for one in QUESTIONS if "young" not in one):
        assert in_order(trino.query(sql, cold)) == right_answer(warehouse, sql, of_the_lake)
    with pytest.raises(TrinoError, match=r"no lake table yet|does not exist"):
        trino.query("SELECT count(*) FROM sales.young", cold)


def test_the_next_query_has_what_was_written(trino, warehouse, sh):
    orders, people = warehouse.table("sales.orders"), warehouse.table("sales.people")
    of_orders, of_people = QUESTIONS[0], QUESTIONS[6]
    for number in range(3):
        orders.append(order_rows(2_000 + number, 2_001 + number))
        assert in_order(trino.query(of_orders, sh)) == right_answer(warehouse, of_orders)
        people.upsert(people_rows(200 + number, 202 + number, "d"))
        people.delete([{"id": 250 + number}])
        assert in_order(trino.query(of_people, sh)) == right_answer(warehouse, of_people)


@pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
def test_older_states_are_those_of_the_lake(trino, warehouse, sh, keyed):
    """Each snapshot by its id, and the lake's by time, while the newest one has hot rows."""
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
        found = trino.query(f"SELECT id FROM sales.{name} FOR VERSION AS OF {snapshot}", sh)
        assert sorted(row[0] for row in found) == ids
    assert trino.query(f"SELECT count(*) FROM sales.{name}", sh) == [(table.to_arrow().num_rows,)]
    with pytest.raises(TrinoError, match=r"(?i)snapshot"):
        trino.query(f"SELECT count(*) FROM sales.{name} FOR VERSION AS OF BIGINT '1'", sh)


def test_metadata_tables_of_trino_count_served_rows(trino, warehouse, sh):
    found = {name: trino.query(f'SELECT * FROM sales."people${name}"', sh) for name in ("history", "refs", "manifests")}
    assert all(found.values())
    count_of = 'SELECT sum(CASE content WHEN 0 THEN record_count ELSE -record_count END) FROM sales."{}$files"'
    for name in ("people", "orders"):
        rows = warehouse.table(f"sales.{name}").to_arrow().num_rows
        assert trino.query(count_of.format(name), sh) == [(rows,)]
    snapshots = trino.query('SELECT snapshot_id FROM sales."people$snapshots" ORDER BY committed_at', sh)
    assert warehouse.table("sales.people").refresh().lake.snapshot_id in {row[0] for row in snapshots[:-1]}
    assert trino.query('SELECT count(DISTINCT partition.region) FROM sales."orders$partitions"', sh) == [(3,)]
    assert "region" in trino.query("SHOW CREATE TABLE sales.orders", sh)[0][0]
    assert trino.query("SHOW STATS FOR sales.people", sh)
    uuid = warehouse.table("sales.people").uuid
    properties_of = trino.query('SELECT key, value FROM sales."people$properties"', sh)
    assert uuid in dict(properties_of).values()


def test_lists_of_tables_and_columns(trino, warehouse, sh):
    """Also where a table of the database is none that an Iceberg catalog can show."""
    assert ("sales",) in trino.query("SHOW SCHEMAS", sh)
    listed = {row[0] for row in trino.query("SHOW TABLES FROM sales", sh)}
    assert set(NAMES) <= listed
    columns = trino.query(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'sales'", sh
    )
    assert {name for name, _ in columns} >= set(NAMES)
    assert ("evolved", "extra") in columns
    assert [row[0] for row in trino.query("DESCRIBE sales.people", sh)] == ["id", "name", "balance"]
    with pytest.raises(TrinoError, match=r"lake, expected iceberg"):
        trino.query("SELECT * FROM sales.of_paimon", sh)
    with pytest.raises(TrinoError, match=r"does not exist"):
        trino.query("SELECT * FROM sales.absent", sh)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO sales.young VALUES (1)",
        "DELETE FROM sales.people WHERE id = 1",
        "UPDATE sales.people SET name = 'x' WHERE id = 1",
        "TRUNCATE TABLE sales.young",
        "DROP TABLE sales.young",
        "CREATE TABLE sales.other (a BIGINT)",
        "CREATE SCHEMA other",
        "DROP SCHEMA sales CASCADE",
        "ALTER TABLE sales.young ADD COLUMN b BIGINT",
        "ALTER TABLE sales.young RENAME TO sales.old",
        "COMMENT ON TABLE sales.young IS 'x'",
        "ALTER TABLE sales.people EXECUTE optimize",
        "ANALYZE sales.people",
    ],
)
@pytest.mark.parametrize("of", ["fresh", "lake"])
def test_writes_are_refused_with_the_way_to_write(trino, warehouse, sh, cold, sql, of):
    """Trino leaves files of refused writes in the lake's folder, where its credentials let it write there."""
    before = what_writes_change(warehouse)
    if of == "lake":
        sql = sql.replace("young VALUES (1)", "people VALUES (1, 'x', 2)").replace("young", "people")
    files = set(lake_files(warehouse))
    with pytest.raises(TrinoError, match=r"this catalog is read-only.*POST /api/v1/tables"):
        trino.query(sql, sh if of == "fresh" else cold)
    assert what_writes_change(warehouse) == before
    assert files <= set(lake_files(warehouse))


def test_every_answer_is_one_state_while_rows_stream_in(trino, warehouse, sh):
    every_answer_is_one_state(warehouse, lambda: lambda sql: trino.query(sql, sh), readers=2)


def test_trino_reads_columns_of_every_type(trino, warehouse, sh):
    columns = (
        "id BIGINT, yes BOOLEAN, small INT, real FLOAT, price DECIMAL(9,2), word STRING, raw BINARY, day DATE, "
        "at TIMESTAMP, local TIMESTAMP_NTZ, tags ARRAY<STRING>, pairs MAP<STRING, INT>, "
        "nested STRUCT<x: INT, y: STRING>"
    )
    table = warehouse.create_table("sales.types", columns)
    asked = (
        "SELECT id, yes, small, real, CAST(price AS varchar), word, to_hex(raw), CAST(day AS varchar), "
        "CAST(at AT TIME ZONE 'UTC' AS varchar), CAST(local AS varchar), array_join(tags, '|', '-'), "
        "CAST(map_keys(pairs) AS JSON), nested.x, nested.y FROM sales.types ORDER BY id"
    )
    assert trino.query(asked, sh) == []
    rows = [_row_of_every_type(number) for number in range(4)]
    table.append(rows[:2])
    tier(table)
    table.append(rows[2:])
    found = trino.query(asked, sh)
    expected = (True, 7, 0.5, "1234.50", "ü", "00FF", "2026-02-03", "2026-02-03 04:05:06.789012 UTC")
    assert [row[1:9] for row in found] == [expected] * 3 + [(None,) * 8]
    assert found[2][9:] == ("2026-02-03 04:05:06.789012", "a|-|b", '["k"]', 5, "in")


def _row_of_every_type(number: int) -> dict[str, object]:
    import datetime as dt
    import decimal

    if number == 3:
        return {"id": 3}
    at = dt.datetime(2026, 2, 3, 4, 5, 6, 789012)
    return {
        "id": number,
        "yes": True,
        "small": 7,
        "real": 0.5,
        "price": decimal.Decimal("1234.50"),
        "word": "ü",
        "raw": b"\x00\xff",
        "day": at.date(),
        "at": at.replace(tzinfo=dt.UTC),
        "local": at,
        "tags": ["a", None, "b"],
        "pairs": [("k", 1)],
        "nested": {"x": 5, "y": "in"},
    }


def test_trino_reads_what_its_token_may_read(trino, warehouse, store):
    clients = {digest_of("token-of-trino"): Client("trino", readable=(parse_pattern("sales.people"),))}
    with served(warehouse, ServeOptions(access=lambda: Access(clients))) as url:
        its_token = {
            "iceberg.rest-catalog.security": "OAUTH2",
            "iceberg.rest-catalog.oauth2.token": "token-of-trino",
        }
        own = added(trino, {**properties(url, store), **its_token})
        assert in_order(trino.query(QUESTIONS[6], own)) == right_answer(warehouse, QUESTIONS[6])
        assert trino.query("SHOW TABLES FROM sales", own) == [("people",)]
        with pytest.raises(TrinoError, match=r"(?i)may not|forbidden|right"):
            trino.query(QUESTIONS[0], own)
        wrong = added(trino, {**properties(url, store), **its_token, "iceberg.rest-catalog.oauth2.token": "another"})
        with pytest.raises(TrinoError, match=r"(?i)token|authorized|unauthorized"):
            trino.query(QUESTIONS[6], wrong)


def test_credentials_that_the_server_gives(trino):
    """A catalog without keys of its own, over a store that enforces policies."""
    with guarded_s3() as guarded:
        settings = guarded.user("server", document(ALL_OF_STS_AND_S3))
        guarded.client("s3", settings).create_bucket(Bucket="shop")
        warehouse = Warehouse("s3://shop/team/wh", settings)
        make_tables(warehouse)
        role = guarded.role("readers", document([{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]))
        at = {"s3.endpoint": settings["s3.endpoint"], "s3.region": "us-east-1", "s3.path-style-access": "true"}
        with served(warehouse, ServeOptions(client_config=at, vend=VendOptions(role))) as url:
            vended = {
                "connector.name": "iceberg",
                "iceberg.catalog.type": "rest",
                "iceberg.rest-catalog.uri": f"{url}/iceberg",
                "iceberg.rest-catalog.vended-credentials-enabled": "true",
                "fs.native-s3.enabled": "true",
                **at,
            }
            fresh = added(trino, vended)
            cold = added(trino, {**vended, "iceberg.rest-catalog.warehouse": "lake"})
            for sql in (QUESTIONS[0], QUESTIONS[6], QUESTIONS[9]):
                assert in_order(trino.query(sql, fresh)) == right_answer(warehouse, sql)
                assert in_order(trino.query(sql, cold)) == right_answer(warehouse, sql, of_the_lake)
            without = added(trino, {**vended, "iceberg.rest-catalog.vended-credentials-enabled": "false"})
            with pytest.raises(TrinoError):
                trino.query(QUESTIONS[0], without)


def test_what_trino_cleans_is_no_file_of_ours(trino, warehouse, sh, cold):
    """`remove_orphan_files` commits nothing, so no catalog can refuse it."""
    people: Table = warehouse.table("sales.people")
    before = people.to_arrow().sort_by("id"), lake_files(warehouse)
    for of in (sh, cold):
        trino.query("ALTER TABLE sales.people EXECUTE remove_orphan_files(retention_threshold => '7d')", of)
        assert in_order(trino.query(QUESTIONS[6], of))
    assert (people.to_arrow().sort_by("id"), lake_files(warehouse)) == before
