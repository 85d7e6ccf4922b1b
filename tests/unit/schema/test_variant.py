from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kit.variants import readable_rows
from streamhouse_spark import CorruptDataError, SchemaMismatchError
from streamhouse_spark.schema import ddl, nested_fields
from streamhouse_spark.schema.row_conversion import convert_to_schema
from streamhouse_spark.schema.table_schema import TableSchema, canonical_type
from streamhouse_spark.schema.variant import (
    BYTES_MAX,
    VARIANT,
    as_variant,
    decode_variant,
    encode_variant,
    find_first_malformed,
    holds_variant,
    is_struct,
    is_variant,
    without_null_parts,
)

SCHEMA = TableSchema.of("id int, v variant")
PLAIN = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
ONE = encode_variant({"a": 1})


def rows_of(*values: object) -> pa.Table:
    return convert_to_schema([{"id": i, "v": value} for i, value in enumerate(values)], SCHEMA, table="t")


class TestType:
    def test_it_is_told_from_a_struct_of_the_same_fields(self):
        assert is_variant(VARIANT)
        assert is_variant(ddl.parse_type("VARIANT"))
        assert not is_variant(ddl.parse_type("struct<value:binary,metadata:binary>"))
        assert not is_variant(canonical_type(PLAIN, column="v"))
        assert not is_struct(VARIANT)
        assert is_struct(PLAIN)
        required = pa.struct([f.with_nullable(False) for f in PLAIN])
        assert canonical_type(required, column="v").equals(PLAIN), "nobody has marked it"

    def test_sparks_form_is_one(self):
        from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
        from pyspark.sql.types import VariantType

        assert canonical_type(to_arrow_type(VariantType()), column="v").equals(VARIANT, check_metadata=True)
        assert isinstance(from_arrow_type(VARIANT), VariantType)

    def test_it_has_no_fields_inside(self):
        assert nested_fields.list_field_paths(VARIANT) == []
        assert nested_fields.list_field_paths(pa.struct([("a", VARIANT), ("b", pa.int32())])) == [("a",), ("b",)]
        assert ddl.type_name(pa.list_(VARIANT)) == "array<variant>"

    @pytest.mark.parametrize(
        "schema",
        [
            "a array<variant>",
            "a struct<v:variant>",
            "a map<string,variant>",
            pa.schema([("a", pa.list_(VARIANT))]),
        ],
        ids=str,
    )
    def test_it_is_no_part_of_another_type(self, schema):
        with pytest.raises(
            SchemaMismatchError, match="VARIANT inside another type; change the whole column to VARIANT"
        ):
            TableSchema.of(schema)
        assert holds_variant(pa.map_(pa.string(), pa.list_(VARIANT)))

    def test_it_has_no_default(self):
        with pytest.raises(SchemaMismatchError, match="cannot have a default"):
            TableSchema.of("v variant default null + 1")

    def test_a_variant_column_comes_back_from_json_and_ddl(self):
        assert TableSchema.from_json(SCHEMA.to_json()) == SCHEMA
        assert SCHEMA.to_json()[1]["type"] == "variant"
        assert TableSchema.of(SCHEMA.ddl()) == SCHEMA


