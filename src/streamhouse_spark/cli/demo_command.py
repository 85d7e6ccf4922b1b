"""``demo``: see `streamhouse_spark.demo`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Final

import click

from streamhouse_spark.cli.session import Command, Failure, Session
from streamhouse_spark.cli.spark_session import open_spark, require_java
from streamhouse_spark.core.clock import SystemClock
from streamhouse_spark.errors import MissingExtraError
from streamhouse_spark.table.table import Table

DEFAULT_LOCATION: Final = "demo-warehouse"
_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options against JIT optimisation, which costs more than it gains in a JVM that lives for a minute."""
_NOT_INSTALLED: Final = "the demo needs {}, which is not installed; run: pip install 'streamhouse-spark[demo]'"


@click.command(
    "demo",
    cls=Command,
    examples="""
streamhouse demo
streamhouse demo --fast
streamhouse demo --warehouse /tmp/flights --rows 50000
""",
)
@click.option("--fast", is_flag=True, help="Let the flights stream in within 15 seconds instead of 80.")
@click.option("--rows", type=click.IntRange(min=1), help="Only so many flights.")
@click.option("--seconds", type=click.IntRange(min=1), help="How long the flights take to stream in.")
@click.pass_obj
def demo(session: Session, *, fast: bool, rows: int | None, seconds: int | None) -> None:
    """Stream real flights into a table, tier and query them.

    The 336,776 flights that left New York in 2013 arrive as a stream, in the order of their departure. A Structured
    Streaming job writes them into air.flights, a tiering service moves them into an Iceberg table, and Spark queries
    both all the while. At the end the demo proves that every row is there exactly once, everywhere.

    Creates a new warehouse, ./demo-warehouse or the one of --warehouse, and replaces only an earlier demo. Needs Java
    17 or newer. Exit code 1 if a proof fails.
    """
    location = session.location or str(Path(DEFAULT_LOCATION).absolute())
    clock = SystemClock()
    started_ms = clock.boot_ms()
    require_java()
    try:
        from streamhouse_spark.demo.demo_warehouse import new_demo_table
        from streamhouse_spark.demo.display import TextView
        from streamhouse_spark.demo.flights import load_flights
        from streamhouse_spark.demo.run import FAST, FULL, Demo, Pace
    except ModuleNotFoundError as error:
        raise MissingExtraError(_NOT_INSTALLED.format(error.name)) from error
    pace = FAST if fast else FULL
    if seconds is not None:
        pace = Pace(seconds, pace.freshness)
    flights = load_flights(rows)
    _, table = new_demo_table(location, session.settings, pace.freshness)
    view = TextView(clock)
    view.say("starting Spark")
    with tempfile.TemporaryDirectory(prefix="streamhouse-spark-") as scratch:
        spark = open_spark("streamhouse demo", "local[2]", _spark_config(scratch), java_options=_JAVA_OPTIONS)
        try:
            proofs = Demo(spark, location, session.settings, table, flights, pace, view).run()
        finally:
            spark.stop()
    failed = [proof.claim for proof in proofs if not proof.holds]
    if failed:
        raise Failure(f"the demo failed to prove: {'; '.join(failed)}")
    _say_farewell(view, table, clock.boot_ms() - started_ms)


def _spark_config(scratch: str) -> dict[str, str]:
    return {
        "spark.scheduler.mode": "FAIR",
        "spark.sql.shuffle.partitions": "2",
        # Few rows and many small plans: compiling a plan costs more than interpreting it.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.warehouse.dir": os.path.join(scratch, "spark-warehouse"),  # noqa: PTH118 - text for Spark
        "spark.ui.enabled": "false",
    }


def _say_farewell(view: Any, table: Table, duration_ms: int) -> None:
    from streamhouse_spark.demo.next_steps import locations, suggestions

    view.say(f"\nall of it in {duration_ms / 1000:.0f} seconds; here it lies:")
    for name, place in locations(table).items():
        view.say(f"  {name:<11} {place}")
    view.say("\ntry next:")
    for position, suggestion in enumerate(suggestions(table), start=1):
        view.say(f"\n  {position}. {suggestion.purpose}\n     {suggestion.command}")
