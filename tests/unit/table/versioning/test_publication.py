"""Publication of branches: one record makes all changes the table's, after those of other writers or not at all."""

from __future__ import annotations

from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from interop.foreign_engines import ENGINES
from interop.foreign_iceberg import NAME, row
from kit.change_replay import changes, replayed, version
from kit.row_replacement import replace_rows
from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import CommitConflictError, InvalidOptionError, TableNotFoundError, Transaction
from streamhouse_spark.lake.tiering.record_snapshot import record_latest_snapshot
from streamhouse_spark.log.actions import Drop
from streamhouse_spark.log.catalog.branches import publication_id
from streamhouse_spark.table.versioning import publication
from streamhouse_spark.write.auto_compaction import compact_inline_rows, compact_small_segments
from unit.table.versioning.branched import DAY_MS, add, begun, delete, found, new_table, rows

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)
KINDS = pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
LAKES = pytest.mark.parametrize("lake", [None, "iceberg", pytest.param("paimon", marks=pytest.mark.long)])


# -- reading and writing ----------------------------------------------------------------------------------------------


@KINDS
@LAKES
def test_nobody_else_sees_a_branch_before_one_record_publishes_it(wh, other_process, keyed, lake):
    table, branch = begun(wh, keyed=keyed, lake=lake)
    assert ids(branch) == list(range(6))
    add(branch, 6, 7)
    if keyed or lake != "paimon":
        delete(branch, 1, 4, 6)
    expected = [0, 2, 3, 5, 7] if keyed or lake != "paimon" else list(range(8))
    assert ids(branch) == expected
    assert ids(other_process().table("d.t$branch_audit")) == expected
    assert ids(other_process().table("d.t")) == list(range(6))
    version = table.refresh().version
    done = table.fast_forward("audit")
    assert (done.table, done.branch, done.version) == ("d.t", "audit", version + 1)
    assert table.refresh().version == version + 1
    assert ids(other_process().table("d.t")) == expected
    if lake:
        tier(table)
        assert ids(table.lake) == ids(table) == expected
    assert table.branches() == []


@KINDS
def test_what_a_publication_tells(wh, keyed):
    table, branch = begun(wh, keyed=keyed, lake=None)
    add(branch, 6, 7, 8)
    delete(branch, 0, 8)
    done = table.fast_forward("audit")
    assert (done.rows_written, done.rows_deleted) == ((2, 2) if keyed else (2, 1))
    again = table.fast_forward("audit")
    assert (again.version, again.rows_written, again.rows_deleted) == (done.version, None, None)
    last = table.inspect.history().to_pylist()[-1]
    assert (last["version"], last["operation"]) == (done.version, "publish")
    if not keyed:
        assert (last["rows_added"], last["rows_deleted"]) == (2, 1)


def test_rows_keep_their_buckets_and_their_order(wh):
    table = new_table(wh, lake=None, **{"bucket.key": "id"})
    add(table, *range(4))
    table.create_branch("b")
    branch = table.branch("b")
    for number in range(4, 40):
        add(branch, number)
    delete(branch, 11, 30)
    table.fast_forward("b")
    of_buckets = {}
    for batch in table.tail("earliest", include_metadata=True, until_ms=0):
        for stored in batch.to_pylist():
            of_buckets.setdefault(stored["_bucket"], []).append(stored["id"])
    assert sorted(chain(*of_buckets.values())) == [n for n in range(40) if n not in (11, 30)]
    assert all(numbers == sorted(numbers) for numbers in of_buckets.values())


def test_many_rows_travel_as_segments(wh, monkeypatch):
    monkeypatch.setattr(publication, "SEGMENT_BYTES", 1 << 20)
    table = new_table(wh, lake=None)
    add(table, 0)
    table.create_branch("b")
    for start in range(1, 4):
        frame = pa.table(
            {"id": pa.array(range(start, 600_000, 3), pa.int64()), "n": pa.nulls(200_000 - (start == 3), pa.int32())}
        )
        table.branch("b").append(frame)
    table.branch("b").delete(where=pc.field("id") > 599_990)
    table.fast_forward("b")
    assert ids(table) == list(range(599_991))
    assert len([s for s in table.state.live_segments() if s.uuid]) > 3


