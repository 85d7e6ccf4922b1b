"""``top``: all tables on one screen, refreshed continuously."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

import click
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from streamhouse_spark.cli.session import Command, Session
from streamhouse_spark.table.table_status import TableOverview, read_overdue_failures
from streamhouse_spark.warehouse.table_batch import open_all
from streamhouse_spark.warehouse.warehouse import Warehouse

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


@click.command(
    "top",
    cls=Command,
    examples="""
streamhouse -w ./warehouse top

# once, for a script
streamhouse -w ./warehouse top --once --output json | jq 'select(.is_late)'
""",
)
@click.option(
    "--interval",
    type=click.FloatRange(0.5, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two refreshes.",
)
@click.option("--once", is_flag=True, help="Show once and exit; the default without a terminal.")
@click.pass_obj
def top(session: Session, interval: float, *, once: bool) -> None:
    """Show all tables live: rows, rows per second, and the lag of each lake.

    The busiest table comes first. Runs until Ctrl-C.
    """
    warehouse = session.warehouse
    if session.output.as_json:
        for status in _collect_statuses(warehouse)[0]:
            session.output.document(status.to_json(), lambda _: None)
    elif once or not sys.stdout.isatty():
        session.output.console.print(draw_screen(warehouse.url, *_collect_statuses(warehouse), {}))
    else:
        with Live(screen=True, auto_refresh=False) as live:
            watch(warehouse, interval, lambda drawn: live.update(drawn, refresh=True))


def watch(warehouse: Warehouse, interval_s: float, show: Callable[[RichTable], None]) -> NoReturn:
    """Show all tables continuously."""
    before: RowsAt = {}
    while True:
        statuses, failed = _collect_statuses(warehouse)
        now = _row_counts(warehouse, statuses)
        show(draw_screen(warehouse.url, statuses, failed, compute_rates(before, now)))
        before = now
        warehouse.world.clock.sleep_ms(interval_s * 1000)


RowsAt = Mapping[str, tuple[int, int]]
"""Table → its rows, and the boot time in milliseconds of the reading."""


def _collect_statuses(warehouse: Warehouse) -> tuple[list[TableOverview], Mapping[str, Exception]]:
    opened = open_all(warehouse)
    failures = read_overdue_failures(warehouse.storage, opened.tables)
    return opened.each(lambda table: TableOverview.of(table, failures.get(table.uuid, ()))), opened.failed


def _row_counts(warehouse: Warehouse, statuses: Sequence[TableOverview]) -> RowsAt:
    now_ms = warehouse.world.clock.boot_ms()
    return {status.table: (status.rows, now_ms) for status in statuses}


def compute_rates(before: RowsAt, now: RowsAt) -> Mapping[str, float]:
    """Return the rows per second of tables in both readings."""
    pairs = {name: (before[name], at) for name, at in now.items() if name in before}
    return {
        name: max(0.0, 1000 * (rows - old) / (at_ms - old_ms))
        for name, ((old, old_ms), (rows, at_ms)) in pairs.items()
        if at_ms > old_ms
    }


def draw_screen(
    url: str, statuses: Sequence[TableOverview], failed: Mapping[str, Exception], rates_by_table: Mapping[str, float]
) -> RichTable:
    """Draw the tables, the busiest first."""
    drawn = RichTable(title=Text(url), title_justify="left", box=None, pad_edge=False, header_style="bold")
    drawn.add_column("table", overflow="fold")
    for name in ("rows", "rows/s", "not in the lake", "oldest of them", "hot log", "version"):
        drawn.add_column(name, justify="right")
    if shows_failures := any(status.failing for status in statuses):
        drawn.add_column("last round", overflow="fold")
    for status in sorted(statuses, key=lambda status: (-rates_by_table.get(status.table, 0), status.table)):
        speed = rates_by_table.get(status.table)
        cells = (
            f"{status.rows:,}",
            "" if speed is None else f"{speed:,.0f}",
            "no lake" if status.lag_rows is None else f"{status.lag_rows:,}",
            "" if not status.untiered_s else f"{status.untiered_s:,.0f} s{' late' if status.is_late else ''}",
            _size(status.hot_bytes),
            f"{status.version:,}",
        )
        last = [f"{status.failing}, {status.failed_s:,.0f} s ago" if status.failing else ""] if shows_failures else []
        drawn.add_row(Text(status.table), *cells, *last, style="red" if status.is_late or status.failing else "")
    for name, error in sorted(failed.items()):
        drawn.add_row(Text(name), Text(str(error)), style="red")
    return drawn


def _size(num_bytes: int) -> str:
    size, unit = float(num_bytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:,.1f} {_UNITS[unit]}" if unit else f"{num_bytes} B"
