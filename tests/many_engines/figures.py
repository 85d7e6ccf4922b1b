"""What the readers of a run said, as a table."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Figures:
    """The answers of one reader."""

    engine: str
    is_open: bool = False
    took_ms: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    states: set[tuple[str, int]] = field(default_factory=set)

    def take(self, line: Mapping[str, Any]) -> None:
        if "opened" in line:
            self.is_open = True
        elif "error" in line:
            self.errors[line["error"]] += 1
        else:
            self.took_ms.append(line["ms"])
            if "wrong" in line:
                self.wrong.append(line["wrong"])
            else:
                self.states.add((line["table"], line["state"]))

    @property
    def is_right(self) -> bool:
        """Whether it was there, had answers, and none of them was wrong or an error."""
        return self.is_open and bool(self.took_ms) and not self.wrong and not self.errors

    def row(self) -> list[str]:
        kinds = Counter[str]()
        for text, number in self.errors.items():
            kinds[text.partition(":")[0]] += number
        errors = ", ".join(f"{kind} {number}" for kind, number in kinds.most_common()) or "0"
        p50, p99 = percentiles(self.took_ms)
        queries = len(self.took_ms) + self.errors.total()
        found = [queries, len(self.states), len(self.wrong), errors, f"{p50:,.0f}", f"{p99:,.0f}"]
        return [self.engine, *(f"{one:,}" if isinstance(one, int) else one for one in found)]


def percentiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return (values[0], values[0]) if values else (0.0, 0.0)
    cut = statistics.quantiles(values, n=100, method="inclusive")
    return cut[49], cut[98]


HEAD = ["engine", "queries", "states seen", "wrong", "errors", "p50 ms", "p99 ms"]


def as_table(found: Iterable[Figures]) -> str:
    """A table in Markdown, whose columns are aligned."""
    rows = [HEAD, *(one.row() for one in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
