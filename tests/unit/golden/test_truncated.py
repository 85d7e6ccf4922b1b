"""Format version 1 of truncated tables: records, lake pairs and checkpoints, read and written alike for ever."""

from __future__ import annotations

import json

import pytest

from golden.folder import GoldenFolder, check_checkpoint, written_again
from golden.make import TRUNCATED, expected
from streamhouse_spark.core.warehouse_layout import parse_number
from streamhouse_spark.log.actions import Append, TieredSnapshot, Truncate
from streamhouse_spark.log.record import read_record
from streamhouse_spark.read.read_snapshot import take_latest_snapshot

pytestmark = pytest.mark.always

GOLDEN = GoldenFolder(TRUNCATED)


def test_what_a_reader_sees(wh):
    assert json.loads(json.dumps(expected(wh))) == GOLDEN.expected
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
    assert take_latest_snapshot(wh.table("emptied").state).hot == {}
    overwritten = wh.table("overwritten").state
    assert overwritten.lake.snapshot_id == 2**62 + 1
    assert overwritten.lake.starts == overwritten.first_offsets == {0: 4, 1: 3}
    assert [pair.starts for pair in overwritten.lake_history] == [{}, {0: 4, 1: 3}]
    assert sum(len(offsets) for offsets in take_latest_snapshot(overwritten).hot.values()) == 1


def test_every_new_form_is_there(golden):
    found = [read_record(golden, k.split("/")[1], parse_number(k))[0].actions for k in GOLDEN.commits]
    assert {type(a) for actions in found for a in actions} >= {Truncate, TieredSnapshot, Append}
    assert [type(a) for actions in found for a in actions if len(actions) > 1] == [Truncate, Append]
    assert [a for actions in found for a in actions if isinstance(a, TieredSnapshot) and a.starts]
    assert any(b'"truncation":{' in data for key, data in GOLDEN.files.items() if "/checkpoints/0" in key)


@pytest.mark.parametrize("key", GOLDEN.commits, ids=lambda k: k[7:13] + k[-7:-5])
def test_records_are_written_to_the_same_bytes(golden, key):
    assert written_again(golden, key) == GOLDEN.files[key]


def test_checkpoints_are_what_the_records_say_and_written_to_the_same_bytes():
    check_checkpoint(GOLDEN)


def test_it_is_written_on(wh):
    table = wh.table("overwritten")
    table.truncate()
    assert dict(table.append([{"id": 5}])) != {}
    assert wh.view("overwritten$changelog").to_arrow()["id"].to_pylist() == [5]
