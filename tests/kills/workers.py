"""The processes that get killed: writers, a tierer that also maintains, and a reader.

Each writes a journal, one line per event, forced to disk before it goes on. Lines are complete or, where the process
died while writing, the last one is cut.
"""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pyarrow as pa

from kit.tables import tier
from streamhouse_spark import Table, Transaction, Warehouse

NAME = "sales.orders"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
WRITER_IDS = 10**12
BATCH_IDS = 10**4
CREW = 3
TEXT_CHARS = {1: 40, 5: 40, 40: 40, 400: 600}
"""By the rows of a batch: the largest are too large to travel in a commit record."""


def rows_of(writer: int, batch: int) -> pa.Table:
    """The rows of a batch, few or many, the same whenever they are sent."""
    count = tuple(TEXT_CHARS)[(batch * 7 + writer) % 4]
    first = writer * WRITER_IDS + batch * BATCH_IDS
    text = "x" * TEXT_CHARS[count]
    return pa.table({"id": pa.array(range(first, first + count), pa.int64()), "text": [text] * count}, schema=SCHEMA)


def warehouse_of(location: str) -> Warehouse:
    """Open the warehouse of these processes. A file beside the location may name another one, with its settings."""
    elsewhere = Path(f"{location}.json")
    return Warehouse(*json.loads(elsewhere.read_text())) if elsewhere.exists() else Warehouse(location)


class Journal:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(self._fd, b"\n")  # ends a line that the process before this one could not finish

    def write(self, kind: str, **values: Any) -> None:
        os.write(self._fd, json.dumps({"kind": kind, **values}).encode() + b"\n")
        os.fsync(self._fd)


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines."""
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def writer(location: str, journal_path: str, number: int) -> None:
    """Append batch after batch. Every second batch has a transaction, and is sent again after a restart."""
    write_on(warehouse_of(location).table(NAME), journal_path, number)


def crew(location: str, journal_path: str, number: int) -> None:
    """Write with several threads, which wait for one log: what they append goes into common records."""
    in_crew(Warehouse(location).table(NAME), journal_path, "writer", crew_of(number), write_on)


def in_crew(
    table: Table, journal_path: str, role: str, numbers: Sequence[int], work: Callable[[Table, str, int], None]
) -> None:
    """Run the work of each of these writers in a thread, with a journal of its own."""
    journal = Journal(journal_path)
    with ThreadPoolExecutor(len(numbers)) as pool:
        paths = {n: str(Path(journal_path).parent / f"{role}-{n}.journal") for n in numbers}
        writing = [pool.submit(work, table, path, n) for n, path in paths.items()]
        while not (ended := wait(writing, timeout=0.05, return_when=FIRST_EXCEPTION).done):
            journal.write("writing")
        journal.write("error", text=repr(next(iter(ended)).exception()))
        os._exit(1)


def crew_of(number: int) -> range:
    """Return the numbers of the writers of a crew."""
    return range(10 * number, 10 * number + CREW)


def write_on(table: Table, journal_path: str, number: int) -> None:
    """Append batch after batch, from where the journal ends."""
    events = list(read_journal(Path(journal_path)))
    journal = Journal(journal_path)
    sent = [e["batch"] for e in events if e["kind"] == "attempt"]
    acknowledged = {e["batch"] for e in events if e["kind"] == "acknowledged"}
    batch = (sent[-1] if sent else 0) + 1
    if sent and is_transaction(sent[-1]) and sent[-1] not in acknowledged:
        batch = sent[-1]
    while True:
        transaction = Transaction(f"writer-{number}", batch) if is_transaction(batch) else None
        journal.write("attempt", batch=batch)
        offsets = table.append(rows_of(number, batch), transaction=transaction)
        ranges = {str(b): [r.start, r.end] for b, r in offsets.items()}
        journal.write("acknowledged", batch=batch, offsets=ranges)
        batch += 1


def is_transaction(batch: int) -> bool:
    return batch % 2 == 0


def tierer(location: str, journal_path: str, number: int) -> None:
    """Tier, trim, merge and clean for ever."""
    journal = Journal(journal_path)
    table = warehouse_of(location).table(NAME)
    rounds = 0
    while True:
        report = tier(table)
        if rounds % 5 == number % 5:
            table.maintain()
        rounds += 1
        journal.write("tiered", rows=report.rows, conflicts=report.conflicts)
        time.sleep(0.01)


def reader(location: str, journal_path: str, _number: int) -> None:
    """Read the union again and again: no row twice, none that was there before missing."""
    journal = Journal(journal_path)
    table = warehouse_of(location).table(NAME)
    before: set[int] = set()
    while True:
        ids = table.to_arrow(columns=["id"]).column("id").to_pylist()
        seen = set(ids)
        assert len(seen) == len(ids), f"{len(ids) - len(seen)} rows twice"
        assert seen >= before, f"{len(before - seen)} rows vanished, for example {min(before - seen)}"
        before = seen
        journal.write("read", rows=len(ids))


ROLES: dict[str, Callable[[str, str, int], None]] = {
    "writer": writer,
    "crew": crew,
    "tierer": tierer,
    "reader": reader,
}


def run_for(cpu_s: float, role: str, location: str, journal_path: str, number: int) -> None:
    """Do the same, and be ended by SIGPROF after ``cpu_s`` seconds of work, if not 0, however busy the machine is."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    run(role, location, journal_path, number)


def run(role: str, location: str, journal_path: str, number: int) -> None:
    """Run a process's work. An error goes into the journal, where the test finds it."""
    from kills.keyed_workers import KEYED_ROLES
    from kills.verb_workers import VERB_ROLES

    try:
        {**ROLES, **KEYED_ROLES, **VERB_ROLES}[role](location, journal_path, number)
    except BaseException:  # noqa: BLE001 - whatever it is, the journal holds it
        Journal(journal_path).write("error", text=traceback.format_exc())
