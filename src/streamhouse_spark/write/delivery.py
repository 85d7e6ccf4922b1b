"""One batch of a writer becomes one append, and its answer one for each call.

**Commit point:** the append's record. A batch whose outcome is unknown is repeated as it is, under its transaction, so
it is stored once. Without a producer there is no transaction, and only what is known not to be stored is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.model import BucketOffsets, OffsetRange
from streamhouse_spark.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    ProducerFencedError,
    StorageError,
    StorageRefusedError,
)
from streamhouse_spark.log.buckets.bucketing import row_buckets
from streamhouse_spark.write.append import Appends
from streamhouse_spark.write.outbox import Send, own
from streamhouse_spark.write.producer import Producer


class Delivery:
    """Writes batches of one writer, one after the other."""

    def __init__(self, appends: Appends, world: World, producer: Producer | None, timeout_ms: float) -> None:
        self._appends = appends
        self._world = world
        self._timeout_ms = timeout_ms
        self.producer = producer

    def deliver(self, batch: Sequence[Send]) -> list[BucketOffsets]:
        """Append the rows of the calls, and return the offsets of each. Tries again for as long as the timeout says.

        Raises as `Table.append`; `ProducerFencedError` where a newer writer has the producer id.
        """
        rows = pa.concat_tables([send.rows for send in batch]).combine_chunks() if len(batch) > 1 else batch[0].rows
        offsets = self._appended(rows, batch[-1].sequence)
        return self._shares(offsets, rows, [send.rows.num_rows for send in batch])

    def _appended(self, rows: pa.Table, sequence: int | None) -> BucketOffsets:
        """Append rows as one transaction of the producer, or as none."""
        producer = self.producer if sequence is not None else None
        transaction = producer.transaction(sequence) if producer is not None and sequence is not None else None
        require = producer.require_newest if producer is not None else None
        began_ms = self._world.clock.boot_ms()
        unknown: Exception | None = None
        tries = 0
        while True:
            try:
                return self._appends.append(rows, transaction, require=require)
            except (StorageError, CommitConflictError, CommitStateUnknownError) as error:
                is_unknown = isinstance(error, CommitStateUnknownError)
                unknown = error if is_unknown else unknown
                is_late = self._world.clock.boot_ms() - began_ms >= self._timeout_ms
                if is_late or isinstance(error, StorageRefusedError) or (is_unknown and transaction is None):
                    raise _told(error, unknown) from error
            except ProducerFencedError:
                raise
            except Exception as error:
                raise _told(error, unknown) from error
            tries += 1
            self._world.wait_to_retry(tries)

    def _shares(self, offsets: BucketOffsets, rows: pa.Table, nums_rows: Sequence[int]) -> list[BucketOffsets]:
        """Cut the offsets of all rows into those of each call, whose rows lie in each bucket in their order."""
        if len(nums_rows) == 1 or not offsets:
            return [offsets] * len(nums_rows)
        if len(offsets) == 1:
            counts = np.array(nums_rows, np.int64)[:, None]
        else:
            state, whole, _ = self._appends.fitted(rows)
            properties = state.parsed
            keys = [whole.column(name) for name in properties.bucket_key]
            buckets = row_buckets(keys, state.num_buckets, properties.datalake_format).astype(np.int64)
            calls = np.repeat(np.arange(len(nums_rows)), nums_rows)
            places = np.bincount(calls * state.num_buckets + buckets, minlength=len(nums_rows) * state.num_buckets)
            counts = places.reshape(len(nums_rows), state.num_buckets)[:, list(offsets)]
        starts = np.array([found.start for found in offsets.values()], np.int64)
        ends = starts + np.cumsum(counts, axis=0)
        return [
            BucketOffsets(
                {b: OffsetRange(end - num, end) for b, end, num in zip(offsets, of.tolist(), n, strict=True) if num}
            )
            for of, n in zip(ends, counts.tolist(), strict=True)
        ]


def _told(error: Exception, unknown: Exception | None) -> Exception:
    """Return the failure of a batch: where an earlier try may have stored the rows, what the last one says of them is
    not known.
    """
    return own(error if unknown is None else unknown)
