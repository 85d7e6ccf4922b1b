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
from pyspark.sql.types import StructField, VariantType

from spark.differential.compare import configured
from spark.statements.columns import IDENTITY, in_spark
from spark.statements.grammar import CARDINALITY, OUTSIDE, TWO_ROWS, Statement
from spark.statements.reference import Rows, counted
from spark.statements.ways import WAYS
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.core.clock import SystemClock
from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.log.catalog.name_changes import find_replaced_table
from streamhouse_spark.log.commit_reader import iter_records_backwards

CONFLICT = "conflict"
GONE = "no longer kept"
COLUMNS_CHANGED = "columns changed since"
NOT_TOLD = "no record tells"
NO_CLONE = "cannot be cloned"
NO_BRANCH = "cannot have branches"
PARTITIONED = "partitioned anew since"
CHECK = "constraint"
REFUSALS = {
    TWO_ROWS: r"rows with the primary key|inserts a row with an existing primary key",
    CARDINALITY: r"MERGE_CARDINALITY_VIOLATION",
    OUTSIDE: r"new rows do not match the condition",
    CONFLICT: r"COMMIT_CONFLICT",
    GONE: r"OFFSETS_TRIMMED|SNAPSHOT_EXPIRED",
    COLUMNS_CHANGED: r"rolled back to commit \d+: its columns changed since|columns of .* changed after commit",
    CHECK: r"violate constraint|NEW_CHECK_CONSTRAINT_VIOLATION",
    PARTITIONED: r"its partitioning was changed since|the partitioning of .* was changed after commit",
    NO_BRANCH: r"cannot have branches: it has an identity column",
    NO_CLONE: r"it has a Paimon lake, whose files two tables cannot share",
    NOT_TOLD: r"cannot be rolled back to commit \d+: (rows that|its lake was|commit \d+ deleted)",
}
"""Reasons why a statement may be refused → the text that says so. Any other error is a difference."""


def reason_of(error: BaseException) -> str | None:
    text = str(error)
    return next((reason for reason, pattern in REFUSALS.items() if re.search(pattern, text)), None)


