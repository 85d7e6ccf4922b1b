"""Appending: in bulk, in small durable batches, for a long time; and reading back what small batches left."""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from benchmarks import data
from benchmarks.measure import (
    Bench,
    Figure,
    Runs,
    in_turns,
    percentile,
    rate_figure,
    ratio_at_least,
    ratio_at_most,
    time_figure,
    timed,
)
from benchmarks.peers import AppendPeer, BareFiles, Deltalake, Pyiceberg, Pypaimon, write_bare_file
from streamhouse_spark import Table, Warehouse

BATCH_ROWS = 1000
HASHED = {"bucket.num": "4", "bucket.key": "o_orderkey"}


def bulk_append(bench: Bench) -> Iterator[Figure]:
    rows = data.load(bench.data, "lineitem", quick=bench.quick)
    peer = "bare IPC file+fsync"
    for name, properties, goal in (
        ("bulk append", {}, ratio_at_least(0.8)),
        ("bulk append, 4 hashed buckets", {"bucket.num": "4", "bucket.key": "l_orderkey"}, None),
    ):
        contestants = {
            "ours": _in_new_directory(
                bench, lambda path, p=properties: _new_table(path, rows.schema, p), lambda table: table.append(rows)
            ),
            peer: _in_new_directory(bench, lambda path: f"{path}/rows.arrow", lambda path: write_bare_file(path, rows)),
        }
        runs = in_turns(contestants, bench.rounds(5, 2), warm_up=1)
        yield rate_figure(name, runs, peer, rows.num_rows, goal)


def _in_new_directory(
    bench: Bench, prepare: Callable[[str], Any], action: Callable[[Any], object]
) -> Callable[[], float]:
    def run() -> float:
        directory = bench.scratch / "bulk"
        directory.mkdir()
        target = prepare(str(directory))
        os.sync()  # nobody pays for another's dirty pages
        seconds = timed(lambda: action(target))
        shutil.rmtree(directory)
        return seconds

    return run


def small_appends(bench: Bench) -> Iterator[Figure]:
    """Each peer on its own beside us. Those that do not fsync get their pages written between the turns, untimed:
    otherwise our fsync, which empties the file system's journal, would pay for them.
    """
    batches = _small_batches(bench)
    schema = batches[0].schema
    rounds = bench.rounds(300, 40)
    for kind, bound in ((BareFiles, 1.6), (Pypaimon, 1 / 5), (Deltalake, 1 / 10), (Pyiceberg, 1 / 40)):
        variants = (("", {}), (", 4 hashed buckets", HASHED)) if kind is BareFiles else (("", {}),)
        for suffix, properties in variants:
            table = _new_table(str(bench.scratch / f"{kind.name}{suffix}" / "ours"), schema, properties)
            peer = kind(bench.directory(f"{kind.name}{suffix}/peer"), schema)
            before = None if kind is BareFiles else os.sync
            runs = in_turns(
                {
                    "ours": _appending(table, batches, before=before),
                    peer.name: _appending(peer, batches, before=before),
                },
                rounds,
                warm_up=2,
            )
            goal = None if properties else ratio_at_most(bound)
            yield time_figure(f"append of 1,000 rows{suffix}", runs, peer.name, goal, note=_tails(runs, peer.name))
            if kind is Deltalake:
                yield from _read_back(table, peer, bench.rounds(11, 3))


def _read_back(table: Table, peer: AppendPeer, rounds: int) -> Iterator[Figure]:
    url, name = table.storage.url, table.name

    def ours() -> pa.Table:
        return Warehouse(url).table(name).to_arrow()

    if not ours().num_rows == peer.read_all().num_rows > 0:
        raise AssertionError("the two tables should hold the same rows")
    runs = in_turns(
        {"ours": lambda: timed(lambda: _touch(ours())), "deltalake": lambda: timed(lambda: _touch(peer.read_all()))},
        rounds,
        warm_up=1,
    )
    yield time_figure("reading back those appends", runs, "deltalake", ratio_at_most(1 / 5))


def _touch(rows: pa.Table) -> int:
    """Look at every buffer, so that memory that is only mapped counts as read."""
    return sum(
        memoryview(buffer)[::4096].tobytes().count(0)
        for column in rows.columns
        for chunk in column.chunks
        for buffer in chunk.buffers()
        if buffer is not None and buffer.size
    )


def flat_appends(bench: Bench) -> Iterator[Figure]:
    """The last 100 of 5,000 appends beside the first 100 of another table, in turns."""
    batches = _small_batches(bench)
    total, measured = (5000, 100) if not bench.quick else (600, 50)
    old = _new_table(str(bench.scratch / "old"), batches[0].schema, {})
    for _ in range(total - measured):
        old.append(batches[0])
    new = _new_table(str(bench.scratch / "new"), batches[0].schema, {})
    peer = f"first {measured}"
    runs = in_turns({"ours": _appending(old, batches), peer: _appending(new, batches)}, measured)
    note = f"the last {measured} of {total:,}; {_tails(runs, peer)}"
    yield time_figure("append of 1,000 rows, late", runs, peer, ratio_at_most(1.2), note=note)


def _tails(runs: Runs, peer: str) -> str:
    """What the medians hide, as ratios of them: merges, checkpoints, the disk's moods."""

    def tail(seconds: list[float]) -> str:
        p50 = statistics.median(seconds)
        return (
            f"mean {statistics.fmean(seconds) * 1e3:.2f} ms, p99 {percentile(seconds, 0.99) / p50:.1f}× p50, "
            f"max {max(seconds) / p50:.1f}×"
        )

    return f"{tail(runs['ours'])}; peer's {tail(runs[peer])}"


def _small_batches(bench: Bench) -> list[pa.Table]:
    orders = data.load(bench.data, "orders", quick=bench.quick)
    return [orders.slice(i * BATCH_ROWS, BATCH_ROWS).combine_chunks() for i in range(100)]


def _appending(
    table: Table | AppendPeer, batches: list[pa.Table], *, before: Callable[[], object] | None = None
) -> Callable[[], float]:
    following = itertools.cycle(batches)

    def run() -> float:
        rows = next(following)
        if before is not None:
            before()
        return timed(lambda: table.append(rows))

    return run


def _new_table(path: str, schema: pa.Schema, properties: dict[str, str]) -> Table:
    return Warehouse(path).create_table("bench.rows", schema, properties=properties)
