"""A session that runs the statements of refreshes in DuckDB: in milliseconds, and without a JVM.

It has of a `SparkSession` what refreshes ask for. Relations of tables are read by the library, at the same versions and
between the same offsets.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot
from pyspark.errors import PySparkException
from sqlglot import exp

from streamhouse_spark import OffsetRange, StreamhouseError
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.log.history import state_at
from streamhouse_spark.log.segments.metadata_columns import CHANGE_TYPE
from streamhouse_spark.log.state import TableState
from streamhouse_spark.read.offset_scan import plan_ranges
from streamhouse_spark.read.scan_executor import read_batches
from streamhouse_spark.views.step_planning import first_offsets
from streamhouse_spark.warehouse.process_cache import Connection

_PART = r"`?([\w$]+)`?"
_PATH = re.compile(rf"streamhouse\.{_PART}\.{_PART}")
_AT_VERSION = re.compile(rf"SELECT \* FROM {_PATH.pattern} VERSION AS OF (\d+)(?: WITH \((.*)\))?")
_PREFIX = re.compile(r"streamhouse_[0-9a-f]{32}_")
"""Each refresh has relations of its own; its statements are those of the last one."""
TIME_ZONE = "UTC"


def reference(time_zone: str) -> duckdb.DuckDBPyConnection:
    """DuckDB with the functions of Spark that it lacks."""
    found = duckdb.connect(config={"threads": 1})
    found.execute(f"SET TimeZone = '{time_zone}'")
    found.execute("SET disabled_optimizers = 'join_filter_pushdown'")  # Arrow's tables do not take each filter of it
    found.execute("CREATE MACRO unix_micros(moment) AS epoch_us(moment)")
    return found


def in_duckdb(text: str) -> str:
    """The same query in DuckDB's words."""
    prefix = _PREFIX.search(text)
    if prefix is None:
        return _in_duckdb(text)
    return _in_duckdb(text.replace(prefix[0], "relation_")).replace("relation_", prefix[0])


@functools.lru_cache(maxsize=4096)
def _in_duckdb(text: str) -> str:
    tree = sqlglot.parse_one(text, read="spark")
    for cast in list(tree.find_all(exp.TryCast)):  # Spark's CAST fails by itself, which only TRY_CAST does not
        cast.replace(exp.Cast(this=cast.this, to=cast.to))
    for counted in list(tree.find_all(exp.CountIf)):  # of no rows but unknown ones it is NULL in DuckDB
        counted.replace(exp.Count(this=exp.Case().when(counted.this, exp.Literal.number(1))))
    return str(tree.sql("duckdb", unsupported_level=sqlglot.ErrorLevel.IGNORE))


class DuckSession:
    """A session of one process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._duck = reference(TIME_ZONE)
        self.conf = {"spark.sql.session.timeZone": TIME_ZONE, "spark.sql.ansi.enabled": "true"}
        self.catalog = self
        self.statements = 0

    def close(self) -> None:
        self._duck.close()

    # -- as Spark names it ----------------------------------------------------------------------------------------

    def sql(self, text: str) -> Frame:
        found = _AT_VERSION.fullmatch(text)
        if found is None:
            return Frame(self, text)
        database, name, version, options = found.groups()
        table, number = self._table(database, name), int(version)
        if options is None:
            return Frame(self, rows=self._told(lambda: table.read_version(number)))
        given = dict(re.findall(r"'(\w+)' = '([^']*)'", options))

        def changes() -> pa.Table:
            return self._changes(table, state_at(table.log, table.storage, number), "", given)

        return Frame(self, rows=self._told(changes))

    def createDataFrame(self, rows: pa.Table, _schema: Any) -> Frame:  # noqa: N802
        return Frame(self, rows=rows)

    def dropTempView(self, name: str) -> None:  # noqa: N802
        self._duck.unregister(name)

    @property
    def read(self) -> _Reader:
        return _Reader(self, {})

    # -- for frames -----------------------------------------------------------------------------------------------

    def rows(self, text: str, tail: str = "") -> pa.Table:
        self.statements += 1
        query = f"SELECT * FROM ({in_duckdb(text)}) q {tail}" if tail else in_duckdb(text)
        return self._told(lambda: _as_in_spark(self._duck.execute(query).to_arrow_table()))

    def register(self, name: str, rows: pa.Table) -> None:
        self._duck.register(name, rows)

    def changes(self, database: str, name: str, options: Mapping[str, str]) -> pa.Table:
        base, _, suffix = name.partition("$")
        table = self._table(database, base)
        return self._told(lambda: self._changes(table, table.refresh(), suffix, options))

    def _changes(self, table: Any, state: TableState, suffix: str, options: Mapping[str, str]) -> pa.Table:
        first = {str(bucket): start for bucket, start in first_offsets(state).items()}
        starts, ends = json.loads(options.get("startingOffsets", "null")) or first, json.loads(options["endingOffsets"])
        ranges = {int(b): OffsetRange(starts.get(b, 0), end) for b, end in ends.items() if end > starts.get(b, 0)}
        metadata = (CHANGE_TYPE,) if suffix else ()
        plan = plan_ranges(table, state, ranges, state.schema.names, fail_on_data_loss=True)
        batches = list(read_batches(table, plan, metadata))
        return pa.Table.from_batches(batches, pa.schema([*metadata, *plan.schema.arrow]))

    def _table(self, database: str, name: str) -> Any:
        return self._connection.table(f"{database}.{name}")

    def _told(self, read: Any) -> Any:
        """Errors of a query reach the driver as Spark's own, with the text of what failed in a task."""
        try:
            return read()
        except (StreamhouseError, duckdb.Error) as error:
            raise PySparkException(f"{type(error).__name__}: {error}") from error


