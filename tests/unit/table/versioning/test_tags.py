"""Tags: what a name keeps is there, whatever is merged, trimmed, cleaned and expired, until it is dropped."""

from __future__ import annotations

import shutil

import pyarrow.compute as pc
import pytest

from kit.rows import ids
from kit.tables import add, new_table, tier, trim_tiered
from streamhouse_spark import CommitConflictError, InvalidOptionError, SnapshotExpiredError, Warehouse, relocate
from streamhouse_spark.log.checkpoint import write_checkpoint
from streamhouse_spark.table.maintenance import lake as lake_maintenance
from streamhouse_spark.table.maintenance.lake import make_expiry_claim
from streamhouse_spark.table.versioning import tags

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)
DAY_MS = 24 * 3600 * 1000


def upkeep(table, clock):
    """Do everything that takes files away, with days between."""
    if table.has_lake:
        tier(table)
        trim_tiered(table)
    for _ in range(3):
        clock.advance(2 * DAY_MS)
        table.maintain()
        if table.has_lake:
            table.lake.expire_snapshots(retain_last=1, older_than_ms=table.storage.now_ms())


@pytest.mark.parametrize("lake", [None, "iceberg", "paimon"])
@pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
def test_a_tagged_version_is_read_after_everything_else_went(wh, clock, other_process, keyed, lake):
    table = new_table(wh, keyed=keyed, lake=lake)
    add(table, *range(10))
    if lake:
        tier(table)
    add(table, *range(10, 14))
    made = table.create_tag("before")
    for step in range(60):
        add(table, 100 + step)
        if step % 20 == 0:
            upkeep(table, clock)
    upkeep(table, clock)
    for reader in (table, other_process().table("d.t")):
        assert reader.tags() == [made]
        assert ids(reader.read_version("before")) == list(range(14))
        assert lake is None or ids(reader.to_arrow()) == [*range(14), *range(100, 160)]
    table.drop_tag("before")
    with pytest.raises(InvalidOptionError, match="tags: none"):
        table.read_version("before")
    version = made.version
    upkeep(table, clock)
    with pytest.raises(SnapshotExpiredError):
        table.read_version(version)
    assert not list(table.storage.list(f"tables/{table.uuid}/tags/")), "a dropped tag leaves its object"


@pytest.mark.paimon
def test_a_paimon_lake_keeps_what_lies_behind_a_tagged_snapshot(wh, clock):
    table = new_table(wh, lake="paimon")
    add(table, 1)
    tier(table)
    first = table.create_tag("a").lake_snapshot
    for n in range(2, 6):
        add(table, n)
        tier(table)
    clock.advance(DAY_MS)
    assert not table.lake.expire_snapshots(retain_last=1, older_than_ms=table.storage.now_ms()).snapshots
    table.drop_tag("a")
    assert first in table.lake.expire_snapshots(retain_last=1, older_than_ms=table.storage.now_ms()).snapshots


def test_rows_deleted_since_are_there_as_of_the_tag_and_come_back_by_a_rollback(wh):
    table = new_table(wh)
    add(table, *range(6))
    table.create_tag("Audit-1")
    table.delete(where=pc.field("id") < 3)
    assert ids(table.read_version("audit-1", columns=["id"], filter=[("id", "<", 5)])) == [0, 1, 2, 3, 4]
    table.rollback_to_version("audit-1")
    assert ids(table.to_arrow()) == list(range(6))


def test_an_older_version_gets_a_tag_while_its_files_are_the_tables(wh):
    table = new_table(wh)
    add(table, 1, 2)
    version = table.refresh().version
    add(table, 3)
    assert table.create_tag("old", version).version == version
    assert table.create_tag("same", "old").version == version
    assert ids(table.read_version("same")) == [1, 2]
    assert wh.view("d.t$refs").to_arrow()["name"].to_pylist() == ["main", "old", "same"]


