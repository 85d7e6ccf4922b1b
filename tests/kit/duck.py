"""DuckDB with the extensions that the environment brings along."""

from __future__ import annotations

from typing import Any


def connect_duckdb(*more: str) -> Any:
    """Connect to DuckDB with its extension of Iceberg, and with ``more`` extensions."""
    import duckdb
    from duckdb_extensions import import_extension

    connection = duckdb.connect()
    for name in ("avro", "iceberg", *more):
        import_extension(name)
        connection.load_extension(name)
    return connection
