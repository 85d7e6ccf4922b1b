"""Reach: what many buckets, commits, lake files and tables cost those who change few of them.

The store is the memory of this process, so that a figure is work of ours and no disk's. Each is a large table, or many
tables, beside a small one: cost has to grow with what changed, and not with what is there.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from benchmarks.measure import Bench, Figure, in_turns, ratio_at_most, time_figure, timed
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.core.clock import SystemClock, World
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.service.table_discovery import TableDiscovery
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table.maintenance.tiering import tier_table
from streamhouse_spark.warehouse.process_cache import Connection

ROUNDS = 21
COLUMNS = "id BIGINT, day INT"


def reach(bench: Bench) -> Iterator[Figure]:
    yield from _buckets(bench, 10_000 if not bench.quick else 1_000)
    yield from _commits(bench, 1_000_000 if not bench.quick else 10_000)
    yield from _lake_files(bench, 100_000 if not bench.quick else 2_000)
    yield from _tables(bench, 1_000 if not bench.quick else 100)


def _buckets(bench: Bench, many: int) -> Iterator[Figure]:
    few, tables = 10, {}
    for buckets in (few, many):
        table = _warehouse().create_table("t", COLUMNS, buckets=buckets, properties={"bucket.key": "id"})
        table.append(pa.table({"id": range(2 * many), "day": [1] * 2 * many}))
        tables[buckets] = table
    first = timed(lambda: _tier(tables[many]))
    yield _once(f"first round of {many:,} buckets", first)
    for name, act, bound in (
        ("append of one row", _append, 20),
        ("round of one row", _append_and_tier, 20),
        ("read of one key", _read_key, 100),
        ("opening", _open, 200),  # a checkpoint says each bucket
    ):
        yield _beside(f"{many:,} buckets: {name}", act, tables[many], tables[few], f"ours with {few}", bench, bound)


def _commits(bench: Bench, many: int) -> Iterator[Figure]:
    few, tables = 1_000, {}
    for commits in (few, many):
        clock = _Hours()
        table = _warehouse(clock).create_table("t", COLUMNS)
        rows, tiered = pa.table({"id": [1], "day": [1]}), 0
        while table.state.version < commits:
            table.append(rows)
            if table.state.version - tiered >= 5_000:
                tiered = table.state.version
                clock.ahead_ms += 6 * 3_600_000
                _tier(table)
                table.maintain()
        _tier(table)
        tables[commits] = table
    for name, act in (("append of one row", _append), ("round of one row", _append_and_tier), ("opening", _open)):
        yield _beside(f"{many:,} commits: {name}", act, tables[many], tables[few], f"ours with {few:,}", bench, 3)


def _lake_files(bench: Bench, many: int) -> Iterator[Figure]:
    few, tables = 1_000, {}
    for files in (few, many):
        table = _warehouse().create_table("t", COLUMNS, partition_by=["day"])
        for start in range(0, files, 1_000):
            days = pa.array(range(start, start + 1_000), pa.int32())
            table.append(pa.table({"id": range(1_000), "day": days}))
            _tier(table)
        tables[files] = table
    for name, act, bound in (
        ("append of one row", _append, 3),
        ("round of one row", _append_and_tier, 10),
        ("opening", _open, 3),
        ("read of one day", _read_day, 200),
    ):
        yield _beside(
            f"{many:,} lake files: {name}", act, tables[many], tables[few], f"ours with {few:,}", bench, bound
        )


def _tables(bench: Bench, many: int) -> Iterator[Figure]:
    """Times are of one table."""
    few, looks, lists = 10, {}, {}
    for number in (few, many):
        warehouse = _warehouse()
        for i in range(number):
            warehouse.create_table(f"db{i % 4}.t{i}", COLUMNS)
        known = _known(warehouse)
        known.discover()
        looks[number] = _of_one(number, lambda known=known: _looked(known))
        lists[number] = _of_one(number, warehouse.tables)
    for name, turns in (("a look of the service", looks), ("ls", lists)):
        peer = f"ours with {few}"
        runs = in_turns({"ours": turns[many], peer: turns[few]}, bench.rounds(ROUNDS, 5), warm_up=1)
        yield time_figure(f"{many:,} tables: {name}, each", runs, peer, ratio_at_most(2), note=_memory())


def _looked(known: TableDiscovery) -> None:
    for table in known.discover().tables:
        table.refresh()


def _of_one(number: int, act: Callable[[], object]) -> Callable[[], float]:
    return lambda: timed(act) / number


@dataclass(frozen=True, slots=True, repr=False)
class _Here(Connection):
    """A connection to a warehouse in this process' memory."""

    here: Warehouse | None = None

    def warehouse(self) -> Warehouse:
        assert self.here is not None
        return self.here

    def table(self, name: str) -> Table:
        return self.warehouse().table(name)


def _known(warehouse: Warehouse) -> TableDiscovery:
    return TableDiscovery(_Here("memory", here=warehouse))


class _Hours(SystemClock):
    """The machine's clock, ahead by hours that pass at once, so that maintenance finds files to delete."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms

    def boot_ms(self) -> int:
        return super().boot_ms() + self.ahead_ms


def _warehouse(clock: SystemClock | None = None) -> Warehouse:
    world = World(clock or SystemClock())
    return Warehouse("reach", storage=MemoryStorage(world), world=world)


def _tier(table: Table) -> None:
    tier_table(table, run_tasks_locally(table.storage, table.settings, table.world))


def _append(table: Table) -> None:
    table.append(pa.table({"id": [5], "day": [5]}))


def _append_and_tier(table: Table) -> None:
    _append(table)
    _tier(table)


def _read_key(table: Table) -> None:
    assert table.to_arrow(filter=[("id", "=", 5)]).num_rows


def _read_day(table: Table) -> None:
    assert table.to_arrow(filter=[("day", "=", 5)]).num_rows


def _open(table: Table) -> None:
    assert Warehouse("reach", storage=table.storage).table(table.name).state.version


def _beside(
    name: str, act: Callable[[Table], None], large: Table, small: Table, peer: str, bench: Bench, bound: float
) -> Figure:
    contestants = {"ours": lambda: timed(lambda: act(large)), peer: lambda: timed(lambda: act(small))}
    runs = in_turns(contestants, bench.rounds(ROUNDS, 5), warm_up=2)
    return time_figure(name, runs, peer, ratio_at_most(bound), note=_memory())


def _once(name: str, seconds: float) -> Figure:
    return Figure(name, "ms", seconds * 1e3, "-", seconds * 1e3, 1.0, 1, None, _memory())


def _memory() -> str:
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10:,} MiB at most"
