"""A whole run: engines that query two tables while these are written, tiered, compacted and expired."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from many_engines.checks import Acknowledged
from many_engines.engines import Addresses
from many_engines.figures import Figures
from many_engines.processes import TESTS, Server, TieringService, make_warehouse, own_process
from many_engines.trino import running_trino
from many_engines.written import CHOICES

WRITE_PACE_S = 0.1
OPENING_S = 240
"""Time that an engine may take until it is open. The clock of a run begins when all are."""
QUERY_S_MAX = 150


@dataclass(frozen=True)
class Outcome:
    figures: list[Figures]
    writes: dict[str, int]
    rounds: int
    """Of tiering, of both tables."""
    upkeep: str
    failures: list[str]
    """Processes that ended early, or with a code."""

    @property
    def is_right(self) -> bool:
        return not self.failures and self.rounds > 0 and all(one.is_right for one in self.figures)


def run(
    folder: Path, engines: Sequence[str], seconds: float, *, trino: Path | None = None, tell: Callable[[str], None]
) -> Outcome:
    """Raises `RuntimeError` where a server does not start."""
    make_warehouse(folder)
    with ExitStack() as stack:
        servers = [Server(folder, number) for number in range(2)]
        for server in servers:
            stack.callback(server.process.kill)
        at = ""
        if "Trino" in engines and trino is not None:
            at = stack.enter_context(running_trino(folder, trino, f"{servers[0].http}/iceberg"))
        service = TieringService(folder)
        stack.callback(service.process.kill)
        readers = []
        for number, name in enumerate(engines):
            server = servers[number % 2]
            addresses = Addresses(server.http, server.flight, str(folder / "warehouse"), at)
            readers.append(_Reader(name, addresses, folder, seconds, number))
            stack.callback(readers[-1].process.kill)
        _open(readers)
        writer = own_process("write", folder=folder, seconds=seconds, pace_s=WRITE_PACE_S)
        upkeep = own_process("keep_up", folder=folder, seconds=seconds)
        for process in (writer, upkeep):
            stack.callback(process.kill)
        _wait(readers, seconds, tell, folder)
        failures = [text for reader in readers if (text := reader.ended())]
        told = upkeep.communicate(timeout=QUERY_S_MAX)[0].strip()
        for name, process in {"the writer": writer, "upkeep": upkeep}.items():
            failures += [f"{name} ended with {code}"] if (code := process.wait(QUERY_S_MAX)) else []
        rounds = service.stop()
        failures += [text for server in servers if (text := server.stop())]
    acknowledged = Acknowledged(folder / "acknowledged")
    writes = {name: acknowledged.get(name) for name in CHOICES}
    return Outcome([reader.figures for reader in readers], writes, rounds, told, failures)


class _Reader:
    """The process of an engine, and a thread that takes what it says."""

    def __init__(self, engine: str, at: Addresses, folder: Path, seconds: float, seed: int) -> None:
        self.figures = Figures(engine)
        self.log = folder / f"reader-{seed}.log"
        asked = {"engine": engine, "at": asdict(at), "folder": str(folder), "seconds": seconds, "seed": seed}
        command = [sys.executable, "-m", "many_engines.reader", json.dumps(asked)]
        with self.log.open("w") as log:
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(command, cwd=TESTS, stdin=pipe, stdout=pipe, stderr=log, text=True)
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # an engine may print something of its own
                self.figures.take(json.loads(line))

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
            code = self.process.wait(QUERY_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._thread.join(60)
        return f"{self.figures.engine} ended with {code}: {self.log.read_text()[-500:]}" if code else ""


def _open(readers: Sequence[_Reader]) -> None:
    end = time.monotonic() + OPENING_S
    while time.monotonic() < end and any(not one.figures.is_open and one.process.poll() is None for one in readers):
        time.sleep(0.2)
    for reader in readers:
        reader.begin()


def _wait(readers: Sequence[_Reader], seconds: float, tell: Callable[[str], None], folder: Path) -> None:
    """Tell every half minute how far the run is, until all readers have ended."""
    began, acknowledged = time.monotonic(), Acknowledged(folder / "acknowledged")
    next_at = began + 30
    while time.monotonic() < began + seconds + QUERY_S_MAX and any(one.process.poll() is None for one in readers):
        time.sleep(0.2)
        if time.monotonic() >= next_at:
            next_at += 30
            found = [one.figures for one in readers]
            answers, wrong = sum(len(one.took_ms) for one in found), sum(len(one.wrong) for one in found)
            errors = sum(one.errors.total() for one in found)
            writes = " and ".join(f"{acknowledged.get(name):,}" for name in CHOICES)
            took_s = time.monotonic() - began
            tell(f"{took_s:,.0f} s: {answers:,} answers, {wrong} wrong, {errors} errors; {writes} writes")
