"""Mistakes about what statements say: keys that a MERGE inserts, lengths of texts, names, times; and who finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from faults.plants import patched, plant
from faults.scenarios import Run
from streamhouse_spark.core.text_size import TextSize
from streamhouse_spark.errors import OffsetsTrimmedError, SchemaMismatchError
from streamhouse_spark.kv.read_base import ReadBase
from streamhouse_spark.kv.staged_changes import ChangeStager
from streamhouse_spark.log.segments import statistics
from streamhouse_spark.read import pin
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.write.intents import BucketIntents, IntentWrite, commit


@plant
def merges_insert_over_rows() -> Iterator[None]:
    with patched((ChangeStager, "_require_new", lambda *_: None)):
        yield


@plant
def texts_keep_the_length_that_they_come_with() -> Iterator[None]:
    with patched((TextSize, "fitted", lambda _, texts: texts)):
        yield


@plant
def names_that_begin_with_a_dot_are_paths() -> Iterator[None]:
    def distinct(rows: pa.Table) -> pa.Table:
        return rows.group_by(rows.column_names, use_threads=False).aggregate([])

    with patched((statistics, "distinct", distinct)):
        yield


@plant
def tables_were_empty_before_they_were_made() -> Iterator[None]:
    with patched((pin, "_require_made_before", lambda *_: None)):
        yield


def a_merge_that_inserts_a_key_that_is_there() -> None:
    table = Run().warehouse.create_table("sales.keyed", "id BIGINT, n BIGINT", primary_key=["id"])
    table.upsert([{"id": 1, "n": 1}])

    def read(schema: TableSchema) -> BucketIntents:
        return BucketIntents(pa.table([[1], [2]], schema=schema.arrow), np.array([False]), np.array([True]))

    with pytest.raises(SchemaMismatchError):
        commit(table.keyed, IntentWrite(rewrites=True), {0: read}, read=ReadBase.of(table.refresh()))


def texts_of_a_length() -> None:
    table = Run().warehouse.create_table("sales.sized", "c CHAR(3), v VARCHAR(2)")
    table.append([{"c": "a", "v": "xy  "}])
    assert table.to_arrow().to_pylist() == [{"c": "a  ", "v": "xy"}]
    with pytest.raises(SchemaMismatchError):
        table.append([{"v": "xyz"}])


def a_partition_column_with_a_leading_dot() -> None:
    table = Run().warehouse.create_table("sales.dotted", "id BIGINT, `.day` STRING", partition_by=[".day"])
    try:
        table.append([{"id": 1, ".day": "x"}])
    except pa.ArrowInvalid as error:
        raise AssertionError(f"the name is a path: {error}") from error


def a_time_before_a_table() -> None:
    table = Run().warehouse.create_table("sales.late", "id BIGINT")
    with pytest.raises(OffsetsTrimmedError):
        table.to_arrow(as_of_timestamp_ms=table.state.created_ms - 1)


FINDERS: dict[str, Callable[[], Any]] = {
    "merges_insert_over_rows": a_merge_that_inserts_a_key_that_is_there,
    "texts_keep_the_length_that_they_come_with": texts_of_a_length,
    "names_that_begin_with_a_dot_are_paths": a_partition_column_with_a_leading_dot,
    "tables_were_empty_before_they_were_made": a_time_before_a_table,
}
