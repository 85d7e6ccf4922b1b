"""Format version 1 of columns with defaults: records and a checkpoint, read and written alike for ever."""

from __future__ import annotations

import json

import pytest

from faults.sim import sim_world
from golden.make import DEFAULTS, expected
from streamhouse_spark.log.actions import Append
from streamhouse_spark.log.checkpoint import read_checkpoint, write_checkpoint
from streamhouse_spark.log.record import Record, encode_record, read_record
from streamhouse_spark.paths import parse_number
from streamhouse_spark.storage_memory import MemoryStorage
from streamhouse_spark.warehouse import Warehouse

WAREHOUSE = DEFAULTS / "warehouse"
FILES = {p.relative_to(WAREHOUSE).as_posix(): p.read_bytes() for p in WAREHOUSE.rglob("*") if p.is_file()}
EXPECTED = json.loads((DEFAULTS / "expected.json").read_text(encoding="utf-8"))
COMMITS = [key for key in FILES if "/commits/" in key]


@pytest.fixture
def golden() -> MemoryStorage:
    store = MemoryStorage(sim_world(3))
    for key, data in FILES.items():
        store.put(key, data)
    return store


@pytest.fixture
def wh(golden) -> Warehouse:
    return Warehouse("golden", storage=golden, world=sim_world(4))


def test_what_a_reader_sees(wh):
    assert json.loads(json.dumps(expected(wh))) == EXPECTED


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


@pytest.mark.parametrize("key", COMMITS, ids=lambda k: k[-7:-5])
def test_records_are_written_to_the_same_bytes(golden, key):
    record, payload = read_record(golden, key.split("/")[1], parse_number(key))
    actions = tuple(
        Append(a.segments, tuple(s.inline and bytes(payload[slice(*s.inline)]) for s in a.segments))
        if isinstance(a, Append)
        else a
        for a in record.actions
    )
    again = Record(record.number, record.table_uuid, record.attempt, record.time_ms, actions, record.transaction)
    assert encode_record(again, "").data == FILES[key]


def test_the_checkpoint_is_written_to_the_same_bytes(golden):
    (key,) = (k for k in FILES if "/checkpoints/0" in k)
    store = MemoryStorage(sim_world(0))
    write_checkpoint(store, read_checkpoint(golden, key.split("/")[1], parse_number(key)))
    assert store.read(key) == FILES[key]


def test_it_is_written_on(wh):
    table = wh.table("filled")
    table.append([{"id": 4}])
    older, newest = table.to_arrow(filter=[("id", ">=", 3)]).sort_by("id").to_pylist()
    assert {**newest, "nan": None, "id": 3} == older
    assert newest["nan"] != newest["nan"]
