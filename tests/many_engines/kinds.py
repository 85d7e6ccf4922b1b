"""The engines of a run by their names, and what each of them promises and needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from many_engines import engines, query_servers
from many_engines.engines import Addresses, Engine


@dataclass(frozen=True)
class Kind:
    open: Callable[[Addresses], Engine]
    is_fresh: bool = True
    """Whether it promises the newest acknowledged rows."""
    asks_all: bool = True
    """Whether it may ask for all rows of a table; else only for those from a number on."""
    reads_s3: bool = False
    """Whether it is told here how to read a lake on S3."""
    server: str = ""
    """Name of the server that answers in its place, and reads from S3 alone."""


KINDS = {
    "DuckDB": Kind(engines.DuckDB, reads_s3=True),
    "DuckDB, transactions": Kind(engines.DuckDBTransactions, reads_s3=True),
    "DuckDB, the lake's folder": Kind(engines.DuckDBLake, is_fresh=False),
    "pyiceberg": Kind(engines.PyIceberg, reads_s3=True),
    "polars": Kind(engines.Polars),
    "Daft": Kind(engines.Daft),
    "ClickHouse": Kind(engines.ClickHouse),
    "Spark, Iceberg's runtime": Kind(engines.Spark),
    "Arrow Flight": Kind(engines.Flight, reads_s3=True),
    "HTTP": Kind(engines.Http, asks_all=False, reads_s3=True),
    "Trino": Kind(query_servers.Trino, reads_s3=True, server="trino"),
    "Trino, joins": Kind(query_servers.TrinoJoins, reads_s3=True, server="trino"),
    "Flink": Kind(query_servers.Flink, reads_s3=True, server="flink"),
}
