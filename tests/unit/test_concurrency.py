"""Many writers: every acknowledged row once, offsets dense, whatever merges and readers do meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter

import pyarrow as pa
import pytest

from streamhouse_spark import Warehouse
from streamhouse_spark.write.auto_compaction import compact_inline_rows, compact_small_segments

THREADS, APPENDS = 4, 25
PLAIN = {"bucket.key": "id", "table.datalake.enabled": "false"}


def check(table, sent: Counter, acknowledged: list[tuple[int, dict]]) -> None:
    """The checks of all writers: rows exactly once, offsets dense and where the writers were told."""
    changes = {b: [] for b in table.refresh().buckets}
    for batch in table.tail("earliest", include_metadata=True, until_ms=0):
        rows = batch.to_pylist()
        changes[rows[0]["_bucket"]] += [(r["_log_offset"], r["id"]) for r in rows]
    for bucket, found in changes.items():
        assert [offset for offset, _ in found] == list(range(table.state.buckets[bucket].end))
    assert Counter(i for found in changes.values() for _, i in found) == sent
    for first, offsets in acknowledged:
        got = [changes[b][o][1] for b, (start, end) in offsets.items() for o in range(start, end)]
        assert sorted(got) == [first, first + 1, first + 2]


def plain(offsets) -> dict[int, tuple[int, int]]:
    return {b: (r.start, r.end) for b, r in offsets.items()}


@pytest.mark.parametrize("shared", [True, False], ids=["one handle", "a handle each"])
def test_concurrent_threads_store_each_row_once(store, shared):
    wh = Warehouse("wh", storage=store)
    table = wh.create_table("t", "id BIGINT", buckets=3, properties=PLAIN)
    acknowledged, errors = [], []

    def write(writer: int) -> None:
        mine = table if shared else Warehouse("wh", storage=store).table("t")
        try:
            for i in range(APPENDS):
                first = (writer * APPENDS + i) * 3
                acknowledged.append((first, plain(mine.append([{"id": first + j} for j in range(3)]))))
                if i % 10 == writer:
                    compact_inline_rows(mine)
        except Exception as error:  # noqa: BLE001 - shown by the assertion below
            errors.append(error)

    def read() -> None:
        try:
            seen = 0
            while any(t.is_alive() for t in threads):
                rows = Warehouse("wh", storage=store).table("t").to_arrow()["id"].to_pylist()
                assert len(rows) % 3 == 0, "an append is visible whole"
                assert len(set(rows)) == len(rows) >= seen
                seen = len(rows)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    reader = threading.Thread(target=read)
    reader.start()
    for thread in [*threads, reader]:
        thread.join()
    assert errors == []
    check(table, Counter(range(THREADS * APPENDS * 3)), acknowledged)


_WRITE = """
import sys
import streamhouse_spark as sh
writer, appends = int(sys.argv[2]), int(sys.argv[3])
table = sh.Warehouse(sys.argv[1]).table("t")
print("ready", flush=True)
sys.stdin.readline()
for i in range(appends):
    first = (writer * appends + i) * 3
    offsets = table.append([{"id": first + j} for j in range(3)], transaction=sh.Transaction(f"w{writer}", i))
    again = table.append([{"id": -1}], transaction=sh.Transaction(f"w{writer}", i))
    assert again == offsets
    print(first, {b: (r.start, r.end) for b, r in offsets.items()}, flush=True)
"""


@pytest.mark.long
def test_three_processes_store_each_row_once(warehouse_path):
    table = Warehouse(warehouse_path).create_table("t", "id BIGINT", buckets=2, properties=PLAIN)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITE, warehouse_path, str(n), str(APPENDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(3)
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    acknowledged = []
    for writer in writers:
        out, _ = writer.communicate(timeout=600)
        assert writer.returncode == 0
        for line in out.splitlines():
            first, offsets = line.split(" ", 1)
            acknowledged.append((int(first), eval(offsets)))
    assert len(acknowledged) == 3 * APPENDS
    check(table, Counter(range(3 * APPENDS * 3)), acknowledged)


def test_merges_race_appends_and_each_other(store):
    wh = Warehouse("wh", storage=store)
    table = wh.create_table("t", "id BIGINT", properties={"table.datalake.enabled": "false"})
    stop, errors = threading.Event(), []

    def merge() -> None:
        mine = Warehouse("wh", storage=store).table("t")
        try:
            while not stop.is_set():
                mine.refresh()
                compact_inline_rows(mine)
                compact_small_segments(mine)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    mergers = [threading.Thread(target=merge) for _ in range(2)]
    for merger in mergers:
        merger.start()
    rows = 0
    try:
        for i in range(60):
            count = 20_000 if i % 7 == 0 else 1
            rows += table.append(pa.table({"id": range(rows, rows + count)})).num_rows
            if i % 10 == 0:
                assert table.to_arrow()["id"].to_pylist() == list(range(rows))
    finally:
        stop.set()
        for merger in mergers:
            merger.join()
    assert errors == []
    assert table.to_arrow()["id"].to_pylist() == list(range(rows))
