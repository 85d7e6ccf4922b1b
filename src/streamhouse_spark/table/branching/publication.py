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

import pyarrow as pa

from streamhouse_spark.config.properties import ADOPTED
from streamhouse_spark.core.paths import parse_branch
from streamhouse_spark.core.post_commit import log_post_commit_errors
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import InvalidOptionError, TableNotFoundError, quote
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.kv.read_version import ReadVersion
from streamhouse_spark.log.commits.actions import Action
from streamhouse_spark.log.commits.checkpoint import read_tagged
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.delete_vectors import count_rows, have_same_files
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.lifecycle.branches import find_branch, find_publication
from streamhouse_spark.log.segments.packed_objects import group_into_objects, stage_group
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
from streamhouse_spark.table.branching.branch_diff import (
    BranchChanges,
    Publication,
    describe_divergence,
    report_publication,
    require_same_branch,
    seal_branch,
)
from streamhouse_spark.table.branching.branches import end_log, open_log
from streamhouse_spark.table.row_deletion import commit_with_conflict_check, make_delete_actions

logger = logging.getLogger(__name__)

MAIN: Final = "main"
PIECE_BYTES: Final = 64 << 20
"""Bytes of rows of one bucket that are in memory at once and become one segment."""


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
    if base.primary_key:
        from streamhouse_spark.table.branching.keyed_publication import publish_keyed as publish
    else:
        publish = _publish
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
    committed = commit_with_conflict_check(
        table, deleted, read, plan, transaction=transaction, staged_ms=staged.staged_ms
    )
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
    if changes.files and not have_same_files(state.lake_history, before, now):
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
    if rewrites:
        segments = [replace(piece, segment=replace(piece.segment, rewrites=True)) for piece in segments]
    return StagedRows(table.uuid, branch_state.schema_id, tuple(segments), staged_ms, checks=branch_state.parsed.checks)


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
