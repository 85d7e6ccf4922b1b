"""Conditions on columns so that Paimon can hold the table."""

from __future__ import annotations

import pyarrow as pa
import pytest

from streamhouse_spark import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.config.table_properties import parse_properties
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import lake_location
from streamhouse_spark.schema.table_schema import Column, TableSchema

SCHEMA = TableSchema.of(
    "id bigint, day date, price double, at timestamp, name string, ok boolean, large decimal(20,2), "
    "small decimal(18,2), `a,b` int, ` c ` int"
)
PAIMON = {"table.datalake.format": "paimon"}


@pytest.mark.parametrize("key", ["id", "day", "at", "name", "small"])
def test_bucket_keys_that_paimon_can_hash_are_accepted(key):
    properties = parse_properties({**PAIMON, "bucket.key": key}, SCHEMA)
    assert (properties.datalake_format, properties.bucket_key) == ("paimon", (key,))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("large", "expected at most 18 digits"),
        ("price", "expected integers, decimals"),
        ("`a,b`", "which Paimon's option bucket-key does not support"),
        ("` c `", "which Paimon's option bucket-key does not support"),
    ],
)
def test_bucket_keys_that_paimon_cannot_have(key, message):
    with pytest.raises(InvalidOptionError, match=message):
        parse_properties({**PAIMON, "bucket.key": key}, SCHEMA)
    parse_properties({"bucket.key": "large"}, SCHEMA)


@pytest.mark.parametrize("name", ["price", "at", "ok", "small"])
def test_partition_columns_whose_folders_others_name_differently(name):
    with pytest.raises(InvalidOptionError, match=f"partition column '{name}' has type"):
        parse_properties(PAIMON, SCHEMA, (name,))
    parse_properties({}, SCHEMA, (name,))
    parse_properties(PAIMON, SCHEMA, ("id", "day", "name"))


def test_a_bucket_key_that_is_a_partition_column():
    with pytest.raises(InvalidOptionError, match="is a partition column"):
        parse_properties({**PAIMON, "bucket.key": "id"}, SCHEMA, ("ID",))


@pytest.mark.parametrize("key", ["id", "day,name", "large", "ok,at"])
def test_primary_keys_that_paimon_can_hold_are_accepted(key):
    assert parse_properties({**PAIMON, "primary.key": key}, SCHEMA).primary_key == tuple(key.split(","))


def test_paimon_rejects_a_primary_key_of_floating_point():
    with pytest.raises(InvalidOptionError, match="whose equal values can be distinct keys"):
        parse_properties({**PAIMON, "primary.key": "id,price"}, SCHEMA)
    parse_properties({"primary.key": "id,price"}, SCHEMA)


def test_paimon_rejects_a_primary_key_of_partition_columns_alone():
    with pytest.raises(InvalidOptionError, match="all columns of the primary key day, id are partition columns"):
        parse_properties({**PAIMON, "primary.key": "day,id"}, SCHEMA, ("ID", "day"))
    parse_properties({**PAIMON, "primary.key": "day,id"}, SCHEMA, ("day",))


@pytest.mark.parametrize("name", ["_KEY_id", "_value_kind", "_SEQUENCE_NUMBER", "rowkind"])
def test_names_that_are_paimons_own(name):
    """Of a table from before they were reserved everywhere."""
    schema = TableSchema((Column(1, "id", pa.int64()), Column(2, name, pa.int32())))
    with pytest.raises(SchemaMismatchError, match=f"'{name}' is reserved by Paimon"):
        parse_properties(PAIMON, schema)
    parse_properties({}, schema)


def test_where_the_lake_lies():
    path, uuid = TablePath("sales", "orders"), "0123456789abcdef0123456789abcdef"
    assert lake_location(path, uuid, has_conflict=False, lake_format="paimon") == "lake/sales.db/orders"
    assert lake_location(path, uuid, has_conflict=True, lake_format="paimon") == "lake/sales.db/orders-01234567"
    assert lake_location(path, uuid, has_conflict=False) == "lake/sales/orders"
