"""The snapshots that are read without Iceberg's library are those that the library reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from kit.tables import tier
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.lake.iceberg.metadata_versions import find_latest_version
from streamhouse_spark.lake.iceberg.snapshots import newest_offsets, read_snapshots


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Table:
    made = Warehouse(str(tmp_path_factory.mktemp("snapshots") / "w")).create_table("sales.orders", "id BIGINT")
    for number in range(3):
        made.append([{"id": number}])
        tier(made)
    return made


@pytest.fixture(scope="module")
def data(table) -> bytes:
    version = find_latest_version(table.storage, table.world, table.open_lake().location)
    assert version is not None
    return version.data


def changed(data: bytes, **changes: Any) -> bytes:
    """Return the metadata with other values; None takes one away."""
    metadata = {**json.loads(data), **{name.replace("_", "-"): value for name, value in changes.items()}}
    return json.dumps({name: value for name, value in metadata.items() if value is not None}).encode()


def test_they_are_those_of_the_library(table, data):
    library: TableMetadata = TableMetadataUtil.parse_raw(data.decode())
    kept = read_snapshots(data)
    assert kept is not None
    assert len(kept.snapshots) == 3
    for ours, theirs in zip(kept.snapshots, library.snapshots, strict=True):
        assert ours.snapshot_id == theirs.snapshot_id
        assert ours.parent_snapshot_id == theirs.parent_snapshot_id
        assert ours.sequence_number == theirs.sequence_number
        assert ours.timestamp_ms == theirs.timestamp_ms
        assert theirs.summary is not None
        assert ours.summary == {**theirs.summary.additional_properties, "operation": theirs.summary.operation.value}
    assert (kept.location, dict(kept.properties)) == (library.location, library.properties)
    assert kept.current_snapshot_id == library.current_snapshot_id
    assert {name: ref.snapshot_id for name, ref in kept.refs.items()} == {
        name: ref.snapshot_id for name, ref in library.refs.items()
    }
    assert newest_offsets(kept, table.uuid) == newest_offsets(library, table.uuid)
    assert read_snapshots(bytes(bytearray(data))) is kept


@pytest.mark.parametrize("current", [None, -1])
def test_a_table_without_snapshots_has_no_current_one(data, current):
    kept = read_snapshots(changed(data, snapshots=None, refs=None, current_snapshot_id=current))
    assert kept is not None
    assert kept.current_snapshot() is None
    assert not kept.snapshots


@pytest.mark.parametrize(
    "changes",
    [
        {"format_version": 1},
        {"format_version": None},
        {"format_version": "2"},
        {"location": None},
        {"properties": {"a": 1}},
        {"properties": []},
        {"snapshots": [{"snapshot-id": 1}]},
        {"snapshots": [None]},
        {"snapshots": None},
        {"refs": {"main": {}}},
        {"refs": []},
        {"current_snapshot_id": 7},
        {"current_snapshot_id": "7"},
        {"current_snapshot_id": True},
    ],
    ids=repr,
)
def test_of_all_else_the_library_is_asked(data, changes):
    assert read_snapshots(changed(data, **changes)) is None


@pytest.mark.parametrize("data", [b"", b"[]", b"7", b"{", b"\xff", b"[" * 100_000])
def test_damage_is_left_to_the_library(data):
    assert read_snapshots(data) is None
