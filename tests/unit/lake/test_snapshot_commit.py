"""Lake commits are validated on every attempt, and an unknown outcome is looked up, in both formats."""

from __future__ import annotations

import pytest

from interop.lake_cases import lake_of, tier, write_round
from kit.lake_rows import lake_rows
from streamhouse_spark import CommitConflictError, CorruptDataError, FormatVersionError, LakeMismatchError
from streamhouse_spark.lake.snapshot_properties import OFFSETS_PROPERTY
from unit.lake.foreign_commits import COMMITS, rows_from


@pytest.fixture(params=COMMITS)
def engine(request):
    return COMMITS[request.param]


@pytest.fixture
def other(engine, memory):
    """The lake as another process opens it."""
    return lake_of(memory, lake_format=engine.format)


@pytest.fixture
def lake(engine, memory, world):
    lake = lake_of(memory, world=world, lake_format=engine.format)
    tier(lake, rows_from(0))
    return lake


@pytest.fixture
def commit_round(lake):
    """Write the files of a round that begins at offset 2, and return the call that commits them."""
    context = lake.write_context()
    files, new = write_round(lake, {0: rows_from(2)}, {0: 2})
    return lambda: lake.commit(files, expected={0: 2}, new=new, context=context)


def ids_of(lake):
    return sorted(lake_rows(lake, lake.plan_read())["id"].to_pylist())


def test_a_round_overtaken_inside_its_commit_is_fenced(lake, engine, other, commit_round):
    engine.race(lake, before=lambda: tier(other, rows_from(2)))
    with pytest.raises(CommitConflictError, match="another tiering service committed concurrently"):
        commit_round()
    assert ids_of(other) == [0, 1, 2, 3]


def test_unrelated_commits_are_rebased_on(lake, engine, other, commit_round):
    def commit():
        engine.commit(other)
        if engine.format == "iceberg":
            with other.binding.load().transaction() as transaction:
                transaction.set_properties({"x": "1"})

    engine.race(lake, before=commit, times=3)
    assert commit_round().offsets == {0: 4}
    assert ids_of(lake) == [0, 1, 2, 3, *sorted([*engine.added_ids] * 3)]
    assert lake.newest().offsets == {0: 4}
    assert lake.metadata_table("snapshots").num_rows == 5


def test_a_commit_that_always_loses_ends_with_a_conflict(lake, engine, other, commit_round, monkeypatch):
    monkeypatch.setattr(engine.attempts_max, 6)
    engine.race(lake, before=lambda: engine.commit(other), times=10**6)
    with pytest.raises(CommitConflictError, match="6 attempts"):
        commit_round()


def test_a_replaced_lake_table_is_a_mismatch(memory, engine, world):
    lake = lake_of(memory, world=world, lake_format=engine.format)
    lake.create_or_evolve()
    context = lake.write_context()
    files, new = write_round(lake, {0: rows_from(0)}, {})
    engine.drop(lake, memory)
    lake_of(memory, table_uuid="f" * 32, lake_format=engine.format).create_or_evolve()
    with pytest.raises(LakeMismatchError, match="belongs to table ffff"):
        lake.commit(files, expected={}, new=new, context=context)


@pytest.mark.parametrize(
    ("engine", "answer"),
    [
        pytest.param(name, answer, id=f"{name} {answer!r}")
        for name, engine in COMMITS.items()
        for answer in engine.lost_answers
    ],
    indirect=["engine"],
)
def test_a_lost_acknowledgement_is_a_success_and_repeats_nothing(lake, engine, commit_round, answer):
    engine.race(lake, after=answer)
    snapshot = commit_round()
    assert ids_of(lake) == [0, 1, 2, 3]
    assert lake.newest() == snapshot
    with pytest.raises(CommitConflictError):
        commit_round()


def test_offsets_are_found_below_foreign_snapshots(lake, engine):
    for _ in range(3):
        engine.commit(lake)
    newest = lake.newest()
    assert (newest.id, newest.offsets) == (engine.latest_id(lake), {0: 2})
    assert tier(lake, rows_from(2)).offsets == {0: 4}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("not json", CorruptDataError),
        ("{}", CorruptDataError),
        ('{"version":2,"table_uuid":"x","offsets":{}}', FormatVersionError),
        ('{"version":1,"table_uuid":"x","offsets":{"0":1}}', LakeMismatchError),
    ],
)
def test_unusable_offsets_of_a_snapshot_are_an_error(lake, engine, text, error):
    engine.commit(lake, {OFFSETS_PROPERTY: text})
    with pytest.raises(error):
        lake.newest()


@pytest.mark.parametrize("is_overtaken", [True, False])
def test_metadata_that_vanishes_during_a_commit_is_damage_unless_overtaken(
    lake, engine, other, memory, commit_round, is_overtaken
):
    """Other commits may have expired the snapshot that ours builds on: then the commit is retried."""
    read, manifest_list, vanished = memory.read, engine.manifest_list(lake), []

    def read_vanished(key):
        if not vanished and manifest_list.endswith(key.rpartition("/")[2]):
            vanished.append(key)
            if is_overtaken:
                engine.commit(other)
            memory.delete(key)
        return read(key)

    memory.read = read_vanished
    if is_overtaken:
        assert commit_round().offsets == {0: 4}
        assert ids_of(lake) == [0, 1, 2, 3, *engine.added_ids]
    else:
        with pytest.raises(CorruptDataError, match=r"metadata of its (current|latest) snapshot"):
            commit_round()
    assert vanished
