"""The group of all commands, and the entry point."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

import click

from streamhouse_spark.cli.adopt_command import adopt
from streamhouse_spark.cli.demo_command import demo
from streamhouse_spark.cli.dropped_commands import undrop
from streamhouse_spark.cli.jar_command import jar
from streamhouse_spark.cli.lake_commands import compact, expire_snapshots, remove_orphan_files, rewrite_manifests
from streamhouse_spark.cli.partition_command import drop_partition
from streamhouse_spark.cli.relocate_command import relocate
from streamhouse_spark.cli.retier_command import retier
from streamhouse_spark.cli.row_commands import append, head, segments, snapshots, tail
from streamhouse_spark.cli.session import (
    Session,
    require_text,
    shared_options,
    usage_in_one_line,
    write_examples,
)
from streamhouse_spark.cli.table_commands import alter, create, describe, drop, ls, rename, truncate
from streamhouse_spark.cli.tier_command import tier
from streamhouse_spark.cli.upkeep_commands import doctor, maintain, verify

_SECTIONS: Final = {
    "Start here": ("demo", "doctor", "jar"),
    "Tables": ("ls", "describe", "create", "adopt", "alter", "rename", "truncate", "drop-partition", "drop", "undrop"),
    "Rows": ("head", "tail", "append"),
    "Lake and upkeep": ("tier", "retier", "maintain", "snapshots", "segments", "verify", "relocate"),
    "Parts of maintain": ("compact", "expire-snapshots", "remove-orphan-files", "rewrite-manifests"),
}
_EXAMPLES: Final = """
streamhouse demo
export STREAMHOUSE_WAREHOUSE=./warehouse
streamhouse create sales.orders --schema 'order_id BIGINT NOT NULL, customer STRING, amount DOUBLE'
echo '{"order_id": 1, "customer": "ann", "amount": 9.5}' | streamhouse append sales.orders - --format json
streamhouse tier --once
streamhouse head 'sales.orders$lake'
"""


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
            found = [(name, self.commands[name]) for name in names if name in self.commands]
            if found:
                with formatter.section(title):
                    formatter.write_dl([(name, command.get_short_help_str(110)) for name, command in found])

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, _EXAMPLES)
        formatter.write("\n`streamhouse COMMAND --help` explains each command.\n")


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@shared_options
@click.version_option(version("streamhouse-spark"), message="streamhouse %(version)s")
@click.pass_context
def streamhouse(ctx: click.Context) -> None:
    """Streamhouse tables: a hot Arrow log and an open lake behind one name.

    New rows land in the log and are visible at once; tiering moves them into the lake. Results go to stdout, messages
    and progress to stderr. Exit codes: 0 done, 1 failed (the reason is one line on stderr), 2 wrong usage.
    """
    ctx.ensure_object(Session)


for _command in (
    demo,
    doctor,
    jar,
    ls,
    describe,
    create,
    adopt,
    alter,
    rename,
    truncate,
    drop_partition,
    drop,
    undrop,
    head,
    tail,
    append,
    tier,
    retier,
    maintain,
    compact,
    expire_snapshots,
    remove_orphan_files,
    rewrite_manifests,
    snapshots,
    segments,
    verify,
    relocate,
):
    streamhouse.add_command(_command)


def main(args: Any = None) -> None:
    """Run the command line and exit."""
    streamhouse.main(args, prog_name="streamhouse")
