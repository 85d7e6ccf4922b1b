"""Publication of a branch: its changes are committed to the table, all or none, and the branch ends.

First a record in the branch's log seals the branch, so that no write to it is acknowledged and then lost. **Commit
point:** the record in the table's log with the changes, which also removes the name of the branch. It is a transaction,
so publishing again, after a crash or concurrently, has no effect. A crash between the two records leaves a sealed
branch, which can be read, published and dropped.

If the table changed since the branch was created, the changes must not conflict:

* The branch of a log table may only have appended rows.
* In a primary-key table, no key that the branch changed may have changed, and no statement may have read rows that
  changed on the other side (`kv.conflict_detection`). The published changes are the net change of each key.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.config.table_properties import ADOPTED, BRANCH, BranchMetadata
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.post_commit import log_post_commit_errors
from streamhouse_spark.core.types import OffsetRange, Transaction
from streamhouse_spark.core.warehouse_layout import parse_branch
from streamhouse_spark.dml.conflict_check import commit_with_conflict_check, has_dropped_partitions, make_delete_actions
from streamhouse_spark.dml.rewrite import mark_as_rewrite
from streamhouse_spark.errors import CommitConflictError, InvalidOptionError, TableNotFoundError, quote
from streamhouse_spark.expressions.filters import Projection
from streamhouse_spark.keys.keyed_batch import KeyedBatch
from streamhouse_spark.kv.conflict_detection import ConflictChecker
from streamhouse_spark.kv.primary_key_properties import engine_of
from streamhouse_spark.kv.upsert_commit import commit_upsert
from streamhouse_spark.log.actions import Action, DropTag, SetProperties
from streamhouse_spark.log.append_commit import ends_after_truncation, make_append_action, make_truncate_actions
from streamhouse_spark.log.catalog.branches import Branch, find_branch, find_publication, publication_id, require_branch
from streamhouse_spark.log.checkpoint import read_tagged
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.deletion_vectors import FileRows, count_rows, union_deleted_file_rows, without_rows
from streamhouse_spark.log.group_commit import CommitResult
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.log.segments.multi_bucket_writer import group_into_objects, stage_shared_object
from streamhouse_spark.log.segments.reader import InlineRecords
from streamhouse_spark.log.segments.scan import plan_range, read_split
from streamhouse_spark.log.segments.writer import StagedSegment, stage_inline
from streamhouse_spark.log.staging import INLINE_BYTES_MAX, StagedRows, inline_bytes_total
from streamhouse_spark.log.state import TableState
from streamhouse_spark.lookup.batch_lookup import BatchLookup
from streamhouse_spark.read.read_snapshot import take_latest_snapshot
from streamhouse_spark.read.snapshot_reader import read_snapshot_rows
from streamhouse_spark.table.versioning.branches import end_branch_log, open_branch_log
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.write.auto_compaction import compact_if_due
from streamhouse_spark.write.upsert import PrimaryKeySchema, PrimaryKeyTable

LOOKUP_ROWS: Final = 1 << 20
"""Keys per lookup."""
logger = logging.getLogger(__name__)
MAIN: Final = "main"
SEGMENT_BYTES: Final = 64 << 20
"""Bytes of rows of a bucket that are read into memory and staged as one segment."""


@dataclass(frozen=True, slots=True)
class Publication:
    """The result of publishing a branch."""

    table: str
    branch: str
    version: int
    """The commit of the table with the changes of the branch."""
    rows_written: int | None = None
    """Rows that were appended or upserted; None if the branch was published before."""
    rows_deleted: int | None = None
    """Rows that were deleted; None if the branch was published before, or truncated a primary-key or adopted table."""


@dataclass(frozen=True, slots=True)
class BranchChanges:
    """The changes of a branch from its creation to a state."""

    branch: Branch
    base: TableState
    """The state of the table from which the branch was created."""
    branch_state: TableState

    @property
    def is_truncated(self) -> bool:
        """Whether the branch was truncated or overwritten."""
        return self.branch_state.first_offsets != self.base.first_offsets

    @property
    def deleted(self) -> dict[int, OffsetSet]:
        """Bucket → offsets of table rows that the branch deleted individually."""
        deleted = self.branch_state.deleted.items()
        table_rows = {b: runs.within(OffsetRange(0, self.base.buckets[b].end)) for b, runs in deleted}
        return without_rows(table_rows, self.base.deleted)

    @property
    def files(self) -> FileRows:
        """Lake file name → positions of table rows without offsets that the branch deleted."""
        base_files = union_deleted_file_rows(self.base.deletions)
        branch_files = union_deleted_file_rows(self.branch_state.deletions)
        return without_rows(branch_files, base_files)

    @property
    def added(self) -> dict[int, OffsetRange]:
        """Bucket → offsets of the rows or changes that were written to the branch."""
        added = {}
        for bucket, log in self.branch_state.buckets.items():
            start = max(self.base.buckets[bucket].end, self.branch_state.first_offset(bucket))
            if start < log.end:
                added[bucket] = OffsetRange(start, log.end)
        return added

    @property
    def is_additive(self) -> bool:
        """Whether a branch of a log table only appended rows."""
        return not (self.deleted or self.files or self.is_truncated)

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
            f"{self.base.version}, from which the branch was created; nothing was published. Drop the branch, create "
            "it again, and write the rows again"
        )


def require_same_branch(state: TableState, branch: Branch) -> None:
    """Raise `TableNotFoundError` if the branch was dropped, also if another branch has its name."""
    if branch.tag not in state.tags:
        require_branch(state, branch.name)
        raise TableNotFoundError(f"branch {branch.name!r} of {state.name} was dropped; another branch has its name")


def describe_divergence(state: TableState, base: TableState) -> str | None:
    """Return how the rows of a table changed since ``base``, or None if they did not change."""
    if state.first_offsets != base.first_offsets:
        return "the table was truncated or overwritten"
    if state.ends != base.ends:
        return "rows of the table were added or changed"
    if any(deletion.commit > base.version for deletion in state.deletions):
        return "rows of the table were deleted"
    if has_dropped_partitions(state, ReadVersion.of(base)):
        return "a partition of the table was dropped"
    return None


def seal_branch(changes: BranchChanges, log: CommitLog) -> BranchChanges:
    """Seal the branch against writes, and return its final changes. **Commit point:** a record in the branch's log."""

    def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
        if state.dropped:
            raise TableNotFoundError(f"branch {changes.branch.name!r} of {changes.base.name} was dropped concurrently")
        mark = BranchMetadata.of_properties(state.properties)
        if mark is None or mark.is_sealed:
            return ()
        seal = BranchMetadata(mark.of, mark.name, mark.version, is_sealed=True)
        return (SetProperties({BRANCH: seal.to_text()}),)

    return BranchChanges(changes.branch, changes.base, log.commit(plan).state)


