"""After relocating, DuckDB and pyiceberg open the tables where they lie, with the deletes of all snapshots."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pytest
from pyiceberg.table import StaticTable

from kit.duck import connect_duckdb
from streamhouse_spark import Table, Warehouse, relocate
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.lake.parquet.reader import has_whole_footer
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.storage.local import LocalStorage

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    return connect_duckdb()


def tier(table: Table) -> None:
    table.refresh()
    job = TieringJob(table.log, table.open_lake(), world=table.world)
    job.run(run_tasks_locally(table.storage, table.settings, table.world))


@pytest.mark.parametrize("copy", [False, True])
def test_deleted_rows_stay_deleted_for_other_engines(duck, tmp_path, copy):
    made = Warehouse(str(tmp_path / "made"))
    table = made.create_table("sales.items", "k BIGINT, v STRING", primary_key=["k"], buckets=2)
    table.upsert([{"k": n, "v": "old"} for n in range(40)])
    tier(table)
    table.upsert([{"k": n, "v": "new"} for n in range(0, 40, 3)])
    table.delete([{"k": 39}, {"k": 38}])
    tier(table)
    wanted = sorted((k, "new" if k % 3 == 0 else "old") for k in range(38))
    first, second = table.lake.snapshots()["snapshot_id"].to_pylist()
    if copy:
        shutil.copytree(made.url, tmp_path / "here")
        relocate(str(tmp_path / "here"), copy=True)
        Path(made.url).rename(tmp_path / "hidden")
    else:
        shutil.move(made.url, tmp_path / "here")
        relocate(str(tmp_path / "here"))
    path = str(tmp_path / "here/lake/sales/items")
    found = duck.execute(f"SELECT k, v FROM iceberg_scan('{path}')").fetchall()
    assert sorted(found) == wanted
    then = duck.execute(f"SELECT k, v FROM iceberg_scan('{path}', snapshot_from_id => {first})").fetchall()
    assert sorted(then) == [(k, "old") for k in range(40)]
    moved = [path for path in (tmp_path / "here").rglob("*-deletes-*.parquet") if len(path.stem.split("-")) == 4]
    assert len(moved) > 1, "deletes are written anew under another name, with a checksum of their own"
    files = StorageFiles(LocalStorage(str(tmp_path / "here")))
    assert all(has_whole_footer(files, str(path)) for path in moved)
    assert all(path.read_bytes().count(b"streamhouse.footer-xxh3") == 1 for path in moved)
    opened = StaticTable.from_metadata(path)
    for snapshot, expected in ((first, [(k, "old") for k in range(40)]), (second, wanted)):
        read = opened.scan(snapshot_id=snapshot).to_arrow()
        assert sorted(zip(read["k"].to_pylist(), read["v"].to_pylist(), strict=True)) == expected
