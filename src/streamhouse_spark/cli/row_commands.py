"""``head``, ``tail``, ``append``, ``snapshots``, ``segments``: reading and writing rows."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final

import click
import pyarrow as pa
from click.shell_completion import CompletionItem

from streamhouse_spark.cli.output import Output, format_value, rich_table
from streamhouse_spark.cli.session import TABLE, Command, Session, names_option
from streamhouse_spark.config.spark_options import parse_write_options
from streamhouse_spark.core.option_parsing import parse_timestamp_ms
from streamhouse_spark.core.types import BucketOffsets, Transaction
from streamhouse_spark.errors import InvalidOptionError, count_of
from streamhouse_spark.log.commit_validation import find_stored_transaction
from streamhouse_spark.log.segments.metadata_columns import without_metadata
from streamhouse_spark.log.staging import StagedRows, merge_staged_rows
from streamhouse_spark.read.tail import LogCursor
from streamhouse_spark.schema.column_defaults import default_scalars, evaluate_defaults
from streamhouse_spark.schema.default_expressions import StatementContext
from streamhouse_spark.schema.json_values import encode_rows
from streamhouse_spark.schema.row_conversion import convert_rows, iter_tables
from streamhouse_spark.table.table import Table
from streamhouse_spark.write.file_readers import FORMATS, CsvOptions, open_rows, resolve_file_format

_COLUMNS: Final = names_option("--columns", metavar="COLUMN", text="Only these columns, separated by commas.")
_WHERE: Final = click.option(
    "--where", metavar="CONDITION", help="""Only matching rows, such as "a > 5 AND b IN ('x', 'y')"."""
)
_FIELD_CHARS_MAX: Final = 40
_ROWS_MAX: Final = 2**63 - 1


@click.command(
    "head",
    cls=Command,
    examples="""
streamhouse -w ./warehouse head sales.orders
streamhouse -w ./warehouse head sales.orders -n 5 --columns order_id,amount --where "amount > 5 AND customer = 'ann'"

# a shell requires single quotes around names with a $
streamhouse -w ./warehouse head 'sales.orders$lake'
streamhouse -w ./warehouse head 'sales.orders$lake$files' --output json
streamhouse -w ./warehouse head 'sales.orders$commits' -n 100
""",
)
@click.argument("table", metavar="NAME")
@click.option(
    "-n", "--rows", "limit", type=click.IntRange(0, _ROWS_MAX), default=20, show_default=True, help="Number of rows."
)
@_COLUMNS
@_WHERE
@click.pass_obj
def head(session: Session, table: str, limit: int, columns: list[str], where: str | None) -> None:
    """Print rows of a table or of one of its system tables.

    NAME is a table (lake and log together), or a table with a suffix: $lake for tiered rows; $lake$snapshots and
    $lake$files for metadata of the lake; $changelog for every change with its offset; $buckets, $segments, $commits,
    $schemas, $options and $tiering for metadata of the table; $partitions for partitions; $history for commits.
    """
    view = session.warehouse.view(table)
    session.output.rows(view.scan(columns=columns or None, filter=where or None, limit=limit).to_arrow())


@click.command(
    "snapshots",
    cls=Command,
    examples="""
streamhouse -w ./warehouse snapshots sales.orders
streamhouse -w ./warehouse snapshots sales.orders --output json | jq .snapshot_id
""",
)
@TABLE
@click.pass_obj
def snapshots(session: Session, table: str) -> None:
    """List the snapshots of a table's lake, oldest first.

    Text output has the main columns; --output json has all columns, with the summary of each snapshot.
    """
    rows = session.warehouse.view(f"{table}$lake$snapshots").to_arrow()
    session.output.rows(rows if session.output.as_json else _summarize_snapshots(rows))


def _summarize_snapshots(snapshots: pa.Table) -> pa.Table:
    summaries = [dict(summary or {}) for summary in snapshots["summary"].to_pylist()]
    numbers = {
        name: pa.array([int(s[key]) if key in s else None for s in summaries], pa.int64())
        for name, key in (("rows_added", "added-records"), ("rows", "total-records"), ("files", "total-data-files"))
    }
    short = snapshots.select(["committed_at", "snapshot_id", "operation"])
    for name, values in numbers.items():
        short = short.append_column(name, values)
    return short


@click.command(
    "segments",
    cls=Command,
    examples="""