@KINDS
def test_an_emptied_branch_empties_the_table(wh, keyed):
    table, branch = begun(wh, keyed=keyed, lake="iceberg")
    branch.overwrite(rows(3, 9, n=1))
    add(branch, 10)
    assert ids(table) == list(range(6))
    table.fast_forward("audit")
    assert found(table) == [(3, 1), (9, 1), (10, 0)]
    tier(table)
    assert ids(table.lake) == [3, 9, 10]


@KINDS
def test_a_truncated_branch_truncates_the_table(wh, keyed):
    table, branch = begun(wh, keyed=keyed, lake=None)
    branch.truncate()
    table.fast_forward("audit")
    assert ids(table) == []


def test_nobody_else_can_say_that_a_branch_was_published(wh):
    table, branch = begun(wh, keyed=False, lake=None)
    add(branch, 6)
    with pytest.raises(InvalidOptionError, match="record publications of branches"):
        table.append(rows(9), transaction=Transaction(publication_id("audit", branch.uuid), 1))
    table.fast_forward("audit")
    assert ids(table) == list(range(7))


@KINDS
def test_a_branch_without_changes_is_published(wh, keyed):
    table, _ = begun(wh, keyed=keyed, lake=None)
    before = table.state.ends
    assert table.fast_forward("audit").rows_written == 0
    assert table.state.ends == before
    assert table.branches() == []


def test_updates_of_a_branch_are_updates_of_the_table(wh):
    table, branch = begun(wh, keyed=True, lake="iceberg")
    add(branch, 1, 4, n=5)
    add(branch, 1, n=6)
    table.fast_forward("audit")
    assert found(table) == [(0, 0), (1, 6), (2, 0), (3, 0), (4, 5), (5, 0)]
    changes = wh.view("d.t$changelog").to_arrow()["_change_type"].to_pylist()
    assert [changes.count(kind) for kind in ("update_before", "update_after")] == [2, 2]
    assert table.lookup([1])["n"].to_pylist() == [6]


def test_the_hot_log_of_a_branch_is_merged_as_that_of_a_table(wh):
    table, branch = begun(wh, keyed=False, lake="iceberg")
    for number in range(10, 20):
        add(branch, number)
    delete(branch, 12)
    compact_inline_rows(branch)
    compact_small_segments(branch)
    add(branch, 20)
    table.fast_forward("audit")
    assert ids(table) == [*range(6), 10, 11, *range(13, 21)]


def test_a_branch_goes_back_in_its_own_history(wh):
    table, branch = begun(wh, keyed=False, lake=None)
    add(branch, 6)
    version = branch.state.version
    add(branch, 7)
    branch.rollback_to_version(version)
    table.fast_forward("audit")
    assert ids(table) == [*range(6), 6]


def test_writes_of_a_branch_are_transactions_of_its_own(wh):
    table, branch = begun(wh, keyed=False, lake=None)
    for _ in range(2):
        branch.append(rows(6), transaction=Transaction("app", 1))
    table.append(rows(7), transaction=Transaction("app", 1))
    assert (ids(branch), ids(table)) == ([*range(7)], [*range(6), 7])


# -- a table that others write meanwhile ------------------------------------------------------------------------------


def test_a_branch_that_only_added_rows_follows_those_of_others(wh):
    table, branch = begun(wh, keyed=False, lake="iceberg")
    add(branch, 10, 11)
    add(table, 6)
    delete(table, 0)
    tier(table)
    table.add_columns("more STRING")
    table.fast_forward("audit")
    assert ids(table) == [*range(1, 7), 10, 11]
    assert table.to_arrow()["more"].null_count == 8


def test_rows_added_to_a_branch_stay_behind_a_truncation(wh):
    table, branch = begun(wh, keyed=False, lake="iceberg")
    add(branch, 10)
    table.truncate()
    table.fast_forward("audit")
    assert ids(table) == [10]


