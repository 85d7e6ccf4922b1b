"""Column lists in DDL, with CHAR(n) and VARCHAR(n)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.tables import TableCase
from streamhouse_spark import SchemaMismatchError
from streamhouse_spark.schema import ddl
from streamhouse_spark.schema.ddl import TextLength, TextTooLongError
from streamhouse_spark.schema.table_schema import TableSchema

PLAIN = [
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", tz="UTC"),
]
names = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=12)
decimals = st.integers(1, 38).flatmap(lambda p: st.builds(pa.decimal128, st.just(p), st.integers(0, p)))
arrow_types = st.recursive(
    st.sampled_from(PLAIN) | decimals,
    lambda inner: (
        st.builds(ddl.list_type, inner)
        | st.builds(pa.map_, inner, inner)
        | st.lists(st.tuples(names, inner), min_size=1, max_size=3, unique_by=lambda f: f[0].casefold()).map(
            ddl.struct_type,
        )
    ),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("boolean", pa.bool_()),
        ("BYTE", pa.int8()),
        ("tinyint", pa.int8()),
        ("short", pa.int16()),
        ("smallint", pa.int16()),
        ("int", pa.int32()),
        ("INTEGER", pa.int32()),
        ("long", pa.int64()),
        ("bigint", pa.int64()),
        ("real", pa.float32()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("decimal", pa.decimal128(10, 0)),
        ("dec(5)", pa.decimal128(5, 0)),
        ("numeric( 38 , 38 )", pa.decimal128(38, 38)),
        ("char(3)", pa.string()),
        ("varchar(10)", pa.string()),
        ("character(10)", pa.string()),
        ("string", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp_ltz", pa.timestamp("us", tz="UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        ("array<int>", pa.list_(pa.field("element", pa.int32()))),
        ("map<string,array<int>>", pa.map_(pa.string(), pa.list_(pa.field("element", pa.int32())))),
        ("struct<a:int,`b c`: string>", pa.struct([("a", pa.int32()), ("b c", pa.string())])),
        ("struct<a int COMMENT 'x', b string>", pa.struct([("a", pa.int32()), ("b", pa.string())])),
    ],
)
def test_reads_every_type_name(text, expected):
    assert ddl.parse_type(text).equals(expected, check_metadata=True)


@given(arrow_types)
def test_a_type_survives_its_name(arrow):
    assert ddl.parse_type(ddl.type_name(arrow)).equals(arrow, check_metadata=True)


@given(st.lists(st.builds(ddl.DdlColumn, names, arrow_types, st.booleans(), st.none() | st.text()), min_size=1))
def test_columns_survive_their_ddl(columns):
    assert ddl.parse_columns(ddl.columns_ddl(columns)) == columns


@pytest.mark.parametrize(
    "text",
    [
        "a BIGINT NOT NULL COMMENT 'the key', b STRING",
        'a: bigint not null comment "the key", b: string',
        "struct<a: bigint not null comment 'the key', b: string>",
        "`a` long NOT NULL COMMENT 'the key',\n  `b` string;",
    ],
)
def test_reads_columns_as_spark_writes_them(text):
    first, second = ddl.parse_columns(text)
    assert (first.name, first.type, first.nullable, first.comment) == ("a", pa.int64(), False, "the key")
    assert (second.name, second.type, second.nullable, second.comment) == ("b", pa.string(), True, None)


@pytest.mark.parametrize(
    ("literal", "comment"),
    [("'it''s'", "it's"), (r"'it\'s'", "it's"), (r"'a\nb'", "a\nb"), ("''", ""), (r"'a\\'", "a\\")],
)
def test_comments_in_ddl_are_unescaped(literal, comment):
    assert ddl.parse_columns(f"a int COMMENT {literal}")[0].comment == comment


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has the end at character 1, expected a column name"),
        ("a", "expected a type"),
        ("a int,", "expected a column name"),
        ("a int b int", "has 'b' at character 7, expected NOT NULL, DEFAULT, COMMENT or a comma"),
        ("a int NOT", "expected NOT NULL"),
        ("a int COMMENT x", "expected the comment in quotes"),
        ("a int GENERATED ALWAYS AS (1)", "the property table.generated"),
        ("a int DEFAULT, b int", "expected a constant after DEFAULT"),
        ("a struct<b int DEFAULT 1>", "the struct's field 'b' without DEFAULT"),
        ("a fancy", "has 'fancy' at character 3, expected a type, one of boolean"),
        ("a array", "expected '<'"),
        ("a array<int", "expected '>'"),
        ("a map<int>", "expected ','"),
        ("a struct<>", "expected a column name"),
        ("a struct<b int NOT NULL>", "which only columns can have"),
        ("a struct<b int, B int>", "a struct has the field 'B' twice"),
        ("a decimal(39,2)", "decimal(39,2) cannot be stored"),
        ("a decimal(2,3)", "decimal(2,3) cannot be stored"),
        ("a decimal(1,2,3)", "expected decimal(precision, scale)"),
        ("a decimal(x)", "has 'x' at character 11, expected a number"),
        ("a char", "expected a length, as in char(10), or string"),
        ("a interval day to second", "no lake format stores intervals"),
        ("a void", "it holds only nulls"),
        ("a int | b int", "has '|' at character 7"),
        ("a int 'x", "has ''' at character 7"),
        ("`` int", "expected a column name"),
        ("a " + "array<" * 70 + "int" + ">" * 70, "expected at most 64 nested types"),
    ],
)
def test_says_where_a_text_is_wrong(text, message):
    with pytest.raises(SchemaMismatchError) as error:
        ddl.parse_columns(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_reads_the_json_of_a_struct_type():
    columns = ddl.parse_struct_json(
        {
            "type": "struct",
            "fields": [
                {"name": "id", "type": "long", "nullable": False, "metadata": {"comment": "key"}},
                {"name": "amount", "type": "decimal(12,2)", "nullable": True, "metadata": {}},
                {"name": "tags", "type": {"type": "array", "elementType": "string", "containsNull": False}},
                {
                    "name": "by_name",
                    "type": {"type": "map", "keyType": "string", "valueType": "integer", "valueContainsNull": True},
                },
                {
                    "name": "at",
                    "type": {"type": "struct", "fields": [{"name": "t", "type": "timestamp", "nullable": False}]},
                },
            ],
        },
    )
    assert columns == [
        ddl.DdlColumn("id", pa.int64(), nullable=False, comment="key"),
        ddl.DdlColumn("amount", pa.decimal128(12, 2)),
        ddl.DdlColumn("tags", pa.list_(pa.field("element", pa.string()))),
        ddl.DdlColumn("by_name", pa.map_(pa.string(), pa.int32())),
        ddl.DdlColumn("at", pa.struct([("t", pa.timestamp("us", tz="UTC"))])),
    ]


@pytest.mark.parametrize(
    ("given_type", "message"),
    [
        ("interval day to second", "no lake format stores intervals"),
        ({"type": "udt", "class": "x"}, "use the type that the user-defined type is stored as"),
        ({"type": "struct", "fields": []}, "a struct has no field"),
        (7, "has a type 7"),
    ],
)
def test_refuses_json_types_that_cannot_be_stored(given_type, message):
    with pytest.raises(SchemaMismatchError, match=message):
        ddl.parse_struct_json({"type": "struct", "fields": [{"name": "a", "type": given_type}]})


def test_refuses_json_that_is_no_struct():
    with pytest.raises(SchemaMismatchError, match="expected a struct with fields"):
        ddl.parse_struct_json({"type": "array", "elementType": "int"})


def test_refuses_to_name_a_type_that_is_not_canonical():
    with pytest.raises(SchemaMismatchError, match="large_string"):
        ddl.type_name(pa.large_string())


def test_the_plain_collation_is_a_string_and_another_is_refused():
    assert ddl.parse_type("string collate UTF8_BINARY") == pa.string()
    assert ddl.parse_type("array<string COLLATE utf8_binary>") == pa.list_(pa.field("element", pa.string()))
    with pytest.raises(SchemaMismatchError, match="the only supported collation"):
        ddl.parse_type("string collate UTF8_LCASE")


COLUMNS = "id BIGINT, c CHAR(4), v VARCHAR(3)"


def texts(*values):
    return pa.chunked_array([values[:1], values[1:]], pa.string())


TABLE = TableCase("sales.sized", COLUMNS)


class TestTexts:
    @pytest.mark.parametrize(
        ("size", "given", "expected"),
        [
            ("char(4)", "ab", "ab  "),
            ("char(4)", "", "    "),
            ("char(4)", "abcd", "abcd"),
            ("char(4)", "abcd     ", "abcd"),
            ("char(4)", "äö😀", "äö😀 "),
            ("varchar(4)", "ab", "ab"),
            ("varchar(4)", "ab ", "ab "),
            ("varchar(4)", "ab     ", "ab  "),
            ("varchar(4)", "😀😀😀😀", "😀😀😀😀"),
        ],
    )
    def test_they_get_their_length(self, size, given, expected):
        assert TextLength.parse(size).fit_texts(texts(None, given)).to_pylist() == [None, expected]

    @pytest.mark.parametrize("size", ["char(4)", "varchar(4)"])
    @pytest.mark.parametrize("given", ["abcde", "abcd e", "😀😀😀😀😀", "abcd\t"])
    def test_one_that_is_too_long_is_told_by_its_row(self, size, given):
        with pytest.raises(TextTooLongError) as error:
            TextLength.parse(size).fit_texts(texts("a", None, "abcd ", given))
        assert error.value.row == 3

    def test_texts_that_fit_are_not_copied(self):
        fit = texts("abcd", None, "efgh")
        assert TextLength.parse("char(4)").fit_texts(fit) is fit
        assert TextLength.parse("varchar(9)").fit_texts(fit) is fit

    @pytest.mark.parametrize("name", ["string", "char", "char(0)", "varchar(-1)", "varchar(1,2)", "array<char(2)>"])
    def test_other_types_have_none(self, name):
        assert TextLength.parse(name) is None

    def test_a_size_holds_no_longer_ones(self):
        sizes = {name: TextLength.parse(name) for name in ("char(3)", "char(4)", "varchar(3)", "varchar(4)")}
        held = {(a, b) for a, x in sizes.items() for b, y in sizes.items() if x.holds(y)}
        assert held == {
            *((name, name) for name in sizes),
            ("varchar(3)", "char(3)"),
            ("varchar(4)", "char(3)"),
            ("varchar(4)", "char(4)"),
            ("varchar(4)", "varchar(3)"),
        }
        assert not any(size.holds(None) for size in sizes.values())


class TestSchemas:
    def test_records_and_ddl_keep_the_size(self):
        schema = TableSchema.of(COLUMNS)
        assert schema.ddl() == COLUMNS
        assert TableSchema.from_json(schema.to_json()) == schema
        assert [column.get("size") for column in schema.to_json()] == [None, "char(4)", "varchar(3)"]

    def test_defaults_get_their_length(self):
        schema = TableSchema.of("c CHAR(4) DEFAULT 'x', v VARCHAR(3) DEFAULT 'abc  '")
        assert [column.default for column in schema.columns] == ["x   ", "abc"]
        with pytest.raises(SchemaMismatchError, match=r"default of column 'c' has 5 characters.*char\(4\)"):
            TableSchema.of("c CHAR(4) DEFAULT 'abcde'")

    @pytest.mark.parametrize("kind", ["array<varchar(2)>", "struct<a:char(2)>", "map<string,varchar(2)>"])
    def test_a_size_inside_another_type_is_refused(self, kind):
        with pytest.raises(SchemaMismatchError, match="nested strings have no length"):
            TableSchema.of(f"a {kind}")


class TestTables:
    def test_appended_texts_get_their_length(self, table):
        table.append([{"id": 1, "c": "a", "v": "xyz   "}, {"id": 2}])
        assert table.to_arrow().to_pylist() == [
            {"id": 1, "c": "a   ", "v": "xyz"},
            {"id": 2, "c": None, "v": None},
        ]

    @pytest.mark.parametrize(("column", "size"), [("c", r"char\(4\)"), ("v", r"varchar\(3\)")])
    def test_a_text_that_is_too_long_is_refused_before_anything_is_written(self, table, column, size):
        before = table.refresh().version
        with pytest.raises(SchemaMismatchError, match=f"column '{column}' of sales.sized is {size}.*has 5 characters"):
            table.append([{"id": 1}, {"id": 2, column: "abcde"}])
        assert table.refresh().version == before

    def test_keys_are_found_without_their_blanks(self, wh):
        table = wh.create_table("sales.keyed", "c CHAR(4), n BIGINT", primary_key=["c"], buckets=3)
        table.upsert([{"c": name, "n": n} for n, name in enumerate("abcdef")])
        table.upsert([{"c": "a   ", "n": 10}])
        assert table.lookup_one("a") == {"c": "a   ", "n": 10}
        assert table.lookup([{"c": "b"}, {"c": "f "}])["n"].to_pylist() == [1, 5]
        table.delete(["c"])
        assert sorted(table.to_arrow()["n"].to_pylist()) == [1, 3, 4, 5, 10]

    def test_a_column_may_become_longer_and_no_shorter(self, table):
        table.append([{"id": 1, "c": "a", "v": "xyz"}])
        table.alter(add_columns="w VARCHAR(2)")
        table.alter(widen_columns={"v": "varchar(5)", "c": "varchar(4)"})
        assert table.state.schema.ddl() == "id BIGINT, c VARCHAR(4), v VARCHAR(5), w VARCHAR(2)"
        with pytest.raises(SchemaMismatchError, match=r"'v' of type varchar\(5\) cannot become varchar\(4\)"):
            table.alter(widen_columns={"v": "varchar(4)"})
        table.alter(widen_columns={"v": "string"})
        with pytest.raises(SchemaMismatchError, match=r"'v' of type string cannot become varchar\(9\)"):
            table.alter(widen_columns={"v": "varchar(9)"})
        table.append([{"id": 2, "c": "b", "v": "longer", "w": "no"}])
        assert table.to_arrow()["c"].to_pylist() == ["a   ", "b"]
