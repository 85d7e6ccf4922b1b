"""Format version 1 of features that came after the first folder: read for ever, and written to the same bytes."""

from __future__ import annotations

import datetime as dt
import json

import pytest

from golden import make
from golden.folder import GoldenFolder, check_checkpoint, written_again
from kit.warehouses import new_store
from streamhouse_spark.core.warehouse_layout import parse_number
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.log.actions import Append, KvSnapshot, TieredSnapshot, Truncate
from streamhouse_spark.log.checkpoint import read_checkpoint, write_checkpoint
from streamhouse_spark.log.framing import decode_frame
from streamhouse_spark.log.record import read_record
from streamhouse_spark.log.segments.reader import verify_segment
from streamhouse_spark.read.read_snapshot import take_latest_snapshot

pytestmark = [pytest.mark.always, pytest.mark.usefixtures("own_cache")]
FOLDERS = {
    name: GoldenFolder(folder)
    for name, folder in (
        ("truncated", make.TRUNCATED),
        ("keyed", make.KEYED),
        ("defaults", make.DEFAULTS),
        ("parts", make.PARTS),
        ("copied", make.COPIED),
    )
}
REWRITTEN = [
    pytest.param(name, key, id=f"{name} {key[7:13]} {key[-7:-5]}")
    for name, folder in FOLDERS.items()
    if name != "copied"
    for key in folder.commits
]
"""Records whose bytes a writer of today makes again; the record of a copy is made by relocation alone."""


@pytest.fixture
def folder(request) -> GoldenFolder:
    return FOLDERS[request.param]


def of(*names: str) -> pytest.MarkDecorator:
    """Run a test with each of these folders."""
    return pytest.mark.parametrize("folder", names, indirect=True)


@of(*FOLDERS)
def test_a_reader_sees_what_it_saw(folder, wh):
    assert json.loads(json.dumps(make.expected(wh))) == folder.expected


@pytest.mark.parametrize(("folder", "key"), REWRITTEN, indirect=["folder"])
def test_records_are_written_to_the_same_bytes(folder, golden, key):
    assert written_again(golden, key) == folder.files[key]


@of("truncated", "keyed")
def test_checkpoints_are_what_the_records_say_and_written_to_the_same_bytes(folder):
    check_checkpoint(folder)


@of("defaults", "parts")
def test_a_checkpoint_is_written_to_the_same_bytes(folder, golden):
    (key,) = (k for k in folder.files if "/checkpoints/0" in k)
    store = new_store(0)
    write_checkpoint(store, read_checkpoint(golden, key.split("/")[1], parse_number(key)))
    assert store.read(key) == folder.files[key]


@of("truncated")
def test_truncated_rows_are_missing_from_the_changelog(wh):
    assert wh.view("emptied$changelog").to_arrow().num_rows == 0
    rows = wh.view("overwritten$changelog").to_arrow()
    assert sorted(zip(rows["id"].to_pylist(), rows["name"].to_pylist(), strict=True)) == [
        (0, "new"),
        (1, "new"),
        (2, "new"),
        (9, None),
    ]


@of("truncated")
def test_truncated_tables_count_only_lake_snapshots_of_their_last_truncation(wh):
    assert wh.table("emptied").state.lake is None
    assert take_latest_snapshot(wh.table("emptied").state).hot == {}
    overwritten = wh.table("overwritten").state
    assert overwritten.lake.snapshot_id == 2**62 + 1
    assert overwritten.lake.starts == overwritten.first_offsets == {0: 4, 1: 3}
    assert [pair.starts for pair in overwritten.lake_history] == [{}, {0: 4, 1: 3}]
    assert sum(len(offsets) for offsets in take_latest_snapshot(overwritten).hot.values()) == 1


@of("truncated")
def test_truncated_folder_has_every_form_of_a_truncation(folder, golden):
    found = [read_record(golden, k.split("/")[1], parse_number(k))[0].actions for k in folder.commits]
    assert {type(a) for actions in found for a in actions} >= {Truncate, TieredSnapshot, Append}
    assert [type(a) for actions in found for a in actions if len(actions) > 1] == [Truncate, Append]
    assert [a for actions in found for a in actions if isinstance(a, TieredSnapshot) and a.starts]
    assert any(b'"truncation":{' in data for key, data in folder.files.items() if "/checkpoints/0" in key)


@of("truncated")
def test_truncated_tables_are_written_on(wh):
    table = wh.table("overwritten")
    table.truncate()
    assert dict(table.append([{"id": 5}])) != {}
    assert wh.view("overwritten$changelog").to_arrow()["id"].to_pylist() == [5]


@of("keyed")
def test_keyed_rows_are_read_and_looked_up(wh):
    table = wh.table("people")
    rows = {f"n{i}": (dt.date(2000, 1, 1 + i), i) for i in range(8) if i != 2}
    rows |= {"n1": (dt.date(2000, 1, 2), 10), "new": (None, 11), "n3": (None, None)}
    assert {r["name"]: (r["born"], r["n"]) for r in table.to_arrow().to_pylist()} == rows
    found = table.lookup([*rows, "n2"])  # made of the snapshots and the log behind them
    assert {r["name"]: (r["born"], r["n"]) for r in found.to_pylist() if r["_found"]} == rows


@of("keyed")
def test_keyed_folder_has_every_form_of_changes_and_snapshots(folder, golden):
    found = [a for k in folder.commits for a in read_record(golden, k.split("/")[1], parse_number(k))[0].actions]
    snapshots = [a for a in found if isinstance(a, KvSnapshot)]
    assert [s.num_rows for s in snapshots if s.segments]
    segments = [s for a in found if isinstance(a, Append) for s in a.segments]
    assert {s.uuid is None for s in segments} == {True, False}
    assert [kind.value for kind in ChangeType] == [0, 1, 2, 3], "the numbers are the format"
    assert any(b'"snapshots":[' in data for key, data in folder.files.items() if "/checkpoints/0" in key)


@of("keyed")
def test_keyed_tables_are_written_on(wh):
    table = wh.table("people")
    assert table.upsert([{"name": "n4", "born": None, "n": 40}]).num_rows == 2
    assert table.lookup(["n4"])["n"].to_pylist() == [40]


@of("defaults")
def test_defaults_of_every_type_are_there(wh):
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


@of("defaults")
def test_defaults_fill_in_new_rows(wh):
    table = wh.table("filled")
    table.append([{"id": 4}])
    older, newest = table.to_arrow(filter=[("id", ">=", 3)]).sort_by("id").to_pylist()
    assert {**newest, "nan": None, "id": 3} == older
    assert newest["nan"] != newest["nan"]


@of("parts")
def test_parts_of_shared_objects_are_whole(golden, wh):
    state = wh.table("shared").refresh()
    segments = state.live_segments()
    assert all(segment.part is not None for segment in segments)
    assert len({segment.uuid for segment in segments}) < len(segments)
    for segment in segments:
        verify_segment(golden, state.table_uuid, segment, state.schema.arrow)


@of("parts")
def test_parts_folder_has_every_form_of_a_shared_object(folder):
    kinds = {
        a["type"] for key in folder.commits for a in decode_frame("commit", folder.files[key], key).header["actions"]
    }
    assert {"append-parts", "replace-parts"} <= kinds
    (key,) = (k for k in folder.files if "/checkpoints/0" in k)
    assert b'"version":3' in folder.files[key][:60]


@of("parts")
def test_parts_are_written_on(wh):
    table = wh.table("shared")
    before = table.to_arrow().num_rows
    table.append([{"id": 100}])
    assert table.to_arrow().num_rows == before + 1
