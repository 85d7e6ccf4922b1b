"""What an operation read before it writes: UPDATE, DELETE and MERGE are right only while that is still the table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.log.state import TableState


@dataclass(frozen=True, slots=True)
class ReadBase:
    """Where each bucket began and ended in the one state that an operation read.

    Every change of a row is at an offset of its own and every truncation moves a beginning, so equal places mean equal
    rows. Merging, tiering, trimming and new properties move neither and are no conflict.
    """

    table_uuid: str
    buckets: Mapping[int, tuple[int, int]]
    """Bucket → its first offset since the table was last truncated, and its end."""

    @classmethod
    def of(cls, state: TableState) -> ReadBase:
        places = {bucket: (state.first_offset(bucket), log.end) for bucket, log in state.buckets.items()}
        return cls(state.table_uuid, places)

    def require(self, state: TableState) -> None:
        """Raises `CommitConflictError` where the rows of ``state`` are not those that were read."""
        now = ReadBase.of(state)
        if now == self:
            return
        what = f"it is table {now.table_uuid} and was {self.table_uuid}, which was dropped"
        if now.table_uuid == self.table_uuid:
            bucket = min(b for b in {*now.buckets, *self.buckets} if now.buckets.get(b) != self.buckets.get(b))
            (begins, ends), (began, ended) = now.buckets.get(bucket, (0, 0)), self.buckets.get(bucket, (0, 0))
            what = f"bucket {bucket} ended at offset {ended} and ends at {ends}"
            if begins != began:
                what = f"it was truncated at offset {begins} of bucket {bucket}"
        raise CommitConflictError(
            f"{state.name} changed while an UPDATE, DELETE or MERGE that had read it was running: {what}; nothing was "
            "written, run the statement again"
        )

    def to_text(self) -> str:
        places = [[bucket, *ends] for bucket, ends in sorted(self.buckets.items())]
        return json.dumps({"table": self.table_uuid, "buckets": places}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> ReadBase:
        found = json.loads(text)
        return cls(found["table"], {bucket: (begins, ends) for bucket, begins, ends in found["buckets"]})
