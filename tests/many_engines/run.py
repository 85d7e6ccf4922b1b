"""A whole run: engines that query two tables while these are written, tiered, compacted and expired."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from many_engines.checks import Acknowledged
from many_engines.engines import Addresses
from many_engines.figures import Figures
from many_engines.kinds import KINDS
from many_engines.place import place_of
from many_engines.processes import ENDING_S_MAX, Process, Server, TieringService, make_warehouse, task
from many_engines.query_servers import query_servers
from many_engines.written import CHOICES

WRITE_PACE_S = 0.1
OPENING_S = 400
"""Time that an engine may take until it is open. The clock of a run begins when all are."""


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


def run(folder: Path, engines: Sequence[str], seconds: float, *, tell: Callable[[str], None]) -> Outcome:
    """Raises `RuntimeError` where a server does not start."""
    make_warehouse(folder)
    place = place_of(folder)
    with ExitStack() as stack:
        others = stack.enter_context(query_servers(folder, (KINDS[name].server for name in engines)))
        servers = [Server(folder, number) for number in range(2)]
        for server in servers:
            stack.callback(server.process.kill)
        service = TieringService(folder)
        stack.callback(service.process.kill)
        figures, told, processes = [Figures(name) for name in engines], {}, []
        for number, one in enumerate(figures):
            server = servers[number % 2]
            addresses = Addresses(server.http, server.flight, place.url, place.settings, others)
            processes.append(_reader(one, addresses, folder, seconds, number))
        processes.append(task(folder, "write", told.update, seconds=seconds, pace_s=WRITE_PACE_S))
        processes.append(task(folder, "keep_up", told.update, seconds=seconds))
        for process in processes:
            stack.callback(process.process.kill)
        _begin(processes)
        _wait(processes, figures, seconds, tell, folder)
        failures = [text for process in processes if (text := process.ended())]
        rounds = service.stop()
        failures += [text for server in servers if (text := server.stop())]
    acknowledged = Acknowledged(folder / "acknowledged")
    writes = {name: acknowledged.get(name) for name in CHOICES}
    upkeep = ", ".join(f"{number} × {step}" for step, number in told.items() if step != "opened")
    return Outcome(figures, writes, rounds, upkeep, failures)


def _reader(figures: Figures, at: Addresses, folder: Path, seconds: float, seed: int) -> Process:
    asked = {"engine": figures.engine, "at": asdict(at), "folder": str(folder), "seconds": seconds, "seed": seed}
    log = folder / f"reader-{seed}.log"
    return Process(figures.engine, "reader", [json.dumps(asked)], log, figures.take)


def _begin(processes: Sequence[Process]) -> None:
    """Let all begin once all are open, or have ended."""
    end = time.monotonic() + OPENING_S
    while time.monotonic() < end and any(not one.is_open and not one.has_ended for one in processes):
        time.sleep(0.2)
    for one in processes:
        one.begin()


def _wait(
    processes: Sequence[Process],
    found: Sequence[Figures],
    seconds: float,
    tell: Callable[[str], None],
    folder: Path,
) -> None:
    """Tell every half minute how far the run is, until all have ended."""
    began, acknowledged = time.monotonic(), Acknowledged(folder / "acknowledged")
    next_at = began + 30
    while time.monotonic() < began + seconds + ENDING_S_MAX and not all(one.has_ended for one in processes):
        time.sleep(0.2)
        if time.monotonic() >= next_at:
            next_at += 30
            answers, wrong = sum(len(one.took_ms) for one in found), sum(len(one.wrong) for one in found)
            errors = sum(one.errors.total() for one in found)
            writes = " and ".join(f"{acknowledged.get(name):,}" for name in CHOICES)
            took_s = time.monotonic() - began
            tell(f"{took_s:,.0f} s: {answers:,} answers, {wrong} wrong, {errors} errors; {writes} writes")
