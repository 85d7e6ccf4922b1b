"""Lake commits are validated on every attempt, the first included, and an outcome nobody told is looked up."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.types import LongType

from interop.lake_cases import PLAIN, lake_of, tier, write_round
from kit.lake_rows import lake_rows
from streamhouse_spark.core.model import OffsetRange
from streamhouse_spark.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptDataError,
    FormatVersionError,
    LakeMismatchError,
    LakeRolledBackError,
    OffsetsTrimmedError,
)
from streamhouse_spark.lake.iceberg.commit import ATTEMPTS_MAX
from streamhouse_spark.lake.iceberg.snapshot_builder import MANIFESTS_MIN_TO_MERGE, SnapshotBuilder
from streamhouse_spark.lake.iceberg.table import IcebergLake
from streamhouse_spark.lake.model.values import COMMIT_USER


def _rows(first: int, num_rows: int = 2) -> pa.Table:
    ids = range(first, first + num_rows)
    return pa.table({"id": ids, "name": [f"n{i}" for i in ids]}, schema=PLAIN.arrow)


def _ids(lake: IcebergLake) -> list[int]:
    return sorted(lake_rows(lake, lake.plan_read())["id"].to_pylist())


@pytest.fixture
def lake(memory, world) -> IcebergLake:
    lake = lake_of(memory, world=world)
    tier(lake, _rows(0))
    return lake


@pytest.fixture
def round_(lake):
    """A round that begins at offset 2: its files, its offsets, and how to commit it."""
    context = lake.write_context()
    files, new = write_round(lake, {0: _rows(2)}, {0: 2})
    return lambda: lake.commit(files, expected={0: 2}, new=new, context=context)


def _foreign_append(lake: IcebergLake, first: int) -> None:
    table = lake.place.load()
    table.append(_rows(first).cast(table.schema().as_arrow()))


class RacingCatalog:
    """Runs something between the validation and the catalog's own commit, or loses what the catalog answers."""

    def __init__(self, lake, *, before=None, after=None, times=1):
        self._catalog = lake.place.catalog
        self._before, self._after, self._times = before, after, times
        lake.place._catalog_opened = self

    def __getattr__(self, name):
        return getattr(self._catalog, name)

    def commit_table(self, table, requirements, updates):
        self._times, active = self._times - 1, self._times > 0
        if active and self._before:
            self._before()
        response = self._catalog.commit_table(table, requirements, updates)
        if active and self._after:
            raise self._after
        return response


# -- the fence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handle", ["stale", "fresh"])
def test_of_two_rounds_over_the_same_offsets_one_wins(lake, memory, round_, handle):
    other = lake_of(memory)
    tier(other, _rows(2))
    if handle == "fresh":
        lake.newest()
    with pytest.raises(CommitConflictError, match="bucket 0 is at offset 4 in the lake, this round began at 2"):
        round_()
    assert _ids(lake) == [0, 1, 2, 3]


def test_a_round_that_is_overtaken_inside_its_commit_is_fenced(lake, memory, round_):
    other = lake_of(memory)
    RacingCatalog(lake, before=lambda: tier(other, _rows(2)))
    with pytest.raises(CommitConflictError, match="another tiering service was faster"):
        round_()
    assert _ids(other) == [0, 1, 2, 3]


def test_unrelated_commits_are_rebased_on(lake, memory, round_):
    other = lake_of(memory)

    def unrelated() -> None:
        _foreign_append(other, 100)
        with other.place.load().transaction() as transaction:
            transaction.set_properties({"x": "1"})

    RacingCatalog(lake, before=unrelated, times=3)
    snapshot = round_()
    assert snapshot.offsets == {0: 4}
    assert _ids(lake) == sorted([0, 1, 2, 3, *[100, 101] * 3])
    assert lake.newest().offsets == {0: 4}


def test_endless_losing_ends(lake, memory, round_):
    RacingCatalog(lake, before=lambda: _foreign_append(lake_of(memory), 100), times=10**6)
    with pytest.raises(CommitConflictError, match=f"won {ATTEMPTS_MAX} times"):
        round_()


