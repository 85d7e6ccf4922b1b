"""Conflict detection for operations that read the table (UPDATE, DELETE, MERGE), by key.

Such an operation decides about each key by the key's row in the state that it read (`ReadVersion`). Its changes are
valid unchanged after all records committed since, unless

* a key that it **writes** changed: it would overwrite a row that it never saw, or insert a duplicate;
* **another such operation** changed a row that it may have read, before or after the change. Each would have missed the
  other's effect, so no serial order explains both. Such changes are marked in their segments (`Segment.rewrites`).
  Plain upserts never conflict this way, because their result does not depend on rows of other keys;
* the table was truncated or replaced.

This is Delta Lake's WriteSerializable isolation level, with keys in place of files. An operation that reads the table
more than once, such as a subquery on the written table, also decides by other rows: with `ReadVersion.is_strict` every
change of a row is a conflict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Final

import numpy as np

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.python_values import to_python
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import OffsetsTrimmedError
from streamhouse_spark.keys.key_codec import encode_keys
from streamhouse_spark.keys.keyed_batch import KeyedBatch
from streamhouse_spark.kv.log_replay import KeyedLayout
from streamhouse_spark.log.read_version import ReadVersion, changed_since_read_error
from streamhouse_spark.log.segments.reader import InlineRecords, LogBatch
from streamhouse_spark.log.segments.scan import LogSplit, plan_range, read_split
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage

CHANGES_MAX: Final = 1 << 24
"""Concurrent changes that an operation examines before it fails."""
_SHOWN_CHARS_MAX: Final = 200


@dataclass(slots=True)
class ConflictChecker:
    """One operation's check of concurrent commits. Each change is examined once, across all attempts."""

    read: ReadVersion
    storage: Storage
    layout: KeyedLayout
    """The schema of the operation's keys."""
    _checked_ends: dict[int, int] = field(default_factory=dict)
    """Bucket → end of the offsets that were already checked."""
    _num_changes: int = 0

    def check(self, state: TableState, batches: Mapping[int, KeyedBatch]) -> None:
        """Raise `CommitConflictError` if the operation, which writes ``batches``, conflicts with ``state``.

        Reads the keys of new changes in the written buckets, and the rows that other operations changed, if there are
        any. Uses a batch only if its bucket moved.
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
                state, f"{self._num_changes} concurrent changes exceed the limit of {CHANGES_MAX}"
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
        """Raise if another operation changed a row that this one may have read."""
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
        """Yield the rows of a split without the change type."""
        schema = self.layout.values.schema
        names = self._key_names if only_keys else schema.names
        return read_split(self.storage, split, state.written_schema(self.layout.schema_id), names, records=records)

    @property
    def _key_names(self) -> tuple[str, ...]:
        return tuple(self.layout.values.schema.names[place] for place in self.layout.key_indexes)

    def _describe_row(self, changes: LogBatch, place: int) -> str:
        values = (f"{name} = {to_python(changes.batch.column(name)[place])!r}" for name in self._key_names)
        text = ", ".join(values)
        return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"


def _describe_position(changes: LogBatch, place: int) -> str:
    """Describe the position of a change. Compacted segments no longer have the commits of their rows."""
    offset = f"offset {changes.base_offset + place} of bucket {changes.bucket}"
    return offset if len(changes.segment.time_runs[1]) > 1 else f"{offset} (commit {changes.segment.commit})"