def test_a_version_of_which_files_were_marked_gets_none_and_a_later_one_does(wh):
    table = new_table(wh)
    add(table, 1, 2)
    version = table.refresh().version
    table.truncate()
    with pytest.raises(SnapshotExpiredError, match="tag versions while they are new"):
        table.create_tag("late", version)
    assert table.tags() == []
    add(table, 3)
    table.create_tag("late", table.refresh().version)
    assert ids(table.read_version("late")) == [3]


def test_a_newest_version_that_is_merged_meanwhile_is_named_as_it_is_then(wh, other_process, monkeypatch):
    table = new_table(wh)
    add(table, 1)
    really = tags.write_tagged

    def late(*given):
        monkeypatch.setattr(tags, "write_tagged", really)
        other_process().table("d.t").truncate()
        really(*given)

    monkeypatch.setattr(tags, "write_tagged", late)
    table.create_tag("a")
    assert ids(table.read_version("a")) == []


@pytest.mark.parametrize("lake", ["iceberg", "paimon"])
def test_a_tag_that_has_not_seen_an_expiry_is_refused(wh, clock, other_process, monkeypatch, lake):
    table = new_table(wh, lake=lake, keyed=True)
    add(table, 1)
    tier(table)
    really = tags.write_tagged
    at = table.refresh().version

    def late(*given):
        monkeypatch.undo()
        really(*given)
        rival = other_process().table("d.t")
        for number in (2, 3):
            add(rival, number)
            tier(rival)
        clock.advance(DAY_MS)
        assert expire(rival).snapshots

    monkeypatch.setattr(tags, "write_tagged", late)
    with pytest.raises(SnapshotExpiredError, match="expired concurrently; choose a later version"):
        table.create_tag("a", version=at)
    assert table.tags() == []
    table.create_tag("a")
    assert ids(table.read_version("a")) == [1, 2, 3]


@pytest.mark.parametrize("lake", ["iceberg", "paimon"])
def test_an_expiry_of_another_engine_knows_of_no_tag(wh, clock, other_process, monkeypatch, lake):
    table, rival = superseded(wh, clock, other_process, lake)
    at, really = table.state.version, tags.write_tagged

    def late(*given):
        really(*given)
        assert rival.open_lake().expire(keep_last=1, keep_ms=0).snapshots

    monkeypatch.setattr(tags, "write_tagged", late)
    with pytest.raises(SnapshotExpiredError, match="expired concurrently; choose a later version"):
        table.create_tag("a", version=at)
    assert table.tags() == []


@pytest.mark.parametrize("lake", ["iceberg", "paimon"])
def test_an_expiry_that_has_not_seen_the_tag_leaves_its_snapshot(wh, clock, other_process, monkeypatch, lake):
    table, rival = superseded(wh, clock, other_process, lake)
    at = table.state.version
    really = lake_maintenance.list_tagged_snapshots

    def late(one):
        found = really(one)
        table.create_tag("a", version=at)
        return found

    monkeypatch.setattr(lake_maintenance, "list_tagged_snapshots", late)
    with pytest.raises(CommitConflictError, match=r"a lake snapshot of d\.t cannot expire: tag 'a'"):
        expire(rival)
    monkeypatch.undo()
    assert ids(table.read_version("a")) == [1]
    expire(rival)
    assert ids(table.read_version("a")) == [1]


@pytest.mark.parametrize("lake", ["iceberg", "paimon"])
def test_what_an_expiry_that_died_was_about_to_take_gets_no_tag(wh, clock, other_process, monkeypatch, lake):
    table, rival = superseded(wh, clock, other_process, lake)
    at = table.state.version
    monkeypatch.setattr(lake_maintenance, "make_expiry_claim", lambda one: dying(make_expiry_claim(one)))
    with pytest.raises(KeyboardInterrupt):
        expire(rival)
    monkeypatch.undo()
    with pytest.raises(SnapshotExpiredError, match="expired concurrently; choose a later version"):
        table.create_tag("a", version=at)
    write_checkpoint(table.storage, table.state)
    marked = other_process().table("d.t").state.expiring
    assert marked == table.state.expiring != frozenset()
    gone = expire(rival).snapshots
    assert marked <= set(gone)
    add(table, 4)
    tier(table)
    clock.advance(DAY_MS)
    expire(table)
    assert not marked & table.refresh().expiring  # gone from the lake: nobody can be about to take them


