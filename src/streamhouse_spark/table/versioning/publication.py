"""Publication of a branch: its changes are committed to the table, all or none, and the branch ends.

**Commit point:** the one record of the table that has the changes and removes the branch's name. It is a transaction of
the branch, so publishing again, after a crash or concurrently, has no effect. Before it the branch is sealed by a
record of its own log, so that writers get no acknowledgement for unpublished rows. A crash between the two leaves a
sealed branch, which can be read, published and dropped.

A table that did not change since the branch was created accepts the changes. Otherwise it accepts them only if they do
not conflict:

* of a log table if the branch only appended rows;
* of a primary-key table if no key that the branch changed was changed, and no statement read what the other changed
  (`kv.conflict_detection`). The changes are then the net change of each key.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.config.table_properties import ADOPTED, BRANCH, BranchMark
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.post_commit import log_post_commit_errors
from streamhouse_spark.core.types import OffsetRange, Transaction
from streamhouse_spark.core.warehouse_layout import parse_branch
from streamhouse_spark.dml.delete import (
    commit_with_conflict_check,
    has_dropped_partitions,
    make_delete_actions,
    mark_as_rewrite,
)
from streamhouse_spark.errors import CommitConflictError, InvalidOptionError, TableNotFoundError, quote
from streamhouse_spark.expressions.filters import Projection
from streamhouse_spark.keys.keyed_batch import KeyedBatch
from streamhouse_spark.kv.conflict_detection import ConflictChecker
from streamhouse_spark.kv.primary_key_properties import engine_of
from streamhouse_spark.kv.upsert_commit import commit_upsert
from streamhouse_spark.log.actions import Action, DropTag, SetProperties
from streamhouse_spark.log.catalog.branches import Branch, find_branch, find_publication, publication_id, require_branch
from streamhouse_spark.log.checkpoint import read_tagged
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.deletion_vectors import FileRows, count_rows, union_deleted_file_rows
from streamhouse_spark.log.group_commit import CommitResult
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.log.segments.multi_bucket_writer import group_into_objects, stage_group
from streamhouse_spark.log.segments.reader import InlineRecords
from streamhouse_spark.log.segments.scan import plan_range, read_split
from streamhouse_spark.log.segments.writer import StagedSegment, stage_inline
from streamhouse_spark.log.staging import (
    INLINE_BYTES_MAX,
    StagedRows,
    ends_after,
    inline_bytes_total,
    make_append_action,
    make_truncate_actions,
)
from streamhouse_spark.log.state import TableState
from streamhouse_spark.lookup.batch_lookup import BatchLookup
from streamhouse_spark.read.read_snapshot import take_latest_snapshot
from streamhouse_spark.read.snapshot_reader import read_snapshot_rows
from streamhouse_spark.table.versioning.branches import end_log, open_log
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.write.auto_compaction import merge_if_due
from streamhouse_spark.write.upsert import PrimaryKeySchema, PrimaryKeyTable

LOOKUP_ROWS: Final = 1 << 20
"""Keys per lookup."""
logger = logging.getLogger(__name__)
MAIN: Final = "main"
PIECE_BYTES: Final = 64 << 20
"""Bytes of rows of one bucket that are in memory at once and become one segment."""


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
    """Return how the rows of a table changed since a state, apart from maintenance; None if they did not."""
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


@dataclass(frozen=True, slots=True)
class _NetChange:
    """The net changes: rows by bucket and key, with deleted keys marked."""

    batches: Mapping[int, KeyedBatch]
    num_written: int
    num_deleted: int | None
    """None if the branch was truncated: the table's number of keys is not known here."""


def _publish_keyed(table: TableHandle, changes: BranchChanges, log: CommitLog) -> Publication:
    """Publish a branch of a primary-key table: the net change of each key that the branch changed."""
    keyed = PrimaryKeyTable(table)
    _require_same_columns(table.refresh(), changes)
    shape = keyed.shape(table.state)
    net = _compute_net_change(table, shape, changes, log)
    _check_conflicts(table, shape, changes, net)
    before, changes = changes.branch_state, seal_branch(changes, log)
    if changes.branch_state.ends != before.ends:
        net = _compute_net_change(table, shape, changes, log)
    engine = engine_of(replace(shape.properties, identity=None), shape.schema, None)

    def make_end_actions(state: TableState) -> Sequence[Action]:
        _require_same_columns(state, changes)
        return changes.make_end_actions(state)

    try:
        _, committed = commit_upsert(
            table.log,
            keyed.stager(shape, engine),
            net.batches,
            transaction=changes.transaction,
            overwrite=changes.is_emptied,
            read=_make_read_version(changes),
            extra_actions=make_end_actions,
        )
    except CommitConflictError as error:
        raise _conflict_error(changes, error) from error
    return report_publication(table, changes, committed, net.num_written, net.num_deleted)


