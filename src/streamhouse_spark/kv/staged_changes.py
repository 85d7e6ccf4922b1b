"""Changes of one bucket, worked out against its rows at one place of the log and staged to be committed there.

Nothing here is visible before a record names it. Who commits compares `StagedChanges.at` with where the bucket is then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from streamhouse_spark.clock import World
from streamhouse_spark.keys.key_codec import stored_keys
from streamhouse_spark.keys.keyed_batch import KeyedBatch
from streamhouse_spark.kv.changes import Changes, changes_of
from streamhouse_spark.kv.keyed_properties import KeyedProperties
from streamhouse_spark.kv.merge import MergeEngine
from streamhouse_spark.kv.replay import KeyedLayout, catch_up
from streamhouse_spark.kv.tablet import Tablet
from streamhouse_spark.log.segment_writer import SegmentShape, StagedSegment, stage_inline, stage_object
from streamhouse_spark.log.staging import INLINE_BYTES_MAX, STAGED_AGE_MS_MAX
from streamhouse_spark.log.state import TableState
from streamhouse_spark.model import OffsetRange
from streamhouse_spark.paths import segment_key
from streamhouse_spark.storage import Storage

Place = tuple[int, int]
"""Where a bucket begins, since it was last truncated, and ends. Equal places of one table mean equal rows."""

EMPTY: Final[Place] = (0, 0)
"""Where every bucket begins. One that ends where it begins has no rows, wherever that is."""


class TabletAheadError(Exception):
    """Another process applied changes that are newer than the state being planned on: refresh it, try again."""


@dataclass(frozen=True, slots=True)
class StagedChanges:
    """Changes of a bucket, and their segment where there are any."""

    at: Place
    """Where the bucket was when they were right."""
    segment: StagedSegment | None
    values: Mapping[bytes, bytes | None] | None
    """What they make of a tablet; None where another process worked them out."""

    @property
    def offsets(self) -> OffsetRange:
        num_changes = self.segment.segment.num_rows if self.segment is not None else 0
        return OffsetRange(self.at[1], self.at[1] + num_changes)


@dataclass(frozen=True, slots=True)
class PreparedChanges:
    """Changes of a bucket that another process than the committing one staged. The committing one decides about them.

    They are the bucket's net changes only together with all rows that the write has for the bucket, under the schema
    and the properties that they were made by.
    """

    bucket: int
    at: Place
    segment: StagedSegment | None
    schema_id: int
    properties: KeyedProperties
    staged_ms: int
    """Store time at which staging began."""

    def is_by(self, schema_id: int, properties: KeyedProperties) -> bool:
        """Whether who commits by this schema and these properties would make the same changes of the same rows."""
        return (self.schema_id, self.properties) == (schema_id, properties)

    def fits(self, state: TableState, at: Place, time_ms: int) -> bool:
        """Whether a record at this time may add them behind a bucket that is at this place.

        Not where the rows are others than those that were looked at, and not where cleaning may have the file.
        """
        has_rows, had_rows = at[0] < at[1], self.at[0] < self.at[1]
        if (has_rows or had_rows) and at != self.at:
            return False
        if time_ms - self.staged_ms > STAGED_AGE_MS_MAX:
            return False
        uuid = None if self.segment is None else self.segment.segment.uuid
        return uuid is None or segment_key(state.table_uuid, uuid) not in state.condemned

    def placed(self, at: Place) -> StagedChanges:
        return StagedChanges(at, self.segment, None)


@dataclass(frozen=True, slots=True)
class ChangeStager:
    """Works out and stages what batches change in one table with a primary key, by one of its schemas."""

    storage: Storage
    world: World
    shape: SegmentShape
    layout: KeyedLayout
    engine: MergeEngine
    tablet_of: Callable[[int], Tablet]
    """The tablet of a bucket on this host."""
    before_images: bool = True

    def staged(self, bucket: int, batch: KeyedBatch, state: TableState, at: Place) -> StagedChanges:
        """What the batch changes in the bucket as this state has it; in an empty one where ``at`` says so.

        Durable when this returns, or carried along. Raises `TabletAheadError`, and `OffsetsTrimmedError`,
        `StorageError` where the rows cannot be had or the changes not be stored.
        """
        values = [None] * len(batch) if at[0] == at[1] else self._values(bucket, batch, state)
        changes = changes_of(batch, self.engine, self.layout.values, values, before_images=self.before_images)
        return StagedChanges(at, self._segment(bucket, changes, state) if len(changes) else None, changes.values)

    def _values(self, bucket: int, batch: KeyedBatch, state: TableState) -> list[bytes | None]:
        tablet = self.tablet_of(bucket)
        catch_up(tablet, self.layout, self.storage, state, bucket)
        found = tablet.find(stored_keys(batch.keys))
        if (found.begins, found.applied) != place_of(state, bucket):
            raise TabletAheadError
        return found.values

    def _segment(self, bucket: int, changes: Changes, state: TableState) -> StagedSegment:
        schema = state.written_schema(self.layout.schema_id).arrow
        rows = pa.Table.from_arrays([pa.array(changes.types), *changes.columns], schema=schema)
        if rows.nbytes <= INLINE_BYTES_MAX // state.num_buckets:
            return stage_inline(rows, bucket, self.shape)
        return stage_object(self.storage, state.table_uuid, self.world.ids.new_uuid(), rows, bucket, self.shape)


def place_of(state: TableState, bucket: int) -> Place:
    return state.first_offset(bucket), state.buckets[bucket].end
