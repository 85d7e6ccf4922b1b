"""Commits the batches of a writer to a primary-key table: upserts and deletes by key.

A batch becomes one net change per key. So a send has no separate offsets: its future has the offsets of all changes of
the batch. Interleaved upserts and deletes share a batch. A delete discards the earlier rows of its key, and later rows
are inserts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from streamhouse_spark.core import arrow_rows
from streamhouse_spark.core.types import BucketOffsets, Transaction
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.expressions.check_constraints import Check
from streamhouse_spark.keys.keyed_batch import Bools
from streamhouse_spark.log.append_commit import StateCheck
from streamhouse_spark.log.state import TableState
from streamhouse_spark.schema.row_conversion import convert_to_schema, is_rereadable
from streamhouse_spark.write.upsert import PrimaryKeySchema, PrimaryKeyTable, drop_ignored_deletions, pad_columns


class UpsertTarget:
    """Commits the batches of a writer by key."""

    def __init__(self, keyed: PrimaryKeyTable) -> None:
        self._keyed = keyed

    @property
    def mixes_deletions(self) -> bool:
        """Whether upserts and deletes may share a record.

        With an identity column they may not: a row that is deleted and written in one record keeps its identity value.
        """
        return self._keyed.table.state.parsed.identity is None

    def checks(self, state: TableState) -> Sequence[Check]:
        """Return the constraints to check in `send`; none if the merge engine may change the row before its commit."""
        keyed_schema = self._keyed.keyed_schema(state)
        return keyed_schema.properties.checks if keyed_schema.properties.merge_engine == "last_row" else ()

    def keys(self, keys: Any) -> pa.Table:
        keyed_schema = self._keyed.keyed_schema()
        try:
            key_rows = self._keyed.keys(keys, keyed_schema)
        except SchemaMismatchError:
            latest = self._keyed.keyed_schema(self._keyed.table.refresh())
            if latest is keyed_schema or not is_rereadable(keys):
                raise
            keyed_schema, key_rows = latest, self._keyed.keys(keys, latest)
        drop_ignored_deletions(keyed_schema, key_rows, np.ones(key_rows.num_rows, np.bool_))
        return key_rows

    def append(self, rows: Any, transaction: Transaction | None, *, require: StateCheck | None) -> BucketOffsets:
        """Upsert rows. Returns the offsets of the commit."""
        return self._keyed.upsert(rows, transaction=transaction, require=require)

    def delete(self, keys: pa.Table, transaction: Transaction | None, *, require: StateCheck | None) -> BucketOffsets:
        return self._keyed.delete(keys, transaction=transaction, require=require)

    def change(
        self,
        rows: pa.Table,
        transaction: Transaction | None,
        *,
        keys: pa.Table,
        deleted: Bools,
        require: StateCheck | None,
    ) -> BucketOffsets:
        """Write rows and delete keys in one record. ``deleted`` is their order: True for a key, False for a row."""

        def write(keyed_schema: PrimaryKeySchema) -> BucketOffsets:
            older = self._keyed.table.state.schemas
            upserted = pad_columns(
                convert_to_schema(rows, keyed_schema.schema, table=keyed_schema.name, older=older), keyed_schema.schema
            )
            padded = _interleave(
                upserted, pad_columns(self._keyed.keys(keys, keyed_schema), keyed_schema.schema), deleted
            )
            return self._keyed.commit_rows(keyed_schema, padded, deleted, None, transaction, require=require)

        return self._keyed.write_with_retries(write, rows, transaction)


def _interleave(rows: pa.Table, keys: pa.Table, deleted: Bools) -> pa.Table:
    """Return rows and keys, which have the same columns, in the order of ``deleted``."""
    places = np.empty(len(deleted), np.int64)
    places[~deleted] = np.arange(rows.num_rows)
    places[deleted] = np.arange(rows.num_rows, len(deleted))
    combined = (
        pa.chunked_array([*a.chunks, *b.chunks], a.type) for a, b in zip(rows.columns, keys.columns, strict=True)
    )
    return pa.Table.from_arrays(
        [arrow_rows.take_values(c, places, distinct=True) for c in combined], names=rows.column_names
    )
