"""Lake maintenance commands: compact, optimize, expire-snapshots, remove-orphan-files, rewrite-manifests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
import pyarrow as pa

from streamhouse_spark.cli.session import Command, Session, take_duration_ms
from streamhouse_spark.log.lifecycle.garbage_collection import GRACE_MS
from streamhouse_spark.query.sql_condition import parse_where
from streamhouse_spark.table.lake_maintenance import SNAPSHOTS_KEPT, SNAPSHOTS_KEPT_MS

F = TypeVar("F", bound=Callable[..., Any])

_COMPACTED: Final = pa.schema([
    ("table", pa.string()),
    ("files_removed", pa.int64()),
    ("files_added", pa.int64()),
    ("rows", pa.int64()),
    ("healed_rows", pa.int64()),
    ("purged_rows", pa.int64()),
    ("dry_run", pa.bool_()),
])  # fmt: skip
_OPTIMIZED: Final = pa.schema([
    ("table", pa.string()),
    ("files_removed", pa.int64()),
    ("files_added", pa.int64()),
    ("rows", pa.int64()),
    ("purged_rows", pa.int64()),
    ("dry_run", pa.bool_()),
])  # fmt: skip
_EXPIRED: Final = pa.schema([
    ("table", pa.string()),
    ("snapshots", pa.int64()),
    ("files", pa.int64()),
    ("dry_run", pa.bool_()),
])  # fmt: skip
_ORPHANS: Final = pa.schema([("file", pa.string()), ("dry_run", pa.bool_())])
_MANIFESTS: Final = pa.schema([
    ("table", pa.string()),
    ("manifests_removed", pa.int64()),
    ("manifests_added", pa.int64()),
    ("dry_run", pa.bool_()),
])  # fmt: skip

_dry_run = click.option("--dry-run", is_flag=True, help="Only show what would be done.")


def _older_than(default: str, text: str) -> Callable[[F], F]:
    return click.option(
        "--older-than",
        "older_than_ms",
        default=default,
        show_default=True,
        callback=take_duration_ms,
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
@click.argument("table")
@click.option("--purge", is_flag=True, help="Rewrite every file that has a deleted row.")
@_dry_run
@click.pass_obj
def compact(session: Session, table: str, *, purge: bool, dry_run: bool) -> None:
    """Merge small lake files, and remove deleted rows from them.

    A file is rewritten without its deleted rows if these are more than a tenth of it; with --purge always. Works per
    bucket and partition, in commits of about a gigabyte each, in this process. Rows, offsets and older snapshots stay.
    The tiering service compacts unless table.datalake.auto-compaction is false; an adopted lake only if it is true.
    """
    opened = session.warehouse.table(table)
    with session.output.working(f"compact the lake of {opened.name}"):
        report = opened.lake.compact(purge=purge, dry_run=dry_run)
    row = {
        "table": opened.name,
        "files_removed": report.files_removed,
        "files_added": report.files_added,
        "rows": report.rows,
        "healed_rows": report.healed_rows,
        "purged_rows": report.purged_rows,
        "dry_run": dry_run,
    }
    session.output.rows(pa.Table.from_pylist([row], schema=_COMPACTED))


@click.command(
    "optimize",
    cls=Command,
    examples="""
streamhouse -w ./warehouse optimize sales.orders --order-by customer_id --dry-run
streamhouse -w ./warehouse optimize sales.orders --order-by "zorder(customer_id, amount)"
streamhouse -w ./warehouse optimize sales.orders --order-by "region, amount" --where "day >= '2026-01-31'"
""",
)
@click.argument("table")
@click.option("--order-by", required=True, metavar="COLUMNS", help='Columns: "a, b", or interleaved: "zorder(a, b)".')
@click.option(
    "--where", default=None, metavar="CONDITION", help="Only files that may have matching rows; use partition columns."
)
@_dry_run
@click.pass_obj
def optimize(session: Session, table: str, *, order_by: str, where: str | None, dry_run: bool) -> None:
    """Cluster the rows of the lake by columns, so that queries skip files.

    Each file then holds a range of the columns' values: the first column first, or all columns about equally with
    zorder. Works per bucket and partition, in commits of about a gigabyte each, in this process. Clustered files are
    left alone until about as much data is added next to them: run it again after many rounds. Rows, offsets and older
    snapshots stay. Supports Iceberg lakes of tables without a primary key.
    """
    opened = session.warehouse.table(table)
    condition = None if where is None else parse_where(where, opened.refresh().schema.arrow)
    with session.output.working(f"optimize the lake of {opened.name}"):
        report = opened.lake.optimize(order_by, filter=condition, dry_run=dry_run)
    row = {
        "table": opened.name,
        "files_removed": report.files_removed,
        "files_added": report.files_added,
        "rows": report.rows,
        "purged_rows": report.purged_rows,
        "dry_run": dry_run,
    }
    session.output.rows(pa.Table.from_pylist([row], schema=_OPTIMIZED))


@click.command(
    "expire-snapshots",
    cls=Command,
    examples="""
