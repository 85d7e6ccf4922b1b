"""Upkeep between statements, which changes no row: by SQL and in this process."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from random import Random

from pyspark.errors import PySparkException

from spark.statements.lakehouse import CONFLICT, GONE, Lakehouse, reason_of
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.core.clock import SystemIds, World
from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.lake.tiering.job import run_tasks_in_threads
from streamhouse_spark.log.gc.garbage_collection import clean as clean_log
from streamhouse_spark.table.maintenance.tiering import tier_table
from streamhouse_spark.write.auto_compaction import compact_inline_rows

DAY_MS = 24 * 3600 * 1000
NOTHING = "nothing to do"
_NO_LAKE = r"no lake table|tier it first"
_TRIMMED = r"rows? that the hot log no longer has"


def tier(house: Lakehouse, rng: Random, name: str) -> None:
    if rng.random() < 0.5:
        house.call(f"tier('{house.full_name(name)}')")
        return
    table = house.table(name)
    tier_table(table, run_tasks_in_threads(table.storage, table.settings, table.world))


def merge(house: Lakehouse, rng: Random, name: str) -> None:
    compact_inline_rows(house.table(name))


def maintain(house: Lakehouse, rng: Random, name: str) -> None:
    house.table(name).maintain()


def compact(house: Lakehouse, rng: Random, name: str) -> None:
    house.table(name).lake.compact(purge=rng.random() < 0.5)


def optimize(house: Lakehouse, rng: Random, name: str) -> None:
    table = house.table(name)
    if not table.refresh().primary_key and table.properties.datalake_format == "iceberg":
        table.lake.optimize(rng.choice(["id", "zorder(id, day)"]))


def expire(house: Lakehouse, rng: Random, name: str) -> None:
    table = house.table(name)
    table.lake.expire_snapshots(retain_last=1, older_than_ms=table.storage.now_ms())


def manifests(house: Lakehouse, rng: Random, name: str) -> None:
    if house.table(name).properties.datalake_format == "iceberg":
        house.call(f"rewrite_manifests('{house.full_name(name)}')")


def clean(house: Lakehouse, rng: Random, name: str) -> None:
    """Delete files for good: days pass between condemning and deleting."""
    for _ in range(2):
        house.clock.ahead_ms += 2 * DAY_MS
        table: Table = Warehouse(house.url, world=World(house.clock, SystemIds())).table(house.full_name(name))
        table.refresh()
        clean_log(table.log, table.storage)
        if table.refresh().recorded_lake is not None:
            table.lake.remove_orphan_files()


def retier(house: Lakehouse, rng: Random, name: str) -> None:
    house.table(name).retier()


def reopen(house: Lakehouse, rng: Random, name: str) -> None:
    house.reopen()


def undrop(house: Lakehouse, rng: Random, name: str) -> None:
    house.drop_and_bring_back(name)


KINDS: Mapping[str, tuple[Callable[[Lakehouse, Random, str], None], int]] = {
    "tier": (tier, 12),
    "merge": (merge, 4),
    "maintain": (maintain, 4),
    "compact": (compact, 4),
    "optimize": (optimize, 3),
    "expire": (expire, 3),
    "manifests": (manifests, 2),
    "clean": (clean, 4),
    "retier": (retier, 1),
    "reopen": (reopen, 2),
    "undrop": (undrop, 1),
}
"""Each kind with its weight."""


def done(house: Lakehouse, rng: Random, name: str, kind: str) -> str | None:
    """Do one kind of upkeep, and return the reason where it could not be done. Raises what is no such reason."""
    try:
        KINDS[kind][0](house, rng, name)
    except (StreamhouseError, PySparkException) as error:
        if kind != "tier" and re.search(_NO_LAKE, str(error)):
            return NOTHING
        if kind == "retier" and re.search(_TRIMMED, str(error)):
            return GONE
        if reason_of(error) != CONFLICT:
            raise
        return CONFLICT
    return None