def _require_same_columns(state: TableState, changes: BranchChanges) -> None:
    require_same_branch(state, changes.branch)
    if state.schema_id != changes.base.schema_id:
        raise changes.conflict_error("columns of the table changed")


def _make_read_version(changes: BranchChanges) -> ReadVersion:
    """Return the version that the branch read. Its scope is empty if the branch only wrote by key."""
    rewrites = any(
        segment.rewrites and segment.end_offset > changes.base.buckets[bucket].end
        for bucket, log in changes.branch_state.buckets.items()
        for segment in log.segments
    )
    read = replace(ReadVersion.of(changes.base), is_strict=changes.is_emptied)
    return read if rewrites else replace(read, scope=_reads_nothing)


def _reads_nothing(_state: TableState, _rows: pa.RecordBatch) -> bool:
    return False


def _check_conflicts(table: TableHandle, shape: PrimaryKeySchema, changes: BranchChanges, net: _NetChange) -> None:
    """Raise `CommitConflictError` if the changes conflict with the table's latest state."""
    if describe_divergence(table.state, changes.base) is None:
        return
    try:
        ConflictChecker(_make_read_version(changes), table.storage, shape.layout).check(table.state, net.batches)
    except CommitConflictError as error:
        raise _conflict_error(changes, error) from error


def _conflict_error(changes: BranchChanges, error: CommitConflictError) -> CommitConflictError:
    why = str(error).partition(" was running: ")[2].partition("; nothing was")[0]
    return changes.conflict_error(f"others changed what the branch depends on ({why or error})")


def _compute_net_change(
    table: TableHandle, shape: PrimaryKeySchema, changes: BranchChanges, log: CommitLog
) -> _NetChange:
    branch = TableHandle(table.storage, table.settings, table.path.of_branch(changes.branch.name), log, table.world)
    if changes.is_emptied:
        rows = read_snapshot_rows(
            branch, take_latest_snapshot(changes.branch_state), Projection.of(changes.branch_state.schema, None, None)
        )
        deleted = np.zeros(rows.num_rows, np.bool_)
        return _NetChange(shape.batches(rows, deleted), rows.num_rows, None)
    keys = _list_changed_keys(table, shape, changes)
    lookup, parts = BatchLookup(PrimaryKeyTable(branch)), range(0, keys.num_rows, LOOKUP_ROWS)
    looked_up_rows = [lookup.rows(keys.slice(start, LOOKUP_ROWS), max_staleness_ms=0) for start in parts]
    if not looked_up_rows:
        return _NetChange({}, 0, 0)
    rows = pa.concat_tables(looked_up_rows)
    exists = rows.column(rows.num_columns - 1)
    deleted = pc.invert(exists).to_numpy()
    batches = shape.batches(rows.select(list(shape.schema.names)), deleted)
    return _NetChange(batches, int((~deleted).sum()), int(deleted.sum()))


def _list_changed_keys(table: TableHandle, shape: PrimaryKeySchema, changes: BranchChanges) -> pa.Table:
    """Return the distinct keys that the branch changed."""
    branch_state, names = changes.branch_state, list(shape.key_schema.names)
    records = InlineRecords(table.storage, branch_state.table_uuid)
    parts = [shape.key_schema.arrow.empty_table()]
    for bucket, offsets in changes.added.items():
        split = plan_range(branch_state, bucket, offsets)
        of_bucket = read_split(
            table.storage, split, branch_state.written_schema(branch_state.schema_id), names, records=records
        )
        parts += [pa.Table.from_batches([batch.batch]).cast(parts[0].schema) for batch in of_bucket]
    keys = pa.concat_tables(parts)
    distinct = keys.group_by(names, use_threads=False).aggregate([])
    return distinct.select(names).cast(parts[0].schema)


def fast_forward(table: TableHandle, name: str, *, to: str = MAIN) -> Publication:
    """Publish a branch; see `Table.fast_forward`."""
    if to.strip().lower() != MAIN:
        raise InvalidOptionError(
            f"fast_forward(to={quote(to)}): a branch is published to its table, which is called 'main'; leave it out"
        )
    name = parse_branch(name)
    try:
        return _commit_publication(table, name)
    except TableNotFoundError:  # it may have been published concurrently
        state = table.refresh()
        if find_branch(state, name) is not None or (entry := find_publication(state, name)) is None:
            raise
        return Publication(table.name, name, entry.commit)


def _commit_publication(table: TableHandle, name: str) -> Publication:
    branch, log = open_log(table, name)
    base = read_tagged(table.storage, table.uuid, branch.base.version, branch.base.uuid)
    publish = _publish_keyed if base.primary_key else _publish
    done = publish(table, BranchChanges(branch, base, log.state), log)
    with log_post_commit_errors(logger, "ending the log of branch", name):
        end_log(log)
    return done


