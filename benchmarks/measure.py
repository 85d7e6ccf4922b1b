"""Paired measuring: what is compared runs in turns, and the ratio is the median of the ratios of the turns.

On a shared machine a figure taken alone says little: the disk and the neighbours move it by a factor. Two figures
taken within the same moment move together, so their ratio holds.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Runs = Mapping[str, list[float]]
"""Contestant → seconds, one per round."""


def say(text: str) -> None:
    """Tell the user what takes time now; no figure."""
    sys.stderr.write(f"… {text}\n")
    sys.stderr.flush()


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def in_turns(contestants: Mapping[str, Callable[[], float]], rounds: int, *, warm_up: int = 0) -> Runs:
    """Run each contestant once a round. Each says how many seconds it took, so what it prepares is not counted.

    Who begins changes with every round, so that nobody always inherits the other's dirty pages.
    """
    names = list(contestants)
    runs: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-warm_up, rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            seconds = contestants[name]()
            if number >= 0:
                runs[name].append(seconds)
    return runs


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on our figure over the peer's, or on ours alone."""

    of: Literal["ratio", "ours"]
    sense: Literal["<=", ">="]
    bound: float

    def is_met(self, ours: float, ratio: float) -> bool:
        value = ratio if self.of == "ratio" else ours
        return value <= self.bound if self.sense == "<=" else value >= self.bound

    def __str__(self) -> str:
        sign = "≤" if self.sense == "<=" else "≥"
        return f"{sign} {self.bound:.3g}" + ("x" if self.of == "ratio" else "")


def ratio_at_most(bound: float) -> Goal:
    return Goal("ratio", "<=", bound)


def ratio_at_least(bound: float) -> Goal:
    return Goal("ratio", ">=", bound)


def ours_at_most(bound: float) -> Goal:
    return Goal("ours", "<=", bound)


def ours_at_least(bound: float) -> Goal:
    return Goal("ours", ">=", bound)


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the result. ``ratio`` is ours over the peer's, of each pair, in the middle."""

    name: str
    unit: str
    ours: float
    peer_name: str
    peer: float
    ratio: float
    pairs: int
    goal: Goal | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return "-"
        return "met" if self.goal.is_met(self.ours, self.ratio) else "missed"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "goal": str(self.goal) if self.goal else None, "verdict": self.verdict}


def time_figure(
    name: str, runs: Runs, peer: str, goal: Goal | None = None, *, ours: str = "ours", note: str = ""
) -> Figure:
    """Milliseconds: less is better."""
    mine, theirs = runs[ours], runs[peer]
    ratio = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
    return Figure(
        name, "ms", statistics.median(mine) * 1e3, peer, statistics.median(theirs) * 1e3, ratio, len(mine), goal, note
    )


def rate_figure(name: str, runs: Runs, peer: str, num_rows: int, goal: Goal | None = None, *, note: str = "") -> Figure:
    """Millions of rows a second: more is better."""
    mine, theirs = runs["ours"], runs[peer]
    ratio = statistics.median(b / a for a, b in zip(mine, theirs, strict=True))
    rates = [num_rows / statistics.median(seconds) / 1e6 for seconds in (mine, theirs)]
    return Figure(name, "M rows/s", rates[0], peer, rates[1], ratio, len(mine), goal, note)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


@dataclass(frozen=True, slots=True)
class Bench:
    """What a benchmark gets: a scratch directory of its own, and whether to be quick about it."""

    scratch: Path
    data: Path
    quick: bool

    def rounds(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def directory(self, name: str) -> Path:
        """A new empty directory in the scratch directory."""
        path = self.scratch / name
        path.mkdir(parents=True)
        return path
