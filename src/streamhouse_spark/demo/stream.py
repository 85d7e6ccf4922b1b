"""The stream of flights: files that appear over time, and a Structured Streaming query that writes their rows."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from streamhouse_spark.core.clock import Clock
from streamhouse_spark.core.fork_safety import new_event
from streamhouse_spark.demo.flights import DDL, TABLE, write_chunks
from streamhouse_spark.errors import StreamhouseError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRIGGER: Final = "1 second"


class FlightStream:
    """Releases flights evenly over ``duration_s`` and streams them into ``air.flights``.

    ``folder`` holds the source files, all of them in ``source`` at the end, and Spark's checkpoint.
    """

    def __init__(
        self, spark: SparkSession, location: str, folder: Path, flights: pa.Table, *, duration_s: float, clock: Clock
    ) -> None:
        self._spark = spark
        self._location = location
        self._folder = folder
        self._duration_s = duration_s
        self._clock = clock
        self.source = folder / "source"
        self._waiting = folder / "waiting"
        self.source.mkdir()
        self._waiting.mkdir()
        # About one file per trigger: files that arrive meanwhile go into the next micro-batch.
        self._files = list(write_chunks(flights, self._waiting, max(1, round(duration_s))))
        self._stop = new_event()
        self._failure: OSError | None = None
        self._feeder = threading.Thread(target=self._feed_safely, name="flights", daemon=True)
        self._query: Any = None
        self.released = 0

    @property
    def num_files(self) -> int:
        return len(self._files)

    @property
    def batches(self) -> int:
        """Number of completed micro-batches."""
        progress = self._query.lastProgress if self._query is not None else None
        return 0 if progress is None else int(progress["batchId"]) + 1

    def start(self) -> None:
        flights = self._spark.readStream.schema(DDL).parquet(str(self.source))
        self._query = (
            flights.writeStream.format("streamhouse")
            .option("warehouse", self._location)
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .queryName("flights")
            .trigger(processingTime=TRIGGER)
            .start(TABLE)
        )
        self._feeder.start()

    def check(self) -> None:
        """Raise `StreamhouseError` with the error of a failed stream."""
        failure = self._failure or self._query.exception()
        if failure is not None:
            first_line = str(failure).strip().partition("\n")[0]
            raise StreamhouseError(f"the stream of flights ended: {first_line}", condition="DEMO_FAILED") from failure

    def finish(self) -> None:
        """Wait until all released flights are written, then stop."""
        self._feeder.join()
        self.check()
        self._query.processAllAvailable()
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        if self._query is not None:
            self._query.stop()

    def _feed_safely(self) -> None:
        try:
            self._feed()
        except OSError as error:  # raised again by `check` in the watching thread
            self._failure = error

    def _feed(self) -> None:
        """Release one file, then the rest evenly after it is in the table, because Spark needs time to start."""
        self._release(self._files[0])
        while self._query.lastProgress is None and self._query.isActive:
            if self._stop.wait(0.1):
                return
        started_ms = self._clock.boot_ms()
        for position, file in enumerate(self._files[1:], start=1):
            due_ms = started_ms + 1000 * self._duration_s * position / len(self._files)
            if self._stop.wait(max(0.0, due_ms - self._clock.boot_ms()) / 1000):
                return
            self._release(file)

    def _release(self, file: Path) -> None:
        file.replace(self.source / file.name)
        self.released += 1
