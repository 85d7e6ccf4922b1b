"""Commands for lakes: adoption, partitions, compaction, clustering, expiry, orphan files, manifests, rebuilding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, TypeVar

import click
import pyarrow as pa

from streamhouse_spark.cli.session import (
    DRY_RUN,
    TABLE,
    YES,
    Command,
    Session,
    confirm,
    names_option,
    pairs_option,
    parse_duration_option,
    parse_value_arguments,
)
from streamhouse_spark.errors import count_of
from streamhouse_spark.expressions.partition_filter import PartitionMatches
from streamhouse_spark.expressions.where import parse_where
from streamhouse_spark.lake.types import SNAPSHOTS_KEPT, CompactReport
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS
from streamhouse_spark.schema.partitioning import split_fields
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.drop_partition import DropPartitionReport, drop_partitions
from streamhouse_spark.table.maintenance.lake import SNAPSHOTS_KEPT_MS
from streamhouse_spark.table.table import Table

F = TypeVar("F", bound=Callable[..., Any])

_COMPACTED: Final = TableSchema.of(
    "table STRING, files_removed BIGINT, files_added BIGINT, rows BIGINT, healed_rows BIGINT, "
    "purged_rows BIGINT, dry_run BOOLEAN"
).arrow
_OPTIMIZED: Final = TableSchema.of(
    "table STRING, files_removed BIGINT, files_added BIGINT, rows BIGINT, purged_rows BIGINT, dry_run BOOLEAN"
).arrow
_EXPIRED: Final = TableSchema.of("table STRING, snapshots BIGINT, files BIGINT, dry_run BOOLEAN").arrow
_ORPHANS: Final = TableSchema.of("file STRING, dry_run BOOLEAN").arrow
_MANIFESTS: Final = TableSchema.of(
    "table STRING, manifests_removed BIGINT, manifests_added BIGINT, dry_run BOOLEAN"
).arrow


def _older_than(default: str, text: str) -> Callable[[F], F]:
    return click.option(
        "--older-than",
        "older_than_ms",
        default=default,
        show_default=True,
        callback=parse_duration_option,
        metavar="DURATION",
        help=text,
    )


@click.command(
    "compact",
    cls=Command,
    examples="""
streamhouse -w ./warehouse compact sales.orders --dry-run
streamhouse -w ./warehouse compact sales.orders --output json
streamhouse -w ./warehouse compact sales.orders --purge
""",
)
@TABLE
@click.option("--purge", is_flag=True, help="Rewrite every file that has a deleted row.")
@DRY_RUN
@click.pass_obj
def compact(session: Session, table: str, *, purge: bool, dry_run: bool) -> None:
    """Merge small lake files, and remove deleted rows from them.

    A file is rewritten if more than a tenth of its rows are deleted, or with --purge if any row is. Works per bucket
    and partition, in commits of about a gigabyte each, in this process. Rows, offsets and older snapshots stay. The
    tiering service also compacts, unless table.datalake.auto-compaction is false; an adopted lake only if it is true.
    """
    opened = session.warehouse.table(table)
    with session.output.spinner(f"compact the lake of {opened.name}"):
        report = opened.lake.compact(purge=purge, dry_run=dry_run)
    session.output.records([_to_row(opened, report, _COMPACTED, dry_run=dry_run)], _COMPACTED)


def _to_row(table: Table, report: CompactReport, schema: pa.Schema, *, dry_run: bool) -> dict[str, Any]:
    facts = {"table": table.name, "dry_run": dry_run}
    return facts | {name: getattr(report, name) for name in schema.names if name not in facts}


@click.command(
    "optimize",
    cls=Command,
    examples="""
streamhouse -w ./warehouse optimize sales.orders --order-by customer_id --dry-run
streamhouse -w ./warehouse optimize sales.orders --order-by "zorder(customer_id, amount)"
streamhouse -w ./warehouse optimize sales.orders --order-by "region, amount" --where "day >= '2026-01-31'"
""",
)
@TABLE
@click.option("--order-by", required=True, metavar="COLUMNS", help='Columns: "a, b", or interleaved: "zorder(a, b)".')
@click.option(
    "--where", default=None, metavar="CONDITION", help="Only files that may have matching rows, by partition columns."
)
@DRY_RUN
@click.pass_obj
def optimize(session: Session, table: str, *, order_by: str, where: str | None, dry_run: bool) -> None:
    """Cluster the rows of the lake by columns, so that queries skip files.

    Each file then holds a range of the columns' values: sorted by the first column first, or with zorder by all columns
    equally. Works per bucket and partition, in commits of about a gigabyte each, in this process. Clustered files are
    clustered again only after about as much data was added, so run the command after many rounds. Rows, offsets and
    older snapshots stay. Supports Iceberg lakes of tables without a primary key.
    """
    opened = session.warehouse.table(table)
    condition = None if where is None else parse_where(where, opened.refresh().schema.arrow)
    with session.output.spinner(f"optimize the lake of {opened.name}"):
        report = opened.lake.optimize(order_by, filter=condition, dry_run=dry_run)
    session.output.records([_to_row(opened, report, _OPTIMIZED, dry_run=dry_run)], _OPTIMIZED)


@click.command(
    "expire-snapshots",
    cls=Command,
    examples="""
