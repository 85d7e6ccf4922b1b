"""Upserts and deletes by key that several processes stage, as intents and prepared changes.

An *intent* is a row and its effect on the key: upsert or delete. The resulting change depends on the row of the key at
the commit. A process with all intents of a bucket may *prepare* the changes against the current rows. The commit adds
prepared changes if the bucket has no newer rows, and otherwise recomputes the changes from the intents.
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
from streamhouse_spark.schema.column_defaults import evaluate_defaults
from streamhouse_spark.schema.default_expressions import StatementContext
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
    """Whether a MERGE inserts each row because it matched none; None if unknown."""


ReadIntents = Callable[[TableSchema], BucketIntents]
"""Reads the intents of one bucket, with the columns of a schema."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IntentWrite:
    """How a statement converts intents to changes. All of its processes have the same value."""

    columns: tuple[str, ...] | None = None
    """Columns of a partial update; None for whole rows."""
    overwrites: bool = False
    """Whether the intents replace all rows of the table."""
    rewrites: bool = False
    """Whether the statement is UPDATE, DELETE or MERGE; see `order_deletions_first`."""
    now: StatementContext | None = None
    """The time at which functions in defaults are evaluated, for columns that a partial update omits."""

    def engine(self, keyed_schema: PrimaryKeySchema) -> MergeEngine:
        schema = keyed_schema.schema if self.now is None else evaluate_defaults(keyed_schema.schema, self.now)
        return engine_of(keyed_schema.properties, schema, resolve_targets(keyed_schema, self.columns))

    def batch(self, keyed_schema: PrimaryKeySchema, read: ReadIntents) -> KeyedBatch:
        """Convert intents to a batch. Raises `InvalidOptionError` and `SchemaMismatchError` for invalid rows."""
        rows, deleted, inserted = read(keyed_schema.schema)
        if not self.rewrites:
            return keyed_schema.batch(*drop_ignored_deletions(keyed_schema, rows, deleted))
        batch = keyed_schema.batch(*order_deletions_first(keyed_schema, rows, deleted))
        require_unique_keys(keyed_schema, batch)
        if inserted is None or keyed_schema.properties.insert_existing == "upsert":
            return batch
        return replace(batch, inserted=keyed_schema.find_inserted_keys(batch, rows, inserted))


def prepare_changes(
    keyed: PrimaryKeyTable, write: IntentWrite, intents: Mapping[int, ReadIntents]
) -> tuple[PreparedChanges, ...]:
    """Compute and stage the changes that result from the intents and the current rows. They are durable, not visible.

    No other process may have intents of these buckets. Buckets that fail are omitted; the commit reports the error.
    """
    changes = []
    for bucket, read in intents.items():
        try:
            prepared = _prepare_changes(keyed, write, bucket, read)
        except StreamhouseError as error:
            logger.warning("bucket %d of %s is not prepared before the commit: %s", bucket, keyed.table.name, error)
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
        keyed_schema = keyed.keyed_schema(state)
        at = EMPTY_POSITION if write.overwrites else bucket_position(state, bucket)
        stager = keyed.stager(keyed_schema, write.engine(keyed_schema), state)
        try:
            staged = stager.stage({bucket: write.batch(keyed_schema, read)}, {bucket: at}, state)[bucket]
        except StaleStateError:
            continue
        return PreparedChanges(
            bucket, at, staged.segment, state.schema_id, keyed_schema.properties, staged_ms, staged.is_blind
        )
    return None


def commit_prepared(
    keyed: PrimaryKeyTable,
    write: IntentWrite,
    intents: Mapping[int, ReadIntents],
    prepared: Iterable[PreparedChanges] = (),
    *,
    transaction: Transaction | None = None,
    read: ReadVersion | None = None,
    choose: OverwriteFilterFactory | None = None,
) -> BucketOffsets:
    """Commit the changes that result from the intents, by the cached schema, in one record.

    ``prepared`` are changes that `prepare_changes` computed from **all** intents of their bucket. While they are valid,
    the intents are not read. ``read`` requires ``write.rewrites``. With ``choose`` the intents replace the rows of
    partitions, and prepared changes are ignored.
    """
    keyed_schema = keyed.keyed_schema()
    if choose is not None:
        all_batches = {bucket: write.batch(keyed_schema, read_intents) for bucket, read_intents in intents.items()}
        return keyed.replace_partitions(keyed_schema, all_batches, choose, transaction=transaction, read=read)
    ready = {p.bucket: p for p in prepared if p.matches_schema(keyed_schema.layout.schema_id, keyed_schema.properties)}
    batches = _LazyBatches(
        {bucket: partial(write.batch, keyed_schema, read_intents) for bucket, read_intents in intents.items()}
    )
    for bucket in intents.keys() - ready.keys():  # before the commit attempt, for which other threads wait
        batches[bucket]
    return keyed.commit(
        keyed_schema,
        batches,
        write.engine(keyed_schema),
        prepared=ready,
        transaction=transaction,
        overwrite=write.overwrites,
        read=read,
    )


class _LazyBatches(Mapping[int, KeyedBatch]):
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
