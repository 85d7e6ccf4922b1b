"""Format version 1 of columns with defaults: records and a checkpoint, read and written alike for ever."""

from __future__ import annotations

import json

import pytest

from golden.folder import GoldenFolder, written_again
from golden.make import DEFAULTS, expected
from kit.warehouses import new_store
from streamhouse_spark.core.warehouse_layout import parse_number
from streamhouse_spark.log.checkpoint import read_checkpoint, write_checkpoint

pytestmark = pytest.mark.always

GOLDEN = GoldenFolder(DEFAULTS)


def test_what_a_reader_sees(wh):
    assert json.loads(json.dumps(expected(wh))) == GOLDEN.expected


def test_every_type_that_has_defaults_is_there(wh):
    with_defaults = {
        str(c.type)
        for schema in wh.table("filled").state.schemas.values()
        for c in schema.columns
        if c.default is not None
    }
    assert with_defaults == {
        "bool", "int8", "int16", "int32", "float", "double", "decimal128(38, 10)", "string", "binary", "date32[day]",
        "timestamp[us, tz=UTC]", "timestamp[us]",
    }  # fmt: skip


@pytest.mark.parametrize("key", GOLDEN.commits, ids=lambda k: k[-7:-5])
def test_records_are_written_to_the_same_bytes(golden, key):
    assert written_again(golden, key) == GOLDEN.files[key]


def test_the_checkpoint_is_written_to_the_same_bytes(golden):
    (key,) = (k for k in GOLDEN.files if "/checkpoints/0" in k)
    store = new_store(0)
    write_checkpoint(store, read_checkpoint(golden, key.split("/")[1], parse_number(key)))
    assert store.read(key) == GOLDEN.files[key]


def test_it_is_written_on(wh):
    table = wh.table("filled")
    table.append([{"id": 4}])
    older, newest = table.to_arrow(filter=[("id", ">=", 3)]).sort_by("id").to_pylist()
    assert {**newest, "nan": None, "id": 3} == older
    assert newest["nan"] != newest["nan"]
