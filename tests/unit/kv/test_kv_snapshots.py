"""Snapshots by key: when they are due, what they hold, and who wins where several are made."""

from __future__ import annotations

import pytest

from kit.tables import TableCase
from streamhouse_spark import CommitConflictError, CorruptDataError
from streamhouse_spark.kv import kv_snapshots
from streamhouse_spark.kv.kv_snapshots import find_buckets_due_for_snapshot, write_snapshots
from streamhouse_spark.kv.tablet import Tablet
from streamhouse_spark.log.actions import KvSnapshot
from streamhouse_spark.log.append_commit import STAGED_AGE_MS_MAX
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS
from streamhouse_spark.log.object_existence import list_referenced_keys
from streamhouse_spark.lookup.batch_lookup import FOUND

HOUR_MS = 3600 * 1000

pytestmark = pytest.mark.usefixtures("own_cache")
TABLE = TableCase(
    "t",
    "id INT, name STRING",
    primary_key=["id"],
    properties={"table.log.ttl": "1h", "table.datalake.enabled": "false"},
)


def publish(table, before=lambda: None):
    """Publish bucket 0; ``before`` is called when its rows are about to be read."""

    def tablet_of(bucket):
        before()
        return table.keyed.keyed_schema().tablet_of(bucket)

    return write_snapshots(table.log, table.storage, table.world, table.segment_options(), [0], tablet_of)


def due(table, lake_enabled=False):
    return find_buckets_due_for_snapshot(table.refresh(), table.storage.now_ms(), HOUR_MS, lake_enabled=lake_enabled)


def test_due_by_changes_or_by_age(table, clock, monkeypatch):
    table.upsert([{"id": i} for i in range(10)])
    assert due(table) == []
    clock.advance(2 * HOUR_MS)
    assert due(table) == [0]  # the log could be trimmed
    assert due(table, lake_enabled=True) == []  # not before the lake has the rows
    assert publish(table) == 1
    assert due(table) == []
    monkeypatch.setattr(kv_snapshots, "CHANGES_MIN", 3)
    table.upsert([{"id": i, "name": "x"} for i in range(4)])
    assert table.state.buckets[0].end - table.state.snapshots[0].offset == 8  # of ten rows
    assert due(table) == []
    table.upsert([{"id": i, "name": "y"} for i in range(4)])
    assert due(table) == [0]


def test_segments_are_cut_and_kept(table, monkeypatch, clock):
    monkeypatch.setattr(kv_snapshots, "SEGMENT_BYTES", 1)
    table.upsert([{"id": i, "name": f"n{i}"} for i in range(100)])
    publish(table)
    (snapshot,) = table.state.snapshots.values()
    assert (snapshot.begins, snapshot.offset, snapshot.num_rows) == (0, 100, 100)
    clock.advance(HOUR_MS + 1)
    table.maintain()
    clock.advance(GRACE_MS + 1)
    table.maintain()
    assert table.state.buckets[0].start == 100
    assert {f"tables/{table.uuid}/segments/{s.uuid}.arrow" for s in snapshot.segments} <= list_referenced_keys(
        table.state
    )
    assert table.to_arrow().num_rows == 100


def test_an_older_snapshot_does_not_take_the_place_of_a_newer(table, other_process):
    other = other_process().table("t")
    table.upsert([{"id": 1}])
    table.refresh()
    news = [True]

    def meanwhile():
        if news.pop() if news else False:
            other.upsert([{"id": 2}])

    def committed_first(log=table.log, commit=table.log.commit):
        def later(plan, **options):
            log.commit = commit
            other.upsert([{"id": 3}])
            assert publish(other) == 1
            return commit(plan, **options)

        return later

    table.log.commit = committed_first()
    assert publish(table, meanwhile) == 0
    assert table.refresh().snapshots[0].offset == 3
    assert table.state.snapshots[0].num_rows == 3


def test_a_truncation_meanwhile_makes_it_worthless(table, other_process):
    other = other_process().table("t")
    table.upsert([{"id": 1}])
    commit = table.log.commit

    def later(plan, **options):
        table.log.commit = commit
        other.truncate()
        return commit(plan, **options)

    table.log.commit = later
    assert publish(table) == 0
    assert table.refresh().snapshots == {}
    assert table.to_arrow().num_rows == 0


