"""Replaces the rows of some partitions of a primary-key table, through the changelog.

The bucket's rows in the partitions are deleted and the new rows written in one batch. So a key has at most one net
change, and an unchanged row has none. The changes cover the rows up to the bucket's end, so the record adds them only
if it still ends there; a bucket that moved is scanned again. No older row of the partitions remains, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final

import numpy as np
import pyarrow as pa

from streamhouse_spark.core import arrow_chunking
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.keys.keyed_batch import KeyedBatch
from streamhouse_spark.kv.change_staging import (
    BucketPosition,
    ChangeStager,
    StagedChanges,
    StaleStateError,
    bucket_position,
    may_have_rows,
)
from streamhouse_spark.kv.lmdb.environment import DamagedError
from streamhouse_spark.kv.log_replay import catch_up
from streamhouse_spark.kv.tablet_lineage import belongs_to_table
from streamhouse_spark.kv.write_overlay import WriteOverlay
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.query.overwrite_filter import OverwriteFilterFactory

DAMAGED_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class PartitionOverwriteStager(ChangeStager):
    """Computes and stages the changes with which batches replace the selected rows of their buckets.

    Raises as `ChangeStager.stage`. Every bucket needs a batch, which may be empty.
    """

    choose: OverwriteFilterFactory = field(kw_only=True)
    """Selects rows by partition columns."""
    partition_by: tuple[str, ...] = field(kw_only=True)

    @property
    def reads_whole_buckets(self) -> bool:
        return True

    def stage(
        self,
        batches: Mapping[int, KeyedBatch],
        places: Mapping[int, BucketPosition],
        state: TableState,
        overlay: WriteOverlay | None = None,
    ) -> dict[int, StagedChanges]:
        staged: dict[int, StagedChanges] = {}
        for bucket, at in places.items():  # one after another: the rows of a bucket are held in memory
            batch = self._with_deletions(bucket, batches[bucket], state, at)
            staged |= ChangeStager.stage(self, {bucket: batch}, {bucket: at}, state, overlay)
        return staged

    def _with_deletions(self, bucket: int, batch: KeyedBatch, state: TableState, at: BucketPosition) -> KeyedBatch:
        """Return the batch preceded by deletions of all selected rows that the bucket has at a position."""
        if not may_have_rows(at):
            return batch
        rows = self._read_key_rows(bucket, state, at)
        if not rows.num_rows:
            return batch
        columns: list[arrow_chunking.Column] = [
            arrow_chunking.combine_if_small(arrow_chunking.concat_columns((old, new), new.type))
            for old, new in zip(rows.columns, batch.columns, strict=True)
        ]
        deleted = np.concatenate([np.ones(rows.num_rows, np.bool_), batch.deleted])
        of_key = self.layout.key_indexes
        keys = self.layout.keys([arrow_chunking.combine_chunks(c) if i in of_key else c for i, c in enumerate(columns)])
        return KeyedBatch.of(keys, columns, deleted)

    def _read_key_rows(self, bucket: int, state: TableState, at: BucketPosition) -> pa.Table:
        """Return the key columns of the selected rows, with nulls in the others: a deletion needs no more."""
        tablet = self.tablet_of(bucket)
        for _ in range(DAMAGED_MAX):
            catch_up(tablet, self.layout, self.storage, state, bucket)
            scan = _KeyCollector(self)
            extent = tablet.scan(scan.take)
            is_of_table = belongs_to_table(tablet, extent, self.storage, state)
            if extent[:2] == at == bucket_position(state, bucket) and is_of_table:
                return scan.rows()
            if extent.applied > at[1] and is_of_table:
                raise StaleStateError
        raise DamagedError(
            f"the tablet of bucket {bucket} of {state.name} was found damaged {DAMAGED_MAX} times in a row; nothing "
            "was replaced: check the disk of this host's cache, then run it again"
        )


class _KeyCollector:
    """Collects the keys of the selected rows of a bucket, step by step."""

    def __init__(self, stager: PartitionOverwriteStager) -> None:
        self._stager = stager
        self._schema = stager.layout.values.schema
        self._deciding = [self._schema.column(name) for name in stager.partition_by]
        self._key = [self._schema.columns[place] for place in stager.layout.key_indexes]
        self._keys: list[pa.Table] = []

    def take(self, items: list[tuple[bytes, bytes]]) -> None:
        stored, values = [value for _, value in items], self._stager.layout.values
        partitions, _ = values.unpack_all(stored, self._deciding)
        mask = self._stager.choose(self._schema).mask(pa.table(partitions, names=[c.name for c in self._deciding]))
        chosen = np.flatnonzero(mask)
        if len(chosen):
            keys, _ = values.unpack_all([stored[place] for place in chosen.tolist()], self._key)
            self._keys.append(pa.table(keys, names=[column.name for column in self._key]))

    def rows(self) -> pa.Table:
        empty = pa.schema([(column.name, column.type) for column in self._key]).empty_table()
        keys = pa.concat_tables([empty, *self._keys])
        key_names = set(keys.column_names)
        columns = [
            keys.column(c.name) if c.name in key_names else pa.chunked_array([pa.nulls(keys.num_rows, c.type)])
            for c in self._schema.columns
        ]
        return pa.Table.from_arrays(columns, names=list(self._schema.names))
