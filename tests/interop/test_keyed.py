"""DuckDB, polars and pyiceberg alone read the current rows of tables with a primary key, knowing nothing of us."""

from __future__ import annotations

import random

import duckdb
import polars as pl
import pytest
from pyiceberg.table import StaticTable

from faults.share import few_of
from faults.sim import sim_world
from interop.histories import SHAPES, history
from interop.keyed_cases import KeyedTable, live_deletes, rows_of
from kit.duck import connect_duckdb
from streamhouse_spark.storage.local import LocalStorage


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    connection = connect_duckdb()
    # A test that passed leaves no files, and the next one's have the same names.
    connection.execute("SET enable_external_file_cache = false")
    return connection


@pytest.mark.parametrize(
    "before_images", [True, pytest.param(False, marks=pytest.mark.long)], ids=["full image", "wal image"]
)
@pytest.mark.parametrize("shape", few_of(SHAPES, 1))
def test_every_reader_sees_the_current_rows(duck, tmp_path, shape, before_images):
    schema, options = SHAPES[shape]
    storage = LocalStorage(str(tmp_path / "wh"), fsync=False)
    table = KeyedTable(storage, sim_world(), schema, before_images=before_images, **options)
    path = str(tmp_path / "wh/lake/d/t")
    rng = random.Random(f"{shape} {before_images}")
    for number, _ in enumerate(history(table, rng, rounds=8, keys=40)):
        if number == 5:
            assert table.lake().compact().files_removed
            table.lake().expire(keep_last=1, keep_ms=-60_000)
        agree(duck, path, table)
    assert live_deletes(table.lake())


def test_other_engines_read_a_keyed_lake_without_rows(duck, tmp_path):
    """A first round whose changes take each other away, and rows that all go."""
    table = KeyedTable(LocalStorage(str(tmp_path / "wh"), fsync=False), sim_world())
    path = str(tmp_path / "wh/lake/d/t")
    table.change([(1, "x", 0)])
    table.change([], [(1,)])
    table.tier()
    agree(duck, path, table)
    table.change([(i, "x", 0) for i in range(5)])
    table.tier()
    table.change([], list(table.rows))
    table.tier()
    agree(duck, path, table)
    table.lake().compact()
    agree(duck, path, table)


def agree(duck: duckdb.DuckDBPyConnection, path: str, table: KeyedTable) -> None:
    expected, names = table.expected(), table.state.schema
    assert table.lake_rows() == expected
    assert rows_of(StaticTable.from_metadata(path).scan().to_arrow(), names) == expected
    found = duck.execute(f"SELECT * FROM iceberg_scan('{path}')").arrow().read_all()
    assert rows_of(found, names) == expected
    metadata = StaticTable.from_metadata(path).metadata_location
    assert rows_of(pl.scan_iceberg(metadata, reader_override="native").collect().to_arrow(), names) == expected
    counted = duck.execute(f"SELECT count(*), count(DISTINCT id) FROM iceberg_scan('{path}') WHERE n = 0").fetchone()
    assert counted[0] == len(expected)


def test_larger_files_and_more_deletes_than_a_page(duck, tmp_path):
    """Several row groups and pages, and positions all over them."""
    storage = LocalStorage(str(tmp_path / "wh"), fsync=False)
    table = KeyedTable(storage, sim_world())
    path = str(tmp_path / "wh/lake/d/t")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamhouse_spark.lake.parquet.file_writer.ROW_GROUP_ROWS_MAX", 10_000)
        table.change([(i, f"name-{i}", 0) for i in range(60_000)])
        table.tier()
        for step in (7, 11):
            table.change([(i, "again", 0) for i in range(0, 60_000, step)])
            table.change([], [(i,) for i in range(1, 60_000, step) if (i,) in table.rows])
            table.tier()
            agree(duck, path, table)
        table.lake().compact()
        agree(duck, path, table)
