"""``tier``: moving rows from the hot logs into the lakes, once or as a service, in this process or on Spark."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click
import pyarrow as pa

from streamhouse_spark.cli.output import Output
from streamhouse_spark.cli.session import Command, Session
from streamhouse_spark.cli.upkeep_commands import chosen_tables
from streamhouse_spark.errors import InvalidOptionError, StreamhouseError, TableNotFoundError
from streamhouse_spark.log.claims import release_claim, try_claim
from streamhouse_spark.table import Table
from streamhouse_spark.warehouse import Warehouse

if TYPE_CHECKING:
    from streamhouse_spark.lake.tiering import TieringReport

_POLL_MS: Final = 500.0
_TIERED: Final = pa.schema([
    ("table", pa.string()),
    ("rows", pa.int64()),
    ("files", pa.int64()),
    ("size_bytes", pa.int64()),
    ("snapshots", pa.list_(pa.int64())),
    ("duration_ms", pa.int64()),
])  # fmt: skip


@click.command(
    "tier",
    cls=Command,
    examples="""
# everything that was written before now is in the lake when this returns
streamhouse -w ./warehouse tier --once
streamhouse -w ./warehouse tier --once sales.orders --output json

# a service that keeps each table as fresh as its table.datalake.freshness says, until Ctrl-C
streamhouse -w ./warehouse tier

# the same on Spark, which writes the files on its executors
streamhouse -w s3://bucket/warehouse tier --master 'local[4]'
""",
)
@click.argument("tables", nargs=-1)
@click.option("--once", is_flag=True, help="One round: end when all rows written before the call are in the lake.")
@click.option("--spark", "on_spark", is_flag=True, help="Run on Spark, with the master of its own configuration.")
@click.option("--master", metavar="URL", help="Run on Spark with this master, such as local[*].")
@click.pass_obj
def tier(session: Session, tables: Sequence[str], *, once: bool, on_spark: bool, master: str | None) -> None:
    """Move rows from the hot logs into the lakes.

    Works on all TABLES of the warehouse that have a lake, or on those named. Any number of these may run at once:
    each round's commit is fenced. Runs in this process; for large tables give --spark or --master.
    """
    if on_spark or master:
        _on_spark(session, tables, master, once=once)
    elif once:
        reports = [tier_here(table) for table in _with_lakes(session, tables)]
        session.output.rows(_as_rows(reports))
    else:
        with _until_stopped() as stop:
            _InProcessService(session.warehouse, tables, session.output).run(stop)


def tier_here(table: Table) -> TieringReport:
    """Tier one table in this process."""
    from streamhouse_spark.lake.tiering import TieringJob, run_tasks_locally

    job = TieringJob(table.log, table.open_lake(), world=table.world)
    return job.run(run_tasks_locally(table.storage, table.settings, table.world))


def _with_lakes(session: Session, names: Sequence[str]) -> list[Table]:
    """Raises `InvalidOptionError` for a table that was named and has no lake."""
    chosen = chosen_tables(session, names)
    for table in chosen:
        if names and not table.properties.datalake_enabled:
            raise InvalidOptionError(
                f"table {table.name} has no lake; `streamhouse alter {table.name} --set table.datalake.enabled=true` "
                "gives it one",
            )
    return [table for table in chosen if table.properties.datalake_enabled]


def _as_rows(reports: Sequence[TieringReport]) -> pa.Table:
    rows = [
        {
            "table": r.table,
            "rows": r.rows,
            "files": r.files,
            "size_bytes": r.size_bytes,
            "snapshots": list(r.snapshots),
            "duration_ms": r.duration_ms,
        }
        for r in reports
    ]
    return pa.Table.from_pylist(rows, schema=_TIERED)


def _say(output: Output, report: TieringReport) -> None:
    if output.as_json:
        output.json_lines(_as_rows([report]))
    else:
        click.echo(
            f"{report.table}: {report.rows:,} rows in {report.files} files into the lake, {report.duration_ms} ms"
        )


def _on_spark(session: Session, names: Sequence[str], master: str | None, *, once: bool) -> None:
    from streamhouse_spark.cli.spark_session import open_spark
    from streamhouse_spark.spark import TieringService
    from streamhouse_spark.spark import tier as tier_on_spark

    tables = [table.name for table in _with_lakes(session, names)]
    location, settings = session.warehouse_location, session.settings
    spark = open_spark("streamhouse tier", master)
    try:
        if once:
            session.output.rows(_as_rows(list(tier_on_spark(spark, location, tables, settings=settings).values())))
        else:
            with _until_stopped() as stop:
                TieringService(spark, location, list(names) or None, settings=settings).run(stop)
    finally:
        spark.stop()


class _InProcessService:
    """Tiers each table when its oldest waiting row is as old as the table's freshness allows.

    Looks for new tables as well. A table that fails is reported, and tried again when its freshness has passed; the
    others go on.
    """

    def __init__(self, warehouse: Warehouse, names: Sequence[str], output: Output) -> None:
        self._warehouse = warehouse
        self._names = list(names)
        self._output = output
        self._service_id = warehouse.world.ids.new_uuid()
        self._next_ms: dict[str, int] = {}

    def run(self, stop: threading.Event) -> None:
        for name in self._names:
            self._warehouse.table(name)
        self._output.remark(f"tiering {self._warehouse.url} until Ctrl-C")
        clock = self._warehouse.world.clock
        while not stop.is_set():
            for table in self._tables():
                if stop.is_set():
                    return
                if clock.boot_ms() >= self._next_ms.get(table.uuid, 0) and self._is_due(table):
                    self._tier(table)
            stop.wait(_POLL_MS / 1000)

    def _tables(self) -> Iterator[Table]:
        for name in self._names or self._warehouse.tables():
            try:
                table = self._warehouse.table(name)
            except TableNotFoundError:
                continue  # dropped since it was listed
            if table.properties.datalake_enabled:
                yield table

    def _is_due(self, table: Table) -> bool:
        """Whether the oldest row that waits will be too old before the next look."""
        state = table.state
        waiting = [
            next((s.first_time_ms for s in log.segments if s.end_offset > state.lake_offset(bucket)), None)
            for bucket, log in state.buckets.items()
        ]
        ages_ms = [table.storage.now_ms() - time_ms for time_ms in waiting if time_ms is not None]
        return bool(ages_ms) and max(ages_ms) + _POLL_MS >= table.properties.datalake_freshness_ms / 2

    def _tier(self, table: Table) -> None:
        clock = self._warehouse.world.clock
        if not try_claim(table.storage, table.uuid, self._service_id):
            return
        try:
            _say(self._output, tier_here(table))
        except StreamhouseError as error:
            click.secho(f"{table.name}: {error}", err=True, fg="red")
            self._next_ms[table.uuid] = clock.boot_ms() + table.properties.datalake_freshness_ms
        finally:
            release_claim(table.storage, table.uuid, self._service_id)


@contextmanager
def _until_stopped() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set: what is under way is finished first."""
    stop = threading.Event()
    previous = {s: signal.signal(s, lambda *_: stop.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
