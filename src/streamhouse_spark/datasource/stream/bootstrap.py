"""Initial rows of a changelog stream whose log was trimmed after the table's first change.

The log of a primary-key table is trimmed at most up to its KV snapshots, so every trimmed bucket has a KV snapshot. A
stream from the beginning emits the rows of the snapshots as inserts, followed by every change from exactly the
snapshots' offsets. These offsets identify the snapshots, because a bucket never has two KV snapshots at one offset. A
snapshot that was replaced is found in the state at the commit where the stream started. Garbage collection deletes its
files and the records that name them at least a day later.
"""

from __future__ import annotations

from dataclasses import replace

from streamhouse_spark.config.spark_options import FULL, StreamReadOptions
from streamhouse_spark.datasource.read.read_target import resolve_starting_offsets
from streamhouse_spark.datasource.stream.stream_offset import BootstrapPosition, StreamOffset, last_truncation
from streamhouse_spark.errors import CorruptDataError, SnapshotExpiredError
from streamhouse_spark.log.actions import KvSnapshot
from streamhouse_spark.log.archive.pages import first_change_offsets
from streamhouse_spark.log.history import require_retained_segments, state_with_snapshots
from streamhouse_spark.log.segments.scan import LogSplit, plan_snapshot
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.table_handle import TableHandle


def initial_offset(state: TableState, options: StreamReadOptions, storage: Storage | None = None) -> StreamOffset:
    """Return the start position of a new stream. With ``storage``, times are also looked up in the change archive."""
    if not needs_bootstrap(state, options):
        offsets = resolve_starting_offsets(state, options, storage)
        return StreamOffset(state.table_uuid, offsets, offsets, last_truncation(state), history=state.anchors.rows)
    snapshots = state.snapshots
    offsets = {b: snapshots[b].offset if b in snapshots else log.start for b, log in state.buckets.items()}
    num_files = sum(len(snapshot.segments) for snapshot in snapshots.values())
    rows = BootstrapPosition(state.version, num_files) if num_files else None
    return StreamOffset(state.table_uuid, offsets, offsets, last_truncation(state), rows, state.anchors.rows)


def needs_bootstrap(state: TableState, options: StreamReadOptions) -> bool:
    """Return whether a new stream starts with initial rows. It does if it needs every change, and some changes are in
    neither log nor archive.
    """
    if not state.primary_key or options.starting_offsets != FULL or options.starting_timestamp_ms is not None:
        return False
    return any(start > state.first_offset(bucket) for bucket, start in first_change_offsets(state).items())


def find_bootstrap_files(table: TableHandle, newest: TableState, begin: StreamOffset) -> list[LogSplit]:
    """Return the files of ``begin.rows`` in order. The table must not have been truncated since.

    Raises `SnapshotExpiredError` if files were deleted, and `CorruptDataError` if they do not match the checkpoint.
    """
    assert begin.rows is not None
    state = newest
    snapshots = _snapshots_at(state, begin)
    if snapshots is None:
        try:
            state = state_with_snapshots(table.log, table.storage, begin.rows.commit)
        except SnapshotExpiredError as error:
            raise _expired_error(table.name, error) from error
        snapshots = _snapshots_at(state, begin)
    splits = [plan_snapshot(newest, snapshot) for snapshot in snapshots or ()]
    files = [replace(split, offsets=s.offsets, segments=(s,)) for split in splits for s in split.segments]
    if snapshots is None or len(files) != begin.rows.num_files:
        raise CorruptDataError(
            f"the checkpoint of a stream from {table.name} starts with {begin.rows.num_files} files of rows before "
            f"offsets {dict(begin.offsets)}, but commit {begin.rows.commit} has {len(files)} files; restore the "
            "checkpoint, or start with a new checkpoint"
        )
    try:
        require_retained_segments(table.log, state, [segment for file in files for segment in file.segments])
    except SnapshotExpiredError as error:
        raise _expired_error(table.name, error) from error
    return files


def _snapshots_at(state: TableState, begin: StreamOffset) -> list[KvSnapshot] | None:
    """Return the KV snapshots at these offsets, ordered by bucket. Returns None if the state has other snapshots."""
    snapshots = []
    for bucket, offset in sorted(begin.offsets.items()):
        snapshot = state.snapshots.get(bucket)
        if offset == state.first_offset(bucket):
            continue  # a KV snapshot contains at least one change, so there is none at the first offset
        if snapshot is None or snapshot.offset != offset:
            return None
        snapshots.append(snapshot)
    return snapshots


def _expired_error(table_name: str, error: SnapshotExpiredError) -> SnapshotExpiredError:
    return SnapshotExpiredError(
        f"{table_name}: initial rows of this stream were deleted before the stream read them; start it with a new "
        f"checkpointLocation, or continue without these rows with failOnDataLoss=false ({error})"
    )
