"""Locations of one place in several spellings, and below another root."""

from __future__ import annotations

import pytest

from streamhouse_spark import LakeMismatchError, WarehouseMovedError
from streamhouse_spark.core.warehouse_layout import (
    WAREHOUSE_KEY,
    find_recorded_root,
    is_same_place,
    plain_location,
    plain_root,
    rebase_uri,
)
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.log.catalog.names import WarehouseIdentity, WarehouseMetadata, read_warehouse_file
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.storage.memory import MemoryStorage


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
def test_one_spelling(location, plain):
    assert plain_location(location) == plain
    assert plain_root(f"{location}/") == plain


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
def test_rebased(location, found):
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


def test_home():
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
