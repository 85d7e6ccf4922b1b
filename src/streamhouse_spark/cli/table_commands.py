"""Commands for tables: ``ls``, ``describe``, ``create``, ``alter``, ``rename``, ``drop``, ``undrop``, ``truncate``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import click
import pyarrow as pa
from rich.console import Console

from streamhouse_spark.cli.output import rich_table
from streamhouse_spark.cli.overview_commands import PRICES, parse_prices, render_costs
from streamhouse_spark.cli.session import (
    DRY_RUN,
    TABLE,
    YES,
    Command,
    Session,
    confirm,
    fail_for,
    names_option,
    pairs_option,
    parse_field_options,
)
from streamhouse_spark.config.table_properties import describe_view_properties
from streamhouse_spark.core.warehouse_layout import parse_database, parse_table_name
from streamhouse_spark.errors import count_of
from streamhouse_spark.log.tiering_failures import TieringFailure, list_failures
from streamhouse_spark.read.archive_scan import count_archived_bytes
from streamhouse_spark.read.system_tables import bucket_lags
from streamhouse_spark.schema.column_defaults import SqlText
from streamhouse_spark.schema.ddl import type_name
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.table import Table
from streamhouse_spark.table_handle import log_url
from streamhouse_spark.warehouse.table_batch import open_all
from streamhouse_spark.write.file_readers import CsvOptions, open_rows, resolve_file_format

_LISTED = TableSchema.of("table STRING, columns INT, buckets INT, rows BIGINT, lake_rows BIGINT, lag BIGINT").arrow


@click.command(
    "ls",
    cls=Command,
    examples="""
streamhouse -w ./warehouse ls
streamhouse -w ./warehouse ls sales
streamhouse -w ./warehouse ls --output json | jq -r .table
streamhouse -w ./warehouse ls --dropped
""",
)
@click.argument("database", required=False)
@click.option("--dropped", is_flag=True, help="List the dropped tables that `streamhouse undrop` can restore.")
@click.pass_obj
def ls(session: Session, database: str | None, *, dropped: bool) -> None:
    """List the tables of a warehouse, or of one DATABASE.

    rows counts the rows written since creation or the last truncation, without rows of dropped partitions; lake_rows
    counts tiered rows; lag counts rows that are only in the hot log.
    """
    warehouse = session.warehouse
    if dropped:
        _list_dropped(session, database)
        return
    opened = open_all(warehouse, database)
    rows = [*opened.each(_describe_table), *({"table": name} for name in opened.failed)]
    session.output.records(sorted(rows, key=lambda row: str(row["table"])), _LISTED)
    fail_for(opened)
    if not rows:
        session.output.remark(f"no tables in {warehouse.url}; create one with `streamhouse create`")


def _describe_table(table: Table) -> Mapping[str, Any]:
    state = table.state
    num_rows, lag = state.num_rows, sum(bucket_lags(state).values())
    enabled = table.properties.datalake_enabled
    return {
        "table": table.name,
        "columns": len(state.schema.columns),
        "buckets": state.num_buckets,
        "rows": num_rows,
        "lake_rows": num_rows - lag if enabled else None,
        "lag": lag if enabled else None,
    }


@click.command(
    "describe",
    cls=Command,
    examples="""
