"""UPDATE, DELETE and MERGE of rows of a Paimon lake that have no offset: those of an adopted append table."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from interop.paimon_cases import Stock
from spark.dml import found, merge_into, rows
from spark.session import drain, load_stream, sink
from streamhouse_spark import Warehouse
from streamhouse_spark.spark import tier

pytestmark = [pytest.mark.spark, pytest.mark.paimon]

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("n", pa.int32())])
NUMBERS = itertools.count()


@pytest.fixture
def seen(wh: Warehouse, tmp_path: Path) -> Stock:
    return Stock(wh.storage, tmp_path)


BUCKETS = {"bucket": "2", "bucket_key": "id"}


@pytest.fixture(params=[pytest.param({}, id="plain"), pytest.param(BUCKETS, id="buckets", marks=pytest.mark.long)])
def adopted(request, spark, wh: Warehouse, seen: Stock):
    """A table of a Paimon table with ten rows in two snapshots: ``(i, 'n<i>', i)``."""
    spark.sql("CREATE DATABASE IF NOT EXISTS streamhouse.paimon_rows")
    name = f"paimon_rows.t{next(NUMBERS)}"
    rounds = [[{"id": i, "name": f"n{i}", "n": i} for i in numbers] for numbers in (range(5), range(5, 10))]
    seen.make(name, SCHEMA, *rounds, **request.param)
    wh.adopt_table(name)
    return name


def in_lake(seen: Stock, name: str) -> dict[int, tuple]:
    return {one["id"]: (one["name"], one["n"]) for one in seen.read(name)}


def test_statements_before_and_behind_a_round(spark, wh: Warehouse, seen: Stock, adopted):
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
    assert sorted(in_lake(seen, adopted)) == list(range(10)), "the lake follows in the next round"
    tier(spark, wh.url, [adopted])
    assert rows(spark, name) == in_lake(seen, adopted) == expected
    assert found(spark, f"SELECT count(*) FROM {name}") == [(8,)]
    spark.sql(f"UPDATE {name} SET n = 0 WHERE id IN (4, 11)")
    assert rows(spark, name) == {**expected, 4: ("n4", 0), 11: ("N11", 0)}


def test_another_engine_rewrites_the_files_before_the_round(spark, wh: Warehouse, seen: Stock, adopted):
    name = f"streamhouse.{adopted}"
    spark.sql(f"UPDATE {name} SET n = 77 WHERE id + 0 IN (2, 7)")
    seen.overwrite(adopted, seen.read(adopted))
    expected = {i: (f"n{i}", 77 if i in (2, 7) else i) for i in range(10)}
    assert rows(spark, name) == expected
    tier(spark, wh.url, [adopted])
    assert rows(spark, name) == in_lake(seen, adopted) == expected
    spark.sql(f"DELETE FROM {name} WHERE n + 0 < 5")
    assert sorted(rows(spark, name)) == [2, 5, 6, 7, 8, 9]


def test_names_of_rows(spark, adopted):
    read = spark.sql(f"SELECT _row_id, _bucket, _log_offset FROM streamhouse.{adopted}").collect()
    names = [row["_row_id"] for row in read]
    assert max(names) < -1
    assert len(set(names)) == 10, "a name is never null, and of one row"


def test_a_stream_that_may_have_read_them_fails_or_goes_on(spark, wh: Warehouse, adopted, checkpoint):
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