class TestRows:
    def test_python_values_are_stored_as_variants(self):
        from pyspark.sql.types import VariantVal

        values = [{"a": [1, None]}, [], "text", 5, True, Decimal("1.50"), dt.date(2026, 1, 31), b"\x00", None]
        assert [row["v"] for row in readable_rows(rows_of(*values))] == values
        given = rows_of(VariantVal(ONE["value"], ONE["metadata"]), ONE, encode_variant(None))
        assert [row["v"] for row in readable_rows(given)] == [{"a": 1}, {"a": 1}, None]
        assert given["v"].null_count == 0, "JSON's null is a value"
        assert given.schema.equals(SCHEMA.arrow, check_metadata=True)

    def test_arrow_structs_are_stored_as_variants(self):
        large = pa.struct([("metadata", pa.large_binary()), ("value", pa.binary_view())])
        for kind in (VARIANT, PLAIN, large):
            given = pa.table({"id": pa.array([1, 2], pa.int32()), "v": pa.array([ONE, None], kind)})
            found = convert_to_schema(given, SCHEMA, table="t")
            assert [row["v"] for row in readable_rows(found)] == [{"a": 1}, None]
            assert convert_to_schema(given.slice(1), SCHEMA, table="t")["v"].null_count == 1

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (object(), "a object cannot be stored in a variant"),
            ({1: 2}, "an object has a name of type int"),
            ({"a": {1}}, "a set cannot be stored"),
            (Decimal(10) ** 40, "more than 38 digits"),
            (Decimal("1e-39"), "more than 38 digits"),
            (Decimal("NaN"), "is not a number"),
            ("\ud800", "surrogates"),
            (10**400, "too large"),
            ("x" * BYTES_MAX, f"expected at most {BYTES_MAX}"),
        ],
        ids=lambda v: str(v)[:20].encode("ascii", "replace").decode(),
    )
    def test_python_values_that_none_can_be(self, value, message):
        with pytest.raises(
            SchemaMismatchError, match=f"column 'v' of t has a value that a variant cannot hold: .*{message}"
        ):
            rows_of(value)

    def test_variants_nested_too_deep_are_rejected(self):
        value: list = []
        for _ in range(300):
            value = [value]
        with pytest.raises(SchemaMismatchError, match="nested deeper"):
            rows_of(value)

    @pytest.mark.parametrize(
        ("kind", "value", "message"),
        [
            (pa.string(), "{}", r"parse the strings first \(in SQL with parse_json\)"),
            (pa.int32(), 1, "cast the values first"),
            (
                pa.struct([("value", pa.binary())]),
                {"value": b"1"},
                "expected a struct of the binary fields value and metadata",
            ),
            (
                pa.struct([("value", pa.string()), ("metadata", pa.binary())]),
                ONE | {"value": "1"},
                "expected a struct of the binary fields",
            ),
        ],
        ids=str,
    )
    def test_arrow_values_that_are_none(self, kind, value, message):
        given = pa.table({"id": pa.array([1], pa.int32()), "v": pa.array([value], kind)})
        with pytest.raises(SchemaMismatchError, match=message):
            convert_to_schema(given, SCHEMA, table="t")

    @pytest.mark.parametrize("part", ["value", "metadata"])
    @pytest.mark.parametrize("wrong", [None, b"", b"\x02\x00"])
    def test_parts_that_no_reader_could_read(self, part, wrong):
        if (part, wrong) == ("value", b"\x02\x00"):
            return
        given = pa.array([ONE, None, ONE, ONE | {part: wrong}, ONE], PLAIN)
        for first in range(4):
            table = pa.table({"id": pa.array(range(5 - first), pa.int32()), "v": given.slice(first)})
            with pytest.raises(
                SchemaMismatchError, match=f"column 'v' of t has a malformed variant in row {3 - first} of"
            ):
                convert_to_schema(table, SCHEMA, table="t")
        assert find_first_malformed(pa.chunked_array([pa.array([ONE, None], VARIANT)] * 2)) is None
        assert find_first_malformed(pa.chunked_array([], VARIANT)) is None

    def test_a_variant_is_no_struct(self):
        given = pa.table({"id": pa.array([1], pa.int32()), "v": pa.array([ONE], VARIANT)})
        with pytest.raises(SchemaMismatchError, match="with variant_get"):
            convert_to_schema(given, TableSchema.of("id int, v struct<value:binary,metadata:binary>"), table="t")

    def test_a_struct_of_required_fields_of_these_names_stays_one(self):
        schema, required = TableSchema.of(pa.schema([("v", PLAIN)])), pa.struct([f.with_nullable(False) for f in PLAIN])
        found = convert_to_schema(pa.table({"v": pa.array([ONE, None], required)}), schema, table="t")
        assert found["v"].to_pylist() == [ONE, None]
        assert found.schema.field("v").type.equals(PLAIN)

    def test_parquet_takes_them_with_nulls_of_any_kind(self):
        rows = pa.table({"v": pa.chunked_array([pa.nulls(2, VARIANT), pa.array([ONE, None], VARIANT)])})
        sink = io.BytesIO()
        pq.write_table(without_null_parts(rows), sink)
        found = pq.read_table(io.BytesIO(sink.getvalue()))
        assert found["v"].to_pylist() == [None, None, ONE, None]
        assert is_variant(found.schema.field("v").type)
        assert as_variant(rows["v"].chunk(1).slice(1)).field(0).null_count == 0


