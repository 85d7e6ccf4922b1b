"""Costs of a table on an object store: requests of this process, and an estimated monthly cost.

The estimate uses the commits and tiering rounds of the last day, the stored bytes, and the mean number of requests per
operation, which a test compares with a real store. It does not include readers, whose requests are not recorded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Final

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import may_have_external_log, names_prefix, table_prefix
from streamhouse_spark.errors import InvalidOptionError, ObjectNotFoundError, quote
from streamhouse_spark.log.actions import Append
from streamhouse_spark.log.record import Record, read_record
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.state import LAKE_HISTORY_MAX, TableState
from streamhouse_spark.read.archive_scan import count_archived_bytes
from streamhouse_spark.read.read_snapshot import ReadSnapshot, take_latest_snapshot
from streamhouse_spark.read.scan_planning import ScanRequest, scan_tiered_snapshot
from streamhouse_spark.read.snapshot_fallback import InitialSchema, read_with_fallback
from streamhouse_spark.storage.request_metrics import METER, NO_REQUESTS, RequestCounts
from streamhouse_spark.table_handle import TableHandle, log_url

DAY_MS: Final = 86_400_000
DAYS_PER_MONTH: Final = 30
GIB: Final = 1 << 30

COMMIT_PUTS: Final = 1.15
"""Requests for the record, checkpoints and compaction of inline rows. Larger appends also put segments."""
COMMIT_GETS: Final = 1.0
ROUND_PUTS: Final = 5.0
ROUND_PUTS_PER_BUCKET: Final = 1.0
ROUND_LISTS: Final = 3.0
ROUND_GETS: Final = 13.0
ROUND_GETS_PER_BUCKET: Final = 1.0
MAINTENANCE_RUNS_PER_DAY: Final = 144
"""The tiering service maintains a table every ten minutes."""
MAINTENANCE_PUTS: Final = 2.0
MAINTENANCE_LISTS: Final = 11.0
MAINTENANCE_GETS: Final = 14.0

_WINDOW_MS_MIN: Final = 60_000
"""The shortest history that is extrapolated to a day."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a store in US dollars. Deletions are free, as at most stores."""

    puts_usd_per_1000: float = 0.005
    """Price of PUT and LIST requests."""
    gets_usd_per_1000: float = 0.0004
    """Price of GET and HEAD requests."""
    stored_usd_per_gib_month: float = 0.023
    name: str = "Amazon S3 Standard, us-east-1, without discounts"

    @classmethod
    def of(cls, overrides: Mapping[str, Any]) -> Prices:
        """Override prices by field name. Raises `InvalidOptionError`."""
        names = [field.name for field in fields(cls) if field.name != "name"]
        for name, value in overrides.items():
            if name not in names:
                raise InvalidOptionError(f"unknown price {quote(name)}, expected one of {', '.join(names)}")
            if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
                raise InvalidOptionError(f"price {name}: found {quote(value)}, expected US dollars, at least 0")
        return replace(cls(), **overrides, name=f"given prices, otherwise {cls().name}") if overrides else cls()


@dataclass(frozen=True, slots=True)
class CostModelInput:
    """Daily operations on one table, and its stored bytes."""

    commits_per_day: float
    rounds_per_day: float
    """Tiering rounds that moved rows."""
    buckets: int = 1
    hot_bytes: int = 0
    lake_bytes: int = 0
    objects_per_commit: float = 0
    """Mean number of segments per record: 0 for a small append, one per bucket for a large append."""
    looks_per_day: float = 0
    """Polls of waiting readers, estimated by the caller because they are not recorded."""
    archive_bytes: int = 0
    """Changes that only the change archive retains."""


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """Requests per day, and US dollars per month of 30 days."""

    puts_per_day: float
    """PUT and LIST requests."""
    gets_per_day: float
    """GET and HEAD requests."""
    puts_usd: float
    gets_usd: float
    stored_usd: float
    prices: Prices

    @property
    def total_usd(self) -> float:
        return self.puts_usd + self.gets_usd + self.stored_usd

    @classmethod
    def total(cls, estimates: Iterable[CostEstimate], prices: Prices) -> CostEstimate:
        """Sum estimates at the same prices."""
        all_estimates = list(estimates)
        names = [field.name for field in fields(cls) if field.name != "prices"]
        return cls(
            **{name: sum(getattr(estimate, name) for estimate in all_estimates) for name in names}, prices=prices
        )


@dataclass(frozen=True, slots=True)
class TableCosts:
    """Requests of this process for a table since it started, and the estimated cost of all processes."""

    requests: RequestCounts
    workload: CostModelInput
    estimate: CostEstimate

    def to_json(self) -> dict[str, Any]:
        return {
            "requests": {**asdict(self.requests), "total": self.requests.total},
            "workload": asdict(self.workload),
            "estimate": {**asdict(self.estimate), "total_usd": self.estimate.total_usd},
        }


