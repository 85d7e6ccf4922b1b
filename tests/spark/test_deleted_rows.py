"""Rows of a table without a primary key that were deleted by a filter, as Spark and other engines read the table."""

from __future__ import annotations

import duckdb
import pytest
from duckdb_extensions import import_extension
from pyspark.errors import PySparkException

from spark.session import COLUMNS, drain, ids, load, load_stream, rows, sink
from streamhouse_spark.spark import tier

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("lake", ["iceberg", "paimon"])
def test_every_read_leaves_them_out(spark, wh, lake):
    name, properties = f"read_{lake}", {"bucket.key": "id", "table.datalake.format": lake}
    table = wh.create_table(f"deleted.{name}", COLUMNS, buckets=2, properties=properties)
    table.append(rows(100))
    kept = [n for n in range(100) if n % 10 and n < 95]

    def sql(text: str) -> list[tuple]:
        return [tuple(row) for row in spark.sql(text.format(f"streamhouse.deleted.{name}")).collect()]

    def require(found: list[int]) -> None:
        assert sorted(row.id for row in load(spark, wh, table.name).collect()) == found
        assert sorted(sql("SELECT id FROM {}")) == [(n,) for n in found]
        assert sql("SELECT count(*), min(id), max(id), count(id) FROM {}") == [
            (len(found), min(found), max(found), len(found))
        ]
        assert sql("SELECT count(*) FROM {} WHERE id < 30") == [(sum(n < 30 for n in found),)]

    table.delete(where=[("id", ">=", 95)])
    table.delete(where=[("id", "in", list(range(0, 100, 10)))])
    require(kept)
    tier(spark, wh.url, [table.name])
    require(kept)
    table.delete(where=[("id", "in", [1, 94])])
    kept = kept[1:-1]
    require(kept)
    tier(spark, wh.url, [table.name])
    require(kept)
    assert spark.sql(f"SELECT count(*) FROM streamhouse.deleted.`{name}$lake`").collect()[0][0] == len(kept)
    if lake == "paimon":
        return
    import_extension("avro")
    import_extension("iceberg")
    duck = duckdb.connect()
    duck.load_extension("avro")
    duck.load_extension("iceberg")
    location = f"{wh.url}/{table.state.lake_location}"
    assert duck.execute(f"SELECT id FROM iceberg_scan('{location}') ORDER BY id").fetchall() == [(n,) for n in kept]


def test_a_stream_fails_or_goes_on(spark, wh, checkpoint):
    table = wh.create_table("deleted.streamed", COLUMNS)
    copied = wh.create_table("deleted.copied", COLUMNS)
    table.append(rows(10))
    drain(load_stream(spark, wh, table.name), wh, copied.name, checkpoint)
    table.delete(where=[("id", "=", 3)])
    table.append(rows(5, 10))
    text = r"OFFSETS_TRIMMED: commit \d+ deleted rows of deleted.streamed.*skipChangeCommits=true"
    with pytest.raises(PySparkException, match=text):
        sink(load_stream(spark, wh, table.name), wh, copied.name, checkpoint).awaitTermination()
    drain(load_stream(spark, wh, table.name, skipChangeCommits="true"), wh, copied.name, checkpoint)
    assert ids(copied) == list(range(15))
