from __future__ import annotations

import json

import pyarrow as pa
import pytest

from streamhouse_spark import (
    InvalidNameError,
    InvalidOptionError,
    SchemaMismatchError,
    TableExistsError,
    TableNotFoundError,
)
from unit.datasource.catalog.ddl.test_tables import BAD_NAMES, ODD_COLUMNS


def add(name: str, type_json: str = '"string"', **more) -> dict:
    return {"change": "add_column", "path": [name], "type": type_json, "nullable": True, **more}


@pytest.fixture
def table(catalog):
    catalog.create("sales", "orders", "id bigint not null, name string", properties={"table.log.ttl": "1d"})
    return catalog.connection.table("sales.orders")


@pytest.fixture
def alter(catalog):
    return lambda *changes: catalog.call("alter_table", database="sales", table="orders", changes=list(changes))


def test_one_statement_is_one_record(table, alter):
    before = table.refresh().version
    alter(
        add("note", comment="it's `why`"),
        add("at", '{"type":"array","elementType":"timestamp","containsNull":true}'),
        {"change": "update_comment", "path": ["ID"], "comment": "the key"},
        {"change": "set_property", "name": "comment", "value": "what was sold"},
        {"change": "set_property", "name": "table.datalake.freshness", "value": "30s"},
        {"change": "remove_property", "name": "table.log.ttl"},
    )
    state = table.refresh()
    assert state.version == before + 1
    assert state.schema.names == ("id", "name", "note", "at")
    assert [c.comment for c in state.schema.columns] == ["the key", None, "it's `why`", None]
    assert dict(state.properties) == {"comment": "what was sold", "table.datalake.freshness": "30s"}


def test_changes_that_change_nothing_leave_no_record(table, alter):
    before = table.refresh().version
    alter(
        {"change": "set_property", "name": "table.log.ttl", "value": "1d"},
        {"change": "update_comment", "path": ["name"], "comment": None},
    )
    assert table.refresh().version == before


def of_pipeline(catalog, *changes):
    changes = list(changes)
    return catalog.call("alter_table", database="sales", table="keyed", of_pipeline=True, changes=changes)


def test_a_pipeline_may_want_its_keys_to_take_null(catalog):
    catalog.create("sales", "keyed", "id bigint not null, n int not null", properties={"primary.key": "id"})
    table = catalog.connection.table("sales.keyed")
    before = table.refresh().version
    wanted = {"change": "update_nullability", "path": ["ID"], "nullable": True}
    of_pipeline(catalog, wanted, {"change": "set_property", "name": "provider", "value": "Streamhouse"})
    assert table.refresh().version == before
    for change in ({**wanted, "path": ["id", "x"]}, {**wanted, "nullable": False}):
        with pytest.raises(InvalidOptionError, match="update nullability"):
            of_pipeline(catalog, change)
    with pytest.raises(InvalidOptionError, match="is read-only"):
        of_pipeline(catalog, {"change": "set_property", "name": "provider", "value": "x"})
    with pytest.raises(InvalidOptionError, match="cannot accept null: it is part of the primary key"):
        catalog.call("alter_table", database="sales", table="keyed", changes=[wanted])


def test_of_a_set_and_an_unset_of_one_property_the_last_counts(table, alter):
    set_it = {"change": "set_property", "name": "comment", "value": "a"}
    unset = {"change": "remove_property", "name": "comment"}
    alter(set_it, unset)
    assert "comment" not in table.refresh().properties
    alter(unset, set_it)
    assert table.refresh().properties["comment"] == "a"


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"change": "rename_column", "path": ["name"], "name": "_bucket"}, SchemaMismatchError, "reserved"),
        ({"change": "rename_column", "path": ["name", "x"], "name": "n"}, SchemaMismatchError, "string has no fields"),
        ({"change": "delete_column", "path": ["nope"]}, SchemaMismatchError, "no column 'nope'"),
        ({"change": "update_type", "path": ["id"], "type": '"string"'}, SchemaMismatchError, "cannot become string"),
        ({"change": "update_nullability", "path": ["x"], "nullable": True}, SchemaMismatchError, "no column 'x'"),
        ({"change": "update_nullability", "path": ["name"], "nullable": False}, InvalidOptionError, "may have null"),
        ({"change": "update_position", "path": ["x"], "position": "first"}, SchemaMismatchError, "no column 'x'"),
        (
            {"change": "update_position", "path": ["id"], "position": {"after": "ID"}},
            SchemaMismatchError,
            "cannot follow itself",
        ),
        (
            {"change": "update_position", "path": ["name", "x"], "position": "first"},
            InvalidOptionError,
            "nested fields do not support",
        ),
        ({"change": "update_default", "path": ["name"], "default": "now()"}, SchemaMismatchError, "is a timestamp"),
        ({"change": "update_default", "path": ["nope"], "default": "1"}, SchemaMismatchError, "no column 'nope'"),
        (
            {"change": "update_default", "path": ["name", "x"], "default": "1"},
            InvalidOptionError,
            "nested fields do not support",
        ),
        ({"change": "other", "text": "ClusterBy"}, InvalidOptionError, "you can add"),
        (add("x", position={"after": "nope"}), SchemaMismatchError, "no column 'nope'"),
        (add("x", default="1"), InvalidOptionError, "ALTER COLUMN … SET DEFAULT"),
        (add("x", nullable=False), SchemaMismatchError, "NOT NULL"),
        (add("ID"), SchemaMismatchError, "column 'id' already"),
        (add("_bucket"), SchemaMismatchError, "reserved"),
        (add("__Offset"), SchemaMismatchError, "reserved"),
        (add("x", '"void"'), SchemaMismatchError, "only nulls"),
        ({**add("x"), "path": ["name", "x"]}, SchemaMismatchError, "its parent has type string"),
        ({"change": "update_comment", "path": ["nope"], "comment": "x"}, SchemaMismatchError, "no column 'nope'"),
        (
            {"change": "update_comment", "path": ["name", "x"], "comment": "x"},
            InvalidOptionError,
            "nested fields do not support",
        ),
        ({"change": "set_property", "name": "bucket.num", "value": "9"}, InvalidOptionError, "fixed"),
        ({"change": "set_property", "name": "status.lake.snapshot", "value": "9"}, InvalidOptionError, "is read-only"),
        (
            {"change": "set_property", "name": "openlineage.dataset.name", "value": "x"},
            InvalidOptionError,
            "is read-only",
        ),
        ({"change": "set_property", "name": "provider", "value": "x"}, InvalidOptionError, "is read-only"),
        ({"change": "set_property", "name": "table.such", "value": "9"}, InvalidOptionError, "unknown table property"),
        ({"change": "remove_property", "name": "table.a'`$b"}, InvalidOptionError, "unknown table property"),
    ],
)
def test_a_refused_change_says_why_and_takes_the_others_with_it(table, alter, change, error, words):
    before = table.refresh()
    with pytest.raises(error, match=words):
        alter({"change": "set_property", "name": "comment", "value": "not to be seen"}, add("fine"), change)
    assert table.refresh() == before


