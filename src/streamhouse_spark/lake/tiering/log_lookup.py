"""Deleted rows that the log still has, for a lake whose files another engine replaced."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetRuns
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.segments.scan import read_split, whole_range
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Storage


@dataclass(frozen=True, slots=True)
class RowsOfLog:
    """See `LogRowReader`."""

    storage: Storage
    state: TableState
    schema: TableSchema

    def read(self, rows: Mapping[int, OffsetRuns]) -> tuple[pa.Table, Mapping[int, OffsetRuns]]:
        dropped = self.state.dropped_rows.named.rows
        parts, left = [self.schema.arrow.empty_table()], {}
        for bucket, every in rows.items():
            runs = every.without(dropped[bucket]) if bucket in dropped else every
            log = self.state.buckets[bucket]
            if held := runs.within(OffsetRange(log.start, log.end)):
                parts += self._read_bucket(bucket, held)
            if older := runs.without(held):
                left[bucket] = older
        return pa.concat_tables(parts), left

    def _read_bucket(self, bucket: int, runs: OffsetRuns) -> list[pa.Table]:
        offsets_to_find, parts = runs.offsets(), []
        for part in read_split(self.storage, whole_range(self.state, bucket, runs.range), self.schema):
            offsets = np.arange(part.base_offset, part.base_offset + part.batch.num_rows)
            chosen = part.batch.filter(pa.array(np.isin(offsets, offsets_to_find, assume_unique=True)))
            parts.append(pa.Table.from_batches([chosen]))
        return parts
