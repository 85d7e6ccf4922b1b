"""Changes of a branch, divergence of its table, and the end of a branch."""

from __future__ import annotations

from collections.abc import Sequence

from streamhouse_spark.config.branch_metadata import BRANCH, BranchMark
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange, Transaction
from streamhouse_spark.errors import CommitConflictError, TableNotFoundError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.kv.read_version import ReadVersion
from streamhouse_spark.log.commits.actions import Action, DropTag, SetProperties
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.delete_vectors import FileRows, union_deleted_file_rows
from streamhouse_spark.log.commits.group_commit import CommitResult
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.lifecycle.branches import Branch, publication_id, require_branch
from streamhouse_spark.table.row_deletion import has_dropped_partitions
from streamhouse_spark.write.auto_compaction import merge_if_due


@dataclass(frozen=True, slots=True)
class Publication:
    """The result of publishing a branch."""

    table: str
    branch: str
    version: int
    """The commit of the table that has the branch's changes."""
    rows_written: int | None = None
    """Rows that were appended or upserted; None if the branch was published before."""
    rows_deleted: int | None = None
    """Rows that were deleted. None as above, and if a primary-key or adopted table was truncated."""


@dataclass(frozen=True, slots=True)
class BranchChanges:
    """The changes of a branch since its creation, as far as its state has them."""

    branch: Branch
    base: TableState
    """The table's state at the creation of the branch."""
    branch_state: TableState
    """The state of the branch."""

    @property
    def is_emptied(self) -> bool:
        """Whether the branch was truncated or overwritten."""
        return self.branch_state.first_offsets != self.base.first_offsets

    @property
    def deleted(self) -> dict[int, OffsetSet]:
        """Bucket → offsets of table rows that the branch deleted individually."""
        deleted = {}
        for bucket, runs in self.branch_state.deleted.items():
            of_table = runs.within(OffsetRange(0, self.base.buckets[bucket].end))
            if bucket in self.base.deleted:
                of_table = of_table.without(self.base.deleted[bucket])
            if of_table:
                deleted[bucket] = of_table
        return deleted

    @property
    def files(self) -> FileRows:
        """Lake file name → positions of table rows without offsets that the branch deleted."""
        base_files = union_deleted_file_rows(self.base.deletions)
        every = union_deleted_file_rows(self.branch_state.deletions)
        left = {name: runs.without(base_files[name]) if name in base_files else runs for name, runs in every.items()}
        return {name: runs for name, runs in left.items() if runs}

    @property
    def added(self) -> dict[int, OffsetRange]:
        """Bucket → offsets of the branch's own rows or changes."""
        added = {}
        for bucket, log in self.branch_state.buckets.items():
            start = max(self.base.buckets[bucket].end, self.branch_state.first_offset(bucket))
            if start < log.end:
                added[bucket] = OffsetRange(start, log.end)
        return added

    @property
    def is_additive(self) -> bool:
        """Whether a branch of a log table only appended rows."""
        return not (self.deleted or self.files or self.is_emptied)

    @property
    def transaction(self) -> Transaction:
        return Transaction(publication_id(self.branch.name, self.branch.uuid), 1)

    def make_end_actions(self, state: TableState) -> tuple[DropTag, ...]:
        """Return the action that ends the branch. Raises `TableNotFoundError` if it was dropped concurrently."""
        require_same_branch(state, self.branch)
        return (DropTag((self.branch.tag,)),)

    def conflict_error(self, why: str) -> CommitConflictError:
        return CommitConflictError(
            f"branch {self.branch.name!r} of {self.base.name} cannot be published: {why} since commit "
            f"{self.base.version}, with which the branch began; nothing was published. Drop the branch, make it again, "
            "and write it by the table as it is now"
        )


def require_same_branch(state: TableState, branch: Branch) -> None:
    """Raise `TableNotFoundError` unless the table still names this branch."""
    if branch.tag not in state.tags:
        require_branch(state, branch.name)
        raise TableNotFoundError(f"branch {branch.name!r} of {state.name} was dropped; another branch has its name now")


def describe_divergence(state: TableState, base: TableState) -> str | None:
    """Return how the rows of a table changed since a state; None if they did not. Maintenance and tiering change no
    rows.
    """
    if state.first_offsets != base.first_offsets:
        return "the table was emptied or overwritten"
    if state.ends != base.ends:
        return "rows of the table were added or changed"
    if any(deletion.commit > base.version for deletion in state.deletions):
        return "rows of the table were deleted"
    if has_dropped_partitions(state, ReadVersion.of(base)):
        return "a partition of the table was dropped"
    return None


def seal_branch(changes: BranchChanges, log: CommitLog) -> BranchChanges:
    """Seal the branch against writes and return all of its changes. **Commit point:** a record of the branch's log."""

    def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
        if state.dropped:
            raise TableNotFoundError(f"branch {changes.branch.name!r} of {changes.base.name} was dropped meanwhile")
        mark = BranchMark.of_properties(state.properties)
        if mark is None or mark.is_sealed:
            return ()
        seal = BranchMark(mark.of, mark.name, mark.version, is_sealed=True)
        return (SetProperties({BRANCH: seal.to_text()}),)

    return BranchChanges(changes.branch, changes.base, log.commit(plan).state)


def report_publication(
    table: TableHandle, changes: BranchChanges, committed: CommitResult, written: int, deleted: int | None
) -> Publication:
    """Report a publication, and compact inline rows if due."""
    if committed.duplicate_of is not None:
        return Publication(table.name, changes.branch.name, committed.duplicate_of.commit)
    if committed.is_first:
        merge_if_due(table, committed.state)
    return Publication(table.name, changes.branch.name, committed.state.version, written, deleted)
