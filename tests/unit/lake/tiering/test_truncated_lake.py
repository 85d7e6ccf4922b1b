"""After a truncation the lake's next snapshot drops all that there was; older snapshots stay, and races lose."""

from __future__ import annotations

from unittest import mock

import pyarrow as pa
import pytest

from interop.lake_cases import PLAIN, lake_of, tier, write_round
from kit.lake_rows import lake_rows
from streamhouse_spark import (
    CommitConflictError,
    LakeMismatchError,
    LakeRolledBackError,
    OffsetRange,
    OffsetsTrimmedError,
    SnapshotExpiredError,
)
from streamhouse_spark.lake.iceberg import compaction as iceberg_maintain
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.lake.tiering.plan import find_round_starts
from streamhouse_spark.lake.types import COMMIT_USER, LakeSnapshot
from streamhouse_spark.log import actions as act
from streamhouse_spark.log.state import fold
from streamhouse_spark.read.snapshot_fallback import fall_back_to_lake_snapshot
from streamhouse_spark.service.tiering_service import oldest_waiting_ms
from streamhouse_spark.table.status import table_health
from unit.log.states import appended, record, segment

HOUR_MS = 3_600_000


def _rows(first: int, num_rows: int = 2) -> pa.Table:
    ids = range(first, first + num_rows)
    return pa.table({"id": ids, "name": [f"n{i}" for i in ids]}, schema=PLAIN.arrow)


def _ids(table, **as_of) -> list[int]:
    return sorted(table.lake.to_arrow(columns=["id"], **as_of)["id"].to_pylist())


def _tier(table, meanwhile=lambda: None):
    """One call of tiering; ``meanwhile`` happens while the tasks of a round run."""
    local = run_tasks_locally(table.storage, table.settings, table.world)

    def run(tasks):
        files = local(tasks)
        meanwhile()
        return files

    return TieringJob(table.log, table.open_lake(), world=table.world).run(run)


@pytest.fixture
def table(wh):
    table = wh.create_table("t", PLAIN.arrow, buckets=2, properties={"bucket.key": "id", "table.log.ttl": "1h"})
    table.append(_rows(0, 6))
    _tier(table)
    return table


class TestTheNextRound:
    def test_empties_the_lake_even_without_new_rows(self, table):
        before = table.lake.newest()
        table.truncate()
        assert _ids(table) == list(range(6)), "the lake knows of it with the next round"
        report = _tier(table)
        assert (report.rows, report.files, len(report.snapshots)) == (0, 0, 1)
        assert _ids(table) == []
        assert _ids(table, as_of_snapshot=before.id) == list(range(6))
        assert table.state.lake.snapshot_id == report.snapshots[0]
        assert _tier(table).snapshots == (), "and that is all"

    def test_is_one_snapshot_with_the_new_rows_alone(self, table):
        before = table.lake.newest()
        table.overwrite(_rows(10, 3))
        table.append(_rows(20, 2))
        assert len(_tier(table).snapshots) == 1
        assert _ids(table) == [10, 11, 12, 20, 21]
        assert sorted(table.to_arrow()["id"].to_pylist()) == _ids(table)
        newest = table.lake.newest()
        assert newest.starts == before.offsets
        assert newest.offsets == table.state.ends
        assert [s["operation"] for s in table.lake.snapshots().to_pylist()] == ["append", "overwrite"]
        summary = dict(table.lake.snapshots().to_pylist()[-1]["summary"])
        assert (summary["total-records"], summary["deleted-records"]) == ("5", "6")
        assert table.lake.files().num_rows == int(summary["total-data-files"])

    def test_comes_in_steps_where_a_round_is_capped(self, table):
        table.overwrite(_rows(10, 8))
        table.append(_rows(20, 8))
        job = TieringJob(table.log, table.open_lake(), world=table.world, bytes_per_bucket_max=1)
        report = job.run(run_tasks_locally(table.storage, table.settings, table.world))
        assert len(report.snapshots) == 2
        assert _ids(table) == [*range(10, 18), *range(20, 28)]

    def test_of_a_table_that_was_never_tiered(self, wh):
        table = wh.create_table("fresh", PLAIN.arrow)
        table.append(_rows(0))
        table.truncate()
        assert len(_tier(table).snapshots) == 1, "so that the service need not look again"
        assert _ids(table) == []
        table.append(_rows(5))
        assert _tier(table).rows == 2
        assert _ids(table) == [5, 6]

    def test_takes_rows_out_that_another_engine_put_in(self, wh):
        table = wh.create_table("shared", PLAIN.arrow)
        table.append(_rows(0))
        _tier(table)
        iceberg = table.open_lake().binding.load()
        iceberg.append(_rows(900).cast(iceberg.schema().as_arrow()))
        assert 900 in _ids(table)
        table.truncate()
        _tier(table)
        assert _ids(table) == []

    def test_goes_on_as_usual(self, table):
        for i in range(3):
            table.overwrite(_rows(10 * i, 4))
            _tier(table)
            table.append(_rows(10 * i + 4))
            _tier(table)
            assert _ids(table) == list(range(10 * i, 10 * i + 6))
            assert sorted(table.to_arrow()["id"].to_pylist()) == _ids(table)


