"""Reads commit records from newest to oldest, with display timestamps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.core.warehouse_layout import commit_key
from streamhouse_spark.errors import ObjectNotFoundError
from streamhouse_spark.log import actions as act
from streamhouse_spark.log.actions import SetArchive
from streamhouse_spark.log.deletion_vectors import DeleteRows, PartitionDropRows
from streamhouse_spark.log.record import Record, read_record
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import WINDOW, Prefetch

LOGGED_ACTIONS: Final = (
    act.Append,
    act.Replace,
    act.Trim,
    act.KvSnapshot,
    act.TieredSnapshot,
    act.ResetLake,
    act.SetProperties,
    act.Rename,
    act.MarkOrphans,
    act.ConfirmDeleted,
    act.ForgetTransactions,
    act.ExpireTransactions,
    act.CommitConsumerOffset,
    act.Tag,
    act.DropTag,
    SetArchive,
    PartitionDropRows,
)
"""Actions that change neither columns nor rows, except for changes that are in the log. A `TieredSnapshot` may be one
from which partitions were dropped; its ``dropped_rows`` shows this.
"""


@dataclass(frozen=True, slots=True)
class Commit:
    record: Record
    time_us: int
    """The display time, strictly increasing from commit to commit."""


def compute_display_times_us(times_ms: Sequence[int], after_us: int | None = None) -> npt.NDArray[np.int64]:
    """Return the display times of consecutive commits: the commit time, but at least 1 µs after the previous one.

    ``after_us`` is the display time of the commit before them.
    """
    steps = np.arange(len(times_ms), dtype=np.int64)
    times_us = np.array(times_ms, np.int64) * 1000 - steps
    if after_us is not None and len(times_us):
        times_us[0] = max(int(times_us[0]), after_us + 1)
    display_times_us: npt.NDArray[np.int64] = np.maximum.accumulate(times_us) + steps
    return display_times_us


def iter_records_backwards(storage: Storage, state: TableState) -> Iterator[Record]:
    """Yield the retained records from the state's last record backwards.

    Each record names the attempt before it. A record that a slow writer put under a deleted number is therefore
    recognised without reading the low watermark.
    """
    prefetch = Prefetch(storage)
    expected: str | None = state.attempt
    for number in range(state.version, 0, -1):
        if (state.version - number) % WINDOW == 0:
            prefetch.expect(commit_key(state.table_uuid, n) for n in range(number, max(0, number - WINDOW), -1))
        try:
            record, _ = read_record(storage, state.table_uuid, number, prefetch)
        except ObjectNotFoundError:
            return
        if expected is not None and record.attempt != expected:
            return
        expected = record.after
        yield record


def _may_have_later_time(record: Record, newer: list[Record], first: int) -> bool:
    """Return whether display times of later records do not depend on the records before this one."""
    return not newer or record.time_ms < newer[-1].time_ms or first - record.number > WINDOW


def read_commits(
    storage: Storage, state: TableState, first: int, last: int, after_us: int | None = None
) -> tuple[list[Commit], int]:
    """Return the commits from ``first`` to ``last``, with display times, and the first record that was reached.

    The first record that was reached is later than ``first`` if earlier records have expired. Also reads the records
    before ``first`` on which the display times depend, unless ``after_us`` is given.
    """
    records: list[Record] = []
    reached = state.version + 1
    for record in iter_records_backwards(storage, state):
        reached = record.number
        if reached > last:
            continue
        is_before = reached < first
        if is_before and (after_us is not None or _may_have_later_time(record, records, first)):
            break
        records.append(record)
    records.reverse()
    if not records:
        return [], reached
    num_skipped = max(0, first - records[0].number)
    if after_us is not None:
        records, num_skipped = records[num_skipped:], 0
    times_us = compute_display_times_us([record.time_ms for record in records], after_us).tolist()
    return [Commit(record, time_us) for record, time_us in zip(records, times_us, strict=True)][num_skipped:], reached


def find_partition_drop(actions: Sequence[act.Action]) -> PartitionDropRows | None:
    """Return the first action that records rows of dropped partitions; None if there is none."""
    return next((action for action in actions if isinstance(action, PartitionDropRows)), None)


def iter_deletions(record: Record) -> Iterator[DeleteRows]:
    """Yield the deletions of a record, including the rows of dropped partitions that it names."""
    for action in (action for part in record.attempts for action in part.actions):
        if isinstance(action, DeleteRows):
            yield action
        elif isinstance(action, PartitionDropRows):
            yield action.deletion


def has_dropped_rows(
    before: act.TieredSnapshot | None, after: act.TieredSnapshot, deleted: Mapping[int, OffsetSet]
) -> bool:
    """Return whether rows of the snapshot ``before`` are missing from the next snapshot, but no record deleted them.

    No truncation lies between the snapshots. ``deleted`` are the known rows that records deleted. A round that only
    tiers rows of earlier records omits the deleted rows among them, and applies no newer record.
    """
    dropped_rows, applied_through, offsets = (
        (before.dropped_rows, before.applied_through, before.offsets) if before else (0, 0, {})
    )
    if after.applied_through != applied_through:
        return False
    ranges = {bucket: (offsets.get(bucket, 0), end) for bucket, end in after.offsets.items()}
    new = [deleted[b].within(OffsetRange(start, end)) for b, (start, end) in ranges.items() if b in deleted]
    return after.dropped_rows - dropped_rows > sum(runs.num_rows for runs in new)


class RecordDeletion(NamedTuple):
    """The rows that one record deleted."""

    commit: int
    rows: Mapping[int, OffsetSet]
    """Bucket → offsets."""
    num_file_rows: int
    """Number of deleted rows of lake files, which have no offsets."""


def has_dropped_adopted_rows(
    before: act.TieredSnapshot | None,
    after: act.TieredSnapshot,
    deleted: Mapping[int, OffsetSet],
    named: Iterable[RecordDeletion],
) -> bool:
    """Return the result of `has_dropped_rows` for a table that adopted a lake table.

    Adopted rows have no offsets. A missing row must therefore be deleted by a record that ``after`` is the first
    snapshot to apply, or be one of its new rows. ``named`` contains all records after those that ``before`` applied.
    Rows of dropped partitions without offsets are counted separately.
    """
    if after.dropped_without_offsets > (before.dropped_without_offsets if before is not None else 0):
        return True
    dropped_rows, applied_through, offsets = (
        (before.dropped_rows, before.applied_through, before.offsets) if before else (0, 0, {})
    )
    ranges = {bucket: OffsetRange(offsets.get(bucket, 0), after.offsets.get(bucket, 0)) for bucket in deleted}
    parts = {bucket: [runs.within(ranges[bucket])] for bucket, runs in deleted.items()}
    newer = [deletion for deletion in named if applied_through < deletion.commit <= after.applied_through]
    for bucket, runs in (item for deletion in newer for item in deletion.rows.items()):
        parts.setdefault(bucket, []).append(runs)
    num_rows = sum(OffsetSet.merged(runs).num_rows for runs in parts.values())
    return after.dropped_rows - dropped_rows > num_rows + sum(deletion.num_file_rows for deletion in newer)