def _publish(table: TableHandle, changes: BranchChanges, log: CommitLog) -> Publication:
    """Publish a branch of a log table."""
    _require_publishable(table.state, changes)
    changes = seal_branch(changes, log)
    deleted, files, is_emptied = changes.deleted, changes.files, changes.is_emptied
    staged = stage_branch_rows(table, changes.branch_state, changes.added, rewrites=bool(deleted or files))

    def plan(state: TableState, time_ms: int, read: ReadVersion) -> Sequence[Action]:
        _require_publishable(state, changes)
        emptying = make_truncate_actions(state) if is_emptied else ()
        deletions = make_delete_actions(state, deleted, read, files) if (deleted or files) and not is_emptied else ()
        added = (make_append_action(state, staged, time_ms, ends_after(state, emptying)),) if staged.segments else ()
        return (*emptying, *deletions, *added, *changes.make_end_actions(state))

    read, transaction = ReadVersion.of(changes.base), changes.transaction
    committed = commit_with_conflict_check(table, deleted, read, plan, transaction=transaction, staged=staged)
    num_deleted: int | None = count_rows(deleted) + count_rows(files)
    if is_emptied:
        num_deleted = None if ADOPTED in changes.base.properties else changes.base.num_rows
    return report_publication(table, changes, committed, staged.num_rows, num_deleted)


def _require_publishable(state: TableState, changes: BranchChanges) -> None:
    """Raise `CommitConflictError` if the changes conflict with the state of the table."""
    require_same_branch(state, changes.branch)
    if changes.is_additive:
        return
    if (why := describe_divergence(state, changes.base)) is not None:
        raise changes.conflict_error(f"{why}, and the branch did not only add rows,")
    before, now = (
        table_state.lake.snapshot_id if table_state.lake is not None else None for table_state in (changes.base, state)
    )
    if changes.files and not state.has_same_lake_files(before, now):
        raise changes.conflict_error("lake files of which it deleted rows may have been rewritten")


# -- the rows of a branch ----------------------------------------------------------------------------------------------


def stage_branch_rows(
    table: TableHandle, branch_state: TableState, added: Mapping[int, OffsetRange], *, rewrites: bool
) -> StagedRows:
    """Stage the rows that a branch added and did not delete itself. Durable when this returns.

    Each row stays in its bucket, in order. The rows were validated by the constraints of the branch and have all
    columns. With ``rewrites`` they are marked as written by an operation that read the table.
    """
    storage, options, staged_ms = table.storage, table.segment_options(branch_state), table.storage.now_ms()
    pieces = list_if_small(
        _read_pieces(table, branch_state, added), inline_bytes_total(INLINE_BYTES_MAX, branch_state.num_buckets)
    )
    if isinstance(pieces, list):
        segments = [stage_inline(rows, bucket, options) for bucket, rows in pieces]
    else:
        by_number: dict[int, StagedSegment] = {}
        for group in group_into_objects(enumerate(pieces), lambda numbered: numbered[1][1].nbytes):
            uuid = table.world.ids.new_uuid()
            parts = stage_group(storage, table.uuid, uuid, [part for _, part in group], options)
            by_number |= {number: part for (number, _), part in zip(group, parts, strict=True)}
        segments = [by_number[number] for number in sorted(by_number)]
    checks = branch_state.parsed.checks
    staged = StagedRows(table.uuid, branch_state.schema_id, tuple(segments), staged_ms, checks=checks)
    return mark_as_rewrite(staged) if rewrites else staged


def list_if_small(
    pieces: Iterator[tuple[int, pa.Table]], bytes_max: int
) -> list[tuple[int, pa.Table]] | Iterator[tuple[int, pa.Table]]:
    """Return all pieces as a list if they have at most ``bytes_max`` bytes, else as an iterator."""
    buffered, num_bytes = [], 0
    for piece in pieces:
        buffered.append(piece)
        num_bytes += piece[1].nbytes
        if num_bytes > bytes_max:
            return _drain(buffered, pieces)
    return buffered


def _drain(
    buffered: list[tuple[int, pa.Table]], rest: Iterator[tuple[int, pa.Table]]
) -> Iterator[tuple[int, pa.Table]]:
    while buffered:
        yield buffered.pop(0)  # releases the piece
    yield from rest


def _read_pieces(
    table: TableHandle, branch_state: TableState, added: Mapping[int, OffsetRange]
) -> Iterator[tuple[int, pa.Table]]:
    records = InlineRecords(table.storage, branch_state.table_uuid)
    for bucket, offsets in added.items():
        waiting: list[pa.RecordBatch] = []
        num_bytes = 0
        for log_batch in read_split(
            table.storage, plan_range(branch_state, bucket, offsets), branch_state.schema, records=records
        ):
            if not log_batch.batch.num_rows:
                continue
            waiting.append(log_batch.batch)
            num_bytes += log_batch.batch.nbytes
            if num_bytes >= PIECE_BYTES:
                yield bucket, pa.Table.from_batches(waiting)
                waiting, num_bytes = [], 0
        if waiting:
            yield bucket, pa.Table.from_batches(waiting)