streamhouse -w ./warehouse expire-snapshots sales.orders --dry-run
streamhouse -w ./warehouse expire-snapshots sales.orders --older-than 2h --retain-last 5
""",
)
@TABLE
@_older_than("24h", "Keep younger snapshots.")
@click.option("--retain-last", type=int, default=SNAPSHOTS_KEPT, show_default=True, help="Keep at least this number.")
@DRY_RUN
@click.pass_obj
def expire_snapshots(
    session: Session, table: str, *, older_than_ms: int | None, retain_last: int, dry_run: bool
) -> None:
    """Expire old lake snapshots, and delete files that only they need.

    Snapshots of a tag or branch stay. The tiering service also expires snapshots, unless
    table.datalake.auto-expire-snapshot is false; in an adopted lake only if it is true.
    """
    opened = session.warehouse.table(table)
    moment_ms = opened.storage.now_ms() - (SNAPSHOTS_KEPT_MS if older_than_ms is None else older_than_ms)
    with session.output.spinner(f"expire snapshots of {opened.name}"):
        report = opened.lake.expire_snapshots(retain_last=retain_last, older_than_ms=moment_ms, dry_run=dry_run)
    row = {
        "table": opened.name,
        "snapshots": len(report.snapshots),
        "files": len(report.files),
        "dry_run": dry_run,
    }
    session.output.records([row], _EXPIRED)


@click.command(
    "remove-orphan-files",
    cls=Command,
    examples="""
streamhouse -w ./warehouse remove-orphan-files sales.orders --dry-run
streamhouse -w ./warehouse remove-orphan-files sales.orders --older-than 48h
""",
)
@TABLE
@_older_than("24h", "Keep younger files; at least ten minutes.")
@DRY_RUN
@click.pass_obj
def remove_orphan_files(session: Session, table: str, *, older_than_ms: int | None, dry_run: bool) -> None:
    """Delete lake files that no snapshot references.

    Failed rounds and killed tasks leave such files. `streamhouse maintain` also deletes them, and cleans the log.
    """
    lake = session.warehouse.table(table).lake
    grace_ms = GRACE_MS if older_than_ms is None else older_than_ms
    with session.output.spinner(f"find orphan files of {table}"):
        keys = lake.remove_orphan_files(grace_ms=grace_ms, dry_run=dry_run)
    session.output.records([{"file": key, "dry_run": dry_run} for key in keys], _ORPHANS)


@click.command(
    "rewrite-manifests",
    cls=Command,
    examples="""
streamhouse -w ./warehouse rewrite-manifests sales.orders --dry-run
streamhouse -w ./warehouse rewrite-manifests sales.orders
""",
)
@TABLE
@DRY_RUN
@click.pass_obj
def rewrite_manifests(session: Session, table: str, *, dry_run: bool) -> None:
    """Merge the manifests of an Iceberg lake into few large ones.

    Tiering rounds already merge small manifests. Use the command after other engines wrote to the table.
    """
    opened = session.warehouse.table(table)
    with session.output.spinner(f"rewrite manifests of {opened.name}"):
        report = opened.lake.rewrite_manifests(dry_run=dry_run)
    row = {
        "table": opened.name,
        "manifests_removed": report.removed,
        "manifests_added": report.added,
        "dry_run": dry_run,
    }
    session.output.records([row], _MANIFESTS)


@click.command(
    "retier",
    cls=Command,
    examples="""
streamhouse -w ./warehouse retier sales.orders --dry-run
streamhouse -w ./warehouse retier sales.orders
streamhouse -w ./warehouse tier --once sales.orders
""",
)
@TABLE
@click.option("--dry-run", is_flag=True, help="Only show what would be tiered again, and what would be lost.")
@click.option(
    "--allow-loss",
    is_flag=True,
    help="Lose rows that were trimmed from the log, and restore rows of dropped partitions that it still holds.",
)
@click.pass_obj
def retier(session: Session, table: str, *, dry_run: bool, allow_loss: bool) -> None:
    """Rebuild the lake of a table from its hot log at a new location.

    Use it if the lake was rolled back, damaged or deleted. Reads use the log until the next round of `streamhouse
    tier`. Files of the former lake stay until the table is dropped. The command fails, with row counts, if some rows
    exist only in the lake.
    """
    opened = session.warehouse.table(table)
    with session.output.spinner(f"retier {opened.name}"):
        report = opened.retier(allow_loss=allow_loss, dry_run=dry_run)
    session.output.sentence(
        asdict(report),
        f"the lake of {report.table} {'would be' if dry_run else 'is'} rebuilt at {report.lake_location}: "
        f"{count_of(report.rows, 'offset')} to tier, {report.lost_rows:,} lost; "
        f"{report.former_location} stays unchanged"
        + ("" if dry_run else f"\nnext: streamhouse tier --once {report.table}"),
    )


@click.command(
    "adopt",
    cls=Command,
    examples="""
