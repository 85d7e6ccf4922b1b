"""``top`` and ``costs``: live figures and monthly costs of all tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from streamhouse_spark.cli.session import Command, Session, pairs_option
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.table.status import TableOverview, read_overdue_failures
from streamhouse_spark.warehouse.table_batch import open_all
from streamhouse_spark.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from streamhouse_spark.table.costs import TableCosts
    from streamhouse_spark.warehouse.costs import WarehouseCosts

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
RowsAt = Mapping[str, tuple[int, int]]
"""Table → its row count, and the boot time in milliseconds at which it was read."""
_MIB = 1 << 20
PRICES: Final = pairs_option(
    "--price",
    "prices",
    metavar="NAME=USD",
    text="A price: puts_usd_per_1000, gets_usd_per_1000 or stored_usd_per_gib_month, by default the list price of "
    "Amazon S3.",
)


@click.command(
    "top",
    cls=Command,
    examples="""
streamhouse -w ./warehouse top

# for a script
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


def _collect_statuses(warehouse: Warehouse) -> tuple[list[TableOverview], Mapping[str, Exception]]:
    opened = open_all(warehouse)
    failures = read_overdue_failures(warehouse.storage, opened.tables)
    return opened.each(lambda table: TableOverview.of(table, failures.get(table.uuid, ()))), opened.failed


def _row_counts(warehouse: Warehouse, statuses: Sequence[TableOverview]) -> RowsAt:
    now_ms = warehouse.world.clock.boot_ms()
    return {status.table: (status.rows, now_ms) for status in statuses}


def compute_rates(before: RowsAt, now: RowsAt) -> Mapping[str, float]:
    """Return the rows per second of the tables that occur in both readings."""
    pairs = {name: (before[name], at) for name, at in now.items() if name in before}
    return {
        name: max(0.0, 1000 * (rows - old) / (at_ms - old_ms))
        for name, ((old, old_ms), (rows, at_ms)) in pairs.items()
        if at_ms > old_ms
    }


def draw_screen(
    url: str, statuses: Sequence[TableOverview], failed: Mapping[str, Exception], rates_by_table: Mapping[str, float]
) -> RichTable:
    """Return a table of all tables, the busiest first."""
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


@click.command(
    "costs",
    cls=Command,
    examples="""
streamhouse -w s3://lake/warehouse costs
streamhouse -w s3://lake/warehouse costs sales --price puts_usd_per_1000=0.0054
streamhouse -w s3://lake/warehouse costs --output json | jq .estimate.total_usd
""",
)
@click.argument("database", required=False)
@PRICES
@click.pass_obj
def costs(session: Session, database: str | None, prices: Mapping[str, str]) -> None:
    """Estimate the monthly cost of all tables on an object store.

    Give a DATABASE to restrict it to the tables of one database. The most expensive table comes first. The estimate
    uses the commits and tiering rounds of the last day. Queries and streams are not recorded and not included. An
    unreadable table is reported, and the command fails.
    """
    known_prices = parse_prices(prices)
    with session.output.spinner("read all tables"):
        estimate = session.warehouse.costs(known_prices, database=database)
    session.output.document(estimate.to_json(), lambda console: _render_all(estimate, console))
    for name, reason in estimate.failed.items():
        click.echo(f"{name} is not in the estimate: {reason}", err=True)
    if estimate.failed:
        raise click.exceptions.Exit(1)


def _render_all(costs: WarehouseCosts, console: Console) -> None:
    width = max([len("total"), *map(len, costs.tables)])
    for name, table_costs in sorted(costs.tables.items(), key=lambda item: -item[1].estimate.total_usd):
        work = table_costs.workload
        console.print(
            f"{name:<{width}} {_format_usd(table_costs.estimate.total_usd):>12} per month: {work.commits_per_day:,.0f} "
            f"commits and {work.rounds_per_day:,.0f} tiering rounds per day, "
            f"{_format_usd(table_costs.estimate.stored_usd)} for storage",
            markup=False,
        )
    month = costs.estimate
    console.print(
        f"{'total':<{width}} {_format_usd(month.total_usd):>12} per month: {month.puts_per_day:,.0f} PUT and LIST, "
        f"{month.gets_per_day:,.0f} GET and HEAD per day, {_format_usd(month.stored_usd)} for storage",
        markup=False,
    )
    console.print(f"prices: {month.prices.name}", markup=False)


def parse_prices(pairs: Mapping[str, str]) -> dict[str, float]:
    """Parse prices as numbers. Raises `InvalidOptionError`."""
    prices = {}
    for name, text in pairs.items():
        try:
            prices[name] = float(text)
        except ValueError:
            raise InvalidOptionError(
                f"--price {name}: found {text!r}, expected US dollars, such as {name}=0.005"
            ) from None
    return prices


def render_costs(name: str, costs: TableCosts, console: Console) -> None:
    work, month = costs.workload, costs.estimate
    archived = f"{work.archive_bytes / _MIB:,.1f} MiB of older changes, " if work.archive_bytes else ""
    stored = f"{work.hot_bytes / _MIB:,.1f} MiB hot, {archived}{work.lake_bytes / _MIB:,.1f} MiB in the lake"
    for label, value in (
        ("table", name),
        ("commits", f"{work.commits_per_day:,.0f} per day"),
        ("tiering rounds", f"{work.rounds_per_day:,.0f} per day"),
        ("stored", f"{stored}, {_format_usd(month.stored_usd)} per month"),
        ("PUT, LIST", f"{month.puts_per_day:,.0f} per day, {_format_usd(month.puts_usd)} per month"),
        ("GET, HEAD", f"{month.gets_per_day:,.0f} per day, {_format_usd(month.gets_usd)} per month, without readers"),
        ("total", f"{_format_usd(month.total_usd)} per month"),
        ("prices", month.prices.name),
    ):
        console.print(f"{label:<15} {value}", markup=False)


def _format_usd(amount: float) -> str:
    return f"${amount:,.2f}"
