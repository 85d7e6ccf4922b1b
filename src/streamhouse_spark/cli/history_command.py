"""``history``: the commits of a table, newest first."""

from __future__ import annotations

import click

from streamhouse_spark.cli.session import Command, Session


@click.command(
    "history",
    cls=Command,
    examples="""
streamhouse -w ./warehouse history sales.orders
streamhouse -w ./warehouse history sales.orders -n 5 --output json | jq .operation
""",
)
@click.argument("table")
@click.option(
    "-n", "--limit", type=click.IntRange(1, 2**63 - 1), default=20, show_default=True, help="How many commits."
)
@click.pass_obj
def history(session: Session, table: str, limit: int) -> None:
    """List the newest commits of a table: what each did, and by whom.

    The newest comes first. Commits whose records were cleaned are not listed any more.
    """
    found = session.warehouse.table(table).inspect.history(limit)
    session.output.rows(found.take(list(reversed(range(found.num_rows)))))