@pytest.mark.parametrize("changing", ["append", "delete", "truncate", "rewrite"])
@pytest.mark.parametrize("emptied", [False, True])
def test_a_branch_that_removed_rows_is_not_published_behind_changes(wh, changing, emptied):
    table, branch = begun(wh, keyed=False, lake="iceberg")
    branch.overwrite(rows(9)) if emptied else delete(branch, 4)
    if changing == "append":
        add(table, 6)
    elif changing == "delete":
        delete(table, 5)
    elif changing == "truncate":
        table.truncate()
    else:
        table.overwrite(rows(5, n=1), where=[("id", "=", 5)])
    before = found(table)
    with pytest.raises(CommitConflictError, match="Drop the branch, create it again") as told:
        table.fast_forward("audit")
    assert "audit" in str(told.value)
    assert found(table) == before
    add(branch, 77)  # it was refused before it was sealed
    table.drop_branch("audit")
    table.create_branch("audit")
    assert found(table.branch("audit")) == before
    table.branch("audit").overwrite(rows(9))
    table.fast_forward("audit")
    assert ids(table) == [9]


@pytest.mark.parametrize("upkeep", ["tier", "merge", "maintain", "compact"])
def test_upkeep_of_the_table_is_no_change(wh, clock, upkeep):
    table, branch = begun(wh, keyed=False, lake="iceberg")
    delete(branch, 1, 4)
    add(branch, 8)
    for step in ("tier", "merge", "maintain", "compact"):
        if step == "tier":
            tier(table)
        elif step == "merge":
            compact_inline_rows(table)
        elif step == "maintain":
            clock.advance(9 * DAY_MS)
            table.maintain()
        else:
            table.lake.compact()
            table.lake.expire_snapshots(retain_last=1, older_than_ms=clock.now_ms())
            table.lake.remove_orphan_files()
        if step == upkeep:
            break
    assert ids(branch) == [0, 2, 3, 5, 8]
    table.fast_forward("audit")
    assert ids(table) == [0, 2, 3, 5, 8]
    tier(table)
    assert ids(table.lake) == [0, 2, 3, 5, 8]


@pytest.mark.parametrize("is_tiered", [False, True])
def test_other_keys_may_change_on_both_sides(wh, is_tiered):
    table, branch = begun(wh, keyed=True, lake="iceberg")
    add(branch, 1, 10, n=1)
    delete(branch, 2)
    add(table, 4, 11, n=2)
    delete(table, 5)
    if is_tiered:
        tier(table)
    table.fast_forward("audit")
    assert found(table) == [(0, 0), (1, 1), (3, 0), (4, 2), (10, 1), (11, 2)]


@pytest.mark.parametrize("on_branch", ["write", "delete"])
@pytest.mark.parametrize("on_table", ["write", "delete", "truncate", "columns"])
def test_a_key_that_changed_on_both_sides_is_a_conflict(wh, on_branch, on_table):
    table, branch = begun(wh, keyed=True, lake="iceberg")
    add(branch, 1, n=1) if on_branch == "write" else delete(branch, 1)
    if on_table == "truncate":
        table.truncate()
    elif on_table == "columns":
        table.add_columns("more STRING")
    else:
        add(table, 1, n=2) if on_table == "write" else delete(table, 1)
    before = ids(table)
    with pytest.raises(CommitConflictError, match="cannot be published"):
        table.fast_forward("audit")
    assert ids(table) == before
    assert len(table.branches()) == 1


def test_an_emptied_branch_of_keys_is_published_behind_nothing(wh):
    table, branch = begun(wh, keyed=True, lake=None)
    branch.overwrite(rows(9))
    add(table, 8)
    with pytest.raises(CommitConflictError, match="cannot be published"):
        table.fast_forward("audit")
    assert ids(table) == [*range(6), 8]


def test_a_change_between_the_look_and_the_record_is_found(wh, other_process, monkeypatch):
    table, branch = begun(wh, keyed=False, lake=None)
    delete(branch, 1)
    staged_rows = publication.stage_branch_rows

    def meanwhile(*given, **how):
        add(other_process().table("d.t"), 50)
        return staged_rows(*given, **how)

    with monkeypatch.context() as patch:
        patch.setattr(publication, "stage_branch_rows", meanwhile)
        with pytest.raises(CommitConflictError, match="were added or changed"):
            table.fast_forward("audit")
    assert ids(table) == [*range(6), 50]
    assert ids(branch) == [0, 2, 3, 4, 5]
    with pytest.raises(CommitConflictError, match="accepts no more rows"):
        add(branch, 60)  # it was sealed by then
    table.drop_branch("audit")
    table.create_branch("audit")
    add(table.branch("audit"), 60)
    table.fast_forward("audit")
    assert ids(table) == [*range(6), 50, 60]


