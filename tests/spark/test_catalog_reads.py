"""Reads through the catalog: lake files by Spark's own reader, the log through Python, one answer."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from spark.session import COLUMNS, rows
from streamhouse_spark.spark import tier
from streamhouse_spark.write.auto_compaction import compact_inline_rows
from unit.datasource.scan.test_pushed_filters import SCHEMA, row

pytestmark = pytest.mark.spark
TABLE = "streamhouse.catalog_reads.typed"
LAKE = "streamhouse.catalog_reads.`typed$lake`"
FILTERS = [
    "f > 1e9",
    "f >= 1.5D",
    "f <> 1.5D",
    "not f < 1",
    "f = double('NaN')",
    "f = 0.0D",
    "g > 1",
    "f is null or g > 1",
    "i in (1, 2, null)",
    "i not in (1, 2)",
    "not (i = 1 or i is null)",
    "i <=> null",
    "i <=> 1 and b",
    "not b",
    "s like 'aé%'",
    "s like '%é'",
    "s > 'a' and s < 'z'",
    "s = ''",
    "x = X'61'",
    "x > X'FF'",
    "c = 1.50",
    "c > 1.505",
    "c between -1 and 1",
    "d = date'1970-01-02'",
    "d < date'1970-01-01' or n > 280",
    "t >= timestamp'1970-01-01 02:00:00Z'",
    "u < timestamp_ntz'1970-01-01 00:01:00'",
    "year(t) = 1970 and n % 7 = 3",
    "n + 1 > 299",
    "n in (3, 160, 299)",
    "cast(i as string) = '1'",
    "coalesce(i, 1) = 1",
    "true",
    "false",
]


@pytest.fixture(scope="module")
def typed(spark, wh, tmp_path_factory):
    """Rows 0 to 149 in the lake, the others in a segment and inline; the same rows as a view without us."""
    properties = {"bucket.num": "3", "bucket.key": "i", "table.statistics.columns": "*"}
    table = wh.create_table("catalog_reads.typed", SCHEMA, partition_by=["d"], properties=properties)
    table.append([row(i) for i in range(150)])
    tier(spark, wh.url, ["catalog_reads.typed"])
    table.refresh()
    table.append([row(i) for i in range(150, 250)])
    compact_inline_rows(table)
    table.append([row(i) for i in range(250, 300)])
    # Without statistics, which leave NaN out.
    path = str(tmp_path_factory.mktemp("reference") / "rows.parquet")
    pq.write_table(table.to_arrow(), path, write_statistics=False)
    spark.read.parquet(path).createOrReplaceTempView("typed_rows")
    return table


def answers(spark, query: str) -> list[str]:
    return sorted(str(found) for found in spark.sql(query).collect())


def test_rows_of_every_type_are_read_from_log_and_lake(spark, typed):
    assert answers(spark, f"select * from {TABLE}") == answers(spark, "select * from typed_rows")
    assert answers(spark, f"select * from {LAKE}") == answers(spark, "select * from typed_rows where n < 150")


@pytest.mark.parametrize(("name", "rows_of"), [(TABLE, "n < 300"), (LAKE, "n < 150")], ids=["union", "lake"])
def test_filters_mean_what_spark_means(spark, typed, name, rows_of):
    """All of them in one query, in which each scan has its own."""

    def matching(table: str) -> dict[int, set[int]]:
        parts = [f"select {i} as which, n from {table} where {rows_of} and ({w})" for i, w in enumerate(FILTERS)]
        found: dict[int, set[int]] = {i: set() for i in range(len(FILTERS))}
        for which, n in spark.sql(" union all ".join(parts)).collect():
            assert n not in found[which], (FILTERS[which], n)
            found[which].add(n)
        return found

    here, expected = matching(name), matching("typed_rows")
    assert {FILTERS[i]: n for i, n in here.items()} == {FILTERS[i]: n for i, n in expected.items()}


def test_hidden_columns_have_the_bucket_offset_and_time(spark, typed):
    found = spark.sql(f"select _bucket, _log_offset, _commit_timestamp, n from {TABLE}").collect()
    ends = typed.refresh().ends
    assert sorted((r[0], r[1]) for r in found) == [(b, o) for b in sorted(ends) for o in range(ends[b])]
    assert all((r[2] is None) == (r[3] < 150) for r in found)
    few = spark.sql(f"select n from {TABLE} where _bucket = 1 and _log_offset < 3").collect()
    assert len(few) == 3
    assert "_bucket" not in spark.table(TABLE).columns


def test_scans_of_one_query_have_their_own_filters(spark, typed):
    table = spark.table(TABLE)
    both = table.where("n = 1").union(table.where("n = 299"))
    assert sorted(r.n for r in both.collect()) == [1, 299]
    assert table.where("n < 10").count() == 10
    assert table.count() == 300


def test_aggregates_of_metadata_and_of_scans_agree(spark, typed):
    columns = "count(*), count(i), min(n), max(n), min(c), max(d), max(t), min(u), max(b), min(i)"
    assert answers(spark, f"select {columns} from {TABLE}") == answers(spark, f"select {columns} from typed_rows")
    floats = "max(f), min(f), max(g), max(s), min(x)"
    assert answers(spark, f"select {floats} from {TABLE}") == answers(spark, f"select {floats} from typed_rows")


@pytest.mark.always
def test_reads_travel_to_versions_times_and_snapshots(spark, wh):
    table = wh.create_table("catalog_reads.history", COLUMNS)
    table.append(rows(10))
    first = table.refresh().version
    tier(spark, wh.url, ["catalog_reads.history"])
    snapshot = table.refresh().lake.snapshot_id
    table.append(rows(5, 10))
    tier(spark, wh.url, ["catalog_reads.history"])
    name = "streamhouse.catalog_reads.history"

    def count(what: str) -> int:
        return len(spark.sql(f"select id from {what}").collect())

    assert count(name) == 15
    assert count(f"{name} version as of {first}") == 10
    assert count(f"streamhouse.catalog_reads.`history$lake` version as of {snapshot}") == 10
    assert count("streamhouse.catalog_reads.`history$lake` version as of '__streamhouse_lake_tiering'") == 15
    for wrong in (f"{name} version as of 999", "streamhouse.catalog_reads.`history$lake` version as of 'nothing'"):
        with pytest.raises(PySparkException, match=r"INVALID_OPTION|SNAPSHOT_EXPIRED"):
            count(wrong)


def test_options_bound_the_rows_of_a_query(spark, typed):
    ends = '{"0": 5, "1": 0, "2": 0}'
    assert spark.read.option("endingOffsets", ends).table(TABLE).count() == 5
    assert len(spark.read.option("endingOffsets", ends).table(TABLE).select("n").collect()) == 5
    with pytest.raises(PySparkException, match="_log_offset"):
        spark.read.option("includeMetadata", "true").table(TABLE).collect()