def report_publication(
    table: TableHandle, changes: BranchChanges, committed: CommitResult, written: int, deleted: int | None
) -> Publication:
    """Return the result of a publication, and compact inline rows if due."""
    if committed.duplicate_of is not None:
        return Publication(table.name, changes.branch.name, committed.duplicate_of.commit)
    if committed.is_first:
        compact_if_due(table, committed.state)
    return Publication(table.name, changes.branch.name, committed.state.version, written, deleted)


@dataclass(frozen=True, slots=True)
class _NetChange:
    """The net change of each key."""

    batches: Mapping[int, KeyedBatch]
    num_written: int
    num_deleted: int | None
    """None if the branch was truncated, because the number of keys in the table is unknown."""


def _publish_keyed(table: TableHandle, changes: BranchChanges, log: CommitLog) -> Publication:
    """Publish a branch of a primary-key table."""
    keyed = PrimaryKeyTable(table)
    _require_same_columns(table.refresh(), changes)
    keyed_schema = keyed.keyed_schema(table.state)
    net = _compute_net_change(table, keyed_schema, changes, log)
    _check_conflicts(table, keyed_schema, changes, net)
    before, changes = changes.branch_state, seal_branch(changes, log)
    if changes.branch_state.ends != before.ends:
        net = _compute_net_change(table, keyed_schema, changes, log)
    engine = engine_of(replace(keyed_schema.properties, identity=None), keyed_schema.schema, None)

    def make_end_actions(state: TableState) -> Sequence[Action]:
        _require_same_columns(state, changes)
        return changes.make_end_actions(state)

    try:
        _, committed = commit_upsert(
            table.log,
            keyed.stager(keyed_schema, engine),
            net.batches,
            transaction=changes.transaction,
            overwrite=changes.is_truncated,
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
    """Return the version that the branch read, without a scope if all of its writes were by key."""
    rewrites = any(
        segment.rewrites and segment.end_offset > changes.base.buckets[bucket].end
        for bucket, log in changes.branch_state.buckets.items()
        for segment in log.segments
    )
    read = replace(ReadVersion.of(changes.base), is_strict=changes.is_truncated)
    return read if rewrites else replace(read, scope=_reads_nothing)


def _reads_nothing(_state: TableState, _rows: pa.RecordBatch) -> bool:
    return False


def _check_conflicts(
    table: TableHandle, keyed_schema: PrimaryKeySchema, changes: BranchChanges, net: _NetChange
) -> None:
    """Raise `CommitConflictError` if the changes conflict with the latest state of the table."""
    if describe_divergence(table.state, changes.base) is None:
        return
    try:
        ConflictChecker(_make_read_version(changes), table.storage, keyed_schema.layout).check(table.state, net.batches)
    except CommitConflictError as error:
        raise _conflict_error(changes, error) from error


def _conflict_error(changes: BranchChanges, error: CommitConflictError) -> CommitConflictError:
    why = str(error).partition(" was running: ")[2].partition("; nothing was")[0]
    return changes.conflict_error(f"rows that the branch read or wrote changed ({why or error})")


def _compute_net_change(
    table: TableHandle, keyed_schema: PrimaryKeySchema, changes: BranchChanges, log: CommitLog
) -> _NetChange:
    branch = TableHandle(table.storage, table.settings, table.path.of_branch(changes.branch.name), log, table.world)
    if changes.is_truncated:
        rows = read_snapshot_rows(
            branch, take_latest_snapshot(changes.branch_state), Projection.of(changes.branch_state.schema, None, None)
        )
        deleted = np.zeros(rows.num_rows, np.bool_)
        return _NetChange(keyed_schema.batches(rows, deleted), rows.num_rows, None)
    keys = _list_changed_keys(table, keyed_schema, changes)
    lookup, parts = BatchLookup(PrimaryKeyTable(branch)), range(0, keys.num_rows, LOOKUP_ROWS)
    looked_up_rows = [lookup.rows(keys.slice(start, LOOKUP_ROWS), max_staleness_ms=0) for start in parts]
    if not looked_up_rows:
        return _NetChange({}, 0, 0)
    rows = pa.concat_tables(looked_up_rows)
    exists = rows.column(rows.num_columns - 1)
    deleted = pc.invert(exists).to_numpy()
    batches = keyed_schema.batches(rows.select(list(keyed_schema.schema.names)), deleted)
    return _NetChange(batches, int((~deleted).sum()), int(deleted.sum()))


def _list_changed_keys(table: TableHandle, keyed_schema: PrimaryKeySchema, changes: BranchChanges) -> pa.Table:
    """Return the distinct keys that the branch changed."""
    branch_state, names = changes.branch_state, list(keyed_schema.key_schema.names)
    records = InlineRecords(table.storage, branch_state.table_uuid)
    parts = [keyed_schema.key_schema.arrow.empty_table()]
    for bucket, offsets in changes.added.items():
        split = plan_range(branch_state, bucket, offsets)
        log_batches = read_split(
            table.storage, split, branch_state.written_schema(branch_state.schema_id), names, records=records
        )
        parts += [pa.Table.from_batches([batch.batch]).cast(parts[0].schema) for batch in log_batches]
    keys = pa.concat_tables(parts)
    distinct = keys.group_by(names, use_threads=False).aggregate([])
    return distinct.select(names).cast(parts[0].schema)


def fast_forward(table: TableHandle, name: str, *, to: str = MAIN) -> Publication:
    """Publish a branch; see `Table.fast_forward`."""
    if to.strip().lower() != MAIN:
        raise InvalidOptionError(
            f"fast_forward: to is {quote(to)}, expected 'main', the table of the branch; leave it out"
        )
    name = parse_branch(name)
    try:
        return _commit_publication(table, name)
    except TableNotFoundError:  # perhaps published concurrently
        state = table.refresh()
        if find_branch(state, name) is not None or (entry := find_publication(state, name)) is None:
            raise
        return Publication(table.name, name, entry.commit)


def _commit_publication(table: TableHandle, name: str) -> Publication:
    branch, log = open_branch_log(table, name)
    base = read_tagged(table.storage, table.uuid, branch.base.version, branch.base.uuid)
    publish = _publish_keyed if base.primary_key else _publish
    publication = publish(table, BranchChanges(branch, base, log.state), log)
    with log_post_commit_errors(logger, "ending the log of branch", name):
        end_branch_log(log)
    return publication


def _publish(table: TableHandle, changes: BranchChanges, log: CommitLog) -> Publication:
    """Publish a branch of a log table."""
    _require_publishable(table.state, changes)
    changes = seal_branch(changes, log)
    deleted, files, is_truncated = changes.deleted, changes.files, changes.is_truncated
    staged = stage_branch_rows(table, changes.branch_state, changes.added, rewrites=bool(deleted or files))

    def plan(state: TableState, time_ms: int, read: ReadVersion) -> Sequence[Action]:
        _require_publishable(state, changes)
        truncate = make_truncate_actions(state) if is_truncated else ()
        deletions = make_delete_actions(state, deleted, read, files) if (deleted or files) and not is_truncated else ()
        added = (
            (make_append_action(state, staged, time_ms, ends_after_truncation(state, truncate)),)
            if staged.segments
            else ()
        )
        return (*truncate, *deletions, *added, *changes.make_end_actions(state))

    read, transaction = ReadVersion.of(changes.base), changes.transaction
    committed = commit_with_conflict_check(table, deleted, read, plan, transaction=transaction, staged=staged)
    num_deleted: int | None = count_rows(deleted) + count_rows(files)
    if is_truncated:
        num_deleted = None if ADOPTED in changes.base.properties else changes.base.num_rows
    return report_publication(table, changes, committed, staged.num_rows, num_deleted)


def _require_publishable(state: TableState, changes: BranchChanges) -> None:
    """Raise `CommitConflictError` if the changes conflict with the state of the table."""
    require_same_branch(state, changes.branch)
    if changes.is_additive:
        return
    if (why := describe_divergence(state, changes.base)) is not None:
        raise changes.conflict_error(f"{why}, and the branch did not only append rows,")
    base_snapshot, snapshot = (s.lake.snapshot_id if s.lake is not None else None for s in (changes.base, state))
    if changes.files and not state.has_same_lake_files(base_snapshot, snapshot):
        raise changes.conflict_error("lake files with rows that it deleted may have been rewritten")


# -- the rows of a branch ----------------------------------------------------------------------------------------------


def stage_branch_rows(
    table: TableHandle, branch_state: TableState, added: Mapping[int, OffsetRange], *, rewrites: bool
) -> StagedRows:
    """Stage the live rows that were added to a branch. They are durable when this returns.

    Rows keep their buckets and their order. The branch validated its constraints and filled in missing columns. With
    ``rewrites``, the rows are marked as written by an operation that read the table.
    """
    storage, options, staged_ms = table.storage, table.segment_options(branch_state), table.storage.now_ms()
    chunks = list_if_small(
        _read_chunks(table, branch_state, added), inline_bytes_total(INLINE_BYTES_MAX, branch_state.num_buckets)
    )
    if isinstance(chunks, list):
        segments = [stage_inline(rows, bucket, options) for bucket, rows in chunks]
    else:
        by_number: dict[int, StagedSegment] = {}
        for group in group_into_objects(enumerate(chunks), lambda numbered: numbered[1][1].nbytes):
            uuid = table.world.ids.new_uuid()
            parts = stage_shared_object(storage, table.uuid, uuid, [part for _, part in group], options)
            by_number |= {number: part for (number, _), part in zip(group, parts, strict=True)}
        segments = [by_number[number] for number in sorted(by_number)]
    checks = branch_state.parsed.checks
    staged = StagedRows(table.uuid, branch_state.schema_id, tuple(segments), staged_ms, checks=checks)
    return mark_as_rewrite(staged) if rewrites else staged


def list_if_small(
    chunks: Iterator[tuple[int, pa.Table]], bytes_max: int
) -> list[tuple[int, pa.Table]] | Iterator[tuple[int, pa.Table]]:
    """Return all chunks as a list if they have at most ``bytes_max`` bytes, else as an iterator."""
    buffered, num_bytes = [], 0
    for chunk in chunks:
        buffered.append(chunk)
        num_bytes += chunk[1].nbytes
        if num_bytes > bytes_max:
            return _drain(buffered, chunks)
    return buffered


def _drain(
    buffered: list[tuple[int, pa.Table]], rest: Iterator[tuple[int, pa.Table]]
) -> Iterator[tuple[int, pa.Table]]:
    while buffered:
        yield buffered.pop(0)  # releases the memory of the chunk
    yield from rest


def _read_chunks(
    table: TableHandle, branch_state: TableState, added: Mapping[int, OffsetRange]
) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each bucket in chunks of about `SEGMENT_BYTES`."""
    records = InlineRecords(table.storage, branch_state.table_uuid)
    for bucket, offsets in added.items():
        pending: list[pa.RecordBatch] = []
        num_bytes = 0
        for log_batch in read_split(
            table.storage, plan_range(branch_state, bucket, offsets), branch_state.schema, records=records
        ):
            if not log_batch.batch.num_rows:
                continue
            pending.append(log_batch.batch)
            num_bytes += log_batch.batch.nbytes
            if num_bytes >= SEGMENT_BYTES:
                yield bucket, pa.Table.from_batches(pending)
                pending, num_bytes = [], 0
        if pending:
            yield bucket, pa.Table.from_batches(pending)
