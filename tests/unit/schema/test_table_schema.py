from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pytest

from streamhouse_spark import SchemaMismatchError
from streamhouse_spark.schema.table_schema import RESERVED_NAMES, RESERVED_PREFIXES, Column, TableSchema

ORDERS = (
    "order_id BIGINT NOT NULL COMMENT 'key', customer STRING, amount DECIMAL(12,2), ts TIMESTAMP, tags ARRAY<STRING>"
)


class StructTypeLike:
    def json(self) -> str:
        return json.dumps({"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": False}]})


def test_columns_get_ids_in_their_order():
    schema = TableSchema.of(ORDERS)
    assert [(c.id, c.name) for c in schema.columns][:2] == [(1, "order_id"), (2, "customer")]
    assert schema.names == ("order_id", "customer", "amount", "ts", "tags")
    assert schema.columns[0] == Column(1, "order_id", pa.int64(), nullable=False, comment="key")


def test_the_arrow_schema_has_the_types_and_nullability_and_no_metadata():
    schema = TableSchema.of("a bigint not null comment 'x', b array<int>")
    expected = pa.schema(
        [pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.list_(pa.field("element", pa.int32())))],
    )
    assert schema.arrow.equals(expected, check_metadata=True)


def test_survives_json_ddl_and_pickle():
    schema = TableSchema.of(ORDERS)
    assert TableSchema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    assert TableSchema.of(schema.ddl()) == schema
    copy = pickle.loads(pickle.dumps(schema))
    assert copy == schema
    assert copy.arrow == schema.arrow
    assert copy.column("TS") == schema.column("ts")


def test_the_stored_json_is_as_written_in_format_1():
    assert TableSchema.of("id bigint not null, amount decimal(12,2) comment 'in euros'").to_json() == [
        {"id": 1, "name": "id", "type": "bigint", "nullable": False, "comment": None},
        {"id": 2, "name": "amount", "type": "decimal(12,2)", "nullable": True, "comment": "in euros"},
    ]


def test_takes_a_struct_type_without_pyspark():
    assert TableSchema.of(StructTypeLike()) == TableSchema((Column(1, "a", pa.int64(), nullable=False),))


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.dictionary(pa.int32(), pa.large_string()), "string"),
        (pa.run_end_encoded(pa.int32(), pa.int8()), "tinyint"),
        (pa.large_binary(), "binary"),
        (pa.binary(16), "binary"),
        (pa.uint8(), "smallint"),
        (pa.uint16(), "int"),
        (pa.uint32(), "bigint"),
        (pa.uint64(), "decimal(20,0)"),
        (pa.float16(), "float"),
        (pa.decimal256(20, 4), "decimal(20,4)"),
        (pa.date64(), "date"),
        (pa.timestamp("ns"), "timestamp_ntz"),
        (pa.timestamp("ms", tz="Europe/Vienna"), "timestamp"),
        (pa.large_list(pa.uint8()), "array<smallint>"),
        (pa.list_(pa.string(), 3), "array<string>"),
        (pa.list_view(pa.string()), "array<string>"),
        (pa.map_(pa.large_string(), pa.uint8()), "map<string,smallint>"),
        (pa.struct([pa.field("x", pa.uint8(), nullable=False)]), "struct<x:smallint>"),
    ],
)
def test_arrow_types_become_the_nearest_type_that_holds_them(given, stored):
    assert TableSchema.of(pa.schema([("a", given)])).to_json()[0]["type"] == stored


def test_takes_comments_of_arrow_fields():
    schema = TableSchema.of(pa.schema([pa.field("a", pa.int64(), nullable=False, metadata={"comment": "key"})]))
    assert schema.columns[0].comment == "key"


@pytest.mark.parametrize("arrow", [pa.null(), pa.time64("us"), pa.duration("us"), pa.decimal256(60, 2), pa.binary(0)])
def test_refuses_arrow_types_that_cannot_be_stored(arrow):
    if arrow == pa.binary(0):
        arrow = pa.sparse_union([pa.field("x", pa.int8())])
    with pytest.raises(SchemaMismatchError, match=r"column 'a|decimal"):
        TableSchema.of(pa.schema([("a", arrow)]))


def test_names_the_nested_field_of_a_type_that_cannot_be_stored():
    with pytest.raises(SchemaMismatchError, match=r"column 'a\.element\.t' has the Arrow type time64"):
        TableSchema.of(pa.schema([("a", pa.list_(pa.struct([("t", pa.time64("us"))])))]))


@pytest.mark.parametrize(
    "name", [*sorted(RESERVED_NAMES), "__BUCKET", "_Log_Offset", *(f"{p}Of_Mine".title() for p in RESERVED_PREFIXES)]
)
def test_columns_with_reserved_names_are_rejected(name):
    with pytest.raises(SchemaMismatchError, match="is reserved"):
        TableSchema.of(pa.schema([(name, pa.int64())]))


@pytest.mark.parametrize("name", ["", "a\0b", "a\nb", "x" * 256])
def test_refuses_names_that_cannot_be(name):
    with pytest.raises(SchemaMismatchError, match="column name is"):
        TableSchema.of(pa.schema([(name, pa.int64())]))


def test_refuses_names_that_differ_only_in_case():
    with pytest.raises(SchemaMismatchError, match="'Id' and 'ID'"):
        TableSchema.of("Id int, ID int")


def test_refuses_a_schema_without_columns():
    with pytest.raises(SchemaMismatchError, match="0 columns"):
        TableSchema.of(pa.schema([]))


def test_refuses_a_column_id_that_is_there_twice():
    with pytest.raises(SchemaMismatchError, match="id twice"):
        TableSchema((Column(1, "a", pa.int64()), Column(1, "b", pa.int64())))


def test_refuses_what_is_no_schema():
    with pytest.raises(SchemaMismatchError, match="is a int, expected"):
        TableSchema.of(5)  # type: ignore[arg-type]


def test_finds_columns_without_regard_to_case():
    schema = TableSchema.of(ORDERS)
    assert schema.column("ORDER_ID").name == "order_id"
    assert schema.find("nothing") is None


def test_an_unknown_column_names_the_nearest():
    with pytest.raises(
        SchemaMismatchError, match=r"no column 'amuont'; did you mean 'amount'\? The columns are order_id"
    ):
        TableSchema.of(ORDERS).column("amuont")


def test_select_keeps_ids_and_the_order_asked():
    selected = TableSchema.of(ORDERS).select(["TS", "order_id"])
    assert [(c.id, c.name) for c in selected.columns] == [(4, "ts"), (1, "order_id")]