streamhouse -w ./warehouse describe sales.orders
streamhouse -w ./warehouse describe sales.orders --output json | jq .buckets
streamhouse -w s3://lake/warehouse describe sales.orders --costs
""",
)
@TABLE
@click.option("--costs", is_flag=True, help="Estimate requests and dollars on an object store instead.")
@PRICES
@click.pass_obj
def describe(session: Session, table: str, *, costs: bool, prices: Mapping[str, str]) -> None:
    """Describe a table: columns, properties, buckets, lake and lag.

    log_start and log_end are the offsets [start, end) in the hot log; rows below lake_offset are in the lake.

    With --costs, estimate the monthly requests and dollars from the commits and tiering rounds of the last day. Queries
    and streams are not recorded and not included: each poll of a waiting reader is one GET.
    """
    if prices and not costs:
        raise click.UsageError("--price requires --costs")
    opened = session.warehouse.table(table)
    if costs:
        estimate = opened.costs(parse_prices(prices))
        session.output.document(estimate.to_json(), lambda console: render_costs(opened.name, estimate, console))
        return
    failures = list_failures(opened.storage, opened.uuid)
    description = build_description(opened, failures)
    session.output.document(description, lambda console: _render_description(opened, description, failures, console))


def build_description(table: Table, failures: Sequence[TieringFailure] | None = None) -> dict[str, Any]:
    """Return the description as a JSON document. Reads the recorded ``failures`` if they are None."""
    state = table.state
    lags = bucket_lags(state)
    lake = state.lake
    return {
        "table": table.name,
        "uuid": table.uuid,
        "warehouse": table.storage.url,
        "log": log_url(table),
        "created_ms": state.created_ms,
        "commit": state.version,
        "columns": state.schema.to_json(),
        "ddl": state.schema.ddl(),
        "primary_key": list(state.primary_key),
        "partition_by": list(state.parsed.partitioned_by),
        "properties": dict(state.properties),
        "buckets": table.inspect.buckets().to_pylist(),
        "rows": state.num_rows,
        "lag": sum(lags.values()),
        "archive": _describe_archive(table),
        "view": describe_view_properties(state.properties, table.name),
        "lake": {
            "enabled": table.properties.datalake_enabled,
            "format": table.properties.datalake_format,
            "location": f"{table.storage.url}/{state.lake_location}",
            "snapshot_id": lake.snapshot_id if lake else None,
            "rows": state.num_rows - sum(lags.values()),
        },
        "failed_rounds": [
            failure.to_json(state)
            for failure in (list_failures(table.storage, table.uuid) if failures is None else failures)
        ],
    }


def _describe_archive(table: Table) -> dict[str, Any] | None:
    """Describe the change archive; None if it is empty."""
    pages = table.state.archive.pages
    if not pages:
        return None
    changes = sum(page.num_rows for page in pages)
    return {"changes": changes, "bytes": count_archived_bytes(table, table.state), "first_ms": pages[0].first_ms}


def _render_description(
    table: Table, description: Mapping[str, Any], failures: Sequence[TieringFailure], console: Console
) -> None:
    lake, archive, now_ms, view = (
        description["lake"],
        description["archive"],
        table.storage.now_ms(),
        description["view"],
    )
    for label, value in (
        ("table", table.name),
        ("uuid", table.uuid),
        ("files", log_url(table)),
        *([("refreshes", "paused" if view["paused"] else f"every {view['freshness_s']:g} s")] if view else []),
        ("primary key", ", ".join(table.state.primary_key) or "none (log table)"),
        ("partitioned by", ", ".join(description["partition_by"]) or "nothing"),
        ("bucket key", ", ".join(table.properties.bucket_key) or "none (one bucket per batch)"),
        (
            "changes" if table.state.primary_key else "rows",
            f"{description['rows']:,}, {lake['rows']:,} of them in the lake (lag {description['lag']:,})",
        ),
        ("older changes", f"{archive['changes']:,}, {count_of(archive['bytes'], 'byte')}" if archive else "none"),
        ("lake", f"{lake['format']}, {lake['location']}" if lake["enabled"] else "none (table.datalake.enabled=false)"),
        ("lake snapshot", lake["snapshot_id"] or "none yet; run `streamhouse tier`"),
        ("last commit", description["commit"]),
        *((failure.work, failure.describe(table.state, now_ms)) for failure in failures),
    ):
        console.print(f"{label:<15} {value}", markup=False)
    shown = [(c.name, type_name(c.type), c.nullable, c.default_sql, c.comment) for c in table.state.schema.columns]
    names = ("column", "type", "nullable", "default", "comment")
    columns = pa.table([pa.array(values) for values in zip(*shown, strict=True)], names=list(names))
    columns = columns.drop_columns([n for n in names if columns[n].null_count == columns.num_rows])
    console.print()
    console.print(rich_table(columns))
    if description["properties"]:
        options = pa.table(
            {"property": list(description["properties"]), "value": list(description["properties"].values())}
        )
        console.print()
        console.print(rich_table(options))
    console.print()
    console.print(rich_table(table.inspect.buckets()))


@click.command(
    "create",
    cls=Command,
    examples="""
