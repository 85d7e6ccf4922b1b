"""Format version 1, as it lies on users' disks: read for ever, written to the same bytes, and a newer one refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash

from faults.sim import sim_world
from golden.make import FOLDER, expected, hot_changes, rows, shown, state_of_v1
from streamhouse_spark import FormatVersionError, Warehouse
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import WAREHOUSE_KEY, canonical_root, parse_number, segment_key
from streamhouse_spark.log import actions
from streamhouse_spark.log import framing as frame_module
from streamhouse_spark.log.actions import Append, Archive, ArchivePage, Payload, SetArchive
from streamhouse_spark.log.catalog import names
from streamhouse_spark.log.catalog.names import WarehouseMetadata
from streamhouse_spark.log.checkpoint import read_checkpoint, read_latest_checkpoint, write_checkpoint
from streamhouse_spark.log.framing import decode_frame, encode_frame
from streamhouse_spark.log.low_watermark import read_low_watermark
from streamhouse_spark.log.record import Record, encode_record, read_record
from streamhouse_spark.log.segments.scan import LogSplit, plan_range, read_split
from streamhouse_spark.log.segments.writer import write_file
from streamhouse_spark.log.state import fold
from streamhouse_spark.schema.partitioning import SetPartitioning
from streamhouse_spark.schema.table_schema import Column, TableSchema
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.write.auto_compaction import compact_inline_rows

pytestmark = pytest.mark.always

WAREHOUSE = FOLDER / "warehouse"
FILES = {p.relative_to(WAREHOUSE).as_posix(): p.read_bytes() for p in WAREHOUSE.rglob("*") if p.is_file()}
EXPECTED = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
STATES = {name: table["state"] for name, table in EXPECTED["tables"].items()}
UUIDS = sorted({key.split("/")[1] for key in FILES if key.startswith("tables/")})
KINDS = {
    "warehouse": "streamhouse.json",
    "database": "sales/database.json",
    "name": "sales/orders/names/00000001.json",
    "commit": next(k for k in FILES if k.endswith("19.json")),
    "checkpoint": next(k for k in FILES if "/checkpoints/0" in k),
    "floor": next(k for k in FILES if "/floors/" in k),
}
"""Kind of file → one of it; manifests need their record's checksum and have a test of their own."""


@pytest.fixture
def golden() -> MemoryStorage:
    store = MemoryStorage(sim_world(3))
    for key, data in FILES.items():
        store.put(key, data)
    return store


LATER_ACTIONS = {
    "copy": (
        (
            '{"type": "copy", "name": "a.t", "columns": [{"id": 1, "name": "id", "type": "int", "nullable": true, '
            '"comment": null}], "partition_by": [], "buckets": 2, "properties": {}, "lake_location": "a/t", '
            '"former_uuids": ["u"]}'
        ),
        actions.Create("a.t", TableSchema((Column(1, "id", pa.int32(), True),)), (), 2, {}, "a/t", ("u",)),
    ),
    "kv": (
        '{"type": "kv", "bucket": 1, "range": [0, 7], "segments": []}',
        actions.KvSnapshot(1, 0, 7, ()),
    ),
    "truncate": ('{"type": "truncate", "offsets": {"0": 7, "1": 0}}', actions.Truncate({0: 7, 1: 0})),
    "undrop": ('{"type": "undrop", "name": "sales.sold"}', actions.Undrop("sales.sold")),
    "retier": (
        '{"type": "retier", "lake_location": "sales/sold-2", "starts": {"0": 7}}',
        actions.ResetLake("sales/sold-2", {0: 7}),
    ),
    "expire": ('{"type": "expire", "app_ids": ["query"]}', actions.ExpireTransactions(("query",))),
    "tag": (
        '{"type": "tag", "name": "v1", "version": 7, "uuid": "u", "lake_snapshot": 3, "retain_ms": null}',
        actions.Tag("v1", 7, "u", 3),
    ),
    "untag": ('{"type": "untag", "names": ["v1"]}', actions.DropTag(("v1",))),
    "archive": (
        (
            '{"type": "archive", "pages": [{"uuid": "p", "commit": 7, "ends": {"1": 4}, "rows": 4, "bytes": 90, '
            '"time": [3, 5, 5000], "level": 1}], "starts": {"0": 2, "1": 0}, "first_commit": 2, "gone": ["k"]}'
        ),
        SetArchive(Archive((ArchivePage("p", 7, {1: 4}, 4, 90, 3, 5, 5000, 1),), {0: 2, 1: 0}, 2), ("k",)),
    ),
    "partitioning": (
        '{"type": "partitioning", "schema_id": 2, "columns": ["land"], "fields": "land, days(ts)"}',
        SetPartitioning(2, ("land",), "land, days(ts)"),
    ),
    "bury": ('{"type": "bury"}', actions.Tombstone()),
    "rename": ('{"type": "rename", "name": "sales.sold"}', actions.Rename("sales.sold")),
}


