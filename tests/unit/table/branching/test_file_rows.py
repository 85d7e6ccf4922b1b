"""Rows of lake files without offsets that a branch deletes and changes: published, they go from the table."""

from __future__ import annotations

import pytest

from interop.foreign_engines import ENGINES
from interop.foreign_iceberg import NAME, row
from kit.change_replay import changes, replayed, version
from kit.row_replacement import replace_rows
from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import CommitConflictError
from streamhouse_spark.lake.tiering.record_snapshot import record_newest

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)


@pytest.fixture(params=ENGINES)
def engine(request, store, world):
    return ENGINES[request.param](store, world)


@pytest.fixture
def table(wh, engine):
    """A table whose rows 0 to 5 lie in a file that another engine wrote, and row 9 has an offset."""
    wh.create_database("sales")
    made = wh.create_table(NAME, "id BIGINT, region STRING, n INT", properties={"table.datalake.format": engine.format})
    made.append([row(n) for n in range(6)])
    tier(made)
    engine.rewrite()
    made.append([row(9)])
    tier(made)
    return made


@pytest.fixture
def branch(table):
    assert table.delete(where=[("id", "in", [1])]) == 1
    table.create_branch("fix")
    return table.branch("fix")


def test_a_published_branch(table, branch, engine, other_process):
    assert ids(branch.to_arrow()) == [0, 2, 3, 4, 5, 9]
    assert branch.delete(where=[("id", "in", [2, 9])]) == 2
    replace_rows(branch, lambda one: one["id"] == 4, lambda one: {**one, "id": 40})
    branch.append([row(20)])
    left = [0, 3, 5, 20, 40]
    assert ids(branch.to_arrow()) == ids(other_process().table(NAME).branch("fix").to_arrow()) == left
    assert ids(table.to_arrow()) == [0, 2, 3, 4, 5, 9], "nobody else sees it"
    before = table.refresh().version
    done = table.fast_forward("fix")
    assert (done.rows_written, done.rows_deleted) == (2, 3)
    assert table.refresh().version == before + 1
    assert ids(other_process().table(NAME).to_arrow()) == left
    found = changes(table, before + 1, before + 1)
    assert replayed(version(table, before), found) == version(table, before + 1)
    tier(table)
    assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == engine.ids(table) == left


def test_a_round_in_between_is_none_of_its_business_where_files_stay(table, engine):
    table.append([row(10)])
    table.create_branch("fix")
    assert table.branch("fix").delete(where=[("id", "=", 2)]) == 1
    tier(table)
    table.fast_forward("fix")
    tier(table)
    assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == engine.ids(table) == [0, 1, 3, 4, 5, 9, 10]


def test_rows_with_offsets_that_another_engine_writes_again(table, engine):
    table.create_branch("fix")
    assert table.branch("fix").delete(where=[("id", "=", 9)]) == 1
    engine.rewrite()
    assert record_newest(table.log, table.open_lake().with_state(table.refresh()))
    with pytest.raises(CommitConflictError, match="another engine rewrote or dropped their files"):
        table.fast_forward("fix")
    assert ids(table.to_arrow()) == [0, 1, 2, 3, 4, 5, 9]


def test_a_round_that_deletes_other_rows_of_the_file(table, branch, engine):
    """In a Paimon lake it writes the file again."""
    assert branch.delete(where=[("id", "=", 2)]) == 1
    tier(table)
    if engine.format == "paimon":
        with pytest.raises(CommitConflictError, match="may have been rewritten since commit"):
            table.fast_forward("fix")
        return
    table.fast_forward("fix")
    assert ids(table.to_arrow()) == [0, 3, 4, 5, 9]


def test_files_that_another_engine_wrote_again_are_a_conflict(table, branch, engine):
    branch.delete(where=[("id", "=", 2)])
    engine.rewrite()
    tier(table)
    before = ids(table.to_arrow())
    with pytest.raises(CommitConflictError, match="may have been rewritten since commit"):
        table.fast_forward("fix")
    assert ids(table.to_arrow()) == before == [0, 2, 3, 4, 5, 9]


def test_a_deletion_of_others_is_a_conflict(table, branch):
    branch.delete(where=[("id", "=", 2)])
    table.delete(where=[("id", "=", 3)])
    with pytest.raises(CommitConflictError, match="rows of the table were deleted"):
        table.fast_forward("fix")


def test_rows_that_are_only_added_pass_a_rewrite(table, branch, engine):
    branch.append([row(20)])
    engine.rewrite()
    tier(table)
    table.fast_forward("fix")
    assert ids(table.to_arrow()) == [0, 2, 3, 4, 5, 9, 20]


@pytest.fixture
def adopted(engine):
    """A table of six rows that another engine wrote, and a branch of it."""
    made = engine.adopted()
    made.create_branch("fix")
    return made, made.branch("fix")


def test_a_branch_of_an_adopted_table(adopted, engine, other_process):
    table, branch = adopted
    assert ids(branch.to_arrow()) == list(range(6))
    assert branch.delete(where=[("id", "in", [2, 3])]) == 2
    replace_rows(branch, lambda one: one["id"] == 4, lambda one: {**one, "id": 40})
    branch.append([row(20)])
    left = [0, 1, 5, 20, 40]
    assert ids(other_process().table(NAME).branch("fix").to_arrow()) == left
    assert ids(table.to_arrow()) == list(range(6)) == engine.ids(table), "nobody else sees it"
    done = table.fast_forward("fix")
    assert (done.rows_written, done.rows_deleted) == (2, 3)
    tier(table)
    assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == engine.ids(table) == left


def test_an_adopted_table_that_a_branch_overwrites(adopted, engine):
    table, branch = adopted
    branch.overwrite([row(20), row(21)])
    assert ids(branch.to_arrow()) == [20, 21]
    done = table.fast_forward("fix")
    assert (done.rows_written, done.rows_deleted) == (2, None), "rows without offsets are not counted"
    tier(table)
    assert ids(table.to_arrow()) == engine.ids(table) == [20, 21]


def test_a_branch_of_an_adopted_table_beside_others(adopted, engine):
    """What it adds passes a rewrite and rows of others; what it deletes meets them."""
    table, branch = adopted
    branch.append([row(20)])
    engine.rewrite()
    table.append([row(10)])
    tier(table)
    assert ids(branch.to_arrow()) == [*range(6), 20]
    table.create_branch("other")
    assert table.branch("other").delete(where=[("id", "=", 1)]) == 1
    table.fast_forward("fix")
    assert ids(table.to_arrow()) == [*range(6), 10, 20]
    with pytest.raises(CommitConflictError, match="rows of the table were added or changed"):
        table.fast_forward("other")
    table.drop_branch("other")
    assert ids(table.to_arrow()) == [*range(6), 10, 20]
