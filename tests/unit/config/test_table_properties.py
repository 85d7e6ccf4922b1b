from __future__ import annotations

import pytest

from streamhouse_spark import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.config.table_properties import (
    ADOPTED,
    TableProperties,
    alter_properties,
    check_partition_columns,
    parse_properties,
)
from streamhouse_spark.schema.table_schema import TableSchema

SCHEMA = TableSchema.of(
    "id bigint not null, day date, price double, tags array<int>, at timestamp, name string, raw binary, ok boolean",
)


PAIMON = {"table.datalake.format": "paimon"}


def refused(properties, partition_by=()):
    with pytest.raises(InvalidOptionError) as error:
        parse_properties(properties, SCHEMA, partition_by)
    return str(error.value)


def test_properties_that_are_left_out_have_defaults():
    assert parse_properties({}, TableSchema.of("a int")) == TableProperties()
    assert TableProperties() == TableProperties(
        bucket_num=1,
        bucket_key=(),
        datalake_enabled=True,
        datalake_format="iceberg",
        datalake_freshness_ms=180_000,
        datalake_auto_compaction=True,
        datalake_auto_expire_snapshot=True,
        log_ttl_ms=604_800_000,
        log_compression="none",
        statistics_columns=(),
        comment=None,
    )


@pytest.mark.parametrize("name", ["auto-compaction", "auto-expire-snapshot"])
def test_the_lake_is_maintained_unless_it_was_adopted(name):
    """An adopted lake is not the table's alone: what its other readers see go is for its owner to say."""
    attribute = "datalake_" + name.replace("-", "_")
    for properties, expected in (
        ({}, True),
        ({ADOPTED: "empty"}, False),
        ({ADOPTED: "123"}, False),
        ({ADOPTED: "123", f"table.datalake.{name}": "true"}, True),
        ({f"table.datalake.{name}": "false"}, False),
    ):
        assert getattr(parse_properties(properties, SCHEMA), attribute) is expected


def test_every_property_is_parsed_in_any_case():
    properties = {
        "bucket.num": "4",
        "bucket.key": "ID",
        "table.datalake.enabled": "false",
        "table.datalake.format": "ICEBERG",
        "table.datalake.freshness": "500ms",
        "table.datalake.auto-compaction": "false",
        "table.datalake.auto-expire-snapshot": "FALSE",
        "table.log.ttl": "0",
        "table.log.arrow.compression.type": "LZ4_FRAME",
        "table.statistics.columns": "name, id",
        "comment": "orders",
    }
    assert parse_properties(properties, SCHEMA) == TableProperties(
        bucket_num=4,
        bucket_key=("id",),
        datalake_enabled=False,
        datalake_freshness_ms=500,
        datalake_auto_compaction=False,
        datalake_auto_expire_snapshot=False,
        log_ttl_ms=0,
        log_compression="lz4",
        statistics_columns=("id", "name"),
        comment="orders",
    )