def test_every_kind_of_file_and_action_is_there():
    framed = {json.loads(d.split(b"\n", 1)[0])["streamhouse"] for d in FILES.values() if d.startswith(b"{")}
    assert framed == {*KINDS, "manifest"}
    assert any(key.endswith("/hint") for key in FILES)
    assert {FILES[k][:6] for k in FILES if k.endswith(".arrow")} == {b"ARROW1"}
    found = {a["type"] for k in FILES if "/commits/" in k or "/manifests/" in k for a in actions_of(k)}
    source = Path(actions.__file__).read_text(encoding="utf-8")
    known = set(re.findall(r'case "(\w+)"', source))
    assert found == known - set(LATER_ACTIONS), "an action of version 1 has no golden record"


@pytest.mark.parametrize("name", LATER_ACTIONS)
def test_actions_that_came_after_the_golden_files_are_read_and_written_alike(name):
    text, action = LATER_ACTIONS[name]
    assert actions.action_from_json(json.loads(text), memoryview(b"")) == action
    assert json.dumps(actions.action_to_json(action, Payload())) == text


def actions_of(key: str) -> list[dict]:
    return decode_frame("manifest" if "/manifests/" in key else "commit", FILES[key], key).header.get("actions", [])


class TestReading:
    def test_what_a_reader_sees(self, wh):
        assert json.loads(json.dumps(expected(wh))) == EXPECTED

    def test_the_rows_are_those_that_were_written(self, wh):
        """Said again apart from `expected.json`, which was written by the reader itself."""
        found = hot_changes(wh.table("sales.orders")).drop_columns(["_change_type", "_commit_timestamp"])
        by_id = {row["id"]: row for row in found.drop_columns(["_log_offset"]).to_pylist()}
        start = STATES["sales.orders"]["buckets"][0]["range"][0]
        assert start > 0
        assert len(by_id) == 16 - start
        for row in rows(0, 16):
            if row["id"] in by_id:
                whole = dict.fromkeys(by_id[row["id"]]) | row | {"later": 7 if row["id"] >= 14 else None}
                assert shown(by_id[row["id"]]) == shown(whole)
        assert wh.table("sales.dropped").to_arrow().to_pylist() == [{"b": "second life"}]
        assert wh.table("manifested").to_arrow().num_rows == 20

    def test_the_golden_warehouse_is_read_from_a_directory(self, tmp_path):
        shutil.copytree(WAREHOUSE, tmp_path / "wh")
        assert json.loads(json.dumps(expected(Warehouse(str(tmp_path / "wh"))))) == EXPECTED

    def test_it_is_written_on(self, wh):
        table = wh.table("manifested")
        table.append([{"a": 99}])
        assert table.to_arrow().num_rows == 21
        assert compact_inline_rows(table) == 2
        assert table.to_arrow()["a"].to_pylist()[-1] == 99

    def test_with_the_checkpoint_or_with_the_records(self, golden):
        for uuid in UUIDS:
            numbers = sorted(n for k in FILES if f"{uuid}/commits/" in k and (n := parse_number(k)))
            checkpoint = read_latest_checkpoint(golden, uuid)
            state = None if checkpoint is None else checkpoint
            for number in numbers:
                if state is None or number == state.version + 1:
                    state = fold(state, read_record(golden, uuid, number)[0])
            assert state.version == numbers[-1]
            if state.name in STATES and not state.dropped:
                assert json.loads(json.dumps(state_of_v1(state))) == STATES[state.name]

    def test_the_golden_low_watermark_is_read(self, golden):
        uuid = KINDS["floor"].split("/")[1]
        watermark = read_low_watermark(golden, uuid, 1)
        assert (watermark.number, watermark.time_ms) == (3, 1_750_000_002_000)


