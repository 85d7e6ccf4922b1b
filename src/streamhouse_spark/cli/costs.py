"""``describe --costs``: the estimate of a table's costs as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console

from streamhouse_spark.errors import InvalidOptionError

if TYPE_CHECKING:
    from streamhouse_spark.table.costs import TableCosts

_MIB = 1 << 20


def parse_prices(pairs: Mapping[str, str]) -> dict[str, float]:
    """Read prices as numbers. Raises `InvalidOptionError`."""
    found = {}
    for name, text in pairs.items():
        try:
            found[name] = float(text)
        except ValueError:
            raise InvalidOptionError(
                f"--price {name}: found {text!r}, expected US dollars, such as {name}=0.005"
            ) from None
    return found


def render_costs(name: str, costs: TableCosts, console: Console) -> None:
    work, month = costs.workload, costs.estimate
    hot_mib, lake_mib = work.hot_bytes / _MIB, work.lake_bytes / _MIB
    for label, value in (
        ("table", name),
        ("commits", f"{work.commits_per_day:,.0f} a day"),
        ("tiering rounds", f"{work.rounds_per_day:,.0f} a day"),
        ("stored", f"{hot_mib:,.1f} MiB hot, {lake_mib:,.1f} MiB in the lake, {_usd(month.stored_usd)} a month"),
        ("PUT, LIST", f"{month.puts_per_day:,.0f} a day, {_usd(month.puts_usd)} a month"),
        ("GET, HEAD", f"{month.gets_per_day:,.0f} a day, {_usd(month.gets_usd)} a month, and those of readers"),
        ("together", f"{_usd(month.total_usd)} a month"),
        ("prices", month.prices.name),
    ):
        console.print(f"{label:<15} {value}", markup=False)


def _usd(amount: float) -> str:
    return f"${amount:,.2f}"
