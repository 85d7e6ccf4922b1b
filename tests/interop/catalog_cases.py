"""Cases that must hold in any of pyiceberg's catalogs: each takes the settings of a catalog that is empty."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table as IcebergTable

from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import CommitConflictError, LakeMismatchError, Warehouse
from streamhouse_spark.lake.snapshot_properties import TABLE_UUID_PROPERTY
from streamhouse_spark.lake.tiering.job import TieringReport

PREFIX = "lake.iceberg.catalog."
Settings = Mapping[str, str]


def catalog_of(settings: Settings) -> Catalog:
    """The catalog as an engine opens it that knows nothing of us."""
    found = {name.removeprefix(PREFIX): value for name, value in settings.items() if name.startswith(PREFIX)}
    return load_catalog("lake", **found)  # SQL catalogs keep tables by the name of the catalog


def opened(directory: Path, settings: Settings) -> Warehouse:
    return Warehouse(str(directory / "wh"), settings)


def lake_table(settings: Settings, name: str = "sales.orders") -> IcebergTable:
    return catalog_of(settings).load_table(name)


def rows(first: int, num_rows: int = 3) -> list[dict]:
    return [{"id": i, "text": f"n{i}"} for i in range(first, first + num_rows)]


def a_log_table_lives(directory: Path, settings: Settings) -> None:
    """Rounds, columns that are added, compaction, expiry, orphans, a truncation, and the end."""
    table = opened(directory, settings).create_table("sales.orders", "id BIGINT, text STRING")
    for i in range(6):
        table.append(rows(3 * i))
        assert tier(table).rows == 3
    assert ids(lake_table(settings).scan().to_arrow()) == list(range(18)) == ids(table.lake.to_arrow())
    table.add_columns("note STRING")
    table.append([{"id": 18, "note": "x"}])
    assert ids(table.to_arrow()) == list(range(19))
    tier(table)
    assert lake_table(settings).scan().to_arrow().filter(pa.compute.field("id") == 18)["note"].to_pylist() == ["x"]
    assert table.lake.rewrite_manifests().added == 1
    assert table.lake.compact().files_removed >= 6
    expired = table.lake.expire_snapshots(retain_last=1, older_than_ms=table.storage.now_ms())
    assert len(expired.snapshots) == 8
    assert ids(lake_table(settings).scan().to_arrow()) == list(range(19)) == ids(table.to_arrow())
    assert table.lake.remove_orphan_files() == []
    table.append(rows(19, 1))
    tier(table)
    table.truncate()
    table.append(rows(100))
    tier(table)
    assert ids(lake_table(settings).scan().to_arrow()) == [100, 101, 102] == ids(table.to_arrow())
    opened(directory, settings).drop_table("sales.orders")
    assert lake_table(settings).scan().to_arrow().num_rows == 3, "a lake table in an outside catalog stays"


def a_keyed_table_lives(directory: Path, settings: Settings) -> None:
    warehouse = opened(directory, settings)
    table = warehouse.create_table("sales.orders", "id BIGINT, text STRING", primary_key=["id"], buckets=2)
    expected = {}
    for i in range(8):
        changed = rows(i, 6)
        table.upsert([{**row, "text": f"round {i}"} for row in changed])
        expected |= {row["id"]: f"round {i}" for row in changed}
        table.delete([i])
        del expected[i]
        tier(table)
        for found in (table.to_arrow(), table.lake.to_arrow(), lake_table(settings).scan().to_arrow()):
            assert dict(zip(*found.select(["id", "text"]).to_pydict().values(), strict=True)) == expected
    assert table.lake.compact().files_removed > 0
    table.lake.expire_snapshots(retain_last=1, older_than_ms=table.storage.now_ms())
    found = lake_table(settings).scan().to_arrow()
    assert dict(zip(*found.select(["id", "text"]).to_pydict().values(), strict=True)) == expected


def two_services_race(directory: Path, settings: Settings) -> None:
    """Each row lands once, whoever tiers it."""
    warehouse = opened(directory, settings)
    writer = warehouse.create_table("sales.orders", "id BIGINT, text STRING")
    writer.append(rows(0))
    tier(writer)
    failed: list[BaseException] = []
    reports: list[TieringReport] = []

    def serve() -> None:
        table = opened(directory, settings).table("sales.orders")
        try:
            reports.extend(tier(table) for _ in range(8))
        except CommitConflictError:
            pass  # the other won again and again
        except BaseException as error:  # noqa: BLE001 - told by the test
            failed.append(error)

    services = [threading.Thread(target=serve) for _ in range(2)]
    for service in services:
        service.start()
    for i in range(1, 13):
        writer.append(rows(3 * i))
    for service in services:
        service.join()
    assert not failed
    tier(writer)
    assert ids(lake_table(settings).scan().to_arrow()) == list(range(39)) == ids(writer.to_arrow())
    assert writer.lake.newest().offsets == {0: 39}


def an_iceberg_table_is_adopted(directory: Path, settings: Settings) -> None:
    catalog = catalog_of(settings)
    catalog.create_namespace_if_not_exists("legacy")
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    made = catalog.create_table("legacy.orders", schema, properties={"format-version": "2"})
    made.append(pa.Table.from_pylist(rows(0), schema=schema))
    warehouse = opened(directory, settings)
    report = warehouse.adopt_table("sales.orders", "legacy.orders")
    assert (report.rows, report.snapshot_id) == (3, made.refresh().snapshots()[0].snapshot_id)
    table = warehouse.table("sales.orders")
    table.append(rows(3))
    assert ids(table.to_arrow()) == list(range(6))
    tier(table)
    assert ids(lake_table(settings, "legacy.orders").scan().to_arrow()) == list(range(6)) == ids(table.to_arrow())
    with pytest.raises(LakeMismatchError, match=r"is the lake of table sales\.orders"):
        warehouse.adopt_table("sales.second", "legacy.orders")
    assert lake_table(settings, "legacy.orders").properties[TABLE_UUID_PROPERTY] == table.uuid


Case = Callable[[Path, Settings], None]
CASES: tuple[Case, ...] = (a_log_table_lives, a_keyed_table_lives, two_services_race, an_iceberg_table_is_adopted)
