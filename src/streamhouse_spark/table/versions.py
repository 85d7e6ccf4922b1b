"""`Versions`: the verbs of a table that go back in its history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamhouse_spark.core.arguments import checks_arguments
from streamhouse_spark.handle import TableHandle

if TYPE_CHECKING:
    from streamhouse_spark.table.rollback import RollbackReport


@checks_arguments()
class Versions(TableHandle):
    """The part of `Table` that goes back to older versions. A version is the number of a commit."""

    def rollback_to_version(self, version: int, *, dry_run: bool = False) -> RollbackReport:
        """Give the table the rows that it had after commit ``version`` of ``$history``. **Commit point:** one record.

        History goes on: the commits between stay, and offsets are never used again. Rows added since are deleted, rows
        deleted since come back with new offsets; with a primary key each key has its net change. The lake follows in
        the next tiering round. Columns and properties stay as they are. With ``dry_run`` nothing is written.

        Raises `CommitConflictError` where others committed rows meanwhile (nothing was written), `InvalidOptionError`
        for a commit that does not exist, or where columns, a truncation or a dropped partition lie between,
        `SnapshotExpiredError` or `OffsetsTrimmedError` where that version is no longer kept.
        """
        from streamhouse_spark.table.rollback import rollback_to_version

        return rollback_to_version(self, version, dry_run=dry_run)

    def rollback_to_timestamp(self, timestamp_ms: int, *, dry_run: bool = False) -> RollbackReport:
        """Roll back, as `rollback_to_version` does, to the newest commit of ``timestamp_ms`` or before."""
        from streamhouse_spark.table.rollback import rollback_to_timestamp

        return rollback_to_timestamp(self, timestamp_ms, dry_run=dry_run)
