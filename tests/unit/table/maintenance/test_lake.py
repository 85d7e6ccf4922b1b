"""The verbs of a lake's upkeep, and the steps of maintenance."""

from __future__ import annotations

import pytest

from kit.tables import tier
from streamhouse_spark import InvalidOptionError, TableNotFoundError
from streamhouse_spark.lake.types import CompactReport, ExpireReport, ManifestReport
from streamhouse_spark.table.maintenance import lake as lake_upkeep

HOUR_MS = 3600 * 1000


def rounds(table, numbers) -> None:
    for turn, i in enumerate(numbers):
        (table.upsert if table.state.primary_key else table.append)([{"id": i, "text": f"n{i} {turn}"}])
        tier(table)


@pytest.fixture
def table(wh):
    table = wh.create_table("t", "id BIGINT, text STRING")
    rounds(table, range(7))
    return table


def ids(table) -> list[int]:
    assert table.to_arrow().sort_by("id") == table.lake.to_arrow().sort_by("id")
    return sorted(table.to_arrow()["id"].to_pylist())


def test_compact_shows_and_does_the_same(table):
    shown = table.lake.compact(dry_run=True)
    assert (shown.files_removed, shown.files_added, shown.rows, shown.snapshot) == (7, 1, 7, None)
    assert table.lake.files().num_rows == 7
    done = table.lake.compact()
    assert (done.files_removed, done.files_added, done.rows) == (7, 1, 7)
    assert done.snapshot == table.lake.newest()
    assert table.lake.files().num_rows == 1
    assert table.lake.compact() == CompactReport()
    assert ids(table) == list(range(7))


@pytest.mark.parametrize("lake_format", ["iceberg", "paimon"])
@pytest.mark.parametrize("key", [(), ("id",)])
@pytest.mark.usefixtures("own_cache")
def test_verbs_know_of_columns_that_others_changed(wh, lake_format, key):
    table = wh.create_table(
        "t", "id BIGINT NOT NULL, text STRING", primary_key=key, properties={"table.datalake.format": lake_format}
    )
    rounds(table, range(7))
    other = wh.table("t")
    other.alter(rename_columns={"id": "number", "text": "id"}, add_columns="note STRING")
    shown = other.lake.compact(dry_run=True)  # the lake has the older columns until the next round
    assert (shown.files_added, shown.rows) == (1, 7)
    assert other.open_lake().plan_read().projection.schema.names == ("id", "text")
    tier(other)
    other.drop_column("note")
    tier(other)
    assert table.schema.names == ["id", "text"]  # it has not looked since
    assert table.lake.compact().files_added == 1
    assert table.lake.to_arrow().sort_by("number") == table.to_arrow().sort_by("number")


def test_verbs_of_a_dropped_table_are_refused(wh, table):
    lake = table.lake
    wh.drop_table("t")
    for verb in (lake.compact, lake.expire_snapshots, lake.remove_orphan_files, lake.rewrite_manifests):
        with pytest.raises(TableNotFoundError, match="was dropped"):
            verb()


def test_compact_goes_on_until_nothing_is_left(wh, monkeypatch):
    monkeypatch.setattr("streamhouse_spark.lake.parquet.compaction.COMPACT_BYTES_MAX", 1)
    table = wh.create_table("t", "id BIGINT, text STRING", buckets=2, properties={"bucket.key": "id"})
    rounds(table, range(40))
    shown = table.lake.compact(dry_run=True)
    report = table.lake.compact()
    assert (shown.files_removed, shown.files_added, shown.rows) == (40, 2, 40), "of all commits"
    assert (report.files_removed, report.files_added, report.rows) == (40, 2, 40)
    assert table.lake.files().num_rows == 2
    assert ids(table) == list(range(40))


def test_a_large_file_is_not_written_again_for_small_ones(wh):
    table = wh.create_table("t", "id BIGINT, text STRING")
    table.append([{"id": i, "text": f"many {i}"} for i in range(1000, 21_000)])
    rounds(table, range(6))
    largest = max(table.lake.files()["file_size_in_bytes"].to_pylist())
    assert table.lake.compact().files_removed == 5, "the first round's file stays, it has the large append"
    sizes = table.lake.files()["file_size_in_bytes"].to_pylist()
    assert len(sizes) == 2
    assert max(sizes) == largest


def test_expire_snapshots_keeps_what_it_is_told_to(table, clock):
    assert table.lake.expire_snapshots() == ExpireReport(), "a day is kept by default"
    clock.advance(HOUR_MS)
    now_ms = table.storage.now_ms()
    shown = table.lake.expire_snapshots(retain_last=3, older_than_ms=now_ms, dry_run=True)
    assert len(shown.snapshots) == 4
    assert table.lake.snapshots().num_rows == 7
    done = table.lake.expire_snapshots(retain_last=3, older_than_ms=now_ms)
    assert (set(done.snapshots), set(done.files)) == (set(shown.snapshots), set(shown.files))
    assert table.lake.snapshots().num_rows == 3
    assert table.lake.expire_snapshots(older_than_ms=now_ms - 2 * HOUR_MS, retain_last=1) == ExpireReport()
    assert ids(table) == list(range(7))


