"""Publication of a branch of a primary-key table: the net change of each key that the branch changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.keys.keyed_batch import KeyedBatch
from streamhouse_spark.kv.conflict_detection import ConflictChecker
from streamhouse_spark.kv.read_version import ReadVersion
from streamhouse_spark.kv.table_config import engine_of
from streamhouse_spark.kv.upsert_commit import UpsertCommitter
from streamhouse_spark.log.commits.actions import Action
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.segments.reader import InlineRecords
from streamhouse_spark.log.segments.scan import plan_range, read_split
from streamhouse_spark.lookup.lookup import Lookup
from streamhouse_spark.query.projection import Projection
from streamhouse_spark.read.read_snapshot import take_latest_snapshot
from streamhouse_spark.read.union_read import read_snapshot_rows
from streamhouse_spark.table.branching.branch_diff import (
    BranchChanges,
    Publication,
    describe_divergence,
    report_publication,
    require_same_branch,
    seal_branch,
)
from streamhouse_spark.write.upsert import PrimaryKeySchema, PrimaryKeyTable

LOOKUP_ROWS: Final = 1 << 20
"""Keys per lookup."""


@dataclass(frozen=True, slots=True)
class _NetChange:
    """The net changes: rows by bucket and key, with deleted keys marked."""

    batches: Mapping[int, KeyedBatch]
    num_written: int
    num_deleted: int | None
    """None if the branch was truncated: the table's number of keys is not known here."""


def publish_keyed(table: TableHandle, changes: BranchChanges, log: CommitLog) -> Publication:
    """Publish the branch; see `publication`."""
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

    writer = UpsertCommitter(table.log, keyed.stager(shape, engine), make_end_actions)
    try:
        _, committed = writer.write(
            net.batches, transaction=changes.transaction, overwrite=changes.is_emptied, read=_make_read_version(changes)
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
    """Raise `CommitConflictError` if the changes conflict with the table's latest state, before the
    branch is sealed.
    """
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
    lookup, parts = Lookup(PrimaryKeyTable(branch)), range(0, keys.num_rows, LOOKUP_ROWS)
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
