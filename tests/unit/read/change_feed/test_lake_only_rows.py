"""Changes of rows that the log no longer has: of old rows that are deleted, and of old rows some of which are."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from kit.change_replay import changes, check_history, first_there
from kit.round_trips import RemoteStorage
from kit.tables import tier, trim_tiered
from streamhouse_spark import InvalidOptionError, OffsetsTrimmedError, Table, Warehouse
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.read.change_feed.planning import plan_changes
from streamhouse_spark.read.scan_planning import Pruning
from streamhouse_spark.read.scan_tasks import ChangesScanTask, OffsetsScanTask


@pytest.fixture(params=["iceberg", "paimon"])
def table(request, wh):
    """Ten rows in two files of the lake, none of them in the log."""
    properties = {"table.datalake.format": request.param}
    table = wh.create_table("t", "id BIGINT, day INT", buckets=1, partition_by=["day"], properties=properties)
    for first in (0, 5):
        table.append([{"id": number, "day": first // 5} for number in range(first, first + 5)])
        tier(table)
    trim_tiered(table)
    return table


def delete(table: Table, *ids: int) -> int:
    """Delete rows, and return the version."""
    table.delete(where=[("id", "in", list(ids))])
    return table.refresh().version


def told(table: Table, first: int, last: int) -> Counter[tuple[int, str]]:
    return Counter((change["id"], change["_change_type"]) for change in changes(table, first, last))


def test_old_rows_that_are_deleted(table):
    version = delete(table, 3, 7)
    deleted = Counter([(3, "delete"), (7, "delete")])
    assert told(table, version, version) == deleted
    tier(table)
    assert told(table, version, version) == deleted, "the lake lacks them now"
    trim_tiered(table)
    table.lake.compact(purge=True)
    assert told(table, version, version) == deleted, "no file of the newest snapshot has them"
    assert first_there(table) == 1
    check_history(table)


def test_old_rows_some_of_which_are_deleted_are_told_as_they_were(table):
    delete(table, 3)
    version = delete(table, *range(5, 10))  # a whole file
    tier(table)
    table.lake.compact(purge=True)
    inserts = Counter((number, "insert") for number in range(10))
    assert told(table, 1, version - 2) == inserts
    assert told(table, 1, version) == inserts + Counter((number, "delete") for number in (3, *range(5, 10)))


def test_deletions_between_rounds_are_found_in_the_snapshots_before_each(table):
    versions = {}
    for number in range(6):
        versions[number] = delete(table, number)
        if number % 2:
            tier(table)
            table.lake.compact(purge=True)
    for number, version in versions.items():
        assert told(table, version, version) == {(number, "delete"): 1}
    check_history(table)


def test_rows_of_expired_snapshots_are_gone(table):
    version = delete(table, 3)
    tier(table)
    table.lake.compact(purge=True)
    assert told(table, version, version) == {(3, "delete"): 1}
    table.append([{"id": 10, "day": 1}])
    table.open_lake().expire(keep_last=1, keep_ms=0)
    with pytest.raises(
        OffsetsTrimmedError,
        match=rf"of commit {version} were trimmed from the log; the first available version is {version + 1}$",
    ):
        changes(table, 1, table.refresh().version)
    assert first_there(table) == version + 1


def test_rows_that_were_deleted_before_they_were_tiered_are_gone_with_the_log(table):
    table.append([{"id": 10, "day": 0}, {"id": 11, "day": 0}])
    version = delete(table, 10)
    check_history(table)
    tier(table)
    assert first_there(table) == 1
    trim_tiered(table)
    assert first_there(table) == version + 1
    assert told(table, version + 1, table.refresh().version) == {}


def test_the_net_of_a_range_needs_no_row_that_came_and_went_in_it(table):
    before = table.refresh().version
    table.append([{"id": 10, "day": 0}, {"id": 11, "day": 0}])
    version = delete(table, 10)
    tier(table)
    trim_tiered(table)
    found = [(change["id"], change["_change_type"]) for change in changes(table, before + 1, version, is_net=True)]
    assert found == [(11, "insert")]
    with pytest.raises(OffsetsTrimmedError):
        changes(table, before + 1, version)


class TestDroppedPartitions:
    def test_old_rows_go_one_by_one(self, table):
        delete(table, 6)
        tier(table)
        table.drop_partition({"day": 1})
        dropped = table.refresh().version
        expected = Counter((number, "delete") for number in (5, 7, 8, 9))
        assert told(table, dropped, dropped) == expected
        tier(table)
        check_history(table)
        table.open_lake().expire(keep_last=1, keep_ms=0)
        with pytest.raises(
            InvalidOptionError, match=f"commit {dropped} .*removed rows from the lake that no record names"
        ):
            changes(table, dropped, dropped)

    def test_a_deletion_that_waits_for_a_round_is_not_told_twice(self, table):
        deleted = delete(table, 6)
        table.drop_partition({"day": 1})
        dropped = table.refresh().version
        assert told(table, deleted, deleted) == {(6, "delete"): 1}
        assert told(table, dropped, dropped) == Counter((number, "delete") for number in (5, 7, 8, 9))
        tier(table)
        check_history(table)

    def test_a_rollback_brings_them_back(self, table):
        delete(table, 6)
        before = table.refresh().version
        table.drop_partition({"day": 1})
        report = table.rollback_to_version(before)
        assert report.rows_added == 4
        assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1, 2, 3, 4, 5, 7, 8, 9]
        tier(table)
        check_history(table)

    def test_a_rollback_behind_expiry_says_why_it_ends(self, table):
        before = table.refresh().version
        table.drop_partition({"day": 1})
        table.open_lake().expire(keep_last=1, keep_ms=0)
        with pytest.raises(InvalidOptionError, match="rows that no record names were removed from the lake"):
            table.rollback_to_version(before)


class TestCost:
    @pytest.fixture
    def remote(self, memory):
        return RemoteStorage(memory)

    def test_hot_rows_ask_nothing_of_the_lake(self, world, memory, remote):
        table = Warehouse("wh", storage=memory, world=world).create_table("t", "id BIGINT", buckets=1)
        table.append([{"id": number} for number in range(5)])
        tier(table)
        version = delete(table, 3)
        far = Warehouse("wh", storage=remote, world=world).table("t")
        state = far.refresh()
        with remote.measured() as cost:
            (piece,) = plan_changes(far, state, version, version, Pruning()).tasks
        assert piece.commits.offsets == OffsetSet.dense(3, 1)
        assert cost.keys
        assert not [key for key in cost.keys if key.startswith("lake/")]

    def test_one_old_row_opens_the_file_that_has_it(self, world, memory, remote):
        table = Warehouse("wh", storage=memory, world=world).create_table("t", "id BIGINT", buckets=1)
        for first in range(0, 40, 5):
            table.append([{"id": number} for number in range(first, first + 5)])
            tier(table)
        trim_tiered(table)
        version = delete(table, 12)
        tier(table)
        far = Warehouse("wh", storage=remote, world=world).table("t")
        far.refresh()
        with remote.measured() as cost:
            assert told(far, version, version) == {(12, "delete"): 1}
        assert len({key for key in cost.keys if key.endswith(".parquet")}) == 1

    @pytest.mark.paimon
    def test_older_snapshots_of_a_paimon_lake_are_not_read_for_rows_of_the_newest(self, world, memory, remote):
        properties = {"table.datalake.format": "paimon"}
        table = Warehouse("wh", storage=memory, world=world).create_table(
            "t", "id BIGINT", buckets=1, properties=properties
        )
        for number in range(12):
            table.append([{"id": number}])
            tier(table)
        trim_tiered(table)
        table.delete(where=[("id", "=", 3)])
        far = Warehouse("wh", storage=remote, world=world).table("t")
        state = far.refresh()
        with remote.measured() as cost:
            plan_changes(far, state, 2, 3, Pruning())
        read = {key for key in cost.keys if "/snapshot/snapshot-" in key}
        assert len(read) <= 2, read


def test_a_piece_travels_as_json(table):
    version = delete(table, 3, 4, 5)
    state = table.refresh()
    (piece,) = plan_changes(table, state, version, version, Pruning()).tasks
    assert isinstance(piece.rows, OffsetsScanTask)
    assert piece.rows.snapshot_id == state.lake.snapshot_id
    again = type(piece).from_json(piece.to_json())
    assert isinstance(again, ChangesScanTask)
    assert again.rows == piece.rows
    assert again.commits.offsets == OffsetSet.dense(3, 3)


def test_files_that_hold_fewer_rows_than_a_plan_says_are_an_error(table):
    lake, snapshot_id = table.open_lake(), table.refresh().lake.snapshot_id
    (found,) = [rows for _, rows in lake.read_stored_rows(snapshot_id, 0, OffsetSet.dense(8, 2))]
    assert pa.table(found)["id"].to_pylist() == [8, 9]
    with pytest.raises(OffsetsTrimmedError, match=r"hold 2 rows at offsets \[8, 11\), expected 3"):
        lake.read_stored_rows(snapshot_id, 0, OffsetSet.dense(8, 3))


def test_old_rows_from_before_all_were_removed(table):
    before = table.refresh().version
    delete(table, 3)
    table.truncate()
    emptied = table.refresh().version
    tier(table)
    assert told(table, 1, before) == Counter((number, "insert") for number in range(10))
    gone = Counter((number, "delete") for number in range(10) if number != 3)
    assert told(table, emptied, emptied) == gone
    assert told(table, before, emptied) == gone + Counter([(3, "delete")])
    check_history(table)