@pytest.mark.parametrize("lake_format", ["iceberg", "paimon"])
@pytest.mark.parametrize("by_maintenance", [False, True])
def test_the_snapshot_that_the_log_knows_is_none_that_expires(wh, clock, monkeypatch, lake_format, by_maintenance):
    """It is that before a compaction, until the next round."""
    monkeypatch.setattr(lake_upkeep, "SNAPSHOTS_KEPT", 1)
    table = wh.create_table("t", "id BIGINT, text STRING", properties={"table.datalake.format": lake_format})
    rounds(table, range(7))
    compacted = table.lake.compact().snapshot
    assert table.refresh().recorded_lake.snapshot_id != compacted.id
    clock.advance(26 * HOUR_MS)
    if by_maintenance:
        table.maintain()
    else:
        table.lake.expire_snapshots(retain_last=1, older_than_ms=table.storage.now_ms())
    assert table.lake.snapshots().num_rows == 1
    assert table.refresh().recorded_lake.snapshot_id == table.lake.newest().id
    table.create_branch("b")
    assert table.branch("b").to_arrow().num_rows == table.read_version(table.refresh().version).num_rows == 7


@pytest.mark.parametrize("retain_last", [0, -1, True, "3", None])
def test_expire_snapshots_refuses_to_keep_none(table, retain_last):
    with pytest.raises(InvalidOptionError, match=r"at least 1|whole number"):
        table.lake.expire_snapshots(retain_last=retain_last)


def test_expire_snapshots_refuses_the_future(table):
    with pytest.raises(InvalidOptionError, match="in the future"):
        table.lake.expire_snapshots(older_than_ms=table.storage.now_ms() + 60_000)


def test_orphan_files_are_shown_and_removed(memory, world, clock):
    from streamhouse_spark.warehouse.warehouse import Warehouse

    table = Warehouse("wh", storage=memory, world=world).create_table("t", "id BIGINT, text STRING")
    rounds(table, range(2))
    orphan = "lake/default/t/data/left-over.parquet"
    memory.put(orphan, b"rows of a lost round")
    with pytest.raises(InvalidOptionError, match="at least"):
        table.lake.remove_orphan_files(grace_ms=1000)
    assert table.lake.remove_orphan_files() == []
    clock.advance(25 * HOUR_MS)
    assert table.lake.remove_orphan_files(dry_run=True) == [orphan]
    assert memory.read(orphan)
    assert table.lake.remove_orphan_files() == [orphan]
    assert table.lake.remove_orphan_files() == []
    assert ids(table) == [0, 1]


@pytest.mark.parametrize("key", [(), ("id",)], ids=["log", "keyed"])
def test_manifests_are_joined_data_and_deletes_apart(wh, own_cache, key):
    table = wh.create_table("t", "id BIGINT NOT NULL, text STRING", primary_key=list(key))
    rounds(table, [1, 2, 3, 1, 2] if key else range(5))
    before = table.lake.metadata("manifests")
    kinds = set(before["content"].to_pylist())
    assert kinds == ({0, 1} if key else {0})
    rows, offsets = ids(table), table.lake.newest().offsets
    shown = table.lake.rewrite_manifests(dry_run=True)
    assert shown.removed > shown.added
    done = table.lake.rewrite_manifests()
    assert done == ManifestReport(shown.removed, shown.added, table.lake.newest().id)
    after = table.lake.metadata("manifests")
    assert after["content"].to_pylist() == sorted(kinds)
    for name in ("existing_data_files_count", "existing_delete_files_count"):
        assert sum(after[name].to_pylist()) == sum(
            sum(before[kind].to_pylist()) for kind in (name, name.replace("existing", "added"))
        )
    assert (ids(table), table.lake.newest().offsets) == (rows, offsets)
    assert table.lake.rewrite_manifests() == ManifestReport()
    rounds(table, [9])
    assert ids(table) == [*rows, 9]


@pytest.mark.paimon
def test_lakes_without_manifests_to_join_say_so(wh):
    table = wh.create_table("t", "id BIGINT", properties={"table.datalake.format": "paimon"})
    with pytest.raises(InvalidOptionError, match="has a paimon lake, expected Iceberg"):
        table.lake.rewrite_manifests()


def test_of_many_snapshots_those_older_than_an_hour_go(wh, clock, monkeypatch):
    monkeypatch.setattr(lake_upkeep, "SNAPSHOTS_KEPT_MAX", 12)
    table = wh.create_table("t", "id BIGINT, text STRING", properties={"table.datalake.auto-compaction": "false"})
    rounds(table, range(15))
    assert table.maintain().lake.expired.snapshots == (), "none is an hour old"
    clock.advance(2 * HOUR_MS)
    shown = table.maintain(dry_run=True).lake.expired
    assert len(shown.snapshots) == 3
    assert set(table.maintain().lake.expired.snapshots) == set(shown.snapshots)
    assert table.lake.snapshots().num_rows == 12
    clock.advance(24 * HOUR_MS)
    table.maintain()
    assert table.lake.snapshots().num_rows == 10
    assert ids(table) == list(range(15))
