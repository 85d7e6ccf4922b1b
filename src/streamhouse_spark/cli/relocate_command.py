"""``relocate``: repairs a warehouse that was moved or copied, at its new location."""

from __future__ import annotations

from typing import Final

import click
import pyarrow as pa

from streamhouse_spark.cli.session import Command, Session
from streamhouse_spark.warehouse.relocation import relocate as relocated

_RELOCATED: Final = pa.schema([
    ("table", pa.string()),
    ("uuid", pa.string()),
    ("former_uuid", pa.string()),
    ("lake", pa.string()),
    ("moved_from", pa.string()),
    ("files_written", pa.int64()),
    ("dry_run", pa.bool_()),
])  # fmt: skip


@click.command(
    "relocate",
    cls=Command,
    examples="""
streamhouse -w ./moved relocate --dry-run
streamhouse -w ./moved relocate
streamhouse -w s3://bucket/copy relocate --copy
""",
)
@click.option("--copy", is_flag=True, help="The warehouse is a copy: give it and each table a new id.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done, and check that the copy is complete.")
@click.pass_obj
def relocate(session: Session, *, copy: bool, dry_run: bool) -> None:
    """Repair a warehouse that was moved or copied, at its new location.

    Lake metadata contains absolute file locations; it is rewritten for the new location, so that other engines can read
    the lake tables there. With --copy the original stays in use, and the copy gets its own ids. Nothing outside is
    written. Stop all writers of the warehouse first; after a crash run the same command again.
    """
    with session.output.progress("tables") as progress:
        task = progress.add_task("relocate", total=None)

        def show(done: int, total: int, name: str) -> None:
            progress.update(task, description=f"relocate {name}", fill_generated=done, total=total)

        report = relocated(session.warehouse, copy=copy, dry_run=dry_run, progress=show)
    rows = [
        {
            "table": table.table,
            "uuid": table.uuid,
            "former_uuid": table.former_uuid,
            "lake": table.lake,
            "moved_from": table.moved_from,
            "files_written": table.files_written,
            "dry_run": dry_run,
        }
        for table in report.tables
    ]
    session.output.rows(pa.Table.from_pylist(rows, schema=_RELOCATED))
    if report.moved_from is None:
        session.output.remark(f"{report.warehouse} is at home")
    else:
        session.output.remark(
            f"{report.warehouse} {'was' if dry_run else 'is at home now, and was'} written at {report.moved_from}"
        )
