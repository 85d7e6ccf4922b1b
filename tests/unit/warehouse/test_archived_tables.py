"""Tables with a change archive that are cloned, moved, copied, dropped, renamed, rolled back and verified."""

from __future__ import annotations

import shutil

import pytest

from streamhouse_spark import Warehouse, relocate
from streamhouse_spark.cli.fsck import Verification, verify_log
from streamhouse_spark.core.warehouse_layout import manifest_key, table_prefix
from streamhouse_spark.log.archive.pages import ArchiveObjectKeys, read_page
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.table.system_views import open_view

HOUR_MS = 3_600_000
KEEPING = {
    "table.datalake.enabled": "false",
    "table.log.ttl": "1h",
    "table.changelog.retention": "900 h",
}


def made(wh, clock, name="d.t"):
    table = wh.create_table(name, "id BIGINT, n INT", primary_key=["id"], buckets=2, properties=KEEPING)
    table.upsert([{"id": n, "n": 0} for n in range(6)])
    table.delete([3])
    clock.advance(2 * HOUR_MS)
    assert table.maintain().trimmed_to
    table.upsert([{"id": 1, "n": 1}])
    return table


def feed(table):
    rows = open_view(table, "changelog").to_arrow().to_pylist()
    return sorted((row["id"], row["n"], row["_change_type"]) for row in rows)


FEED = sorted(
    [(n, 0, "insert") for n in range(6)] + [(3, 0, "delete"), (1, 0, "update_before"), (1, 1, "update_after")]
)


@pytest.fixture
def table(wh, clock):
    return made(wh, clock)


def test_a_clone_begins_without_an_archive(wh, table, clock):
    clone = wh.clone_table("d.t", "d.c")
    assert not clone.refresh().archive
    assert feed(clone) == [(1, 0, "update_before"), (1, 1, "update_after")]
    clone.upsert([{"id": 1, "n": 2}])
    clock.advance(2 * HOUR_MS)
    assert clone.maintain().archived == 4
    assert len(feed(clone)) == 4
    assert feed(table) == FEED
    clock.advance(2 * GRACE_MS)
    table.maintain()
    clone.maintain()
    assert feed(table) == FEED


def test_a_dropped_table_takes_its_archive_with_it(wh, table, clock):
    uuid = table.uuid
    wh.drop_table("d.t")
    assert feed(wh.undrop_table("d.t")) == FEED
    wh.drop_table("d.t")
    for _ in range(4):
        clock.advance(2 * GRACE_MS)
        wh.clean_dropped()
    left = {info.key for info in table.storage.list(table_prefix(uuid))}
    assert not any("/segments/" in key or "/manifests/" in key for key in left)


def test_a_renamed_table_keeps_it(wh, table):
    wh.rename_table("d.t", "d.other")
    assert feed(wh.table("d.other")) == FEED


def test_a_rollback_is_in_the_feed(table):
    table.rollback_to_version(2)
    found = feed(table)
    assert found == sorted([*FEED, (3, 0, "insert"), (1, 1, "update_before"), (1, 0, "update_after")])
    table.maintain()
    assert feed(table) == found


@pytest.mark.parametrize("is_copy", [False, True], ids=["moved", "copied"])
def test_it_goes_with_its_warehouse(tmp_path, world, clock, own_cache, is_copy):
    def at(folder):
        storage = LocalStorage(str(tmp_path / folder), fsync=False, world=world)
        return Warehouse(str(tmp_path / folder), storage=storage, world=world)

    made(at("a"), clock)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    if not is_copy:
        shutil.rmtree(tmp_path / "a")
    relocate(at("b"), copy=is_copy)
    found = at("b").table("d.t")
    assert feed(found) == FEED
    stored = {info.key for info in found.storage.list(table_prefix(found.uuid))}
    assert ArchiveObjectKeys(found.storage)(found.refresh()) <= stored
    found.upsert([{"id": 9, "n": 9}])
    assert found.maintain().archived == 3
    assert feed(found) == sorted([*FEED, (9, 9, "insert")])
    if is_copy:
        assert feed(at("a").table("d.t")) == FEED


class TestVerify:
    def verified(self, table):
        result = Verification(table.name)
        verify_log(table, table.refresh(), result, lambda _: None)
        return result

    def test_verify_accepts_a_table_with_an_archive(self, table):
        result = self.verified(table)
        assert result.problems == []
        assert result.segments >= 3

    def test_verify_finds_a_flipped_bit_of_the_archive(self, table):
        (page,) = table.refresh().archive.pages
        segment = read_page(table.storage, table.state, page.uuid).segments[0]
        for key in (f"{table_prefix(table.uuid)}segments/{segment.uuid}.arrow", manifest_key(table.uuid, page.uuid)):
            whole = table.storage.read(key)
            at = segment.size_bytes // 2 + (segment.part or 0) if key.endswith("arrow") else len(whole) // 2
            table.storage.put(key, whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
            assert len(self.verified(table).problems) >= 1, key
            table.storage.put(key, whole)
        assert self.verified(table).problems == []
