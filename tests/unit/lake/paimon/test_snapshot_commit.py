"""Paimon snapshots are made by put-if-absent, validated on every attempt, and an outcome nobody told is looked up."""

from __future__ import annotations

import json

import pytest
from pypaimon.common.json_util import JSON

from faults.faulty_storage import FaultyStorage
from interop.lake_cases import EVENTS, PLAIN, TABLE_UUID, lake_of, tier, write_round
from kit.lake_rows import lake_rows
from streamhouse_spark import (
    CommitStateUnknownError,
    LakeMismatchError,
    LakeRolledBackError,
    OffsetRange,
    SnapshotExpiredError,
    StorageError,
)
from streamhouse_spark.lake.paimon import snapshot_commit as paimon_commit
from streamhouse_spark.lake.paimon.snapshots import SnapshotManager
from streamhouse_spark.lake.paimon.table import PaimonLake
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.lake.types import COMMIT_USER
from unit.lake.foreign_commits import PaimonCommits, RacingPuts, rows_from
from unit.lake.test_snapshot_commit import commit_round, ids_of, lake

__all__ = ["commit_round", "lake"]

PLACE = "lake/sales.db/orders"
ENGINE = PaimonCommits()


def _lake(store, **shape) -> PaimonLake:
    return lake_of(store, lake_format="paimon", **shape)


@pytest.fixture
def engine():
    return ENGINE


def _expire_below(memory, snapshot_id: int) -> None:
    for number in range(1, snapshot_id):
        memory.delete(f"{PLACE}/snapshot/snapshot-{number}")


# -- how it lies there ------------------------------------------------------------------------------------------------


def test_created_as_the_design_says(memory):
    lake = _lake(memory, schema=EVENTS, partition_by=["day"], bucket_key="id", num_buckets=4)
    lake.create_or_evolve()
    schema = json.loads(memory.read(f"{PLACE}/schema/schema-0"))
    assert [(f["id"], f["name"], f["type"]) for f in schema["fields"]] == [
        (0, "id", "BIGINT NOT NULL"),
        (1, "day", "DATE"),
        (2, "region", "STRING"),
        (3, "amount", "DECIMAL(12, 2)"),
    ]
    assert (schema["partitionKeys"], schema["primaryKeys"], schema["highestFieldId"]) == (["day"], [], 3)
    fields = '{"1":[0,"id"],"2":[1,"day"],"3":[2,"region"],"4":[3,"amount"]}'
    assert schema["options"] == {
        "bucket": "4",
        "bucket-key": "id",
        "file.format": "parquet",
        "partition.legacy-name": "false",
        "write-only": "true",
        "streamhouse.table-uuid": TABLE_UUID,
        "streamhouse.columns": f'{{"table":"{TABLE_UUID}","schema":1,"fields":{fields}}}',
    }
    assert lake.newest() is None


def test_without_a_bucket_key_paimon_has_no_buckets(lake, memory):
    schema = json.loads(memory.read(f"{PLACE}/schema/schema-0"))
    assert schema["options"]["bucket"] == "-1"
    files, new = write_round(lake, {3: rows_from(0)}, {})
    lake.commit(files, expected={0: 2}, new={0: 2, **new}, context=lake.write_context())
    assert {row["bucket"] for row in lake.metadata_table("files").to_pylist()} == {0}
    assert {file.bucket for file in lake.scan_files(snapshot_id=2, columns=["id"], schema=PLAIN).files} == {None}
    assert len(list(lake.read_offsets(3, OffsetRange(0, 2)))) == 1


def test_others_are_told_what_is_needed(lake, memory):
    second = tier(lake, rows_from(2))
    assert memory.read(f"{PLACE}/snapshot/LATEST") == b"2"
    assert memory.read(f"{PLACE}/tag/tag-{COMMIT_USER}") == memory.read(f"{PLACE}/snapshot/snapshot-2")
    assert json.loads(memory.read(f"{PLACE}/consumer/consumer-{COMMIT_USER}")) == {"nextSnapshot": 2}
    tables = {name: lake.metadata_table(name).to_pylist() for name in ("tags", "consumers")}
    assert tables["tags"][0]["snapshot_id"] == tables["consumers"][0]["next_snapshot_id"] == second.id


# -- the fence --------------------------------------------------------------------------------------------------------


