"""Engines that answer questions about the two tables of a run: what `Answer` says, of the rows from a number on.

Each engine is opened in a process of its own by its name, and knows the addresses of the servers and the folder of the
warehouse. A library that is absent raises ImportError.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from kit.duck import connect_duckdb
from many_engines.written import ACCOUNTS, EVENTS, Answer

COLUMNS = {EVENTS: ["id", "batch"], ACCOUNTS: ["id", "balance", "moved"]}
BY = {EVENTS: "batch", ACCOUNTS: "moved"}
"""The column that a question is about."""
MEASURES = {
    EVENTS: "count(*), coalesce(sum(id), 0), coalesce(min(id), 0), coalesce(max(id), 0)",
    ACCOUNTS: "count(*), coalesce(sum(balance), 0), coalesce(sum(balance * id), 0), coalesce(sum(moved), 0)",
}


@dataclass(frozen=True)
class Addresses:
    """Where the parts of a run are."""

    http: str
    """Of the server that this engine asks."""
    flight: str
    warehouse: str
    """A folder, or a URL."""
    settings: dict[str, str] = field(default_factory=dict)
    """How the warehouse's store is reached."""
    query_servers: dict[str, str] = field(default_factory=dict)
    """URLs of the servers that answer in an engine's place, by name."""

    @property
    def iceberg(self) -> str:
        return f"{self.http}/iceberg"


class Engine(Protocol):
    def ask(self, table: str, since: int) -> Answer: ...


def answer_of(table: str, rows: pa.Table) -> Answer:
    """The answer that rows of a table give; they may be fewer than the table's, by the filter of the question."""
    if table == EVENTS:
        found = (pc.sum(rows["id"]).as_py(), *pc.min_max(rows["id"]).as_py().values())
    else:
        weighted = pc.sum(pc.multiply(rows["balance"], rows["id"]))
        found = (pc.sum(rows["balance"]).as_py(), weighted.as_py(), pc.sum(rows["moved"]).as_py())
    return (rows.num_rows, *(value or 0 for value in found))


def sql(table: str, since: int, of: str) -> str:
    where = f" WHERE {BY[table]} >= {since}" if since > 0 else ""
    return f"SELECT {MEASURES[table]} FROM {of}{where}"


# -- DuckDB -----------------------------------------------------------------------------------------------------------


def duckdb_connection() -> Any:
    connection = connect_duckdb("httpfs")
    connection.execute("SET autoinstall_known_extensions = false; SET threads = 2")
    return connection


class DuckDB:
    """The catalog, attached once: each query is a transaction of its own."""

    lake_of = 'sh.{}."{}$lake"'

    def __init__(self, at: Addresses) -> None:
        self._connection = duckdb_connection()
        if at.settings:
            self._connection.execute(_duckdb_secret(at.settings))
        options = "TYPE iceberg, AUTHORIZATION_TYPE 'none'"
        self._connection.execute(f"ATTACH '' AS sh ({options}, ENDPOINT '{at.iceberg}')")

    def ask(self, table: str, since: int) -> Answer:
        return self._connection.execute(sql(table, since, f"sh.{table}")).fetchone()

    def count(self, of: str) -> int:
        return self._connection.execute(f"SELECT count(*) FROM {of}").fetchone()[0]


def _duckdb_secret(settings: dict[str, str]) -> str:
    key, secret = settings["s3.access-key-id"], settings["s3.secret-access-key"]
    place = f"ENDPOINT '{urllib.parse.urlsplit(settings['s3.endpoint']).netloc}', URL_STYLE 'path', USE_SSL false"
    return f"CREATE SECRET (TYPE s3, KEY_ID '{key}', SECRET '{secret}', REGION 'us-east-1', {place})"


class DuckDBTransactions(DuckDB):
    """Each question twice in a transaction, the second time as a join with itself: all of it is one state."""

    def ask(self, table: str, since: int) -> Answer:
        self._connection.execute("BEGIN")
        try:
            first = super().ask(table, since)
            joined = f"(SELECT a.* FROM sh.{table} a JOIN sh.{table} b USING (id))"
            second = self._connection.execute(sql(table, since, joined)).fetchone()
        finally:
            self._connection.execute("ROLLBACK")
        if first != second:
            raise AssertionError(f"two answers in one transaction: {first}, {second}")
        return first


class DuckDBLake:
    """The lake's folder, without a server."""

    def __init__(self, at: Addresses) -> None:
        self._connection = duckdb_connection()
        self._lake = f"{at.warehouse}/lake"

    def ask(self, table: str, since: int) -> Answer:
        of = f"iceberg_scan('{self._lake}/{table.replace('.', '/')}')"
        return self._connection.execute(sql(table, since, of)).fetchone()


# -- pyiceberg, and what reads by it ----------------------------------------------------------------------------------


class PyIceberg:
    """The catalog is asked for each question, as `load_catalog` and `load_table` do."""

    def __init__(self, at: Addresses) -> None:
        from pyiceberg.catalog import load_catalog

        self.catalog = load_catalog("sh", type="rest", uri=at.iceberg, **at.settings)

    def ask(self, table: str, since: int) -> Answer:
        from pyiceberg.expressions import AlwaysTrue, GreaterThanOrEqual

        wanted = GreaterThanOrEqual(BY[table], since) if since > 0 else AlwaysTrue()
        scan = self.catalog.load_table(table).scan(row_filter=wanted, selected_fields=tuple(COLUMNS[table]))
        return answer_of(table, scan.to_arrow())