class TestWriting:
    """What is read and written again has the same bytes, whatever happened to the writers."""

    def test_golden_frames_are_encoded_to_the_same_bytes(self):
        for key, data in FILES.items():
            if data.startswith(b"{"):
                kind = json.loads(data.split(b"\n", 1)[0])["streamhouse"]
                frame = decode_frame(kind, data, key)
                assert encode_frame(kind, frame.header, [bytes(frame.payload)]) == data, key

    @pytest.mark.parametrize("key", [k for k in FILES if "/commits/" in k], ids=lambda k: k[7:13] + k[-7:-5])
    def test_golden_records_are_encoded_to_the_same_bytes(self, golden, key, monkeypatch):
        uuid, number = key.split("/")[1], parse_number(key)
        record, payload = read_record(golden, uuid, number)
        if record.manifest is not None:
            monkeypatch.setattr("streamhouse_spark.log.record.RECORD_BYTES_MAX", 600)
        again = Record(
            record.number,
            record.table_uuid,
            record.attempt,
            record.time_ms,
            tuple(with_inline_rows(a, payload) for a in record.actions),
            record.transaction,
        )
        encoded = encode_record(again, record.manifest or "")
        assert encoded.data == FILES[key]
        if record.manifest is not None:
            assert encoded.manifest == FILES[f"tables/{uuid}/manifests/{record.manifest}.json"]

    def test_golden_checkpoints_are_encoded_to_the_same_bytes(self, golden):
        key = KINDS["checkpoint"]
        uuid, number = key.split("/")[1], parse_number(key)
        state = read_checkpoint(golden, uuid, number)
        store = MemoryStorage(sim_world(0))
        write_checkpoint(store, state)
        assert {info.key: store.read(info.key) for info in store.list("")} == {
            k: d for k, d in FILES.items() if "/checkpoints/" in k
        }

    def test_golden_name_pointers_are_encoded_to_the_same_bytes(self, golden):
        store = MemoryStorage(sim_world(0))

        class OneId:
            def __init__(self, value):
                self.value = value

            def new_uuid(self):
                return self.value

        class Given:
            clock = sim_world(0).clock

            def __init__(self, value):
                self.ids = OneId(value)

        names.create_warehouse(store, Given(header("warehouse", "streamhouse.json")["id"]))
        for database in EXPECTED["databases"]:
            names.create_database(store, database, sim_world(0))
        for path in (TablePath("default", "manifested"), TablePath("sales", "dropped"), TablePath("sales", "orders")):
            pointer = names.NamePointer(0, None)
            while (key := f"{path.database}/{path.table}/names/{pointer.number + 1:08d}.json") in FILES:
                said = header("name", key)
                assert names.put_name_pointer(store, path, pointer, said["uuid"], Given(said["attempt"]))
                pointer = names.NamePointer(pointer.number + 1, said["uuid"])
        assert {info.key: store.read(info.key) for info in store.list("")} == {
            k: d for k, d in FILES.items() if not k.startswith("tables/")
        } | {
            WAREHOUSE_KEY: WarehouseMetadata(
                header("warehouse", "streamhouse.json")["id"], canonical_root(store.url)
            ).to_bytes()
        }

    def test_golden_segments_are_encoded_to_the_same_bytes(self, golden, wh):
        seen = set()
        for name in wh.tables():
            state = wh.table(name).state
            for segment in (s for s in state.live_segments() if s.uuid is not None):
                schema = state.schemas[segment.schema_id].arrow
                whole = plan_range(state, segment.bucket, segment.offsets)
                batches = [b.batch for b in read_split(golden, whole, state.schemas[segment.schema_id])]
                store = MemoryStorage(sim_world(0))
                codec = "zstd" if segment.compressed else "none"
                times = list(zip(*(a.tolist() for a in segment.time_runs), strict=True))
                key = segment_key(state.table_uuid, segment.uuid)
                with store.create(key) as sink:
                    size_bytes, index = write_file(
                        sink, schema, batches, 1000, codec, times if len(segment.index.times_ms) else ()
                    )
                if not segment.compressed:  # another version of zstd may find another encoding
                    assert store.read(key) == FILES[key]
                    assert size_bytes == segment.size_bytes
                    assert index.to_bytes() == segment.index_bytes
                seen.add(codec)
        assert seen == {"none", "zstd"}

    def test_golden_splits_are_encoded_to_the_same_json(self):
        for table in EXPECTED["tables"].values():
            for split in table["splits"]:
                assert json.loads(json.dumps(LogSplit.from_json(split).to_json())) == split


