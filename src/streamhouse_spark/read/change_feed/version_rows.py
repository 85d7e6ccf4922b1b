"""Rows of a table with a primary key that a commit removed all at once: each is a deletion.

The log has no change for them. They are those of the version before, from lake, snapshots by key and log, as any read
of that version finds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from streamhouse_spark.core.offset_ranges import OffsetRuns
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.log.commit_reader import Commit
from streamhouse_spark.log.commits.history import require_kept
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.read.change_feed.feed_validation import not_row_level_error
from streamhouse_spark.read.commit_ranges import CommitRange, CommitRanges
from streamhouse_spark.read.planner import Pruning, ScanRequest, plan_pin
from streamhouse_spark.read.read_snapshot import take_latest_snapshot
from streamhouse_spark.read.scan_tasks import (
    ChangesScanTask,
    KeyedScanTask,
    LakeScanTask,
    ScanPlan,
    VersionRowsScanTask,
    log_splits,
)
from streamhouse_spark.schema.table_schema import TableSchema


def plan_version_tasks(
    table: TableHandle, before: TableState, schema: TableSchema, commit: Commit, pruning: Pruning
) -> Iterator[ChangesScanTask]:
    """Give the rows of the state before a commit, by the columns of a schema, as deletions of the commit.

    Raises `SnapshotExpiredError` where they are no longer kept, `ChangesUnavailableError` where columns of the key have
    other names.
    """
    if not {*before.primary_key, *before.parsed.bucket_key} <= {*schema.names}:
        raise not_row_level_error(
            before, commit.record, "removed all rows at once, whose key had a column of another name"
        )
    newest = 1 + max(before.schemas)
    with_columns = replace(before, schema_id=newest, schemas={**before.schemas, newest: schema})
    plan = plan_pin(table, take_latest_snapshot(with_columns), ScanRequest(None)).plan(table)
    require_kept(table.log, before, [segment for split in log_splits(plan) for segment in split.segments])
    allowed = pruning.buckets(before)
    parts: dict[int | None, list[KeyedScanTask | LakeScanTask]] = {}
    for piece in plan.pieces:
        assert isinstance(piece, KeyedScanTask | LakeScanTask)
        parts.setdefault(piece.bucket, []).append(piece)
    for bucket, pieces in parts.items():
        if allowed is None or bucket is None or bucket in allowed:
            rows = VersionRowsScanTask(
                bucket, plan.with_pieces(pieces), sum(_num_rows(piece, plan) for piece in pieces)
            )
            version = CommitRange(OffsetRuns.dense(0, rows.num_rows), commit.record.number, commit.time_us)
            yield ChangesScanTask(rows, CommitRanges.of([version]), is_deleted=True)


def _num_rows(piece: KeyedScanTask | LakeScanTask, plan: ScanPlan) -> int:
    """Return how many rows a piece has at most."""
    if isinstance(piece, LakeScanTask):
        return piece.split.num_rows
    if piece.lake is not None:
        return piece.lake.num_rows
    if piece.base is not None:
        return sum(segment.num_rows for segment in piece.base.segments)
    tails = plan.keyed.tails if plan.keyed is not None else ()
    return sum(len(tail.offsets) for tail in tails if tail.bucket == piece.bucket)
