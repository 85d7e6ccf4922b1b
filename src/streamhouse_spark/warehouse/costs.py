"""Costs of a warehouse on an object store: the requests of this process, and the estimates of its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import StreamhouseError, TableNotFoundError
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import map_with_store_concurrency
from streamhouse_spark.storage.request_metrics import METER, NO_REQUESTS, RequestCounts
from streamhouse_spark.table.costs import CostEstimate, Prices, TableCosts, log_requests, table_costs
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.listing import TableSummary


@dataclass(frozen=True, slots=True)
class WarehouseCosts:
    """Requests of this process since it started, and the estimated costs of all processes, in total and per table."""

    requests: RequestCounts
    """Requests of all tables, and requests that belong to no table, such as listings."""
    estimate: CostEstimate
    tables: Mapping[str, TableCosts]
    failed: Mapping[str, str]
    """Table → why it cannot be read. These tables are not in the estimate."""

    def to_json(self) -> dict[str, Any]:
        return {
            "requests": {**asdict(self.requests), "total": self.requests.total},
            "estimate": {**asdict(self.estimate), "total_usd": self.estimate.total_usd},
            "tables": {name: costs.to_json() for name, costs in self.tables.items()},
            "failed": dict(self.failed),
        }


def warehouse_costs(
    storage: Storage,
    listed: Iterable[TableSummary],
    open_table: Callable[[TableSummary], Table],
    prices: Mapping[str, Any] | None = None,
) -> WarehouseCosts:
    """Measure and estimate the costs of tables in their latest states; see `Warehouse.costs`."""
    chosen = Prices.of(prices or {})

    def measure(summary: TableSummary) -> tuple[str, RequestCounts, TableCosts | StreamhouseError] | None:
        name, requests = str(summary.path), NO_REQUESTS
        try:
            table = open_table(summary)
            requests = log_requests(table)
            return name, requests, table_costs(table, prices)
        except TableNotFoundError:  # dropped since it was listed
            return None
        except StreamhouseError as error:
            return name, requests, error

    results = [result for result in map_with_store_concurrency(storage, measure, list(listed)) if result is not None]
    tables = {name: costs for name, _, costs in results if isinstance(costs, TableCosts)}
    failed = {name: str(error) for name, _, error in results if not isinstance(error, TableCosts)}
    requests = sum((log_counts for _, log_counts, _ in results), METER.of(storage.url))
    total = CostEstimate.total((costs.estimate for costs in tables.values()), chosen)
    return WarehouseCosts(requests, total, tables, failed)