class Polars(PyIceberg):
    """Polars' own reader of files, of the table that pyiceberg loaded."""

    def ask(self, table: str, since: int) -> Answer:
        import polars as pl

        rows = pl.scan_iceberg(self.catalog.load_table(table), reader_override="native")
        rows = rows.filter(pl.col(BY[table]) >= since) if since > 0 else rows
        return answer_of(table, rows.select(COLUMNS[table]).collect().to_arrow())


class Daft(PyIceberg):
    def ask(self, table: str, since: int) -> Answer:
        import daft

        rows = daft.read_iceberg(self.catalog.load_table(table))
        rows = rows.where(daft.col(BY[table]) >= since) if since > 0 else rows
        return answer_of(table, rows.select(*COLUMNS[table]).to_arrow())


class ClickHouse:
    """ClickHouse reads the files that the catalog names. Its own client of catalogs reads from S3 alone."""

    def __init__(self, at: Addresses) -> None:
        import chdb

        os.chdir("/")  # it reads no file outside of the folder that it is in
        self._connection, self._at = chdb.connect(":memory:"), at

    def ask(self, table: str, since: int) -> Answer:
        loaded = fetched_json(f"{self._at.iceberg}/v1/namespaces/s/tables/{table.partition('.')[2]}")
        folder, metadata = (urllib.parse.urlsplit(one).path for one in _places(loaded))
        file = metadata.removeprefix(f"{folder}/")
        of = f"icebergLocal('{folder}', SETTINGS iceberg_metadata_file_path = '{file}')"
        found = self._connection.query(sql(table, since, of), "JSONCompact")
        return tuple(int(value) for value in json.loads(str(found))["data"][0])


def _places(loaded: dict[str, Any]) -> tuple[str, str]:
    return loaded["metadata"]["location"], loaded["metadata-location"]


# -- JVMs -------------------------------------------------------------------------------------------------------------

SPARK_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


class Spark:
    """Iceberg's own runtime in Spark, which Spark fetches from Maven Central."""

    lake_of = "sh.{}.`{}$lake`"

    def __init__(self, at: Addresses) -> None:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local[2]").config("spark.jars.packages", SPARK_RUNTIME)
        settings = {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.log.level": "ERROR",
            "spark.driver.memory": "1g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.catalog.sh": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.sh.type": "rest",
            "spark.sql.catalog.sh.uri": at.iceberg,
            "spark.sql.catalog.sh.cache-enabled": "false",
        }
        for name, value in settings.items():
            builder = builder.config(name, value)
        self._session = builder.getOrCreate()

    def ask(self, table: str, since: int) -> Answer:
        return tuple(self._session.sql(sql(table, since, f"sh.{table}")).collect()[0])

    def count(self, of: str) -> int:
        return self._session.sql(f"SELECT count(*) FROM {of}").collect()[0][0]


# -- our own ways -----------------------------------------------------------------------------------------------------


OFFERS_MAX = 5


class Flight:
    """Arrow Flight: an info, and then all of its parts; again where one is no longer there, as its error says."""

    def __init__(self, at: Addresses) -> None:
        from pyarrow import flight

        self._flight, self._client = flight, flight.connect(at.flight)

    def ask(self, table: str, since: int) -> Answer:
        asked = {"table": table, "columns": COLUMNS[table]}
        asked |= {"where": f"{BY[table]} >= {since}"} if since > 0 else {}
        for attempt in range(OFFERS_MAX):
            try:
                return answer_of(table, self._read(json.dumps(asked)))
            except self._flight.FlightError as error:
                if attempt == OFFERS_MAX - 1 or b"SNAPSHOT_EXPIRED" not in (error.extra_info or b""):
                    raise
        raise AssertionError

    def _read(self, asked: str) -> pa.Table:
        info = self._client.get_flight_info(self._flight.FlightDescriptor.for_command(asked))
        parts = [self._client.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints]
        return pa.concat_tables([info.schema.empty_table(), *parts])


class Http:
    """`GET …/rows` as Arrow."""

    def __init__(self, at: Addresses) -> None:
        self._at = at.http

    def ask(self, table: str, since: int) -> Answer:
        asked = {"columns": ",".join(COLUMNS[table]), "limit": "100000"}
        asked |= {"where": f"{BY[table]} >= {since}"} if since > 0 else {}
        url = f"{self._at}/api/v1/tables/{table}/rows?{urllib.parse.urlencode(asked)}"
        body = fetched(url, headers={"Accept": "application/vnd.apache.arrow.stream"})
        return answer_of(table, pa.ipc.open_stream(body).read_all())


def fetched(url: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
    request = urllib.request.Request(url, data=body, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        with error:
            raise RuntimeError(f"{error.code}: {error.read()[:500].decode(errors='replace')}") from error


def fetched_json(url: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Any:
    return json.loads(fetched(url, body, headers))
