"""The interface through which a writer commits batches to a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from streamhouse_spark.core.types import BucketOffsets, Transaction
from streamhouse_spark.keys.keyed_batch import Bools
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.staging import Require
from streamhouse_spark.schema.constraints.check_constraint import Check


class WriteTarget(Protocol):
    """Commits each batch in one record. `LogTableWriter` implements it for log tables, `UpsertTarget` for primary-key
    tables.
    """

    @property
    def cached_state(self) -> TableState: ...

    @property
    def mixes_deletions(self) -> bool:
        """Whether one commit may hold rows and deletions, in the order in which they were sent."""

    def fit_rows(self, rows: Any) -> tuple[TableState, pa.Table, frozenset[int]]:
        """Convert rows; see `LogTableWriter.fit_rows`."""

    def checks(self, state: TableState) -> Sequence[Check]:
        """Return the constraints to check against rows as they are sent."""

    def keys(self, keys: Any) -> pa.Table:
        """Convert keys to delete. Raises `InvalidOptionError` if the table does not support deletes by key."""

    def append(self, rows: Any, transaction: Transaction | None, *, require: Require | None) -> BucketOffsets:
        """Append or upsert rows. Returns the offsets of the commit."""

    def delete(self, keys: pa.Table, transaction: Transaction | None, *, require: Require | None) -> BucketOffsets:
        """Delete rows by key. Returns as `append`."""

    def change(
        self,
        rows: pa.Table,
        keys: pa.Table,
        deleted: Bools,
        transaction: Transaction | None,
        *,
        require: Require | None,
    ) -> BucketOffsets:
        """Write rows and delete keys in the order of ``deleted``: True stands for the next key, False for the next row.

        Returns as `append`.
        """
