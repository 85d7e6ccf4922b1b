"""Format version 1 of truncated tables: records, lake pairs and checkpoints, read and written alike for ever."""

from __future__ import annotations

import json

import pytest

from faults.sim import sim_world
from golden.make import TRUNCATED, expected
from streamhouse_spark.log.actions import Append, LakePair, Truncate
from streamhouse_spark.log.checkpoint import read_checkpoint, write_checkpoint
from streamhouse_spark.log.record import Record, encode_record, read_record
from streamhouse_spark.log.state import fold
from streamhouse_spark.paths import parse_number
from streamhouse_spark.pin import pin_newest
from streamhouse_spark.storage_memory import MemoryStorage
from streamhouse_spark.warehouse import Warehouse

WAREHOUSE = TRUNCATED / "warehouse"
FILES = {p.relative_to(WAREHOUSE).as_posix(): p.read_bytes() for p in WAREHOUSE.rglob("*") if p.is_file()}
EXPECTED = json.loads((TRUNCATED / "expected.json").read_text(encoding="utf-8"))
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
    assert wh.view("emptied$changelog").to_arrow().num_rows == 0
    rows = wh.view("overwritten$changelog").to_arrow()
    assert sorted(zip(rows["id"].to_pylist(), rows["name"].to_pylist(), strict=True)) == [
        (0, "new"),
        (1, "new"),
        (2, "new"),
        (9, None),
    ]


def test_which_lake_snapshot_counts(wh):
    assert wh.table("emptied").state.lake is None
    assert pin_newest(wh.table("emptied").state).hot == {}
    overwritten = wh.table("overwritten").state
    assert overwritten.lake.snapshot_id == 2**62 + 1
    assert overwritten.lake.starts == overwritten.first_offsets == {0: 4, 1: 3}
    assert [pair.starts for pair in overwritten.lake_history] == [{}, {0: 4, 1: 3}]
    assert sum(len(offsets) for offsets in pin_newest(overwritten).hot.values()) == 1


def test_every_new_form_is_there(golden):
    found = [read_record(golden, k.split("/")[1], parse_number(k))[0].actions for k in COMMITS]
    assert {type(a) for actions in found for a in actions} >= {Truncate, LakePair, Append}
    assert [type(a) for actions in found for a in actions if len(actions) > 1] == [Truncate, Append]
    assert [a for actions in found for a in actions if isinstance(a, LakePair) and a.starts]
    assert any(b'"truncation":{' in data for key, data in FILES.items() if "/checkpoints/0" in key)


@pytest.mark.parametrize("key", COMMITS, ids=lambda k: k[7:13] + k[-7:-5])
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


def test_checkpoints_are_what_the_records_say_and_written_to_the_same_bytes(golden):
    (key,) = (k for k in FILES if "/checkpoints/0" in k)
    uuid, number = key.split("/")[1], parse_number(key)
    state = read_checkpoint(golden, uuid, number)
    folded = None
    for n in range(1, number + 1):
        folded = fold(folded, read_record(golden, uuid, n)[0])
    assert state == folded
    store = MemoryStorage(sim_world(0))
    write_checkpoint(store, state)
    assert {info.key: store.read(info.key) for info in store.list("")} == {
        k: d for k, d in FILES.items() if "/checkpoints/" in k
    }


def test_it_is_written_on(wh):
    table = wh.table("overwritten")
    table.truncate()
    assert dict(table.append([{"id": 5}])) != {}
    assert wh.view("overwritten$changelog").to_arrow()["id"].to_pylist() == [5]
