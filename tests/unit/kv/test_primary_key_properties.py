"""Properties of tables with a primary key: what they mean, what contradicts itself, and the engines behind them."""

from __future__ import annotations

import pytest

from streamhouse_spark import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.config.table_properties import is_keyed_property
from streamhouse_spark.kv.merge_engines import ColumnwiseMerge, FirstRowMerge, VersionedMerge
from streamhouse_spark.kv.primary_key_properties import (
    Aggregate,
    KeyedProperties,
    engine_of,
    parse_keyed_properties,
)
from streamhouse_spark.schema.table_schema import TableSchema

SCHEMA = TableSchema.of(
    "id BIGINT NOT NULL, dt DATE NOT NULL, name STRING, n INT, price DECIMAL(10,2), at TIMESTAMP, "
    "tags ARRAY<STRING> NOT NULL, blob BINARY"
)
KEY = {"primary.key": "id, dt"}


def parsed(partition_by=(), **properties):
    return parse_keyed_properties({**KEY, **properties}, SCHEMA, partition_by)


def test_keyed_properties_that_are_left_out_have_defaults():
    assert parsed() == KeyedProperties(("id", "dt"))


def test_names_are_those_of_the_schema():
    assert parse_keyed_properties({"primary.key": "DT,`Id`"}, SCHEMA, ["dt"]).primary_key == ("dt", "id")


def test_every_keyed_property_is_parsed():
    found = parsed(
        **{
            "table.merge-engine": "Aggregation",
            "table.delete.behavior": "ALLOW",
            "fields.N.agg": "sum",
            "fields.name.agg": "listagg",
            "fields.name.listagg.delimiter": "; ",
            "fields.price.agg": "max",
        }
    )
    assert found.merge_engine == "aggregation"
    assert found.delete_behavior == "allow"
    assert found.aggregates == {"n": Aggregate("sum"), "name": Aggregate("listagg", "; "), "price": Aggregate("max")}


@pytest.mark.parametrize("engine", ["first_row", "versioned", "aggregation"])
def test_engines_ignore_deletions_unless_told(engine):
    version = {"table.merge-engine.versioned.ver-column": "at"} if engine == "versioned" else {}
    assert parsed(**{"table.merge-engine": engine, **version}).delete_behavior == "ignore"
    told = {"table.merge-engine": engine, "table.delete.behavior": "disable", **version}
    assert parsed(**told).delete_behavior == "disable"


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"primary.key": ""}, "name one or more"),
        ({"primary.key": "id, ID"}, "distinct columns"),
        ({"primary.key": "name"}, "'name', which may be null; make the column NOT NULL"),
        ({"primary.key": "tags"}, "'tags' of type array<string>; choose columns of scalar types"),
        ({"table.merge-engine": "last"}, "expected first_row, versioned or aggregation"),
        ({"table.merge-engine": "versioned"}, "versioned requires"),
        ({"table.merge-engine.versioned.ver-column": "n"}, "versioned requires"),
        ({"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "price"}, "INT, BIGINT"),
        ({"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "id"}, "INT, BIGINT"),
        ({"table.merge-engine": "first_row", "table.delete.behavior": "allow"}, "ignore or disable"),
        ({"table.delete.behavior": "soft"}, "allow, ignore or disable"),
        ({"table.changelog.image": "half"}, "full or wal"),
        ({"table.changelog.image": "wal", "table.merge-engine": "aggregation"}, "expected full"),
        ({"fields.n.agg": "sum"}, "leave it out"),
        ({"table.merge-engine": "aggregation", "fields.id.agg": "sum"}, "leave it out"),
        ({"table.merge-engine": "aggregation", "fields.n.agg": "median"}, "expected one of sum, product"),
        ({"table.merge-engine": "aggregation", "fields.blob.agg": "sum"}, "'blob' has type binary"),
        (
            {"table.merge-engine": "aggregation", "fields.name.listagg.delimiter": ";"},
            r"set fields\.name\.agg to listagg",
        ),
    ],
)
def test_contradicting_keyed_properties_are_rejected(properties, says):
    with pytest.raises(InvalidOptionError, match=says):
        parsed(**properties)


def test_unknown_columns_name_the_nearest():
    for properties in ({"primary.key": "idd"}, {"table.merge-engine": "aggregation", "fields.nam.agg": "max"}):
        with pytest.raises(SchemaMismatchError, match="did you mean"):
            parsed(**properties)


def test_partition_columns_are_part_of_the_key():
    assert parsed(["dt"]).primary_key == ("id", "dt")
    with pytest.raises(InvalidOptionError, match=r"partition column 'name' is not in primary\.key id, dt; add it"):
        parsed(["name"])


@pytest.mark.parametrize(
    ("name", "is_keyed"),
    [
        ("primary.key", True),
        ("table.merge-engine", True),
        ("fields.a.agg", True),
        ("fields.a.b.agg", True),
        ("fields.a.listagg.delimiter", True),
        ("fields.a.sum.delimiter", False),
        ("fields.agg", False),
        ("bucket.num", False),
    ],
)
def test_which_properties_are_keyed(name, is_keyed):
    assert is_keyed_property(name) is is_keyed


class TestEngines:
    def test_the_last_row_wins(self):
        assert engine_of(parsed(), SCHEMA) == ColumnwiseMerge(frozenset({0, 1}), {})

    def test_an_engine_of_partial_updates_keeps_other_columns(self):
        engine = engine_of(parsed(), SCHEMA, ["N", "id", "at"])
        assert engine == ColumnwiseMerge(frozenset({0, 1}), {}, frozenset({3, 5}))
        with pytest.raises(InvalidOptionError, match="names only primary key columns"):
            engine_of(parsed(), SCHEMA, ["id"])
        with pytest.raises(SchemaMismatchError, match="'nn'"):
            engine_of(parsed(), SCHEMA, ["nn"])

    @pytest.mark.parametrize("engine", ["first_row", "versioned"])
    def test_engines_of_whole_rows_reject_partial_updates(self, engine):
        version = {"table.merge-engine.versioned.ver-column": "at"} if engine == "versioned" else {}
        keyed = parsed(**{"table.merge-engine": engine, **version})
        assert engine_of(keyed, SCHEMA) == (VersionedMerge(5) if version else FirstRowMerge())
        with pytest.raises(InvalidOptionError, match="only whole rows"):
            engine_of(keyed, SCHEMA, ["n"])

    def test_aggregation_has_a_fold_for_every_column_beside_the_key(self):
        keyed = parsed(**{"table.merge-engine": "aggregation", "fields.n.agg": "sum"})
        engine = engine_of(keyed, SCHEMA)
        assert isinstance(engine, ColumnwiseMerge)
        assert set(engine.folds) == {2, 3, 4, 5, 6, 7}
