"""The read version of an UPDATE, DELETE or MERGE: the position of each bucket in the state that it read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Final

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.log.commit_log import different_history_error
from streamhouse_spark.log.history_index import HistoryPoint, HistoryRelation
from streamhouse_spark.log.state import TableState

READING: Final = "an UPDATE, DELETE or MERGE read the table"

Scope = Callable[[TableState, pa.RecordBatch], bool]
"""Returns whether an operation may have read any of these rows, which have the state's columns. False only if its
filters exclude all of them.
"""


@dataclass(frozen=True, slots=True)
class ReadVersion:
    """The offset range of each bucket in the state that an operation read.

    Every change of a row has an offset, and every truncation moves the first offset, so equal ranges mean equal rows.
    Compaction, tiering, trimming and property changes move neither, and never conflict. `kv.conflict_detection` checks
    the changes after the ranges.
    """

    table_uuid: str
    buckets: Mapping[int, tuple[int, int]]
    """Bucket → its first offset since the last truncation, and its end."""
    is_strict: bool = False
    """Whether every change of a row is a conflict. The operation read the table more than once, possibly in different
    states, so a written row may depend on rows of other keys.
    """
    scope: Scope | None = field(default=None, compare=False)
    """Filter of the rows that were read; None for all rows. Not serialized."""
    history: HistoryPoint | None = field(default=None, compare=False)
    """The latest record of the state."""
    lake_snapshot_id: int | None = field(default=None, compare=False)
    """The state's lake snapshot; None before the first snapshot."""
    lake_mark: str | None = field(default=None, compare=False)
    """Change-detection mark of the lake snapshot, see `SupportsSnapshotReplacement.snapshot_identity`."""
    checked_snapshots: frozenset[int] = field(default=frozenset(), compare=False)
    """Later lake snapshots that are known to have the rows at their offsets. Not serialized."""

    @classmethod
    def of(cls, state: TableState) -> ReadVersion:
        places = {bucket: (state.first_offset(bucket), log.end) for bucket, log in state.buckets.items()}
        snapshot_id = state.lake.snapshot_id if state.lake is not None else None
        return cls(state.table_uuid, places, history=state.anchors.newest, lake_snapshot_id=snapshot_id)

    def require_same_table(self, state: TableState) -> None:
        """Raise `CommitConflictError` if ``state`` is of another table, or the table was truncated since it was read.

        Raises `DifferentHistoryError` if the state is of another history of the table.
        """
        if self.history is not None and state.anchors.relation(self.history) is HistoryRelation.OTHER:
            raise different_history_error(state.name, self.history, READING)
        if state.table_uuid != self.table_uuid:
            raise changed_since_read_error(
                state, f"the operation read table {self.table_uuid}, but the name is now table {state.table_uuid}"
            )
        for bucket, (began, ended) in self.buckets.items():
            if (begins := state.first_offset(bucket)) != began:
                raise changed_since_read_error(state, f"it was truncated at offset {begins} of bucket {bucket}")
            if (ends := state.buckets[bucket].end) < ended:
                raise changed_since_read_error(
                    state, f"bucket {bucket} ended at offset {ended} and now ends at {ends}: the table was restored"
                )

    def require(self, state: TableState) -> None:
        """Raise `CommitConflictError` if the rows of ``state`` differ from the rows that were read."""
        self.require_same_table(state)
        for bucket, (_, ended) in self.buckets.items():
            if (ends := state.buckets[bucket].end) != ended:
                why = "the statement reads the table more than once" if self.is_strict else "its other reads are later"
                raise changed_since_read_error(
                    state, f"bucket {bucket} ended at offset {ended} and now ends at {ends}, and {why}"
                )

    def to_text(self) -> str:
        places = [[bucket, *ends] for bucket, ends in sorted(self.buckets.items())]
        out: dict[str, object] = {"table": self.table_uuid, "buckets": places}
        if self.history is not None:
            out["history"] = list(self.history)
        if self.lake_snapshot_id is not None:
            out["lake_snapshot_id"] = self.lake_snapshot_id
        if self.lake_mark is not None:
            out["lake_mark"] = self.lake_mark
        return json.dumps(out, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> ReadVersion:
        fields = json.loads(text)
        places = {bucket: (begins, ends) for bucket, begins, ends in fields["buckets"]}
        history = HistoryPoint.from_json(fields["history"]) if "history" in fields else None
        lake = {name: fields.get(name) for name in ("lake_snapshot_id", "lake_mark")}
        return cls(fields["table"], places, history=history, **lake)


def changed_since_read_error(state: TableState, reason: str) -> CommitConflictError:
    """Return the error for an operation that conflicts with changes committed after its read."""
    return CommitConflictError(
        f"{state.name} changed after an UPDATE, DELETE or MERGE read it: {reason}; nothing was written, run the "
        "statement again"
    )
