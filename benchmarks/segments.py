"""Codecs of the hot log's segments beside no codec: bytes, writing and reading, on a disk and far away."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import data
from benchmarks.measure import Bench, Figure, Runs, in_turns, time_figure, timed
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.storage.base import Bytes
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.prefetch import RangePlan
from streamhouse_spark.storage.remote.multipart_upload import PART_BYTES, PARTS_IN_FLIGHT_MAX

CODECS = ("none", "lz4", "zstd")
COLUMNS = ["l_orderkey", "l_shipdate"]
REQUEST_SECONDS = 0.025
RANGES_AT_ONCE = 16
BATCH_ROWS = 1000


def segments_compression(bench: Bench) -> Iterator[Figure]:
    """Each codec in turns with none, each through the same interface."""
    rows = data.load(bench.data, "lineitem", quick=bench.quick)
    tables = {codec: _new_table(bench, codec, rows) for codec in CODECS}
    size_bytes = {codec: sum(s.size_bytes for s in table.refresh().live_segments()) for codec, table in tables.items()}
    for codec in CODECS[1:]:
        ours, peer = size_bytes[codec] / 1e6, size_bytes["none"] / 1e6
        yield Figure(f"{codec}: the log of {rows.num_rows:,} rows", "MB", ours, "none", peer, ours / peer, 1)
    few = rows.slice(0, BATCH_ROWS)
    reads: tuple[tuple[str, Callable[[Table], object]], ...] = (
        ("read", lambda table: _looked_at(table.to_arrow())),
        ("2 of 16 columns", lambda table: _looked_at(table.to_arrow(columns=COLUMNS))),
    )
    rounds = bench.rounds(7, 2)
    for far in (False, True):
        runs = in_turns({codec: _appending(bench, codec, rows, far=far) for codec in CODECS}, rounds)
        yield from _figures(f"all appended{_place(far=far)}", runs)
    small = {codec: _new_table(bench, f"{codec}-small", few) for codec in CODECS}
    appends = {codec: lambda t=table: timed(lambda: t.append(few)) for codec, table in small.items()}
    yield from _figures(f"append of {BATCH_ROWS:,} rows", in_turns(appends, bench.rounds(200, 20), warm_up=2))
    for name, read in reads:
        for far in (False, True):
            runs = in_turns({c: _reading(bench, c, read, far=far) for c in CODECS}, rounds, warm_up=1)
            yield from _figures(f"{name}{_place(far=far)}", runs)


def _figures(name: str, runs: Runs) -> Iterator[Figure]:
    for codec in CODECS[1:]:
        yield time_figure(f"{codec}: {name}", runs, "none", ours=codec)


def _place(*, far: bool) -> str:
    return f", {REQUEST_SECONDS * 1e3:.0f} ms a request" if far else ""


def _new_table(bench: Bench, name: str, rows: pa.Table) -> Table:
    codec = name.partition("-")[0]
    properties = {"table.log.arrow.compression.type": codec}
    table = Warehouse(str(bench.scratch / name)).create_table("bench.rows", rows.schema, properties=properties)
    table.append(rows)
    return table


def _opened(bench: Bench, name: str, *, far: bool) -> Table:
    path = str(bench.scratch / name)
    return Warehouse(path, storage=FarStorage(path) if far else None).table("bench.rows")


def _appending(bench: Bench, codec: str, rows: pa.Table, *, far: bool) -> Callable[[], float]:
    def run() -> float:
        name = f"{codec}-bulk"
        _new_table(bench, name, rows.slice(0, 1))
        table = _opened(bench, name, far=far)
        os.sync()  # nobody pays for another's dirty pages
        seconds = timed(lambda: table.append(rows))
        shutil.rmtree(bench.scratch / name)
        return seconds

    return run


def _reading(bench: Bench, codec: str, read: Callable[[Table], object], *, far: bool) -> Callable[[], float]:
    return lambda: timed(lambda: read(_opened(bench, codec, far=far)))


def _looked_at(rows: pa.Table) -> None:
    """Look at each value, because a mapped file is read only then."""
    for column in rows.columns:
        pc.min_max(column)


class FarStorage(LocalStorage):
    """A directory whose requests take as long as those of an object store, and whose files cannot be mapped.

    Ranges, and parts of a large object, go as many at once as the package sends to S3. Bytes cost nothing on their way.
    """

    def read(self, key: str) -> bytes:
        _wait(1)
        return super().read(key)

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        _wait(math.ceil(len(RangePlan.of(ranges).pieces) / RANGES_AT_ONCE))
        return super().read_ranges(key, ranges)

    def put_if_absent(self, key: str, data: Bytes) -> None:
        _wait(1)
        super().put_if_absent(key, data)

    @contextmanager
    def create(self, key: str) -> Iterator[Any]:
        with super().create(key) as sink:
            yield sink
        parts = math.ceil(self.size_bytes(key) / PART_BYTES)
        _wait(1 if parts == 1 else 2 + math.ceil(parts / PARTS_IN_FLIGHT_MAX))  # begun, parts, finished

    def local_path(self, key: str) -> str | None:  # noqa: ARG002
        return None


def _wait(requests: int) -> None:
    time.sleep(REQUEST_SECONDS * requests)
