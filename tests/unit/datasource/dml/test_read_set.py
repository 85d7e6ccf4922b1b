"""The rows that a statement may have read, by the filters that were pushed into its scan."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from streamhouse_spark.datasource.dml.read_set import ReadSet
from streamhouse_spark.log.read_version import ReadVersion

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "price": pa.float64(), "raw": pa.binary()})


@pytest.fixture
def state(wh):
    return wh.create_table("d.t", "id BIGINT, name STRING, price DOUBLE, raw BINARY", primary_key=["id"]).state


def scope(state, *filters, reads_once=True):
    text = json.dumps({"reads_once": reads_once, "schema_id": state.schema_id, "filters": filters})
    return ReadSet.from_text(text).restrict(ReadVersion.of(state))


def compared(op, column, value, kind):
    return {"op": op, "children": [{"column": [column]}, {"literal": value, "type": json.dumps(kind)}]}


def rows(**columns):
    number = max(map(len, columns.values()))
    return pa.record_batch([pa.array(columns.get(f.name, [None] * number), f.type) for f in SCHEMA], schema=SCHEMA)


def test_rows_that_filters_leave_out_were_not_read(state):
    found = scope(state, compared("=", "id", 5, "long"), compared(">", "price", 1.0, "double"))
    assert found.scope(state, rows(id=[5], price=[2.0]))
    assert found.scope(state, rows(id=[4, 5], price=[2.0, 2.0]))
    assert not found.scope(state, rows(id=[6], price=[2.0]))
    assert not found.scope(state, rows(id=[5], price=[1.0]))
    assert not found.scope(state, rows(id=[5]))  # null is above no number
    assert found.scope(state, rows(id=[5], price=[float("nan")]))


def test_rows_are_told_apart_although_they_lie_around_what_was_read(state):
    found = scope(state, compared("=", "id", 500, "long"))
    keys = [key for key in range(0, 1000, 20) if key != 500]
    assert not found.scope(state, rows(id=keys))
    assert found.scope(state, rows(id=sorted([*keys, 500])))


def test_what_cannot_be_told_was_read(state):
    assert scope(state, {"unknown": "f(id)"}).scope(state, rows(id=[6]))
    assert scope(state, compared("=", "raw", "AA==", "binary")).scope(state, rows(id=[6], raw=[b"other"]))
    assert scope(state).scope is None  # all rows


def test_names_may_mean_other_columns_after_an_alteration(wh, state):
    found = scope(state, compared("=", "id", 5, "long"))
    table = wh.table("d.t")
    table.alter(rename_columns={"price": "cost"})
    assert found.scope(table.refresh(), rows(id=[6]))


def test_reading_twice_minds_everything(state):
    assert scope(state, reads_once=False).is_strict
    assert not scope(state).is_strict
