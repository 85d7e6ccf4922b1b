"""Installed readers of Iceberg tables that do not use streamhouse-spark."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa


def installed_readers() -> dict[str, Callable[[str], pa.Table]]:
    """Return name → function from the path of an Iceberg table to all its rows."""
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
