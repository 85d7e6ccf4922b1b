"""Writes whose rows several processes stage, as intents and prepared changes.

*Intents* are rows with their effect on their key. The resulting changes depend on the table's rows at the commit. A
process with all intents of a bucket may *prepare* these changes against the current rows. The commit adds them if the
bucket has not moved since, and otherwise recomputes them from the intents. So preparing in many processes costs the
committing process nothing, and wasted work costs no more than its file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import BucketOffsets, Transaction
from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.expressions.partition_filter import OverwriteFilterFactory
from streamhouse_spark.keys.keyed_batch import Bools, KeyedBatch
from streamhouse_spark.kv.change_staging import EMPTY_POSITION, PreparedChanges, StaleStateError, bucket_position
from streamhouse_spark.kv.merge_engines import MergeEngine
from streamhouse_spark.kv.primary_key_properties import engine_of
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.schema.default_values import StatementContext
from streamhouse_spark.schema.defaults import evaluate_defaults
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.write.upsert import (
    PrimaryKeySchema,
    PrimaryKeyTable,
    drop_ignored_deletions,
    order_deletions_first,
    require_unique_keys,
    resolve_targets,
)

PREPARE_TRIES_MAX: Final = 3


class BucketIntents(NamedTuple):
    """All intents of a bucket, in order."""

    rows: pa.Table
    """Rows with all columns of the schema."""
    deleted: Bools
    """Whether each row deletes its key."""
    inserted: Bools | None = None
    """Whether each row is inserted by a MERGE that matched no row; None if that is unknown."""


ReadIntents = Callable[[TableSchema], BucketIntents]
"""Reads the intents of one bucket by a schema of the table."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IntentWrite:
    """How a write turns intents into changes; the same for preparing and committing processes."""

    columns: tuple[str, ...] | None = None
    """Columns of a partial update; None for whole rows."""
    overwrites: bool = False
    """Whether the intents replace all rows of the table."""
    rewrites: bool = False
    """Whether it is an UPDATE, DELETE or MERGE: see `order_deletions_first`."""

    now: StatementContext | None = None
    """The time for defaults that are functions, of columns that a partial update does not name."""

    def engine(self, shape: PrimaryKeySchema) -> MergeEngine:
        schema = shape.schema if self.now is None else evaluate_defaults(shape.schema, self.now)
        return engine_of(shape.properties, schema, resolve_targets(shape, self.columns))

    def batch(self, shape: PrimaryKeySchema, read: ReadIntents) -> KeyedBatch:
        """Turn intents into a batch.

        Raises as `drop_ignored_deletions`, `order_deletions_first` and `require_unique_keys` for invalid rows.
        """
        rows, deleted, inserted = read(shape.schema)
        if not self.rewrites:
            return shape.batch(*drop_ignored_deletions(shape, rows, deleted))
        batch = shape.batch(*order_deletions_first(shape, rows, deleted))
        require_unique_keys(shape, batch)
        if inserted is None or shape.properties.insert_existing == "upsert":
            return batch
        return replace(batch, inserted=shape.find_inserted_keys(batch, rows, inserted))


def prepare(
    keyed: PrimaryKeyTable, write: IntentWrite, intents: Mapping[int, ReadIntents]
) -> tuple[PreparedChanges, ...]:
    """Compute and stage the changes that the intents make now. Durable but not visible when this returns.

    No other process may have intents of these buckets. Preparing is optional: if it fails, or the table rejects the
    rows, the bucket is left out, and the commit meets the error.
    """
    changes = []
    for bucket, read in intents.items():
        try:
            prepared = _prepare_changes(keyed, write, bucket, read)
        except StreamhouseError as error:
            logger.warning("bucket %d of %s is left to who commits, because: %s", bucket, keyed.table.name, error)
            continue
        if prepared is not None:
            changes.append(prepared)
    return tuple(changes)


def _prepare_changes(
    keyed: PrimaryKeyTable, write: IntentWrite, bucket: int, read: ReadIntents
) -> PreparedChanges | None:
    table = keyed.table
    staged_ms = table.storage.now_ms()
    for _ in range(PREPARE_TRIES_MAX):
        state = table.refresh()
        shape = keyed.shape(state)
        at = EMPTY_POSITION if write.overwrites else bucket_position(state, bucket)
        stager = keyed.stager(shape, write.engine(shape), state)
        try:
            staged = stager.stage({bucket: write.batch(shape, read)}, {bucket: at}, state)[bucket]
        except StaleStateError:
            continue
        return PreparedChanges(
            bucket, at, staged.segment, state.schema_id, shape.properties, staged_ms, staged.is_blind
        )
    return None


def commit(
    keyed: PrimaryKeyTable,
    write: IntentWrite,
    intents: Mapping[int, ReadIntents],
    prepared: Iterable[PreparedChanges] = (),
    *,
    transaction: Transaction | None = None,
    read: ReadVersion | None = None,
    choose: OverwriteFilterFactory | None = None,
) -> BucketOffsets:
    """Commit the changes that the intents of buckets make by the latest cached schema, in one record.

    ``prepared`` are changes that `prepare` made from **all** intents of their bucket: if they are still valid, the
    intents are not read. ``read`` requires ``write.rewrites``. With ``choose`` the intents replace the rows of
    partitions, and nothing is prepared.
    """
    shape = keyed.shape()
    if choose is not None:
        bucket_batches = {bucket: write.batch(shape, of_bucket) for bucket, of_bucket in intents.items()}
        return keyed.replace_partitions(shape, bucket_batches, choose, transaction=transaction, read=read)
    ready = {p.bucket: p for p in prepared if p.matches_schema(shape.layout.schema_id, shape.properties)}
    batches = _Batches(
        {bucket: partial(write.batch, shape, bucket_batches) for bucket, bucket_batches in intents.items()}
    )
    for bucket in intents.keys() - ready.keys():  # before the commit attempt, for which other threads wait
        batches[bucket]
    return keyed.commit(
        shape,
        batches,
        write.engine(shape),
        prepared=ready,
        transaction=transaction,
        overwrite=write.overwrites,
        read=read,
    )


class _Batches(Mapping[int, KeyedBatch]):
    """Batches of buckets, each computed on first use and cached."""

    def __init__(self, makers: Mapping[int, Callable[[], KeyedBatch]]) -> None:
        self._makers = makers
        self._batches: dict[int, KeyedBatch] = {}

    def __getitem__(self, bucket: int) -> KeyedBatch:
        if bucket not in self._batches:
            self._batches[bucket] = self._makers[bucket]()
        return self._batches[bucket]

    def __iter__(self) -> Iterator[int]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)
