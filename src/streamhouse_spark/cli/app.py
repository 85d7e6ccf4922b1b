"""The ``streamhouse`` command group and its entry point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from streamhouse_spark.cli.session import (
    Session,
    require_text,
    shared_options,
    shorten_usage_errors,
    write_examples,
)

_SECTIONS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Start here": {
        "tutorial": ("tutorial_command", "Take a tour of ten minutes, in a notebook or in the terminal."),
        "demo": ("spark_commands", "Stream real flights into a table, tier and query them."),
        "doctor": ("maintenance_commands", "Check this machine and a warehouse, and recommend fixes."),
        "jar": ("spark_commands", "Print the path of the SQL catalog's jar."),
    },
    "Tables": {
        "ls": ("table_commands", "List the tables of a warehouse, or of one DATABASE."),
        "top": ("overview_commands", "Show all tables live: rows, rows per second, and the lag of each lake."),
        "describe": ("table_commands", "Describe a table: columns, properties, buckets, lake and lag."),
        "create": ("table_commands", "Create a table, and its database and warehouse if they do not exist."),
        "adopt": ("lake_commands", "Create a table from an existing Iceberg or Paimon table, with its rows."),
        "alter": ("table_commands", "Change a table's columns and properties atomically."),
        "rename": ("table_commands", "Rename a table, also to another database."),
        "truncate": ("table_commands", "Remove all rows of a table after confirmation, and keep the table."),
        "set-partitioning": ("lake_commands", "Change the partition fields of a table for new rows."),
        "drop-partition": ("lake_commands", "Remove the rows of all matching partitions after confirmation."),
        "rollback": ("version_commands", "Restore the rows of an older commit after confirmation."),
        "clone": ("version_commands", "Create a table from a version of another table without copying lake files."),
        "tag": ("version_commands", "Name a version of a table and retain the files that its readers need."),
        "tags": ("version_commands", "Show the tags of a table."),
        "drop-tag": ("version_commands", "Drop a tag of a table."),
        "branch": ("version_commands", "Create a branch whose changes are isolated from the table."),
        "publish-branch": ("version_commands", "Publish the changes of a branch atomically, and end the branch."),
        "drop-branch": ("version_commands", "Drop a branch of a table and discard its changes."),
        "drop": ("table_commands", "Drop a table and its lake table after confirmation."),
        "undrop": ("table_commands", "Restore a dropped table with all rows, offsets and its lake."),
    },
    "Rows": {
        "head": ("row_commands", "Print rows of a table or of one of its system tables."),
        "tail": ("row_commands", "Follow a table: print rows as they are written."),
        "append": ("row_commands", "Append the rows of files to a table, or upsert them by primary key."),
        "serve": ("serve_command", "Serve fresh rows to Iceberg engines, and read and write rows over HTTP."),
    },
    "Materialized tables": {
        "refresh": ("spark_commands", "Refresh materialized tables from their sources, on Spark."),
        "pause": ("spark_commands", "Pause refreshes of materialized tables by services, until resume."),
        "resume": ("spark_commands", "Resume refreshes of materialized tables by services."),
    },
    "Lake and maintenance": {
        "tier": ("tier_command", "Move rows from the hot logs into the lakes."),
        "retier": ("lake_commands", "Rebuild the lake of a table from its hot log at a new location."),
        "maintain": ("maintenance_commands", "Merge small segments, trim old rows, delete unreferenced files."),
        "snapshots": ("row_commands", "List the snapshots of a table's lake, oldest first."),
        "segments": ("row_commands", "List the segments of a table's hot log."),
        "history": ("version_commands", "List the latest commits of a table, with operation and author."),
        "costs": ("overview_commands", "Estimate the monthly cost of all tables on an object store."),
        "verify": ("maintenance_commands", "Verify all files of a table against their checksums."),
        "relocate": ("maintenance_commands", "Repair a warehouse that was moved or copied, at its new location."),
    },
    "Parts of maintain": {
        "compact": ("lake_commands", "Merge small lake files, and remove deleted rows from them."),
        "optimize": ("lake_commands", "Cluster the rows of the lake by columns, so that queries skip files."),
        "expire-snapshots": ("lake_commands", "Expire old lake snapshots, and delete files that only they need."),
        "remove-orphan-files": ("lake_commands", "Delete lake files that no snapshot references."),
        "rewrite-manifests": ("lake_commands", "Merge the manifests of an Iceberg lake into few large ones."),
    },
}
"""Command → its module and its summary. A call imports only the module of its command."""
_EXAMPLES: Final = """
streamhouse tutorial
streamhouse demo
export STREAMHOUSE_WAREHOUSE=./warehouse
streamhouse create sales.orders --schema 'order_id BIGINT NOT NULL, customer STRING, amount DOUBLE'
echo '{"order_id": 1, "customer": "ann", "amount": 9.5}' | streamhouse append sales.orders - --format json
streamhouse tier --once
streamhouse head 'sales.orders$lake'
"""


class _LazyCommands(Mapping[str, click.Command]):
    """All commands by name. The module of a command is imported on first access."""

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
    """A group that lists commands by purpose and shows examples."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with shorten_usage_errors():
            require_text(ctx, args)
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with shorten_usage_errors():
            return super().invoke(ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands without importing their modules."""
        listed = (item for names in _SECTIONS.values() for item in names.items())
        commands = [CompletionItem(name, help=text) for name, (_, text) in listed if name.startswith(incomplete)]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

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

    New rows are written to the log and visible immediately. Tiering moves them into the lake.

    Results go to stdout, messages and progress to stderr. Exit codes: 0 success, 1 failure (with a one-line reason on
    stderr), 2 usage error.
    """
    ctx.ensure_object(Session)


def main(args: Any = None) -> None:
    """Run the command line and exit."""
    from streamhouse_spark.table.preloading import disable_preloading

    disable_preloading()
    streamhouse.main(args, prog_name="streamhouse")
