"""Defaults of columns, constants and functions: the values of new rows, and how defaults change."""

from __future__ import annotations

import datetime as dt
import decimal
from dataclasses import replace

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from faults.scenarios import LAKE, PAIMON
from kit.tables import TableCase, tier
from streamhouse_spark import CommitConflictError, InvalidOptionError, SchemaMismatchError, Table, Warehouse
from streamhouse_spark.core.clock import Author
from streamhouse_spark.schema.column_defaults import SqlText, evaluate_defaults
from streamhouse_spark.schema.default_expressions import StatementContext
from streamhouse_spark.schema.row_conversion import convert_rows
from streamhouse_spark.schema.table_schema import Column, TableSchema

NAME = "sales.orders"
D = decimal.Decimal
EVERY_TYPE = {
    "yes": ("boolean", True),
    "i8": ("tinyint", -128),
    "i64": ("bigint", 2**63 - 1),
    "f32": ("float", 0.5),
    "f64": ("double", float("inf")),
    "money": ("decimal(10,2)", D("1.50")),
    "text": ("string", "it's"),
    "raw": ("binary", b"\x00\xff"),
    "day": ("date", dt.date(2026, 1, 31)),
    "at": ("timestamp", dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)),
    "local": ("timestamp_ntz", dt.datetime(2026, 1, 31, 12)),
}
TABLE = TableCase(NAME, "id bigint not null, country string default 'CH', n int")


@pytest.fixture
def keyed(wh, own_cache):
    def make(columns="id int, a string default 'x', n int default 7, z int", **properties):
        texts = {name.replace("__", "-").replace("_", "."): text for name, text in properties.items()}
        return wh.create_table("sales.keyed", columns, primary_key=["id"], buckets=2, properties=texts)

    return make


def rows_of(found: Table | pa.Table) -> list[tuple]:
    arrow = found.to_arrow() if isinstance(found, Table) else found
    return sorted((tuple(row.values()) for row in arrow.to_pylist()), key=lambda row: row[0])


class TestFilling:
    def test_every_type_by_a_mapping_and_by_sql(self, wh):
        ddl = ", ".join(f"{name} {kind}" for name, (kind, _) in EVERY_TYPE.items())
        defaults = {name: value for name, (_, value) in EVERY_TYPE.items()}
        made = wh.create_table("a", f"id int, {ddl}", defaults=defaults)
        again = wh.create_table("b", made.state.schema.ddl())
        assert again.state.schema == made.state.schema
        for table in (made, wh.table("b")):
            table.append(pa.table({"id": pa.array([1, 2], pa.int32())}))
            table.append([{"id": 3, **dict.fromkeys(defaults)}, {"id": 4}])
            found = table.to_arrow().sort_by("id").drop_columns(["id"]).to_pylist()
            assert found == [defaults, defaults, dict.fromkeys(defaults), defaults]

    @pytest.mark.parametrize(
        "rows",
        [
            [{"id": 1}, {"id": 2}],
            pa.table({"id": [1, 2]}),
            pa.record_batch({"ID": [1, 2]}),
            pd.DataFrame({"id": [1, 2]}),
            pl.DataFrame({"id": [1, 2]}),
        ],
        ids=lambda rows: type(rows).__module__,
    )
    def test_a_column_that_rows_lack_has_its_default(self, table, rows):
        table.append(rows)
        assert rows_of(table) == [(1, "CH", None), (2, "CH", None)]

    def test_a_null_that_is_given_stays_null(self, table):
        table.append([{"id": 1, "country": None}])
        table.append(pa.table({"id": [2], "country": pa.nulls(1)}))
        assert rows_of(table) == [(1, None, None), (2, None, None)]

    def test_each_dict_is_a_row_of_its_own(self, table):
        table.append([{"id": 1, "country": None, "n": 1}, {"id": 2}, {"id": 3, "country": "DE"}])
        assert rows_of(table) == [(1, None, 1), (2, "CH", None), (3, "DE", None)]

    def test_rows_without_rows_and_rows_of_many_chunks(self, table):
        table.append([])
        table.append(pa.table({"id": pa.chunked_array([[1], [], [2, 3]])}))
        assert table.to_arrow()["country"].to_pylist() == ["CH"] * 3

    def test_a_column_that_is_not_null_may_be_left_out(self, wh):
        table = wh.create_table("a", "id int, n int not null", defaults={"N": 5})
        table.append([{"id": 1}])
        assert rows_of(table) == [(1, 5)]
        with pytest.raises(SchemaMismatchError, match="NOT NULL, and null in 1 of 1 row"):
            table.append([{"id": 1, "n": None}])
        table.drop_default("n")
        with pytest.raises(SchemaMismatchError, match="NOT NULL and missing"):
            table.append([{"id": 1}])

    def test_rows_lie_by_their_defaults(self, wh):
        table = wh.create_table(
            "a", "id int, p string default 'x', k int default 3", partition_by=["p"], buckets=4,
            properties={"bucket.key": "k"},
        )  # fmt: skip
        table.append([{"id": 1}])
        table.append([{"id": 2, "p": "x", "k": 3}])
        assert [len(log.segments) for log in table.state.buckets.values() if log.segments] == [2]
        assert table.to_arrow(filter=[("p", "=", "x")]).num_rows == 2

    def test_overwrites_fill_in_too(self, table):
        table.append([{"id": 1, "country": "DE"}])
        table.overwrite([{"id": 2}])
        assert rows_of(table) == [(2, "CH", None)]

    def test_which_columns_rows_lack(self):
        schema = TableSchema.of("a int, b int default 1, c int")
        for rows, missing in (
            (pa.table({"a": pa.array([1], pa.int32())}), {2, 3}),
            ([{"a": 1, "b": 2}, {"a": 1, "c": 3}], {2, 3}),
            ([{"a": 1, "b": 2, "c": None}], set()),
            (pa.table({"a": [1], "b": [1], "c": [1]}, schema=schema.arrow), set()),
        ):
            assert convert_rows(rows, schema, table="t")[1] == missing


