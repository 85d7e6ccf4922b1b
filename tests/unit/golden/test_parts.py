"""Segments that share objects: records, a checkpoint and objects, read and written alike for ever."""

from __future__ import annotations

import json

import pytest

from golden.folder import GoldenFolder, written_again
from golden.make import PARTS, expected
from kit.warehouses import new_store
from streamhouse_spark.core.warehouse_layout import parse_number
from streamhouse_spark.log.checkpoint import read_checkpoint, write_checkpoint
from streamhouse_spark.log.framing import decode_frame
from streamhouse_spark.log.segments.reader import verify_segment

pytestmark = pytest.mark.always

GOLDEN = GoldenFolder(PARTS)


def test_what_a_reader_sees(wh):
    assert json.loads(json.dumps(expected(wh))) == GOLDEN.expected


def test_every_segment_is_whole(golden, wh):
    state = wh.table("shared").refresh()
    segments = state.live_segments()
    assert all(segment.part is not None for segment in segments)
    assert len({segment.uuid for segment in segments}) < len(segments)
    for segment in segments:
        verify_segment(golden, state.table_uuid, segment, state.schema.arrow)


def test_every_form_is_there():
    kinds = {
        a["type"] for key in GOLDEN.commits for a in decode_frame("commit", GOLDEN.files[key], key).header["actions"]
    }
    assert {"append-parts", "replace-parts"} <= kinds


@pytest.mark.parametrize("key", GOLDEN.commits, ids=lambda k: k[-7:-5])
def test_records_are_written_to_the_same_bytes(golden, key):
    assert written_again(golden, key) == GOLDEN.files[key]


def test_the_checkpoint_is_written_to_the_same_bytes(golden):
    (key,) = (k for k in GOLDEN.files if "/checkpoints/0" in k)
    assert b'"version":3' in GOLDEN.files[key][:60]
    store = new_store(0)
    write_checkpoint(store, read_checkpoint(golden, key.split("/")[1], parse_number(key)))
    assert store.read(key) == GOLDEN.files[key]


def test_it_is_written_on(wh):
    table = wh.table("shared")
    before = table.to_arrow().num_rows
    table.append([{"id": 100}])
    assert table.to_arrow().num_rows == before + 1
