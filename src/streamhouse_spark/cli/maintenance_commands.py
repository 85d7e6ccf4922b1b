"""``maintain``, ``verify``, ``doctor``, ``relocate``: maintenance and checks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

import click
import pyarrow as pa
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from streamhouse_spark.cli.diagnostics import Finding, run_doctor
from streamhouse_spark.cli.fsck import (
    Verification,
    lake_metadata_problems,
    metadata_problems,
    open_lake_plan,
    verify_branches,
    verify_lake,
    verify_log,
)
from streamhouse_spark.cli.output import Output
from streamhouse_spark.cli.session import TABLE, Command, Failure, Session, fail_for, parse_duration_option
from streamhouse_spark.config.spark_options import WAREHOUSE_VARIABLE
from streamhouse_spark.errors import count_of
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.maintenance.log import MaintainReport
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.relocation import relocate as relocated
from streamhouse_spark.warehouse.table_batch import TableBatch, open_all, open_named

_MAINTAINED: Final = TableSchema.of(
    "table STRING, segments_merged BIGINT, buckets_trimmed BIGINT, files_condemned BIGINT, "
    "files_deleted BIGINT, lake_files_compacted BIGINT, lake_rows_healed BIGINT, "
    "lake_snapshots_expired BIGINT, lake_files_deleted BIGINT, dry_run BOOLEAN"
).arrow
_LEVELS: Final = {"ok": ("ok", "green"), "warn": ("warning", "yellow"), "fail": ("FAILED", "red")}


def select_tables(session: Session, names: Sequence[str]) -> TableBatch:
    """Return the named tables, or all tables of the warehouse."""
    warehouse = session.warehouse
    return open_named(warehouse.table, names) if names else open_all(warehouse)


@click.command(
    "maintain",
    cls=Command,
    examples="""
streamhouse -w ./warehouse maintain
streamhouse -w ./warehouse maintain sales.orders --dry-run
streamhouse -w ./warehouse maintain --grace 48h --output json
""",
)
@click.argument("tables", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only show due deletions.")
@click.option(
    "--grace",
    "grace_ms",
    default="24h",
    show_default=True,
    callback=parse_duration_option,
    metavar="DURATION",
    help="How long unreferenced files stay for readers and writers in flight.",
)
@click.pass_obj
def maintain(session: Session, tables: Sequence[str], *, dry_run: bool, grace_ms: int | None) -> None:
    """Merge small segments, trim old rows, delete unreferenced files.

    Works on the given TABLES, or else on all tables and on the files of dropped tables. Trimming follows table.log.ttl
    and never removes rows that are not in the lake. Idempotent, and safe to run concurrently.
    """
    chosen = select_tables(session, tables)
    grace_ms = GRACE_MS if grace_ms is None else grace_ms
    with session.output.progress("tables") as progress:
        task = progress.add_task("maintain", total=len(chosen.tables))

        def maintain_one(table: Table) -> dict[str, object]:
            progress.update(task, description=f"maintain {table.name}")
            report = table.maintain(grace_ms=grace_ms, dry_run=dry_run)
            progress.advance(task)
            return _maintain_table(table, report)

        rows = chosen.each(maintain_one)
    if not tables:
        dropped = session.warehouse.clean_dropped(grace_ms=grace_ms, dry_run=dry_run)
        if dropped.deleted:
            session.output.remark(f"{count_of(len(dropped.deleted), 'file')} of dropped tables")
        for uuid, why in dropped.skipped.items():
            session.output.remark(f"tables/{uuid} was skipped: {why}")
    session.output.records(rows, _MAINTAINED)
    fail_for(chosen)


def _maintain_table(table: Table, report: MaintainReport) -> dict[str, object]:
    return {
        "table": table.name,
        "segments_merged": report.segments_merged,
        "buckets_trimmed": len(report.trimmed_to),
        "files_condemned": len(report.cleaned.condemned),
        "files_deleted": len(report.cleaned.deleted),
        "lake_files_compacted": report.lake.compacted.files_removed if report.lake else 0,
        "lake_rows_healed": report.lake.compacted.healed_rows if report.lake else 0,
        "lake_snapshots_expired": len(report.lake.expired.snapshots) if report.lake else 0,
        "lake_files_deleted": len(report.lake.expired.files) + len(report.lake.orphans) if report.lake else 0,
        "dry_run": report.cleaned.dry_run,
    }


@click.command(
    "verify",
    cls=Command,
    examples="""
