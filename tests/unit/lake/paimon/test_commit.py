"""Paimon snapshots are made by put-if-absent, validated on every attempt, and an outcome nobody told is looked up."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pypaimon.common.json_util import JSON

from faults.faulty_storage import FaultyStorage
from interop.lake_cases import EVENTS, PLAIN, TABLE_UUID, lake_of, tier, write_round
from kit.lake_rows import lake_rows
from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptDataError,
    FormatVersionError,
    LakeMismatchError,
    LakeRolledBackError,
    SnapshotExpiredError,
    StorageError,
)
from streamhouse_spark.lake.model.values import COMMIT_USER
from streamhouse_spark.lake.offsets import OFFSETS_PROPERTY
from streamhouse_spark.lake.paimon import commit as paimon_commit
from streamhouse_spark.lake.paimon.commit import ATTEMPTS_MAX, Change, commit_snapshot
from streamhouse_spark.lake.paimon.snapshots import SnapshotFolder
from streamhouse_spark.lake.paimon.table import PaimonLake
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.storage.local import LocalStorage

PLACE = "lake/sales.db/orders"


def _rows(first: int, num_rows: int = 2) -> pa.Table:
    ids = range(first, first + num_rows)
    return pa.table({"id": ids, "name": [f"n{i}" for i in ids]}, schema=PLAIN.arrow)


def _lake(store, **shape) -> PaimonLake:
    return lake_of(store, lake_format="paimon", **shape)


def _ids(lake: PaimonLake) -> list[int]:
    return sorted(lake_rows(lake, lake.plan_read())["id"].to_pylist())


@pytest.fixture
def lake(memory, world) -> PaimonLake:
    lake = _lake(memory, world=world)
    tier(lake, _rows(0))
    return lake


@pytest.fixture
def round_(lake):
    """A round that begins at offset 2: its files, its offsets, and how to commit it."""
    context = lake.write_context()
    files, new = write_round(lake, {0: _rows(2)}, {0: 2})
    return lambda: lake.commit(files, expected={0: 2}, new=new, context=context)


def _foreign_commit(lake: PaimonLake, properties: dict[str, str] | None = None) -> None:
    """A snapshot without offsets, as another engine makes one."""
    commit_snapshot(lake.place, lambda _: Change(properties=properties or {}))


def _expire_below(memory, snapshot_id: int) -> None:
    for number in range(1, snapshot_id):
        memory.delete(f"{PLACE}/snapshot/snapshot-{number}")


class Puts:
    """Runs something before a put of a snapshot, or makes its answer another."""

    def __init__(self, memory, *, before=None, instead=None, after=None, times=1):
        self._put = memory.put_if_absent
        self._before, self._instead, self._after, self._times = before, instead, after, times
        memory.put_if_absent = self

    def __call__(self, key, data):
        active = "/snapshot/" in key and self._times > 0
        self._times -= active
        if active and self._before:
            self._before()
        if active and self._instead:
            raise self._instead
        self._put(key, data)
        if active and self._after:
            raise self._after


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
    files, new = write_round(lake, {3: _rows(0)}, {})
    lake.commit(files, expected={0: 2}, new={0: 2, **new}, context=lake.write_context())
    assert {row["bucket"] for row in lake.metadata_table("files").to_pylist()} == {0}
    assert {file.bucket for file in lake.scan_files(snapshot_id=2, columns=["id"], schema=PLAIN).files} == {None}
    assert len(list(lake.read_offsets(3, OffsetRange(0, 2)))) == 1


def test_others_are_told_what_is_needed(lake, memory):
    second = tier(lake, _rows(2))
    assert memory.read(f"{PLACE}/snapshot/LATEST") == b"2"
    assert memory.read(f"{PLACE}/tag/tag-{COMMIT_USER}") == memory.read(f"{PLACE}/snapshot/snapshot-2")
    assert json.loads(memory.read(f"{PLACE}/consumer/consumer-{COMMIT_USER}")) == {"nextSnapshot": 2}
    tables = {name: lake.metadata_table(name).to_pylist() for name in ("tags", "consumers")}
    assert tables["tags"][0]["snapshot_id"] == tables["consumers"][0]["next_snapshot_id"] == second.id


# -- the fence --------------------------------------------------------------------------------------------------------


def test_a_round_that_is_overtaken_inside_its_commit_is_fenced(lake, memory, round_):
    other = _lake(memory)
    Puts(memory, before=lambda: tier(other, _rows(2)))
    with pytest.raises(CommitConflictError, match="another tiering service was faster"):
        round_()
    assert _ids(other) == [0, 1, 2, 3]


def test_unrelated_commits_are_rebased_on(lake, memory, round_):
    Puts(memory, before=lambda: _foreign_commit(_lake(memory)), times=3)
    snapshot = round_()
    assert (snapshot.id, snapshot.offsets) == (5, {0: 4})
    assert _ids(lake) == [0, 1, 2, 3]


def test_endless_losing_ends(lake, memory, round_):
    puts = Puts(memory, times=10**6)

    def overtake() -> None:
        puts._before = None
        _foreign_commit(_lake(memory))
        puts._before = overtake

    puts._before = overtake
    with pytest.raises(CommitConflictError, match=f"won {ATTEMPTS_MAX} times"):
        round_()


def test_a_table_that_was_replaced_is_a_mismatch(memory, world):
    lake = _lake(memory, world=world)
    lake.create_or_evolve()
    context = lake.write_context()
    files, new = write_round(lake, {0: _rows(0)}, {})
    lake.drop(purge=True)
    assert not memory.list(f"{PLACE}/")
    _lake(memory, table_uuid="f" * 32).create_or_evolve()
    with pytest.raises(LakeMismatchError, match="belongs to table ffff"):
        lake.commit(files, expected={}, new=new, context=context)


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


@pytest.mark.parametrize("answer", [StorageError("500"), StorageError("timeout")], ids=str)
def test_a_lost_acknowledgement_is_a_success_and_repeats_nothing(lake, memory, round_, answer):
    Puts(memory, after=answer)
    snapshot = round_()
    assert _ids(lake) == [0, 1, 2, 3]
    assert lake.newest() == snapshot
    with pytest.raises(CommitConflictError):
        round_()


def test_a_put_that_fails_leaves_the_table_as_it_was(lake, memory, round_):
    before = {info.key for info in memory.list("lake/")}
    Puts(memory, instead=StorageError("503"))
    with pytest.raises(StorageError, match="503"):
        round_()
    assert _ids(lake) == [0, 1]
    assert before <= {info.key for info in memory.list("lake/")}
    assert round_().offsets == {0: 4}


def test_an_outcome_that_cannot_be_read_back_is_unknown(lake, memory, round_):
    read = memory.read

    def fail(key):
        if key.endswith("snapshot-2"):
            raise StorageError("no route")
        return read(key)

    def blind() -> None:
        memory.read = fail

    Puts(memory, before=blind, after=StorageError("500"))
    with pytest.raises(CommitStateUnknownError, match="run the same tiering again"):
        round_()
    memory.read = read
    assert _ids(lake) == [0, 1, 2, 3]


def test_a_number_that_was_expired_meanwhile_does_not_count(lake, memory, round_):
    """A writer that slept: others committed, and what they built on is gone, so that its number is free again."""

    def sleep_long() -> None:
        other = _lake(memory)
        for i in range(3):
            tier(other, _rows(2 + 2 * i))
        _expire_below(memory, 4)

    Puts(memory, before=sleep_long)
    with pytest.raises(CommitStateUnknownError, match="where older ones had been expired"):
        round_()
    assert lake.newest().offsets == {0: 8}
    assert _ids(lake) == list(range(8))


def test_an_expiry_right_behind_the_commit_is_no_doubt(lake, memory, round_):
    Puts(memory, before=lambda: _expire_below(memory, 2))
    assert round_().offsets == {0: 4}


# -- the newest snapshot ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hint", [None, b"", b"1", b"2", b"99", b"x", b"-3"], ids=str)
def test_the_newest_is_found_whatever_the_hint_says(lake, memory, hint):
    newest = [tier(lake, _rows(2 + 2 * i)) for i in range(3)][-1]
    memory.delete(f"{PLACE}/snapshot/LATEST")
    if hint is not None:
        memory.put(f"{PLACE}/snapshot/LATEST", hint)
    _expire_below(memory, 2)
    assert lake.newest() == newest


@pytest.mark.parametrize(("hint", "requests_max"), [(b"2000", 4), (None, 5), (b"1", 26)])
def test_two_thousand_snapshots_cost_few_requests(lake, memory, hint, requests_max):
    tier(lake, _rows(2))
    newest = json.loads(memory.read(f"{PLACE}/snapshot/snapshot-1"))
    for number in range(1, 2001):
        memory.put(f"{PLACE}/snapshot/snapshot-{number}", json.dumps({**newest, "id": number}).encode())
    memory.delete(f"{PLACE}/snapshot/LATEST")
    if hint is not None:
        memory.put(f"{PLACE}/snapshot/LATEST", hint)
    counting = FaultyStorage(memory)
    assert SnapshotFolder(counting, PLACE).newest().id == 2000
    assert len(counting.trace) <= requests_max


def test_a_listing_that_lags_hides_nothing(lake, memory, monkeypatch):
    newest = tier(lake, _rows(2))
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
    assert tier(lake, _rows(2)) == lake.newest()
    assert memory.read(f"{PLACE}/snapshot/LATEST") == b"1"


# -- offsets below other snapshots ------------------------------------------------------------------------------------


def test_offsets_are_found_below_foreign_snapshots(lake, memory):
    for _ in range(3):
        _foreign_commit(lake)
    newest = lake.newest()
    assert (newest.id, newest.offsets) == (4, {0: 2})
    assert tier(lake, _rows(2)).offsets == {0: 4}


def test_offsets_that_were_expired_stop_everything(lake, memory):
    for _ in range(3):
        _foreign_commit(lake)
    _expire_below(memory, 3)
    with pytest.raises(LakeRolledBackError, match="no snapshot from 3 to 4 says which log offsets it holds"):
        lake.newest()
    with pytest.raises(LakeRolledBackError):
        lake.commit([], expected={0: 2}, new={0: 2}, context=lake.write_context(), starts={0: 2})


def test_a_snapshot_that_only_a_tag_keeps(lake, memory):
    memory.put(f"{PLACE}/tag/tag-before", memory.read(f"{PLACE}/snapshot/snapshot-1"))
    for i in range(2):
        tier(lake, _rows(2 + 2 * i))
    _expire_below(memory, 3)
    tagged = lake.snapshot_by_name("before")
    assert lake_rows(lake, lake.plan_read(snapshot_id=tagged.id)).num_rows == 2
    with pytest.raises(SnapshotExpiredError, match="no snapshot 2"):
        lake.plan_read(snapshot_id=2)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("not json", CorruptDataError),
        ("{}", CorruptDataError),
        ('{"version":2,"table_uuid":"x","offsets":{}}', FormatVersionError),
        ('{"version":1,"table_uuid":"x","offsets":{"0":1}}', LakeMismatchError),
    ],
)
def test_offsets_that_cannot_be_used(lake, text, error):
    _foreign_commit(lake, {OFFSETS_PROPERTY: text})
    with pytest.raises(error):
        lake.newest()


# -- metadata ---------------------------------------------------------------------------------------------------------


def test_manifests_are_merged_whatever_their_order(lake, memory, monkeypatch):
    monkeypatch.setattr(paimon_commit, "MANIFESTS_MIN_TO_MERGE", 3)
    for i in range(1, 12):
        tier(lake, _rows(2 * i))
    assert lake.metadata_table("manifests").num_rows <= 4
    emptied = lake.commit([], expected={0: 24}, new={0: 24}, context=lake.write_context(), starts={0: 24})
    assert (emptied.offsets, _ids(lake)) == ({0: 24}, [])
    monkeypatch.setattr(paimon_commit, "MANIFEST_BYTES_TARGET", 0)  # all are large: removed files stay apart
    _foreign_commit(lake)
    assert _ids(lake) == []
    for number in range(1, 13):
        plan = lake.plan_read(snapshot_id=number)
        assert sorted(lake_rows(lake, plan)["id"].to_pylist()) == list(range(2 * number))


@pytest.mark.parametrize("is_overtaken", [True, False])
def test_metadata_that_vanishes_while_a_snapshot_is_built(lake, memory, round_, is_overtaken):
    """Gone because others committed and expired: try again on top of theirs. Gone for no reason: damage."""
    snapshot = lake.place.snapshots.newest()
    read, left = memory.read, [1]

    def vanished(key):
        if left and key.endswith(snapshot.base_manifest_list):
            left.pop()
            if is_overtaken:
                _foreign_commit(_lake(memory))
            memory.delete(key)
        return read(key)

    memory.read = vanished
    if is_overtaken:
        assert round_().offsets == {0: 4}
        assert _ids(lake) == [0, 1, 2, 3]
    else:
        with pytest.raises(CorruptDataError, match="metadata of its newest snapshot"):
            round_()


@pytest.mark.parametrize("kind", ["/snapshot/snapshot-", "/manifest/manifest-list-", "/manifest/manifest-", "/schema/"])
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_damaged_files_are_errors(tmp_path, kind, damage):
    store = LocalStorage(str(tmp_path), fsync=False)
    lake = _lake(store)
    tier(lake, _rows(0, 200))
    keys = [i.key for i in store.list("lake/") if kind in i.key and ("-list-" in i.key) == ("-list-" in kind)]
    for key in keys:
        whole = store.read(key)
        for at in range(3, len(whole) - 4, max(1, len(whole) // 25)):
            flipped = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
            store.put(key, whole[:at] if damage == "cut" else flipped)
            try:
                plan = lake.plan_read(snapshot_id=1)
                assert sum(b.num_rows for s in plan.splits for b in lake.read_split(s, plan.projection)) == 200
            except (CorruptDataError, SnapshotExpiredError, LakeMismatchError):
                continue
            assert damage == "flipped", (key, at)
        store.put(key, whole)
    assert len(_ids(lake)) == 200


def test_a_snapshot_with_what_is_not_read_here_is_refused(lake, memory):
    snapshot = lake.place.snapshots.newest()
    snapshot.id, snapshot.index_manifest = 2, "index-manifest-0"
    memory.put_if_absent(f"{PLACE}/snapshot/snapshot-2", JSON.to_json(snapshot).encode())
    with pytest.raises(LakeMismatchError, match="deleted rows"):
        lake.plan_read()
    tier(lake, _rows(2))
    assert lake.place.snapshots.newest().index_manifest == "index-manifest-0", "a commit does not undo the deletes"
    with pytest.raises(LakeMismatchError, match="deleted rows"):
        lake.commit([], expected={0: 4}, new={0: 4}, context=lake.write_context(), starts={0: 4})


def test_a_number_that_was_given_again_is_not_taken_for_the_recorded_snapshot(wh):
    """Another engine rolled the lake back and committed: its snapshot has the number of one that the log recorded."""
    table = wh.create_table("sales.orders", PLAIN.arrow, properties={"table.datalake.format": "paimon"})
    for first in (0, 2):
        table.append(_rows(first))
        TieringJob(table.log, table.open_lake(), world=table.world).run(
            run_tasks_locally(table.storage, table.settings, table.world)
        )
    lake = table.open_lake()
    table.storage.delete(f"{table.state.lake_location}/snapshot/snapshot-2")
    _foreign_commit(lake)
    assert (lake.newest().id, lake.newest().offsets) == (2, {0: 2})
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1, 2, 3]
    for use in (
        lambda: TieringJob(table.log, lake, world=table.world).run(lambda tasks: []),
        table.maintain,
    ):
        with pytest.raises(LakeRolledBackError):
            use()
