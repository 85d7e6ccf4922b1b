"""The tables under test: statements through Spark, upkeep in this process, reads by every reader there is."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from duckdb_extensions import import_extension
from pyiceberg.table import StaticTable
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from spark.differential.compare import configured
from spark.statements.columns import in_spark
from spark.statements.grammar import CARDINALITY, OUTSIDE, TWO_ROWS, Statement
from spark.statements.reference import Rows, counted
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.errors import StreamhouseError

CONFLICT = "conflict"
GONE = "no longer kept"
COLUMNS_CHANGED = "columns changed since"
NOT_TOLD = "no record tells"
NO_CLONE = "cannot be cloned"
REFUSALS = {
    TWO_ROWS: r"rows of one primary key|inserts a row under a primary key that a row has",
    CARDINALITY: r"MERGE_CARDINALITY_VIOLATION",
    OUTSIDE: r"new rows are not among the rows",
    CONFLICT: r"COMMIT_CONFLICT",
    GONE: r"OFFSETS_TRIMMED|SNAPSHOT_EXPIRED",
    COLUMNS_CHANGED: r"rolled back to commit \d+: its columns changed since|columns of .* changed after commit",
    NO_CLONE: r"has a Paimon lake: Paimon finds data files below the folder",
    NOT_TOLD: r"cannot be rolled back to commit \d+: (all its rows|rows left it|its lake was built|a partition was)",
}
"""Reasons why a statement may be refused → the text that says so. Any other error is a difference."""


def reason_of(error: BaseException) -> str | None:
    text = str(error)
    return next((reason for reason, pattern in REFUSALS.items() if re.search(pattern, text)), None)


class Lakehouse:
    """A warehouse with the tables of one history at a time, in a database of their own."""

    def __init__(self, spark: Any, url: str, database: str = "random") -> None:
        self.spark, self.url, self.database = spark, url, database
        self._opened = Warehouse(url)
        self._duck: duckdb.DuckDBPyConnection | None = None
        Warehouse(url).create_database(database)

    def sql_name(self, name: str) -> str:
        return f"streamhouse.{self.database}.{name}"

    def full_name(self, name: str) -> str:
        return f"{self.database}.{name}"

    def reopen(self) -> None:
        self._opened = Warehouse(self.url)

    def table(self, name: str) -> Table:
        return self._opened.table(self.full_name(name))

    def version(self, name: str) -> int:
        return self.table(name).refresh().version

    def forget(self, names: Sequence[str]) -> None:
        """Drop tables and delete their files, so that many histories need no more room than one."""
        root = Path(self.url)
        for name in names:
            uuid = self.table(name).uuid
            self._opened.drop_table(self.full_name(name))
            shutil.rmtree(root / "tables" / uuid, ignore_errors=True)
        for folder in (root / "lake" / self.database, root / "lake" / f"{self.database}.db"):
            shutil.rmtree(folder, ignore_errors=True)

    # -- statements -----------------------------------------------------------------------------------------------

    def text(self, statement: Statement, name: str, other: str | None, *, guarded_below: int | None) -> str:
        """The statement as Spark gets it."""
        own = f"(SELECT * FROM {self.sql_name(name)} WHERE id < {guarded_below})" if guarded_below else None
        text = statement.sql.replace("{own}", own or self.sql_name(name)).replace("{t}", self.sql_name(name))
        return in_spark(text.replace("{other}", self.sql_name(other) if other else ""))

    def run(self, statement: Statement, text: str, name: str) -> str | None:
        """Run a statement; the reason of its refusal, if it was refused. Raises any other error."""
        settings = {"spark.sql.sources.partitionOverwriteMode": "dynamic"} if statement.dynamic else {}
        try:
            with configured(self.spark, settings):
                if statement.way == "sql":
                    self.spark.sql(text)
                elif statement.way == "overwrite":
                    self.spark.sql(text).writeTo(self.sql_name(name)).overwrite(f.expr(statement.where))
                elif statement.way == "rollback":
                    self.table(name).rollback_to_version(int(statement.where))
                else:
                    self.spark.sql(text).writeTo(self.sql_name(name)).overwritePartitions()
        except (PySparkException, StreamhouseError) as error:
            reason = reason_of(error)
            if reason is None:
                raise
            return reason
        return None

    def call(self, text: str) -> list[Any]:
        return self.spark.sql(f"CALL streamhouse.system.{text}").collect()

    def clone(self, name: str, to: str, version: int | None) -> None:
        self._opened.clone_table(self.full_name(name), self.full_name(to), version=version)

    # -- reads ----------------------------------------------------------------------------------------------------

    def python_rows(self, name: str, columns: Sequence[str]) -> Rows:
        table = self.table(name)
        table.refresh()
        return rows_of(table.to_arrow(), columns)

    def spark_rows(self, name: str, columns: Sequence[str], *, suffix: str = "", tail: str = "") -> Rows:
        found = self.spark.sql(f"SELECT * FROM streamhouse.{self.database}.`{name}{suffix}`{tail}")
        return rows_of(found.toArrow(), columns)

    def changelog(self, name: str) -> list[dict[str, Any]]:
        return self._opened.view(f"{self.full_name(name)}$changelog").to_arrow().to_pylist()

    def streamed(self, name: str, suffix: str) -> pa.Table:
        """All rows that a stream reads from the beginning to now."""
        query = f"streamed_{name}"
        with tempfile.TemporaryDirectory() as folder:
            stream = self.spark.readStream.table(f"streamhouse.{self.database}.`{name}{suffix}`")
            writer = stream.writeStream.format("memory").queryName(query).option("checkpointLocation", folder)
            writer.trigger(availableNow=True).start().awaitTermination()
        found = self.spark.table(query).toArrow()
        self.spark.catalog.dropTempView(query)
        return found

    def query(self, name: str, items: str, where: str) -> Rows:
        found = self.spark.sql(in_spark(f"SELECT {items} FROM {self.sql_name(name)} AS t WHERE {where}"))
        return rows_of(found.toArrow(), None)

    def lake_readers(self, name: str, columns: Sequence[str]) -> dict[str, Callable[[], Rows]]:
        """Readers of the lake's part: our own, and those that know nothing of us."""
        table = self.table(name)
        state = table.refresh()
        readers = {
            "$lake": lambda: self.spark_rows(name, columns, suffix="$lake"),
            "Table.lake": lambda: rows_of(table.lake.to_arrow(), columns),
        }
        location = str(Path(self.url) / state.lake_location)
        others: dict[str, Callable[[], pa.Table]] = {
            "pyiceberg": lambda: StaticTable.from_metadata(location).scan().to_arrow(),
            "DuckDB": lambda: self._by_duckdb(location),
        }
        if table.lake.newest() is None:  # never a row to tier
            others = {}
        elif table.properties.datalake_format == "paimon":
            others = {"pypaimon": lambda: self._by_pypaimon(state.lake_location)}
        return readers | {reader: partial(_selected, read, columns) for reader, read in others.items()}

    def _by_pypaimon(self, location: str) -> pa.Table:
        from pypaimon import CatalogFactory

        _, database, name = location.split("/")
        catalog = CatalogFactory.create({"warehouse": f"{self.url}/lake"})
        builder = catalog.get_table(f"{database.removesuffix('.db')}.{name}").new_read_builder()
        return builder.new_read().to_arrow(builder.new_scan().plan().splits())

    def _by_duckdb(self, location: str) -> pa.Table:
        if self._duck is None:
            import_extension("avro")
            import_extension("iceberg")
            self._duck = duckdb.connect()
            self._duck.load_extension("avro")
            self._duck.load_extension("iceberg")
        return self._duck.execute(f"SELECT * FROM iceberg_scan('{location}')").arrow().read_all()


def _selected(read: Callable[[], pa.Table], columns: Sequence[str]) -> Rows:
    return rows_of(read().select(columns), columns)


def rows_of(found: pa.Table, columns: Sequence[str] | None) -> Rows:
    """The rows of a result, which has to have these columns in this order."""
    if columns is not None and found.column_names != list(columns):
        raise AssertionError(f"columns {found.column_names}, expected {list(columns)}")
    return counted(zip(*(column.to_pylist() for column in found.columns), strict=True))
