"""The processes of a run besides its readers: servers, a tiering service, a writer, and upkeep."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from many_engines.checks import Acknowledged
from many_engines.place import place_of
from many_engines.written import (
    ACCOUNTS,
    ACCOUNTS_COLUMNS,
    CHOICES,
    EVENTS,
    EVENTS_COLUMNS,
    AccountsState,
    batch_rows,
    deleted_batch,
)
from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.table.maintenance.tiering import tier_table
from streamhouse_spark.write.auto_compaction import compact_small_segments

PROPERTIES = {"table.datalake.freshness": "2s", "table.log.ttl": "20s"}
TESTS = Path(__file__).parents[1]
"""Processes of these modules begin here."""
FIRST_WRITES = 12
"""Writes of each table that are tiered before anybody reads."""
UPKEEP_S = 7
LAKE_KEPT_MS = 180_000
"""Age up to which snapshots of the lake, and their files, are kept: far longer than a query takes."""
START_S_MAX = 240
ENDING_S_MAX = 300
_STREAMHOUSE = [sys.executable, "-c", "from streamhouse_spark.cli import main; main()"]


def make_warehouse(folder: Path) -> None:
    """Make both tables, with some writes in the lake."""
    warehouse = place_of(folder).open()
    spread = {"bucket.key": "id", **PROPERTIES}  # each batch is in all buckets
    events = warehouse.create_table(EVENTS, EVENTS_COLUMNS, buckets=3, properties=spread)
    accounts = warehouse.create_table(ACCOUNTS, ACCOUNTS_COLUMNS, primary_key=["id"], buckets=2, properties=PROPERTIES)
    acknowledged, state = Acknowledged(folder / "acknowledged"), AccountsState()
    for number in range(FIRST_WRITES):
        write_events(events, number)
        write_accounts(accounts, state)
    for name in CHOICES:
        acknowledged.put(name, FIRST_WRITES)
    for table in (events, accounts):
        tier_table(table, run_tasks_locally(table.storage, table.settings, table.world))


def write_events(table, number: int) -> None:
    batch = deleted_batch(number)
    table.append(batch_rows(number)) if batch is None else table.delete(where=[("batch", "=", batch)])


def write_accounts(table, state: AccountsState) -> None:
    kind, rows = state.advance()
    table.upsert(rows) if kind == "upsert" else table.delete(rows)


class Writer:
    """Goes on with the writes of one table."""

    def __init__(self, folder: Path, name: str) -> None:
        self._acknowledged = Acknowledged(folder / "acknowledged")
        self._table = place_of(folder).open().table(name)
        self._state = AccountsState()
        self._number = 0
        while self._number < FIRST_WRITES:
            self._number += 1
            self._state.advance()

    def write(self) -> None:
        if self._table.name == EVENTS:
            write_events(self._table, self._number)
        else:
            write_accounts(self._table, self._state)
        self._number += 1
        self._acknowledged.put(self._table.name, self._number)

    def write_until(self, end: float, pace_s: float) -> None:
        while time.monotonic() < end:
            self.write()
            time.sleep(pace_s)


def write(folder: Path, seconds: float, pace_s: float) -> None:
    """Write both tables, a thread each, and note what was acknowledged."""
    writers = [Writer(folder, name) for name in CHOICES]
    for writer in writers:
        writer.write()  # which loads what it needs
    wait_for_all()
    end = time.monotonic() + seconds
    with ThreadPoolExecutor(len(writers)) as pool:
        for done in [pool.submit(writer.write_until, end, pace_s) for writer in writers]:
            done.result()


def keep_up(folder: Path, seconds: float) -> None:
    """Compact, expire and maintain both tables again and again; prints how often each was done, and lost races."""
    warehouse, done = place_of(folder).open(), Counter()
    wait_for_all()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name in CHOICES:
            table = warehouse.table(name)
            now_ms = table.storage.now_ms()
            steps = {
                "maintenance": table.maintain,
                "compaction": table.lake.compact,
                "expiry": lambda: table.lake.expire_snapshots(retain_last=3, older_than_ms=now_ms - LAKE_KEPT_MS),  # noqa: B023
                "merge": partial(compact_small_segments, table),
            }
            for step, work in steps.items():
                try:
                    work()
                    done[step] += 1
                except CommitConflictError:
                    done[f"{step} lost a race"] += 1
        time.sleep(min(UPKEEP_S, max(0, end - time.monotonic())))
    print(json.dumps(done), flush=True)  # noqa: T201


def wait_for_all() -> None:
    """Say that this process is ready, and wait for the word that all are."""
    print(json.dumps({"opened": True}), flush=True)  # noqa: T201
    sys.stdin.readline()


class Server:
    """`streamhouse serve` in a process of its own, whose log is a file."""

    def __init__(self, folder: Path, number: int) -> None:
        self.log = folder / f"server-{number}.log"
        options = [*place_of(folder).options, "serve", "--port", "0", "--flight-port", "0"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen([*_STREAMHOUSE, *options], stderr=log)
        self.http, self.flight = _waited_for(self.log, r"at (http://\S+) .*Arrow Flight at (grpc\S+?)\)", self.process)

    def stop(self) -> str:
        """End it; returns a text where it had ended before, or did not end well."""
        early = self.process.poll()
        self.process.terminate()
        code, text = self.process.wait(120), self.log.read_text()
        if early is None and code == 0 and "Traceback" not in text:
            return ""
        return f"{self.log.name} ended {'early' if early is not None else 'late'}, with {code}: {text[-1000:]}"


class TieringService:
    """`streamhouse tier` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.reports = folder / "tiering.out"
        with self.reports.open("w") as out, (folder / "tiering.log").open("w") as log:
            options = [*place_of(folder).options, "--output", "json", "tier"]
            self.process = subprocess.Popen([*_STREAMHOUSE, *options], stdout=out, stderr=log)

    def stop(self) -> int:
        self.process.terminate()
        self.process.wait(120)
        return len(self.reports.read_text().splitlines())


