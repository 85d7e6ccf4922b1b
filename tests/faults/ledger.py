"""The rows that a table's log was ever seen to hold, read past all faults by a process that never sleeps.

The ledger only grows: it still knows rows whose segments were merged, trimmed and deleted, and it notices at once when
an offset is given out twice, left out, or changes its row.
"""

from __future__ import annotations

from typing import NamedTuple

from faults.sim import sim_world
from streamhouse_spark import OffsetRange
from streamhouse_spark.errors import ObjectNotFoundError
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.record import read_record
from streamhouse_spark.log.segments.scan import check_dense, plan_range, read_split
from streamhouse_spark.log.state import TableState, fold
from streamhouse_spark.storage.base import Storage


class Extent(NamedTuple):
    """The rows that a table has after a commit: from ``starts`` on, which truncations move, to ``ends``."""

    starts: dict[int, int]
    ends: dict[int, int]

    @classmethod
    def of(cls, state: TableState) -> Extent:
        return cls({bucket: state.first_offset(bucket) for bucket in state.buckets}, state.ends)

    def follows(self, other: Extent) -> bool:
        """Whether a table that had ``other`` may have this later."""
        return all(self.starts[b] >= other.starts[b] and self.ends[b] >= other.ends[b] for b in self.ends)

    @property
    def order(self) -> tuple[int, int]:
        return sum(self.ends.values()), sum(self.starts.values())


class Ledger:
    def __init__(self, storage: Storage, table_uuid: str) -> None:
        self._storage = storage
        self.table_uuid = table_uuid
        self.ids: dict[int, list[int]] = {}
        """Bucket → the row at each offset."""
        self.extents: list[Extent] = []
        """What the table was after each commit that was seen, without repetitions."""
        self._log = CommitLog(storage, table_uuid, sim_world(10**6))
        self._state: TableState | None = None

    def copy(self, storage: Storage) -> Ledger:
        """The same past, in another copy of the store."""
        other = Ledger(storage, self.table_uuid)
        other.ids = {bucket: list(ids) for bucket, ids in self.ids.items()}
        other.extents = list(self.extents)
        other._state = self._state
        return other

    def observe(self) -> TableState:
        """Read on. Raises `AssertionError` when the past changed or offsets are not dense."""
        self._log.refresh_low_watermark()
        self._read_what_was_truncated()
        state = self._state = self._log.refresh()
        self._read(state)
        return state

    def _read_what_was_truncated(self) -> None:
        """The rows that a truncation since the last look took away: their files are there for a day."""
        state = self._state
        while state is not None:
            try:
                record, _ = read_record(self._storage, self.table_uuid, state.version + 1)
            except ObjectNotFoundError:
                return
            before, state = state, fold(state, record)
            if state.truncation != before.truncation:
                self._read(before)

    def _read(self, state: TableState) -> None:
        for bucket, log in state.buckets.items():
            known = self.ids.setdefault(bucket, [])
            assert log.end >= len(known), f"bucket {bucket} ends at {log.end}, {len(known)} rows were seen before"
            assert log.start <= len(known), f"bucket {bucket}: rows {len(known)} to {log.start} were never seen"
            known.extend(read_ids(self._storage, state, bucket, OffsetRange(len(known), log.end)))
        extent = Extent.of(state)
        if not self.extents or self.extents[-1] != extent:
            self.extents.append(extent)

    def all_ids(self) -> list[int]:
        return [i for ids in self.ids.values() for i in ids]


def read_ids(storage: Storage, state: TableState, bucket: int, offsets: OffsetRange) -> list[int]:
    """The identifiers of the rows at these offsets of the hot log, which must all be there."""
    split = plan_range(state, bucket, offsets)
    batches = check_dense(read_split(storage, split, state.schema, ["id"]), offsets)
    return [i for found in batches for i in found.batch.column("id").to_pylist()]
