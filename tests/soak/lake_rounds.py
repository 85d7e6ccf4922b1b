"""Tiering rounds with the service's maintenance, one after the other: how long they take, and what piles up.

The clock is simulated, so that graces of a day pass between the rounds of a minute; files are in memory, or in a
directory for the times.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from faults.sim import SimClock, sim_world
from kit.tables import tier
from kit.warehouses import new_store, open_warehouse
from streamhouse_spark import Table
from streamhouse_spark.core.clock import World
from streamhouse_spark.service.tiering_service import MaintenanceRunner
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.local import LocalStorage

PROPERTIES = {
    "table.datalake.auto-compaction": "true",
    "table.datalake.auto-expire-snapshot": "true",
    "table.log.ttl": "1d",
}
ROWS = 100
KEYS = 2000


class SimulatedTimes(LocalStorage):
    """A directory whose files have the simulated clock's times."""

    def __init__(self, root: str, world: World) -> None:
        super().__init__(root, fsync=True, world=world)
        self._clock = world.clock

    def put_if_absent(self, key, data) -> None:
        super().put_if_absent(key, data)
        self._date(key)

    def put(self, key, data) -> None:
        super().put(key, data)
        self._date(key)

    @contextmanager
    def create(self, key):
        with super().create(key) as sink:
            yield sink
        self._date(key)

    def _date(self, key: str) -> None:
        path = self.local_path(key)
        assert path is not None
        os.utime(path, (self._clock.now_ms() / 1000,) * 2)


@dataclass
class Rounds:
    """One table, its maintenance, and the times of its rounds."""

    storage: Storage
    clock: SimClock
    is_keyed: bool
    pace_ms: int
    table: Table = field(init=False)
    maintenance: MaintenanceRunner = field(init=False)
    round_ms: list[float] = field(default_factory=list)
    round_cpu_ms: list[float] = field(default_factory=list)
    """Of this process: what others do on the machine at the same time counts for little."""
    maintenance_ms: list[float] = field(default_factory=list)
    rows: dict[int, str] = field(default_factory=dict)
    numbers: int = 0

    def __post_init__(self) -> None:
        warehouse = open_warehouse(self.storage, 0, self.clock)
        how = {"primary_key": ["id"], "buckets": 2} if self.is_keyed else {}
        self.table = warehouse.create_table("t", "id BIGINT NOT NULL, text STRING", properties=PROPERTIES, **how)
        self.maintenance = MaintenanceRunner(self.clock.boot_ms())

    def run(self, num_rounds: int) -> None:
        for _ in range(num_rounds):
            self._write()
            began, began_cpu = time.perf_counter(), time.process_time()
            table = self.table
            report = tier(table)
            ended, ended_cpu = time.perf_counter(), time.process_time()
            self.round_cpu_ms.append((ended_cpu - began_cpu) * 1000)
            assert len(report.snapshots) == 1
            self.round_ms.append((ended - began) * 1000)
            self.clock.advance(self.pace_ms)
            self.maintenance.add_rounds(1)
            self.maintenance.run(table, self.clock.boot_ms())
            self.maintenance_ms.append((time.perf_counter() - ended) * 1000)

    def _write(self) -> None:
        first = self.numbers
        self.numbers += ROWS
        ids = [(37 * i) % KEYS if self.is_keyed else i for i in range(first, first + ROWS)]
        rows = dict.fromkeys(ids, f"row {first}")
        write = self.table.upsert if self.is_keyed else self.table.append
        write([{"id": i, "text": text} for i, text in rows.items()])
        self.rows.update(rows)

    def require_right(self) -> None:
        """The table and its lake hold each row once."""
        for found in (self.table.to_arrow(), self.table.lake.to_arrow()):
            assert found.num_rows == len(self.rows)
            assert dict(zip(*found.to_pydict().values(), strict=True)) == self.rows

    def counts(self) -> Counter[str]:
        """Objects by what they are, and what the lake's newest snapshot names."""
        found: Counter[str] = Counter()
        for info in self.storage.list(""):
            found[_kind(info.key)] += 1
        lake = self.table.open_lake()
        manifests = lake.metadata_table("manifests")["content"].to_pylist()
        found.update({"live data manifests": manifests.count(0), "live delete manifests": manifests.count(1)})
        found["live files"] = len(lake.metadata_table("files"))
        found["snapshots"] = len(lake.metadata_table("snapshots"))
        return found

    def times(self) -> str:
        (first, last), (first_cpu, last_cpu) = (
            (statistics.median(times[:50]), statistics.median(times[-50:]))
            for times in (self.round_ms, self.round_cpu_ms)
        )
        return (
            f"median of the first 50 rounds {first:.1f} ms, of the last 50 {last:.1f} ms ({last / first:.2f} times); "
            f"in CPU time {first_cpu:.1f} and {last_cpu:.1f} ms ({last_cpu / first_cpu:.2f} times); "
            f"maintenance {statistics.mean(self.maintenance_ms):.0f} ms a round, {max(self.maintenance_ms):.0f} at most"
        )


def _kind(key: str) -> str:
    for part, kind in (
        ("/commits/", "records"),
        ("/checkpoints/", "checkpoints"),
        ("/floors/", "floors"),
        ("/segments/", "segments"),
        ("/snap-", "manifest lists"),
        (".avro", "manifests"),
        (".parquet", "data files"),
        (".metadata.json", "metadata files"),
    ):
        if part in key:
            return kind
    return "other"


def rounds_in_memory(*, is_keyed: bool, pace_ms: int) -> Rounds:
    clock = SimClock()
    return Rounds(new_store(1, clock), clock, is_keyed, pace_ms)


def rounds_in(directory: Path, *, is_keyed: bool, pace_ms: int) -> Rounds:
    clock = SimClock()
    return Rounds(SimulatedTimes(str(directory / "wh"), sim_world(1, clock)), clock, is_keyed, pace_ms)