streamhouse -w ./warehouse create sales.orders --buckets 4 -p bucket.key=order_id \\
    --schema 'order_id BIGINT NOT NULL, customer STRING, amount DECIMAL(12,2), day DATE' --partition-by day

# the columns of a file, and then its rows
streamhouse -w ./warehouse create sales.orders --like orders.parquet
streamhouse -w ./warehouse append sales.orders orders.parquet
""",
)
@TABLE
@click.option("--schema", metavar="DDL", help="The columns in Spark SQL.")
@click.option("--like", metavar="FILE", help="Use the columns of a Parquet, Arrow, CSV or JSON file.")
@click.option(
    "--partition-by",
    metavar="FIELD",
    multiple=True,
    callback=parse_field_options,
    help="Partition columns and transforms of columns, such as 'days(at)', separated by commas.",
)
@names_option(
    "--primary-key",
    metavar="COLUMN",
    text="The columns that identify a row, separated by commas. Rows are upserted by them.",
)
@click.option("--buckets", type=click.IntRange(min=1), help="Number of buckets of the log (bucket.num, default 1).")
@pairs_option(
    "-p",
    "--property",
    "properties",
    metavar="KEY=VALUE",
    text="A table property, such as table.datalake.freshness=1min.",
)
@click.option("--if-not-exists", is_flag=True, help="Keep an existing table unchanged.")
@click.pass_obj
def create(
    session: Session,
    table: str,
    *,
    schema: str | None,
    like: str | None,
    partition_by: list[str],
    primary_key: list[str],
    buckets: int | None,
    properties: Mapping[str, str],
    if_not_exists: bool,
) -> None:
    """Create a table, and its database and warehouse if they do not exist.

    Rows are matched to columns by name. Properties that Apache Fluss also has use its names. `streamhouse describe`
    shows the properties of a table. Every table has a lake unless table.datalake.enabled=false.
    """
    if (schema is None) == (like is None):
        raise click.UsageError("expected the columns, in either --schema or --like")
    created = session.warehouse.create_table(
        table,
        schema if schema is not None else _read_schema(str(like)),
        primary_key=primary_key,
        partition_by=partition_by,
        buckets=buckets,
        properties=properties,
        if_not_exists=if_not_exists,
    )
    session.output.sentence(
        build_description(created),
        f"created {created.name} ({created.state.schema.ddl()}) with {count_of(created.num_buckets, 'bucket')}",
    )


def _read_schema(path: str) -> pa.Schema:
    with ExitStack() as stack:
        return open_rows(path, resolve_file_format(path, None), CsvOptions(), stack, sys.stdin.buffer).schema


@click.command(
    "alter",
    cls=Command,
    examples="""