class TestChanges:
    def test_rows_that_are_there_stay_as_they_are(self, table):
        table.append([{"id": 1}])
        table.set_default("country", "DE")
        table.append([{"id": 2}])
        table.drop_default("country")
        table.append([{"id": 3}])
        assert rows_of(table) == [(1, "CH", None), (2, "DE", None), (3, None, None)]
        assert table.state.schema.ddl() == "id BIGINT NOT NULL, country STRING, n INT"

    def test_an_added_column_is_null_in_older_rows(self, table):
        table.append([{"id": 1}])
        table.add_columns("a int default 1, b double", defaults={"b": 0.5})
        table.append([{"id": 2}])
        assert rows_of(table) == [(1, "CH", None, None, None), (2, "CH", None, 1, 0.5)]

    def test_it_follows_a_rename_and_a_wider_type_and_goes_with_its_column(self, wh):
        table = wh.create_table("a", "id int, n tinyint default 5, f float default 0.1, d decimal(4,2) default 1.5")
        table.alter(
            rename_columns={"n": "m", "f": "g"},
            widen_columns={"n": "bigint", "f": "double", "d": "decimal(10,2)"},
            comments={"m": "wider"},
        )
        table.append([{"id": 1}])
        assert rows_of(table) == [(1, 5, 0.10000000149011612, D("1.50"))]
        assert "m BIGINT DEFAULT 5 COMMENT 'wider'" in table.state.schema.ddl()
        table.drop_column("m")
        table.add_columns("m string")
        table.append([{"id": 2}])
        assert rows_of(table)[1] == (2, 0.10000000149011612, D("1.50"), None)
        table.alter(add_columns="x int", defaults={"x": 2**31 - 1, "g": None})
        table.append([{"id": 3}])
        assert rows_of(table)[2] == (3, None, D("1.50"), None, 2**31 - 1)

    def test_it_means_columns_as_they_are_afterwards(self, table):
        table.alter(rename_columns={"n": "m"}, widen_columns={"n": "bigint"}, defaults={"m": 2**40})
        table.append([{"id": 1}])
        assert rows_of(table) == [(1, "CH", 2**40)]

    def test_what_is_as_it_was_leaves_no_record(self, table):
        before = table.state.version
        table.set_default("country", "CH")
        table.drop_default("n", "id")
        table.alter(defaults={})
        assert table.refresh().version == before

    @pytest.mark.parametrize("lake", [LAKE, PAIMON], ids=["iceberg", "paimon"])
    def test_changed_defaults_reach_the_lake(self, wh, own_cache, lake):
        table = wh.create_table("sales.a", "id int, a string default 'x'", properties=lake)
        table.append([{"id": 1}])
        tier(table)
        table.set_default("a", "y")
        table.append([{"id": 2}])
        tier(table)
        table.add_columns("b int", defaults={"b": 5})
        table.append([{"id": 3}])
        expected = [(1, "x", None), (2, "y", None), (3, "y", 5)]
        for _ in range(2):
            assert rows_of(table) == expected
            tier(table)
        assert rows_of(table.lake.to_arrow(columns=["id", "a", "b"])) == expected


