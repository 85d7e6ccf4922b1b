"""``branch``, ``publish-branch`` and ``drop-branch``: changes of a table that nobody else sees before they are
published.
"""

from __future__ import annotations

from dataclasses import asdict

import click

from streamhouse_spark.cli.session import Command, Session
from streamhouse_spark.core.paths import parse_table_name


@click.command(
    "branch",
    cls=Command,
    examples="""
streamhouse -w ./warehouse branch sales.orders audit
streamhouse -w ./warehouse append 'sales.orders$branch_audit' orders.csv
streamhouse -w ./warehouse head 'sales.orders$branch_audit'
streamhouse -w ./warehouse publish-branch sales.orders audit
""",
)
@click.argument("table")
@click.argument("name")
@click.pass_obj
def branch(session: Session, table: str, name: str) -> None:
    """Begin a branch, whose changes no reader of the table sees.

    It begins with the table's newest version, and is read and written as TABLE$branch_NAME. `publish-branch` makes its
    changes the table's, `drop-branch` loses them; `tags` shows it. Rows of the hot log are copied, and no file of the
    lake is.
    """
    parse_table_name(table).require_table("make a branch of")
    made = session.warehouse.table(table).create_branch(name)
    session.output.document(
        {"table": table, **asdict(made)},
        lambda console: console.print(
            f"{table}$branch_{made.name} begins with commit {made.version} of {table}", markup=False
        ),
    )


@click.command("publish-branch", cls=Command, examples="streamhouse -w ./warehouse publish-branch sales.orders audit")
@click.argument("table")
@click.argument("name")
@click.pass_obj
def publish_branch(session: Session, table: str, name: str) -> None:
    """Make the changes of a branch the table's, all of them at once, and end it.

    Where the table changed since the branch began, the branch is published only if that is right behind these changes;
    else nothing is. Publishing again publishes once.
    """
    parse_table_name(table).require_table("publish a branch of")
    done = session.warehouse.table(table).fast_forward(name)
    session.output.document(
        asdict(done),
        lambda console: console.print(
            f"commit {done.version} of {table} has the changes of its branch {done.branch}", markup=False
        ),
    )


@click.command("drop-branch", cls=Command, examples="streamhouse -w ./warehouse drop-branch sales.orders audit")
@click.argument("table")
@click.argument("name")
@click.pass_obj
def drop_branch(session: Session, table: str, name: str) -> None:
    """End a branch of a table, and lose its changes. Its files are deleted by cleaning, after the grace."""
    parse_table_name(table).require_table("drop a branch of")
    session.warehouse.table(table).drop_branch(name)
    session.output.document(
        {"table": table, "dropped": name},
        lambda console: console.print(f"dropped the branch {name} of {table}", markup=False),
    )
