"""Whether the writes of an operation that read the table are still right after commits by others.

UPDATE, DELETE and MERGE decide about each key by that key's row, as it was in the state that they read (`ReadVersion`).
So their writes are right behind everything that was committed since, and are added there unchanged, unless

* a key that they **write** changed: then the operation would write over a row that it never saw, or insert one beside
  it;
* another **operation that read the table** changed a row that they read, before or after the change: each of the two
  would have missed what the other did, which no order of them explains. Such changes are marked in their segments
  (`Segment.rewrites`). A write by key needs no look: its result does not depend on rows of other keys, so it may as
  well stand behind the operation;
* the table was truncated, or it is another one.

That is the level of isolation that Delta Lake calls WriteSerializable, with keys in the place of files. An operation
that read the table more than once (a subquery about the table that it writes) decides about a key by other rows too:
with `ReadVersion.is_strict` every change of a row is a conflict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Final

import numpy as np

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.python_values import python_value
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import OffsetsTrimmedError
from streamhouse_spark.keys.key_codec import encode_keys
from streamhouse_spark.keys.keyed_batch import KeyedBatch
from streamhouse_spark.kv.log_replay import KeyedLayout
from streamhouse_spark.kv.read_version import ReadVersion, changed_since_read_error
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.segments.reader import InlineRecords, LogBatch
from streamhouse_spark.log.segments.scan import LogSplit, plan_range, read_split
from streamhouse_spark.storage.base import Storage

CHANGES_MAX: Final = 1 << 24
"""Changes of others that an operation looks through before it gives up."""
_SHOWN_CHARS_MAX: Final = 200


@dataclass(slots=True)
class ConflictChecker:
    """One operation's view of the commits of others. Every change is examined once, however many attempts there are."""

    read: ReadVersion
    storage: Storage
    layout: KeyedLayout
    """The schema by which the operation's keys are written."""
    _checked_ends: dict[int, int] = field(default_factory=dict)
    """Bucket → end of the offsets that were already examined."""
    _num_changes: int = 0

    def check(self, state: TableState, batches: Mapping[int, KeyedBatch]) -> None:
        """Raise `CommitConflictError` if the operation, which writes ``batches``, is in conflict with ``state``.

        Reads the keys of new changes in the written buckets, and the rows that other operations changed; reads nothing
        if there are neither. Asks for a batch only if its bucket moved.
        """
        self.read.require_same_table(state)
        if self.read.is_strict:
            self.read.require(state)
        records = InlineRecords(self.storage, state.table_uuid)
        for bucket, (_, ended) in self.read.buckets.items():
            new = OffsetRange(self._checked_ends.get(bucket, ended), state.buckets[bucket].end)
            if not new:
                continue
            try:
                split = plan_range(state, bucket, new)
            except OffsetsTrimmedError:
                reason = f"the log no longer tells what changed in bucket {bucket} from offset {new.start} on"
                raise changed_since_read_error(state, reason) from None
            if bucket in batches:
                self._require_unwritten(state, split, batches[bucket], records)
            self._require_unread(state, split, records)
            self._checked_ends[bucket] = new.end

    def is_unchanged(self, bucket: int, staged_at: tuple[int, int], at: tuple[int, int]) -> bool:
        """Return whether changes staged at the position ``staged_at`` are still right at the checked position ``at``.

        They are, because no record since the read changed a row of the operation's keys.
        """
        return staged_at[0] == at[0] and self.read.buckets[bucket][1] <= staged_at[1] <= at[1]

    def _require_unwritten(self, state: TableState, split: LogSplit, batch: KeyedBatch, records: InlineRecords) -> None:
        self._num_changes += len(split.offsets)
        if self._num_changes > CHANGES_MAX:
            raise changed_since_read_error(
                state, f"{self._num_changes} changes are too many to look through, {CHANGES_MAX} are not"
            )
        for changes in self._read_rows(state, split, records, only_keys=True):
            hits = batch.has(encode_keys(changes.batch.columns))
            if hits.any():
                place = int(np.argmax(hits))
                raise changed_since_read_error(
                    state,
                    f"{self._describe_row(changes, place)}, which it writes, was changed at "
                    f"{_describe_position(changes, place)}",
                )

    def _require_unread(self, state: TableState, split: LogSplit, records: InlineRecords) -> None:
        """Raise if the operation may have read a row that another operation changed, before or after the change."""
        rewritten = replace(split, segments=tuple(s for s in split.segments if s.rewrites))
        for changes in self._read_rows(state, rewritten, records, only_keys=self.read.scope is None):
            if self.read.scope is None or self.read.scope(state, changes.batch):
                row = f"{self._describe_row(changes, 0)}, which it may have read,"
                raise changed_since_read_error(
                    state, f"{row} was changed by another such statement at {_describe_position(changes, 0)}"
                )

    def _read_rows(
        self, state: TableState, split: LogSplit, records: InlineRecords, *, only_keys: bool
    ) -> Iterator[LogBatch]:
        """Return the rows of a split, without the change column."""
        schema = self.layout.values.schema
        names = self._key_names if only_keys else schema.names
        return read_split(self.storage, split, state.written_schema(self.layout.schema_id), names, records=records)

    @property
    def _key_names(self) -> tuple[str, ...]:
        return tuple(self.layout.values.schema.names[place] for place in self.layout.key_indexes)

    def _describe_row(self, changes: LogBatch, place: int) -> str:
        values = (f"{name} = {python_value(changes.batch.column(name)[place])!r}" for name in self._key_names)
        text = ", ".join(values)
        return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"


def _describe_position(changes: LogBatch, place: int) -> str:
    """Describe the position of a change. Merged segments no longer tell the commits of their rows."""
    offset = f"offset {changes.base_offset + place} of bucket {changes.bucket}"
    return offset if len(changes.segment.time_runs[1]) > 1 else f"{offset} (commit {changes.segment.commit})"
