"""The group of all commands, and the entry point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final

import click

from streamhouse_spark.cli.session import (
    Session,
    require_text,
    shared_options,
    usage_in_one_line,
    write_examples,
)

_SECTIONS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Start here": {
        "demo": ("demo_command", "Stream real flights into a table, tier and query them."),
        "doctor": ("upkeep_commands", "Check this machine and a warehouse, and say what to install or do."),
        "jar": ("jar_command", "Print the path of the SQL catalog's jar."),
    },
    "Tables": {
        "ls": ("table_commands", "List the tables of a warehouse, or of one DATABASE."),
        "top": ("top_command", "Show all tables: rows, rows a second, and how far each lake is behind."),
        "describe": ("table_commands", "Show what a table is: columns, properties, buckets, lake and lag."),
        "create": ("table_commands", "Create a table, its database and, if need be, the warehouse."),
        "adopt": ("adopt_command", "Make a table of an Iceberg or Paimon table that is there, with its rows."),
        "alter": ("table_commands", "Change a table's columns and properties, all of it or nothing."),
        "rename": ("table_commands", "Give a table another name, also in another database."),
        "truncate": ("table_commands", "Remove all rows of a table, after asking; the table itself stays."),
        "set-partitioning": ("partition_command", "Partition the rows of a table by other fields from now on."),
        "drop-partition": ("partition_command", "Remove the rows of all partitions with these values, after asking."),
        "rollback": ("version_commands", "Give a table the rows that it had after an older commit, after asking."),
        "clone": ("tag_commands", "Make a table of a version of another, without copying lake files."),
        "tag": ("tag_commands", "Name a version of a table, and keep what its readers need."),
        "tags": ("tag_commands", "Show the tags of a table."),
        "drop-tag": ("tag_commands", "Drop a tag of a table."),
        "branch": ("tag_commands", "Begin a branch, whose changes no reader of the table sees."),
        "publish-branch": (
            "tag_commands",
            "Make the changes of a branch the table's, all of them at once, and end it.",
        ),
        "drop-branch": ("tag_commands", "End a branch of a table, and lose its changes."),
        "drop": ("table_commands", "Drop a table and its lake table, after asking."),
        "undrop": ("table_commands", "Bring a dropped table back, with all rows, offsets and its lake."),
    },
    "Rows": {
        "head": ("row_commands", "Print rows of a table or of one of its views."),
        "tail": ("row_commands", "Follow a table: print rows as they are written."),
        "append": ("row_commands", "Add the rows of files to a table; upsert them where it has a primary key."),
        "serve": ("serve_command", "Show fresh rows to every Iceberg engine, and take rows over HTTP."),
    },
    "Materialised tables": {
        "refresh": ("view_commands", "Bring materialised tables to the rows that their sources have, on Spark."),
        "pause": ("view_commands", "Have services leave materialised tables as they are, until resume."),
        "resume": ("view_commands", "Have services refresh materialised tables again."),
    },
    "Lake and upkeep": {
        "tier": ("tier_command", "Move rows from the hot logs into the lakes."),
        "retier": ("retier_command", "Build the lake of a table anew from its hot log, in a fresh place."),
        "maintain": ("upkeep_commands", "Merge small segments, trim what is old, delete what nobody needs."),
        "snapshots": ("row_commands", "List the snapshots of a table's lake, oldest first."),
        "segments": ("row_commands", "List the segments of a table's hot log."),
        "history": ("version_commands", "List the newest commits of a table: what each did, and by whom."),
        "costs": ("costs", "Estimate a month's dollars of all tables on an object store."),
        "verify": ("upkeep_commands", "Check everything that a table names, byte by byte."),
        "relocate": ("relocate_command", "Make a warehouse that was moved whole where it lies now."),
    },
    "Parts of maintain": {
        "compact": ("lake_commands", "Join small files of the lake, and remove deleted rows from them."),
        "optimize": ("lake_commands", "Lay the rows of the lake out by columns, so that queries skip files."),
        "expire-snapshots": ("lake_commands", "Drop old snapshots of the lake, and the files that only they need."),
        "remove-orphan-files": ("lake_commands", "Delete files of the lake that no snapshot needs."),
        "rewrite-manifests": ("lake_commands", "Join the manifests of an Iceberg lake to few large ones."),
    },
}
"""The module of each command, and the line about it in the list of all: a call loads the command that it names only."""
_EXAMPLES: Final = """
streamhouse demo
export STREAMHOUSE_WAREHOUSE=./warehouse
streamhouse create sales.orders --schema 'order_id BIGINT NOT NULL, customer STRING, amount DOUBLE'
echo '{"order_id": 1, "customer": "ann", "amount": 9.5}' | streamhouse append sales.orders - --format json
streamhouse tier --once
streamhouse head 'sales.orders$lake'
"""


class _LazyCommands(Mapping[str, click.Command]):
    """All commands by their names. The module of a command is loaded when it is asked for."""

    def __init__(self) -> None:
        self._modules = {name: module for names in _SECTIONS.values() for name, (module, _) in names.items()}

    def __getitem__(self, name: str) -> click.Command:
        module = import_module(f"streamhouse_spark.cli.{self._modules[name]}")
        command: click.Command = getattr(module, name.replace("-", "_"))
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


class _Group(click.Group):
    """Lists the commands by purpose, and teaches with examples."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with usage_in_one_line():
            require_text(ctx, args)
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with usage_in_one_line():
            return super().invoke(ctx)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, summary) for name, (_, summary) in names.items()])

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, _EXAMPLES)
        formatter.write("\n`streamhouse COMMAND --help` explains each command.\n")


@click.group(
    cls=_Group,
    commands=_LazyCommands(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@shared_options
@click.version_option(package_name="streamhouse-spark", message="streamhouse %(version)s")
@click.pass_context
def streamhouse(ctx: click.Context) -> None:
    """Streamhouse tables: a hot Arrow log and an open lake behind one name.

    New rows land in the log and are visible at once; tiering moves them into the lake. Results go to stdout, messages
    and progress to stderr. Exit codes: 0 done, 1 failed (the reason is one line on stderr), 2 wrong usage.
    """
    ctx.ensure_object(Session)


def main(args: Any = None) -> None:
    """Run the command line and exit."""
    from streamhouse_spark.table.first_calls import leave_late

    leave_late()
    streamhouse.main(args, prog_name="streamhouse")
