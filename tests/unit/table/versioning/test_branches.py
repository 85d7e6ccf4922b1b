"""Branches: their names, what they cannot do, and how long they live."""

from __future__ import annotations

import shutil

import pytest

from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import Warehouse, relocate
from streamhouse_spark.config.table_properties import BRANCH, VIEW, BranchMetadata, ViewDefinition
from streamhouse_spark.core.warehouse_layout import checkpoint_key
from streamhouse_spark.errors import (
    CommitConflictError,
    CorruptDataError,
    FormatVersionError,
    InvalidNameError,
    InvalidOptionError,
    SnapshotExpiredError,
    TableExistsError,
    TableNotFoundError,
)
from streamhouse_spark.expressions.filters import Projection
from streamhouse_spark.expressions.partition_filter import PartitionMatches
from streamhouse_spark.log.actions import Drop, Payload, SetProperties, TieredSnapshot, action_to_json
from streamhouse_spark.log.catalog.branches import require_branch
from streamhouse_spark.log.checkpoint import list_checkpoints
from streamhouse_spark.log.framing import decode_frame
from streamhouse_spark.read.scan_executor import read_tables
from streamhouse_spark.read.scan_planning import plan_lake
from streamhouse_spark.table.drop_partition import drop_partitions
from streamhouse_spark.table.versioning import branches, publication
from streamhouse_spark.warehouse.process_cache import Connection
from unit.table.versioning.branched import DAY_MS, add, begun, new_table, rows

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)


# -- names ------------------------------------------------------------------------------------------------------------


def test_branches_and_tags_share_names(wh):
    table, _ = begun(wh, keyed=False, lake=None)
    with pytest.raises(TableExistsError, match="publish or drop it first"):
        table.create_branch("AUDIT")
    with pytest.raises(InvalidOptionError, match="has a branch 'audit'"):
        table.create_tag("audit")
    table.create_tag("kept")
    with pytest.raises(InvalidOptionError, match="has a tag 'kept'"):
        table.create_branch("kept")
    assert [tag.name for tag in table.tags()] == ["kept"]
    assert [(one["name"], one["type"]) for one in table.inspect.refs().to_pylist()] == [
        ("main", "BRANCH"),
        ("audit", "BRANCH"),
        ("kept", "TAG"),
    ]
    for name in ("", "main", "a-b", "1", "a" * 129, "a:b", "a$b"):
        with pytest.raises(InvalidNameError):
            table.create_branch(name)


def test_a_branch_is_opened_by_its_name(wh):
    _, branch = begun(wh, keyed=False, lake="iceberg")
    add(branch, 6)
    opened = wh.table("d.t$Branch_Audit")
    assert (opened.name, ids(opened)) == ("d.t$branch_audit", list(range(7)))
    assert wh.view("d.t$branch_audit$changelog").to_arrow().num_rows == 7
    assert wh.view("d.t$branch_audit$history").to_arrow()["rows_added"].to_pylist()[-1] == 1
    with pytest.raises(InvalidOptionError, match="use its table"):
        wh.view("d.t$branch_audit$lake").to_arrow()
    for call in (wh.drop_table, wh.undrop_table, lambda name: wh.rename_table(name, "d.x")):
        with pytest.raises(InvalidNameError, match=r"use d\.t"):
            call("d.t$branch_audit")
    with pytest.raises(InvalidNameError, match=r"use d\.t"):
        wh.create_table("d.t$branch_other", "id INT")
    with pytest.raises(TableNotFoundError, match="has no branch 'other'"):
        wh.table("d.t$branch_other")
    with pytest.raises(TableNotFoundError, match=r"d\.tt does not exist"):
        wh.table("d.tt$branch_audit")
    assert wh.tables() == ["d.t"]
    assert not wh.exists("d.t$branch_audit")
    assert wh.dropped_tables() == []


def test_a_branch_follows_the_rename_of_its_table(wh, other_process):
    _, branch = begun(wh, keyed=False, lake=None)
    add(branch, 6)
    wh.rename_table("d.t", "d.new")
    opened = other_process().table("d.new$branch_audit")
    assert opened.refresh().ends == branch.state.ends
    assert opened.name == "d.new$branch_audit"
    add(opened, 7)
    other_process().table("d.new").fast_forward("audit")
    assert ids(wh.table("d.new")) == list(range(8))


def test_what_is_a_tables_alone(wh):
    table, branch = begun(wh, keyed=False, lake="iceberg")
    calls = [
        lambda: tier(branch),
        branch.maintain,
        branch.retier,
        lambda: branch.lake,
        lambda: branch.alter(add_columns="x INT"),
        lambda: branch.alter_properties({"comment": "x"}),
        lambda: branch.create_tag("x"),
        lambda: branch.create_branch("x"),
        lambda: drop_partitions(branch, PartitionMatches(())),
        lambda: wh.clone_table("d.t$branch_audit", "d.c"),
        lambda: branch.open_lake().create_or_evolve(),
        lambda: branch.open_lake().drop(purge=True),
        lambda: branch.log.commit(lambda s, _: (TieredSnapshot(1, s.ends, 0),)),
    ]
    version = branch.refresh().version
    for call in calls:
        with pytest.raises(InvalidOptionError, match="is a branch"):
            call()
    assert branch.refresh().version == version
    assert ids(table.lake) == [0, 1, 2]