def test_columns_are_renamed_dropped_and_widened(catalog, table, alter):
    alter(add("n", '"integer"'), add("more"))
    table.append([{"id": 1, "name": "a", "n": 7, "more": "x"}])
    alter({"change": "rename_column", "path": ["NAME"], "name": "title"})
    alter({"change": "delete_column", "path": ["more"]}, {"change": "update_type", "path": ["n"], "type": '"long"'})
    table.refresh()
    assert table.state.schema.ddl() == "id BIGINT NOT NULL, title STRING, n BIGINT"
    assert table.to_arrow().to_pylist() == [{"id": 1, "title": "a", "n": 7}]


def test_defaults_are_set_and_dropped(catalog, table, alter):
    alter(add("at", '"timestamp"'))
    catalog.call(
        "alter_table", database="sales", table="orders", time_zone="America/New_York",
        changes=[
            {"change": "update_default", "path": ["NAME"], "default": "'it''s'"},
            {"change": "update_default", "path": ["at"], "default": "TIMESTAMP '2026-01-31 12:00:00'"},
        ],
    )  # fmt: skip
    table.refresh()
    shown = "id BIGINT NOT NULL, name STRING DEFAULT 'it\\'s', at TIMESTAMP DEFAULT TIMESTAMP '2026-01-31 17:00:00Z'"
    assert table.state.schema.ddl() == shown
    metadata = [
        f["metadata"] for f in json.loads(catalog.call("load", database="sales", table="orders")["schema"])["fields"]
    ]
    assert metadata[1] == {"CURRENT_DEFAULT": "'it\\'s'", "EXISTS_DEFAULT": "NULL"}
    assert metadata[0] == {}
    alter({"change": "update_default", "path": ["name"], "default": None})
    alter({"change": "update_default", "path": ["at"], "default": "NULL"})
    assert "DEFAULT" not in table.refresh().schema.ddl()


def test_a_column_named_as_the_lakes_bucket_is_refused(catalog):
    catalog.create("sales", "orders", "id bigint", properties={"bucket.num": "2", "bucket.key": "id"})
    with pytest.raises(SchemaMismatchError, match="bucket or transform partition"):
        catalog.call("alter_table", database="sales", table="orders", changes=[add("ID_bucket")])


@pytest.mark.parametrize("column", ODD_COLUMNS)
def test_added_columns_may_have_any_printable_name(catalog, table, alter, column):
    alter(add(column, comment=column))
    alter({"change": "update_comment", "path": [column], "comment": f"about {column}"})
    table.refresh()
    table.append(pa.table({"id": [1], column: [column]}))
    assert table.to_arrow().to_pylist() == [{"id": 1, "name": None, column: column}]
    assert table.state.schema.columns[2].comment == f"about {column}"


class TestRename:
    def rename(self, catalog, to_database="sales", to_table="sold"):
        return catalog.call(
            "rename_table", database="sales", table="orders", to_database=to_database, to_table=to_table
        )

    def test_a_table_is_renamed_within_and_across_databases(self, catalog, table):
        catalog.call("create_database", database="archive", properties={})
        self.rename(catalog)
        assert catalog.call("tables", database="sales") == {"tables": ["sold"]}
        assert catalog.connection.table("sales.sold").uuid == table.uuid
        catalog.call("rename_table", database="sales", table="sold", to_database="default", to_table="orders")
        assert catalog.call("tables", database="sales") == {"tables": []}
        assert catalog.call("tables", database="default") == {"tables": ["orders"]}

    def test_a_rename_to_a_taken_or_absent_place_fails(self, catalog, table):
        with pytest.raises(TableNotFoundError) as raised:
            self.rename(catalog, to_database="nope")
        assert raised.value.condition == "DATABASE_NOT_FOUND"
        catalog.create("sales", "sold")
        with pytest.raises(TableExistsError, match=r"sales\.sold"):
            self.rename(catalog)
        with pytest.raises(InvalidNameError, match="read-only"):
            self.rename(catalog, to_table="sold$lake")
        for name in BAD_NAMES:
            with pytest.raises(InvalidNameError):
                self.rename(catalog, to_table=name)
            with pytest.raises(InvalidNameError):
                self.rename(catalog, to_database=name)
        assert catalog.call("tables", database="sales") == {"tables": ["orders", "sold"]}
