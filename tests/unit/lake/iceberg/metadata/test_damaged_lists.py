"""Manifest lists that are damaged, whoever reads them; and a compression that nobody here can write."""

from __future__ import annotations

import pytest

from kit.tables import tier
from streamhouse_spark import CorruptDataError, LakeMismatchError, SnapshotExpiredError, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.lake.iceberg.file_io import lake_metadata, manifests_of
from streamhouse_spark.storage.memory import MemoryStorage


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
    whole = manifests_of(lake.io, snapshot)
    data[step % len(data)] ^= 0xFF
    table.storage.put(key, bytes(data))
    try:
        found = manifests_of(lake.io, snapshot)
    except CorruptDataError as error:
        assert key in str(error)  # noqa: PT017 - some bytes are ids of the writer, and say nothing
    else:
        assert len(found) == len(whole)


def test_a_list_with_another_column(table):
    lake = table.open_lake().binding.require()
    snapshot = lake.current_snapshot()
    key = table.open_lake().binding.files_at(lake.location()).key_of(snapshot.manifest_list)
    data = table.storage.read(key)
    assert b'"field-id": 503,' in data
    table.storage.put(key, data.replace(b'"field-id": 503,', b'"field-id": 703,'))
    with pytest.raises(CorruptDataError, match="ResolveError"):
        manifests_of(lake.io, snapshot)


def test_a_list_that_is_cut_or_gone(table):
    lake = table.open_lake().binding.require()
    snapshot = lake.current_snapshot()
    key = table.open_lake().binding.files_at(lake.location()).key_of(snapshot.manifest_list)
    table.storage.put(key, table.storage.read(key)[:300])
    with pytest.raises(CorruptDataError, match="restore it, or rebuild the lake"):
        manifests_of(lake.io, snapshot)
    table.storage.delete(key)
    with pytest.raises(SnapshotExpiredError), lake_metadata(lake.location()):
        manifests_of(lake.io, snapshot)


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
