"""CHAR(n) and VARCHAR(n): what is written has its length, or is refused; what the column is stays."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kit.tables import TableCase
from streamhouse_spark import SchemaMismatchError
from streamhouse_spark.schema.ddl import TextSize, TextTooLongError
from streamhouse_spark.schema.table_schema import TableSchema

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
        assert TextSize.parse(size).fit_texts(texts(None, given)).to_pylist() == [None, expected]

    @pytest.mark.parametrize("size", ["char(4)", "varchar(4)"])
    @pytest.mark.parametrize("given", ["abcde", "abcd e", "😀😀😀😀😀", "abcd\t"])
    def test_one_that_is_too_long_is_told_by_its_row(self, size, given):
        with pytest.raises(TextTooLongError) as error:
            TextSize.parse(size).fit_texts(texts("a", None, "abcd ", given))
        assert error.value.row == 3

    def test_texts_that_fit_are_not_copied(self):
        fit = texts("abcd", None, "efgh")
        assert TextSize.parse("char(4)").fit_texts(fit) is fit
        assert TextSize.parse("varchar(9)").fit_texts(fit) is fit

    @pytest.mark.parametrize("name", ["string", "char", "char(0)", "varchar(-1)", "varchar(1,2)", "array<char(2)>"])
    def test_other_types_have_none(self, name):
        assert TextSize.parse(name) is None

    def test_a_size_holds_no_longer_ones(self):
        sizes = {name: TextSize.parse(name) for name in ("char(3)", "char(4)", "varchar(3)", "varchar(4)")}
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
