"""One batch of a writer becomes one append, and its answer one for each call.

**Commit point:** the append's record. A batch whose outcome is unknown is repeated as it is, under its transaction, so
it is stored once. Without a producer there is no transaction, and only what is known not to be stored is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.types import BucketOffsets, OffsetRange, Transaction
from streamhouse_spark.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    ProducerFencedError,
    StorageError,
    StorageRefusedError,
)
from streamhouse_spark.log.buckets.bucketing import row_buckets
from streamhouse_spark.log.staging import Require
from streamhouse_spark.write.producer.accumulator import Send, copy_error
from streamhouse_spark.write.producer.idempotence import Producer
from streamhouse_spark.write.producer.row_buffer import concat_buffered_rows
from streamhouse_spark.write.write_target import WriteTarget

Write = Callable[..., BucketOffsets]
"""`WriteTarget.append`, `WriteTarget.delete`, or `WriteTarget.change` of given keys."""


class BatchSender:
    """Writes batches of one writer, one after the other."""

    def __init__(self, target: WriteTarget, world: World, producer: Producer | None, timeout_ms: float) -> None:
        self._target = target
        self._world = world
        self._timeout_ms = timeout_ms
        self.producer = producer

    def deliver(self, batch: Sequence[Send]) -> list[BucketOffsets]:
        """Append the rows of the calls, and return the offsets of each. Tries again for as long as the timeout says.

        Raises as `Table.append`; `ProducerFencedError` where a newer writer has the producer id.
        """
        rows, write = self._take_batch(batch)
        places, offsets = self._write_with_retries(
            write, rows, [send.rows.num_rows for send in batch], batch[-1].sequence
        )
        return [offsets] * len(batch) if places is None else _split_offsets(offsets, places)

    def _take_batch(self, batch: Sequence[Send]) -> tuple[pa.Table, Write]:
        """Return the rows of a batch, and the one call of the destination that writes all of it."""
        upserts = [send.rows for send in batch if not send.is_deletion]
        keys = [send.rows for send in batch if send.is_deletion]
        if not keys or not upserts:
            return concat_buffered_rows(upserts or keys), self._target.delete if keys else self._target.append
        deleted = np.repeat([send.is_deletion for send in batch], [send.rows.num_rows for send in batch])
        return concat_buffered_rows(upserts), partial(
            _commit_changes, self._target, concat_buffered_rows(keys), deleted
        )

    def _write_with_retries(
        self, write: Write, rows: pa.Table, nums_rows: Sequence[int], sequence: int | None
    ) -> tuple[npt.NDArray[np.int64] | None, BucketOffsets]:
        """Write rows as one transaction of the producer, or as none. Returns their `_places` too, which are worked out
        before: behind the commit point nothing may fail.
        """
        producer = self.producer if sequence is not None else None
        transaction = producer.transaction(sequence) if producer is not None and sequence is not None else None
        require = producer.require_newest if producer is not None else None
        began_ms = self._world.clock.boot_ms()
        unknown: Exception | None = None
        tries = 0
        while True:
            try:
                places = self._count_rows_of_calls(rows, nums_rows)
                return places, write(rows, transaction, require=require)
            except (StorageError, CommitConflictError, CommitStateUnknownError) as error:
                is_unknown = isinstance(error, CommitStateUnknownError)
                unknown = error if is_unknown else unknown
                is_late = self._world.clock.boot_ms() - began_ms >= self._timeout_ms
                if is_late or isinstance(error, StorageRefusedError) or (is_unknown and transaction is None):
                    raise _batch_error(error, unknown) from error
            except ProducerFencedError:
                raise
            except Exception as error:
                raise _batch_error(error, unknown) from error
            tries += 1
            self._world.wait_to_retry(tries)

    def _count_rows_of_calls(self, rows: pa.Table, nums_rows: Sequence[int]) -> npt.NDArray[np.int64] | None:
        """Count the rows of each call: in each bucket, or in one column where an append goes into one bucket; None
        where calls have no offsets of their own, as in a table with a primary key.
        """
        state = self._target.cached_state
        if state.primary_key:
            return None
        properties = state.parsed
        if len(nums_rows) == 1 or state.num_buckets == 1 or not properties.bucket_key:
            return np.array(nums_rows, np.int64)[:, None]
        state, whole, _ = self._target.fit_rows(rows)
        keys = [whole.column(name) for name in state.parsed.bucket_key]
        buckets = row_buckets(keys, state.num_buckets, properties.datalake_format).astype(np.int64)
        calls = np.repeat(np.arange(len(nums_rows)), nums_rows)
        counts = np.bincount(calls * state.num_buckets + buckets, minlength=len(nums_rows) * state.num_buckets)
        return counts.reshape(len(nums_rows), state.num_buckets).astype(np.int64)


def _commit_changes(
    to: WriteTarget,
    keys: pa.Table,
    deleted: npt.NDArray[np.bool_],
    rows: pa.Table,
    transaction: Transaction | None,
    *,
    require: Require | None,
) -> BucketOffsets:
    return to.change(rows, keys, deleted, transaction, require=require)


def _split_offsets(offsets: BucketOffsets, places: npt.NDArray[np.int64]) -> list[BucketOffsets]:
    """Cut the offsets of all rows into those of each call, whose rows lie in each bucket in their order.

    Where defaults made the rows so many bytes that they were cut over buckets, each call gets the offsets of all.
    """
    is_cut = places.shape[1] == 1 and len(offsets) > 1
    if len(places) == 1 or not offsets or is_cut:
        return [offsets] * len(places)
    counts = places if places.shape[1] == 1 else places[:, list(offsets)]
    starts = np.array([bucket_offsets.start for bucket_offsets in offsets.values()], np.int64)
    ends = starts + np.cumsum(counts, axis=0)
    return [
        BucketOffsets(
            {b: OffsetRange(end - num, end) for b, end, num in zip(offsets, of.tolist(), n, strict=True) if num}
        )
        for of, n in zip(ends, counts.tolist(), strict=True)
    ]


def _batch_error(error: Exception, unknown: Exception | None) -> Exception:
    """Return the failure of a batch: where an earlier try may have stored the rows, what the last one says of them is
    not known.
    """
    return copy_error(error if unknown is None else unknown)