streamhouse -w ./warehouse segments sales.orders
streamhouse -w ./warehouse segments sales.orders --output json | jq .size_bytes
""",
)
@TABLE
@click.pass_obj
def segments(session: Session, table: str) -> None:
    """List the segments of a table's hot log.

    Each segment holds a range of offsets of one bucket. A segment without a file is stored in its commit record;
    maintenance moves it into a file.
    """
    session.output.rows(session.warehouse.view(f"{table}$segments").to_arrow())


@click.command(
    "tail",
    cls=Command,
    examples="""
streamhouse -w ./warehouse tail sales.orders
streamhouse -w ./warehouse tail sales.orders --from earliest --no-follow
streamhouse -w ./warehouse tail sales.orders --from 2026-01-31T12:00:00Z --output json | jq .amount
""",
)
@TABLE
@click.option(
    "--from",
    "start",
    default="latest",
    show_default=True,
    metavar="earliest|latest|TIME",
    help="latest: new rows; earliest: all rows in the hot log; or rows committed at a time or later, in ISO 8601 with "
    "a zone or in milliseconds since 1970.",
)
@click.option("--follow/--no-follow", default=True, show_default=True, help="Wait for new rows, until Ctrl-C.")
@click.option("-n", "--rows", "limit", type=click.IntRange(1, _ROWS_MAX), help="End after this number of rows.")
@_COLUMNS
@_WHERE
@click.pass_obj
def tail(
    session: Session,
    table: str,
    *,
    start: str,
    follow: bool,
    limit: int | None,
    columns: list[str],
    where: str | None,
) -> None:
    """Follow a table: print rows as they are written.

    Rows have their bucket, offset and commit time, and are in order per bucket. A primary-key table shows changes with
    their type. Rows that were trimmed from the hot log are in the lake: see `head`.
    """
    opened = session.warehouse.table(table)
    begin = _parse_start(start)
    chosen: Any = {"columns": columns or None, "filter": where or None, "include_metadata": True}
    batches = opened.tail(begin, **chosen) if follow else _read_current_rows(LogCursor(opened, begin, **chosen))
    printer = _TailPrinter(session.output)
    missing = limit
    try:
        for batch in batches:
            printer.print(batch if missing is None else batch.slice(0, missing))
            if missing is not None and (missing := missing - batch.num_rows) <= 0:
                return
    except KeyboardInterrupt:
        return


def _parse_start(text: str) -> Any:
    if text in ("earliest", "latest"):
        return text
    try:
        return dt.datetime.fromtimestamp(parse_timestamp_ms("--from", text, round_up=True) / 1000, dt.UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidOptionError(f"--from is {text}, expected a time in the years 1 to 9999") from error


def _read_current_rows(cursor: LogCursor) -> Iterator[pa.RecordBatch]:
    return cursor.batches(cursor.initial)


class _TailPrinter:
    """Prints batches as they arrive, one line per row, in columns as wide as in the first batch."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._widths: list[int] = []

    def print(self, batch: pa.RecordBatch) -> None:
        if self._output.as_json:
            self._output.json_lines(batch)
        else:
            self._print_lines(batch)
        sys.stdout.flush()

    def _print_lines(self, batch: pa.RecordBatch) -> None:
        lines = [[format_value(row[name]) for name in batch.schema.names] for row in encode_rows(batch)]
        if not self._widths:
            header = batch.schema.names
            columns = zip(header, *lines, strict=True)
            self._widths = [min(_FIELD_CHARS_MAX, max(map(len, column))) for column in columns]
            click.secho(self._line(header), bold=True)
        for line in lines:
            click.echo(self._line(line))

    def _line(self, fields: Sequence[str]) -> str:
        return "  ".join(field.ljust(width) for field, width in zip(fields, self._widths, strict=True)).rstrip()


