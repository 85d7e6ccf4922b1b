"""Replacement of rows of a table without a primary key, as tasks and driver of an UPDATE do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from streamhouse_spark.log.append import INLINE_BYTES_MAX, Routing, Stager
from streamhouse_spark.log.segments.metadata_columns import ROW_ID
from streamhouse_spark.read.executor import read_batches
from streamhouse_spark.read.file_rows import places_of_rows, read_base
from streamhouse_spark.read.pin import pin_newest
from streamhouse_spark.read.planner import Wanted, plan_pin
from streamhouse_spark.table.row_deletion import commit_rewrite
from streamhouse_spark.table.table import Table


def replace_rows(
    table: Table,
    wanted: Callable[[dict[str, Any]], bool],
    change: Callable[[dict[str, Any]], dict[str, Any]],
    meanwhile: Callable[[], None] = lambda: None,
    *,
    inline_bytes_max: int = INLINE_BYTES_MAX,
) -> None:
    """Replace the rows that are wanted by changed ones. Something happens between the read and the commit."""
    state = table.refresh()
    read = read_base(table, state)
    named = Wanted(None, names_rows=True)
    plan = plan_pin(table, pin_newest(state), named).plan(table)
    found = [row for batch in read_batches(table, plan, (ROW_ID,)) for row in batch.to_pylist()]
    chosen = [row for row in found if wanted(row)]
    ids = np.array([row[ROW_ID.name] for row in chosen], np.int64)
    new = [change({name: row[name] for name in state.schema.names}) for row in chosen]
    routing, options = Routing.of(state.num_buckets, state.parsed), table.segment_options(state)
    stager = Stager(table.storage, table.uuid, options, routing, table.world, inline_bytes_max=inline_bytes_max)
    staged = stager.stage(pa.Table.from_pylist(new, state.schema.arrow), frozenset()) if new else None
    old = places_of_rows(table, state, read, ids)
    meanwhile()
    commit_rewrite(table, old.rows, staged, read, old.files)
