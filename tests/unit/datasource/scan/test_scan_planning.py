"""Which manifests a filtered query needs, on every way to the lake: the others may be gone."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow.compute as pc
import pytest

from streamhouse_spark import SnapshotExpiredError, Table, Warehouse
from streamhouse_spark.warehouse.process_cache import Connection
from unit.datasource.scan.scans import Scans, tier

DAYS = [dt.date(2026, 1, day) for day in (1, 2, 3)]
FORMATS = pytest.mark.parametrize("lake_format", ["iceberg", "paimon"])
KEYS = pytest.mark.parametrize("key", [(), ("day", "id")], ids=["log", "keyed"])


def new_table(path: Path, lake_format: str, key: tuple[str, ...]) -> Table:
    return Warehouse(str(path)).create_table(
        "sales.t",
        "day DATE NOT NULL, id INT NOT NULL, text STRING",
        partition_by=["day"],
        primary_key=key,
        properties={"table.datalake.format": lake_format},
    )


def write(table: Table, rows: list[dict]) -> None:
    (table.upsert if table.state.primary_key else table.append)(rows)
    tier(table)


def is_day(day: dt.date) -> dict:
    """As Spark pushes it."""
    days = (day - dt.date(1970, 1, 1)).days
    return {"op": "=", "children": [{"column": ["day"]}, {"literal": days, "type": '"date"'}]}


def by_id(rows: list[dict]) -> list[dict]:
    return sorted(rows, key=lambda row: (row["day"], row["id"], row["text"]))


def manifests_below(path: Path) -> set[Path]:
    found = [*path.rglob("*-m*.avro"), *path.rglob("manifest-????????????*-*")]
    return {manifest for manifest in found if "list" not in manifest.name}


@KEYS
@FORMATS
def test_only_manifests_of_the_partitions_asked_for_are_read(tmp_path, lake_format, key):
    table = new_table(tmp_path, lake_format, key)
    found: list[set[Path]] = []
    for day in DAYS:
        write(table, [{"day": day, "id": i, "text": f"{day}"} for i in range(3)])
        found.append(manifests_below(tmp_path) - set().union(*found))
    assert all(found)
    for manifest in found[0] | found[1]:
        manifest.unlink()

    expected = [{"day": DAYS[2], "id": i, "text": f"{DAYS[2]}"} for i in range(3)]
    for asked in ([("day", "=", DAYS[2])], pc.field("day") == DAYS[2], [("day", ">", DAYS[1]), ("id", ">=", 0)]):
        assert by_id(table.to_arrow(filter=asked).to_pylist()) == expected
        assert table.lake.to_arrow(filter=asked).num_rows == 3
    scans = Scans(Connection.of(str(tmp_path), {}))
    for name in ("sales.t", "sales.t$lake"):
        assert by_id(scans.rows(name, filters=[is_day(DAYS[2])])) == expected
        with pytest.raises(SnapshotExpiredError):
            scans.rows(name)


@KEYS
@FORMATS
def test_no_row_comes_back_that_a_manifest_of_another_day_removes(tmp_path, lake_format, key):
    """Files are removed, replaced and deleted from by manifests that name other partitions too."""
    table = new_table(tmp_path, lake_format, key)
    for number in range(3):
        for day in DAYS:
            write(table, [{"day": day, "id": i, "text": f"round {number}"} for i in range(number, 3)])
    if key:
        table.delete([{"day": DAYS[1], "id": 0}, {"day": DAYS[2], "id": 2}])
    else:
        table.drop_partition({"day": DAYS[1]})
    write(table, [{"day": DAYS[0], "id": 9, "text": "last"}])
    scans = Scans(Connection.of(str(tmp_path), {}))
    for _ in ("as written", "compacted"):
        whole = by_id(table.to_arrow().to_pylist())
        assert len({row["day"] for row in whole}) == (3 if key else 2)
        for day in DAYS:
            expected = [row for row in whole if row["day"] == day]
            assert by_id(table.to_arrow(filter=[("day", "=", day)]).to_pylist()) == expected
            rows = [row for row in scans.rows("sales.t", filters=[is_day(day)]) if row["day"] == day]
            assert by_id(rows) == expected
        table.lake.compact()
