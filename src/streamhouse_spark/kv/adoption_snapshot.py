"""Initial rows of a primary-key table that adopts a lake table.

The rows of a bucket become a key-value snapshot. It follows one change, the insert of the first row, which is trimmed
at once. So a bucket with rows looks like any bucket with a trimmed log: tablets and streams start from the snapshot,
and the bucket can be truncated.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core import arrow_chunking
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.python_values import to_python
from streamhouse_spark.errors import LakeMismatchError
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.keys.key_codec import encode_keys
from streamhouse_spark.kv.kv_snapshots import SEGMENT_BYTES
from streamhouse_spark.log.commits.actions import Action, Append, KvSnapshot, Trim
from streamhouse_spark.log.commits.segment import Segment
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.segments.writer import SegmentOptions, StagedSegment, stage_inline, stage_object
from streamhouse_spark.storage.base import Storage


@dataclass(frozen=True, slots=True)
class BucketBootstrap:
    """The staged rows of one bucket: durable, but not named by a record yet."""

    bucket: int
    first: StagedSegment
    """The insert of the first row."""
    rows: tuple[Segment, ...]


def stage_rows(
    storage: Storage, world: World, state: TableState, options: SegmentOptions, bucket: int, rows: pa.Table
) -> BucketBootstrap:
    """Write the bucket's rows in key order; they are sorted in memory.

    Raises `LakeMismatchError` for a null or duplicate key.
    """
    ordered = _sort_by_key(state, rows)
    change = pa.array([int(ChangeType.INSERT)], pa.int8())
    inserted = pa.Table.from_arrays(
        [change, *ordered.slice(0, 1).columns], schema=state.written_schema(state.schema_id).arrow
    )
    segments: list[Segment] = []
    for part in _split_into_segments(ordered):
        staged = stage_object(storage, state.table_uuid, world.ids.new_uuid(), part, bucket, options)
        first = segments[-1].end_offset if segments else 0
        segments.append(staged.segment.placed(first, state.version, state.time_ms))
    return BucketBootstrap(bucket, stage_inline(inserted, bucket, options), tuple(segments))


def make_adopt_action(state: TableState, time_ms: int, adopted: list[BucketBootstrap]) -> tuple[Action, ...]:
    """Return the actions that give the ``adopted`` rows to a table without changes. Each bucket
    then ends at offset 1.
    """
    if not adopted:
        return ()
    placed = tuple(bucket_rows.first.segment.placed(0, state.version + 1, time_ms) for bucket_rows in adopted)
    return (
        Append(placed, tuple(bucket_rows.first.inline_rows for bucket_rows in adopted)),
        *(KvSnapshot(bucket_rows.bucket, 0, 1, bucket_rows.rows) for bucket_rows in adopted),
        Trim({bucket_rows.bucket: 1 for bucket_rows in adopted}),
    )


def _sort_by_key(state: TableState, rows: pa.Table) -> pa.Table:
    columns = [arrow_chunking.combine_chunks(rows.column(state.schema.names.index(name))) for name in state.primary_key]
    names = ", ".join(state.primary_key)
    if any(column.null_count for column in columns):
        raise LakeMismatchError(f"{state.name} cannot be created: rows have a null in the primary key ({names})")
    keys = encode_keys(columns)
    order = pc.sort_indices(keys)
    ordered = keys.take(order)
    doubled = pc.equal(ordered.slice(1), ordered.slice(0, len(ordered) - 1))
    if (num_doubled := pc.sum(doubled).as_py() or 0) > 0:
        place = order[pc.index(doubled, value=True).as_py()].as_py()
        example = {name: to_python(column[place]) for name, column in zip(state.primary_key, columns, strict=True)}
        raise LakeMismatchError(
            f"{state.name} cannot be created: {num_doubled} rows have a primary key ({names}) that another row of "
            f"their bucket has, for example {example}; delete them, or choose another key"
        )
    return arrow_chunking.take_rows(rows, order.to_numpy().astype(np.int64), distinct=True)


def _split_into_segments(rows: pa.Table) -> Iterator[pa.Table]:
    return arrow_chunking.slice_by_size(rows, SEGMENT_BYTES)