streamhouse -w ./warehouse alter sales.orders --set table.datalake.freshness=30s --set table.log.ttl=1d
streamhouse -w ./warehouse alter sales.orders --unset table.log.ttl
streamhouse -w ./warehouse alter sales.orders --add-column "note STRING COMMENT 'why'" --comment amount='in euros'
streamhouse -w ./warehouse alter sales.orders --default country="'CH'" --default note=NULL
streamhouse -w ./warehouse alter sales.orders --rename-column note=remark --drop-column day --widen-column qty=bigint
""",
)
@TABLE
@click.option(
    "--add-column",
    "added",
    metavar="DDL",
    multiple=True,
    help="Append a column, in Spark SQL, or a nested field such as s.x INT. May be given several times.",
)
@pairs_option("--rename-column", "renamed", metavar="NAME=NEW", text="Rename a column. Two columns may swap names.")
@click.option(
    "--drop-column",
    "dropped",
    metavar="COLUMN",
    multiple=True,
    help="Drop a column. May be given several times.",
)
@pairs_option(
    "--widen-column", "widened", metavar="COLUMN=TYPE", text="Change a column to a wider type, such as bigint."
)
@pairs_option(
    "--comment",
    "comments",
    metavar="COLUMN=TEXT",
    text="Set a column's comment. The table's comment is --set comment=TEXT.",
)
@pairs_option(
    "--default",
    "defaults",
    metavar="COLUMN=SQL",
    text="Set a column's default for new rows, such as country=\"'CH'\", or NULL.",
)
@pairs_option("--set", "changed", metavar="KEY=VALUE", text="Set a property.")
@names_option("--unset", "removed", metavar="KEY", text="Reset a property to its default. May be given several times.")
@click.pass_obj
def alter(
    session: Session,
    table: str,
    *,
    added: Sequence[str],
    renamed: Mapping[str, str],
    dropped: Sequence[str],
    widened: Mapping[str, str],
    comments: Mapping[str, str],
    defaults: Mapping[str, str],
    changed: Mapping[str, str],
    removed: list[str],
) -> None:
    """Change a table's columns and properties atomically.

    New columns must be nullable. They are null in existing rows, even if they have a default. Renaming, dropping or
    widening a column ends streams and tails that read it; restart them to continue. The lake's columns change in the
    next tiering round. bucket.num, bucket.key and table.datalake.format are fixed at creation.
    """
    are_columns = any((added, renamed, dropped, widened, comments, defaults))
    if not (are_columns or changed or removed):
        raise click.UsageError(
            "found no change, expected columns, --comment, --set KEY=VALUE or --unset KEY; see --help"
        )
    opened = session.warehouse.table(table)
    opened.alter(
        add_columns=", ".join(added) or None,
        comments=comments,
        set_properties=changed,
        unset_properties=removed,
        rename_columns=renamed,
        drop_columns=dropped,
        widen_columns=widened,
        defaults={name: SqlText(sql) for name, sql in defaults.items()},
    )
    if are_columns:
        session.output.sentence(build_description(opened), f"altered {opened.name} ({opened.state.schema.ddl()})")
    else:
        session.output.rows(opened.inspect.options())


@click.command(
    "rename",
    cls=Command,
    examples="""
streamhouse -w ./warehouse rename sales.orders sales.sold
streamhouse -w ./warehouse rename sales.orders archive.orders
""",
)
@TABLE
@click.argument("new_name")
@click.pass_obj
def rename(session: Session, table: str, new_name: str) -> None:
    """Rename a table, also to another database.

    Rows, offsets and the lake table do not move, and the old name is free immediately. Streams that use the old name
    end; restart them with the new name to continue from their checkpoint.
    """
    session.warehouse.rename_table(table, new_name)
    renamed = session.warehouse.table(new_name)
    session.output.sentence(build_description(renamed), f"renamed {table} to {renamed.name}")


@click.command(
    "drop",
    cls=Command,
    examples="""