streamhouse -w ./warehouse expire-snapshots sales.orders --dry-run
streamhouse -w ./warehouse expire-snapshots sales.orders --older-than 2h --retain-last 5
""",
)
@click.argument("table")
@_older_than("24h", "Keep younger snapshots.")
@click.option("--retain-last", type=int, default=SNAPSHOTS_KEPT, show_default=True, help="Keep at least this many.")
@_dry_run
@click.pass_obj
def expire_snapshots(
    session: Session, table: str, *, older_than_ms: int | None, retain_last: int, dry_run: bool
) -> None:
    """Expire old lake snapshots and the files that only they need.

    Snapshots of a tag or branch stay. The tiering service expires snapshots unless table.datalake.auto-expire-snapshot
    is false; those of an adopted lake only if it is true.
    """
    opened = session.warehouse.table(table)
    moment_ms = opened.storage.now_ms() - (SNAPSHOTS_KEPT_MS if older_than_ms is None else older_than_ms)
    with session.output.working(f"expire snapshots of {opened.name}"):
        report = opened.lake.expire_snapshots(retain_last=retain_last, older_than_ms=moment_ms, dry_run=dry_run)
    row = {
        "table": opened.name,
        "snapshots": len(report.snapshots),
        "files": len(report.files),
        "dry_run": dry_run,
    }
    session.output.rows(pa.Table.from_pylist([row], schema=_EXPIRED))


@click.command(
    "remove-orphan-files",
    cls=Command,
    examples="""
streamhouse -w ./warehouse remove-orphan-files sales.orders --dry-run
streamhouse -w ./warehouse remove-orphan-files sales.orders --older-than 48h
""",
)
@click.argument("table")
@_older_than("24h", "Keep younger files; at least ten minutes.")
@_dry_run
@click.pass_obj
def remove_orphan_files(session: Session, table: str, *, older_than_ms: int | None, dry_run: bool) -> None:
    """Delete lake files that no snapshot references.

    Lost rounds and killed tasks leave them behind. `streamhouse maintain` deletes them too, and cleans the log.
    """
    lake = session.warehouse.table(table).lake
    grace_ms = GRACE_MS if older_than_ms is None else older_than_ms
    with session.output.working(f"find orphan files of {table}"):
        keys = lake.remove_orphan_files(grace_ms=grace_ms, dry_run=dry_run)
    session.output.rows(pa.Table.from_pylist([{"file": key, "dry_run": dry_run} for key in keys], schema=_ORPHANS))


@click.command(
    "rewrite-manifests",
    cls=Command,
    examples="""
streamhouse -w ./warehouse rewrite-manifests sales.orders --dry-run
streamhouse -w ./warehouse rewrite-manifests sales.orders
""",
)
@click.argument("table")
@_dry_run
@click.pass_obj
def rewrite_manifests(session: Session, table: str, *, dry_run: bool) -> None:
    """Merge the manifests of an Iceberg lake into few large ones.

    Rounds merge small manifests themselves: this is for tables that other engines wrote to.
    """
    opened = session.warehouse.table(table)
    with session.output.working(f"rewrite manifests of {opened.name}"):
        report = opened.lake.rewrite_manifests(dry_run=dry_run)
    row = {
        "table": opened.name,
        "manifests_removed": report.removed,
        "manifests_added": report.added,
        "dry_run": dry_run,
    }
    session.output.rows(pa.Table.from_pylist([row], schema=_MANIFESTS))
