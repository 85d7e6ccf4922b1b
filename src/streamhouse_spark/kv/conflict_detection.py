"""Conflict detection for operations that read the table (UPDATE, DELETE, MERGE), by key.

The result of such an operation for a key depends on the row of the key in the state that it read (`ReadVersion`). Its
changes are valid after all later records, with these exceptions:

* A key that it **writes** changed. The operation would overwrite a row that it never read, or insert a duplicate.
* **Another such operation** changed a row that it may have read, before or after the change. Neither operation would
  have read the other's result, so no serial order explains both. These changes are marked in their segments
  (`Segment.rewrites`). Plain upserts never conflict in this way, because they do not depend on rows of other keys.
* The table was truncated or replaced.

This is Delta Lake's WriteSerializable isolation level for keys instead of files. The result of an operation that reads
the table more than once, for example in a subquery, also depends on other rows. With `ReadVersion.is_strict` every
change of a row is therefore a conflict.
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
    """Checks the concurrent commits of one operation. It examines each change once, across all attempts."""

    read: ReadVersion
    storage: Storage
    layout: KeyedLayout
    """The schema of the operation's keys."""
    _checked_ends: dict[int, int] = field(default_factory=dict)
    """Bucket → end of the checked offsets."""
    _num_changes: int = 0

    def check(self, state: TableState, batches: Mapping[int, KeyedBatch]) -> None:
        """Raise `CommitConflictError` if the operation, which writes ``batches``, conflicts with ``state``.

        Reads the keys of new changes in the written buckets, and the rows that other operations changed. Uses a batch
        only if its bucket has new changes.
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
                reason = f"the changes of bucket {bucket} from offset {new.start} have expired"
                raise changed_since_read_error(state, reason) from None
            if bucket in batches:
                self._require_unwritten(state, split, batches[bucket], records)
            self._require_unread(state, split, records)
            self._checked_ends[bucket] = new.end

    def is_unchanged(self, bucket: int, staged_at: tuple[int, int], at: tuple[int, int]) -> bool:
        """Return whether changes staged at the position ``staged_at`` are valid at the checked position ``at``.

        No record after the read changed a row of the operation's keys. So they are, unless the table was truncated.
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
                    f"{self._describe_row(changes, place)}, which the statement writes, was changed at "
                    f"{_describe_position(changes, place)}",
                )

    def _require_unread(self, state: TableState, split: LogSplit, records: InlineRecords) -> None:
        """Raise if another operation changed a row that this one may have read."""
        rewritten = replace(split, segments=tuple(s for s in split.segments if s.rewrites))
        for changes in self._read_rows(state, rewritten, records, only_keys=self.read.scope is None):
            if self.read.scope is None or self.read.scope(state, changes.batch):
                row = f"{self._describe_row(changes, 0)}, which the statement may have read,"
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
    """Describe the position of a change, without the commit if the segment is compacted."""
    offset = f"offset {changes.base_offset + place} of bucket {changes.bucket}"
    return offset if len(changes.segment.time_runs[1]) > 1 else f"{offset} (commit {changes.segment.commit})"
