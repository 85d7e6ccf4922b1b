"""`Versions`: the methods of a table that concern its versions, tags and branches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from streamhouse_spark.core.argument_validation import validates_arguments
from streamhouse_spark.handle import TableHandle

if TYPE_CHECKING:
    import pyarrow as pa

    from streamhouse_spark.table.branching.branch_diff import Publication
    from streamhouse_spark.table.branching.branches import TableBranch
    from streamhouse_spark.table.rollback import RollbackReport
    from streamhouse_spark.table.tags import TableTag


@validates_arguments()
class Versions(TableHandle):
    """Base of `Table` for older versions, tags and branches. A version is the number of a commit."""

    def rollback_to_version(self, version: int | str, *, dry_run: bool = False) -> RollbackReport:
        """Restore the rows of a commit of ``$history``, or of a tag. **Commit point:** one record.

        History is kept: later commits stay, and offsets are never reused. Rows added since are deleted, and rows
        deleted since return with new offsets; a primary-key table gets the net change of each key. If the table was
        truncated or overwritten since, all current rows are deleted and all rows of the version are written, which this
        process reads. The lake follows in the next tiering round. Comments, defaults, constraints and properties are
        unchanged. With ``dry_run`` nothing is written, and returning rows are not validated.

        Raises `CommitConflictError` if rows were committed concurrently (nothing was written),
        `ConstraintViolatedError` for returning rows that violate a current constraint, `InvalidOptionError` for an
        unknown commit, columns changed since or a dropped partition whose rows are lost, `SnapshotExpiredError` or
        `OffsetsTrimmedError` if the version is no longer retained.
        """
        from streamhouse_spark.table.rollback import rollback_to_version

        return rollback_to_version(self, version, dry_run=dry_run)

    def rollback_to_timestamp(self, timestamp_ms: int, *, dry_run: bool = False) -> RollbackReport:
        """Roll back as `rollback_to_version` does, to the latest commit at or before ``timestamp_ms``."""
        from streamhouse_spark.table.rollback import rollback_to_timestamp

        return rollback_to_timestamp(self, timestamp_ms, dry_run=dry_run)

    def create_tag(self, name: str, version: int | str | None = None, *, retain_ms: int | None = None) -> TableTag:
        """Tag a version, by default the latest. ``VERSION AS OF 'name'`` reads it. **Commit point:** one record.

        The tag retains what readers of the version need until `drop_tag`: log files, records and the lake snapshot.
        With ``retain_ms`` maintenance drops the tag after that time. Other engines do not know the tag and may expire
        the snapshot.

        Raises `InvalidOptionError` for a name that is in use or invalid and for an unknown version;
        `SnapshotExpiredError` for a version whose files were replaced since, even if they are not deleted yet.
        """
        from streamhouse_spark.table.tags import create_tag

        return create_tag(self, name, version, retain_ms)

    def drop_tag(self, name: str) -> None:
        """Drop a tag. **Commit point:** one record. Files that only it retained are deleted after the grace period.

        Raises `InvalidOptionError` for an unknown tag.
        """
        from streamhouse_spark.table.tags import drop_tag

        drop_tag(self, name)

    def tags(self) -> list[TableTag]:
        """Return the tags ordered by name, as ``$refs`` shows them."""
        from streamhouse_spark.table.tags import list_tags

        return list_tags(self.refresh())

    # -- branches -------------------------------------------------------------------------------------------------

    def create_branch(self, name: str) -> TableBranch:
        """Create a branch of the latest version. **Commit point:** one record. Hot rows are copied; lake files are not.

        `branch` opens it; its SQL name is ``orders$branch_<name>``. Branch and table do not see each other's writes
        until `fast_forward` publishes the branch or `drop_branch` ends it. Until then its records and its lake snapshot
        are retained.

        Raises `TableExistsError` for a name in use, `InvalidNameError` for an invalid one, and `InvalidOptionError` for
        a table that does not support branches, all before anything is written.
        """
        from streamhouse_spark.table.branching.branches import create_branch

        return create_branch(self, name)

    def branch(self, name: str) -> Self:
        """Open a branch as a table that can be read and written. Maintenance, columns and properties belong to the
        table.

        Raises `TableNotFoundError` for an unknown, published or dropped branch.
        """
        from streamhouse_spark.table.branching.branches import open_log

        branch, log = open_log(self, name)
        return type(self)(self._storage, self._settings, self._path.of_branch(branch.name), log, self._world)

    def branches(self) -> list[TableBranch]:
        """Return the branches ordered by name, as ``$refs`` shows them."""
        from streamhouse_spark.table.branching.branches import list_branches

        return list_branches(self)

    def fast_forward(self, name: str, *, to: str = "main") -> Publication:
        """Publish a branch: commit its changes to the table, all or none, and end the branch.

        **Commit point:** one record. Publishing again, after a crash or concurrently, has no further effect. If the
        table changed since the branch began, publishing requires that the branch does not conflict: a branch of a log
        table only appended rows; of a primary-key table no key that the branch changed or read was changed.

        Raises `CommitConflictError` on a conflict and `TableNotFoundError` for an unknown name; nothing was published.
        `CommitStateUnknownError`: publish again to find out.
        """
        from streamhouse_spark.table.branching.publication import fast_forward

        return fast_forward(self, name, to=to)

    def drop_branch(self, name: str) -> None:
        """Drop a branch and its changes. **Commit point:** the record that removes its name.

        Its files are deleted after the grace period of `Warehouse.clean_dropped`. Raises `TableNotFoundError` for an
        unknown name.
        """
        from streamhouse_spark.table.branching.branches import drop_branch

        drop_branch(self, name)

    def read_version(self, version: int | str, *, columns: Sequence[str] | None = None, filter: Any = None) -> pa.Table:
        """Read the rows as of a commit number or a tag.

        Raises `InvalidOptionError` for an unknown version, `SnapshotExpiredError` for one that is no longer retained.
        """
        from streamhouse_spark.table.rollback import read_version

        return read_version(self, version, columns, filter)
