"""Spark's own Parquet reader reads files with deleted rows, and leaves out exactly these."""

from __future__ import annotations

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark.differential.compare import configured
from spark.dml import found
from streamhouse_spark.spark import tier

pytestmark = [pytest.mark.spark, pytest.mark.spark41]

NUM_ROWS = 20_000
DDL = """id BIGINT, i INT, s SMALLINT, b TINYINT, flag BOOLEAN, f FLOAT, d DOUBLE, name STRING, data BINARY, day DATE,
    at TIMESTAMP, local TIMESTAMP_NTZ, small DECIMAL(9, 2), middle DECIMAL(15, 2), large DECIMAL(30, 4),
    words ARRAY<STRING>, counts MAP<STRING, INT>, part STRUCT<a: INT, b: STRUCT<c: STRING>>"""


def row(n: int) -> dict:
    values = {
        "i": -n,
        "s": n % 30_000,
        "b": n % 100,
        "flag": n % 3 == 0,
        "f": n / 4,
        "d": n / 3,
        "name": f"n{n}",
        "data": bytes([n % 256]),
        "day": dt.date(2026, 1, 1) + dt.timedelta(days=n % 99),
        "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=n),
        "local": dt.datetime(2026, 1, 1) + dt.timedelta(seconds=n),
        "small": decimal.Decimal(n) / 100,
        "middle": decimal.Decimal(n * 10**7) / 100,
        "large": decimal.Decimal(n) * 10**12,
        "words": [f"w{n}", None],
        "counts": [(f"k{n}", n)],
        "part": {"a": n, "b": {"c": f"c{n}"}},
    }
    return {"id": n, **{name: None if n % 7 == 6 else value for name, value in values.items()}}


def is_deleted(n: int) -> bool:
    """Some of a batch of the reader, a third of one, whole batches, and none of others."""
    if 13_000 <= n < 14_500:
        return n % 3 == 1
    return n % 13 == 5 or 5_000 <= n < 13_000 if n < 16_000 else n == 19_999


@pytest.fixture(scope="module")
def table(spark, wh):
    """Twenty thousand rows in one file of the lake, of which some were deleted in two statements. Of the table
    ``pending`` the lake lacks those of the first one alone, of ``marked`` none.
    """
    rows, gone = [row(n) for n in range(NUM_ROWS)], [n for n in range(NUM_ROWS) if is_deleted(n)]
    for name, num_rounds in (("marked", 0), ("pending", 1), ("t", 2)):
        table = wh.create_table(f"positions.{name}", DDL)
        table.append(pa.Table.from_pylist(rows, schema=table.schema))
        tier(spark, wh.url, [table.name])
        for number in range(2):
            table.delete(where=[("id", "in", gone[number::2])])
            if number < num_rounds:
                tier(spark, wh.url, [table.name])
    return table


def kept(start: int = 0, end: int = NUM_ROWS) -> list[int]:
    return [n for n in range(start, end) if not is_deleted(n)]


NAMES = tuple(f"streamhouse.positions.{name}" for name in ("t", "`t$lake`", "pending", "marked"))


@pytest.mark.parametrize("name", NAMES)
def test_values_of_every_type_survive_deletions_of_other_rows(spark, table, name):
    rows = spark.table(name).toArrow().sort_by("id")
    expected = pa.Table.from_pylist([row(n) for n in kept()], schema=table.schema)
    assert rows["id"].to_pylist() == kept()
    for column in expected.column_names:
        values = rows[column].to_pylist()
        assert values == expected[column].to_pylist() or column == "counts", column
    assert [dict(v) if v else v for v in rows["counts"].to_pylist()] == [
        dict(v) if v else v for v in expected["counts"].to_pylist()
    ]


@pytest.mark.parametrize("name", NAMES)
def test_filters_that_skip_pages(spark, table, name):
    for start, end in [(0, 10), (4_990, 5_010), (12_990, 13_010), (6_000, 7_000), (15_999, 16_001), (19_990, 20_000)]:
        where = f"id >= {start} AND id < {end}"
        assert sorted(r[0] for r in found(spark, f"SELECT id FROM {name} WHERE {where}")) == kept(start, end)
        counted = found(spark, f"SELECT count(*), count(part.b.c), sum(size(words)) FROM {name} WHERE {where}")
        values = [n for n in kept(start, end) if n % 7 != 6]
        assert counted == [(len(kept(start, end)), len(values), 2 * len(values) if values else None)]