def test_a_tail_goes_on_when_defaults_change(table):
    tail = table.tail({0: 0}, poll_ms=1)
    found = []
    for number in range(3):
        table.append([{"id": number}])
        found += next(tail).to_pylist()
        table.set_default("country", f"C{number}")
    assert [(row["id"], row["country"]) for row in found] == [(0, "CH"), (1, "C0"), (2, "C1")]


class TestWritersThatLookedEarlier:
    def test_a_row_has_the_default_that_there_is_when_it_is_committed(self, wh, other_process):
        wh.create_table(NAME, "id bigint not null, country string")
        writer, table = other_process().table(NAME), wh.table(NAME)
        table.set_default("country", "DE")
        writer.append([{"id": 1}])
        table.add_columns("b int", defaults={"b": 5})
        writer.append([{"id": 2}])
        table.drop_default("b")
        writer.append([{"id": 3}])
        table.refresh()
        assert rows_of(table) == [(1, "DE", None), (2, "DE", 5), (3, "DE", None)]

    def test_rows_that_cannot_be_read_again_are_refused(self, table, other_process):
        writer = other_process().table(NAME)
        table.set_default("country", "DE")
        reader = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), [pa.record_batch({"id": [1]})])
        with pytest.raises(CommitConflictError, match="or have other defaults now"):
            writer.append(reader)
        assert table.refresh().num_rows == 0

    def test_rows_that_have_the_column_are_not(self, table, other_process):
        writer = other_process().table(NAME)
        staged = writer.log_writer.stager().stage(
            *convert_rows([{"id": 1, "country": "x"}], writer.state.schema, table=NAME)
        )
        lacking = writer.log_writer.stager().stage(*convert_rows([{"id": 2}], writer.state.schema, table=NAME))
        table.set_default("country", "DE")
        writer.log_writer.commit(staged)
        with pytest.raises(CommitConflictError):
            writer.log_writer.commit(lacking)
        table.refresh()
        assert rows_of(table) == [(1, "x", None)]

    def test_a_writer_with_older_defaults_upserts_the_new_ones(self, keyed, other_process):
        table = keyed()
        writer = other_process().table("sales.keyed")
        table.alter(defaults={"a": "y", "n": None, "z": 3})
        writer.upsert([{"id": 1}])
        table.set_default("z", 4)
        writer.upsert([{"id": 2, "n": 1}], columns=["n"])
        table.refresh()
        assert rows_of(table) == [(1, "y", None, 3), (2, "y", 1, 4)]