def test_a_table_of_nobody_is_refused(lake, memory):
    schema = json.loads(memory.read(f"{PLACE}/schema/schema-0"))
    del schema["options"]["streamhouse.table-uuid"]
    memory.put(f"{PLACE}/schema/schema-0", json.dumps(schema).encode())
    for use in (lake.create_or_evolve, lake.newest, lake.write_context):
        with pytest.raises(LakeMismatchError, match="belongs to nobody"):
            use()


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"options": {"bucket": "3"}}, "option bucket: 3, expected -1"),
        ({"options": {"deletion-vectors.enabled": "true"}}, "option deletion-vectors.enabled is true"),
        ({"primaryKeys": ["id"]}, "primary keys: ['id'], expected none"),
        ({"partitionKeys": ["name"]}, "partition keys: ['name'], expected none"),
    ],
    ids=str,
)
def test_an_altered_table_is_refused_with_the_difference(lake, memory, changed, difference):
    schema = json.loads(memory.read(f"{PLACE}/schema/schema-0"))
    options = {**schema["options"], **changed.pop("options", {})}
    memory.put(f"{PLACE}/schema/schema-1", json.dumps({**schema, "id": 1, "options": options, **changed}).encode())
    with pytest.raises(LakeMismatchError) as caught:
        lake.create_or_evolve()
    assert difference in str(caught.value)


# -- outcomes that nobody told ----------------------------------------------------------------------------------------


def test_a_put_that_fails_leaves_the_table_as_it_was(lake, memory, commit_round):
    before = {info.key for info in memory.list("lake/")}
    RacingPuts(lake, instead=StorageError("503"))
    with pytest.raises(StorageError, match="503"):
        commit_round()
    assert ids_of(lake) == [0, 1]
    assert before <= {info.key for info in memory.list("lake/")}
    assert commit_round().offsets == {0: 4}


def test_an_outcome_that_cannot_be_read_back_is_unknown(lake, memory, commit_round):
    read = memory.read

    def fail(key):
        if key.endswith("snapshot-2"):
            raise StorageError("no route")
        return read(key)

    def blind() -> None:
        memory.read = fail

    RacingPuts(lake, before=blind, after=StorageError("500"))
    with pytest.raises(CommitStateUnknownError, match="retry the round"):
        commit_round()
    memory.read = read
    assert ids_of(lake) == [0, 1, 2, 3]


def test_a_number_that_was_expired_meanwhile_does_not_count(lake, memory, commit_round):
    """A writer that slept: others committed, and what they built on is gone, so that its number is free again."""

    def sleep_long() -> None:
        other = _lake(memory)
        for i in range(3):
            tier(other, rows_from(2 + 2 * i))
        _expire_below(memory, 4)

    RacingPuts(lake, before=sleep_long)
    with pytest.raises(CommitStateUnknownError, match="at a number that had expired"):
        commit_round()
    assert lake.newest().offsets == {0: 8}
    assert ids_of(lake) == list(range(8))


def test_an_expiry_right_behind_the_commit_is_no_doubt(lake, memory, commit_round):
    RacingPuts(lake, before=lambda: _expire_below(memory, 2))
    assert commit_round().offsets == {0: 4}


# -- the newest snapshot ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hint", [None, b"", b"1", b"2", b"99", b"x", b"-3"], ids=str)
def test_the_newest_is_found_whatever_the_hint_says(lake, memory, hint):
    newest = [tier(lake, rows_from(2 + 2 * i)) for i in range(3)][-1]
    memory.delete(f"{PLACE}/snapshot/LATEST")
    if hint is not None:
        memory.put(f"{PLACE}/snapshot/LATEST", hint)
    _expire_below(memory, 2)
    assert lake.newest() == newest


@pytest.mark.parametrize(("hint", "requests_max"), [(b"2000", 4), (None, 5), (b"1", 26)])
def test_two_thousand_snapshots_cost_few_requests(lake, memory, hint, requests_max):
    tier(lake, rows_from(2))
    newest = json.loads(memory.read(f"{PLACE}/snapshot/snapshot-1"))
    for number in range(1, 2001):
        memory.put(f"{PLACE}/snapshot/snapshot-{number}", json.dumps({**newest, "id": number}).encode())
    memory.delete(f"{PLACE}/snapshot/LATEST")
    if hint is not None:
        memory.put(f"{PLACE}/snapshot/LATEST", hint)
    counting = FaultyStorage(memory)
    assert SnapshotManager(counting, PLACE).newest().id == 2000
    assert len(counting.trace) <= requests_max


def test_a_listing_that_lags_hides_nothing(lake, memory, monkeypatch):
    newest = tier(lake, rows_from(2))
    memory.delete(f"{PLACE}/snapshot/LATEST")
    names = memory.list_names
    monkeypatch.setattr(memory, "list_names", lambda prefix: [n for n in names(prefix) if n != "snapshot-2"])
    assert lake.newest() == newest
    monkeypatch.setattr(memory, "list_names", lambda prefix: [])
    assert lake.newest() == newest