class TestBytes:
    def test_as_the_specification_has_them(self):
        assert encode_variant(None) == {"value": b"\x00", "metadata": b"\x01\x00\x00"}
        assert encode_variant(1)["value"] == b"\x0c\x01"
        assert encode_variant("ab")["value"] == b"\x09ab"
        assert encode_variant([True, False])["value"] == b"\x03\x02\x00\x01\x02\x04\x08"
        found = encode_variant({"b": 1, "a": 2})
        assert found["metadata"] == b"\x01\x02\x00\x01\x02ba"
        assert found["value"] == b"\x02\x02\x01\x00\x00\x02\x04\x0c\x02\x0c\x01", "fields stand in order of their names"

    def test_names_beyond_the_basic_plane_stand_where_java_looks(self):
        names = ["\uffff", "\U0001f600"]  # by code points the first is less, by UTF-16 the second
        parts = encode_variant(dict.fromkeys(names, 1))
        assert list(decode_variant(**parts)) == ["\U0001f600", "\uffff"]

    @pytest.mark.parametrize("number", [0, 1, 255, 256, 70_000])
    def test_variants_of_many_items_come_back(self, number):
        items = list(range(number))
        assert decode_variant(**encode_variant(items)) == items
        objects = {f"name {i}": i for i in items[:5000]}
        assert decode_variant(**encode_variant(objects)) == objects

    @pytest.mark.parametrize(
        ("value", "metadata"),
        [(b"", b"\x01\x00\x00"), (b"\x0c", b"\x01\x00\x00"), (b"\x00", b""), (b"\x00", b"\x02\x00\x00"),
         (b"\x02\x01\x05\x00\x01\x00", b"\x01\x00\x00"), (b"\xfc", b"\x01\x00\x00"), (b"\x03\xff", b"\x01\x00\x00"),
         (b"\x09a", b"\x01\x00\x00"), (b"\x05\xff", b"\x01\x00\x00"), (b"\x00", b"\x01\xff\x00")],
    )  # fmt: skip
    def test_bytes_that_are_no_variant(self, value, metadata):
        with pytest.raises(ValueError, match="unreadable variant"):
            decode_variant(value, metadata)
        if metadata[:1] == b"\x01":
            rows = pa.table({"v": pa.array([{"value": value, "metadata": metadata}], VARIANT)})
            with pytest.raises(CorruptDataError, match="column 'v' has an unreadable variant"):
                readable_rows(rows)
            assert readable_rows(rows.append_column("id", pa.array([1])).drop_columns(["v"])) == [{"id": 1}]

    def test_every_bit_flipped_is_an_error_or_another_value(self):
        parts = encode_variant(
            {"a": [1, 2.5, "text", None, Decimal("1.5"), dt.datetime(2026, 1, 31)], "b": {"c": b"x" * 70}}
        )
        for name, data in parts.items():
            for bit in range(8 * len(data)):
                flipped = bytearray(data)
                flipped[bit // 8] ^= 1 << bit % 8
                try:
                    decode_variant(**(parts | {name: bytes(flipped)}))
                except ValueError:
                    continue