class Process:
    """A program of these modules in a process of its own, and a thread that takes the lines of JSON that it says."""

    def __init__(self, name: str, module: str, words: list[str], log: Path, take: Callable[[Any], None]) -> None:
        self.name, self.is_open, self._log, self._take = name, False, log, take
        command, pipe = [sys.executable, "-m", f"many_engines.{module}", *words], subprocess.PIPE
        with log.open("w") as lines:
            self.process = subprocess.Popen(command, cwd=TESTS, stdin=pipe, stdout=pipe, stderr=lines, text=True)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # an engine may print something of its own
                said = json.loads(line)
                self.is_open |= "opened" in said
                self._take(said)

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def begin(self) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("begin\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # `ended` says why

    def ended(self) -> str:
        """Wait for its end; returns a text where it ended with a code."""
        try:
            code = self.process.wait(ENDING_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._thread.join(60)
        return f"{self.name} ended with {code}: {self._log.read_text()[-1000:]}" if code else ""


def task(folder: Path, name: str, take: Callable[[Any], None], **arguments: object) -> Process:
    """Start a task of this module."""
    words = [name, json.dumps({"folder": str(folder), **arguments})]
    return Process(name, "processes", words, folder / f"{name}.log", take)


def _waited_for(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> tuple[str, ...]:
    end = time.monotonic() + START_S_MAX
    while time.monotonic() < end:
        found = re.search(pattern, log.read_text())
        if found:
            return found.groups()
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise RuntimeError(f"a server did not start: {log.read_text()[-2000:]}")


if __name__ == "__main__":
    asked = json.loads(sys.argv[2])
    asked["folder"] = Path(asked["folder"])
    {"write": write, "keep_up": keep_up}[sys.argv[1]](**asked)