# -- the end of a branch ----------------------------------------------------------------------------------------------


def test_publishing_again_is_one_publication(wh, other_process):
    table, branch = begun(wh, keyed=False, lake=None)
    add(branch, 6)
    first, second = other_process().table("d.t"), other_process().table("d.t")
    assert first.fast_forward("audit") == second.fast_forward("audit").__class__(
        "d.t", "audit", first.state.version, 1, 0
    )
    assert ids(table) == list(range(7))


@KINDS
def test_two_that_publish_at_once_publish_once(wh, other_process, keyed, monkeypatch):
    table, branch = begun(wh, keyed=keyed, lake=None)
    add(branch, 6, n=3)
    sealed, others = publication.seal_branch, []

    def meanwhile(changes, log):
        made = sealed(changes, log)
        if not others:
            others.append(None)
            others[0] = other_process().table("d.t").fast_forward("audit")
        return made

    monkeypatch.setattr("streamhouse_spark.table.versioning.publication.seal_branch", meanwhile)
    monkeypatch.setattr(publication, "seal_branch", meanwhile)
    done = table.fast_forward("audit")
    assert done.version == others[0].version
    assert (done.rows_written, others[0].rows_written) == (None, 1)
    assert ids(table) == list(range(7))


def test_a_writer_of_a_published_branch_is_told(wh, other_process):
    table, branch = begun(wh, keyed=False, lake=None)
    late = other_process().table("d.t$branch_audit")
    add(branch, 6)
    table.fast_forward("audit")
    for one in (branch, late):
        with pytest.raises(TableNotFoundError, match="was published or dropped"):
            add(one, 7)
    with pytest.raises(TableNotFoundError, match="was published by commit"):
        wh.table("d.t$branch_audit")
    table.create_branch("audit")
    add(table.branch("audit"), 8)
    table.fast_forward("audit")
    assert ids(table) == [*range(7), 8]
    table.create_branch("audit")
    table.drop_branch("audit")
    with pytest.raises(TableNotFoundError, match="its branches are: none"):
        table.fast_forward("audit")  # the branch before had the same name


def test_a_dropped_branch_is_gone(wh, other_process):
    table, branch = begun(wh, keyed=False, lake=None)
    add(branch, 6)
    table.drop_branch("audit")
    with pytest.raises(TableNotFoundError, match="was published or dropped"):
        add(branch, 7)
    for call in (table.branch, table.drop_branch, table.fast_forward):
        with pytest.raises(TableNotFoundError, match="has no branch 'audit'; its branches are: none"):
            call("audit")
    assert ids(other_process().table("d.t")) == list(range(6))
    table.create_branch("audit")
    assert ids(table.branch("audit")) == list(range(6))


def test_a_drop_that_was_cut_short_is_finished(wh, other_process):
    table, branch = begun(wh, keyed=False, lake=None)
    branch.log.commit(lambda _s, _t: (Drop(),))
    with pytest.raises(TableNotFoundError, match="run drop_branch again"):
        table.branch("audit")
    assert table.create_branch("audit").version == table.state.version - 2
    add(table.branch("audit"), 9)
    again = other_process().table("d.t")
    again.branch("audit").log.commit(lambda _s, _t: (Drop(),))
    again.drop_branch("audit")
    assert again.branches() == []


def test_a_publication_of_a_concurrently_dropped_branch_fails(wh, other_process, monkeypatch):
    table, branch = begun(wh, keyed=False, lake=None)
    add(branch, 6)
    staged_rows = publication.stage_branch_rows

    def meanwhile(*given, **how):
        other_process().table("d.t").drop_branch("audit")
        other_process().table("d.t").create_branch("audit")
        return staged_rows(*given, **how)

    monkeypatch.setattr(publication, "stage_branch_rows", meanwhile)
    with pytest.raises(TableNotFoundError, match="another branch has its name"):
        table.fast_forward("audit")
    assert ids(table) == list(range(6))


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


def test_a_branch_publishes_deletions_of_rows_without_offsets(table, branch, engine, other_process):
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
    assert record_latest_snapshot(table.log, table.open_lake().with_state(table.refresh()))
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


def test_a_branch_of_an_adopted_table_is_published(adopted, engine, other_process):
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


def test_a_branch_of_an_adopted_table_is_published_after_other_writes(adopted, engine):
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