@click.command(
    "append",
    cls=Command,
    examples="""
streamhouse -w ./warehouse append sales.orders orders.parquet
streamhouse -w ./warehouse append sales.orders january.csv february.csv.gz --null NA
generate-orders | streamhouse -w ./warehouse append sales.orders - --format json

# idempotent: a second run adds nothing
streamhouse -w ./warehouse append sales.orders orders.csv --txn-app-id nightly --txn-version 20260131
""",
)
@TABLE
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE...",
    shell_complete=lambda _context, _param, incomplete: [CompletionItem(incomplete, type="file")],
)
@click.option(
    "--format", "format_", type=click.Choice(FORMATS), help="Format of the files; by default their names determine it."
)
@click.option(
    "--null",
    "null_texts",
    metavar="TEXT",
    multiple=True,
    help="A CSV value that means null, in addition to the empty value. May be given several times.",
)
@click.option("--txn-app-id", metavar="ID", help="With --txn-version: id of the application of an idempotent write.")
@click.option("--txn-version", metavar="N", help="Version of the write; a version that is already stored adds nothing.")
@click.pass_obj
def append(
    session: Session,
    table: str,
    files: Sequence[str],
    format_: str | None,
    null_texts: Sequence[str],
    txn_app_id: str | None,
    txn_version: str | None,
) -> None:
    """Append the rows of files to a table, or upsert them by primary key.

    Files are Parquet, Arrow, CSV, JSON Lines or a JSON array; - is standard input. All rows are written in one commit.
    Columns match by name; a missing column gets its default, or null. Prints the offsets of the rows per bucket, as
    half-open ranges.
    """
    if (txn_app_id is None) != (txn_version is None):
        raise click.UsageError("--txn-app-id and --txn-version require each other; set both, or neither")
    named = {"txnAppId": txn_app_id, "txnVersion": txn_version}
    transaction = parse_write_options({k: v for k, v in named.items() if v is not None}).transaction
    opened = session.warehouse.table(table)
    is_duplicate = find_stored_transaction(opened.refresh(), transaction) is not None
    formats = [resolve_file_format(path, format_) for path in files]
    with ExitStack() as stack:
        defaults = default_scalars(evaluate_defaults(opened.state.schema, StatementContext.of(opened.world)))
        rules = CsvOptions(opened.schema, null_texts, defaults)
        opened_files = (
            open_rows(path, name, rules, stack, sys.stdin.buffer) for path, name in zip(files, formats, strict=True)
        )
        offsets = _append_all(opened, opened_files, transaction, session.output)
    _print_offsets(session.output, opened, offsets, duplicate=is_duplicate)


def _append_all(table: Table, files: Iterator[Any], transaction: Transaction | None, output: Output) -> BucketOffsets:
    """Write the rows in one commit. Appended rows are staged with bounded memory; upserted rows are held in memory."""
    by_key = bool(table.state.primary_key)
    staged: list[StagedRows] = []
    upserted: list[pa.Table] = []
    schema = evaluate_defaults(table.state.schema, StatementContext.of(table.world))
    with output.progress("rows") as progress:
        task = progress.add_task(f"append to {table.name}", total=None)
        for file in files:
            progress.update(task, total=file.num_rows)
            for piece in iter_tables(file.batches):
                piece = without_metadata(piece, schema.names)  # noqa: PLW2901 - the rows of the piece
                rows, missing = convert_rows(piece, schema, table=table.name, older=table.state.schemas)
                upserted.append(rows) if by_key else staged.append(table.log_writer.stager().stage(rows, missing))
                progress.advance(task, piece.num_rows)
    if by_key:
        return table.upsert(pa.concat_tables([table.schema.empty_table(), *upserted]), transaction=transaction)
    if not staged:
        return table.append([], transaction=transaction)
    return table.log_writer.commit(merge_staged_rows(staged), transaction=transaction)


def _print_offsets(output: Output, table: Table, offsets: BucketOffsets, *, duplicate: bool) -> None:
    ranges = {str(bucket): [r.start, r.end] for bucket, r in offsets.items()}
    added = 0 if duplicate else offsets.num_rows
    value = {"table": table.name, "rows": added, "duplicate": duplicate, "offsets": ranges}

    def render(console: Any) -> None:
        if duplicate:
            console.print(f"{table.name}: this version is already stored; nothing was added. Its rows are at:")
        else:
            unit = "change" if table.state.primary_key else "row"
            console.print(f"{table.name}: added {count_of(added, unit)}")
        rows = {"bucket": list(offsets), "offsets": [str(r) for r in offsets.values()]}
        rows["rows"] = [len(r) for r in offsets.values()]
        if offsets:
            console.print(rich_table(pa.table(rows)))

    output.document(value, render)