class TestPrimaryKeys:
    def test_an_upsert_that_lacks_a_column_writes_its_default(self, keyed):
        table = keyed()
        table.upsert([{"id": 1, "a": "mine", "z": 1}])
        table.upsert([{"id": 1}, {"id": 2, "n": None}])
        assert rows_of(table) == [(1, "x", 7, None), (2, "x", None, None)]

    def test_a_partial_update_leaves_what_is_there_and_fills_new_rows(self, keyed):
        table = keyed()
        table.upsert([{"id": 1, "a": None, "n": 1}])
        table.upsert([{"id": 1, "z": 5}, {"id": 2, "z": 6}], columns=["z"])
        assert rows_of(table) == [(1, None, 1, 5), (2, "x", 7, 6)]
        table.delete([2])
        table.upsert([{"id": 2, "a": "b"}], columns=["a"])
        assert rows_of(table) == [(1, None, 1, 5), (2, "b", 7, None)]
        log = {row["id"]: row for row in table.lookup([1, 2]).to_pylist()}
        assert (log[2]["a"], log[2]["n"], log[2]["z"]) == ("b", 7, None)

    def test_a_partial_update_needs_no_column_that_has_a_default(self, keyed):
        table = keyed("id int, n int not null, z int")
        with pytest.raises(SchemaMismatchError, match="or give the column a default"):
            table.upsert([{"id": 1, "z": 1}], columns=["z"])
        table.set_default("n", 3)
        table.upsert([{"id": 1, "z": 1}], columns=["z"])
        assert rows_of(table) == [(1, 3, 1)]

    def test_rows_that_a_lookup_inserts(self, keyed):
        table = keyed("id int, n int not null default 3, z int")
        found = table.lookup([1], insert_if_absent=True).to_pylist()
        assert (found[0]["n"], found[0]["z"]) == (3, None)
        assert rows_of(table) == [(1, 3, None)]

    def test_a_key_may_have_one_which_no_search_fills_in(self, wh, own_cache):
        table = wh.create_table("k", "tenant string, id int, v int", primary_key=["tenant", "id"], buckets=2,
                                defaults={"tenant": "main"})  # fmt: skip
        table.upsert([{"id": 1, "v": 1}])
        table.upsert([{"id": 1, "v": 2}], columns=["v"])
        assert rows_of(table) == [("main", 1, 2)]
        for look in (table.lookup, table.delete):
            with pytest.raises(SchemaMismatchError, match=r"'tenant' of default\.k is NOT NULL and missing"):
                look([{"id": 1}])
        assert table.lookup_one({"tenant": "main", "id": 1})["v"] == 2

    @pytest.mark.parametrize(
        ("properties", "expected"),
        [
            ({"table_merge__engine": "first_row"}, (1, 7, 1)),
            ({"table_merge__engine": "versioned", "table_merge__engine_versioned_ver__column": "n"}, (1, 9, 3)),
            ({"table_merge__engine": "aggregation", "fields_n_agg": "sum"}, (1, 23, 2)),
        ],
        ids=["first_row", "versioned", "aggregation"],
    )
    def test_every_merge_engine_takes_it_for_a_value_of_the_row(self, keyed, properties, expected):
        table = keyed("id int, n int default 7, z int", **properties)
        table.upsert([{"id": 1, "z": 1}])
        table.upsert([{"id": 1, "n": 9, "z": 3}])
        table.upsert([{"id": 1, "z": 2}])
        assert rows_of(table) == [expected]


