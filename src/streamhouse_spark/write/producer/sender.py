"""Commits a batch of a writer as one append or upsert, and splits the resulting offsets per send.

**Commit point:** the append's record. With a producer, a batch of unknown outcome is retried unchanged under its
transaction, so it is stored once. Without one, only a batch that is known not to be stored is retried.
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
"""`WriteTarget.append`, `WriteTarget.delete`, or `WriteTarget.change` with bound keys."""


class BatchSender:
    """Commits the batches of one writer, one after another."""

    def __init__(self, target: WriteTarget, world: World, producer: Producer | None, timeout_ms: float) -> None:
        self._target = target
        self._world = world
        self._timeout_ms = timeout_ms
        self.producer = producer

    def deliver(self, batch: Sequence[Send]) -> list[BucketOffsets]:
        """Commit the rows of the sends and return the offsets of each. Retries until the delivery timeout.

        Raises as `Table.append`, and `ProducerFencedError` if a later writer took the producer id.
        """
        rows, write = self._take_batch(batch)
        places, offsets = self._write_with_retries(
            write, rows, [send.rows.num_rows for send in batch], batch[-1].sequence
        )
        return [offsets] * len(batch) if places is None else _split_offsets(offsets, places)

    def _take_batch(self, batch: Sequence[Send]) -> tuple[pa.Table, Write]:
        """Return the rows of a batch, and the call of the target that writes all of them."""
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
        """Write rows, with a producer as one transaction. Also returns their `_count_rows_of_calls`.

        The counts are computed first: after the commit point nothing may fail.
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
        """Count the rows of each send per bucket, or in one column if an append goes to a single bucket.

        Returns None if sends have no offsets of their own, as in a primary-key table.
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
    """Split the offsets of all rows by send. In each bucket the rows have the order of the sends.

    If evaluated defaults made the rows so large that they were spread over buckets, each send gets all offsets.
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
    """Return the failure of a batch: unknown if an earlier attempt may have stored the rows, whatever the last attempt
    says.
    """
    return copy_error(error if unknown is None else unknown)