streamhouse -w ./warehouse verify sales.orders
streamhouse -w ./warehouse verify sales.orders --output json || echo damaged
""",
)
@TABLE
@click.pass_obj
def verify(session: Session, table: str) -> None:
    """Verify all files of a table against their checksums.

    Reads every commit record, checkpoint, hint, tag and segment, every row of the lake, and the metadata of each
    retained snapshot. Checks that offsets are dense, that the lake holds exactly the tiered offsets, and that the
    footers of its files match their checksums. Files of other engines and older versions have no checksum and are
    counted. Changes nothing. Exit code 1 if a problem was found.
    """
    opened = session.warehouse.table(table)
    result = _verify_table(opened, session.output)
    session.output.document(asdict(result), lambda console: _render_verification(result, console))
    if result.problems:
        raise Failure(f"{result.table}: {len(result.problems)} problem{'s' if len(result.problems) > 1 else ''} found")


def _verify_table(table: Table, output: Output) -> Verification:
    state = table.refresh()
    result = Verification(table.name)
    with output.progress("segments") as progress:
        task = progress.add_task(f"verify the log of {table.name}", total=len(state.live_segments()))
        verify_log(table, state, result, lambda n: progress.advance(task, n))
    result.problems.extend(metadata_problems(table, state))
    verify_branches(table, result)
    plan = open_lake_plan(table, state, result)
    if plan is not None:
        with output.progress("rows") as progress:
            task = progress.add_task(f"verify the lake of {table.name}", total=plan.num_rows)
            verify_lake(table, state, plan, result, lambda n: progress.advance(task, n))
        reported = set(result.problems)
        result.problems.extend(problem for problem in lake_metadata_problems(table) if problem not in reported)
    return result


def _render_verification(result: Verification, console: Console) -> None:
    console.print(
        f"{result.table}: {count_of(result.segments, 'segment')} with {count_of(result.log_rows, 'row')} in "
        f"{count_of(result.segment_bytes, 'byte')} "
        f"of hot log; "
        + (
            f"lake snapshot {result.lake_snapshot_id} with {count_of(result.lake_rows, 'row')}"
            if result.lake_snapshot_id
            else "nothing tiered yet"
        ),
        markup=False,
    )
    if result.lake_footers_unchecked:
        console.print(
            f"not checked: the footers of {count_of(result.lake_footers_unchecked, 'lake file')}, which other engines "
            f"or older versions wrote without a checksum; checked: {count_of(result.lake_footers, 'footer')}",
            style="yellow",
            markup=False,
        )
    for problem in result.problems:
        console.print(f"  {problem}", style="red", markup=False)
    if not result.problems:
        console.print("all files exist and match their checksums", style="green")


@click.command(
    "doctor",
    cls=Command,
    examples="""
streamhouse doctor
streamhouse doctor -w s3://bucket/warehouse
streamhouse doctor --output json | jq 'select(.level != "ok")'
""",
)
@click.pass_obj
def doctor(session: Session) -> None:
    """Check this machine and a warehouse, and recommend fixes.

    Checks Python, Java, PySpark and other packages, and the Python of Spark's workers. For a warehouse, it checks write
    access, put-if-absent, clock and disk, and whether tables are tiered and maintained. Exit code 1 if a check fails.
    """
    findings = run_doctor(session.location or os.environ.get(WAREHOUSE_VARIABLE) or None, session.settings)
    if session.output.as_json:
        session.output.json_lines(pa.Table.from_pylist([asdict(f) for f in findings]))
    else:
        _render_findings(findings, session.output.console)
    failed = [f.check for f in findings if f.level == "fail"]
    if failed:
        raise Failure(f"failed checks: {', '.join(failed)}")


def _render_findings(findings: Sequence[Finding], console: Console) -> None:
    table = RichTable(box=None, show_header=False, pad_edge=False)
    for finding in findings:
        word, color = _LEVELS[finding.level]
        text = Text(finding.found)
        if finding.remedy and finding.level != "ok":
            text.append(f"\n→ {finding.remedy}", style="bold")
        table.add_row(Text(word, style=color), Text(finding.check), text)
    console.print(table)


_RELOCATED: Final = TableSchema.of(
    "table STRING, uuid STRING, former_uuid STRING, lake STRING, moved_from STRING, files_written BIGINT, "
    "dry_run BOOLEAN"
).arrow


@click.command(
    "relocate",
    cls=Command,
    examples="""
streamhouse -w ./moved relocate --dry-run
streamhouse -w ./moved relocate
streamhouse -w s3://bucket/copy relocate --copy
""",
)
@click.option("--copy", is_flag=True, help="The warehouse is a copy: give the copy and its tables new ids.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done, and check that the copy is complete.")
@click.pass_obj
def relocate(session: Session, *, copy: bool, dry_run: bool) -> None:
    """Repair a warehouse that was moved or copied, at its new location.

    Lake metadata contains absolute file locations, which are rewritten so that other engines can read the lake tables.
    With --copy, the original stays in use and the copy gets new ids. Nothing is written outside the warehouse. Stop all
    writers of the warehouse first. If the command fails, run it again.
    """
    with session.output.progress("tables") as progress:
        task = progress.add_task("relocate", total=None)

        def show(done: int, total: int, name: str) -> None:
            progress.update(task, description=f"relocate {name}", completed=done, total=total)

        report = relocated(session.warehouse, copy=copy, dry_run=dry_run, progress=show)
        progress.update(task, completed=len(report.tables), total=len(report.tables))
    rows = [{**asdict(table), "dry_run": dry_run} for table in report.tables]
    session.output.records(rows, _RELOCATED)
    if report.moved_from is None:
        session.output.remark(f"{report.warehouse} was not moved")
    else:
        action = "would be relocated" if dry_run else "was relocated"
        session.output.remark(f"{report.warehouse} {action} from {report.moved_from}")
