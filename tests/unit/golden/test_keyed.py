"""Format version 1 of tables with a primary key: changes, snapshots by key and checkpoints, read alike for ever."""

from __future__ import annotations

import datetime as dt
import json

import pytest

from faults.sim import sim_world
from golden.folder import GoldenFolder, check_checkpoint, written_again
from golden.make import KEYED, expected
from streamhouse_spark import Warehouse
from streamhouse_spark.core.warehouse_layout import parse_number
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.log.actions import Append, KvSnapshot
from streamhouse_spark.log.record import read_record

GOLDEN = GoldenFolder(KEYED)

pytestmark = [pytest.mark.always, pytest.mark.usefixtures("own_cache")]


@pytest.fixture
def table(golden):
    return Warehouse("golden", storage=golden, world=sim_world(4)).table("people")


def test_what_a_reader_sees(golden, table):
    assert json.loads(json.dumps(expected(Warehouse("golden", storage=golden, world=sim_world(4))))) == GOLDEN.expected
    rows = {f"n{i}": (dt.date(2000, 1, 1 + i), i) for i in range(8) if i != 2}
    rows |= {"n1": (dt.date(2000, 1, 2), 10), "new": (None, 11), "n3": (None, None)}
    assert {r["name"]: (r["born"], r["n"]) for r in table.to_arrow().to_pylist()} == rows
    found = table.lookup([*rows, "n2"])  # made of the snapshots and the log behind them
    assert {r["name"]: (r["born"], r["n"]) for r in found.to_pylist() if r["_found"]} == rows


def test_every_new_form_is_there(golden, table):
    found = [a for k in GOLDEN.commits for a in read_record(golden, k.split("/")[1], parse_number(k))[0].actions]
    snapshots = [a for a in found if isinstance(a, KvSnapshot)]
    assert [s.num_rows for s in snapshots if s.segments]
    segments = [s for a in found if isinstance(a, Append) for s in a.segments]
    assert {s.uuid is None for s in segments} == {True, False}
    assert [kind.value for kind in ChangeType] == [0, 1, 2, 3], "the numbers are the format"
    assert any(b'"snapshots":[' in data for key, data in GOLDEN.files.items() if "/checkpoints/0" in key)


@pytest.mark.parametrize("key", GOLDEN.commits, ids=lambda k: k[-7:-5])
def test_records_are_written_to_the_same_bytes(golden, key):
    assert written_again(golden, key) == GOLDEN.files[key]


def test_checkpoints_are_what_the_records_say_and_written_to_the_same_bytes():
    check_checkpoint(GOLDEN)


def test_it_is_written_on(table):
    assert table.upsert([{"name": "n4", "born": None, "n": 40}]).num_rows == 2
    assert table.lookup(["n4"])["n"].to_pylist() == [40]
