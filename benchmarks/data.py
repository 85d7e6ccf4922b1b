"""TPC-H ``lineitem`` and ``orders``, made once by DuckDB's generator and kept as Arrow files.

Scale 1 has 6,001,215 lineitem rows of 16 columns (1.05 GB of Arrow); quick runs use a tenth.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
from duckdb_extensions import import_extension

TABLES = ("lineitem", "orders")


def load(directory: Path, table: str, *, quick: bool) -> pa.Table:
    """The table in memory of this process, not mapped: reading it costs nothing while something is measured."""
    folder = directory / ("scale-0.1" if quick else "scale-1")
    path = folder / f"{table}.arrow"
    if not path.exists():
        _generate(folder, 0.1 if quick else 1)
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def _generate(folder: Path, scale: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    import_extension("tpch")
    with duckdb.connect() as connection:
        connection.execute("LOAD tpch")
        connection.execute(f"CALL dbgen(sf = {scale})")
        for table in TABLES:
            rows = connection.table(table).to_arrow_table().combine_chunks()
            partial = folder / f"{table}.partial"
            with pa.OSFile(str(partial), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
                writer.write_table(rows, max_chunksize=1 << 16)
            partial.rename(folder / f"{table}.arrow")
