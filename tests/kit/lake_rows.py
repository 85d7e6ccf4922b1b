"""All rows of a planned read of a lake, at once."""

# ruff: noqa: A002 - `filter` is what pyarrow, and so every reader of the package, calls it
from __future__ import annotations

import pyarrow as pa

from streamhouse_spark.core.concurrency import parallel_map
from streamhouse_spark.lake.base import LakeTable
from streamhouse_spark.lake.parquet.merge_on_read import read_split
from streamhouse_spark.lake.types import Filter, LakePlan, LakeSplit


def lake_rows(lake: LakeTable, plan: LakePlan, *, filter: Filter = None) -> pa.Table:
    def read(split: LakeSplit) -> pa.Table:
        files = lake.binding.files_at(split.location)
        batches = read_split(files, split, plan.projection, filter=filter, threads=True)
        return pa.Table.from_batches(batches, schema=plan.projection.schema.arrow)

    tables = list(parallel_map(read, plan.splits))
    return pa.concat_tables(tables) if tables else plan.projection.schema.arrow.empty_table()
