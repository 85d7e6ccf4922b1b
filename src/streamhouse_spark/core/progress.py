"""Progress of long reads and writes, in notebooks and interactive terminals. Scripts and logs show nothing."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, TypeVar

from streamhouse_spark.core.clock import Clock, SystemClock

PROGRESS_VARIABLE: Final = "STREAMHOUSE_PROGRESS"
"""``off`` shows nothing anywhere."""
SHOWN_AFTER_MS: Final = 2_000
SYSTEM: Final = SystemClock()
_UPDATE_MS: Final = 200


class _Rows(Protocol):
    @property
    def num_rows(self) -> int: ...


_R = TypeVar("_R", bound=_Rows)


class Display(Protocol):
    def update(self, num_rows: int) -> None: ...

    def close(self) -> None:
        """Remove the display."""


def track_rows(parts: Iterator[_R], text: str, total: int | None, clock: Clock = SYSTEM) -> Iterator[_R]:
    """Return an iterator over the same parts that shows how many rows they had, once they take two seconds.

    ``text`` says what is done, ``total`` is the number of all rows if it is known.
    """
    open_display = find_display()
    return parts if open_display is None else _track(parts, lambda: open_display(text, total), clock)


def _track(parts: Iterator[_R], open_display: Callable[[], Display], clock: Clock) -> Iterator[_R]:
    display: Display | None = None
    num_rows, due_ms = 0, clock.boot_ms() + SHOWN_AFTER_MS
    try:
        for part in parts:
            num_rows += part.num_rows
            if clock.boot_ms() >= due_ms:
                display = display or open_display()
                display.update(num_rows)
                due_ms = clock.boot_ms() + _UPDATE_MS
            yield part
    finally:
        if display is not None:
            display.close()


def find_display() -> Callable[[str, int | None], Display] | None:
    """Return the display of the session that the user types into; None for a script."""
    if os.environ.get(PROGRESS_VARIABLE, "").lower() == "off":
        return None
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if type(shell).__name__ == "ZMQInteractiveShell":
        return _NotebookLine
    is_interactive = shell is not None or hasattr(sys, "ps1")
    return _TerminalBar if is_interactive and sys.stderr.isatty() else None


class _NotebookLine:
    """A line below the cell. Rich's bars need ipywidgets there."""

    def __init__(self, text: str, total: int | None) -> None:
        display: Any = importlib.import_module("IPython.display").display  # some releases have no types
        self._text = text
        self._of = "" if total is None else f" of {total:,}"
        self._handle: Any = display({"text/plain": text}, raw=True, display_id=True)

    def update(self, num_rows: int) -> None:
        self._handle.update({"text/plain": f"{self._text}: {num_rows:,}{self._of} rows"}, raw=True)

    def close(self) -> None:
        self._handle.update({"text/plain": ""}, raw=True)


class _TerminalBar:
    def __init__(self, text: str, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("rows"))
        self._progress = Progress(
            *columns, TimeElapsedColumn(), console=Console(file=sys.stderr), transient=True, redirect_stdout=False
        )
        self._task = self._progress.add_task(text, total=total)
        self._progress.start()

    def update(self, num_rows: int) -> None:
        self._progress.update(self._task, completed=num_rows)

    def close(self) -> None:
        self._progress.stop()
