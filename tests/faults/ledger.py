"""The rows that a table's log was ever seen to hold, read past all faults by a process that never sleeps.

The ledger only grows: it still knows rows whose segments were merged, trimmed and deleted, and it notices at once when
an offset is given out twice, left out, or changes its row.
"""

from __future__ import annotations

from faults.sim import sim_world
from streamhouse_spark.log.checkpoint import newest_checkpoint
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.scan import check_dense, plan_range, read_split
from streamhouse_spark.log.state import TableState
from streamhouse_spark.model import OffsetRange
from streamhouse_spark.storage import Storage


class Ledger:
    def __init__(self, storage: Storage, table_uuid: str) -> None:
        self._storage = storage
        self.table_uuid = table_uuid
        self.ids: dict[int, list[int]] = {}
        """Bucket → the row at each offset."""
        self.ends: list[dict[int, int]] = []
        """The ends of all buckets after each commit that was seen, without repetitions."""
        self._log = CommitLog(storage, table_uuid, sim_world(10**6))

    def copy(self, storage: Storage) -> Ledger:
        """The same past, in another copy of the store."""
        other = Ledger(storage, self.table_uuid)
        other.ids = {bucket: list(ids) for bucket, ids in self.ids.items()}
        other.ends = list(self.ends)
        return other

    def observe(self) -> TableState:
        """Read on. Raises `AssertionError` when the past changed or offsets are not dense."""
        self._log.check_floor()
        state = self._log.refresh()
        for bucket, log in state.buckets.items():
            known = self.ids.setdefault(bucket, [])
            assert log.end >= len(known), f"bucket {bucket} ends at {log.end}, {len(known)} rows were seen before"
            assert log.start <= len(known), f"bucket {bucket}: rows {len(known)} to {log.start} were never seen"
            known.extend(read_ids(self._storage, state, bucket, OffsetRange(len(known), log.end)))
        if not self.ends or self.ends[-1] != state.ends:
            self.ends.append(state.ends)
        return state

    def all_ids(self) -> list[int]:
        return [i for ids in self.ids.values() for i in ids]


def read_ids(storage: Storage, state: TableState, bucket: int, offsets: OffsetRange) -> list[int]:
    """The identifiers of the rows at these offsets of the hot log, which must all be there."""
    split = plan_range(state, bucket, offsets)
    batches = check_dense(read_split(storage, split, state.schema, ["id"]), offsets)
    return [i for found in batches for i in found.batch.column("id").to_pylist()]


def opened_by_checkpoint(storage: Storage, table_uuid: str) -> TableState | None:
    return newest_checkpoint(storage, table_uuid)