class TestCrashes:
    def test_a_crash_after_the_lakes_truncation_loses_no_new_row(self, table):
        table.overwrite(_rows(10))
        with mock.patch.object(TieringJob, "_record"):  # as if it died before
            _tier(table)
        assert table.refresh().lake is None
        assert sorted(table.to_arrow()["id"].to_pylist()) == [10, 11]
        report = _tier(table)
        assert report.snapshots == (), "what the lake says is adopted"
        assert table.state.lake.starts == table.state.first_offsets
        assert _ids(table) == [10, 11]

    def test_a_pair_of_before_is_recorded_late(self, table):
        table.append(_rows(6))
        with mock.patch.object(TieringJob, "_record"):
            _tier(table)
        late = table.lake.newest()
        table.truncate()
        TieringJob(table.log, table.open_lake(), world=table.world)._record(late)
        state = table.refresh()
        assert state.recorded_lake.snapshot_id == late.id
        assert state.lake is None
        assert table.to_arrow().num_rows == 0
        assert table.maintain().trimmed_to == {}
        _tier(table)
        TieringJob(table.log, table.open_lake(), world=table.world)._record(late)
        assert table.refresh().recorded_lake == table.state.lake, "no news: it knows of fewer truncations"

    def test_the_recorded_snapshot_is_gone(self, table, clock):
        """Before the lake is emptied a repaired pin must not bring its rows back, afterwards it must find them."""
        table.overwrite(_rows(10))
        assert fall_back_to_lake_snapshot(table).lake is None
        _tier(table)
        table.append(_rows(20))
        clock.advance(HOUR_MS)
        with mock.patch.object(TieringJob, "_record"):
            _tier(table)
        clock.advance(HOUR_MS)
        table.open_lake().expire(keep_last=1, keep_ms=0)
        with pytest.raises(SnapshotExpiredError):
            table.open_lake().snapshot(table.state.lake.snapshot_id)
        assert sorted(table.to_arrow()["id"].to_pylist()) == [10, 11, 20, 21]


class TestRaces:
    def test_a_round_that_was_planned_before_adds_nothing(self, table):
        table.append(_rows(6, 4))
        report = _tier(table, table.truncate)  # the second time there is nothing left to truncate
        assert report.conflicts == 1
        assert _ids(table) == []
        assert table.to_arrow().num_rows == 0

    def test_a_round_that_was_planned_before_and_comes_behind_the_new_one(self, table, other_process):
        table.append(_rows(6, 4))
        other = other_process().table("t")

        def truncated_and_tiered():
            if other.refresh().truncation is None:
                other.overwrite(_rows(50))
                _tier(other)

        with mock.patch.object(TieringJob, "_require_same_lake"):  # as if it slept right behind this look
            report = _tier(table, truncated_and_tiered)
        assert report.conflicts == 1
        assert _ids(table) == [50, 51]

    def test_a_round_of_before_that_lands_first_is_taken_out(self, table):
        """Its snapshot is one of before the truncation: nobody takes it for the table."""
        table.append(_rows(6, 4))
        job = TieringJob(table.log, table.open_lake(), world=table.world)
        local = run_tasks_locally(table.storage, table.settings, table.world)

        def run(tasks):
            table.truncate()
            return local(tasks)

        with (
            mock.patch.object(TieringJob, "_require_same_lake"),
            mock.patch.object(TieringJob, "_record"),
        ):
            job._run_round(table.refresh(), table.state.ends, run, [])
        assert _ids(table) == list(range(10))
        assert table.refresh().lake is None
        assert table.to_arrow().num_rows == 0
        assert fall_back_to_lake_snapshot(table).lake is None
        _tier(table)
        assert _ids(table) == []

    def test_a_compaction_loses_against_a_truncation(self, table, other_process):
        for i in range(3):
            table.append(_rows(10 * (i + 1), 4))
            _tier(table)
        other = other_process().table("t")
        merge_group = iceberg_maintain.merge_group

        def truncated_meanwhile(*args):
            if other.refresh().truncation is None:
                other.truncate()
                _tier(other)
            return merge_group(*args)

        with (
            mock.patch.object(iceberg_maintain, "COMPACT_FILES_MIN", 2),
            mock.patch.object(iceberg_maintain, "merge_group", truncated_meanwhile),
            pytest.raises(CommitConflictError, match="no longer live"),
        ):
            table.open_lake().compact()
        assert _ids(table) == []

    def test_compaction_before_is_harmless_and_keeps_where_the_table_begins(self, table):
        table.overwrite(_rows(10, 4))
        for i in range(3):
            _tier(table)
            table.append(_rows(20 * (i + 1), 4))
        _tier(table)
        before = table.lake.newest()
        with mock.patch.object(iceberg_maintain, "COMPACT_FILES_MIN", 2):
            assert table.open_lake().compact().files_removed
        after = table.lake.newest()
        assert after.id != before.id
        assert (after.starts, after.offsets) == (before.starts, before.offsets)
        _tier(table)
        assert table.state.lake.snapshot_id == after.id
        table.truncate()
        _tier(table)
        assert _ids(table) == []