def test_hints_that_cannot_be_written_are_no_failure(lake, memory, monkeypatch):
    put = memory.put

    def full(key, data):
        if key.rpartition("/")[2] in ("LATEST", f"tag-{COMMIT_USER}", f"consumer-{COMMIT_USER}"):
            raise StorageError("full")
        put(key, data)

    monkeypatch.setattr(memory, "put", full)
    assert tier(lake, rows_from(2)) == lake.newest()
    assert memory.read(f"{PLACE}/snapshot/LATEST") == b"1"


# -- offsets below other snapshots ------------------------------------------------------------------------------------


def test_offsets_that_were_expired_stop_everything(lake, memory):
    for _ in range(3):
        ENGINE.commit(lake)
    _expire_below(memory, 3)
    with pytest.raises(LakeRolledBackError, match="no snapshot from 3 to 4 contains log offsets"):
        lake.newest()
    with pytest.raises(LakeRolledBackError):
        lake.commit([], expected={0: 2}, new={0: 2}, context=lake.write_context(), starts={0: 2})


def test_a_snapshot_that_only_a_tag_keeps(lake, memory):
    memory.put(f"{PLACE}/tag/tag-before", memory.read(f"{PLACE}/snapshot/snapshot-1"))
    for i in range(2):
        tier(lake, rows_from(2 + 2 * i))
    _expire_below(memory, 3)
    tagged = lake.snapshot_by_name("before")
    assert lake_rows(lake, lake.plan_read(snapshot_id=tagged.id)).num_rows == 2
    with pytest.raises(SnapshotExpiredError, match="no snapshot 2"):
        lake.plan_read(snapshot_id=2)


# -- metadata ---------------------------------------------------------------------------------------------------------


def test_manifests_are_merged_whatever_their_order(lake, memory, monkeypatch):
    monkeypatch.setattr(paimon_commit, "MANIFESTS_MIN_TO_MERGE", 3)
    for i in range(1, 12):
        tier(lake, rows_from(2 * i))
    assert lake.metadata_table("manifests").num_rows <= 4
    emptied = lake.commit([], expected={0: 24}, new={0: 24}, context=lake.write_context(), starts={0: 24})
    assert (emptied.offsets, ids_of(lake)) == ({0: 24}, [])
    monkeypatch.setattr(paimon_commit, "MANIFEST_BYTES_TARGET", 0)  # all are large: removed files stay apart
    ENGINE.commit(lake)
    assert ids_of(lake) == []
    for number in range(1, 13):
        plan = lake.plan_read(snapshot_id=number)
        assert sorted(lake_rows(lake, plan)["id"].to_pylist()) == list(range(2 * number))


def test_a_snapshot_with_what_is_not_read_here_is_refused(lake, memory):
    snapshot = lake.binding.snapshots.newest()
    snapshot.id, snapshot.index_manifest = 2, "index-manifest-0"
    memory.put_if_absent(f"{PLACE}/snapshot/snapshot-2", JSON.to_json(snapshot).encode())
    with pytest.raises(LakeMismatchError, match="deletion vectors"):
        lake.plan_read()
    tier(lake, rows_from(2))
    assert lake.binding.snapshots.newest().index_manifest == "index-manifest-0", "a commit does not undo the deletes"
    with pytest.raises(LakeMismatchError, match="deletion vectors"):
        lake.commit([], expected={0: 4}, new={0: 4}, context=lake.write_context(), starts={0: 4})


def test_a_number_that_was_given_again_is_not_taken_for_the_recorded_snapshot(wh):
    """Another engine rolled the lake back and committed: its snapshot has the number of one that the log recorded."""
    table = wh.create_table("sales.orders", PLAIN.arrow, properties={"table.datalake.format": "paimon"})
    for first in (0, 2):
        table.append(rows_from(first))
        TieringJob(table.log, table.open_lake(), world=table.world).run(
            run_tasks_locally(table.storage, table.settings, table.world)
        )
    lake = table.open_lake()
    table.storage.delete(f"{table.state.lake_location}/snapshot/snapshot-2")
    ENGINE.commit(lake)
    assert (lake.newest().id, lake.newest().offsets) == (2, {0: 2})
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1, 2, 3]
    for use in (
        lambda: TieringJob(table.log, lake, world=table.world).run(lambda tasks: []),
        table.maintain,
    ):
        with pytest.raises(LakeRolledBackError):
            use()
