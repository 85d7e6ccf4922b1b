"""Descriptions of data files in a Paimon manifest: bounds that hold, and nothing that the file does not tell."""

from __future__ import annotations

import datetime as dt
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from interop.lake_cases import EVERY_TYPE, TABLE_UUID
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.lake.paimon.evolution import evolve_lake
from streamhouse_spark.lake.paimon.file_spec import PaimonFileSpec, _upper_text_bound, decode_field, encode_field
from streamhouse_spark.lake.paimon.schema import find_differences, lake_schema, paimon_schema
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.schema.table_schema import TableSchema


def _spec(schema: TableSchema, **more) -> LakeTableSpec:
    return LakeTableSpec(TABLE_UUID, TablePath("a", "b"), "lake/a.db/b", schema, (), (), 1, **more)


def _shape(schema: TableSchema) -> PaimonFileSpec:
    return PaimonFileSpec(paimon_schema(_spec(schema), 0), "/wh/lake/a.db/b")


def _bounds(schema: TableSchema, rows: pa.Table, row_group_rows: int = 1000) -> dict[str, tuple]:
    shape, sink = _shape(schema), io.BytesIO()
    with pq.ParquetWriter(sink, shape.file_schema, **shape.writer_options) as writer:
        writer.write_table(rows.cast(shape.file_schema), row_group_size=row_group_rows)
    found = shape.statistics(pq.read_metadata(pa.BufferReader(sink.getvalue())))
    fields = {field.id: field for field in shape.schema.fields}
    return {
        fields[i].name: (
            decode_field(found["lower_bounds"][i], fields[i]),
            decode_field(found["upper_bounds"][i], fields[i]),
            null_count,
        )
        for i, null_count in found["null_counts"].items()
    }


def test_bounds_of_all_row_groups():
    schema = TableSchema.of("id bigint, name string, day date, at timestamp, f double, ok boolean, d decimal(9,2)")
    days = [dt.date(2026, 1, 1), None, dt.date(1900, 2, 28), dt.date(2030, 1, 1)]
    rows = pa.table(
        {
            "id": [3, None, -(2**63), 2**63 - 1],
            "name": ["b", "a", None, "ü"],
            "day": days,
            "at": pa.array([1, 5, None, -7], pa.timestamp("us", "UTC")),
            "f": [float("nan"), 1.0, 2.0, 3.0],
            "ok": [True, None, True, False],
            "d": pa.nulls(4, pa.decimal128(9, 2)),
        },
        schema=schema.arrow,
    )
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    for row_group_rows in (1, 3, 4):
        assert _bounds(schema, rows, row_group_rows) == {
            "id": (-(2**63), 2**63 - 1, 1),
            "name": ("a", "ü", 1),
            "day": (dt.date(1900, 2, 28), dt.date(2030, 1, 1), 1),
            "at": (epoch - dt.timedelta(microseconds=7), epoch + dt.timedelta(microseconds=5), 1),
        }, "of floating point nothing is said, because of NaN"


def test_columns_without_values_and_those_that_python_cannot_count():
    schema = TableSchema.of("id bigint, early timestamp_ntz, long string")
    rows = pa.table(
        {
            "id": pa.nulls(2, pa.int64()),
            "early": pa.array([-(10**18), 1], pa.timestamp("us")),
            "long": ["x" * 5000, "y"],
        },
        schema=schema.arrow,
    )
    assert _bounds(schema, rows) == {"id": (None, None, 2)}


def test_a_nested_column_is_not_taken_for_one_of_its_name():
    schema = TableSchema.of("`a.b` bigint, a struct<b: bigint>")
    rows = pa.table({"a.b": [1, 2], "a": [{"b": 100}, {"b": 200}]}, schema=schema.arrow)
    assert _bounds(schema, rows) == {"a.b": (1, 2, 0)}


@pytest.mark.parametrize(
    ("text", "above"),
    [
        ("short", "short"),
        ("x" * 16, "x" * 16),
        ("x" * 17, "x" * 15 + "y"),
        ("a" * 15 + "\ud7ff" + "b", "a" * 15 + "\ue000"),
        ("a" * 15 + "\U0010ffff" + "b", "a" * 14 + "b"),
        ("\U0010ffff" * 20, None),
    ],
)
def test_long_texts_have_a_short_one_above_them(text, above):
    assert _upper_text_bound(text) == above
    assert above is None or above.encode() >= text.encode()[: len(above.encode())]


def test_schemas_come_back_from_paimon():
    lake = paimon_schema(_spec(EVERY_TYPE), 0)
    assert [(c.name, c.type, c.nullable) for c in lake_schema(lake).columns] == [
        (c.name, c.type, c.nullable) for c in EVERY_TYPE.columns
    ]
    assert find_differences(lake, _spec(EVERY_TYPE)) == []
    ids = [field.id for field in lake.fields]
    assert ids == list(range(len(ids)))
    assert lake.highest_field_id == len(ids) + 1, "the fields of the struct come behind"
    assert evolve_lake(lake, _spec(EVERY_TYPE), 0).schema is lake


def test_added_columns_get_ids_that_none_ever_had():
    first = paimon_schema(_spec(TableSchema.of("id bigint, s struct<x: int>")), 0)
    wider = TableSchema.of("id bigint, s struct<x: int>, t struct<y: int>, n int")
    second = evolve_lake(first, _spec(wider), 0).schema
    assert [(f.id, f.name) for f in second.fields] == [(0, "id"), (1, "s"), (3, "t"), (4, "n")]
    assert (second.id, first.highest_field_id, second.highest_field_id) == (1, 2, 5)
    assert find_differences(second, _spec(wider)) == []
    assert find_differences(first, _spec(wider)) == [
        "column 't' (ROW<y: INT>) is missing",
        "column 'n' (INT) is missing",
    ]


@pytest.mark.parametrize("value", [None, 0, -1, 2**62])
def test_single_values_come_back_from_paimons_binary_form(value):
    (field, *_) = paimon_schema(_spec(TableSchema.of("id bigint")), 0).fields
    assert decode_field(encode_field(value, field), field) == value
