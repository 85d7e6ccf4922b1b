"""``costs`` and ``describe --costs``: cost estimates of a warehouse or a table, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click
from rich.console import Console

from streamhouse_spark.cli.session import Command, Session, take_pairs
from streamhouse_spark.errors import InvalidOptionError

if TYPE_CHECKING:
    from streamhouse_spark.table.costs import TableCosts
    from streamhouse_spark.warehouse.costs import WarehouseCosts

_MIB = 1 << 20


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
@click.option(
    "--price",
    "prices",
    metavar="NAME=USD",
    multiple=True,
    callback=take_pairs,
    help="A price: puts_usd_per_1000, gets_usd_per_1000, stored_usd_per_gib_month. May be given several times; the "
    "others are list prices of Amazon S3.",
)
@click.pass_obj
def costs(session: Session, database: str | None, prices: Mapping[str, str]) -> None:
    """Estimate the monthly cost of all tables on an object store.

    Restrict it to one DATABASE if given; the most expensive tables come first. The estimate uses the commits and
    tiering rounds of the last day. Queries and streams are not recorded and not included. An unreadable table is
    reported, and the command fails.
    """
    known_prices = parse_prices(prices)
    with session.output.working("read all tables"):
        estimate = session.warehouse.costs(known_prices, database=database)
    session.output.document(estimate.to_json(), lambda console: _render_all(estimate, console))
    for name, reason in estimate.failed.items():
        click.echo(f"{name} is not in the estimate: {reason}", err=True)
    if estimate.failed:
        raise click.exceptions.Exit(1)


def _render_all(costs: WarehouseCosts, console: Console) -> None:
    dearest = sorted(costs.tables.items(), key=lambda item: -item[1].estimate.total_usd)
    width = max([len("together"), *map(len, costs.tables)])
    for name, table_costs in dearest:
        work = table_costs.workload
        console.print(
            f"{name:<{width}} {_format_usd(table_costs.estimate.total_usd):>12} a month: {work.commits_per_day:,.0f} "
            f"commits and {work.rounds_per_day:,.0f} tiering rounds a day, "
            f"{_format_usd(table_costs.estimate.stored_usd)} for the bytes",
            markup=False,
        )
    month = costs.estimate
    console.print(
        f"{'together':<{width}} {_format_usd(month.total_usd):>12} a month: {month.puts_per_day:,.0f} PUT and LIST, "
        f"{month.gets_per_day:,.0f} GET and HEAD a day, {_format_usd(month.stored_usd)} for the bytes",
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
        ("commits", f"{work.commits_per_day:,.0f} a day"),
        ("tiering rounds", f"{work.rounds_per_day:,.0f} a day"),
        ("stored", f"{stored}, {_format_usd(month.stored_usd)} a month"),
        ("PUT, LIST", f"{month.puts_per_day:,.0f} a day, {_format_usd(month.puts_usd)} a month"),
        ("GET, HEAD", f"{month.gets_per_day:,.0f} a day, {_format_usd(month.gets_usd)} a month, and those of readers"),
        ("together", f"{_format_usd(month.total_usd)} a month"),
        ("prices", month.prices.name),
    ):
        console.print(f"{label:<15} {value}", markup=False)


def _format_usd(amount: float) -> str:
    return f"${amount:,.2f}"
