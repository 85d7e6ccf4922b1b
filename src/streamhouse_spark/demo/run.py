"""The steps of the demo."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from streamhouse_spark.core.clock import Clock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.demo import proofs
from streamhouse_spark.demo.display import Board, TextView
from streamhouse_spark.demo.flights import TABLE, FlightStream
from streamhouse_spark.demo.proofs import Proof
from streamhouse_spark.errors import count_of
from streamhouse_spark.spark import TieringService, tier
from streamhouse_spark.table.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOOK_EVERY_MS: Final = 250


@dataclass(frozen=True, slots=True)
class DemoPace:
    """The duration of the stream, and the freshness of the lake."""

    duration_s: float
    freshness: str


FULL: Final = DemoPace(80, "5s")
FAST: Final = DemoPace(15, "3s")


@dataclass(frozen=True, slots=True)
class Demo:
    """One run, on a new ``table`` of the warehouse at ``location``."""

    spark: SparkSession
    location: str
    settings: Mapping[str, str]
    table: Table
    flights: pa.Table
    pace: DemoPace
    view: TextView

    def run(self) -> list[Proof]:
        """Stream, tier and query concurrently, then prove that no row is lost or duplicated."""
        table, flights = self.table, self.flights
        clock = table.world.clock
        self.view.say(
            f"{flights.num_rows:,} flights of 2013 stream into {TABLE} of {table.storage.url} for about "
            f"{self.pace.duration_s:.0f} seconds,\n"
            "while a tiering service moves them into its lake, and Spark queries both"
        )
        with tempfile.TemporaryDirectory(prefix="streamhouse-demo-") as folder:
            stream = FlightStream(
                self.spark, self.location, Path(folder), flights, duration_s=self.pace.duration_s, clock=clock
            )
            queries = proofs.QueryLoop(self.spark, self.location, table, clock)
            try:
                stream.start()
                queries.start()
                with self._tiering():
                    self._watch(stream, queries, clock)
                    stream.finish()
            finally:
                stream.stop()
                queries.stop()
            shown = []
            for proof in self._prove(stream, queries):
                self.view.show_proof(proof)
                shown.append(proof)
            return shown

    def _watch(self, stream: FlightStream, queries: proofs.QueryLoop, clock: Clock) -> None:
        with self.view.streaming() as show:
            written = 0
            while written < self.flights.num_rows:
                stream.check()
                queries.check()
                state = self.table.refresh()
                written = sum(state.ends.values())
                share = stream.released / stream.num_files
                queries.observed.buckets = proofs.bucket_lines(state)
                queries.observed.lake_snapshots = len(state.lake_history)
                last_row = max(0, round(share * self.flights.num_rows) - 1)
                day = self.flights["time_hour"][last_row].as_py().date().isoformat()
                show(Board(day, share, stream.batches, queries.observed))
                clock.sleep_ms(_LOOK_EVERY_MS)

    @contextmanager
    def _tiering(self) -> Iterator[None]:
        """Run the tiering service in a thread of this driver."""
        service = TieringService(self.spark, self.location, [TABLE], settings=self.settings)
        thread = threading.Thread(target=service.run, name="tiering", daemon=True)
        thread.start()
        try:
            yield
        finally:
            service.stop()
            thread.join()

    def _prove(self, stream: FlightStream, queries: proofs.QueryLoop) -> Iterator[Proof]:
        table, flights = self.table, self.flights
        source = proofs.compute_facts(self.spark.read.parquet(str(stream.source)))
        yield proofs.prove_queries(queries.observed)
        self.view.say(
            "last tiering round: "
            f"{count_of(sum(line.lag for line in proofs.bucket_lines(table.refresh())), 'row')} to tier"
        )
        yield proofs.prove_equal_facts(f"Spark: {TABLE} = the source", proofs.compute_facts(self._read(TABLE)), source)
        tier(self.spark, self.location, [TABLE], settings=self.settings)
        lag = sum(line.lag for line in proofs.bucket_lines(table.refresh()))
        yield Proof("all rows are tiered", lag == 0, f"lag {lag:,}")
        yield proofs.prove_equal_facts(
            f"Spark: {proofs.LAKE_TABLE} = the source", proofs.compute_facts(self._read(proofs.LAKE_TABLE)), source
        )
        yield proofs.prove_same_rows(f"Python: {TABLE} = the package's flights", table.to_arrow(), flights)
        lake_path = table.storage.local_path(table.state.lake_location)
        if lake_path is not None:
            readers = proofs.installed_readers()
            yield from proofs.prove_independently(lake_path, flights, readers)
            if "DuckDB" not in readers:
                self.view.say("skipped DuckDB, because DuckDB or its iceberg extension is not installed")

    def _read(self, name: str) -> DataFrame:
        reader = self.spark.read.format("streamhouse").option("warehouse", self.location).options(**self.settings)
        return reader.load(name)
