"""A warehouse that was moved, in Spark: its own reader finds the lake's files, and tiering waits for relocating."""

from __future__ import annotations

import shutil

import pytest

from streamhouse_spark import Warehouse, WarehouseMovedError
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.spark import tier

pytestmark = pytest.mark.spark


def tiered(warehouse: Warehouse, lake: str) -> list[str]:
    names = [f"sales.log_{lake}", f"sales.keyed_{lake}"]
    properties = {"table.datalake.format": lake}
    log = warehouse.create_table(names[0], "id BIGINT, v STRING", properties=properties)
    keyed = warehouse.create_table(names[1], "id BIGINT, v STRING", primary_key=["id"], properties=properties)
    for write, first in ((log.append, 0), (keyed.upsert, 0), (log.append, 10), (keyed.upsert, 5)):
        write([{"id": n, "v": str(first)} for n in range(first, first + 10)])
        for table in (log, keyed):
            table.refresh()
            job = TieringJob(table.log, table.open_lake(), world=table.world)
            job.run(run_tasks_locally(table.storage, table.settings, table.world))
    log.append([{"id": 100, "v": "hot"}])
    keyed.upsert([{"id": 100, "v": "hot"}])
    return names


@pytest.mark.long
def test_it_is_read_where_it_lies(spark, tmp_path):
    made = Warehouse(str(tmp_path / "made"))
    names = [name for lake in ("iceberg", "paimon") for name in tiered(made, lake)]
    expected = {name: sorted(made.table(name).to_arrow()["id"].to_pylist()) for name in names}
    shutil.move(made.url, tmp_path / "here")
    url = str(tmp_path / "here")
    spark.conf.set("spark.sql.catalog.moved", spark.conf.get("spark.sql.catalog.streamhouse"))
    spark.conf.set("spark.sql.catalog.moved.warehouse", url)

    def require_all(hot: tuple[int, ...]) -> None:
        for name, ids in expected.items():
            found = spark.sql(f"SELECT id FROM moved.{name}").collect()
            assert sorted(row.id for row in found) == ids
            database, table = name.split(".")
            found = spark.sql(f"SELECT id FROM moved.{database}.`{table}$lake`").collect()
            assert sorted(row.id for row in found) == [i for i in ids if i not in hot]
            plain = spark.read.format("streamhouse").option("warehouse", url).load(name)
            assert sorted(row.id for row in plain.collect()) == ids

    require_all((100,))
    with pytest.raises(WarehouseMovedError):
        tier(spark, url, names[:1])
    written = {row.table: row.files_written for row in spark.sql("CALL moved.system.relocate()").collect()}
    assert set(written) == set(names)
    assert written["sales.log_iceberg"] > 0
    tier(spark, url)
    require_all(())
