"""The batches of a writer to a table with a primary key: upserts and deletions by key.

A batch becomes one net change of each key, so its calls have no offsets of their own: each is answered with those of
all changes of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from streamhouse_spark.core.model import BucketOffsets, Transaction
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.log.append import Require
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.schema.checks.check import Check
from streamhouse_spark.schema.rows import can_be_read_again
from streamhouse_spark.write.append import Appends
from streamhouse_spark.write.upsert import KeyedTable, allowed


class KeyedSends:
    """A `Destination`. **Commit points:** those of `Table.upsert` and `Table.delete`."""

    def __init__(self, keyed: KeyedTable, appends: Appends) -> None:
        self._keyed = keyed
        self._appends = appends

    @property
    def known(self) -> TableState:
        return self._keyed.table.state

    def fitted(self, rows: Any) -> tuple[TableState, pa.Table, frozenset[int]]:
        return self._appends.fitted(rows)

    def checks(self, state: TableState) -> Sequence[Check]:
        """Return none where a row may become another one by the row that is stored: then a batch is checked as one."""
        shape = self._keyed.shape(state)
        return shape.properties.checks if shape.properties.merge_engine == "last_row" else ()

    def keys(self, keys: Any) -> pa.Table:
        shape = self._keyed.shape()
        try:
            found = self._keyed.keys(keys, shape)
        except SchemaMismatchError:
            newest = self._keyed.shape(self._keyed.table.refresh())
            if newest is shape or not can_be_read_again(keys):
                raise
            shape, found = newest, self._keyed.keys(keys, newest)
        allowed(shape, found, np.ones(found.num_rows, np.bool_))
        return found

    def append(self, rows: Any, transaction: Transaction | None, *, require: Require | None) -> BucketOffsets:
        return self._keyed.upsert(rows, transaction=transaction, require=require)

    def delete(self, keys: pa.Table, transaction: Transaction | None, *, require: Require | None) -> BucketOffsets:
        return self._keyed.delete(keys, transaction=transaction, require=require)
