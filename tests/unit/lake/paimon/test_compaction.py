"""Duties of maintenance to Paimon's readers and writers: snapshots without gaps, tags, branches, consumers."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pypaimon.common.json_util import JSON

from interop.lake_cases import PLAIN, lake_of, sorted_rows, tier, write_round, written_files
from kit.lake_rows import lake_rows
from streamhouse_spark import (
    CommitConflictError,
    CorruptDataError,
    LakeMismatchError,
    LakeRolledBackError,
    OffsetRange,
    SnapshotExpiredError,
    StorageError,
)
from streamhouse_spark.lake.paimon import snapshot_commit as paimon_commit
from streamhouse_spark.lake.paimon.expiry import list_history, list_tag_and_branch_snapshots
from streamhouse_spark.lake.paimon.file_io import StorageFileIO
from streamhouse_spark.lake.paimon.snapshot_commit import MANIFESTS_MIN_TO_MERGE, SnapshotUpdate, commit_snapshot
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from unit.lake.test_maintenance_contract import rows_from

PLACE = "lake/sales.db/orders"
DAY_MS = 24 * 3600 * 1000


def _ids(lake, **of) -> list[int]:
    return sorted(lake_rows(lake, lake.plan_read(**of))["id"].to_pylist())


def _expire(lake, keep_last: int = 1, **how):
    return lake.expire(keep_last=keep_last, keep_ms=0, **how)


def _snapshot_ids(lake) -> list[int]:
    return lake.binding.snapshots.ids()


def _foreign_commit(lake) -> int:
    """A snapshot without offsets or a commit of ours, as another engine makes one."""
    snapshot = commit_snapshot(lake.binding, lambda _: SnapshotUpdate())
    snapshot.properties = None
    lake.binding.storage.put(f"{PLACE}/snapshot/snapshot-{snapshot.id}", JSON.to_json(snapshot).encode())
    return snapshot.id


@pytest.fixture
def lake(memory, world):
    """Ten snapshots of three rows each, none of them young."""
    lake = lake_of(memory, world=world, lake_format="paimon")
    for i in range(10):
        tier(lake, rows_from(3 * i))
    world.clock.advance(60_000)
    return lake


# -- compaction -------------------------------------------------------------------------------------------------------


def test_a_compaction_is_one_of_paimons_kind(lake):
    lake.compact()
    snapshot = lake.binding.snapshots.newest()
    assert (snapshot.commit_kind, snapshot.total_record_count, snapshot.delta_record_count) == ("COMPACT", 30, 0)
    table = lake.binding.require()
    (manifest,) = lake.metadata_table("files").to_pylist()
    assert (manifest["record_count"], manifest["min_sequence_number"], manifest["max_sequence_number"]) == (30, 0, 29)
    assert len(table.store(StorageFileIO(lake.binding.files)).snapshot_manager().get_latest_snapshot().properties) == 2


def test_files_of_other_engines_and_other_bucket_counts_are_left_alone(lake, memory):
    for name in ("a", "b", "c", "d", "e"):
        memory.put_if_absent(f"{PLACE}/bucket-0/{name}.parquet", _parquet(rows_from(100)))
    files = [_foreign_file(lake, name) for name in ("a", "b", "c", "d", "e")]
    commit_snapshot(lake.binding, lambda _: SnapshotUpdate(files))
    before = _ids(lake)
    assert lake.compact().files_removed == 10
    assert _ids(lake) == before
    assert len(lake.metadata_table("files")) == 6


def _parquet(rows: pa.Table) -> bytes:
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    return sink.getvalue().to_pybytes()


def _foreign_file(lake, name: str):
    from dataclasses import replace

    rows = rows_from(100)
    context = lake.write_context()
    (made,) = written_files(lake, context, 0, OffsetRange(100, 103), ((100, b) for b in rows.to_batches()))
    folder = made.location.rpartition("/")[0]
    location = f"{folder}/{name}.parquet"
    return replace(
        made, location=location, size_bytes=lake.binding.storage.size_bytes(lake.binding.files.key_of(location))
    )


def test_a_table_with_deleted_rows_is_not_compacted(lake, memory):
    snapshot = lake.binding.snapshots.newest()
    snapshot.id, snapshot.index_manifest = 11, "index-manifest-0"
    memory.put_if_absent(f"{PLACE}/snapshot/snapshot-11", JSON.to_json(snapshot).encode())
    assert lake.compact().files_removed == 0
    assert _snapshot_ids(lake) == list(range(1, 12))


def test_rows_deleted_while_files_are_merged_stay_deleted(lake, memory, monkeypatch):
    from streamhouse_spark.lake.paimon import compaction as paimon_maintain

    merge = paimon_maintain.merge_group

    def merge_late(*args):
        snapshot = lake.binding.snapshots.newest()
        snapshot.id, snapshot.index_manifest = 11, "index-manifest-0"
        memory.put_if_absent(f"{PLACE}/snapshot/snapshot-11", JSON.to_json(snapshot).encode())
        return merge(*args)

    monkeypatch.setattr(paimon_maintain, "merge_group", merge_late)
    with pytest.raises(CommitConflictError, match="deleted rows"):
        lake.compact()


# -- manifests --------------------------------------------------------------------------------------------------------


def test_manifests_stay_few_however_many_rounds_there_are(memory, world, monkeypatch):
    lake = lake_of(memory, world=world, lake_format="paimon")
    lake.create_or_evolve()
    monkeypatch.setattr(paimon_commit, "MANIFESTS_MIN_TO_MERGE", 8)
    counts, sizes = [], []
    for i in range(60):
        tier(lake, rows_from(3 * i))
        if i % 20 == 19:
            lake.compact()
        counts.append(lake.metadata_table("manifests").num_rows)
        sizes.append(memory.size_bytes(f"{PLACE}/manifest/{lake.binding.snapshots.newest().base_manifest_list}"))
    assert max(counts) <= 8 + 1
    assert max(sizes[30:]) <= 1.1 * max(sizes[:30])
    assert _ids(lake) == list(range(180))


def test_large_manifests_are_written_again_once_many_of_their_files_are_gone(lake, monkeypatch):
    monkeypatch.setattr(paimon_commit, "MANIFESTS_MIN_TO_MERGE", 2)
    tier(lake, rows_from(30))
    merged, single = lake.metadata_table("manifests")["file_size"].to_pylist()
    assert single + 50 < merged
    monkeypatch.setattr(paimon_commit, "MANIFEST_BYTES_TARGET", single + 50)  # what was merged before is large
    lake.compact()
    for i in range(3):
        tier(lake, rows_from(33 + 3 * i))
    named = [
        entry.file.file_name
        for manifest in lake.metadata_table("manifests")["file_name"].to_pylist()
        for entry in _manifest_entries(lake, manifest)
    ]
    assert len(named) == len(set(named)) == len(lake.metadata_table("files")), "files that are gone are still named"
    assert _ids(lake) == list(range(42))


def _manifest_entries(lake, name: str):
    from pypaimon.manifest.manifest_file_manager import ManifestFileManager

    return ManifestFileManager(lake.binding.require().store(StorageFileIO(lake.binding.files))).read(name)


# -- expiry -----------------------------------------------------------------------------------------------------------


def test_snapshots_go_from_the_oldest_on_and_a_crash_leaves_no_gap(lake, memory, monkeypatch):
    delete, deleted = memory.delete, []

    def crash(key):
        if len(deleted) == 4:
            raise KeyboardInterrupt
        deleted.append(key)
        delete(key)

    monkeypatch.setattr(memory, "delete", crash)
    with pytest.raises(KeyboardInterrupt):
        _expire(lake, keep_last=2)
    monkeypatch.undo()
    assert _snapshot_ids(lake) == list(range(5, 11))
    for snapshot_id in _snapshot_ids(lake):
        assert len(_ids(lake, snapshot_id=snapshot_id)) == 3 * snapshot_id
    assert _expire(lake, keep_last=2).snapshots == (5, 6, 7, 8)
    assert memory.read(f"{PLACE}/snapshot/EARLIEST") == b"9"
    assert [s.id for s in list_history(lake.binding, lake.binding.snapshots.newest())] == [9, 10]


def test_a_hint_that_cannot_be_written_is_no_failure(lake, memory, monkeypatch):
    put = memory.put

    def full(key, data):
        if key.endswith("EARLIEST"):
            raise StorageError("full")
        put(key, data)

    monkeypatch.setattr(memory, "put", full)
    assert len(_expire(lake).snapshots) == 9
    assert _ids(lake) == list(range(30))


def test_a_tag_keeps_its_files_and_can_be_read_by_name_and_number(lake, memory):
    memory.put(f"{PLACE}/tag/tag-before", memory.read(f"{PLACE}/snapshot/snapshot-4"))
    lake.compact()
    lake.binding.world.clock.advance(DAY_MS + 1)
    assert len(_expire(lake).snapshots) == 10
    lake.remove_orphans()
    tagged = lake.snapshot_by_name("before")
    assert (tagged.id, tagged.offsets) == (4, {0: 12})
    assert _ids(lake, snapshot_id=tagged.id) == list(range(12))
    memory.delete(f"{PLACE}/tag/tag-before")
    lake.binding.world.clock.advance(DAY_MS + 1)
    assert len([key for key in lake.remove_orphans() if key.endswith(".parquet")]) == 4
    with pytest.raises(SnapshotExpiredError):
        lake.snapshot_by_name("before")
    assert _ids(lake) == list(range(30))


def test_a_tag_that_is_made_while_snapshots_are_expired_keeps_its_files(lake, memory, monkeypatch):
    snapshot = memory.read(f"{PLACE}/snapshot/snapshot-4")
    delete = memory.delete

    def tag_first(key):
        memory.put(f"{PLACE}/tag/tag-late", snapshot)
        delete(key)

    monkeypatch.setattr(memory, "delete", tag_first)
    lake.compact()
    _expire(lake)
    monkeypatch.undo()
    assert _ids(lake, snapshot_id=lake.snapshot_by_name("late").id) == list(range(12))


def test_a_branch_keeps_its_files(lake, memory):
    branch = f"{PLACE}/branch/branch-side"
    memory.put(f"{branch}/snapshot/snapshot-4", memory.read(f"{PLACE}/snapshot/snapshot-4"))
    memory.put(f"{branch}/tag/tag-old", memory.read(f"{PLACE}/snapshot/snapshot-2"))
    lake.compact()
    lake.binding.world.clock.advance(DAY_MS + 1)
    _expire(lake)
    lake.remove_orphans()
    kept = [s for s in list_tag_and_branch_snapshots(lake.binding) if s.id < 10]
    assert sorted(s.id for s in kept) == [2, 4]
    parquet = {i.key for i in memory.list(f"{PLACE}/bucket-0/")}
    assert len(parquet) == 4 + 1, "the four files of the branch, and the compacted one"


def test_a_consumer_of_any_engine_keeps_what_it_has_yet_to_read(lake, memory):
    memory.put(f"{PLACE}/consumer/consumer-theirs", json.dumps({"nextSnapshot": 6}).encode())
    assert _expire(lake).snapshots == (1, 2, 3, 4, 5)
    memory.put(f"{PLACE}/consumer/consumer-theirs", b"{}")
    with pytest.raises(CorruptDataError, match="consumer-theirs does not contain the next snapshot"):
        _expire(lake)
    memory.delete(f"{PLACE}/consumer/consumer-theirs")
    assert len(_expire(lake).snapshots) == 4


def test_the_snapshot_that_says_the_offsets_stays(lake):
    for _ in range(4):
        _foreign_commit(lake)
    assert len(_expire(lake).snapshots) == 9
    assert _snapshot_ids(lake) == [10, 11, 12, 13, 14]
    assert lake.newest().offsets == {0: 30}
    assert lake.snapshot(12).offsets == {0: 30}
    tier(lake, rows_from(30))
    _foreign_commit(lake)
    assert _expire(lake, keep_last=1).snapshots == (10, 11, 12, 13, 14)
    assert lake.newest().offsets == {0: 33}


def test_a_snapshot_below_a_gap_counts_for_nothing(lake, memory):
    """A writer that slept put it where older ones had been expired, and its manifests are gone by now."""
    stale = memory.read(f"{PLACE}/snapshot/snapshot-3")
    lake.compact()
    _expire(lake)
    memory.put(f"{PLACE}/snapshot/snapshot-3", stale)
    lake.binding.world.clock.advance(DAY_MS + 1)
    lake.remove_orphans()
    assert lake.newest().offsets == {0: 30}
    assert _expire(lake, keep_last=5).snapshots == (3,)
    assert _ids(lake) == list(range(30))


def test_damage_is_found_before_anything_is_deleted(lake, memory):
    memory.delete(f"{PLACE}/manifest/{lake.binding.snapshots.find(9).delta_manifest_list}")
    before = {info.key for info in memory.list("lake/")}
    for use in (lambda: _expire(lake, keep_last=3), lake.remove_orphans):
        with pytest.raises(CorruptDataError, match="metadata of snapshot 9 is missing"):
            use()
    assert {info.key for info in memory.list("lake/")} == before


def test_snapshots_that_vanish_while_files_are_looked_for_are_a_conflict(lake, memory, monkeypatch):
    read = memory.read

    def vanish(key):
        if key.endswith("-0") and "manifest-list-" in key:
            memory.delete(key)
            memory.delete(f"{PLACE}/snapshot/snapshot-9")
            memory.delete(f"{PLACE}/snapshot/snapshot-10")
        return read(key)

    monkeypatch.setattr(memory, "read", vanish)
    with pytest.raises(CommitConflictError, match="retry"):
        _expire(lake, keep_last=2)


def test_changelogs_that_another_engine_keeps_are_not_judged(lake, memory):
    memory.put(f"{PLACE}/changelog/changelog-1", b"{}")
    for use in (lambda: _expire(lake), lake.remove_orphans):
        with pytest.raises(LakeMismatchError, match="with that engine"):
            use()
    assert _snapshot_ids(lake) == list(range(1, 11))


# -- orphans ----------------------------------------------------------------------------------------------------------


def test_a_round_that_falls_asleep_between_its_check_and_its_commit_loses_to_cleaning(lake, memory, monkeypatch, clock):
    context = lake.write_context()
    files, new = write_round(lake, {0: rows_from(30)}, {0: 30})
    put = memory.put_if_absent

    def asleep(key, data):
        monkeypatch.undo()
        clock.advance(DAY_MS + 1)
        assert len(lake_of(memory, world=lake.binding.world, lake_format="paimon").remove_orphans()) >= 1
        return put(key, data)

    monkeypatch.setattr(memory, "put_if_absent", asleep)
    with pytest.raises(CommitConflictError, match="were removed; retry the round"):
        lake.commit(files, expected={0: 30}, new=new, context=context)
    assert lake.newest().offsets == {0: 30}
    assert _ids(lake) == list(range(30))


def test_every_later_snapshot_repeats_what_keeps_slow_rounds_out(lake, clock):
    context = lake.write_context()
    files, new = write_round(lake, {0: rows_from(30)}, {0: 30})
    clock.advance(DAY_MS + 1)
    assert lake.remove_orphans()
    for i in range(3):
        tier(lake, rows_from(30 + 3 * i))
        _foreign_commit(lake)
    _expire(lake)
    with pytest.raises(CommitConflictError):
        lake.commit(files, expected={0: 30}, new=new, context=context)
    assert paimon_commit.files_not_before_ms(lake.binding, lake.binding.snapshots.newest()) > 0


def test_what_other_engines_keep_beside_the_data_is_no_orphan(lake, memory, clock):
    kept = ["index/index-1", "statistics/stats-1", "manifest/index-manifest-1", "schema/x.parquet", "README"]
    for name in kept:
        memory.put_if_absent(f"{PLACE}/{name}", b"x")
    lost = [
        "bucket-0/lost.parquet",
        "manifest/manifest-lost-0",
        "manifest/manifest-list-lost-1",
        "day=1/bucket-0/x.parquet",
    ]
    for name in lost:
        memory.put_if_absent(f"{PLACE}/{name}", b"x")
    clock.advance(DAY_MS + 1)
    assert lake.remove_orphans() == sorted(f"{PLACE}/{name}" for name in lost)
    assert all(memory.size_bytes(f"{PLACE}/{name}") for name in kept)


def test_manifest_merges_and_maintenance_keep_every_snapshot_readable(memory, world, monkeypatch):
    """Every snapshot that is left reads what it held, through all of it."""
    monkeypatch.setattr(paimon_commit, "MANIFESTS_MIN_TO_MERGE", 3)
    lake = lake_of(memory, world=world, lake_format="paimon")
    held: dict[int, list] = {}
    for i in range(24):
        tier(lake, rows_from(3 * i))
        held[lake.newest().id] = list(range(3 * i + 3))
        if i % 6 == 5:
            report = lake.compact()
            held[report.snapshot.id] = held[report.snapshot.id - 1]
        if i % 4 == 3:
            world.clock.advance(DAY_MS + 1)
            lake.expire(keep_last=5, keep_ms=0)
            lake.remove_orphans()
            if lake.newest().id not in held:
                held[lake.newest().id] = held[lake.newest().id - 1]
        for snapshot_id in _snapshot_ids(lake):
            assert _ids(lake, snapshot_id=snapshot_id) == held[snapshot_id]
    assert sorted_rows(lake_rows(lake, lake.plan_read())) == sorted_rows(rows_from(0, 72))
    assert MANIFESTS_MIN_TO_MERGE == 30


def test_a_lake_without_offsets_left_is_not_expired_further(lake, memory):
    newest = [_foreign_commit(lake) for _ in range(2)][-1]
    for number in range(1, newest):
        memory.delete(f"{PLACE}/snapshot/snapshot-{number}")
    with pytest.raises(LakeRolledBackError):
        lake.newest()
    assert _expire(lake).snapshots == ()


def test_snapshots_of_a_lake_that_never_had_rows_of_ours_are_expired(memory, world):
    lake = lake_of(memory, world=world, lake_format="paimon")
    lake.create_or_evolve()
    for _ in range(3):
        _foreign_commit(lake)
    world.clock.advance(60_000)
    assert _expire(lake).snapshots == (), "the first one tells that there never were any offsets"
    lake.find_durable()  # commits an empty snapshot, which says it as well
    world.clock.advance(60_000)
    assert _expire(lake).snapshots == (1, 2, 3)
    assert lake.newest().offsets == {}
    tier(lake, rows_from(0))
    assert _ids(lake) == [0, 1, 2]


def test_a_tag_of_a_snapshot_of_another_engine_is_read_when_what_was_below_it_is_gone(lake, memory):
    tagged = _foreign_commit(lake)
    memory.put(f"{PLACE}/tag/tag-theirs", memory.read(f"{PLACE}/snapshot/snapshot-{tagged}"))
    tier(lake, rows_from(30))
    lake.binding.world.clock.advance(60_000)
    assert tagged in _expire(lake).snapshots
    found = lake.snapshot_by_name("theirs")
    assert (found.id, found.offsets) == (tagged, {})
    assert _ids(lake, snapshot_id=tagged) == list(range(30))


# -- all of it, as tables ask for it ----------------------------------------------------------------------------------


def test_a_table_that_asks_for_it_is_compacted_and_expired_by_maintenance(wh, clock, store):
    asked = {"table.datalake.auto-compaction": "true", "table.datalake.auto-expire-snapshot": "true"}
    properties = {"table.datalake.format": "paimon", "table.log.ttl": "1h", **asked}
    table = wh.create_table("sales.orders", PLAIN.arrow, properties=properties)
    for i in range(12):
        table.append(rows_from(3 * i))
        job = TieringJob(table.log, table.open_lake(), world=table.world)
        job.run(run_tasks_locally(table.storage, table.settings, table.world))
        clock.advance(3 * 3600 * 1000)
    lake = table.open_lake()
    files = {info.key for info in store.list("lake/")}
    shown = table.maintain(dry_run=True).lake
    assert (shown.compacted.files_removed, shown.compacted.rows) == (12, 36)
    assert {info.key for info in store.list("lake/")} == files
    report = table.maintain()
    assert report.trimmed_to == {0: 36}, "an empty snapshot settled what the newest one held"
    assert (report.lake.compacted.files_removed, report.lake.compacted.files_added) == (12, 1)
    assert report.lake.expired.snapshots == (1, 2, 3, 4), "ten are kept, and those of a day"
    assert lake.newest().offsets == {0: 36}
    assert sorted(table.to_arrow()["id"].to_pylist()) == list(range(36))
    tail = [i for _, batch in lake.read_offsets(0, OffsetRange(5, 30)) for i in batch["id"].to_pylist()]
    assert tail == list(range(5, 30))
