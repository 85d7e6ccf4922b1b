"""Names and keys: what is taken, what is refused, and that no name can leave its folder."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark import InvalidNameError
from streamhouse_spark.core import warehouse_layout
from streamhouse_spark.core.types import TableName, TablePath

UUID = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders", TableName(TablePath("default", "orders"))),
        ("Sales.Orders", TableName(TablePath("sales", "orders"))),
        ("_a._1", TableName(TablePath("_a", "_1"))),
        ("orders$lake", TableName(TablePath("default", "orders"), "lake")),
        ("sales.orders$LAKE$Snapshots", TableName(TablePath("sales", "orders"), "lake$snapshots")),
        ("a.b$c.d", TableName(TablePath("a", "b"), "c.d")),
        ("default.orders", TableName(TablePath("default", "orders"))),
    ],
)
def test_names(text, expected):
    found = warehouse_layout.parse_table_name(text)
    assert found == expected
    assert warehouse_layout.parse_table_name(str(found)) == found


@given(st.text(max_size=12))
def test_every_text_is_a_name_or_an_error(text):
    try:
        name = warehouse_layout.parse_table_name(text)
    except InvalidNameError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either outcome is right
        return
    assert re.fullmatch(r"[a-z0-9_]{1,128}", name.path.database + name.path.table)
    assert warehouse_layout.name_key(name.path, 1) == f"{name.path.database}/{name.path.table}/names/00000001.json"


@given(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}(\.[A-Za-z_][A-Za-z0-9_]{0,20})?", fullmatch=True))
def test_the_grammar_is_taken(text):
    database = text.lower().split(".")[0] if "." in text else "default"
    if database in warehouse_layout.RESERVED_DATABASES:
        with pytest.raises(InvalidNameError, match="reserved"):
            warehouse_layout.parse_table_name(text)
    else:
        assert str(warehouse_layout.parse_table_name(text)) == (text if "." in text else f"default.{text}").lower()


def test_keys():
    path = TablePath("sales", "orders")
    assert warehouse_layout.database_key("sales") == "sales/database.json"
    assert warehouse_layout.names_prefix(path) == "sales/orders/names/"
    assert warehouse_layout.commit_key(UUID, 42) == f"tables/{UUID}/commits/00000000000000000042.json"
    assert warehouse_layout.checkpoint_key(UUID, 500) == f"tables/{UUID}/checkpoints/00000000000000000500"
    assert warehouse_layout.checkpoint_hint_key(UUID) == f"tables/{UUID}/checkpoints/hint"
    assert warehouse_layout.watermark_key(UUID, 1) == f"tables/{UUID}/floors/00000000000000000001"
    assert warehouse_layout.segment_key(UUID, "a" * 32) == f"tables/{UUID}/segments/{'a' * 32}.arrow"
    assert warehouse_layout.manifest_key(UUID, "b" * 32) == f"tables/{UUID}/manifests/{'b' * 32}.json"
    assert warehouse_layout.lake_location(path, UUID, has_conflict=False) == "lake/sales/orders"
    assert warehouse_layout.lake_location(path, UUID, has_conflict=True) == "lake/sales/orders-01234567"


@pytest.mark.parametrize("uuid", ["", "../x", "A" * 32, "a" * 31, "a" * 33, "a" * 31 + "/", "a" * 32 + "\n", "a/" * 16])
def test_a_table_is_named_by_a_uuid_alone(uuid):
    with pytest.raises(InvalidNameError, match="32 hexadecimal digits"):
        warehouse_layout.table_prefix(uuid)


@pytest.mark.parametrize(
    ("key", "number"),
    [
        (warehouse_layout.commit_key(UUID, 7), 7),
        (warehouse_layout.checkpoint_key(UUID, 10**19), 10**19),
        (warehouse_layout.checkpoint_hint_key(UUID), None),
        ("00000000000000000007.json.tmp", None),
        ("x00000000000000000007.json", None),
        ("0000000000000000000٣", None),
        ("7.json", None),
        ("", None),
    ],
)
def test_numbers_of_keys(key, number):
    assert warehouse_layout.parse_number(key) == number


def test_keys_sort_as_their_numbers():
    numbers = [0, 1, 9, 10, 99, 10**9, 10**19]
    assert sorted(warehouse_layout.commit_key(UUID, n) for n in numbers) == [
        warehouse_layout.commit_key(UUID, n) for n in numbers
    ]