class TestTheFence:
    @pytest.fixture
    def lake(self, memory, world):
        lake = lake_of(memory, world=world)
        tier(lake, _rows(0))
        return lake

    def test_the_same_offsets_of_another_truncation_are_others(self, lake):
        context = lake.write_context()
        emptied = lake.commit([], expected={0: 2}, new={0: 2}, context=context, starts={0: 2})
        assert (emptied.offsets, emptied.starts) == ({0: 2}, {0: 2})
        assert lake.newest() == emptied
        files, new = write_round(lake, {0: _rows(2)}, {0: 2})
        with pytest.raises(CommitConflictError, match="before a truncation: another tiering service committed"):
            lake.commit(files, expected={0: 2}, new=new, context=context)
        with pytest.raises(LakeRolledBackError):
            lake.commit(files, expected={0: 2}, new=new, context=context, expected_starts={0: 3}, starts={0: 3})
        assert lake.commit(files, expected={0: 2}, new=new, context=context, expected_starts={0: 2}, starts={0: 2})
        assert lake_rows(lake, lake.plan_read())["id"].to_pylist() == [2, 3]

    def test_rows_have_to_be_those_behind_the_truncation(self, lake):
        files, _ = write_round(lake, {0: _rows(2, 3)}, {0: 5})
        with pytest.raises(ValueError, match="3 rows for an advance of"):
            lake.commit(files, expected={0: 2}, new={0: 9}, context=lake.write_context(), starts={0: 5})
        lake.commit(files, expected={0: 2}, new={0: 8}, context=lake.write_context(), starts={0: 5})
        assert list(lake.read_offsets(0, OffsetRange(5, 8)))
        for lost in (OffsetRange(0, 2), OffsetRange(1, 6)):
            with pytest.raises(OffsetsTrimmedError):
                list(lake.read_offsets(0, lost))

    def test_the_tag_goes_along_and_the_newest_is_not_expired(self, lake, clock):
        snapshot = lake.commit([], expected={0: 2}, new={0: 2}, context=lake.write_context(), starts={0: 2})
        assert lake.binding.load().metadata.refs[COMMIT_USER].snapshot_id == snapshot.id
        clock.advance(HOUR_MS)
        expired = lake.expire(keep_last=1, keep_ms=0)
        assert len(expired.snapshots) == 1
        assert [f for f in expired.files if f.endswith(".parquet")], "the rows of before are gone for good"
        assert lake.newest().starts == {0: 2}


class TestPlanning:
    def state(self):
        state = appended(segment(0, 4))
        state = fold(state, record(3, act.Truncate({0: 4})))
        return fold(state, record(4, act.Append((segment(4, 2, commit=4),))))

    def test_where_a_round_begins(self):
        state = self.state()
        assert find_round_starts(appended(segment(0, 4)), None) == {}
        assert find_round_starts(state, None) == {0: 4}
        for offset in (0, 2, 4):
            assert find_round_starts(state, LakeSnapshot(1, {0: offset}, 0)) == {0: 4}
        assert find_round_starts(state, LakeSnapshot(1, {0: 5}, 0, {0: 4})) == {0: 5}

    @pytest.mark.parametrize(("offset", "start"), [(5, 0), (6, 6), (5, 3)])
    def test_a_lake_that_knows_more_than_the_log(self, offset, start):
        with pytest.raises(LakeMismatchError, match="truncated at 4"):
            find_round_starts(self.state(), LakeSnapshot(1, {0: offset}, 0, {0: start}))

    def test_the_service_does_not_wait_for_rows(self, table, clock):
        assert oldest_waiting_ms(table.state) is None
        clock.advance(HOUR_MS)
        table.truncate()
        assert oldest_waiting_ms(table.state) == table.state.truncation.time_ms
        assert table_health(table.state, table.properties, clock.now_ms() + HOUR_MS).untiered_ms >= HOUR_MS
        _tier(table)
        assert oldest_waiting_ms(table.state) is None
        assert table_health(table.state, table.properties, clock.now_ms() + HOUR_MS).untiered_ms == 0


class TestUpkeep:
    def test_trimming_follows_the_new_rows(self, table, clock):
        table.overwrite(_rows(10, 4))
        clock.advance(2 * HOUR_MS)
        assert table.maintain().trimmed_to == {}
        _tier(table)
        assert table.maintain().trimmed_to == table.state.ends
        assert sorted(table.to_arrow()["id"].to_pylist()) == [10, 11, 12, 13]

    def test_a_lake_rolled_back_before_the_truncation_trims_nothing(self, table):
        first = table.lake.newest()
        table.truncate()
        _tier(table)
        iceberg = table.open_lake().binding.load()
        iceberg.manage_snapshots().rollback_to_snapshot(first.id).remove_tag(COMMIT_USER).commit()
        with pytest.raises(LakeRolledBackError, match="nothing was trimmed"):
            table.maintain()
        assert table.to_arrow().num_rows == 0, "the log still knows the snapshot that counts"
        _tier(table)
        assert _ids(table) == []
