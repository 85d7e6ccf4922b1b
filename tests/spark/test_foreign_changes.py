"""CHANGES and rollback in SQL of rows that have no offset: those of an adopted lake, changed, deleted and dropped."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType
from pyspark.errors import PySparkException

from kit.change_replay import ADDS
from spark.dml import found, merge_into
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.spark import tier

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(spark_versions.spark_version() < (4, 2), reason="PySpark 4.1 has no CHANGES"),
]
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("region", pa.string()), ("n", pa.int32())])
ICEBERG = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "region", StringType()),
    NestedField(3, "n", IntegerType()),
)
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
ROUNDS = [[{"id": i, "region": ["eu", "us"][i % 2], "n": i} for i in numbers] for numbers in (range(6), range(6, 12))]
NUMBERS = itertools.count()


@dataclass
class Adopted:
    """A table of a lake table with twelve rows, ``(i, region, i)``, of two regions, in two files each."""

    name: str
    table: Table
    ids: Callable[[], list[int]]
    """Reads the lake's ids as another engine does."""

    @property
    def sql(self) -> str:
        return f"streamhouse.{self.name}"


def of_iceberg(wh: Warehouse, name: str, _folder: Path) -> Callable[[], list[int]]:
    catalog = FileCatalog(wh.storage)
    made = catalog.create_table(name, ICEBERG, partition_spec=BY_REGION, properties={"format-version": "2"})
    for rows in ROUNDS:
        made.append(pa.Table.from_pylist(rows, SCHEMA))
    return lambda: sorted(catalog.load_table(name).scan().to_arrow()["id"].to_pylist())


def of_paimon(wh: Warehouse, name: str, folder: Path) -> Callable[[], list[int]]:
    from interop.paimon_cases import Stock  # where pypaimon is left out, no case gets here

    stock = Stock(wh.storage, folder)
    stock.make(name, SCHEMA, *ROUNDS, partition_by=["region"])
    return lambda: sorted(row["id"] for row in stock.read(name))


@pytest.fixture(params=[pytest.param(of_iceberg, id="iceberg"), pytest.param(of_paimon, id="paimon")])
def adopted(request, spark, wh: Warehouse, tmp_path: Path) -> Adopted:
    spark.sql("CREATE DATABASE IF NOT EXISTS streamhouse.foreign_changes")
    name = f"foreign_changes.t{next(NUMBERS)}"
    ids = request.param(wh, name, tmp_path / "stock")
    wh.adopt_table(name)
    return Adopted(name, wh.table(name), ids)


def newest(adopted: Adopted) -> int:
    return adopted.table.refresh().version


def as_of(spark: Any, adopted: Adopted, version: int) -> Counter:
    return Counter(found(spark, f"SELECT id, region, n FROM {adopted.sql} VERSION AS OF {version}"))


def changes_of(spark: Any, adopted: Adopted, clause: str) -> list[tuple]:
    columns = "id, region, n, _change_type, _commit_version, _commit_timestamp"
    return found(spark, f"SELECT {columns} FROM {adopted.sql} CHANGES {clause}")


def replayed(rows: Counter, changes: list[tuple]) -> Counter:
    rows = Counter(rows)
    for *row, kind, _version, _time in changes:
        rows[tuple(row)] += ADDS[kind]
    assert min(rows.values()) >= 0
    return +rows


def streamed(spark: Any, adopted: Adopted, version: int, folder: Path) -> list[tuple]:
    """Run a stream of the changes behind a version once, and return what it has written until now."""
    options = {"startingVersion": version, "startingBoundInclusive": "false"}
    frame = spark.readStream.options(**options).changes(adopted.sql)
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start(str(folder / "rows")).awaitTermination()
    shown = spark.read.schema(frame.schema).parquet(str(folder / "rows"))
    return [tuple(row) for row in shown.select("id", "region", "n", *frame.schema.names[3:]).collect()]


def change(spark: Any, adopted: Adopted, wh: Warehouse) -> None:
    """Rows of the lake and of the log are changed, deleted and merged, before and behind rounds."""
    name = adopted.sql
    spark.sql(f"INSERT INTO {name} VALUES (12, 'eu', 12), (13, 'us', 13)")
    spark.sql(f"UPDATE {name} SET n = n + 100 WHERE id IN (1, 2, 12)")
    spark.sql(f"DELETE FROM {name} WHERE id IN (3, 4)")
    tier(spark, wh.url, [adopted.name])
    clauses = """WHEN MATCHED AND s.n = 0 THEN DELETE
                 WHEN MATCHED THEN UPDATE SET n = s.n
                 WHEN NOT MATCHED THEN INSERT *"""
    spark.sql(merge_into(name, "(5, 'us', 0), (6, 'eu', 66), (20, 'eu', 20)", clauses, columns="id, region, n"))


DROPS = {
    "drop": "ALTER TABLE {name} DROP PARTITION (region = 'eu')",
    "delete": "DELETE FROM {name} WHERE region = 'eu'",
    "overwrite": "INSERT OVERWRITE {name} PARTITION (region = 'eu') SELECT 30L, 30",
}
LEFT = [1, 7, 9, 11, 13]