def test_tables_that_cannot_have_branches(wh):
    made = new_table(wh, name="d.view", keyed=True, lake=None)
    view = ViewDefinition("SELECT 1", "full", 1000, ("id",), "natural", {})
    made.log.commit(lambda s, _: (SetProperties({VIEW: view.to_text()}),))
    engine = new_table(wh, name="d.engine", keyed=True, **{"table.merge-engine": "first_row"})
    for table, why in ((made, "is a materialized view"), (engine, "merge engine")):
        version = table.refresh().version
        with pytest.raises(InvalidOptionError, match=why):
            table.create_branch("b")
        assert table.refresh().version == version
    apart = new_table(wh, name="d.apart")
    add(apart, 1, 2)
    engine.upsert(apart.to_arrow())
    assert ids(engine) == [1, 2]
    with pytest.raises(InvalidOptionError, match="use create_branch"):
        new_table(wh, name="d.x", **{BRANCH: "{}"})
    with pytest.raises(InvalidOptionError):
        made.alter_properties({BRANCH: "{}"})
    with pytest.raises(InvalidOptionError, match="expected 'main'"):
        made.fast_forward("b", to="other")
    with pytest.raises(CorruptDataError, match="has the invalid property"):
        BranchMetadata.of_properties({BRANCH: "{}"})


# -- upkeep -----------------------------------------------------------------------------------------------------------


def upkeep(wh, clock, table):
    """Do everything that takes files away, with days between."""
    for _ in range(4):
        clock.advance(2 * DAY_MS)
        table.maintain()
        if table.has_lake and table.refresh().recorded_lake is not None:
            table.lake.compact()
            table.lake.expire_snapshots(retain_last=1, older_than_ms=clock.now_ms())
            table.lake.remove_orphan_files()
        wh.clean_dropped()


@pytest.mark.parametrize(
    ("keyed", "lake"),
    [
        (False, "iceberg"),
        (True, None),
        pytest.param(False, None, marks=pytest.mark.long),
        pytest.param(True, "iceberg", marks=pytest.mark.long),
    ],
)
def test_a_branch_lives_for_as_long_as_it_has_a_name(wh, clock, other_process, keyed, lake):
    table, branch = begun(wh, keyed=keyed, lake=lake)
    add(branch, 6)
    for number in range(10, 13):
        add(table, number)
        if lake:
            tier(table)
        upkeep(wh, clock, table)
    assert ids(other_process().table("d.t$branch_audit")) == list(range(7))
    other_process().table("d.t").fast_forward("audit")
    assert ids(table) == [*range(7), 10, 11, 12]
    upkeep(other_process(), clock, other_process().table("d.t"))
    assert ids(other_process().table("d.t")) == [*range(7), 10, 11, 12]
    left = {info.key for info in wh.storage.list(f"tables/{branch.uuid}/") if "/floors/" not in info.key}
    assert left == set()
    assert table.refresh().tags == {}


def test_a_branch_goes_with_its_table(wh, clock, other_process):
    begun(wh, keyed=False, lake="iceberg")
    wh.drop_table("d.t")
    wh.undrop_table("d.t")
    assert ids(other_process().table("d.t$branch_audit")) == list(range(6))
    wh.drop_table("d.t")
    for _ in range(6):
        clock.advance(2 * DAY_MS)
        other_process().clean_dropped()
    left = [i.key for prefix in ("tables/", "lake/") for i in wh.storage.list(prefix) if "/floors/" not in i.key]
    assert left == []


def test_a_name_without_a_log_is_forgotten(wh, clock, other_process):
    """Dropping was cut short, and cleaning came before it was run again."""
    table, branch = begun(wh, keyed=False, lake=None)
    branch.log.commit(lambda _s, _t: (Drop(),))
    upkeep(wh, clock, table)
    upkeep(wh, clock, table)
    assert table.refresh().tags == {}
    assert ids(other_process().table("d.t")) == list(range(6))


def test_a_creator_that_sleeps_for_days_is_told(wh, clock, other_process, monkeypatch):
    table = new_table(wh, lake=None)
    add(table, 1)
    begin_history = branches.begin_branch_history

    def slept(*given):
        log = begin_history(*given)
        for _ in range(3):
            clock.advance(2 * DAY_MS)
            other_process().clean_dropped()
            other_process().table("d.t").maintain()
        return log

    with monkeypatch.context() as patch:
        patch.setattr(branches, "begin_branch_history", slept)
        with pytest.raises(CommitConflictError, match="took longer than the grace"):
            table.create_branch("b")
    assert table.branches() == []
    table.create_branch("b")
    assert ids(table.branch("b")) == [1]


