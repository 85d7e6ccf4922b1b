"""Tables with a primary key: durable upserts with a changelog, reading back, changelogs, and new hosts."""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from benchmarks import data
from benchmarks.measure import (
    Bench,
    Figure,
    Goal,
    in_turns,
    ours_at_most,
    rate_figure,
    ratio_at_most,
    time_figure,
    timed,
)
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.kv import kv_snapshots
from streamhouse_spark.kv.tablet import close_tablets, finish_apply_queues

KEY = "o_orderkey"
UPDATED_SHARE = 0.8
GOALS_MS = {1_000: 10, 10_000: 50, 100_000: 350}
RATIOS = {10_000: 1.5, 100_000: 2}
"""Goals beside pypaimon, which writes blind, and does not fsync: of smaller batches that is most."""
WAL = {"table.changelog.image": "wal"}
NO_LAKE = {"table.datalake.enabled": "false"}


class UpsertPeer(Protocol):
    def upsert(self, rows: pa.Table) -> None: ...

    def read_all(self) -> pa.Table: ...


BACK_TO_BACK = 5


class Ours:
    def __init__(self, directory: Path, rows: pa.Table, properties: dict[str, str] | None = None) -> None:
        self.warehouse = Warehouse(str(directory))
        self.table: Table = self.warehouse.create_table(
            "bench.orders", rows.schema, primary_key=[KEY], buckets=2, properties={**NO_LAKE, **(properties or {})}
        )
        self.table.upsert(rows)

    def upsert(self, rows: pa.Table) -> None:
        self.table.upsert(rows)

    def wait_until_durable(self) -> None:
        """Wait for what is done behind the answers: nobody else pays for it."""
        finish_apply_queues()

    def read_all(self) -> pa.Table:
        return Warehouse(self.warehouse.url).table("bench.orders").to_arrow()