streamhouse -w ./warehouse adopt sales.orders --dry-run
streamhouse -w ./warehouse adopt sales.orders --lake legacy.orders
streamhouse -w ./warehouse adopt sales.people --primary-key id
""",
)
@TABLE
@click.option("--lake", metavar="DATABASE.TABLE", help="The lake table; by default the one with the name of TABLE.")
@names_option(
    "--primary-key",
    metavar="COLUMNS",
    text="Create a primary-key table; rows must be unique by these columns. A Paimon table keeps its key.",
)
@pairs_option("-p", "--property", "properties", metavar="KEY=VALUE", text="A table property.")
@click.option("--dry-run", is_flag=True, help="Only check whether the table can be adopted.")
@click.pass_obj
def adopt(
    session: Session,
    table: str,
    *,
    lake: str | None,
    primary_key: list[str],
    properties: Mapping[str, str],
    dry_run: bool,
) -> None:
    """Create a table from an existing Iceberg or Paimon table, with its rows.

    Existing rows are not rewritten; new rows are tiered into the same lake table. Dropping the table later keeps the
    lake table with all tiered rows. If an Iceberg table and a Paimon table have the name, select the Paimon table with
    -p table.datalake.format=paimon.
    """
    warehouse = session.warehouse
    with session.output.spinner(f"adopt {lake or table}"):
        report = warehouse.adopt_table(table, lake, primary_key=primary_key, properties=properties, dry_run=dry_run)
    session.output.sentence(
        {**asdict(report), "dry_run": dry_run},
        f"{'would adopt' if dry_run else 'adopted'} {report.location} as {report.table}: "
        f"{count_of(report.rows, 'row')} in {count_of(report.files, 'file')}, columns {report.schema}",
    )


@click.command(
    "drop-partition",
    cls=Command,
    examples="""
streamhouse -w ./warehouse drop-partition sales.orders day=2026-01-31 --dry-run
streamhouse -w ./warehouse drop-partition sales.orders day=2026-01-31 country=de --yes
""",
)
@TABLE
@click.argument("values", metavar="COLUMN=VALUE...", nargs=-1, required=True, callback=parse_value_arguments)
@YES
@DRY_RUN
@click.pass_obj
def drop_partition(session: Session, table: str, values: Mapping[str, str], *, yes: bool, dry_run: bool) -> None:
    """Remove the rows of all matching partitions after confirmation.

    Give values of some or all partition columns; __HIVE_DEFAULT_PARTITION__ means null. In a primary-key table, the
    rows are deleted. In a log table, rows written before the call are tiered, and removed from the lake in one
    snapshot; older lake snapshots contain them until they expire.
    """
    opened = session.open_table(table, "drop partitions of")
    chosen = PartitionMatches.of_texts(values, opened.state.schema, opened.partition_by, opened.name)
    subject = f"partition {chosen} of {opened.name}"
    if dry_run:
        _print_report(session, _drop_partition(session, opened, chosen, dry_run=True), f"would drop {subject}")
        return
    if not yes:
        preview = _drop_partition(session, opened, chosen, dry_run=True)
        confirm(f"drop {subject} with {count_of(preview.rows, 'row')}?", yes=yes)
    _print_report(session, _drop_partition(session, opened, chosen, dry_run=False), f"dropped {subject}")


def _drop_partition(session: Session, table: Table, chosen: PartitionMatches, *, dry_run: bool) -> DropPartitionReport:
    with session.output.spinner(f"{'check' if dry_run else 'drop'} partitions of {table.name}"):
        return drop_partitions(table, chosen, dry_run=dry_run)


@click.command(
    "set-partitioning",
    cls=Command,
    examples="""
streamhouse -w ./warehouse set-partitioning sales.orders 'hours(at)' region
streamhouse -w ./warehouse set-partitioning sales.orders --none
""",
)
@TABLE
@click.argument("fields", metavar="FIELD...", nargs=-1)
@click.option("--none", "is_none", is_flag=True, help="Stop partitioning new rows.")
@click.pass_obj
def set_partitioning(session: Session, table: str, fields: Sequence[str], *, is_none: bool) -> None:
    """Change the partition fields of a table for new rows.

    Fields are columns, and transforms of columns such as 'days(at)' or 'truncate(4, name)'. Existing lake files keep
    their partitions, and the next tiering round partitions by the new fields. The lake must be an Iceberg table.
    """
    if bool(fields) == is_none:
        raise click.UsageError("expected partition fields, or --none")
    opened = session.open_table(table, "change the partitioning of")
    before = list(opened.state.parsed.partitioned_by)
    opened.set_partitioning([piece for text in fields for piece in split_fields(text)])
    now = list(opened.state.parsed.partitioned_by)
    session.output.sentence(
        {"table": opened.name, "partition_by": now, "former_partition_by": before},
        f"partitioned {opened.name} by {', '.join(now) or 'nothing'}",
    )


def _print_report(session: Session, report: DropPartitionReport, text: str) -> None:
    session.output.sentence(
        asdict(report), f"{text}: {count_of(report.rows, 'row')}, {count_of(report.files, 'lake file')}"
    )
