"""Monitoring of the streaming demo: bucket offsets, and real queries whose results are checked immediately."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Final

from streamhouse_spark.core.clock import Clock
from streamhouse_spark.core.fork_safety import new_event
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.demo.flights import TABLE
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.read.system_tables import bucket_lags
from streamhouse_spark.table.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAKE_TABLE: Final = f"{TABLE}$lake"
_PAUSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class BucketLine:
    bucket: int
    log_end: int
    lake_offset: int
    lag: int


@dataclass(frozen=True, slots=True)
class QueryResult:
    """A row count and its valid range: rows committed before the query started, and after it ended."""

    name: str
    rows: int
    at_least: int
    at_most: int
    duration_ms: int

    @property
    def is_right(self) -> bool:
        return self.at_least <= self.rows <= self.at_most


@dataclass(slots=True)
class Observations:
    """Values of the display. One thread writes and another reads; every field is replaced as a whole."""

    buckets: tuple[BucketLine, ...] = ()
    lake_snapshots: int = 0
    union: QueryResult | None = None
    lake: QueryResult | None = None
    queries: int = 0
    wrong: list[QueryResult] = field(default_factory=list)


def bucket_lines(state: TableState) -> tuple[BucketLine, ...]:
    lags = bucket_lags(state)
    return tuple(BucketLine(b, log.end, state.lake_offset(b), lags[b]) for b, log in state.buckets.items())


class QueryLoop:
    """Counts the rows of the table and of its lake with Spark in a loop until `stop`."""

    def __init__(self, spark: SparkSession, location: str, table: Table, clock: Clock) -> None:
        self.observed = Observations()
        self._spark = spark
        self._location = location
        self._table = table
        self._clock = clock
        self._stop = new_event()
        self._thread = threading.Thread(target=self._run, name="queries", daemon=True)
        self._failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Wait for the query in progress. Raises the error of a failed query."""
        self._stop.set()
        self._thread.join()
        self.check()

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.observed.union = self._ask(TABLE, lambda s: sum(s.ends.values()))
                self.observed.lake = self._ask(LAKE_TABLE, lambda s: sum(map(s.lake_offset, s.buckets)))
                self._stop.wait(_PAUSE_SECONDS)
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that shows it
            self._failure = error

    def _ask(self, name: str, rows_of: Callable[[TableState], int]) -> QueryResult:
        at_least = rows_of(self._table.refresh())
        started_ms = self._clock.boot_ms()
        rows = count_rows(self._spark, self._location, name)
        duration_ms = self._clock.boot_ms() - started_ms
        result = QueryResult(name, rows, at_least, rows_of(self._table.refresh()), duration_ms)
        self.observed.queries += 1
        if not result.is_right:
            self.observed.wrong = [*self.observed.wrong, result]
        return result


def count_rows(spark: SparkSession, location: str, name: str) -> int:
    """Count rows with a new read, because a DataFrame keeps the state of its first use."""
    reader = spark.read.schema("distance INT").format("streamhouse").option("warehouse", location)
    return int(reader.load(name).count())
