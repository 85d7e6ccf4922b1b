"""``undrop`` and ``ls --dropped``: tables that were dropped and are not cleaned up yet."""

from __future__ import annotations

from typing import Final

import click
import pyarrow as pa

from streamhouse_spark.cli.session import Command, Session
from streamhouse_spark.core.paths import parse_database

_DROPPED: Final = pa.schema([
    ("table", pa.string()),
    ("uuid", pa.string()),
    ("dropped", pa.timestamp("ms", "UTC")),
    ("rows", pa.int64()),
])  # fmt: skip


def list_dropped(session: Session, database: str | None) -> None:
    """Return the dropped tables of a warehouse, or of one database, as rows."""
    database_name = None if database is None else parse_database(database)
    rows = [
        {"table": table.name, "uuid": table.uuid, "dropped": table.dropped_ms, "rows": table.rows}
        for table in session.warehouse.dropped_tables()
        if database_name in (None, table.name.partition(".")[0])
    ]
    session.output.rows(pa.Table.from_pylist(rows, schema=_DROPPED))
    if not rows:
        session.output.remark(f"no dropped table in {session.warehouse.url} can be brought back")


@click.command(
    "undrop",
    cls=Command,
    examples="""
streamhouse -w ./warehouse ls --dropped
streamhouse -w ./warehouse undrop sales.orders
streamhouse -w ./warehouse undrop sales.orders --to sales.orders_before
""",
)
@click.argument("table")
@click.option("--uuid", help="Which one, where several tables were dropped under this name. Default: the last.")
@click.option("--to", metavar="NAME", help="The name to give it. Default: the one that it had.")
@click.pass_obj
def undrop(session: Session, table: str, *, uuid: str | None, to: str | None) -> None:
    """Bring a dropped table back, with all rows, offsets and its lake.

    That works until `streamhouse maintain` cleans it up, a day after the drop or more.
    """
    opened = session.warehouse.undrop_table(table, uuid=uuid, to=to)
    unit = "changes" if opened.state.primary_key else "rows"
    facts = {"table": opened.name, "uuid": opened.uuid, "rows": opened.state.num_rows}
    session.output.document(
        facts, lambda console: console.print(f"{opened.name} is back, with {facts['rows']:,} {unit}", markup=False)
    )
