# /// script
# requires-python = ">=3.11,<3.15"
# dependencies = ["streamhouse-spark[iceberg]", "duckdb>=1.4", "duckdb-extensions>=1.4",
#                 "duckdb-extension-avro>=1.4", "duckdb-extension-iceberg>=1.4"]
# ///
"""The lake is an ordinary Iceberg table: DuckDB reads it by its path, knowing nothing of streamhouse-spark.

Tiers in this process, without Spark. Run it with `uv run examples/04_read_lake_with_duckdb.py`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from decimal import Decimal
from pathlib import Path

import duckdb
from duckdb_extensions import import_extension

import streamhouse_spark as sh


def main(warehouse: str) -> None:
    trips = sh.Warehouse(warehouse).create_table(
        "taxi.trips", "city STRING, distance_km DOUBLE, fare DECIMAL(8,2)", partition_by=["city"]
    )
    trips.append(
        [
            {"city": "Oslo", "distance_km": 3.2, "fare": Decimal("12.50")},
            {"city": "Oslo", "distance_km": 8.0, "fare": Decimal("25.00")},
            {"city": "Rome", "distance_km": 1.1, "fare": Decimal("7.80")},
        ]
    )
    streamhouse = Path(sys.executable).parent / "streamhouse"
    subprocess.run([streamhouse, "--warehouse", warehouse, "tier", "--once"], check=True)

    # The wheels bring DuckDB's extensions, so nothing is downloaded when this runs.
    connection = duckdb.connect()
    for name in ("avro", "iceberg"):
        import_extension(name)
        connection.execute(f"LOAD {name}")
    lake = str(Path(warehouse, "lake", "taxi", "trips"))
    query = "SELECT city, count(*), sum(fare) FROM iceberg_scan(?) GROUP BY city ORDER BY city"
    for city, count, fares in connection.execute(query, [lake]).fetchall():
        print(f"{city}: {count} trips, {fares}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(str(Path(folder, "warehouse")))