def test_a_lake_snapshot_that_another_engine_expired_has_no_stand_in(wh, clock):
    table, branch = begun(wh, keyed=False, lake="iceberg")
    add(branch, 6)
    tier(table)
    snapshot = branch.state.lake.snapshot_id
    lake = table.open_lake().binding.load()
    lake.maintenance.expire_snapshots().by_id(snapshot).commit()
    with pytest.raises(SnapshotExpiredError):
        branch.to_arrow()


def test_a_warehouse_with_branches_is_moved_and_not_copied(tmp_path, store):
    wh = Warehouse(str(tmp_path / "a"))
    _, branch = begun(wh, keyed=False, lake="iceberg")
    add(branch, 6)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with pytest.raises(InvalidOptionError, match="publish or drop the branches"):
        relocate(str(tmp_path / "b"), copy=True)
    shutil.rmtree(tmp_path / "b")
    shutil.move(tmp_path / "a", tmp_path / "b")
    relocate(str(tmp_path / "b"))
    moved = Warehouse(str(tmp_path / "b"))
    assert ids(moved.table("d.t$branch_audit")) == list(range(7))
    moved.table("d.t").fast_forward("audit")
    assert ids(moved.table("d.t")) == list(range(7))
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    relocate(str(tmp_path / "c"), copy=True)
    assert ids(Warehouse(str(tmp_path / "c")).table("d.t")) == list(range(7))


def test_older_versions_of_this_package_stop_at_a_branch(wh):
    """They would take its log for that of a table without a name, and delete it."""
    _, branch = begun(wh, keyed=False, lake=None)
    branch.log.checkpoint(branch.refresh())
    number = max(list_checkpoints(wh.storage, branch.uuid))
    data = wh.storage.read(checkpoint_key(branch.uuid, number))
    with pytest.raises(FormatVersionError):
        decode_frame("checkpoint", data, "a branch", newest=8)
    mark = BranchMetadata("a" * 32, "b", 1)
    assert action_to_json(SetProperties({BRANCH: mark.to_text()}), Payload())["type"] == "properties-branch"
    assert BranchMetadata.of_properties({BRANCH: mark.to_text()}) == mark


def test_a_sealed_branch_is_read_and_dropped(wh):
    table, branch = begun(wh, keyed=False, lake=None)
    add(branch, 6)
    changes = publication.BranchChanges(require_branch(table.refresh(), "audit"), table.state, branch.refresh())
    publication.seal_branch(changes, branch.log)
    assert ids(table.branch("audit")) == list(range(7))
    with pytest.raises(CommitConflictError, match="accepts no more rows"):
        branch.append(rows(8))
    with pytest.raises(CommitConflictError, match="accepts no more rows"):
        branch.truncate()
    table.fast_forward("audit")
    assert ids(table) == list(range(7))


def test_a_connection_finds_branches(tmp_path, store):
    wh = Warehouse(str(tmp_path / "w"))
    table, branch = begun(wh, keyed=False, lake=None)
    connection = Connection(wh.url)
    opened = connection.table("d.t$branch_audit")
    assert connection.table("d.t$branch_audit") is opened
    add(branch, 6)
    assert ids(connection.table("d.t$branch_audit")) == list(range(7))
    assert connection.table_by_uuid("d.t$branch_audit", branch.uuid).name == "d.t$branch_audit"
    assert connection.find_table("d.none$branch_audit") is None
    table.fast_forward("audit")
    with pytest.raises(TableNotFoundError, match="was published by commit"):
        connection.table("d.t$branch_audit")


# -- lake snapshots ---------------------------------------------------------------------------------------------------


def test_a_branch_sees_the_lake_snapshot_that_it_began_with_and_no_other(wh):
    table, branch = begun(wh, keyed=False, lake="iceberg")
    seen = branch.state.lake.snapshot_id
    tier(table)
    newer = table.refresh().lake.snapshot_id
    columns = Projection.of(branch.state.schema, None, None)

    def read(handle, snapshot):
        plan = plan_lake(handle, handle.refresh(), columns, as_of_snapshot=snapshot)
        return sorted(row["id"] for rows in read_tables(handle, plan) for row in rows.to_pylist())

    assert read(branch, seen) == read(table, seen) == [0, 1, 2]
    assert read(table, newer) == list(range(6))
    with pytest.raises(
        InvalidOptionError, match=rf"can read lake snapshot {seen}.*snapshot {newer} from the lake of its table"
    ):
        read(branch, newer)
    with pytest.raises(InvalidOptionError, match="is a branch, which supports only reads and writes of rows"):
        read(branch, None)
    with pytest.raises(InvalidOptionError, match="not reading the lake alone; use its table"):
        wh.view("d.t$branch_audit$lake").to_arrow()
    hot = new_table(wh, name="d.hot")
    add(hot, 1)
    hot.create_branch("audit")
    tier(hot)
    with pytest.raises(InvalidOptionError, match="can read no lake snapshot"):
        read(hot.branch("audit"), hot.refresh().lake.snapshot_id)
