"""A metadata file of the lake that is gone: each read and verb gives what it gave before, or names the missing file."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kit.rows import ids
from kit.tables import new_table, tier
from streamhouse_spark import SnapshotExpiredError, StreamhouseError, Table, Warehouse
from streamhouse_spark.lake.iceberg.metadata_versions import version_key
from streamhouse_spark.read.snapshot_fallback import fall_back_to_lake_snapshot

ROUNDS = 4
HINTS = ("version-hint.text", "LATEST", "EARLIEST")

READS: dict[str, Callable[[Table], object]] = {
    "union": ids,
    "lake": lambda table: ids(table.lake.to_arrow()),
    "newest snapshot": lambda table: table.lake.newest(),
    "older snapshot": lambda table: ids(table.lake.to_arrow(as_of_snapshot=table.state.lake_history[1].snapshot_id)),
    "files": lambda table: table.lake.files().num_rows,
    "compaction": lambda table: table.lake.compact(dry_run=True),
    "orphans": lambda table: table.lake.remove_orphan_files(dry_run=True),
    "tiering": lambda table: tier(table) and ids(table.lake.to_arrow()),
}


def tiered(warehouse: Warehouse, lake: str, *, keyed: bool) -> Table:
    """A table of four rounds, the last of them with a new column, and a hot row."""
    table = new_table(warehouse, keyed=keyed, lake=lake)
    write = table.upsert if keyed else table.append
    for number in range(ROUNDS):
        if number == ROUNDS - 1:
            table.add_columns("note STRING")
        write([{"id": number, "day": 1}])
        tier(table)
    write([{"id": ROUNDS, "day": 1}])
    return table


def metadata_keys(table: Table) -> list[str]:
    keys = [info.key for info in table.storage.list(f"{table.state.lake_location}/")]
    return [key for key in keys if not key.endswith((".parquet", *HINTS)) and "/consumer/" not in key]


@pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
@pytest.mark.parametrize("lake", ["iceberg", "paimon"])
def test_a_missing_metadata_file_is_named_and_never_fewer_rows(store, other_process, own_cache, lake, keyed):
    table = tiered(other_process(), lake, keyed=keyed)
    whole = {info.key: store.read(info.key) for info in store.list("")}

    def opened() -> Table:
        return other_process().table(table.name)

    def restore() -> None:
        for key in [info.key for info in store.list("")]:
            if key not in whole:
                store.delete(key)
        for key, data in whole.items():
            store.put(key, data)

    def outcome(read: Callable[[Table], object]) -> object:
        try:
            return read(opened())
        except StreamhouseError as error:
            return str(error)
        finally:
            restore()

    expected = {name: outcome(read) for name, read in READS.items()}
    named = set()
    for key in metadata_keys(table):
        for name, read in READS.items():
            store.delete(key)
            answer = outcome(read)
            if isinstance(answer, str):
                assert key in answer, f"{name} without {key}"
                named.add(key.rpartition("/")[2])
            else:
                assert answer == expected[name], f"{name} without {key}"
    must = {"schema-0", "schema-1", f"snapshot-{ROUNDS}"} if lake == "paimon" else {"v6.metadata.json"}
    assert must <= named


@pytest.mark.paimon
def test_a_missing_snapshot_between_two_others_is_named(wh, own_cache):
    table = tiered(wh, "paimon", keyed=False)
    snapshots = table.open_lake().binding.snapshots
    table.storage.delete(snapshots.key_of(2))
    with pytest.raises(SnapshotExpiredError, match="snapshot-2 is missing"):
        table.lake.to_arrow(as_of_snapshot=2)
    with pytest.raises(SnapshotExpiredError, match="snapshot-2 is missing"):
        table.lake.to_arrow(as_of_timestamp_ms=1)


@pytest.mark.parametrize("keep_hint", [True, False])
def test_an_iceberg_table_without_any_version_is_named(wh, own_cache, keep_hint):
    table = tiered(wh, "iceberg", keyed=False)
    location = table.state.lake_location
    for info in list(table.storage.list(f"{location}/metadata/")):
        if keep_hint is False or not info.key.endswith("version-hint.text"):
            table.storage.delete(info.key)
    number = 6 if keep_hint else 1
    for read in (table.lake.newest, table.lake.to_arrow, table.to_arrow, table.lake.snapshots):
        with pytest.raises(StreamhouseError, match=f"{version_key(location, number)} is missing"):
            read()


def test_a_lake_table_that_its_catalog_no_longer_has_is_named(store, world, tmp_path, own_cache):
    catalog = {"lake.iceberg.catalog.type": "sql", "lake.iceberg.catalog.uri": f"sqlite:///{tmp_path}/catalog.db"}
    catalog["lake.iceberg.catalog.warehouse"] = f"file://{tmp_path}/lake"
    table = tiered(Warehouse("wh", catalog, storage=store, world=world), "iceberg", keyed=False)
    place = table.open_lake().binding
    place.catalog.drop_table(place.identifier)
    for read in (table.lake.newest, table.lake.to_arrow, table.to_arrow, lambda: tier(table)):
        with pytest.raises(StreamhouseError, match=r"table d\.t of the Iceberg catalog is missing"):
            read()


@pytest.mark.paimon
def test_a_dropped_table_is_no_damage(wh, own_cache):
    """A read that began before the drop meets a lake without files."""
    table = tiered(wh, "paimon", keyed=False)
    wh.drop_table(table.name)
    for info in list(table.storage.list(f"{table.state.lake_location}/")):
        table.storage.delete(info.key)
    with pytest.raises(StreamhouseError, match="TABLE_NOT_FOUND"):
        fall_back_to_lake_snapshot(table)