@pytest.mark.parametrize("change", ["schema", "spec"])
def test_a_changed_shape_is_a_conflict(lake, round_, change):
    if change == "schema":
        with lake.place.load().update_schema() as update:
            update.add_column("more", LongType())
    else:
        with lake.place.load().update_spec() as update:
            update.add_identity("name")
    with pytest.raises(CommitConflictError, match="tier again"):
        round_()
    with pytest.raises(LakeMismatchError):
        lake.create_or_evolve()


def test_a_table_that_was_replaced_is_a_mismatch(memory, world):
    lake = lake_of(memory, world=world)
    lake.create_or_evolve()
    context = lake.write_context()
    files, new = write_round(lake, {0: _rows(0)}, {})
    for info in memory.list("lake/sales/orders/metadata"):
        memory.delete(info.key)
    lake_of(memory, table_uuid="f" * 32).create_or_evolve()
    with pytest.raises(LakeMismatchError, match="belongs to table ffff"):
        lake.commit(files, expected={}, new=new, context=context)


@pytest.mark.parametrize("damage", ["deleted", "cut"])
def test_files_must_be_there_when_they_are_committed(lake, memory, damage):
    context = lake.write_context()
    files, new = write_round(lake, {0: _rows(2)}, {0: 2})
    key = files[0].location.removeprefix(memory.url + "/")
    data = memory.read(key)
    memory.delete(key)
    if damage == "cut":
        memory.put(key, data[:-1])
    with pytest.raises(CommitConflictError, match="tier again"):
        lake.commit(files, expected={0: 2}, new=new, context=context)


def test_a_commit_that_was_validated_before_a_cleaning_is_validated_again(lake, memory, world, round_, clock):
    clock.advance(25 * 60 * 60 * 1000)
    catalog = lake.place.catalog
    commit_table, calls = catalog.commit_table, []

    def commit_late(table, requirements, updates):
        if not calls:
            calls.append(table)
            assert lake_of(memory, world=world).remove_orphans()
        return commit_table(table, requirements, updates)

    catalog.commit_table = commit_late
    with pytest.raises(CommitConflictError, match="this round was planned at"):
        round_()
    assert _ids(lake) == [0, 1]


# -- outcomes that nobody told ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer", [CommitFailedException("409"), CommitStateUnknownException("500"), ConnectionError("reset")], ids=repr
)
def test_a_lost_acknowledgement_is_a_success_and_repeats_nothing(lake, round_, answer):
    RacingCatalog(lake, after=answer)
    snapshot = round_()
    assert _ids(lake) == [0, 1, 2, 3]
    assert lake.newest() == snapshot
    with pytest.raises(CommitConflictError):
        round_()


def test_a_lost_acknowledgement_is_found_below_what_came_after(lake, memory, round_):
    catalog = RacingCatalog(lake)

    def commit_table(table, requirements, updates):
        catalog._catalog.commit_table(table, requirements, updates)
        _foreign_append(lake_of(memory), 100)
        raise CommitFailedException("409")

    catalog.commit_table = commit_table
    snapshot = round_()
    assert _ids(lake) == [0, 1, 2, 3, 100, 101]
    assert lake.newest().id != snapshot.id
    assert lake.newest().offsets == {0: 4}


@pytest.mark.parametrize("error", [CommitStateUnknownException("500"), ConnectionError("reset")], ids=repr)
def test_an_outcome_that_cannot_be_seen_is_unknown(lake, memory, round_, error):
    def fail() -> None:
        raise error

    before = {info.key for info in memory.list("lake/")}
    RacingCatalog(lake, before=fail)
    with pytest.raises(CommitStateUnknownError, match="run the same tiering again"):
        round_()
    assert before <= {info.key for info in memory.list("lake/")}
    lake.place._catalog_opened = None
    assert round_().offsets == {0: 4}


def test_a_catalog_that_is_gone_leaves_the_outcome_unknown(lake, round_):
    catalog = RacingCatalog(lake, after=ConnectionError("reset"))
    load, loads = catalog._catalog.load_table, []

    def load_once(identifier):
        loads.append(identifier)
        if len(loads) > 1:
            raise ConnectionError("refused")
        return load(identifier)

    catalog.load_table = load_once
    with pytest.raises(CommitStateUnknownError, match="may or may not have happened"):
        round_()


