"""Results that are kept: the figures of one run with the machine that gave them, as JSON beside the benchmarks.

A run with ``--keep NAME`` writes ``benchmarks/results/NAME.json``; `plots` draws it, and writes its table
into ``results/README.md``.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.measure import Figure

FOLDER = Path(__file__).parent / "results"
PACKAGES = (
    *("pyarrow", "pyspark", "pyiceberg", "pypaimon", "pypaimon-rust", "deltalake", "duckdb", "lmdb", "numpy"),
    "confluent-kafka",
)


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine, and how busy it was."""

    processor: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    packages: dict[str, str]
    fsync_ms: float
    """Median time of writing 4 KiB to a new file and syncing it, on the disk that was measured."""
    load_before: float
    load_after: float
    """Processes that wanted a core, in the minute before the run and in its last."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, as it was printed."""

    name: str
    unit: str
    ours: float
    peer_name: str
    peer: float
    ratio: float
    pairs: int
    goal: str | None
    note: str
    verdict: str

    @property
    def is_rate(self) -> bool:
        """Whether more is better."""
        return self.unit.endswith("/s")

    @property
    def advantage(self) -> float:
        """How many times as fast, or as small, as the peer."""
        return self.ratio if self.is_rate else 1 / self.ratio


@dataclass(frozen=True, slots=True)
class Results:
    day: str
    commit: str
    machine: Machine
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "rows": [asdict(row) for row in self.rows]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Results:
        rows = tuple(Row(**row) for row in data["rows"])
        return cls(data["day"], data["commit"], Machine(**data["machine"]), rows)


def rows_of(figures: Iterable[Figure]) -> tuple[Row, ...]:
    return tuple(Row(**figure.to_json()) for figure in figures)


def this_machine(scratch: Path, load_before: float) -> Machine:
    """Describe the machine at the end of a run."""
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        packages={name: found for name in PACKAGES if (found := _version(name)) is not None},
        fsync_ms=round(fsync_ms(scratch), 2),
        load_before=round(load_before, 1),
        load_after=round(os.getloadavg()[0], 1),
    )


def keep(name: str, figures: Sequence[Figure], machine: Machine, folder: Path = FOLDER) -> Path:
    """Write the results of a run; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    results = Results(time.strftime("%Y-%m-%d", time.gmtime()), _commit(), machine, rows_of(figures))
    path = folder / f"{name}.json"
    path.write_text(json.dumps(results.to_json(), indent=1, ensure_ascii=False) + "\n", "utf-8")
    return path


def kept(path: Path) -> Results:
    return Results.from_json(json.loads(path.read_text("utf-8")))


def fsync_ms(folder: Path) -> float:
    """Return the median time in which the disk makes a small new file durable."""
    times = []
    for number in range(21):
        path = folder / f"fsync-{number}"
        began = time.perf_counter()
        with path.open("wb") as file:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
        times.append(time.perf_counter() - began)
        path.unlink()
    return statistics.median(times) * 1e3


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
    return done.stdout.strip() or "unknown"
