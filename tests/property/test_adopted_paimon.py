"""Random lives of tables that were made of Paimon tables: table, lake, lookups and pypaimon have the same rows."""

from __future__ import annotations

import datetime as dt
import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from faults.sim import SimClock, sim_world
from interop.paimon_cases import Stock
from kit.tables import tier
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.storage.memory import MemoryStorage

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("day", pa.date32(), nullable=False),
        pa.field("text", pa.string()),
    ]
)
DAYS = [dt.date(2026, 1, day) for day in (1, 2, 3)]
DAY_MS = 24 * 3600 * 1000
STEPS = 14
SOAK_SEEDS = range(100, 100 + int(os.environ.get("STREAMHOUSE_SOAK_ROUNDS", "0")))


@dataclass
class Life:
    """One table, or one after the other on the same lake, and the rows that it has to have."""

    seed: int
    folder: Path
    clock: SimClock = field(default_factory=SimClock)
    rows: list[dict[str, Any]] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    num_versions: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.world = sim_world(self.seed, self.clock)
        self.storage = MemoryStorage(self.world)
        self.stock = Stock(self.storage, self.folder / "stock")
        self.wh = Warehouse("wh", storage=self.storage, world=self.world)
        self.is_keyed = self.random.random() < 0.6
        self.is_partitioned = self.random.random() < 0.5
        self.name = "d.t"

    def begin(self) -> None:
        options: dict[str, Any] = {"partition_by": ["day"]} if self.is_partitioned else {}
        if self.is_keyed:
            options["primary_key"] = ["day", "id"] if self.is_partitioned else ["id"]
        if self.is_keyed or self.random.random() < 0.5:
            options |= {"bucket": str(self.random.randint(1, 4)), "bucket_key": "id"}
        if self.random.random() < 0.5:
            options["partition.legacy_name"] = "false"
        rounds = [self.some() for _ in range(self.random.randint(0, 5))]
        self.stock.make(self.name, SCHEMA, *rounds, **options)
        for some in rounds:
            self.keep(some)
        self.done.append(str(options))
        self.wh.adopt_table(self.name)

    @property
    def table(self) -> Table:
        return self.wh.table(self.name)

    def some(self) -> list[dict[str, Any]]:
        self.num_versions += 1
        ids = self.random.sample(range(30), self.random.randint(1, 12))
        return [{"id": i, "day": DAYS[i % 3], "text": f"v{self.num_versions}"} for i in ids]

    def keep(self, rows: list[dict[str, Any]]) -> None:
        new = {row["id"] for row in rows} if self.is_keyed else set()
        self.rows = [row for row in self.rows if row["id"] not in new] + rows

    def keys(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{name: row[name] for name in self.table.state.primary_key} for row in rows]

    def tier(self) -> None:
        tier(self.table)

    # -- what can happen ------------------------------------------------------------------------------------------

    def write(self) -> None:
        rows = self.some()
        _ = self.table.upsert(rows) if self.is_keyed else self.table.append(rows)
        self.keep(rows)

    def delete(self) -> None:
        if self.is_keyed:
            gone = self.some()
            self.table.delete(self.keys(gone))
            self.rows = [row for row in self.rows if row["id"] not in {row["id"] for row in gone}]

    def compact(self) -> None:
        self.table.lake.compact()

    def expire(self) -> None:
        self.table.lake.expire_snapshots(retain_last=self.random.randint(1, 3))

    def maintain(self) -> None:
        self.table.maintain()

    def clean(self) -> None:
        self.table.lake.remove_orphan_files()

    def sleep(self) -> None:
        self.clock.advance(self.random.choice([1000, 9 * DAY_MS]))

    def truncate(self) -> None:
        self.table.truncate()
        self.rows = []

    def drop_partition(self) -> None:
        if self.is_partitioned:
            day = self.random.choice(DAYS)
            self.table.drop_partition({"day": day})
            self.rows = [row for row in self.rows if row["day"] != day]

    def adopt_again(self) -> None:
        self.tier()
        self.wh.drop_table(self.name)
        self.name = f"d.t{len(self.done)}"
        self.wh.adopt_table(self.name, "d.t")
        if self.random.random() < 0.5:
            for _ in range(2):
                self.clock.advance(3 * DAY_MS)
                self.wh.clean_dropped()

    def foreign(self) -> None:
        """Rows by key of another engine would count only until ours change."""
        if not self.is_keyed:
            self.tier()  # a truncation that the lake has yet to follow would take these too
            rows = self.some()
            self.stock.append("d.t", rows)
            self.keep(rows)
            self.write()  # a round records the snapshot that has them

    def another_host(self) -> None:
        close_tablets()
        os.environ["STREAMHOUSE_CACHE_DIR"] = str(self.folder / f"host {len(self.done)}")
        self.wh = Warehouse("wh", storage=self.storage, world=self.world)

    # -- what has to be ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        self.tier()
        table, expected = self.table, in_order(self.rows)
        found = {
            "table": table.to_arrow().to_pylist(),
            "lake": table.lake.to_arrow().to_pylist(),
            "pypaimon": self.stock.read("d.t"),
        }
        if self.is_keyed and expected:
            texts = table.lookup(self.keys(expected))["text"].to_pylist()
            found["lookup"] = [{**row, "text": text} for row, text in zip(expected, texts, strict=True)]
        for who, rows in found.items():
            assert in_order(rows) == expected, f"seed {self.seed}, {who}, after {self.done}"


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=repr)


HAPPENINGS = [
    *[Life.write] * 3,
    Life.delete,
    Life.compact,
    Life.expire,
    Life.maintain,
    Life.clean,
    Life.sleep,
    Life.truncate,
    Life.drop_partition,
    Life.adopt_again,
    Life.foreign,
    Life.another_host,
]


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.soak) for seed in SOAK_SEEDS)])
def test_random_lives_of_adopted_paimon_tables_agree_with_a_model(own_cache, monkeypatch, tmp_path, seed):
    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(own_cache))  # what `another_host` changes is put back
    life = Life(seed, tmp_path)
    life.begin()
    life.check()
    for _ in range(STEPS):
        happens = life.random.choice(HAPPENINGS)
        life.done.append(happens.__name__)
        happens(life)
        if life.random.random() < 0.5:
            life.check()
    life.check()