def added_meanwhile(monkeypatch, other, times):
    """``other`` adds a column and writes with it, so many times, each when rows are about to be scanned.

    It has the same cache, so it applies its row to the tablet that is scanned.
    """
    scan, left = Tablet.scan, list(range(times))

    def later(self, take, *args):
        if left:
            name = f"more{left.pop()}"
            other.add_columns(f"{name} BIGINT")
            other.upsert([{"id": 1, "name": "later", name: 7}])
        return scan(self, take, *args)

    monkeypatch.setattr(Tablet, "scan", later)


def test_columns_that_another_process_added_meanwhile_are_known_at_the_second_try(table, other_process, monkeypatch):
    table.upsert([{"id": i, "name": "x"} for i in range(10)])
    table.refresh()
    added_meanwhile(monkeypatch, other_process().table("t"), 1)
    monkeypatch.setattr(kv_snapshots, "CHANGES_MIN", 3)
    assert table.maintain().snapshots == 1
    assert table.state.snapshots[0].num_rows == 10
    assert table.lookup([{"id": 1}]).to_pylist() == [{"id": 1, "name": "later", "more0": 7, FOUND: True}]


def test_the_snapshot_has_the_columns_that_were_added_meanwhile(table, other_process, monkeypatch, own_cache):
    """A host without a tablet begins with it."""
    table.upsert([{"id": i, "name": "x"} for i in range(10)])
    added_meanwhile(monkeypatch, other_process().table("t"), 1)
    assert publish(table) == 1
    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(own_cache / "other"))
    fresh = other_process().table("t")
    assert fresh.state.snapshots[0].offset == fresh.state.buckets[0].end
    assert fresh.lookup([{"id": 1}])["more0"].to_pylist() == [7]


def test_columns_added_again_and_again_are_a_conflict(table, other_process, monkeypatch):
    table.upsert([{"id": 1}])
    added_meanwhile(monkeypatch, other_process().table("t"), 3)
    with pytest.raises(CommitConflictError, match="columns were altered in all 3 attempts"):
        publish(table)
    assert table.refresh().snapshots == {}
    assert publish(table) == 1


def test_one_that_took_too_long_is_not_named(table, clock):
    table.upsert([{"id": 1}])
    assert publish(table, lambda: clock.advance(STAGED_AGE_MS_MAX + 1)) == 0


def test_a_truncation_takes_snapshots_away(table):
    table.upsert([{"id": 1}])
    publish(table)
    keys = list_referenced_keys(table.state)
    table.truncate()
    assert table.state.snapshots == {}
    assert {key for key in keys if key.endswith(".arrow")} <= set(table.state.condemned)


@pytest.mark.parametrize("wrong", [KvSnapshot(0, 1, 1, ()), KvSnapshot(0, 0, 2, ())])
def test_a_record_that_cannot_be_is_damage(table, wrong):
    table.upsert([{"id": 1}])
    with pytest.raises(CorruptDataError, match=r"which has the changes \[0, 1\)"):
        table.log.commit(lambda _state, _ms: (wrong,))


def test_columns_that_changed_since_the_shape_was_taken(wh, other_process):
    properties = {"table.statistics.columns": "*", "table.datalake.enabled": "false"}
    table = wh.create_table("t", "id INT, name STRING, n INT", primary_key=["id"], properties=properties)
    table.upsert([{"id": i, "name": "x", "n": i} for i in range(3)])
    shape = table.segment_options()
    other = other_process().table("t")
    other.alter(rename_columns={"name": "title"}, drop_columns=["n"])
    write_snapshots(table.log, table.storage, table.world, shape, [0], table.keyed.keyed_schema().tablet_of)
    (segment,) = other.refresh().snapshots[0].segments
    assert (segment.schema_id, sorted(segment.stats)) == (2, ["id", "title"])
    assert other.to_arrow().to_pylist() == [{"id": i, "title": "x"} for i in range(3)]
