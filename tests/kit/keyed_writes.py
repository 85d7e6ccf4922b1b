"""Writes of one batch of rows and deletions to a table with a primary key, as the tasks of Spark make them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark import BucketOffsets, Table, Transaction
from streamhouse_spark.kv.primary_key_properties import engine_of
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.write.upsert import (
    drop_ignored_deletions,
    order_deletions_first,
    require_unique_keys,
    resolve_targets,
)

Bools = npt.NDArray[np.bool_]


def change(
    table: Table,
    rows: pa.Table,
    deleted: Bools,
    *,
    columns: Sequence[str] | None = None,
    transaction: Transaction | None = None,
    overwrite: bool = False,
) -> BucketOffsets:
    """Apply upserts and deletes in their order; ``rows`` has all columns of the newest known schema."""
    shape = table.keyed.keyed_schema()
    engine = engine_of(shape.properties, shape.schema, resolve_targets(shape, columns))
    batches = shape.batches(*drop_ignored_deletions(shape, rows, deleted))
    return table.keyed.commit(shape, batches, engine, transaction=transaction, overwrite=overwrite)


def rewrite(table: Table, rows: pa.Table, deleted: Bools, *, read: ReadVersion) -> BucketOffsets:
    """Commit the rows of an UPDATE, DELETE or MERGE that read the table, in one commit; they have no order."""
    shape = table.keyed.keyed_schema()
    batches = shape.batches(*order_deletions_first(shape, rows, deleted))
    for batch in batches.values():
        require_unique_keys(shape, batch)
    return table.keyed.commit(shape, batches, engine_of(shape.properties, shape.schema), read=read)
