"""Work on a store that is 25 ms away: MinIO behind a relay that delays each request, for us and for delta-rs alike.

``make bench-latency`` runs this and fetches MinIO. Every answer is durable: both write with conditional puts.
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import botocore.session
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.lake import tier
from benchmarks.measure import Bench, Figure, Goal, in_turns, ours_at_most, percentile, time_figure, timed
from benchmarks.server_processes import GUARD, free_ports
from streamhouse_spark import Table, Warehouse

MINIO = Path(__file__).parent.parent / "artifacts" / "servers" / "bin" / "minio"
DELAY_MS = 25
KEYS = ("bench-key", "bench-secret-1")
DELTA = "delta-rs, same relay"
ROWS = 1_000
COMMITS = 300
_START_SECONDS = 60


def latency(bench: Bench) -> Iterator[Figure]:
    with far_store(bench.scratch) as endpoint:
        far = Far(endpoint)
        yield from far.appends(bench)
        yield from far.opening(bench)
        yield from far.many_commits(bench)
        yield from far.union_read(bench)
        yield from far.tiering(bench)
        yield far.freshness(bench)


class Far:
    """The warehouse and the tables of delta-rs on the store, by its ``endpoint``."""

    def __init__(self, endpoint: str) -> None:
        self.settings = {
            "s3.endpoint": endpoint,
            "s3.region": "us-east-1",
            "s3.access-key-id": KEYS[0],
            "s3.secret-access-key": KEYS[1],
        }
        self.options = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEYS[0],
            "AWS_SECRET_ACCESS_KEY": KEYS[1],
            "AWS_ALLOW_HTTP": "true",
            "AWS_S3_ALLOW_UNSAFE_RENAME": "false",
            "conditional_put": "etag",
        }
        self.url = "s3://bench/wh"
        self.rows = _rows(ROWS)
        self._names = itertools.count()

    def new_table(self, **options: object) -> Table:
        return self.warehouse().create_table(f"bench.t{next(self._names)}", self.rows.schema, **options)

    def warehouse(self) -> Warehouse:
        return Warehouse(self.url, self.settings)

    def new_delta(self) -> str:
        url = f"s3://bench/delta/t{next(self._names)}"
        write_deltalake(url, self.rows, storage_options=self.options)
        return url

    def delta(self, url: str) -> DeltaTable:
        return DeltaTable(url, storage_options=self.options)

    def appends(self, bench: Bench) -> Iterator[Figure]:
        """Tables that stay open, so that only the append itself counts."""
        table, delta = self.new_table(), self.delta(self.new_delta())
        contestants = {
            "ours": lambda: timed(lambda: table.append(self.rows)),
            DELTA: lambda: timed(lambda: write_deltalake(delta, self.rows, mode="append")),
        }
        runs = in_turns(contestants, bench.rounds(30, 5), warm_up=3)
        yield time_figure(f"{DELAY_MS} ms away: append of 1,000 rows", runs, DELTA, ours_at_most(35))

    def opening(self, bench: Bench) -> Iterator[Figure]:
        table, url = self.new_table(), self.new_delta()
        for _ in range(60):
            table.append(self.rows)
        delta = self.delta(url)
        for _ in range(60):
            write_deltalake(delta, self.rows, mode="append")
        contestants = {
            "ours": lambda: timed(lambda: self.warehouse().table(table.name)),
            DELTA: lambda: timed(lambda: self.delta(url)),
        }
        runs = in_turns(contestants, bench.rounds(15, 3), warm_up=1)
        yield time_figure(f"{DELAY_MS} ms away: open a table of 60 commits", runs, DELTA, ours_at_most(120))

    def many_commits(self, bench: Bench) -> Iterator[Figure]:
        few = _rows(10)
        table, url = self.new_table(), self.new_delta()
        delta = self.delta(url)
        for _ in range(COMMITS):
            table.append(few)
            write_deltalake(delta, few, mode="append")

        def ours() -> float:
            return timed(lambda: _require(self.warehouse().table(table.name).to_arrow(), COMMITS * 10))

        def peer() -> float:
            return timed(lambda: _require(self.delta(url).to_pyarrow_table(), COMMITS * 10 + ROWS))

        runs = in_turns({"ours": ours, DELTA: peer}, bench.rounds(5, 2), warm_up=1)
        yield time_figure(f"{DELAY_MS} ms away: open and read {COMMITS} small commits", runs, DELTA, ours_at_most(400))

    def union_read(self, bench: Bench) -> Iterator[Figure]:
        table, url = self.new_table(buckets=4), self.new_delta()
        delta = self.delta(url)
        for _ in range(8):
            table.append(self.rows)
            write_deltalake(delta, self.rows, mode="append")
        tier(table)
        table.append(self.rows)

        def ours() -> float:
            return timed(lambda: _require(self.warehouse().table(table.name).to_arrow(), 9 * ROWS))

        def peer() -> float:
            return timed(lambda: _require(self.delta(url).to_pyarrow_table(), 9 * ROWS))

        runs = in_turns({"ours": ours, DELTA: peer}, bench.rounds(15, 3), warm_up=1)
        yield time_figure(f"{DELAY_MS} ms away: union read, opened anew", runs, DELTA, ours_at_most(400))

    def tiering(self, bench: Bench) -> Iterator[Figure]:
        """A round of four buckets with 250 rows each; the peer appends as many rows, and tiers nothing."""
        table, delta = self.new_table(buckets=4), self.delta(self.new_delta())

        def ours() -> float:
            table.append(self.rows)
            return timed(lambda: tier(table))

        def peer() -> float:
            return timed(lambda: write_deltalake(delta, self.rows, mode="append"))

        name = f"an append, {DELTA}"
        runs = in_turns({"ours": ours, name: peer}, bench.rounds(15, 3), warm_up=2)
        yield time_figure(f"{DELAY_MS} ms away: tiering round of 4 buckets", runs, name, ours_at_most(700))

    def freshness(self, bench: Bench) -> Figure:
        """From the beginning of an append to its rows in a tail of another process."""
        appends = bench.rounds(60, 10)
        ours = self._seen_ms(appends, pause_s=0.3)
        busy = self._seen_ms(appends, pause_s=0.02)
        name = "the same, 50 appends a second"
        mine, theirs = percentile(ours, 0.5), percentile(busy, 0.5)
        goal: Goal = ours_at_most(100)
        title = f"{DELAY_MS} ms away: another process sees an append, p50"
        note = f"p99 {percentile(ours, 0.99):.0f} ms"
        return Figure(title, "ms", mine, name, theirs, mine / theirs, 1, goal, note)

    def _seen_ms(self, appends: int, *, pause_s: float) -> list[float]:
        table = self.warehouse().create_table(f"bench.f{next(self._names)}", _timed_rows().schema)
        command = [sys.executable, "-m", "benchmarks.latency", table.name, str(appends)]
        environment = os.environ | {"BENCH_SETTINGS": repr((self.url, self.settings))}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline().strip() == "ready", "the reading process did not start"
            for _ in range(appends):
                time.sleep(pause_s)
                table.append(_timed_rows())
            out, _ = reader.communicate(timeout=_START_SECONDS)
        return [float(text) for text in out.split()]


def _timed_rows() -> pa.Table:
    return pa.table({"began_ns": pa.array(np.full(ROWS, time.monotonic_ns())), "n": pa.array(np.arange(ROWS))})


def _rows(count: int) -> pa.Table:
    numbers = np.arange(count)
    return pa.table({"id": numbers, "value": numbers * 0.5, "text": [f"row {n}" for n in numbers]})


def _require(found: pa.Table, rows: int) -> None:
    assert found.num_rows == rows, f"{found.num_rows} rows, expected {rows}"


@contextmanager
def far_store(folder: Path, delay_ms: float = DELAY_MS) -> Iterator[str]:
    """Run MinIO with an empty bucket and the relay before it; the relay's endpoint."""
    if not MINIO.exists():
        raise SystemExit(f"{MINIO} is missing: make bench-latency fetches it")
    (port,) = free_ports(1)
    keys = {"MINIO_ROOT_USER": KEYS[0], "MINIO_ROOT_PASSWORD": KEYS[1]}
    command = [str(MINIO), "server", "--quiet", "--address", f"127.0.0.1:{port}", str(folder / "minio")]
    with (
        _process(command, keys),
        _process([sys.executable, "-m", "benchmarks.delayed", str(port), str(delay_ms)], {}) as relay,
    ):
        _wait_for(port)
        client = botocore.session.get_session().create_client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            aws_access_key_id=KEYS[0],
            aws_secret_access_key=KEYS[1],
            region_name="us-east-1",
        )
        client.create_bucket(Bucket="bench")
        assert relay.stdout is not None
        yield f"http://127.0.0.1:{int(relay.stdout.readline())}"


@contextmanager
def _process(command: list[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(GUARD), *command],
        env=os.environ | dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()  # the guard ends the command then; killed itself, it would leave it behind
            process.wait()


def _wait_for(port: int) -> None:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError("MinIO did not start")


def _tail(name: str, appends: int) -> None:
    import ast

    url, settings = ast.literal_eval(os.environ["BENCH_SETTINGS"])
    tail = Warehouse(url, settings).table(name).tail("latest")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    seen = []
    for _ in range(appends):
        batch = next(tail)
        seen.append((time.monotonic_ns() - batch.column("began_ns")[0].as_py()) / 1e6)
    sys.stdout.write("\n".join(map(str, seen)))


if __name__ == "__main__":
    _tail(sys.argv[1], int(sys.argv[2]))