def estimate(workload: CostModelInput, prices: Prices | None = None) -> CostEstimate:
    """Estimate the requests and cost of a workload."""
    prices = prices or Prices()
    rounds, buckets = workload.rounds_per_day, workload.buckets
    upkeeps = MAINTENANCE_RUNS_PER_DAY if rounds else 0
    puts = (
        workload.commits_per_day * (COMMIT_PUTS + workload.objects_per_commit)
        + rounds * (ROUND_PUTS + ROUND_LISTS + ROUND_PUTS_PER_BUCKET * buckets)
        + upkeeps * (MAINTENANCE_PUTS + MAINTENANCE_LISTS)
    )
    gets = (
        workload.commits_per_day * COMMIT_GETS
        + rounds * (ROUND_GETS + ROUND_GETS_PER_BUCKET * buckets)
        + upkeeps * MAINTENANCE_GETS
        + workload.looks_per_day
    )
    stored_gib = (workload.hot_bytes + workload.archive_bytes + workload.lake_bytes) / GIB
    return CostEstimate(
        puts_per_day=puts,
        gets_per_day=gets,
        puts_usd=puts * DAYS_PER_MONTH / 1000 * prices.puts_usd_per_1000,
        gets_usd=gets * DAYS_PER_MONTH / 1000 * prices.gets_usd_per_1000,
        stored_usd=stored_gib * prices.stored_usd_per_gib_month,
        prices=prices,
    )


def table_costs(table: TableHandle, prices: Mapping[str, Any] | None = None) -> TableCosts:
    """Measure and estimate the costs of a table in its latest state; see `Table.costs`.

    Reads a few records (about the logarithm of the day's commits), the manifests of the lake snapshot, and the pages of
    the change archive. Raises the errors of a read.
    """
    chosen = Prices.of(prices or {})
    state = table.refresh()

    def lake_bytes(snapshot: ReadSnapshot) -> int:
        # Only files of this snapshot are counted: those of older snapshots are unknown without reading their manifests.
        files = scan_tiered_snapshot(table, snapshot, ScanRequest(None)).files if snapshot.lake is not None else ()
        return sum(file.size_bytes for file in files)

    workload = replace(
        _measure_activity(table, state),
        lake_bytes=read_with_fallback(table, take_latest_snapshot(state), InitialSchema(()), lake_bytes),
        archive_bytes=count_archived_bytes(table, state),
    )
    prefixes = [table_prefix(state.table_uuid), names_prefix(table.path), f"{state.lake_location}/"]
    requests = METER.of(table.storage.url, prefixes) + log_requests(table)
    return TableCosts(requests, workload, estimate(workload, chosen))


def log_requests(table: TableHandle) -> RequestCounts:
    """Return the requests of this process for a log in another store than the warehouse."""
    if not may_have_external_log(table.uuid):
        return NO_REQUESTS
    prefix = table_prefix(table.uuid)
    return METER.of(log_url(table).removesuffix(prefix.rstrip("/")).rstrip("/"), [prefix])


def _measure_activity(table: TableHandle, state: TableState) -> CostModelInput:
    """Return the commits and tiering rounds of the last day, extrapolated for a younger table."""
    now_ms = table.storage.now_ms()
    day_ago_ms = now_ms - DAY_MS
    hot_bytes = sum(segment.size_bytes for segment in state.kept_segments())
    if state.time_ms < day_ago_ms:
        return CostModelInput(0, 0, state.num_buckets, hot_bytes)
    records = _sample_records(table, state, day_ago_ms)
    oldest = records[-1]
    commits = state.version - oldest.number + 1
    rounds_ms = [tiered.time_ms for tiered in state.lake_history if tiered.time_ms >= day_ago_ms]
    has_all_rounds = len(rounds_ms) < LAKE_HISTORY_MAX
    objects = [sum(s.uuid is not None for s in _appended_segments(record)) for record in records]
    return CostModelInput(
        commits_per_day=_per_day(commits, oldest.time_ms, now_ms),
        rounds_per_day=_per_day(len(rounds_ms), oldest.time_ms if has_all_rounds else rounds_ms[0], now_ms),
        buckets=state.num_buckets,
        hot_bytes=hot_bytes,
        objects_per_commit=sum(objects) / len(objects),
    )


def _per_day(count: int, since_ms: int, now_ms: int) -> float:
    return count * DAY_MS / max(now_ms - since_ms, _WINDOW_MS_MIN)


def _sample_records(table: TableHandle, state: TableState, since_ms: int) -> list[Record]:
    """Return the latest record, records found by bisection, and the oldest retained record since ``since_ms``."""
    records = [read_record(table.storage, state.table_uuid, state.version)[0]]
    low, high = 1, state.version
    while low < high:
        middle = (low + high) // 2
        try:
            record, _ = read_record(table.storage, state.table_uuid, middle)
        except ObjectNotFoundError:
            low = middle + 1
            continue
        if record.time_ms < since_ms:
            low = middle + 1
        else:
            high = middle
            records.append(record)
    return records


def _appended_segments(record: Record) -> Iterator[Segment]:
    for action in record.actions:
        if isinstance(action, Append):
            yield from action.segments