streamhouse -w ./warehouse drop sales.orders --dry-run
streamhouse -w ./warehouse drop sales.orders --yes
""",
)
@TABLE
@YES
@DRY_RUN
@click.option("--if-exists", is_flag=True, help="Succeed if the table does not exist.")
@click.pass_obj
def drop(session: Session, table: str, *, yes: bool, dry_run: bool, if_exists: bool) -> None:
    """Drop a table and its lake table after confirmation.

    An adopted lake table stays, with all tiered rows. The name is free immediately. `streamhouse maintain` deletes the
    files at least a day after the drop; until then `streamhouse undrop` restores the table.
    """
    warehouse = session.warehouse
    parse_table_name(table).require_table("drop")
    if if_exists and not warehouse.exists(table):
        session.output.sentence({"table": table, "dropped": False}, f"{table} does not exist")
        return
    opened = warehouse.table(table)
    facts = build_description(opened)
    in_lake = f"{facts['lake']['rows']:,} of them in {facts['lake']['location']}"
    subject = f"{opened.name} with {count_of(facts['rows'], 'row')} ({in_lake})"
    if opened.properties.datalake_adopted is not None:
        subject += "; the adopted lake table stays, with all tiered rows"
    if dry_run:
        session.output.sentence({**facts, "dropped": False}, f"would drop {subject}")
        return
    confirm(f"drop {subject}?", yes=yes)
    dropped = warehouse.drop_table(table, if_exists=if_exists)
    session.output.sentence({**facts, "dropped": dropped}, f"dropped {subject}")


@click.command(
    "truncate",
    cls=Command,
    examples="""
streamhouse -w ./warehouse truncate sales.orders --dry-run
streamhouse -w ./warehouse truncate sales.orders --yes
""",
)
@TABLE
@YES
@DRY_RUN
@click.pass_obj
def truncate(session: Session, table: str, *, yes: bool, dry_run: bool) -> None:
    """Remove all rows of a table after confirmation, and keep the table.

    Reads return no rows immediately, and open streams fail. The next tiering round empties the lake table; its older
    snapshots stay readable until they expire.
    """
    opened = session.open_table(table, "truncate")
    facts = build_description(opened)
    subject = f"all of {opened.name}: {count_of(facts['rows'], 'row')}, {facts['lake']['rows']:,} of them in the lake"
    if dry_run:
        session.output.sentence({**facts, "truncated": False}, f"would remove {subject}")
        return
    confirm(f"remove {subject}?", yes=yes)
    opened.truncate()
    session.output.sentence({**facts, "truncated": True}, f"removed {subject}")


_DROPPED: Final = pa.schema([
    ("table", pa.string()),
    ("uuid", pa.string()),
    ("dropped", pa.timestamp("ms", "UTC")),
    ("rows", pa.int64()),
])  # fmt: skip


def _list_dropped(session: Session, database: str | None) -> None:
    """Print the dropped tables of a warehouse, or of one database."""
    database_name = None if database is None else parse_database(database)
    rows = [
        {"table": table.name, "uuid": table.uuid, "dropped": table.dropped_ms, "rows": table.rows}
        for table in session.warehouse.dropped_tables()
        if database_name in (None, table.name.partition(".")[0])
    ]
    session.output.records(rows, _DROPPED)
    if not rows:
        session.output.remark(f"no dropped table in {session.warehouse.url} can be restored")


@click.command(
    "undrop",
    cls=Command,
    examples="""
streamhouse -w ./warehouse ls --dropped
streamhouse -w ./warehouse undrop sales.orders
streamhouse -w ./warehouse undrop sales.orders --to sales.orders_before
""",
)
@TABLE
@click.option("--uuid", help="Select a table, if several tables of this name were dropped. Default: the last.")
@click.option("--to", metavar="NAME", help="The name of the restored table. Default: its former name.")
@click.pass_obj
def undrop(session: Session, table: str, *, uuid: str | None, to: str | None) -> None:
    """Restore a dropped table with all rows, offsets and its lake.

    It works until `streamhouse maintain` deletes the table, at least a day after the drop.
    """
    opened = session.warehouse.undrop_table(table, uuid=uuid, to=to)
    rows = count_of(opened.state.num_rows, "change" if opened.state.primary_key else "row")
    facts = {"table": opened.name, "uuid": opened.uuid, "rows": opened.state.num_rows}
    session.output.sentence(facts, f"restored {opened.name} with {rows}")
