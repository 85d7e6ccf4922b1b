"""`Versions`: the verbs of a table that go back in its history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from streamhouse_spark.core.argument_validation import checks_arguments
from streamhouse_spark.handle import TableHandle

if TYPE_CHECKING:
    import pyarrow as pa

    from streamhouse_spark.table.branching.branch_diff import Publication
    from streamhouse_spark.table.branching.branches import TableBranch
    from streamhouse_spark.table.rollback import RollbackReport
    from streamhouse_spark.table.tags import TableTag


@checks_arguments()
class Versions(TableHandle):
    """The part of `Table` that goes back to older versions. A version is the number of a commit."""

    def rollback_to_version(self, version: int | str, *, dry_run: bool = False) -> RollbackReport:
        """Give the table the rows of a commit of ``$history``, or of a tag. **Commit point:** one record.

        History goes on: the commits between stay, and offsets are never used again. Rows added since are deleted, rows
        deleted since come back with new offsets; with a primary key each key has its net change. Where all rows were
        removed at once since, all of now go so, and all of that version are added, which are read in this process. The
        lake follows in the next tiering round. Comments, defaults, constraints and properties stay as they are. With
        ``dry_run`` nothing is written, and rows that come back are not checked.

        Raises `CommitConflictError` where others committed rows meanwhile (nothing was written),
        `ConstraintViolatedError` for rows that come back in breach of a constraint of now, `InvalidOptionError`
        for a commit that does not exist, or where columns lie between, or a dropped partition whose rows are gone,
        `SnapshotExpiredError` or `OffsetsTrimmedError` where that version is no longer kept.
        """
        from streamhouse_spark.table.rollback import rollback_to_version

        return rollback_to_version(self, version, dry_run=dry_run)

    def rollback_to_timestamp(self, timestamp_ms: int, *, dry_run: bool = False) -> RollbackReport:
        """Roll back, as `rollback_to_version` does, to the newest commit of ``timestamp_ms`` or before."""
        from streamhouse_spark.table.rollback import rollback_to_timestamp

        return rollback_to_timestamp(self, timestamp_ms, dry_run=dry_run)

    def create_tag(self, name: str, version: int | str | None = None, *, retain_ms: int | None = None) -> TableTag:
        """Name a version, the newest where none is given. **Commit point:** one record. ``VERSION AS OF 'name'`` reads
        it.

        What readers of the version need stays until `drop_tag`, whatever is merged, trimmed, cleaned and expired: files
        of the log, records and the lake snapshot. With ``retain_ms`` cleaning drops the tag after that time. Other
        engines do not know of it, so their expiry of lake snapshots does not either.

        Raises `InvalidOptionError` for a name that is taken or impossible, or a version that does not exist;
        `SnapshotExpiredError` for one of which files were replaced since, though they may not be deleted yet.
        """
        from streamhouse_spark.table.tags import create_tag

        return create_tag(self, name, version, retain_ms)

    def drop_tag(self, name: str) -> None:
        """Take a name away. **Commit point:** one record. What only it kept goes after the grace of cleaning.

        Raises `InvalidOptionError` for an unknown name.
        """
        from streamhouse_spark.table.tags import drop_tag

        drop_tag(self, name)

    def tags(self) -> list[TableTag]:
        """Return the tags by name, as ``$refs`` shows them."""
        from streamhouse_spark.table.tags import list_tags

        return list_tags(self.refresh())

    # -- branches -------------------------------------------------------------------------------------------------

    def create_branch(self, name: str) -> TableBranch:
        """Begin a branch with the newest version. **Commit point:** one record. Rows of the hot log are copied; no file
        of the lake is.

        `branch` opens it, and SQL knows it as ``orders$branch_<name>``. Writes to it are seen there alone, and those to
        the table are not seen in it, until `fast_forward` publishes it or `drop_branch` ends it. Meanwhile its records
        and the lake snapshot that it reads stay.

        Raises `TableExistsError` for a name that another branch has, `InvalidNameError` for an impossible one, and
        `InvalidOptionError` for a table that cannot have branches, all before anything is written.
        """
        from streamhouse_spark.table.branching.branches import create_branch

        return create_branch(self, name)

    def branch(self, name: str) -> Self:
        """Open a branch: a table that can be read and written. Upkeep, columns and properties are the table's own.

        Raises `TableNotFoundError` for an unknown name, and where it was published or dropped.
        """
        from streamhouse_spark.table.branching.branches import open_log

        branch, log = open_log(self, name)
        return type(self)(self._storage, self._settings, self._path.of_branch(branch.name), log, self._world)

    def branches(self) -> list[TableBranch]:
        """Return the branches by name, as ``$refs`` shows them."""
        from streamhouse_spark.table.branching.branches import list_branches

        return list_branches(self)

    def fast_forward(self, name: str, *, to: str = "main") -> Publication:
        """Publish a branch: its changes become the table's at once, all of them or none, and the branch ends.

        **Commit point:** one record. Publishing again, after a crash or by two processes, is one publication. Where the
        table changed since the branch began, the branch is published only if that is right behind these changes: of a
        table without a primary key if the branch only added rows, of one with if nobody changed a key that the branch
        changed or read.

        Raises `CommitConflictError` where it is not, and `TableNotFoundError` for an unknown name; nothing was
        published. `CommitStateUnknownError`: publish again, which tells.
        """
        from streamhouse_spark.table.branching.publication import fast_forward

        return fast_forward(self, name, to=to)

    def drop_branch(self, name: str) -> None:
        """End a branch, and lose its changes. **Commit point:** the record that takes its name away.

        Its files go after the grace of `Warehouse.clean_dropped`. Raises `TableNotFoundError` for an unknown name.
        """
        from streamhouse_spark.table.branching.branches import drop_branch

        drop_branch(self, name)

    def read_version(self, version: int | str, *, columns: Sequence[str] | None = None, filter: Any = None) -> pa.Table:
        """Read the rows as of a commit number or a tag.

        Raises `InvalidOptionError` for a version that does not exist, `SnapshotExpiredError` for one that is no longer
        kept.
        """
        from streamhouse_spark.table.rollback import read_version

        return read_version(self, version, columns, filter)