@pytest.mark.parametrize("name", NAMES)
def test_rows_alone_are_counted_and_limited(spark, table, name):
    assert found(spark, f"SELECT count(*) FROM {name}") == [(len(kept()),)]
    assert len(found(spark, f"SELECT * FROM {name} LIMIT 15000")) == len(kept())
    assert len(found(spark, f"SELECT id FROM {name} LIMIT 30")) == 30
    assert found(spark, f"SELECT max(id), min(i) FROM {name}") == [(19_998, -19_997)]  # 19,998 has nulls


@pytest.mark.parametrize("name", NAMES)
def test_without_batches_python_reads_them(spark, table, name):
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", "false")
    try:
        assert sorted(r[0] for r in found(spark, f"SELECT id FROM {name}")) == kept()
    finally:
        spark.conf.unset("spark.sql.parquet.enableVectorizedReader")


@pytest.mark.parametrize("setting", ["spark.sql.codegen.maxFields", "spark.sql.codegen.wholeStage"])
def test_where_stages_are_not_compiled_all_parts_are_read_as_columns(spark, wh, setting):
    """As those of more than a hundred columns: Spark's reader would give rows of all files but those with deletions."""
    table = wh.create_table(f"positions.{setting.rpartition('.')[2]}", "id BIGINT, part INT", partition_by=["part"])
    table.append([{"id": n, "part": n % 2} for n in range(10)])
    tier(spark, wh.url, [table.name])
    table.delete(where=[("id", "in", [0, 4])])
    tier(spark, wh.url, [table.name])
    table.append([{"id": 10, "part": 2}])
    with configured(spark, {setting: "1" if setting.endswith("maxFields") else "false"}):
        rows = found(spark, f"SELECT id, part FROM streamhouse.{table.name}")
        assert sorted(rows) == [(n, n % 2) for n in range(10) if n not in (0, 4)] + [(10, 2)]


def test_pages_and_row_groups_that_a_filter_skips(spark, wh):
    """More than a row group, in pages of which a filter by a sorted column wants few."""
    num_rows = 1_300_000
    table = wh.create_table("positions.paged", "id BIGINT, n BIGINT")
    numbers = np.arange(num_rows)
    table.append(pa.table({"id": numbers, "n": numbers * 3}, schema=table.schema))
    tier(spark, wh.url, [table.name])
    deleted = (numbers % 1_000 == 7) | ((numbers >= 300_000) & (numbers < 310_000)) | (numbers == 1_048_576)
    table.delete(where=[("id", "in", numbers[deleted].tolist())])
    tier(spark, wh.url, [table.name])
    [file] = [task.file for task in table.open_lake().binding.load().scan().plan_files()]
    metadata = pq.ParquetFile(file.file_path.removeprefix("file://")).metadata
    assert metadata.num_row_groups > 1
    assert metadata.row_group(0).column(0).has_offset_index
    kept = numbers[~deleted]
    for start, end in [(0, 10), (299_990, 310_010), (700_000, 700_500), (1_048_500, 1_048_600), (5, 1_299_999)]:
        wanted = kept[(kept >= start) & (kept < end)]
        where = f"id >= {start} AND id < {end}"
        query = f"SELECT count(*), min(id), max(id), sum(n) FROM streamhouse.positions.paged WHERE {where}"
        expected = (len(wanted), int(wanted.min()), int(wanted.max()), int(wanted.sum()) * 3)
        assert found(spark, query) == [expected]
    few = "SELECT id FROM streamhouse.positions.paged WHERE id IN (6, 7, 8, 305000, 400000, 1048576, 1299999)"
    assert sorted(r[0] for r in found(spark, few)) == [6, 8, 400_000, 1_299_999]


def test_spark_skips_replaced_rows_of_a_keyed_table(spark, wh):
    """Its lake has deleted positions wherever rows were replaced."""
    table = wh.create_table("positions.keyed", "id BIGINT, n INT", primary_key=["id"], buckets=2)
    table.upsert([{"id": n, "n": n} for n in range(5_000)])
    tier(spark, wh.url, [table.name])
    table.upsert([{"id": n, "n": -n} for n in range(0, 5_000, 5)])
    table.delete([(n,) for n in range(3, 5_000, 7)])
    tier(spark, wh.url, [table.name])
    expected = {n: n if n % 5 else -n for n in range(5_000) if n % 7 != 3}
    for name in ("streamhouse.positions.`keyed$lake`", "streamhouse.positions.keyed"):
        assert dict(found(spark, f"SELECT id, n FROM {name}")) == expected
        assert found(spark, f"SELECT sum(n) FROM {name} WHERE n < 0") == [(sum(n for n in expected.values() if n < 0),)]