# -- offsets in the chain ---------------------------------------------------------------------------------------------


def test_offsets_are_found_below_foreign_snapshots(lake):
    _foreign_append(lake, 100)
    newest = lake.newest()
    assert newest.offsets == {0: 2}
    assert newest.id == lake.place.load().metadata.current_snapshot_id


def test_the_tag_counts_where_an_expiry_cut_the_chain(lake):
    tagged = lake.newest()
    for i in range(3):
        _foreign_append(lake, 100 * i)
    table = lake.place.load()
    kept = {table.metadata.current_snapshot_id, tagged.id}
    table.maintenance.expire_snapshots().by_ids(
        [s.snapshot_id for s in table.snapshots() if s.snapshot_id not in kept]
    ).commit()
    assert lake.newest().offsets == {0: 2}
    tier(lake, _rows(2))
    assert lake.newest().offsets == {0: 4}


def test_a_rollback_is_noticed(lake):
    first = lake.newest()
    tier(lake, _rows(2))
    context = lake.write_context()
    files, new = write_round(lake, {0: _rows(4)}, {0: 4})
    lake.place.load().manage_snapshots().rollback_to_snapshot(first.id).commit()
    with pytest.raises(LakeRolledBackError, match="was rolled back"):
        lake.newest()
    with pytest.raises(LakeRolledBackError):
        lake.commit(files, expected={0: 4}, new=new, context=context)
    with lake.place.load().manage_snapshots() as snapshots:
        snapshots.remove_tag(COMMIT_USER)
    with pytest.raises(LakeRolledBackError, match="the lake went back"):
        lake.commit(files, expected={0: 4}, new=new, context=context)


def test_a_foreign_overwrite_keeps_the_offsets(lake):
    table = lake.place.load()
    table.overwrite(_rows(50).cast(table.schema().as_arrow()))
    assert lake.newest().offsets == {0: 2}
    with pytest.raises(OffsetsTrimmedError, match="no longer exactly from 0 on"):
        list(lake.read_offsets(0, OffsetRange(0, 2)))


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
    table = lake.place.load()
    table.append(_rows(9).cast(table.schema().as_arrow()), snapshot_properties={"streamhouse-offsets": text})
    with pytest.raises(error):
        lake.newest()


# -- shape of the metadata --------------------------------------------------------------------------------------------


def test_manifests_and_versions_stay_few(lake):
    for i in range(1, 45):
        tier(lake, _rows(2 * i))
    metadata = lake.place.load().metadata
    manifests = metadata.current_snapshot().manifests(lake.place.load().io)
    assert len(manifests) < 2 * MANIFESTS_MIN_TO_MERGE
    assert len(metadata.metadata_log) == 20
    assert _ids(lake) == list(range(90))
    summary = metadata.current_snapshot().summary
    assert (summary["total-records"], summary["total-data-files"]) == ("90", "45")
    entries = [e for m in manifests for e in m.fetch_manifest_entry(lake.place.load().io)]
    assert sorted(e.sequence_number for e in entries) == list(range(1, 46))


@pytest.mark.parametrize("is_overtaken", [True, False])
def test_metadata_that_vanishes_while_a_snapshot_is_built(lake, memory, round_, monkeypatch, is_overtaken):
    """Gone because others committed and expired: try again on top of theirs. Gone for no reason: damage."""
    build, left = SnapshotBuilder.build, [1]

    def vanished(self):
        if left:
            left.pop()
            if is_overtaken:
                _foreign_append(lake_of(memory), 100)
            memory.delete(self._parent.manifest_list.removeprefix(memory.url + "/"))
        return build(self)

    monkeypatch.setattr(SnapshotBuilder, "build", vanished)
    if is_overtaken:
        assert round_().offsets == {0: 4}
        assert _ids(lake) == [0, 1, 2, 3, 100, 101]
    else:
        with pytest.raises(CorruptDataError, match="metadata of its current snapshot"):
            round_()
