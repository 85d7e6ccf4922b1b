"""Names, keys, branches and locations: what is accepted, and that no name can leave its folder."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse_spark import InvalidNameError, LakeMismatchError, WarehouseMovedError
from streamhouse_spark.core import warehouse_layout
from streamhouse_spark.core.types import TableName, TablePath
from streamhouse_spark.core.warehouse_layout import (
    WAREHOUSE_KEY,
    canonical_location,
    canonical_root,
    find_recorded_root,
    is_same_place,
    parse_branch,
    parse_table_name,
    rebase_uri,
)
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.log.catalog.names import WarehouseIdentity, WarehouseMetadata, read_warehouse_file
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.memory import MemoryStorage

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
def test_table_names_are_parsed_and_printed_alike(text, expected):
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


def test_object_keys_have_their_stored_form():
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
def test_numbers_are_parsed_from_object_keys(key, number):
    assert warehouse_layout.parse_number(key) == number


def test_keys_sort_as_their_numbers():
    numbers = [0, 1, 9, 10, 99, 10**9, 10**19]
    assert sorted(warehouse_layout.commit_key(UUID, n) for n in numbers) == [
        warehouse_layout.commit_key(UUID, n) for n in numbers
    ]


@pytest.mark.parametrize(
    ("text", "path", "suffix"),
    [
        ("sales.orders$branch_audit", TablePath("sales", "orders$branch_audit"), None),
        ("orders$BRANCH_Audit$History", TablePath("default", "orders$branch_audit"), "history"),
        ("orders$branch_audit$lake$files", TablePath("default", "orders$branch_audit"), "lake$files"),
        ("orders$branch_", TablePath("default", "orders"), "branch_"),
        ("orders$branches", TablePath("default", "orders"), "branches"),
        ("orders$lake$branch_audit", TablePath("default", "orders"), "lake$branch_audit"),
    ],
)
def test_a_branch_is_a_path(text, path, suffix):
    name = parse_table_name(text)
    assert (name.path, name.suffix) == (path, suffix)
    assert parse_table_name(str(name)) == name


def test_a_table_name_may_name_a_branch():
    table, branch = TablePath("sales", "orders"), TablePath("sales", "orders").of_branch("audit")
    assert (table.branch, table.base) == (None, table)
    assert (str(branch), branch.branch, branch.base) == ("sales.orders$branch_audit", "audit", table)
    name = parse_table_name("sales.orders$branch_audit")
    assert name.require_rows("write to") == branch
    with pytest.raises(InvalidNameError, match=r"cannot drop sales\.orders\$branch_audit: .* use sales\.orders"):
        name.require_table("drop")
    with pytest.raises(InvalidNameError, match="ends with"):
        parse_table_name("orders$branch_audit$")
    with pytest.raises(InvalidNameError, match="is reserved for the table itself"):
        parse_branch("Main")


@pytest.mark.parametrize(
    ("location", "plain"),
    [
        ("/data/wh/x", "/data/wh/x"),
        ("file:///data/wh/x", "/data/wh/x"),
        ("file:/data/wh/x", "/data/wh/x"),
        ("s3a://b/wh/x", "s3://b/wh/x"),
        ("s3n://b/wh/x", "s3://b/wh/x"),
        ("S3://b/wh/x", "s3://b/wh/x"),
        ("/odd/file:/x", "/odd/file:/x"),
        ("gs://b/x", "gs://b/x"),
    ],
)
def test_locations_of_one_place_have_one_spelling(location, plain):
    assert canonical_location(location) == plain
    assert canonical_root(f"{location}/") == plain


@pytest.mark.parametrize(
    ("location", "found"),
    [
        ("/old/wh/lake/f", "/new/lake/f"),
        ("file:///old/wh/lake/f", "/new/lake/f"),
        ("/old/wh", "/new"),
        ("/old/wh2/lake/f", "/old/wh2/lake/f"),
        ("/old/w", "/old/w"),
        ("s3://old/wh/lake/f", "s3://old/wh/lake/f"),
    ],
)
def test_locations_are_rebased_below_another_root(location, found):
    assert rebase_uri(location, "/old/wh", "/new") == found


def test_the_root_that_a_location_was_written_below():
    assert find_recorded_root("s3a://b/p/lake/d/t/", "lake/d/t") == "s3://b/p"
    assert find_recorded_root("/p/lake/d/other", "lake/d/t") is None
    assert find_recorded_root("/p/xlake/d/t", "lake/d/t") is None


def test_directories_are_compared_by_what_they_are(tmp_path):
    (tmp_path / "wh").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "wh")
    assert is_same_place(str(tmp_path / "link"), f"file://{tmp_path}/wh/")
    assert not is_same_place(str(tmp_path / "other"), str(tmp_path / "wh"))
    assert not is_same_place(str(tmp_path / "absent"), str(tmp_path / "wh"))
    files = StorageFiles(LocalStorage(str(tmp_path / "wh")))
    assert files.key_of(f"{tmp_path}/link/lake/f") == "lake/f"
    for outside in ("other/lake/f", "link/../other/f", "wh/../other/f", "whx/f"):
        with pytest.raises(LakeMismatchError):
            files.key_of(f"{tmp_path}/{outside}")


def test_work_on_a_warehouse_needs_the_url_that_it_was_written_at():
    storage = MemoryStorage(name="here")
    WarehouseIdentity(storage).require("work")  # there is no warehouse
    storage.put(WAREHOUSE_KEY, WarehouseMetadata("0" * 32).to_bytes())
    WarehouseIdentity(storage).require("work")
    assert read_warehouse_file(storage).url is None
    with pytest.raises(WarehouseMovedError, match=r"memory://there and is opened at memory://here"):
        WarehouseIdentity(storage).require("work", "memory://there")
    storage.put(WAREHOUSE_KEY, WarehouseMetadata("0" * 32, "memory://there").to_bytes())
    home = WarehouseIdentity(storage)
    for _ in range(2):  # what was refused is looked at again
        with pytest.raises(WarehouseMovedError):
            home.require("work")
    storage.put(WAREHOUSE_KEY, WarehouseMetadata("0" * 32, "memory://here").to_bytes())
    home.require("work")