def test_statements_and_a_dropped_partition_are_changes_without_offsets(spark, wh: Warehouse, adopted, tmp_path):
    start = newest(adopted)
    assert streamed(spark, adopted, start, tmp_path) == []
    change(spark, adopted, wh)
    middle = newest(adopted)
    assert len(streamed(spark, adopted, start, tmp_path)) == len(
        changes_of(spark, adopted, f"FROM VERSION {start} EXCLUSIVE")
    )
    spark.sql(DROPS["drop"].format(name=adopted.sql))
    dropped = newest(adopted)
    tier(spark, wh.url, [adopted.name])
    assert found(spark, f"SELECT id FROM {adopted.sql} ORDER BY id") == [(i,) for i in LEFT]
    assert adopted.ids() == LEFT
    every = changes_of(spark, adopted, f"FROM VERSION {start} EXCLUSIVE")
    assert sorted(streamed(spark, adopted, start, tmp_path)) == sorted(every), "the stream goes on where it ended"
    assert replayed(as_of(spark, adopted, start), every) == as_of(spark, adopted, newest(adopted))
    until = [one for one in every if one[4] <= middle]
    assert replayed(as_of(spark, adopted, start), until) == as_of(spark, adopted, middle)
    deleted = {one[0] for one in every if one[4] == dropped}
    assert deleted == {0, 2, 6, 8, 10, 12, 20}
    filtered = f"SELECT count(*) FROM {adopted.sql} CHANGES FROM VERSION {middle} EXCLUSIVE WHERE n > 50"
    assert found(spark, filtered) == [(3,)], "filters and columns are those of other changes"
    net = f"FROM VERSION {start} EXCLUSIVE WITH (deduplicationMode = 'netChanges')"
    if adopted.table.properties.datalake_format == "paimon":
        with pytest.raises(PySparkException, match="have no offsets and may have been added since version"):
            changes_of(spark, adopted, net)  # the round wrote files of rows that were deleted then
    else:
        assert replayed(as_of(spark, adopted, start), changes_of(spark, adopted, net)) == as_of(
            spark, adopted, newest(adopted)
        )


def test_a_rollback_restores_rows_without_offsets(spark, wh: Warehouse, adopted):
    start = newest(adopted)
    began = as_of(spark, adopted, start)
    change(spark, adopted, wh)
    spark.sql(DROPS["drop"].format(name=adopted.sql))
    tier(spark, wh.url, [adopted.name])
    before = newest(adopted)
    spark.sql(f"CALL streamhouse.system.rollback_to_version('{adopted.name}', {start})")
    assert as_of(spark, adopted, newest(adopted)) == began
    assert Counter(found(spark, f"SELECT id, region, n FROM {adopted.sql}")) == began
    back = changes_of(spark, adopted, f"FROM VERSION {before} EXCLUSIVE")
    assert replayed(as_of(spark, adopted, before), back) == began
    tier(spark, wh.url, [adopted.name])
    assert adopted.ids() == list(range(12))
    spark.sql(f"CALL streamhouse.system.rollback_to_version('{adopted.name}', {before})")
    assert found(spark, f"SELECT id FROM {adopted.sql} ORDER BY id") == [(i,) for i in LEFT]


@pytest.mark.parametrize("how", ["delete", "overwrite"])
def test_a_rollback_by_time_restores_a_replaced_partition(spark, wh: Warehouse, adopted, how):
    start = newest(adopted)
    began = as_of(spark, adopted, start)
    at = adopted.table.inspect.history().to_pylist()[-1]["timestamp"]
    adopted.table.world.clock.sleep_ms(5)
    spark.sql(DROPS[how].format(name=adopted.sql))
    tier(spark, wh.url, [adopted.name])
    every = changes_of(spark, adopted, f"FROM VERSION {start} EXCLUSIVE")
    assert {one[0] for one in every if one[3] == "delete"} == {0, 2, 4, 6, 8, 10}
    assert replayed(began, every) == as_of(spark, adopted, newest(adopted))
    text = f"TIMESTAMP '{at:%Y-%m-%d %H:%M:%S.%f}{at:%z}'"
    spark.sql(f"CALL streamhouse.system.rollback_to_timestamp('{adopted.name}', {text})")
    assert as_of(spark, adopted, newest(adopted)) == began
    tier(spark, wh.url, [adopted.name])
    assert adopted.ids() == list(range(12))


def test_a_truncation_is_told_and_undone(spark, adopted):
    start = newest(adopted)
    began = as_of(spark, adopted, start)
    spark.sql(f"TRUNCATE TABLE {adopted.sql}")
    every = changes_of(spark, adopted, f"FROM VERSION {start} EXCLUSIVE")
    assert {one[3] for one in every} == {"delete"}
    assert replayed(began, every) == as_of(spark, adopted, newest(adopted))
    spark.sql(f"CALL streamhouse.system.rollback_to_version('{adopted.name}', {start})")
    assert as_of(spark, adopted, newest(adopted)) == began
