"""Avro files of manifests: rewritten locations, damaged lists and unsupported compression."""

from __future__ import annotations

import io
import json
import zlib

import fastavro
import pytest

from kit.tables import tier
from streamhouse_spark import CorruptDataError, LakeMismatchError, SnapshotExpiredError, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.lake.avro import encode_avro, read_avro
from streamhouse_spark.lake.iceberg.file_io import (
    PathRebase,
    read_snapshot_manifests,
    rewrite_record_paths,
    translate_metadata_errors,
)
from streamhouse_spark.storage.memory import MemoryStorage

SCHEMA = {
    "type": "record",
    "name": "r",
    "namespace": "n",
    "fields": [
        {"name": "text", "type": "string", "field-id": 7},
        {"name": "perhaps", "type": ["null", "long"]},
        {"name": "bits", "type": "boolean"},
        {"name": "number", "type": "double"},
        {"name": "small", "type": "float"},
        {"name": "id", "type": {"type": "fixed", "name": "f16", "size": 4}},
        {"name": "kind", "type": {"type": "enum", "name": "e", "symbols": ["a", "b"]}},
        {"name": "again", "type": ["null", "n.f16"]},
        {"name": "list", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "map", "type": {"type": "map", "values": "int"}},
        {"name": "inner", "type": {"type": "record", "name": "i", "fields": [{"name": "data", "type": "bytes"}]}},
    ],
}
RECORDS = [
    {
        "text": "é" * n,
        "perhaps": None if n % 2 else -(2**40) * n,
        "bits": bool(n % 2),
        "number": n / 3,
        "small": 0.5 * n,
        "id": bytes([n] * 4),
        "kind": "ab"[n % 2],
        "again": b"abcd" if n % 2 else None,
        "list": [None, "x"] * n,
        "map": {str(i): -i for i in range(n)},
        "inner": {"data": b"\0" * n},
    }
    for n in range(5)
]


def file_of(codec: str, records: list[dict] = RECORDS) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, SCHEMA, records, codec=codec, metadata={"own": "kept"}, sync_interval=50)
    return out.getvalue()


@pytest.mark.parametrize("codec", ["null", "deflate"])
@pytest.mark.parametrize("records", [RECORDS, []])
def test_what_is_read_and_written_again_is_the_same(codec, records):
    data = file_of(codec, records)
    again = fastavro.reader(io.BytesIO(encode_avro(read_avro(data, "f"))))
    assert again.metadata["own"] == "kept"
    assert json.loads(again.metadata["avro.schema"])["fields"][0]["field-id"] == 7
    assert list(again) == records


def test_damage_is_an_error():
    data = file_of("deflate")
    for cut in (0, 3, 20, len(data) // 2, len(data) - 5):
        with pytest.raises(CorruptDataError, match="restore it"):
            read_avro(data[:cut], "f")
    with pytest.raises(CorruptDataError):
        read_avro(data.replace(zlib.compress(b"")[:1], b"\xff"), "f")


def test_which_values_are_locations():
    move = PathRebase("/old", "s3://new")
    assert rewrite_record_paths({"manifest_path": "/old/m.avro", "other": "/old/x"}, move) == {
        "manifest_path": "s3://new/m.avro",
        "other": "/old/x",
    }
    bounds = (1, [{"key": 2147483546, "value": b"/old/d.parquet"}, {"key": 1, "value": b"/old/mine"}])
    data = {
        "content": 0,
        "file_path": "/old/d.parquet",
        "partition": {"file_path": "/old/mine"},
        "lower_bounds": bounds,
    }
    found = rewrite_record_paths({"status": 1, "data_file": data}, move)["data_file"]
    assert found == {**data, "file_path": "s3://new/d.parquet"}, "of rows, values are the user's"
    deletes = {**data, "content": 1, "upper_bounds": (0, None), "referenced_data_file": (1, "/old/d.parquet")}
    found = rewrite_record_paths({"status": 1, "data_file": deletes}, move)["data_file"]
    assert found["lower_bounds"][1][0]["value"] == b"s3://new/d.parquet"
    assert found["lower_bounds"][1][1]["value"] == b"/old/mine"
    assert found["upper_bounds"] == (0, None)
    assert found["referenced_data_file"] == (1, "s3://new/d.parquet")
    assert found["partition"] == {"file_path": "/old/mine"}


def test_bounds_that_were_cut_off_go():
    bounds = (1, [{"key": 2147483546, "value": b"/old/plac"}])
    data = {"content": 1, "file_path": "/old/place/x", "lower_bounds": bounds, "upper_bounds": (0, None)}
    moved = rewrite_record_paths({"status": 1, "data_file": data}, PathRebase("/old/place", "/new"))
    assert moved["data_file"]["lower_bounds"] == (1, [])


@pytest.fixture
def table():
    warehouse = Warehouse("memory://wh", storage=MemoryStorage(World()))
    table = warehouse.create_table("s.t", "id BIGINT")
    table.append([{"id": 1}])
    tier(table)
    return table


@pytest.mark.parametrize("step", range(0, 2_000, 97))
def test_every_reader_of_a_list_finds_the_damage(table, step):
    lake = table.open_lake().binding.require()
    snapshot = lake.current_snapshot()
    key = table.open_lake().binding.files_at(lake.location()).key_of(snapshot.manifest_list)
    data = bytearray(table.storage.read(key))
    whole = read_snapshot_manifests(lake.io, snapshot)
    data[step % len(data)] ^= 0xFF
    table.storage.put(key, bytes(data))
    try:
        found = read_snapshot_manifests(lake.io, snapshot)
    except CorruptDataError as error:
        assert key in str(error)  # noqa: PT017 - some bytes are ids of the writer, and say nothing
    else:
        assert len(found) == len(whole)


def test_a_manifest_list_with_another_column_is_corrupt_data(table):
    lake = table.open_lake().binding.require()
    snapshot = lake.current_snapshot()
    key = table.open_lake().binding.files_at(lake.location()).key_of(snapshot.manifest_list)
    data = table.storage.read(key)
    assert b'"field-id": 503,' in data
    table.storage.put(key, data.replace(b'"field-id": 503,', b'"field-id": 703,'))
    with pytest.raises(CorruptDataError, match="ResolveError"):
        read_snapshot_manifests(lake.io, snapshot)


def test_a_list_that_is_cut_or_gone(table):
    lake = table.open_lake().binding.require()
    snapshot = lake.current_snapshot()
    key = table.open_lake().binding.files_at(lake.location()).key_of(snapshot.manifest_list)
    table.storage.put(key, table.storage.read(key)[:300])
    with pytest.raises(CorruptDataError, match="restore it, or rebuild the lake"):
        read_snapshot_manifests(lake.io, snapshot)
    table.storage.delete(key)
    with pytest.raises(SnapshotExpiredError), translate_metadata_errors(lake.location()):
        read_snapshot_manifests(lake.io, snapshot)


@pytest.mark.parametrize(
    ("name", "value"), [("compression-codec", "lzo"), ("compression-codec", "x"), ("compression-level", "much")]
)
def test_a_compression_that_cannot_be_written(table, name, value):
    """Another engine may give the lake table any."""
    lake = table.open_lake().binding.require()
    with lake.transaction() as changes:
        changes.set_properties({f"write.parquet.{name}": value})
    table.append([{"id": 2}])
    with pytest.raises(LakeMismatchError, match=r"not supported; set write\.parquet\.compression-codec"):
        tier(table)
    with lake.refresh().transaction() as changes:
        changes.set_properties({f"write.parquet.{name}": "zstd" if name.endswith("codec") else "3"})
    assert tier(table).rows == 1