class AheadClock(SystemClock):
    """Later than it is, so that cleaning need not wait."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


class Lakehouse:
    """A warehouse with the tables of one history at a time, in a database of their own."""

    def __init__(self, spark: Any, url: str, database: str = "random") -> None:
        self.spark, self.url, self.database, self.clock = spark, url, database, AheadClock()
        self._opened = Warehouse(url)
        self._branches: dict[str, tuple[str, str]] = {}
        self._duck: duckdb.DuckDBPyConnection | None = None
        Warehouse(url).create_database(database)

    def sql_name(self, name: str, suffix: str = "") -> str:
        return f"streamhouse.{self.database}.`{self._in_house(name)}{suffix}`"

    def full_name(self, name: str) -> str:
        return f"{self.database}.{self._in_house(name)}"

    def _in_house(self, name: str) -> str:
        main, branch = self._branches.get(name, (name, ""))
        return f"{main}$branch_{branch}" if branch else main

    def reopen(self) -> None:
        self._opened = Warehouse(self.url)

    def table(self, name: str) -> Table:
        main, branch = self._branches.get(name, (name, ""))
        found = self._opened.table(f"{self.database}.{main}")
        return found.branch(branch) if branch else found

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
        text = text.replace("{name}", self.full_name(name))
        return in_spark(text.replace("{other}", self.sql_name(other) if other else ""))

    def run(self, statement: Statement, text: str, name: str) -> str | None:
        """Run a statement; the reason of its refusal, if it was refused. Raises any other error."""
        settings = {"spark.sql.sources.partitionOverwriteMode": "dynamic"} if statement.dynamic else {}
        try:
            with configured(self.spark, settings):
                WAYS[statement.way](self, statement, text, name)
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

    # -- branches -------------------------------------------------------------------------------------------------

    def branch_off(self, name: str, made: str, branch: str, *, in_sql: bool) -> None:
        """Begin a branch of a table; from then on it is the table ``made``."""
        if in_sql:
            self.call(f"create_branch('{self.full_name(name)}', '{branch}')")
        else:
            self.table(name).create_branch(branch)
        self._branches[made] = (name, branch)

    def publish(self, made: str, *, in_sql: bool) -> str | None:
        """Publish a branch; the reason of the refusal, if it was refused. Raises any other error."""
        name, branch = self._branches[made]
        try:
            if in_sql:
                self.call(f"fast_forward('{self.full_name(name)}', 'main', '{branch}')")
            else:
                self.table(name).fast_forward(branch)
        except (PySparkException, StreamhouseError) as error:
            if reason_of(error) != CONFLICT:
                raise
            return CONFLICT
        return None

    def drop_branch(self, made: str, *, in_sql: bool) -> None:
        name, branch = self._branches[made]
        if in_sql:
            self.call(f"drop_branch('{self.full_name(name)}', '{branch}')")
        else:
            self.table(name).drop_branch(branch)

    def drop_and_bring_back(self, name: str) -> None:
        self._opened.drop_table(self.full_name(name))
        self._opened.undrop_table(self.full_name(name))

    # -- reads ----------------------------------------------------------------------------------------------------

    def python_rows(self, name: str, columns: Sequence[str]) -> Rows:
        table = self.table(name)
        table.refresh()
        return rows_of(table.to_arrow(), columns)

    def python_version(self, name: str, columns: Sequence[str], place: int | str, moment: int | None) -> Rows:
        """The rows as of a version or a tag, or of a moment if one is given."""
        table = self.table(name)
        table.refresh()
        if moment is None:
            return rows_of(table.read_version(place), columns)
        return rows_of(table.to_arrow(as_of_timestamp_ms=moment), columns)

    def spark_version(self, name: str, columns: Sequence[str], place: int | str, moment: int | None) -> Rows:
        """As `python_version`, in SQL."""
        tail = f" VERSION AS OF {place!r}" if moment is None else f" TIMESTAMP AS OF timestamp_millis({moment})"
        return self.spark_rows(name, columns, tail=tail)

    def spark_rows(self, name: str, columns: Sequence[str], *, suffix: str = "", tail: str = "") -> Rows:
        return rows_of(_collected(self.spark.sql(f"SELECT * FROM {self.sql_name(name, suffix)}{tail}")), columns)

    def numbers(self, name: str, version: int | None = None) -> frozenset[int]:
        """The values of the identity column, of now or of a version. Raises `AssertionError` for one that is twice."""
        table = self.table(name)
        table.refresh()
        chosen = [IDENTITY.name]
        found = table.to_arrow(columns=chosen) if version is None else table.read_version(version, columns=chosen)
        _require_numbers(found.column(IDENTITY.name))
        return frozenset(found.column(IDENTITY.name).to_pylist())

    def moment(self, name: str, number: int) -> int | None:
        """The time of a commit, in milliseconds, where none of the later ones has it too, and the name meant the table
        already: one that takes another's place begins a moment before.
        """
        table = self.table(name)
        times = {record.number: record.time_ms for record in iter_records_backwards(table.storage, table.refresh())}
        former = find_replaced_table(table.storage, table.world, table.path, table.uuid)
        if former is not None and times.get(number, 0) < former.dropped.time_ms:
            return None
        if number not in times or any(time <= times[number] for n, time in times.items() if n > number):
            return None
        return times[number]

    def changes(self, name: str, first: int, last: int, *, is_net: bool) -> list[dict[str, Any]]:
        """The changes behind one version up to another, read in SQL."""
        options = " WITH (deduplicationMode = 'netChanges')" if is_net else ""
        between = f"CHANGES FROM VERSION {first} EXCLUSIVE TO VERSION {last}{options}"
        found: list[dict[str, Any]] = _collected(
            self.spark.sql(f"SELECT * FROM {self.sql_name(name)} {between}")
        ).to_pylist()
        return found

    def changelog(self, name: str) -> list[dict[str, Any]]:
        return self._opened.view(f"{self.full_name(name)}$changelog").to_arrow().to_pylist()

    def streamed(self, name: str, suffix: str) -> pa.Table:
        """All rows that a stream reads from the beginning to now."""
        query = f"streamed_{name}"
        with tempfile.TemporaryDirectory() as folder:
            stream = self.spark.readStream.table(self.sql_name(name, suffix))
            writer = stream.writeStream.format("memory").queryName(query).option("checkpointLocation", folder)
            writer.trigger(availableNow=True).start().awaitTermination()
        found = _collected(self.spark.table(query))
        self.spark.catalog.dropTempView(query)
        return found

    def query(self, name: str, items: str, where: str) -> Rows:
        found = self.spark.sql(in_spark(f"SELECT {items} FROM {self.sql_name(name)} AS t WHERE {where}"))
        return rows_of(_collected(found), None)

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


def _collected(frame: Any) -> pa.Table:
    """The rows of a frame, with variants as the text of their JSON: PySpark's ``toArrow`` takes no null among them."""
    names = [f"to_json({f.name}) AS {f.name}" if _is_variant(f) else f"`{f.name}`" for f in frame.schema.fields]
    return (frame.selectExpr(*names) if any(map(_is_variant, frame.schema.fields)) else frame).toArrow()


def _is_variant(field: StructField) -> bool:
    return isinstance(field.dataType, VariantType)


def _selected(read: Callable[[], pa.Table], columns: Sequence[str]) -> Rows:
    return rows_of(read().select(columns), columns)


def rows_of(found: pa.Table, columns: Sequence[str] | None) -> Rows:
    """The rows of a result, which has to have these columns in this order. Numbers of an identity column are no part of
    a row, but each is there once.
    """
    if columns is not None and found.column_names != list(columns):
        raise AssertionError(f"columns {found.column_names}, expected {list(columns)}")
    if columns is not None and IDENTITY.name in columns:
        place = found.column_names.index(IDENTITY.name)
        _require_numbers(found.column(place))
        found = found.set_column(place, IDENTITY.name, pa.nulls(found.num_rows))
    return counted(zip(*(column.to_pylist() for column in found.columns), strict=True))


def _require_numbers(found: pa.ChunkedArray) -> None:
    if found.null_count or len(found.unique()) != len(found):
        raise AssertionError(f"an identity column with nulls, or with a number twice: {found.to_pylist()}")
