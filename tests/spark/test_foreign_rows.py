"""UPDATE, DELETE and MERGE of rows that have no offset: those of an adopted lake, and of files that others rewrote."""

from __future__ import annotations

import itertools

import duckdb
import pyarrow as pa
import pytest
from duckdb_extensions import import_extension

from spark.dml import found, merge_into, rows
from streamhouse_spark import Warehouse
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.spark import tier

pytestmark = [pytest.mark.spark]

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("n", pa.int32())])
NUMBERS = itertools.count()


@pytest.fixture
def adopted(spark, wh: Warehouse):
    """A table of an Iceberg table with ten rows in two files: ``(i, 'n<i>', i)``."""
    spark.sql("CREATE DATABASE IF NOT EXISTS streamhouse.foreign_rows")
    name = f"foreign_rows.t{next(NUMBERS)}"
    made = FileCatalog(wh.storage).create_table(name, SCHEMA, properties={"format-version": "2"})
    for numbers in (range(5), range(5, 10)):
        made.append(pa.Table.from_pylist([{"id": i, "name": f"n{i}", "n": i} for i in numbers], SCHEMA))
    wh.adopt_table(name)
    return name


def in_lake(wh: Warehouse, name: str) -> dict[int, tuple]:
    found = FileCatalog(wh.storage).load_table(name).scan().to_arrow().to_pylist()
    return {row["id"]: (row["name"], row["n"]) for row in found}


def test_statements_before_and_behind_a_round(spark, wh: Warehouse, adopted):
    name, table = f"streamhouse.{adopted}", wh.table(adopted)
    spark.sql(f"INSERT INTO {name} VALUES (10, 'n10', 10), (11, 'n11', 11)")
    statements = [
        (f"UPDATE {name} SET n = n * 10 + id, name = upper(name) WHERE id >= 8", 4),
        (f"DELETE FROM {name} WHERE upper(name) = 'N3' OR id % 5 = 0", 4),
        (
            merge_into(
                name,
                "(1, 'a', 5), (2, 'b', 0), (20, 'd', 1)",
                """WHEN MATCHED AND s.n = 0 THEN DELETE
                   WHEN MATCHED THEN UPDATE SET n = t.n + s.n
                   WHEN NOT MATCHED THEN INSERT *
                   WHEN NOT MATCHED BY SOURCE AND t.id = 7 THEN UPDATE SET name = 'old'""",
            ),
            3,
        ),
    ]
    for sql, changed in statements:
        version = table.refresh().version
        spark.sql(sql)
        assert table.refresh().version == version + 1, sql
        assert table.inspect.history().to_pylist()[-1]["rows_deleted"] == changed, sql
    expected = {
        1: ("n1", 6),
        4: ("n4", 4),
        6: ("n6", 6),
        7: ("old", 7),
        8: ("N8", 88),
        9: ("N9", 99),
        11: ("N11", 121),
        20: ("d", 1),
    }
    assert rows(spark, name) == expected
    assert found(spark, f"SELECT count(*), min(id), max(n) FROM {name}") == [(8, 1, 121)]
    assert found(spark, f"SELECT id FROM {name} WHERE n = 4") == [(4,)]
    assert sorted(in_lake(wh, adopted)) == list(range(10)), "the lake follows in the next round"
    tier(spark, wh.url, [adopted])
    assert rows(spark, name) == in_lake(wh, adopted) == expected
    assert found(spark, f"SELECT count(*) FROM {name}") == [(8,)]
    import_extension("avro")
    import_extension("iceberg")
    duck = duckdb.connect()
    duck.load_extension("avro")
    duck.load_extension("iceberg")
    location = f"{wh.url}/{table.state.lake_location}"
    there = duck.execute(f"SELECT id, name, n FROM iceberg_scan('{location}')").fetchall()
    assert {i: tuple(row) for i, *row in there} == expected
    spark.sql(f"UPDATE {name} SET n = 0 WHERE id IN (4, 11)")
    assert rows(spark, name) == {**expected, 4: ("n4", 0), 11: ("N11", 0)}


@pytest.mark.long
def test_another_engine_rewrites_the_files_before_the_round(spark, wh: Warehouse, adopted):
    name = f"streamhouse.{adopted}"
    spark.sql(f"UPDATE {name} SET n = 77 WHERE id + 0 IN (2, 7)")
    lake = FileCatalog(wh.storage).load_table(adopted)
    lake.overwrite(lake.scan().to_arrow())
    expected = {i: (f"n{i}", 77 if i in (2, 7) else i) for i in range(10)}
    assert rows(spark, name) == expected
    tier(spark, wh.url, [adopted])
    assert rows(spark, name) == in_lake(wh, adopted) == expected
    spark.sql(f"DELETE FROM {name} WHERE n + 0 < 5")
    assert sorted(rows(spark, name)) == [2, 5, 6, 7, 8, 9]


def test_names_of_rows(spark, adopted):
    found = spark.sql(f"SELECT _row_id, _bucket, _log_offset FROM streamhouse.{adopted}").collect()
    names = [row["_row_id"] for row in found]
    assert max(names) < -1
    assert len(set(names)) == 10, "a name is never null, and of one row"
