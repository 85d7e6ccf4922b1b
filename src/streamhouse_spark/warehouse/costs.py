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
    """Requests of this process since its start, and the estimates for all processes, in total and per table.

    ``requests`` include those that belong to no table, such as listings and dropped tables.
    """

    requests: RequestCounts
    estimate: CostEstimate
    tables: Mapping[str, TableCosts]
    failed: Mapping[str, str]
    """Unreadable tables with the reason. They are not in the estimate."""

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
    """Measure and estimate the costs of tables in their latest states; ``open_table`` opens a table.

    An unreadable table does not fail the others. Raises as the listing, and `InvalidOptionError` for invalid prices.
    """
    chosen = Prices.of(prices or {})

    def look(summary: TableSummary) -> tuple[str, RequestCounts, TableCosts | StreamhouseError] | None:
        name, requests = str(summary.path), NO_REQUESTS
        try:
            table = open_table(summary)
            requests = log_requests(table)
            return name, requests, table_costs(table, prices)
        except TableNotFoundError:  # dropped since it was listed
            return None
        except StreamhouseError as error:
            return name, requests, error

    table_results = [
        table_result
        for table_result in map_with_store_concurrency(storage, look, list(listed))
        if table_result is not None
    ]
    tables = {name: costs for name, _, costs in table_results if isinstance(costs, TableCosts)}
    failed = {name: str(error) for name, _, error in table_results if not isinstance(error, TableCosts)}
    requests = sum((of_log for _, of_log, _ in table_results), METER.of(storage.url))
    together = CostEstimate.total((costs.estimate for costs in tables.values()), chosen)
    return WarehouseCosts(requests, together, tables, failed)