class TestRefused:
    @pytest.mark.parametrize(
        ("defaults", "error", "words"),
        [
            ({"nope": 1}, SchemaMismatchError, "no column 'nope'"),
            ({"n": "text"}, SchemaMismatchError, "column 'n' of the default values has a Python str"),
            ({"n": 2**40}, SchemaMismatchError, "column 'n' of the default values has values that do not fit int"),
            ({"n": 1.5}, SchemaMismatchError, "has the value 1.5, which int cannot hold"),
            ({"n": True}, SchemaMismatchError, "has a Python bool"),
            ({"n": pa.scalar("x")}, SchemaMismatchError, "has type string"),
            ({"country": "\ud800"}, SchemaMismatchError, "column 'country' of the default values"),
            ({"country": "x" * 40_000}, SchemaMismatchError, "expected at most 32768"),
            ({"list": [1]}, SchemaMismatchError, "cannot have a default"),
            ({"at": dt.datetime(2026, 1, 1)}, SchemaMismatchError, "no zone"),
            ({"n": 1, "N": 2}, SchemaMismatchError, "column 'n' has two defaults"),
            ({1: 1}, InvalidOptionError, "expected a mapping of column names to values"),
            (["n"], InvalidOptionError, "expected a mapping"),
        ],
    )
    def test_before_anything_is_written(self, wh, defaults, error, words):
        ddl = "id bigint not null, country string, n int, list array<int>, at timestamp"
        with pytest.raises(error, match=words):
            wh.create_table(NAME, ddl, defaults=defaults)
        assert not wh.storage.list("") or not wh.exists(NAME)
        table = wh.create_table(NAME, ddl)
        before = table.state
        with pytest.raises(error, match=words):
            table.alter(set_properties={"comment": "x"}, defaults=defaults)
        assert table.refresh() == before

    def test_a_column_of_a_nested_type_has_none_to_take_away(self, wh):
        table = wh.create_table(NAME, "id int, list array<int>")
        table.drop_default("list")
        assert table.state.version == 1

    @pytest.mark.parametrize(
        ("kind", "default"), [("int", "x"), ("date", 2**40), ("decimal(4,2)", "1.555"), ("int", [])]
    )
    def test_a_record_that_says_what_is_none(self, kind, default):
        with pytest.raises(SchemaMismatchError, match="which is invalid"):
            Column.from_json({"id": 1, "name": "a", "type": kind, "nullable": True, "default": default})


def test_records_without_defaults_are_what_they_were():
    schema = TableSchema.of("a int, b int default 3")
    without, with_default = schema.to_json()
    assert "default" not in without
    assert with_default["default"] == 3
    assert TableSchema.from_json(schema.to_json()) == schema


def test_system_tables_show_the_defaults(table):
    table.set_default("n", 3)
    shown = [row["columns"] for row in table.inspect.schemas().to_pylist()]
    assert shown[-1] == "id BIGINT NOT NULL, country STRING DEFAULT 'CH', n INT DEFAULT 3"


COLUMNS = "id INT, at TIMESTAMP DEFAULT current_timestamp(), day DATE DEFAULT current_date(), by STRING DEFAULT user()"


def moment(clock) -> dt.datetime:
    return dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC)


@pytest.mark.parametrize(
    ("said", "kind", "shown"),
    [
        ("current_timestamp()", "timestamp", "current_timestamp()"),
        ("CURRENT_TIMESTAMP", "timestamp", "current_timestamp()"),
        ("( now( ) )", "timestamp", "current_timestamp()"),
        ("Current_Date", "date", "current_date()"),
        ("curdate()", "date", "current_date()"),
        ("session_user()", "string", "current_user()"),
        ("'now()'", "string", "'now()'"),
    ],
)
def test_they_are_parsed_shown_and_stored(said, kind, shown):
    schema = TableSchema.of(f"c {kind} DEFAULT {said}")
    assert schema.columns[0].default_sql == shown
    assert TableSchema.of(schema.ddl()) == TableSchema.from_json(schema.to_json()) == schema


def test_records_hold_its_name():
    (stored,) = TableSchema.of("c TIMESTAMP DEFAULT now()").to_json()
    assert stored["default"] == {"function": "current_timestamp"}


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ("c DATE DEFAULT now()", "DEFAULT current_timestamp\\(\\), which is a timestamp; give the column this type"),
        ("c TIMESTAMP_NTZ DEFAULT now()", "which is a timestamp; give the column this type"),
        ("c INT DEFAULT current_user()", "which is a string; give the column this type"),
        ("c VARCHAR(9) DEFAULT current_user()", "may be longer than varchar\\(9\\)"),
        ("c STRING DEFAULT uuid()", "is not a constant; .* one of current_timestamp"),
        ("c TIMESTAMP DEFAULT now(3)", "is not a constant"),
        ("c ARRAY<DATE> DEFAULT current_date()", "cannot have a default"),
    ],
)
def test_other_functions_as_defaults_are_rejected(column, says):
    with pytest.raises(SchemaMismatchError, match=says):
        TableSchema.of(column)


