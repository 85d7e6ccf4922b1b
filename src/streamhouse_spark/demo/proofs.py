"""Proofs that all rows can be read: by queries during the stream, and by readers of the lake after it."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from streamhouse_spark.core.clock import Clock
from streamhouse_spark.core.concurrency import new_event
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.demo.flights import KEY_COLUMNS, TABLE
from streamhouse_spark.errors import count_of
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.system_tables import bucket_lags
from streamhouse_spark.table.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAKE_TABLE: Final = f"{TABLE}$lake"
_PAUSE_SECONDS: Final = 1.0
FACTS: Final = {
    "rows": "count(*)",
    "departed": "count(dep_time)",
    "sum of distance": "sum(distance)",
    "sum of air_time": "sum(air_time)",
    "sum of arr_delay": "sum(arr_delay)",
    "checksum of keys": f"sum(CAST(xxhash64({', '.join(KEY_COLUMNS)}) AS DECIMAL(38, 0)))",
}
"""Aggregates that Spark computes on the source and on the table: name → SQL."""


@dataclass(frozen=True, slots=True)
class BucketLine:
    bucket: int
    log_end: int
    lake_offset: int
    lag: int


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The row count of a query, and its valid range: the rows committed before its start and before its end."""

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
    """Values of the display, which one thread writes and another thread reads."""

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
    """Counts the rows of the table and of its lake with Spark, repeatedly until `stop`."""

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
        except BaseException as error:  # noqa: BLE001 - raised by `check` in another thread
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


@dataclass(frozen=True, slots=True)
class Proof:
    claim: str
    holds: bool
    detail: str


def compute_facts(rows: DataFrame) -> dict[str, Any]:
    row = rows.selectExpr(*(f"{sql} AS `{name}`" for name, sql in FACTS.items())).collect()[0]
    return {name: row[name] for name in FACTS}


def prove_equal_facts(claim: str, facts: Mapping[str, Any], source: Mapping[str, Any]) -> Proof:
    different = [f"{name} is {facts[name]}, expected {source[name]}" for name in FACTS if facts[name] != source[name]]
    shown = ", ".join(f"{name} {facts[name]:,}" for name in FACTS)
    return Proof(claim, not different, "; ".join(different) or shown)


def prove_same_rows(claim: str, rows: pa.Table, source: pa.Table) -> Proof:
    """Prove that the rows equal the source in every column, in any order."""
    if rows.num_rows != source.num_rows:
        return Proof(claim, holds=False, detail=f"{count_of(rows.num_rows, 'row')}, expected {source.num_rows:,}")
    ordered, expected = sort_rows(rows, source.schema), sort_rows(source, source.schema)
    differing_columns = [name for name in source.schema.names if not ordered[name].equals(expected[name])]
    if differing_columns:
        return Proof(claim, holds=False, detail=f"columns with other values: {', '.join(differing_columns)}")
    detail = f"{count_of(source.num_rows, 'row')} × {count_of(source.num_columns, 'column')} are equal, one by one"
    return Proof(claim, holds=True, detail=detail)


def sort_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    keys = [(name, "ascending") for name in KEY_COLUMNS]
    return rows.select(schema.names).cast(schema).sort_by(keys).combine_chunks()


def prove_queries(observed: Observations) -> Proof:
    """Prove that each query during the stream saw all rows committed before it, without duplicates."""
    wrong = "; ".join(
        f"{q.name}: {count_of(q.rows, 'row')}, expected {q.at_least:,} to {q.at_most:,}" for q in observed.wrong[:3]
    )
    return Proof(
        "each query during the stream returned all rows committed before it, without duplicates",
        observed.queries > 0 and not observed.wrong,
        wrong or f"{count_of(observed.queries, 'query')} of the table and of its lake",
    )


def prove_independently(
    lake_path: str, source: pa.Table, readers: Mapping[str, Callable[[str], pa.Table]]
) -> Iterator[Proof]:
    """Read the lake table with readers that do not use streamhouse-spark."""
    for name, read in readers.items():
        yield prove_same_rows(f"{name} reads the same rows from the lake", read(lake_path), source)


def installed_readers() -> dict[str, Callable[[str], pa.Table]]:
    """Return name → function that reads all rows of the Iceberg table at a path."""
    readers: dict[str, Callable[[str], pa.Table]] = {"pyiceberg": read_with_pyiceberg}
    if _duckdb_is_ready():
        readers["DuckDB"] = read_with_duckdb
    return readers


def read_with_pyiceberg(path: str) -> pa.Table:
    from pyiceberg.table import StaticTable

    newest = Path(path, "metadata", "version-hint.text").read_text("utf-8").strip()
    table = StaticTable.from_metadata(str(Path(path, "metadata", f"v{newest}.metadata.json")))
    return table.scan().to_arrow()


def read_with_duckdb(path: str) -> pa.Table:
    import duckdb

    with duckdb.connect() as connection:
        _load_extension(connection)
        return connection.execute("SELECT * FROM iceberg_scan(?)", [path]).to_arrow_table()


def _duckdb_is_ready() -> bool:
    try:
        import duckdb
    except ModuleNotFoundError:
        return False
    try:
        with duckdb.connect() as connection:
            _load_extension(connection)
    except duckdb.Error:
        return False
    return True


def _load_extension(connection: Any) -> None:
    """Load the installed extensions without a download."""
    try:
        extensions = importlib.import_module("duckdb_extensions")
    except ModuleNotFoundError:
        pass
    else:
        for name in ("avro", "iceberg"):
            extensions.import_extension(name)
    connection.execute("SET autoinstall_known_extensions = false")
    for name in ("avro", "iceberg"):
        connection.execute(f"LOAD {name}")