def superseded(wh, clock, other_process, lake):
    """A table and the same in another process, which made its only lake snapshot an old one."""
    table = new_table(wh, lake=lake, keyed=True)
    add(table, 1)
    tier(table)
    table.refresh()
    rival = other_process().table("d.t")
    for number in (2, 3):
        add(rival, number)
        tier(rival)
    clock.advance(DAY_MS)
    return table, rival


def expire(table):
    return table.lake.expire_snapshots(retain_last=1, older_than_ms=table.storage.now_ms())


def dying(claim):
    def claim_and_die(*given):
        claim(*given)
        raise KeyboardInterrupt

    return claim_and_die


def test_a_name_that_is_taken_is_free_once_it_was_dropped(wh):
    table = new_table(wh)
    add(table, 1)
    table.create_tag("a")
    add(table, 2)
    with pytest.raises(InvalidOptionError, match="drop it first, or choose another name"):
        table.create_tag("a")
    table.create_tag("b")
    table.drop_tag("a")
    table.create_tag("a")
    assert ids(table.read_version("a")) == ids(table.read_version("b")) == [1, 2]


def test_cleaning_drops_a_tag_after_its_time(wh, clock):
    table = new_table(wh)
    add(table, 1)
    table.create_tag("short", retain_ms=DAY_MS)
    clock.advance(DAY_MS - 1000)
    table.maintain()
    assert [tag.name for tag in table.tags()] == ["short"]
    clock.advance(2000)
    table.maintain()
    assert table.tags() == []


def test_readers_of_a_dropped_tag_have_the_grace(wh, clock):
    """Files that were marked long ago stay for as long as others, counted from the end of the tag."""
    table = new_table(wh)
    add(table, 1, 2)
    table.create_tag("a")
    table.truncate()
    clock.advance(3 * DAY_MS)
    table.maintain()
    tagged = set(table.refresh().condemned)
    table.drop_tag("a")
    clock.advance(DAY_MS // 2)
    table.maintain()
    assert tagged <= set(table.refresh().condemned)
    clock.advance(DAY_MS)
    table.maintain()
    assert not tagged & set(table.refresh().condemned)


def test_wrong_names_and_versions_are_refused_before_anything_is_written(wh):
    table = new_table(wh)
    add(table, 1)
    table.create_tag("a")
    newest = table.refresh().version
    for name, version, text in [
        ("a", None, "already"),
        ("main", None, "choose such a name"),
        ("12", None, "choose such a name"),
        ("b", 99, "no commit 99"),
        ("b", "nothing", "tags: a"),
    ]:
        with pytest.raises(InvalidOptionError, match=text):
            table.create_tag(name, version)
    with pytest.raises(InvalidOptionError, match="no tag 'x'"):
        table.drop_tag("x")
    with pytest.raises(InvalidOptionError, match="at least 1 millisecond"):
        table.create_tag("b", retain_ms=0)
    assert table.refresh().version == newest


@pytest.mark.parametrize("copy", [False, True])
def test_a_warehouse_that_is_relocated_or_copied_has_its_tags(tmp_path, copy, store):
    table = new_table(Warehouse(tmp_path / "old"))
    add(table, 1)
    made = table.create_tag("a")
    table.truncate()
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    relocate(tmp_path / "new", copy=copy)
    there = Warehouse(tmp_path / "new").table("d.t")
    assert (there.uuid != table.uuid) == copy
    assert there.tags() == [made]
    assert ids(there.read_version("a")) == [1]
    assert ids(there.to_arrow()) == []
