"""Kill real processes at random moments, start them again, and prove at the end that nothing was lost or doubled."""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path

from kills.workers import NAME, SCHEMA, crew_of, read_journal, rows_of, run, warehouse_of
from kit.tables import tier
from kit.waiting import wait_for
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.log.record import read_record
from streamhouse_spark.log.segments.reader import verify_segment
from streamhouse_spark.log.segments.scan import check_dense, plan_range, read_split

PROCESSES = (("writer", 1), ("writer", 2), ("tierer", 1), ("reader", 1))
ACKNOWLEDGED_MIN = 10
PRELOADED = [
    "kills.workers",
    "kills.keyed_workers",
    "kills.verb_workers",
    "pyiceberg.io.pyarrow",
    "pypaimon",
    "streamhouse_spark.write.upsert",
    "streamhouse_spark.kv.tablet",
    "streamhouse_spark.lake.iceberg.table",
    "streamhouse_spark.lake.paimon.table",
]
"""Imported once, by the server that all processes are forked from: else most of their time goes there."""
PROPERTIES = {"bucket.key": "id", "table.log.ttl": "1s"}


@dataclass
class Figures:
    kills: int = 0
    acknowledged: int = 0
    attempted: int = 0
    rows: int = 0
    reads: int = 0
    rounds_tiered: int = 0
    kills_by_role: Counter[str] = field(default_factory=Counter)
    shared_records: int = 0
    slowest_start_s: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.kills} kills ({dict(self.kills_by_role)}), {self.acknowledged} of {self.attempted} batches "
            f"acknowledged, {self.rows} rows, {self.reads} reads, {self.rounds_tiered} tiering rounds; "
            f"0 lost, 0 doubled, 0 gaps; slowest start {self.slowest_start_s:.2f} s"
        )


def kill_rounds(directory: Path, rounds: int, seed: int, *, settings: dict[str, str] | None = None) -> Figures:
    """Raises `AssertionError` where a row was lost, doubled, torn or misplaced, or a process failed by itself."""
    location = str(directory / "warehouse")
    Warehouse(location, settings).create_table(NAME, SCHEMA, buckets=2, properties=PROPERTIES)
    figures = Figures()
    kill_processes(directory, rounds, seed, PROCESSES, figures, until=lambda: worked(directory, "writer", "reader"))
    check(location, directory, figures)
    return figures


def kill_rounds_elsewhere(
    directory: Path, url: str, settings: Mapping[str, str], *, writers: int, seconds: float, seed: int
) -> Figures:
    """The same for a time, with a warehouse on a store, whose journals are in the directory."""
    location = str(directory / "warehouse")
    Path(f"{location}.json").write_text(json.dumps([url, dict(settings)]))
    warehouse_of(location).create_table(NAME, SCHEMA, buckets=2, properties=PROPERTIES)
    figures, numbers = Figures(), range(1, writers + 1)
    processes = [*(("writer", number) for number in numbers), ("tierer", 1), ("reader", 1)]
    end = time.monotonic() + seconds

    def until() -> bool:
        return time.monotonic() > end and worked(directory, "writer", "reader")

    kill_processes(directory, 1, seed, processes, figures, until=until)
    check(location, directory, figures, writers=numbers)
    return figures


def crew_kill_rounds(directory: Path, rounds: int, seed: int) -> Figures:
    """The same with two processes of several writing threads each, whose appends share records."""
    location = str(directory / "warehouse")
    table = Warehouse(location).create_table(NAME, SCHEMA, buckets=2, properties=PROPERTIES)
    figures, writers = Figures(), (*crew_of(1), *crew_of(2))

    def until() -> bool:
        return acknowledged_by(directory, writers) > ACKNOWLEDGED_MIN and shared_records(table) > 0

    kill_processes(directory, rounds, seed, (("crew", 1), ("crew", 2), ("tierer", 1)), figures, until=until)
    check(location, directory, figures, writers=writers)
    figures.shared_records = shared_records(table)
    return figures


def shared_records(table: Table) -> int:
    """Count the records of several appends or upserts."""
    records = (read_record(table.storage, table.uuid, n + 1)[0] for n in range(table.refresh().version))
    return sum(bool(found.members) for found in records)


def kill_processes(
    directory: Path,
    rounds: int,
    seed: int,
    processes: Sequence[tuple[str, int]],
    figures: Figures,
    *,
    until: Callable[[], bool] = lambda: True,
) -> None:
    """Keep these running on the directory's warehouse, and kill some of them each round, at the end all.

    There are more rounds than ``rounds`` where ``until`` is not true yet, however slow the machine is.
    """
    chance = random.Random(seed)
    location = str(directory / "warehouse")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    running: dict[tuple[str, int], BaseProcess] = {}
    sizes: dict[tuple[str, int], int] = {}
    try:
        for turn in count():
            if turn >= rounds and until():
                break
            for role, number in processes:
                if (role, number) not in running:
                    process = context.Process(
                        target=run, args=(role, location, str(journal(directory, role, number)), number)
                    )
                    process.start()
                    running[role, number] = process
                    sizes[role, number] = size_of(journal(directory, role, number))
            if chance.random() < 0.8:  # the other kills meet processes that are just starting
                await_progress(directory, sizes)
            time.sleep(chance.uniform(0, 0.3))
            for victim in chance.sample(sorted(running), min(chance.choice((1, 1, 2, 4)), len(running))):
                kill(running.pop(victim), victim, directory)
                figures.kills += 1
                figures.kills_by_role[victim[0]] += 1
    finally:
        for victim in sorted(running):
            kill(running[victim], victim, directory)