def header(kind: str, key: str) -> dict:
    return decode_frame(kind, FILES[key], key).header


def with_inline_rows(action, payload):
    if not isinstance(action, Append):
        return action
    spans = [s.inline for s in action.segments]
    return Append(action.segments, tuple(None if s is None else bytes(payload[s[0] : s[1]]) for s in spans))


class TestNewerVersions:
    @pytest.mark.parametrize("kind", [k for k in KINDS if k != "database"])
    def test_a_newer_file_is_refused_before_anything_is_written(self, golden, kind):
        data = FILES[KINDS[kind]]
        assert data.count(b'"version":1,"xxh3"') == 1
        newest = {"commit": 2, "floor": 2, "checkpoint": 15, "name": 3}.get(kind, 1)
        golden.put(KINDS[kind], data.replace(b'"version":1,"xxh3"', f'"version":{newest + 1},"xxh3"'.encode()))
        before = {info.key: golden.read(info.key) for info in golden.list("")}
        for ask in (
            lambda wh: wh.table("sales.orders").append([{"id": 1}]),
            lambda wh: wh.view("sales.orders$changelog").to_arrow(),
            lambda wh: wh.create_table("sales.orders", "a INT", if_not_exists=True),
            lambda wh: wh.drop_table("sales.orders"),
        ):
            with pytest.raises(FormatVersionError, match=rf"version {newest + 1}, expected at most {newest}; upgrade"):
                ask(Warehouse("golden", storage=golden, world=sim_world(5)))
        assert {info.key: golden.read(info.key) for info in golden.list("")} == before

    def test_a_newer_manifest_is_refused(self, golden):
        """Its bytes match the checksum in its record, as a newer version would have written both."""
        key = next(k for k in FILES if "/manifests/" in k)
        newer = FILES[key].replace(b'"version":1,"xxh3"', b'"version":2,"xxh3"')
        assert newer != FILES[key]
        golden.put(key, newer)
        uuid = key.split("/")[1]
        commit, frame = next(
            (k, found)
            for k in FILES
            if k.startswith(f"tables/{uuid}/commits/")
            and "manifest" in (found := decode_frame("commit", FILES[k], k)).header
        )
        reference = frame.header["manifest"] | {"xxh3": xxhash.xxh3_128_hexdigest(newer)}
        golden.put(commit, encode_frame("commit", frame.header | {"manifest": reference}))
        before = {info.key: golden.read(info.key) for info in golden.list("")}
        for ask in (
            lambda wh: wh.table("manifested").append([{"a": 1}]),
            lambda wh: wh.table("manifested").to_arrow(),
        ):
            with pytest.raises(FormatVersionError, match=r"format version 2, expected at most 1; upgrade"):
                ask(Warehouse("golden", storage=golden, world=sim_world(5)))
        assert {info.key: golden.read(info.key) for info in golden.list("")} == before

    def test_a_newer_writer_stops_this_one(self, wh, golden, monkeypatch):
        """A handle that is open meets the first record of a newer version: it neither writes behind it nor reads on."""
        table = wh.table("manifested")
        newer = Warehouse("golden", storage=golden, world=sim_world(6)).table("manifested")
        with monkeypatch.context() as future:
            future.setattr(frame_module, "FORMAT_VERSION", 3)
            encoded = encode_record(Record(newer.state.version + 1, newer.uuid, "a" * 32, 0, ()), "b" * 32)
        golden.put_if_absent(f"tables/{newer.uuid}/commits/{newer.state.version + 1:020d}.json", encoded.data)
        before = {info.key for info in golden.list("")}
        for ask in (lambda: table.append([{"a": 1}]), table.to_arrow, table.refresh):
            with pytest.raises(FormatVersionError):
                ask()
        assert {info.key for info in golden.list("")} == before


def test_arrow_writes_what_it_wrote():
    """A change of Arrow's own encoding would make the comparison of segments fail: say so plainly."""
    assert pa.ipc.IpcWriteOptions().metadata_version == pa.ipc.MetadataVersion.V5
