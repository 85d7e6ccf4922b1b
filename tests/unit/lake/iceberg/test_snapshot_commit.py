"""Lake commits are validated on every attempt, the first included, and an outcome nobody told is looked up."""

from __future__ import annotations

import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.types import LongType

from interop.lake_cases import lake_of, tier, write_round
from streamhouse_spark import (
    CommitConflictError,
    CommitStateUnknownError,
    LakeMismatchError,
    LakeRolledBackError,
    OffsetRange,
    OffsetsTrimmedError,
)
from streamhouse_spark.lake.iceberg.snapshot_commit import MANIFESTS_MIN_TO_MERGE
from streamhouse_spark.lake.types import COMMIT_USER
from unit.lake.foreign_commits import IcebergCommits, RacingCatalog, rows_from
from unit.lake.test_snapshot_commit import commit_round, ids_of, lake

__all__ = ["commit_round", "lake"]

ENGINE = IcebergCommits()


@pytest.fixture
def engine():
    return ENGINE


# -- the fence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["schema", "spec"])
def test_a_changed_shape_is_a_conflict(lake, commit_round, change):
    if change == "schema":
        with lake.binding.load().update_schema() as update:
            update.add_column("more", LongType())
    else:
        with lake.binding.load().update_spec() as update:
            update.add_identity("name")
    with pytest.raises(CommitConflictError, match="retry the round"):
        commit_round()
    with pytest.raises(LakeMismatchError):
        lake.create_or_evolve()


def test_a_commit_that_was_validated_before_a_cleaning_is_validated_again(lake, memory, world, commit_round, clock):
    clock.advance(25 * 60 * 60 * 1000)
    catalog = lake.binding.catalog
    commit_table, calls = catalog.commit_table, []

    def commit_late(table, requirements, updates):
        if not calls:
            calls.append(table)
            assert lake_of(memory, world=world).remove_orphans()
        return commit_table(table, requirements, updates)

    catalog.commit_table = commit_late
    with pytest.raises(CommitConflictError, match="this round was planned at"):
        commit_round()
    assert ids_of(lake) == [0, 1]


# -- outcomes that nobody told ----------------------------------------------------------------------------------------


def test_a_lost_acknowledgement_is_found_below_what_came_after(lake, memory, commit_round):
    catalog = RacingCatalog(lake)

    def commit_table(table, requirements, updates):
        catalog._catalog.commit_table(table, requirements, updates)
        ENGINE.commit(lake_of(memory))
        raise CommitFailedException("409")

    catalog.commit_table = commit_table
    snapshot = commit_round()
    assert ids_of(lake) == [0, 1, 2, 3, 100, 101]
    assert lake.newest().id != snapshot.id
    assert lake.newest().offsets == {0: 4}


@pytest.mark.parametrize("error", [CommitStateUnknownException("500"), ConnectionError("reset")], ids=repr)
def test_an_outcome_that_cannot_be_seen_is_unknown(lake, memory, commit_round, error):
    def fail() -> None:
        raise error

    before = {info.key for info in memory.list("lake/")}
    RacingCatalog(lake, before=fail)
    with pytest.raises(CommitStateUnknownError, match="retry the round"):
        commit_round()
    assert before <= {info.key for info in memory.list("lake/")}
    lake.binding._catalog_opened = None
    assert commit_round().offsets == {0: 4}


def test_a_catalog_that_is_gone_leaves_the_outcome_unknown(lake, commit_round):
    catalog = RacingCatalog(lake, after=ConnectionError("reset"))
    load, loads = catalog._catalog.load_table, []

    def load_once(identifier):
        loads.append(identifier)
        if len(loads) > 1:
            raise ConnectionError("refused")
        return load(identifier)

    catalog.load_table = load_once
    with pytest.raises(CommitStateUnknownError, match="is unknown"):
        commit_round()


# -- offsets in the chain ---------------------------------------------------------------------------------------------


def test_the_tag_counts_where_an_expiry_cut_the_chain(lake):
    tagged = lake.newest()
    for _ in range(3):
        ENGINE.commit(lake)
    table = lake.binding.load()
    kept = {table.metadata.current_snapshot_id, tagged.id}
    table.maintenance.expire_snapshots().by_ids(
        [s.snapshot_id for s in table.snapshots() if s.snapshot_id not in kept]
    ).commit()
    assert lake.newest().offsets == {0: 2}
    tier(lake, rows_from(2))
    assert lake.newest().offsets == {0: 4}


def test_a_rollback_is_noticed(lake):
    first = lake.newest()
    tier(lake, rows_from(2))
    context = lake.write_context()
    files, new = write_round(lake, {0: rows_from(4)}, {0: 4})
    lake.binding.load().manage_snapshots().rollback_to_snapshot(first.id).commit()
    with pytest.raises(LakeRolledBackError, match="was rolled back"):
        lake.newest()
    with pytest.raises(LakeRolledBackError):
        lake.commit(files, expected={0: 4}, new=new, context=context)
    with lake.binding.load().manage_snapshots() as snapshots:
        snapshots.remove_tag(COMMIT_USER)
    with pytest.raises(LakeRolledBackError, match="the lake was rolled back"):
        lake.commit(files, expected={0: 4}, new=new, context=context)


def test_a_foreign_overwrite_keeps_the_offsets(lake):
    table = lake.binding.load()
    table.overwrite(rows_from(50).cast(table.schema().as_arrow()))
    assert lake.newest().offsets == {0: 2}
    with pytest.raises(OffsetsTrimmedError, match=r"no longer have exactly the offsets .* from 0"):
        list(lake.read_offsets(0, OffsetRange(0, 2)))


# -- shape of the metadata --------------------------------------------------------------------------------------------


def test_manifests_and_versions_stay_few(lake):
    for i in range(1, 45):
        tier(lake, rows_from(2 * i))
    metadata = lake.binding.load().metadata
    manifests = metadata.current_snapshot().manifests(lake.binding.load().io)
    assert len(manifests) < 2 * MANIFESTS_MIN_TO_MERGE
    assert len(metadata.metadata_log) == 20
    assert ids_of(lake) == list(range(90))
    summary = metadata.current_snapshot().summary
    assert (summary["total-records"], summary["total-data-files"]) == ("90", "45")
    entries = [e for m in manifests for e in m.fetch_manifest_entry(lake.binding.load().io)]
    assert sorted(e.sequence_number for e in entries) == list(range(1, 46))
