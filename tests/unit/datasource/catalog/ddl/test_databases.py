from __future__ import annotations

import pytest

from streamhouse_spark import (
    InvalidNameError,
    InvalidOptionError,
    TableExistsError,
    TableNotFoundError,
    WarehouseNotFoundError,
)
from unit.datasource.calls import Catalog


def test_a_database_is_made_described_listed_and_dropped(connection):
    catalog = Catalog(connection)
    with pytest.raises(WarehouseNotFoundError):
        catalog.call("databases")
    assert catalog.call("database", database="sales") == {"exists": False, "properties": {}}
    catalog.call("create_database", database="Sales", properties={"comment": "what 'they' `sold`", "owner": "me"})
    assert catalog.call("database", database="sales") == {
        "exists": True,
        "properties": {"comment": "what 'they' `sold`"},
    }
    assert catalog.call("databases") == {"databases": ["default", "sales"]}
    assert catalog.call("drop_database", database="sales", cascade=False) == {"dropped": True}
    assert catalog.call("database", database="sales")["exists"] is False
    assert catalog.call("drop_database", database="sales", cascade=False) == {"dropped": False}
    assert catalog.call("databases") == {"databases": ["default"]}


def test_a_dropped_database_can_be_made_again_without_its_comment(catalog):
    catalog.call("drop_database", database="sales", cascade=False)
    catalog.call("create_database", database="sales", properties={})
    assert catalog.call("database", database="sales") == {"exists": True, "properties": {}}


def test_a_database_that_exists_is_not_made_again(catalog):
    with pytest.raises(TableExistsError) as raised:
        catalog.call("create_database", database="sales", properties={})
    assert raised.value.condition == "DATABASE_EXISTS"


def test_the_database_default_is_always_there(catalog):
    assert catalog.call("database", database="default")["exists"] is True
    assert catalog.call("tables", database="default") == {"tables": []}
    catalog.create("default", "t")
    assert catalog.call("tables", database="default") == {"tables": ["t"]}


def test_a_database_with_tables_goes_only_with_them(catalog):
    catalog.create("sales", "orders")
    with pytest.raises(TableExistsError, match=r"sales\.orders.*CASCADE") as raised:
        catalog.call("drop_database", database="sales", cascade=False)
    assert raised.value.condition == "DATABASE_NOT_EMPTY"
    assert catalog.call("tables", database="sales") == {"tables": ["orders"]}
    assert catalog.call("drop_database", database="sales", cascade=True) == {"dropped": True}
    catalog.call("create_database", database="sales", properties={})
    assert catalog.call("tables", database="sales") == {"tables": []}


def test_an_unknown_database_is_named_by_its_condition(catalog):
    with pytest.raises(TableNotFoundError) as raised:
        catalog.call("tables", database="nope")
    assert raised.value.condition == "DATABASE_NOT_FOUND"


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"location": "/data"}, "in the catalog's warehouse"),
        ({"retention": "7d"}, "found properties retention, expected only a comment"),
    ],
)
def test_other_properties_are_refused_before_anything_is_made(connection, properties, words):
    catalog = Catalog(connection)
    with pytest.raises(InvalidOptionError, match=words):
        catalog.call("create_database", database="sales", properties=properties)
    assert catalog.call("database", database="sales")["exists"] is False


@pytest.mark.parametrize(
    "name", ["a b", "a`b", "a'b", 'a"b', "a$b", "a.b", "..", "../x", "größe", "ſales", "", "tables"]
)
def test_names_that_cannot_be_are_refused_and_do_not_exist(catalog, name):
    with pytest.raises(InvalidNameError):
        catalog.call("create_database", database=name, properties={})
    with pytest.raises(InvalidNameError):
        catalog.call("drop_database", database=name, cascade=True)
    with pytest.raises(InvalidNameError):
        catalog.call("tables", database=name)
    assert catalog.call("database", database=name) == {"exists": False, "properties": {}}
    assert catalog.call("databases") == {"databases": ["default", "sales"]}


def test_the_comment_of_a_database_is_changed_and_taken_away(catalog):
    change = {"change": "set_property", "name": "comment", "value": "sold"}
    catalog.call("alter_database", database="sales", changes=[change])
    assert catalog.call("database", database="sales")["properties"] == {"comment": "sold"}
    catalog.call("alter_database", database="sales", changes=[{"change": "remove_property", "name": "comment"}])
    assert catalog.call("database", database="sales")["properties"] == {}
    with pytest.raises(InvalidOptionError, match="found properties team, expected only a comment"):
        catalog.call("alter_database", database="sales", changes=[{**change, "name": "team"}])
