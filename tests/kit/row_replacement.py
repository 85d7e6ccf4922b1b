"""Replacement of rows of a table without a primary key, as tasks and driver of an UPDATE do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from streamhouse_spark import Table
from streamhouse_spark.dml.rewrite import commit_rewrite
from streamhouse_spark.log.segments.metadata_columns import ROW_ID
from streamhouse_spark.log.staging import INLINE_BYTES_MAX, BucketRouter, RowStager
from streamhouse_spark.read.lake_row_ids import locate_row_ids, take_read_version
from streamhouse_spark.read.read_snapshot import take_latest_snapshot
from streamhouse_spark.read.scan_executor import read_batches
from streamhouse_spark.read.scan_planning import ScanRequest, plan_scan


def replace_rows(
    table: Table,
    wanted: Callable[[dict[str, Any]], bool],
    change: Callable[[dict[str, Any]], dict[str, Any] | None],
    meanwhile: Callable[[], None] = lambda: None,
    *,
    added: Sequence[dict[str, Any]] = (),
    inline_bytes_max: int = INLINE_BYTES_MAX,
) -> None:
    """Replace the rows that are wanted by changed ones, or delete those that change to None, and add others. Something
    happens between the read and the commit.
    """
    state = table.refresh()
    read = take_read_version(table, state)
    named = ScanRequest(None, names_rows=True)
    plan = plan_scan(table, take_latest_snapshot(state), named).plan(table)
    found = [row for batch in read_batches(table, plan, (ROW_ID,)) for row in batch.to_pylist()]
    chosen = [row for row in found if wanted(row)]
    ids = np.array([row[ROW_ID.name] for row in chosen], np.int64)
    changed = [change({name: row[name] for name in state.schema.names}) for row in chosen]
    updated = [row for row in changed if row is not None]
    new = [*updated, *added]
    routing, options = BucketRouter.of(state.num_buckets, state.parsed), table.segment_options(state)
    stager = RowStager(table.storage, table.uuid, options, routing, table.world, inline_bytes_max=inline_bytes_max)
    rows = pa.Table.from_pylist(new, state.schema.arrow)
    staged = stager.stage(rows, num_updated=len(updated)) if new else None
    of_old = locate_row_ids(table, state, read, ids)
    of_updated = locate_row_ids(table, state, read, ids[[row is not None for row in changed]])
    meanwhile()
    commit_rewrite(table, of_old, staged, read, of_updated)