def kill(process: BaseProcess, victim: tuple[str, int], directory: Path) -> None:
    process.kill()
    process.join()
    process.close()
    for event in read_journal(journal(directory, *victim)):
        assert event["kind"] != "error", f"{victim} failed by itself: {event['text']}"


def worked(directory: Path, writer: str, reader: str) -> bool:
    """Tell whether writers were acknowledged some batches, and a reader read: else the kills met nothing."""
    reads = read_journal(journal(directory, reader, 1))
    acknowledged = acknowledged_by(directory, (1, 2), writer)
    return acknowledged > ACKNOWLEDGED_MIN and any(event["kind"] == "read" for event in reads)


def acknowledged_by(directory: Path, numbers: Sequence[int], writer: str = "writer") -> int:
    written = [(number, event) for number in numbers for event in read_journal(journal(directory, writer, number))]
    return len({(number, event["batch"]) for number, event in written if event["kind"] == "acknowledged"})


def await_progress(directory: Path, sizes: dict[tuple[str, int], int]) -> None:
    """Wait until each process that was started has done something."""
    grown = lambda who, size: size_of(journal(directory, *who)) > size + 1  # noqa: E731
    wait_for(lambda: all(grown(who, size) for who, size in sizes.items()), f"some work in each of {sorted(sizes)}")


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def journal(directory: Path, role: str, number: int) -> Path:
    return directory / f"{role}-{number}.journal"


def check(location: str, directory: Path, figures: Figures, writers: Sequence[int] = (1, 2)) -> None:
    """Compare the journals with the state that a process that starts now finds."""
    figures.acknowledged = figures.attempted = 0
    started = time.monotonic()
    table = warehouse_of(location).table(NAME)
    figures.slowest_start_s = max(figures.slowest_start_s, time.monotonic() - started)
    stored = Counter(table.to_arrow(columns=["id"]).column("id").to_pylist())
    hot = hot_rows(table)
    known = 0
    for number in writers:
        events = list(read_journal(journal(directory, "writer", number)))
        acknowledged = {e["batch"]: e["offsets"] for e in events if e["kind"] == "acknowledged"}
        attempted = {e["batch"] for e in events if e["kind"] == "attempt"}
        figures.acknowledged += len(acknowledged)
        figures.attempted += len(attempted)
        for batch in attempted:
            ids = rows_of(number, batch).column("id").to_pylist()
            times = {stored[i] for i in ids}
            allowed = {1} if batch in acknowledged else {0, 1}
            is_whole = len(times) == 1 and times <= allowed
            assert is_whole, f"batch {batch} of writer {number} is stored {times} times, allowed are {allowed}"
            known += len(ids) if times == {1} else 0
        for batch, offsets in acknowledged.items():
            check_place(set(rows_of(number, batch).column("id").to_pylist()), offsets, hot)
    assert known == stored.total(), f"{stored.total() - known} rows that nobody wrote"
    ends = sum(log.end for log in table.state.buckets.values())
    assert ends == stored.total(), f"the offsets end at {ends}, {stored.total()} rows are stored"
    figures.rows = ends
    figures.reads = sum(e["kind"] == "read" for e in read_journal(journal(directory, "reader", 1)))
    figures.rounds_tiered = sum(e["kind"] == "tiered" for e in read_journal(journal(directory, "tierer", 1)))
    check_files(table)
    tier(table)
    assert Counter(table.lake.to_arrow(columns=["id"]).column("id").to_pylist()) == stored, "the lake is not the table"


def hot_rows(table: Table) -> dict[tuple[int, int], int]:
    """(bucket, offset) → row, of the hot log."""
    state = table.refresh()
    found = {}
    for bucket, log in state.buckets.items():
        split = plan_range(state, bucket, log.offsets)
        for batch in check_dense(read_split(table.storage, split, state.schema, ["id"]), log.offsets):
            for place, row_id in enumerate(batch.batch.column("id").to_pylist(), batch.base_offset):
                found[bucket, place] = row_id
    return found


def check_place(ids: set[int], offsets: dict[str, list[int]], hot: dict[tuple[int, int], int]) -> None:
    """The offsets that a batch was given hold its rows, as far as the log still has them; a replay may give none."""
    for bucket, (start, end) in offsets.items():
        for offset in range(start, end):
            row_id = hot.get((int(bucket), offset))
            assert row_id is None or row_id in ids, f"offset {offset} of bucket {bucket} holds another row"


def check_files(table: Table) -> None:
    state = table.refresh()
    for segment in state.live_segments():
        verify_segment(table.storage, state.table_uuid, segment, state.written_schema(segment.schema_id).arrow)
