"""How long after an append began another process holds the rows."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.measure import Bench, Figure, Goal, ours_at_most, percentile
from benchmarks.peers import AppendPeer, BareFiles
from streamhouse_spark import Table, Warehouse

SCHEMA = pa.schema(
    [("began_ns", pa.int64()), ("key", pa.int64()), ("value", pa.float64()), ("text", pa.string())],
)
ROWS = 1000
INTERVAL_S = 0.01
READER_TIMEOUT_S = 60


def freshness(bench: Bench) -> Iterator[Figure]:
    for fsync, goal in ((True, ours_at_most(5)), (False, ours_at_most(2))):
        yield _measured(bench, fsync=fsync, goal=goal)


def _measured(bench: Bench, *, fsync: bool, goal: Goal) -> Figure:
    """Rounds of appends with a reader of ours, then of the bare files', and so on."""
    rounds, appends = bench.rounds(4, 2), bench.rounds(100, 30)
    settings = {"storage.local.fsync": str(fsync).lower()}
    name = "bare file, polled each ms" + ("" if fsync else ", no fsync")
    latencies: dict[str, list[float]] = {"ours": [], name: []}
    for number in range(rounds):
        base = bench.directory(f"fsync-{fsync}-{number}")
        table = Warehouse(str(base / "ours"), settings).create_table("bench.rows", SCHEMA)
        latencies["ours"] += _run("table", table, base / "ours", appends)
        bare = base / "bare"
        bare.mkdir()
        latencies[name] += _run("files", BareFiles(bare, SCHEMA, fsync=fsync), bare, appends)
    ours, peer = (percentile(latencies[key], 0.5) for key in ("ours", name))
    return Figure(
        name="another process sees an append" + (", fsync" if fsync else ", no fsync"),
        unit="ms",
        ours=ours,
        peer_name=name,
        peer=peer,
        ratio=ours / peer,
        pairs=rounds,
        goal=goal,
        note=f"p99 {percentile(latencies['ours'], 0.99):.1f}, peer's {percentile(latencies[name], 0.99):.1f} ms",
    )


def _run(kind: str, target: Table | AppendPeer, path: Path, appends: int) -> list[float]:
    """Milliseconds from the beginning of each append to its rows in the other process."""
    command = [sys.executable, "-m", "benchmarks.freshness", kind, str(path), str(appends)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        if reader.stdout is None or reader.stdout.readline().strip() != "ready":
            raise RuntimeError("the reading process did not start")
        for _ in range(appends):
            time.sleep(INTERVAL_S)
            target.append(_rows_now())
        out, _ = reader.communicate(timeout=READER_TIMEOUT_S)
    return [float(text) for text in out.split()]


def _rows_now() -> pa.Table:
    """Rows that carry the moment at which their append begins."""
    key, value, text = _FIXED
    began_ns = np.full(ROWS, 0, np.int64)
    began_ns[:] = time.monotonic_ns()
    return pa.Table.from_arrays([pa.array(began_ns), key, value, text], schema=SCHEMA)


_FIXED = (pa.array(np.arange(ROWS)), pa.array(np.random.default_rng(0).random(ROWS)), pa.array(["x" * 20] * ROWS))


def _read_table(path: str, appends: int) -> Iterator[float]:
    tail = Warehouse(path).table("bench.rows").tail("latest")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for _ in range(appends):
        yield _age_ms(next(tail).column("began_ns"))


def _read_files(path: str, appends: int) -> Iterator[float]:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for number in range(appends):
        name = f"{path}/{number:08d}.arrow"
        while True:
            try:
                rows = pa.ipc.open_file(pa.memory_map(name)).read_all()
                break
            except FileNotFoundError:
                time.sleep(0.001)
        yield _age_ms(rows.column("began_ns"))


def _age_ms(began_ns: pa.Array | pa.ChunkedArray) -> float:
    return (time.monotonic_ns() - began_ns[0].as_py()) / 1e6


def main(kind: str, path: str, appends: str) -> None:
    read = _read_table if kind == "table" else _read_files
    sys.stdout.write("\n".join(map(str, list(read(path, int(appends))))))


if __name__ == "__main__":
    main(*sys.argv[1:])
