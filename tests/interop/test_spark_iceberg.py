"""Iceberg's own Java library, in Spark, reads the lake right, knowing nothing of us. `make interop` runs this.

Our lake tables are those of a Hadoop catalog whose warehouse is the folder of the lake.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from interop.histories import HISTORIES, Written
from interop.own_jvm import session_with_iceberg

METADATA_TABLES = ("snapshots", "files", "position_deletes", "history", "manifests", "partitions", "entries", "refs")

pytestmark = [
    pytest.mark.engines,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # PySpark 4.1 leaves them
]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with session_with_iceberg() as session:
        yield session


@pytest.mark.parametrize("name", HISTORIES)
def test_spark_reads_the_current_rows(spark, tmp_path, name):
    catalog = hadoop_catalog(spark, tmp_path)
    steps = 0
    for written in HISTORIES[name](tmp_path):
        table = f"{catalog}.{written.name}"
        for vectorized in (True, False):
            spark.conf.set("spark.sql.iceberg.vectorization.enabled", str(vectorized).lower())
            assert rows_in_types_of(written.rows.schema, spark.table(table).toArrow()) == expected(written.rows)
        steps += 1
    assert steps
    require_found(spark, table, written)
    require_metadata(spark, table, written)


def hadoop_catalog(spark: Any, root: Path) -> str:
    """A catalog of this test alone; its name in SQL."""
    name = f"lake_{root.name.replace('-', '_')}"
    spark.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
    for key, value in {"type": "hadoop", "warehouse": str(root / "wh/lake"), "cache-enabled": "false"}.items():
        spark.conf.set(f"spark.sql.catalog.{name}.{key}", value)
    return name


def require_found(spark: Any, table: str, written: Written) -> None:
    """Filters find all rows of a value: bounds and partition values hide none."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    rows = spark.table(table)
    for name in written.filters:
        column = F.col(f"`{name}`")
        for value, number in written.counts(name).items():
            text = value.isoformat() if isinstance(value, dt.datetime) else value  # else in this process's own zone
            where = column.isNull() if value is None else column == F.lit(text).cast(rows.schema[name].dataType)
            assert rows.where(where).count() == number, (name, value)


def require_metadata(spark: Any, table: str, written: Written) -> None:
    """The metadata tables say what pyiceberg's say. Deleted rows beside their positions we do not write."""
    found = {name: spark.table(f"{table}.{name}").drop("row").toArrow() for name in METADATA_TABLES}
    alone = StaticTable.from_metadata(str(written.folder)).inspect
    ids = alone.snapshots()["snapshot_id"].to_pylist()
    assert found["snapshots"]["snapshot_id"].to_pylist() == ids == found["history"]["snapshot_id"].to_pylist()
    assert sorted(found["files"]["file_path"].to_pylist()) == sorted(alone.files()["file_path"].to_pylist())
    assert found["position_deletes"].num_rows == written.num_deletes
    assert found["position_deletes"].num_rows == sum(
        count
        for count, content in zip(*(found["files"][c].to_pylist() for c in ("record_count", "content")), strict=True)
        if content == 1
    )


def rows_in_types_of(schema: pa.Schema, found: pa.Table) -> list[dict[str, Any]]:
    assert found.column_names == schema.names
    columns = [pa.array(column.to_pylist(), field.type) for column, field in zip(found.columns, schema, strict=True)]
    return expected(pa.Table.from_arrays(columns, schema=schema))


def expected(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=repr)


def test_both_ways_of_reading_are_meant(spark, tmp_path):
    """With vectorization Spark gets columns and turns them into rows; without, it gets rows."""
    catalog = hadoop_catalog(spark, tmp_path)
    for written in HISTORIES["keyed, every type"](tmp_path):
        scalars = spark.table(f"{catalog}.{written.name}").select("id", "a_string")
    for vectorized in (True, False):
        spark.conf.set("spark.sql.iceberg.vectorization.enabled", str(vectorized).lower())
        plan = scalars.select("id")._jdf.queryExecution().executedPlan().toString()
        assert ("ColumnarToRow" in plan) is vectorized, plan


def test_older_snapshots_are_read_as_they_were(spark, tmp_path):
    catalog = hadoop_catalog(spark, tmp_path)
    then = {}
    for written in HISTORIES["keyed, every type"](tmp_path):
        then[StaticTable.from_metadata(str(written.folder)).metadata.current_snapshot_id] = written
    assert len(then) == 4
    for snapshot, written in then.items():
        found = spark.sql(f"SELECT * FROM {catalog}.{written.name} VERSION AS OF {snapshot}").toArrow()
        assert rows_in_types_of(written.rows.schema, found) == expected(written.rows)