class DeltalakeMerge:
    """Upserts as MERGE, which rewrites the files that it touches."""

    name = "deltalake merge"

    def __init__(self, directory: Path, rows: pa.Table) -> None:
        from deltalake import DeltaTable, write_deltalake

        self._path = str(directory)
        write_deltalake(self._path, rows)
        self._table = DeltaTable(self._path)

    def upsert(self, rows: pa.Table) -> None:
        merge = self._table.merge(rows, f"t.{KEY} = s.{KEY}", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def read_all(self) -> pa.Table:
        from deltalake import DeltaTable

        return DeltaTable(self._path).to_pyarrow_dataset().to_table()


class PypaimonUpsert:
    """A primary-key table, by Paimon's native code: it writes without a look at what is there, and merges when read."""

    name = "pypaimon-rust"
    _NATIVE = dict.fromkeys(
        ("write.native.enabled", "commit.native.enabled", "read.native.enabled", "scan.native-plan.enabled"), "true"
    )

    def __init__(self, directory: Path, rows: pa.Table) -> None:
        import pypaimon_rust  # noqa: F401 - without it the options above count for nothing
        from pypaimon import CatalogFactory, Schema

        self._directory = directory
        self._schema = pa.schema([field.with_nullable(field.name != KEY) for field in rows.schema])
        catalog = CatalogFactory.create({"warehouse": str(directory)})
        catalog.create_database("bench", ignore_if_exists=True)
        schema = Schema.from_pyarrow_schema(self._schema, primary_keys=[KEY], options={"bucket": "2", **self._NATIVE})
        catalog.create_table("bench.orders", schema, ignore_if_exists=False)
        self._table = catalog.get_table("bench.orders")
        self.upsert(rows)

    def upsert(self, rows: pa.Table) -> None:
        builder = self._table.new_batch_write_builder()
        write = builder.new_write()
        write.write_arrow(pa.Table.from_arrays(rows.columns, schema=self._schema))
        commit = builder.new_commit()
        commit.commit(write.prepare_commit())
        write.close()
        commit.close()

    def read_all(self) -> pa.Table:
        from pypaimon import CatalogFactory

        builder = (
            CatalogFactory.create({"warehouse": str(self._directory)}).get_table("bench.orders").new_read_builder()
        )
        return builder.new_read().to_arrow(builder.new_scan().plan().splits())


@contextmanager
def own_cache(directory: Path) -> Iterator[None]:
    before = os.environ.get("STREAMHOUSE_CACHE_DIR")
    os.environ["STREAMHOUSE_CACHE_DIR"] = str(directory)
    try:
        yield
    finally:
        close_tablets()
        os.environ.pop("STREAMHOUSE_CACHE_DIR")
        if before is not None:
            os.environ["STREAMHOUSE_CACHE_DIR"] = before


class Batches:
    """Batches of orders: most of them have keys that are there, the others new ones."""

    def __init__(self, orders: pa.Table) -> None:
        self._orders = orders
        self._keys = orders[KEY].to_numpy()
        self._next = int(self._keys.max()) + 1
        self._rng = np.random.default_rng(7)

    def make(self, size: int) -> pa.Table:
        updated = int(size * UPDATED_SHARE)
        keys = np.concatenate(
            [
                self._rng.choice(self._keys, updated, replace=False),
                np.arange(self._next, self._next + size - updated),
            ]
        )
        self._next += size - updated
        rows = self._orders.take(pa.array(self._rng.integers(0, len(self._keys), size)))
        place = rows.schema.get_field_index(KEY)
        keyed = pa.array(self._rng.permutation(keys), rows.schema.field(KEY).type)
        return rows.set_column(place, rows.schema.field(KEY), keyed)


def upserts(bench: Bench) -> Iterator[Figure]:
    """Batches of 80 % updates, durable, with a changelog; then the current rows, read back by a fresh object."""
    orders = data.load(bench.data, "orders", quick=bench.quick)
    with own_cache(bench.directory("cache")):
        ours = Ours(bench.scratch / "ours", orders)
        blind = Ours(bench.scratch / "blind", orders, WAL)
        peers: dict[str, Any] = {
            peer.name: peer(bench.directory(peer.__name__), orders) for peer in (DeltalakeMerge, PypaimonUpsert)
        }
        batches = Batches(orders)
        for size, goal_ms in GOALS_MS.items():
            runs: dict[str, list[float]] = {name: [] for name in ("ours", "blind", *peers)}
            for number in range(bench.rounds(7, 3)):
                rows = batches.make(size)
                for name, table in {"ours": ours, "blind": blind, **peers}.items():
                    seconds = timed(lambda table=table, rows=rows: table.upsert(rows))
                    ours.wait_until_durable()
                    if number:
                        runs[name].append(seconds)
            what, bound = f"upsert {size:,} rows, 80 % updates", RATIOS.get(size)
            yield time_figure(what, runs, DeltalakeMerge.name, ours_at_most(goal_ms))
            yield time_figure(what, runs, PypaimonUpsert.name, None if bound is None else ratio_at_most(bound))
            goal = None if bound is None else ratio_at_most(1)
            yield time_figure(f"{what}, without rows before", runs, PypaimonUpsert.name, goal, ours="blind")
        reads = {name: lambda table=table: timed(table.read_all) for name, table in {"ours": ours, **peers}.items()}
        assert ours.read_all().num_rows == peers[DeltalakeMerge.name].read_all().num_rows
        found = in_turns(reads, bench.rounds(5, 2), warm_up=1)
        yield time_figure("current rows after all batches", found, DeltalakeMerge.name, ratio_at_most(1))
        yield time_figure("current rows after all batches", found, PypaimonUpsert.name, ratio_at_most(0.25))
        pair = {"ours": ours, PypaimonUpsert.name: peers[PypaimonUpsert.name]}
        for size in RATIOS:
            yield _back_to_back(bench, batches, size, pair)


def _back_to_back(bench: Bench, batches: Batches, size: int, tables: dict[str, Any]) -> Figure:
    """A batch of several without a pause, until all that is done behind the answers is done too."""
    runs: dict[str, list[float]] = {name: [] for name in tables}
    for _ in range(bench.rounds(3, 1)):
        rows = [batches.make(size) for _ in range(BACK_TO_BACK)]
        for name, table in tables.items():

            def write(table: Any = table) -> None:
                for part in rows:  # noqa: B023 - called before the next round
                    table.upsert(part)
                finish_apply_queues()

            runs[name].append(timed(write) / BACK_TO_BACK)
    name = f"upsert {size:,} rows, {BACK_TO_BACK} back to back until applied"
    return time_figure(name, runs, PypaimonUpsert.name)


def changelogs(bench: Bench) -> Iterator[Figure]:
    """What the rows before updates cost, and reading a changelog."""
    orders = data.load(bench.data, "orders", quick=bench.quick)
    with own_cache(bench.directory("cache")):
        full = Ours(bench.scratch / "full", orders)
        wal = Ours(bench.scratch / "wal", orders, WAL)
        batches = Batches(orders)
        runs: dict[str, list[float]] = {"ours": [], "without rows before": []}
        for number in range(bench.rounds(9, 3)):
            rows = batches.make(100_000 if not bench.quick else 10_000)
            for name, table in (("ours", full), ("without rows before", wal)):
                seconds = timed(lambda table=table, rows=rows: table.upsert(rows))
                table.wait_until_durable()
                if number:
                    runs[name].append(seconds)
        yield time_figure("upsert with full changelog", runs, "without rows before")

        def read() -> int:
            changes: int = Warehouse(full.warehouse.url).view("bench.orders$changelog").to_arrow().num_rows
            return changes

        num_changes = read()
        found = in_turns({"ours": lambda: timed(read), "itself": lambda: timed(read)}, bench.rounds(5, 2))
        yield rate_figure("read a changelog", found, "itself", num_changes, Goal("ours", ">=", 1))


def restoring(bench: Bench) -> Iterator[Figure]:
    """The first lookup of a new host: it makes the rows by key out of a snapshot, or out of the log."""
    orders = data.load(bench.data, "orders", quick=bench.quick)
    caches = bench.directory("caches")
    with own_cache(caches / "first"):
        ours = Ours(bench.scratch / "ours", orders)
        kv_snapshots.CHANGES_MIN, before = 1, kv_snapshots.CHANGES_MIN
        try:
            assert ours.table.maintain().snapshots == ours.table.num_buckets
        finally:
            kv_snapshots.CHANGES_MIN = before
        other = Ours(bench.scratch / "other", orders)
    keys = orders[KEY].slice(0, 64).combine_chunks()

    def first_lookup(table: Ours) -> float:
        with own_cache(caches / "new"):
            seconds = timed(lambda: table.table.lookup(keys))
        shutil.rmtree(caches / "new")
        return seconds

    runs = in_turns(
        {"ours": lambda: first_lookup(ours), "replaying the log": lambda: first_lookup(other)}, bench.rounds(5, 2)
    )
    note = f"{orders.num_rows / statistics.median(runs['ours']) / 1e6:.2f} M keys/s"
    yield rate_figure(
        "restore a new host", runs, "replaying the log", orders.num_rows, Goal("ours", ">=", 1), note=note
    )