def test_a_function_of_a_later_version_is_refused_and_says_so():
    stored = TableSchema.of("c STRING DEFAULT user()").to_json()
    stored[0]["default"] = {"function": "uuid"}
    with pytest.raises(SchemaMismatchError, match=r"'function': 'uuid'.*install the version that wrote it"):
        TableSchema.from_json(stored)


def test_it_has_no_value_outside_a_write():
    column = Column(1, "c", pa.date32(), default=TableSchema.of("c DATE DEFAULT curdate()").columns[0].default)
    with pytest.raises(AssertionError, match="no value outside a write"):
        _ = column.default_scalar
    schema = evaluate_defaults(TableSchema((column,)), StatementContext(-1, "me"))
    assert schema.columns[0].default_scalar.as_py() == dt.date(1969, 12, 31)


@pytest.mark.parametrize("properties", [LAKE, PAIMON], ids=["iceberg", "paimon"])
def test_rows_have_the_moment_and_the_user_of_their_write(store, world, clock, properties):
    wh = Warehouse("wh", storage=store, world=replace(world, author=Author("ada", "python/x")))
    table = wh.create_table("a.t", COLUMNS, properties=properties)
    clock.sleep_ms(86_400_000)
    first = moment(clock)
    table.append([{"id": 1}, {"id": 2, "by": None}, {"id": 3, "at": None}])
    clock.sleep_ms(86_400_000)
    table.append(pa.table({"id": pa.array([4], pa.int32())}))
    found = table.to_arrow().sort_by("id").to_pylist()
    assert [row["day"] for row in found] == [first.date()] * 3 + [first.date() + dt.timedelta(1)]
    assert len({found[0]["at"], found[1]["at"]}) == 1
    assert dt.timedelta(0) <= found[0]["at"] - first < dt.timedelta(seconds=10)
    assert [row["by"] for row in found] == ["ada", None, "ada", "ada"]
    assert found[2]["at"] is None
    tier(table)
    assert table.lake.to_arrow().sort_by("id").to_pylist() == found


def test_rows_of_a_writer_have_it(wh, clock):
    table = wh.create_table("a.t", COLUMNS)
    with table.writer() as writer:
        writer.send({"id": 1})
        writer.send({"id": 2, "by": "x"})
    found = table.to_arrow().to_pylist()
    assert {row["day"] for row in found} == {moment(clock).date()}
    assert found[1]["by"] == "x" != found[0]["by"]


def test_rows_by_key_have_it_and_keep_it(wh, clock, own_cache):
    columns = "id INT NOT NULL, v INT, at TIMESTAMP NOT NULL DEFAULT now()"
    table = wh.create_table("a.k", columns, primary_key=["id"])
    table.upsert([{"id": 1, "v": 1}])
    (before,) = table.to_arrow().to_pylist()
    clock.sleep_ms(86_400_000)
    table.upsert([{"id": 1, "v": 2}, {"id": 2, "v": 2}], columns=["v"])
    first, second = table.to_arrow().sort_by("id").to_pylist()
    assert first == {**before, "v": 2}
    assert second["at"] - first["at"] >= dt.timedelta(days=1)
    clock.sleep_ms(86_400_000)
    table.upsert([{"id": 1, "v": 3}])
    assert table.to_arrow().sort_by("id").to_pylist()[0]["at"] > second["at"]


def test_it_is_set_changed_and_dropped(wh, other_process):
    table = wh.create_table("a.t", "id INT, at TIMESTAMP")
    table.append([{"id": 1}])
    table.set_default("at", SqlText("now()"))
    lacking = pa.Table.from_pylist([{"id": 0, "at": None}], table.state.schema.arrow)
    staged = table.log_writer.stager().stage(lacking, frozenset({2}))
    other_process().table("a.t").append([{"id": 2}])
    table.drop_default("at")
    with pytest.raises(CommitConflictError, match="have other defaults now"):
        table.log_writer.commit(staged)
    table.append([{"id": 3}])
    table.set_default("at", SqlText("current_timestamp()"))
    table.rename_column("at", "since")
    table.append([{"id": 4}])
    found = table.to_arrow().sort_by("id").to_pylist()
    assert [row["since"] is None for row in found] == [True, False, True, False]
