"""Commits the batches of a writer, each as one append, upsert or deletion, and splits the offsets per send.

**Commit point:** the commit record of the batch. With a producer id, a batch of unknown outcome is retried unchanged
under its transaction, so it is stored once. Without a producer id, a batch is retried only if it is known not to be
stored.

An *idempotent producer* has at most one live writer per producer id, and knows the last sequence that was stored. Each
batch is a transaction whose version is the sequence of its last rows. So all rows up to the stored version are stored,
regardless of the boundaries of batches. Two writers with the same id could send rows after the stored version in
different batches. So each writer first commits the next *epoch* as a separate transaction. Its batches are rejected
after a record with a later epoch (fencing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import BucketOffsets, OffsetRange, Transaction
from streamhouse_spark.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    ProducerFencedError,
    StorageError,
    StorageRefusedError,
    TransactionConflictError,
    copy_error,
)
from streamhouse_spark.log.actions import Append
from streamhouse_spark.log.bucketing import row_buckets
from streamhouse_spark.log.commit_validation import require_not_dropped
from streamhouse_spark.log.epochs import claim_epoch, stored_epoch
from streamhouse_spark.log.state import TableState
from streamhouse_spark.log.transactions import find_stored_version, hash_name
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.write.log_writer import LogTableWriter
from streamhouse_spark.write.producer.accumulator import PendingSend, concat_buffered_rows

if TYPE_CHECKING:
    from streamhouse_spark.write.producer.upsert_target import UpsertTarget


EPOCH_SUFFIX: Final = "/epoch"
"""Suffix of the application id under which the epoch of a producer is stored."""
Write = Callable[..., BucketOffsets]
"""Writes the rows of a batch, given the rows, the transaction and ``require``."""


@dataclass(frozen=True, slots=True)
class Producer:
    """A producer id and the epoch of its writer."""

    producer_id: str
    epoch: int
    stored_sequence: int | None
    """The last sequence that earlier writers stored. They are fenced and cannot store more."""

    def transaction(self, sequence: int) -> Transaction:
        return Transaction(self.producer_id, sequence)

    def require_newest(self, state: TableState) -> None:
        """Raise `ProducerFencedError` if a newer writer took over the id."""
        if stored_epoch(state, _epoch_id(self.producer_id)) != self.epoch:
            raise ProducerFencedError(
                f"producer {self.producer_id!r} of {state.name}: a newer writer has this id. The rows of this batch "
                "are stored only if the last_sequence of the newer writer includes them; end this writer, and give "
                "each concurrent writer a separate id"
            )


def take_over(table: TableHandle, producer_id: str) -> Producer:
    """Fence the earlier writers of a producer id and return the new epoch. **Commit point:** that of `claim_epoch`.

    Raises `InvalidOptionError` for an invalid id, `TransactionConflictError` for the id of a streaming query.
    """
    epoch_id = _epoch_id(Transaction(producer_id, 0).app_id)

    def plan(state: TableState, _time_ms: int) -> tuple[Append]:
        require_not_dropped(state)
        _require_producer(state, producer_id)
        return (Append((), ()),)

    epoch, state = claim_epoch(table.log, epoch_id, plan, f"producer {producer_id!r}")
    stored = find_stored_version(state.transactions, state.past_transactions, producer_id)
    return Producer(producer_id, epoch, stored)


def _epoch_id(producer_id: str) -> str:
    return producer_id + EPOCH_SUFFIX


def _require_producer(state: TableState, producer_id: str) -> None:
    entry, past = state.transactions.get(producer_id), state.past_transactions.get(hash_name(producer_id))
    if (entry is not None and (entry.owner is not None or entry.batch is not None)) or (
        entry is None and past is not None and past.owner_sum
    ):
        raise TransactionConflictError(
            f"producer id {producer_id!r} of {state.name} is the application id of a streaming query; choose another id"
        )


class BatchSender:
    """Commits the batches of one writer, one after another."""

    def __init__(
        self,
        log_writer: LogTableWriter,
        keyed: UpsertTarget | None,
        producer: Producer | None,
        timeout_ms: float,
    ) -> None:
        """Create a sender to a log table or, with ``keyed``, a primary-key table. Batches fail after ``timeout_ms``."""
        self._log_writer = log_writer
        self._keyed = keyed
        self._world = log_writer.table.world
        self._timeout_ms = timeout_ms
        self.producer = producer

    def deliver(self, batch: Sequence[PendingSend]) -> list[BucketOffsets]:
        """Commit the rows of the sends, and return the offsets of each send. Retries until the delivery timeout.

        Raises the errors of `Table.append`, and `ProducerFencedError` if a newer writer took over the producer id.
        """
        rows, write = self._prepare_write(batch)
        places, offsets = self._write_with_retries(
            write, rows, [send.rows.num_rows for send in batch], batch[-1].sequence
        )
        return [offsets] * len(batch) if places is None else _split_offsets(offsets, places)

    def _prepare_write(self, batch: Sequence[PendingSend]) -> tuple[pa.Table, Write]:
        """Return the rows of a batch, and the function that writes them."""
        upserts = [send.rows for send in batch if not send.is_deletion]
        keys = [send.rows for send in batch if send.is_deletion]
        keyed = self._keyed
        if not keys or keyed is None:
            return concat_buffered_rows(upserts), (keyed or self._log_writer).append
        if not upserts:
            return concat_buffered_rows(keys), keyed.delete
        deleted = np.repeat([send.is_deletion for send in batch], [send.rows.num_rows for send in batch])
        return concat_buffered_rows(upserts), partial(keyed.change, keys=concat_buffered_rows(keys), deleted=deleted)

    def _write_with_retries(
        self, write: Write, rows: pa.Table, nums_rows: Sequence[int], sequence: int | None
    ) -> tuple[npt.NDArray[np.int64] | None, BucketOffsets]:
        """Write rows, and return their `_count_rows_of_calls` and offsets. The rows of a producer are one transaction.

        The counts are computed before the write, because nothing may fail after the commit point.
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
        """Count the rows of each send per bucket, or in one column if all rows go to a single bucket.

        Returns None for a primary-key table, in which sends have no separate offsets.
        """
        state = self._log_writer.table.state
        if self._keyed is not None:
            return None
        properties = state.parsed
        if len(nums_rows) == 1 or state.num_buckets == 1 or not properties.bucket_key:
            return np.array(nums_rows, np.int64)[:, None]
        state, whole, _ = self._log_writer.fit_rows(rows)
        keys = [whole.column(name) for name in state.parsed.bucket_key]
        buckets = row_buckets(keys, state.num_buckets, properties.datalake_format).astype(np.int64)
        calls = np.repeat(np.arange(len(nums_rows)), nums_rows)
        counts = np.bincount(calls * state.num_buckets + buckets, minlength=len(nums_rows) * state.num_buckets)
        return counts.reshape(len(nums_rows), state.num_buckets).astype(np.int64)


def _split_offsets(offsets: BucketOffsets, places: npt.NDArray[np.int64]) -> list[BucketOffsets]:
    """Split the offsets of all rows by send. In each bucket the rows have the order of the sends.

    If evaluated defaults enlarged the rows, so that they were spread over several buckets, each send gets all offsets.
    """
    is_spread = places.shape[1] == 1 and len(offsets) > 1
    if len(places) == 1 or not offsets or is_spread:
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
    """Return the error of a batch: ``unknown`` if an earlier attempt may have stored the rows, else ``error``."""
    return copy_error(error if unknown is None else unknown)
