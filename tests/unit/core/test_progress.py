"""Long reads and writes show their progress to people who wait for them, and to nobody else."""

from __future__ import annotations

import io
import subprocess
import sys
import types
from typing import Any

import pyarrow as pa
import pytest

from faults.sim import SimClock
from kit.tables import tier
from streamhouse_spark.core import progress
from streamhouse_spark.core.progress import find_display, track_rows


class Screen:
    """Displays, as lists of what they showed."""

    def __init__(self) -> None:
        self.shown: list[Any] = []

    def open(self, text: str, total: int | None) -> Screen:
        self.shown.append((text, total))
        return self

    def update(self, num_rows: int) -> None:
        self.shown.append(num_rows)

    def close(self) -> None:
        self.shown.append("closed")


@pytest.fixture
def screen(monkeypatch) -> Screen:
    screen = Screen()
    monkeypatch.setattr(progress, "find_display", lambda: screen.open)
    return screen


def parts(clock: SimClock, count: int, wait_ms: int = 1500) -> Any:
    for _ in range(count):
        clock.advance(wait_ms)
        yield pa.table({"id": range(10)})


def test_work_of_two_seconds_is_shown_and_shorter_work_is_not(screen):
    clock = SimClock()
    assert len(list(track_rows(parts(clock, 1), "read d.t", 10, clock))) == 1
    assert screen.shown == []
    assert len(list(track_rows(parts(clock, 4), "read d.t", 40, clock))) == 4
    assert screen.shown == [("read d.t", 40), 20, 30, 40, "closed"]


def test_a_display_is_removed_when_the_work_fails(screen):
    clock = SimClock()

    def failing() -> Any:
        yield from parts(clock, 2)
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        list(track_rows(failing(), "read", None, clock))
    assert screen.shown == [("read", None), 20, "closed"]


def test_reads_counts_and_streams_of_a_table_are_tracked(wh, clock, screen, monkeypatch):
    monkeypatch.setattr(progress, "SHOWN_AFTER_MS", 0)
    table = wh.create_table("d.t", "id BIGINT", buckets=1)
    table.append(pa.table({"id": range(5)}).to_reader())
    assert screen.shown == [("append to d.t", None), 5, "closed"]
    tier(table)
    table.append([{"id": 5}])
    screen.shown.clear()
    table.to_pandas()
    assert screen.shown[0] == ("read d.t", 6)
    assert screen.shown[-1] == "closed"
    screen.shown.clear()
    assert table.scan(filter="id > 2").count() == 3
    assert screen.shown[0] == ("count d.t", None)
    screen.shown.clear()
    assert table.count() == 6
    assert screen.shown == []


def test_scripts_and_logs_show_nothing():
    code = "from streamhouse_spark.core.progress import find_display; print(find_display())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "None\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", ["ZMQInteractiveShell", "TerminalInteractiveShell", "python"])
def test_a_person_sees_a_display_unless_it_is_switched_off(monkeypatch, kind):
    shown: list[Any] = []

    class Handle:
        def update(self, value: Any, *, raw: bool) -> None:
            shown.append(value["text/plain"])

    display = types.ModuleType("IPython.display")
    display.display = lambda value, **_: (shown.append(value["text/plain"]), Handle())[1]
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: None if kind == "python" else type(kind, (), {})()
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert (find_display() is None) is (kind == "python")
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    opened = find_display()("read d.t", 1000)
    opened.update(500)
    opened.close()
    if kind == "ZMQInteractiveShell":
        assert shown == ["read d.t", "read d.t: 500 of 1,000 rows", ""]
    else:
        assert "read d.t" in terminal.getvalue()
    monkeypatch.setenv("STREAMHOUSE_PROGRESS", "off")
    assert find_display() is None