@pytest.mark.parametrize(
    ("properties", "partition_by", "columns"),
    [
        ({}, (), ("day", "at")),
        ({"bucket.key": "id"}, ("NAME",), ("id", "day", "at", "name")),
        ({"table.statistics.columns": "*"}, (), ("id", "day", "price", "at", "name")),
        ({"table.statistics.columns": ""}, ("day",), ()),
    ],
)
def test_statistics_columns_are_chosen_by_property_and_default(properties, partition_by, columns):
    assert parse_properties(properties, SCHEMA, partition_by).statistics_columns == columns


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"bucket.nun": "1"}, "unknown table property 'bucket.nun'; did you mean bucket.num?"),
        ({"Bucket.Num": "1"}, "did you mean bucket.num?"),
        ({"table.zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz": "1"}, "supported are bucket.num"),
        ({"tabel.log.ttl": "1d"}, "unknown table property 'tabel.log.ttl'; did you mean table.log.ttl?"),
        ({"bucket_num": "1"}, "did you mean bucket.num?"),
        ({"status.commit": "7"}, "unknown table property 'status.commit'"),
        ({"Provider": "delta"}, "unknown table property 'Provider'"),
        ({" ": "1"}, "expected 1 to 1000 printable characters"),
        ({"x" * 1001: "1"}, "expected 1 to 1000 printable characters"),
        ({"team": "\ud800"}, "which is not valid Unicode"),
        ({"bucket.num": "0"}, "bucket.num is '0', expected a whole number from 1 to 16384"),
        ({"bucket.num": "16385"}, "from 1 to 16384"),
        ({"bucket.num": "four"}, "bucket.num is 'four'"),
        ({"bucket.key": "price"}, "has type double, expected integers, decimals"),
        ({"bucket.key": "ok"}, "has type boolean, expected integers, decimals"),
        ({"bucket.key": "tags"}, "has type array<int>, expected integers, decimals"),
        ({"bucket.key": "id,name"}, "expected one column"),
        ({"bucket.key": "id,ID"}, "column 'id' occurs twice"),
        ({"primary.key": "id", "bucket.key": "name"}, "expected a column of the primary key id"),
        ({"table.merge-engine": "first_row"}, "requires a primary key"),
        ({"table.merge-engine.versioned.ver-column": "id"}, "requires a primary key"),
        ({"fields.price.agg": "sum"}, "requires a primary key"),
        ({"table.datalake.format": "hudi"}, "'hudi', expected iceberg or paimon"),
        ({**PAIMON, "primary.key": "price"}, "'price' of type double, whose equal values can be distinct keys"),
        ({"table.datalake.freshness": "soon"}, "table.datalake.freshness is 'soon', expected a duration"),
        ({"table.log.arrow.compression.type": "gzip"}, "expected none, lz4 or zstd"),
        ({"table.statistics.columns": "ok"}, "'ok' of type boolean, which has no statistics"),
        ({"table.statistics.columns": "raw"}, "'raw' of type binary, which has no statistics"),
        ({"comment": "postgres://u:hunter2@h/d"}, "property comment has a value that looks like a credential"),
    ],
)
def test_says_which_property_is_wrong(properties, message):
    text = refused(properties)
    assert message in text
    assert "hunter2" not in text
    assert "\n" not in text


def test_an_unknown_column_is_named_with_the_nearest():
    with pytest.raises(SchemaMismatchError, match="no column 'nam'; did you mean 'name'"):
        parse_properties({"bucket.key": "nam"}, SCHEMA)


def test_bad_partition_columns_are_rejected():
    assert check_partition_columns(["DAY", "name"], SCHEMA) == ("day", "name")
    assert "partition column 'tags' has type array<int>" in refused({}, ("tags",))
    assert "column 'day' occurs twice" in refused({}, ("day", "Day"))
    with pytest.raises(InvalidOptionError, match="partition by fewer columns"):
        check_partition_columns(["a"], TableSchema.of("a int"))


def test_alter_changes_what_can_change():
    current = {"bucket.num": "4", "table.log.ttl": "7d"}
    changed = alter_properties(current, {"table.log.ttl": "1d", "comment": "x"})
    assert changed == {"bucket.num": "4", "table.log.ttl": "1d", "comment": "x"}
    assert alter_properties(current, {}, ["table.log.ttl"]) == {"bucket.num": "4"}
    assert alter_properties(current, {"bucket.num": "4"}) == current


def test_names_that_are_fixed_may_be_written_otherwise():
    current = {"primary.key": "id, day", "bucket.key": "id", "partition.fields": "truncate(4, name)"}
    again = {"primary.key": "ID,day", "bucket.key": " Id", "partition.fields": "TRUNCATE(4,name)"}
    assert alter_properties(current, again) == current
    with pytest.raises(InvalidOptionError, match="is fixed at creation"):
        alter_properties(current, {"primary.key": "day, id"})


def test_the_users_own_properties_are_kept_and_mean_nothing():
    own = {"team": "ann", "team.x": "y", "comments": "", "delta.appendOnly": "true", "a'`$b": "4", "pipelines.k": "[]"}
    assert parse_properties(own, SCHEMA) == parse_properties({}, SCHEMA)
    assert alter_properties({"bucket.num": "4"}, own) == {"bucket.num": "4", **own}
    assert alter_properties(own, {}, list(own)) == {}
    assert "looks like a credential" in refused({"pipelines.url": "postgres://u:hunter2@h/d"})


@pytest.mark.parametrize(
    ("set_values", "unset"), [({"bucket.num": "5"}, ()), ({}, ("bucket.num",)), ({"bucket.key": "id"}, ())]
)
def test_alter_refuses_what_is_fixed(set_values, unset):
    with pytest.raises(InvalidOptionError, match="is fixed at creation"):
        alter_properties({"bucket.num": "4"}, set_values, unset)


def test_alter_refuses_to_unset_what_is_unknown():
    with pytest.raises(InvalidOptionError, match=r"did you mean table\.log\.ttl"):
        alter_properties({}, {}, ["table.log.tl"])
