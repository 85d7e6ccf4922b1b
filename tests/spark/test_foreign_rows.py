"""UPDATE, DELETE and MERGE of rows that have no offset: those of an adopted lake, and of files that others rewrote."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from duckdb_extensions import import_extension
from pyspark.errors import PySparkException

from interop.paimon_cases import Stock
from spark.dml import found, merge_into, rows
from spark.session import drain, load_stream, sink
from streamhouse_spark import Warehouse
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.spark import tier

pytestmark = [pytest.mark.spark]

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("n", pa.int32())])
NUMBERS = itertools.count()


class IcebergLake:
    """The lake tables of a warehouse as pyiceberg makes, reads and writes them."""

    format = "iceberg"

    def __init__(self, wh: Warehouse, folder: Path) -> None:
        self._catalog = FileCatalog(wh.storage)

    def make(self, name: str, *rounds: list[dict[str, Any]]) -> None:
        table = self._catalog.create_table(name, SCHEMA, properties={"format-version": "2"})
        for appended in rounds:
            table.append(pa.Table.from_pylist(appended, SCHEMA))

    def rewrite(self, name: str) -> None:
        table = self._catalog.load_table(name)
        table.overwrite(table.scan().to_arrow())

    def rows(self, name: str) -> dict[int, tuple]:
        read = self._catalog.load_table(name).scan().to_arrow().to_pylist()
        return {row["id"]: (row["name"], row["n"]) for row in read}


class PaimonLake:
    """The same as pypaimon does."""

    format = "paimon"

    def __init__(self, wh: Warehouse, folder: Path, **options: str) -> None:
        self._stock, self._options = Stock(wh.storage, folder), options

    def make(self, name: str, *rounds: list[dict[str, Any]]) -> None:
        self._stock.make(name, SCHEMA, *rounds, **self._options)

    def rewrite(self, name: str) -> None:
        self._stock.overwrite(name, self._stock.read(name))

    def rows(self, name: str) -> dict[int, tuple]:
        return {row["id"]: (row["name"], row["n"]) for row in self._stock.read(name)}


PAIMON = [
    pytest.param(PaimonLake, id="paimon"),
    pytest.param(partial(PaimonLake, bucket="2", bucket_key="id"), id="paimon buckets", marks=pytest.mark.long),
]
only_paimon = pytest.mark.parametrize("lake", PAIMON, indirect=True)


@pytest.fixture(params=[pytest.param(IcebergLake, id="iceberg"), *PAIMON])
def lake(request, wh: Warehouse, tmp_path: Path):
    return request.param(wh, tmp_path)


@pytest.fixture
def adopted(spark, wh: Warehouse, lake):
    """A table of a lake table with ten rows in two snapshots: ``(i, 'n<i>', i)``."""
    spark.sql("CREATE DATABASE IF NOT EXISTS streamhouse.foreign_rows")
    name = f"foreign_rows.t{next(NUMBERS)}"
    lake.make(name, *([{"id": i, "name": f"n{i}", "n": i} for i in numbers] for numbers in (range(5), range(5, 10))))
    wh.adopt_table(name)
    return name


def duckdb_rows(location: str) -> dict[int, tuple]:
    duck = duckdb.connect()
    for extension in ("avro", "iceberg"):
        import_extension(extension)
        duck.load_extension(extension)
    read = duck.execute(f"SELECT id, name, n FROM iceberg_scan('{location}')").fetchall()
    return {i: tuple(row) for i, *row in read}


def test_statements_change_adopted_rows_before_and_after_a_round(spark, wh: Warehouse, lake, adopted):
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
    assert sorted(lake.rows(adopted)) == list(range(10)), "the lake follows in the next round"
    tier(spark, wh.url, [adopted])
    assert rows(spark, name) == lake.rows(adopted) == expected
    assert found(spark, f"SELECT count(*) FROM {name}") == [(8,)]
    if lake.format == "iceberg":
        assert duckdb_rows(f"{wh.url}/{table.state.lake_location}") == expected
    spark.sql(f"UPDATE {name} SET n = 0 WHERE id IN (4, 11)")
    assert rows(spark, name) == {**expected, 4: ("n4", 0), 11: ("N11", 0)}


def test_changed_rows_survive_a_rewrite_by_another_engine(spark, wh: Warehouse, lake, adopted):
    name = f"streamhouse.{adopted}"
    spark.sql(f"UPDATE {name} SET n = 77 WHERE id + 0 IN (2, 7)")
    lake.rewrite(adopted)
    expected = {i: (f"n{i}", 77 if i in (2, 7) else i) for i in range(10)}
    assert rows(spark, name) == expected
    tier(spark, wh.url, [adopted])
    assert rows(spark, name) == lake.rows(adopted) == expected
    spark.sql(f"DELETE FROM {name} WHERE n + 0 < 5")
    assert sorted(rows(spark, name)) == [2, 5, 6, 7, 8, 9]


def test_each_row_without_an_offset_has_its_own_row_id(spark, adopted):
    read = spark.sql(f"SELECT _row_id, _bucket, _log_offset FROM streamhouse.{adopted}").collect()
    row_ids = [row["_row_id"] for row in read]
    assert max(row_ids) < -1
    assert len(set(row_ids)) == 10, "never null"


@only_paimon
def test_a_stream_that_may_have_read_deleted_rows_fails_or_skips_them(spark, wh: Warehouse, adopted, checkpoint):
    table, copied = wh.table(adopted), wh.create_table(f"{adopted}_copied", SCHEMA)
    table.append([{"id": 20, "name": "a", "n": 1}])
    earliest = {"startingOffsets": "earliest"}
    drain(load_stream(spark, wh, adopted, **earliest), wh, copied.name, checkpoint)
    spark.sql(f"DELETE FROM streamhouse.{adopted} WHERE id = 1")
    table.append([{"id": 21, "name": "b", "n": 1}])
    with pytest.raises(PySparkException, match=r"OFFSETS_TRIMMED: commit \d+ deleted rows.*skipChangeCommits=true"):
        sink(load_stream(spark, wh, adopted, **earliest), wh, copied.name, checkpoint).awaitTermination()
    drain(load_stream(spark, wh, adopted, skipChangeCommits="true", **earliest), wh, copied.name, checkpoint)
    assert sorted(copied.to_arrow()["id"].to_pylist()) == [20, 21]