class Frame:
    """Rows, or a query that gives them when they are asked for."""

    def __init__(self, session: DuckSession, text: str = "", rows: pa.Table | None = None) -> None:
        self._session, self._text, self._rows = session, text, rows

    @property
    def schema(self) -> Any:
        rows = self._rows if self._rows is not None else self._session.rows(self._text, "LIMIT 0")
        return spark_versions.spark_schema_of(_without_null_types(rows.schema))

    def sameSemantics(self, other: Frame) -> bool:  # noqa: N802
        """Tell whether both have the same rows now: DuckDB compares no plans."""
        return sorted(map(repr, self.toArrow().to_pylist())) == sorted(map(repr, other.toArrow().to_pylist()))

    def toArrow(self) -> pa.Table:  # noqa: N802
        return self._rows if self._rows is not None else self._session.rows(self._text)

    def createOrReplaceTempView(self, name: str) -> None:  # noqa: N802
        self._session.register(name, self.toArrow())

    def selectExpr(self, *items: str) -> Frame:  # noqa: N802
        self._session.register("selected", self.toArrow())
        try:
            return Frame(self._session, rows=self._session.rows(f"SELECT {', '.join(items)} FROM selected"))
        finally:
            self._session.dropTempView("selected")

    def mapInArrow(self, function: Any, schema: Any) -> Frame:  # noqa: N802
        given = self.toArrow().cast(spark_versions.arrow_schema_of(self.schema))
        batches = list(function(iter(given.to_batches(max_chunksize=3))))
        return Frame(self._session, rows=pa.Table.from_batches(batches, spark_versions.arrow_schema_of(schema)))

    def where(self, condition: str) -> Frame:
        self._session.register("selected", self.toArrow())
        return Frame(self._session, rows=self._session.rows(f"SELECT * FROM selected WHERE {condition}"))


class _Reader:
    def __init__(self, session: DuckSession, options: Mapping[str, str]) -> None:
        self._session, self._options = session, options

    def options(self, **options: str) -> _Reader:
        return _Reader(self._session, options)

    def table(self, path: str) -> Frame:
        found = _PATH.fullmatch(path)
        assert found is not None, path
        return Frame(self._session, rows=self._session.changes(*found.groups(), self._options))


def _as_in_spark(rows: pa.Table) -> pa.Table:
    """Give sums Spark's types. A column of nulls alone, which DuckDB calls INTEGER, has no type: it fits any."""
    for place, field in enumerate(rows.schema):
        column, kind = rows.column(place), field.type
        if pa.types.is_decimal(kind) and kind.precision == 38:
            column = column.cast(pa.decimal128(22, kind.scale) if kind.scale else pa.int64())
        elif kind == pa.int32() and column.null_count == len(column):
            column = pa.chunked_array([pa.nulls(len(column))])
        rows = rows.set_column(place, field.name, column)
    return rows


def _without_null_types(schema: pa.Schema) -> pa.Schema:
    return pa.schema([(f.name, pa.int32() if pa.types.is_null(f.type) else f.type) for f in schema])
