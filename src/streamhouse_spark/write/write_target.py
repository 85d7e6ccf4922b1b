"""The table that the batches of a writer go to."""

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
    """Takes rows, each batch in one commit. `LogTableWriter` is that of a log table, `UpsertTarget` of one with a
    primary key.
    """

    @property
    def cached_state(self) -> TableState: ...

    @property
    def mixes_deletions(self) -> bool:
        """Whether one commit takes rows and deletions, in the order in which they were sent."""

    def fit_rows(self, rows: Any) -> tuple[TableState, pa.Table, frozenset[int]]:
        """See `LogTableWriter.fitted`."""

    def checks(self, state: TableState) -> Sequence[Check]:
        """Return the constraints that rows have to keep as they are sent."""

    def keys(self, keys: Any) -> pa.Table:
        """Convert the keys of rows to delete. Raises `InvalidOptionError` where none can be deleted by key."""

    def append(self, rows: Any, transaction: Transaction | None, *, require: Require | None) -> BucketOffsets:
        """Write rows. Returns the offsets of what the commit wrote."""

    def delete(self, keys: pa.Table, transaction: Transaction | None, *, require: Require | None) -> BucketOffsets:
        """Delete the rows of keys. Returns as `append`."""

    def change(
        self,
        rows: pa.Table,
        keys: pa.Table,
        deleted: Bools,
        transaction: Transaction | None,
        *,
        require: Require | None,
    ) -> BucketOffsets:
        """Write rows and delete the rows of keys, in the order of ``deleted``: True stands for the next key, False for
        the next row. Returns as `append`.
        """
