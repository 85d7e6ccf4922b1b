"""One round of rows from the log into a lake: its plan from the lake's newest snapshot, and its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.core.offset_runs import OffsetRuns
from streamhouse_spark.core.values import dataclass
from streamhouse_spark.lake.model.values import NEVER_TRUNCATED, LakeFile, LakeSnapshot, WriteContext
from streamhouse_spark.lake.table import LakeTable
from streamhouse_spark.lake.tiering.plan import (
    KEYED_ROUND_BYTES_PER_BUCKET_MAX,
    ROUND_BYTES_PER_BUCKET_MAX,
    TieringTask,
    bases_of,
    plan_tiering,
    round_begin,
    rows_to_delete,
)
from streamhouse_spark.log.commits.actions import KvSnapshot
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.segments.scan import snapshot_split, whole_range

RunTasks = Callable[[Sequence[TieringTask]], Sequence[Sequence[LakeFile]]]
"""Runs tasks anywhere, in any order, and returns their files in the order of the tasks."""


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """The rows of one round."""

    state: TableState
    offsets: Mapping[int, int]
    """The lake's offsets before the round."""
    starts: Mapping[int, int]
    new: Mapping[int, int]
    """The lake's offsets behind the round."""
    ranges: Mapping[int, OffsetRange]
    bases: Mapping[int, KvSnapshot]
    deleted: Mapping[int, OffsetRuns]

    @property
    def keeps_rows(self) -> bool:
        """Whether the lake's rows stay: the table was not truncated since."""
        return self.state.begins_at(self.starts)

    @property
    def num_tasks(self) -> int:
        return len(self.ranges) + len(self.bases)

    @property
    def is_due(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.num_tasks or self.deleted) or not self.keeps_rows

    def reaches(self, targets: Mapping[int, int]) -> bool:
        return all(self.new.get(bucket, 0) >= end for bucket, end in targets.items())


def plan_round(
    state: TableState,
    newest: LakeSnapshot | None,
    targets: Mapping[int, int],
    *,
    bytes_per_bucket_max: int = ROUND_BYTES_PER_BUCKET_MAX,
) -> RoundPlan:
    """Plan the round that follows a snapshot. Raises as `plan_tiering` and `round_begin` do."""
    offsets, starts = (newest.offsets, newest.starts) if newest is not None else ({}, NEVER_TRUNCATED)
    begin = round_begin(state, newest)
    bases = bases_of(state, begin)
    is_keyed, bytes_max = bool(state.primary_key), bytes_per_bucket_max
    if is_keyed:
        bytes_max = min(bytes_max, KEYED_ROUND_BYTES_PER_BUCKET_MAX)
    buckets = {bucket: log for bucket, log in state.buckets.items() if bucket not in bases}
    ranges = plan_tiering(buckets, begin, targets, table=state.name, bytes_max=bytes_max, cuts_segments=is_keyed)
    new = {**begin, **{bucket: wanted.end for bucket, wanted in ranges.items()}}
    new |= {bucket: base.offset for bucket, base in bases.items()}
    return RoundPlan(state, offsets, starts, new, ranges, bases, rows_to_delete(state, newest, new))


def write_round(lake: LakeTable, context: WriteContext, plan: RoundPlan, run_tasks: RunTasks) -> list[LakeFile]:
    """Write the round's files, those of deleted positions too. Durable when this returns, visible to nobody."""
    state = plan.state
    # A round that drops all rows of the lake looks for no older ones.
    is_looked_up = bool(state.primary_key) and plan.keeps_rows
    live = lake.live_files(context, list(plan.ranges)) if is_looked_up else {}
    tasks = [
        TieringTask(whole_range(state, bucket, wanted), context, live.get(bucket, ()))
        for bucket, wanted in plan.ranges.items()
    ]
    tasks += [
        TieringTask(snapshot_split(state, base), context, base=OffsetRange(base.begins, base.offset))
        for base in plan.bases.values()
    ]
    files = [file for written in run_tasks(tasks) for file in written]
    if plan.deleted:
        files += lake.delete_rows(context, plan.deleted, files, with_older=plan.keeps_rows)
    return files
