"""The step of a view to newer versions of its sources, and the reason for which it is computed anew."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kit.tables import tier
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.log.transactions import Lineage, SourceVersion
from streamhouse_spark.table.refresh_commit import commit_step, compute_lag, make_next_step

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)


@pytest.fixture
def source(wh):
    table = wh.create_table("d.t", "id BIGINT, day INT", partition_by=["day"])
    table.append([{"id": number, "day": number % 3} for number in range(9)])
    return table


@pytest.fixture
def view(wh, own_cache):
    yield wh.create_table("d.v", "day INT, n BIGINT", primary_key=["day"])
    close_tablets()


def refreshed(view, source):
    step = make_next_step(view, {source.name: source})
    assert step is not None
    rows = source.to_arrow().group_by("day").aggregate([("id", "count")]).rename_columns(["day", "n"])
    assert commit_step(view, step, rows.cast(view.schema), pa.array([False] * rows.num_rows))
    return step.new.whole_because


def test_deleted_rows_that_are_tiered_later_are_no_partition_that_was_lost(view, source):
    tier(source)
    source.delete(where=[("id", "<", 2)])
    refreshed(view, source)
    tier(source)
    assert source.refresh().lake.dropped_rows == 2
    source.append([{"id": 20, "day": 0}])
    assert refreshed(view, source) is None
    source.drop_partition({"day": 1})
    assert "lost a partition" in refreshed(view, source)
    source.append([{"id": 21, "day": 0}])
    assert refreshed(view, source) is None


def test_a_partition_that_was_dropped_together_with_a_deletion(view, source):
    tier(source)
    source.delete(where=[("id", "<", 2)])
    refreshed(view, source)
    source.drop_partition({"day": 1})
    source.append([{"id": 20, "day": 0}])
    assert "lost a partition" in refreshed(view, source)


def test_how_far_a_view_is_behind(wh, source):
    source.append([{"id": 1, "day": 1}])
    then = source.refresh()
    lineage = Lineage((SourceVersion(source.name, then.table_uuid, then.version, then.attempt, then.ends),))
    behind = lambda: compute_lag(lineage, {source.name: source.refresh()})  # noqa: E731
    assert (behind().commits, behind().oldest_ms) == ({source.name: 0}, None)
    source.alter_properties({"table.log.ttl": "3d"})
    assert (behind().commits, behind().oldest_ms) == ({source.name: 1}, None), "a commit without rows"
    source.append([{"id": 2, "day": 1}])
    first_ms = behind().oldest_ms
    source.append([{"id": 3, "day": 1}])
    assert (behind().commits, behind().oldest_ms) == ({source.name: 3}, first_ms), "the oldest rows count"
    assert then.created_ms <= first_ms <= source.storage.now_ms()
    other = wh.create_table("db.other", "id BIGINT").refresh()
    lag = compute_lag(lineage, {source.name: other})
    assert (lag.commits, lag.oldest_ms) == ({source.name: other.version}, other.created_ms), "another table of the name"


def test_a_deletion_and_a_truncation_are_behind_too(wh):
    source = wh.create_table("db.rows", "id BIGINT")
    source.append([{"id": 1}, {"id": 2}])
    for change in (lambda: source.delete(where=[("id", "=", 1)]), source.truncate):
        then = source.refresh()
        lineage = Lineage((SourceVersion(source.name, then.table_uuid, then.version, then.attempt, then.ends),))
        assert compute_lag(lineage, {source.name: then}).oldest_ms is None
        change()
        assert compute_lag(lineage, {source.name: source.refresh()}).oldest_ms is not None
