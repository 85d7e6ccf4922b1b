"""Single rows of a Paimon lake are deleted: files that have some are written again, in the snapshot of the round."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
from pypaimon.read.scanner.delta_follow_up_scanner import DeltaFollowUpScanner

from interop.paimon_cases import Stock
from kit.rows import ids, rows
from kit.tables import require_verified, tier
from streamhouse_spark import LakeMismatchError, OffsetRange, OffsetsTrimmedError
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.dml.delete import commit_deletion
from streamhouse_spark.lake.paimon.table import PaimonLake
from streamhouse_spark.lake.parquet import copy_on_write
from streamhouse_spark.lake.parquet.reader import read_file_offsets
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.log.actions import Trim
from streamhouse_spark.log.bucketing import buckets_of
from streamhouse_spark.log.read_version import ReadVersion
from unit.lake.paimon.test_commit_races import Renaming

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)
PAIMON = {"table.datalake.format": "paimon"}


@pytest.fixture
def table(wh):
    return wh.create_table("d.t", "id BIGINT, day INT", properties=PAIMON)


def delete(table, *numbers):
    return table.delete(where=[("id", "in", list(numbers))])


def trim(table):
    state = table.refresh()
    table.log.commit(lambda _s, _t: (Trim({b: state.lake_offset(b) for b in state.buckets}),))


def snapshots(table):
    return table.lake.snapshots().select(["commit_kind", "total_record_count"]).to_pylist()


def kinds(table):
    return [row["commit_kind"] for row in snapshots(table)]


def offsets_of(table):
    """File name → the offsets of its rows."""
    lake = table.open_lake()
    plan = lake.plan_read()
    found = [
        read_file_offsets(lake.binding.files_at(s.location), s.location, lake.binding.spec.writers) for s in plan.splits
    ]
    return {file.location.rpartition("/")[2]: file.runs.offsets().tolist() for file in found}


def test_only_files_with_deleted_rows_are_written_again_and_rows_keep_their_offsets(table):
    for first in (0, 4, 8):
        table.append(rows(*range(first, first + 4)))
        tier(table)
    before = offsets_of(table)
    delete(table, 5, 6, 11)
    report = tier(table)
    after = offsets_of(table)
    kept = before.keys() & after.keys()
    assert [before[name] for name in kept] == [[0, 1, 2, 3]]
    assert sorted(chain(*after.values())) == [0, 1, 2, 3, 4, 7, 8, 9, 10]
    assert kinds(table)[-2:] == ["OVERWRITE", "COMPACT"], "an empty snapshot settles it"
    assert snapshots(table)[-1]["total_record_count"] == 9
    assert table.open_lake().binding.snapshots.newest().index_manifest is None, "no deletion vectors"
    assert (len(report.snapshots), report.rows) == (1, 0)
    assert table.refresh().lake.dropped_rows == 3
    require_verified(table)
    assert tier(table).snapshots == ()
    assert len(kinds(table)) == 5, "it is settled once"


def test_readers_of_streams_pass_over_the_round(table):
    """pypaimon's own word for it; new rows of a round without older deleted ones are read."""
    table.append(rows(*range(4)))
    tier(table)
    delete(table, 1)
    table.append(rows(4, 5))
    tier(table)
    found = (table.open_lake().binding.snapshots.find(number) for number in (1, 2, 3))
    assert [DeltaFollowUpScanner().should_scan(snapshot) for snapshot in found] == [True, False, False]


def test_a_file_that_loses_all_rows_goes_unread(table, monkeypatch):
    for first in (0, 4):
        table.append(rows(*range(first, first + 4)))
        tier(table)
    delete(table, 4, 5, 6, 7)
    monkeypatch.setattr(copy_on_write, "read_split", None)
    tier(table)
    assert list(offsets_of(table).values()) == [[0, 1, 2, 3]]
    assert ids(table.to_arrow()) == [0, 1, 2, 3]
    require_verified(table)


def test_rows_that_were_deleted_before_are_never_written(table):
    table.append(rows(*range(6)))
    tier(table)
    table.append(rows(*range(6, 12)))
    delete(table, 7, 8, 11)
    report = tier(table)
    assert kinds(table)[:2] == ["APPEND", "APPEND"], "readers of streams see the new rows"
    assert sorted(chain(*offsets_of(table).values())) == [0, 1, 2, 3, 4, 5, 6, 9, 10]
    assert (report.rows, table.refresh().lake.dropped_rows) == (3, 3)
    require_verified(table)


def test_a_round_of_which_every_row_was_deleted_moves_the_offsets(table):
    table.append(rows(0, 1))
    delete(table, 0, 1)
    tier(table)
    assert (offsets_of(table), table.refresh().lake.offsets, table.state.num_rows) == ({}, {0: 2}, 0)
    table.append(rows(2))
    tier(table)
    assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == [2]
    require_verified(table)


def test_one_snapshot_deletes_old_and_new_rows(table):
    table.append(rows(*range(6)))
    tier(table)
    table.append(rows(*range(6, 12)))
    delete(table, 1, 2, 8)
    report = tier(table)
    assert (len(report.snapshots), report.rows) == (1, 5)
    kept = [n for n in range(12) if n not in (1, 2, 8)]
    assert ids(table.lake.to_arrow(as_of_snapshot=report.snapshots[0])) == kept
    assert ids(table.to_arrow()) == kept
    require_verified(table)


def test_a_round_after_a_truncation_leaves_out_deleted_rows(table):
    table.append(rows(*range(6)))
    tier(table)
    delete(table, 1)
    table.truncate()
    table.append(rows(*range(6, 12)))
    delete(table, 7, 8)
    tier(table)
    assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == [6, 9, 10, 11]
    assert table.refresh().lake.dropped_rows == 2
    require_verified(table)


def test_rows_of_files_with_older_columns_are_deleted(table):
    table.append(rows(*range(4)))
    tier(table)
    table.add_columns("more INT")
    table.rename_column("day", "of")
    delete(table, 2)
    tier(table)
    found = sorted((row["id"], row["of"], row["more"]) for row in table.lake.to_arrow().to_pylist())
    assert found == [(0, 0, None), (1, 1, None), (3, 0, None)]
    table.append([{"id": 9, "of": 9, "more": 9}])
    tier(table)
    delete(table, 0)
    tier(table)
    assert sorted((r["id"], r["of"], r["more"]) for r in table.to_arrow().to_pylist()) == [
        (1, 1, None),
        (3, 0, None),
        (9, 9, 9),
    ]


def test_a_compaction_meanwhile_is_seen_and_the_rows_are_looked_for_again(table, monkeypatch):
    for first in range(0, 30, 5):
        table.append(rows(*range(first, first + 5)))
        tier(table)
    delete(table, 3, 17)
    right, left = PaimonLake.delete_rows, [0]

    def compacted(lake, *given, **named):
        found = right(lake, *given, **named)
        if left:
            left.pop()
            assert table.lake.compact().files_removed == 6
        return found

    monkeypatch.setattr(PaimonLake, "delete_rows", compacted)
    assert tier(table).conflicts == 1
    kept = [n for n in range(30) if n not in (3, 17)]
    assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == kept
    require_verified(table)


def test_files_with_gaps_are_joined_and_lose_rows_again(table):
    for first in range(0, 30, 5):
        table.append(rows(*range(first, first + 5)))
        tier(table)
    delete(table, 3, 17, 29)
    tier(table)
    assert table.lake.compact().rows == 27
    assert list(offsets_of(table).values()) == [[n for n in range(30) if n not in (3, 17, 29)]]
    delete(table, 4, 16)
    tier(table)
    kept = [n for n in range(30) if n not in (3, 4, 16, 17, 29)]
    assert ids(table.to_arrow()) == ids(table.lake.to_arrow()) == kept
    assert list(offsets_of(table).values()) == [kept]
    require_verified(table)


def test_ranges_are_read_from_the_lake_where_no_row_is_missing(table):
    table.append(rows(*range(12)))
    tier(table)
    delete(table, 5)
    tier(table)
    lake = table.open_lake()
    found = pa.Table.from_batches([batch for _, batch in lake.read_with_offsets(0, OffsetRange(6, 12))])
    assert found["id"].to_pylist() == list(range(6, 12))
    with pytest.raises(OffsetsTrimmedError, match="another engine rewrote or deleted rows"):
        list(lake.read_with_offsets(0, OffsetRange(0, 12)))


class TestOtherEngines:
    def test_their_files_stay_as_they_are(self, table, tmp_path):
        table.append(rows(*range(6)))
        tier(table)
        stock = Stock(table.storage, tmp_path)
        stock.append("d.t", rows(100, 101))
        table.append(rows(6, 7))
        delete(table, 2, 7)
        tier(table)
        kept = [0, 1, 3, 4, 5, 6, 100, 101]
        assert ids(table.to_arrow()) == sorted(row["id"] for row in stock.read("d.t")) == kept

    def test_rows_of_such_a_file_go_beside_rows_with_offsets(self, table, tmp_path):
        table.append(rows(*range(6)))
        tier(table)
        stock = Stock(table.storage, tmp_path)
        stock.append("d.t", rows(100, 101))
        table.append(rows(6))
        tier(table)
        assert delete(table, 100, 5, 6) == 3
        assert table.refresh().num_rows == 4, "those that were appended, without the deleted one of another engine"
        assert ids(table.to_arrow()) == [0, 1, 2, 3, 4, 101]
        tier(table)
        assert ids(table.lake.to_arrow()) == sorted(row["id"] for row in stock.read("d.t")) == [0, 1, 2, 3, 4, 101]
        require_verified(table)

    @pytest.mark.parametrize("is_trimmed", [False, True])
    def test_a_row_that_may_be_in_such_a_file_stops_the_round(self, wh, tmp_path, is_trimmed):
        """As long as the log has it, it is known to be of a dropped partition, and to be in no file."""
        table = wh.create_table("d.t", "id BIGINT, day INT", properties=PAIMON, partition_by=["day"])
        table.append(rows(*range(6)))
        tier(table)
        read = ReadVersion.of(table.refresh())
        table.drop_partition({"day": 0})
        stock = Stock(table.storage, tmp_path)
        stock.append("d.t", rows(100, 0))
        if is_trimmed:
            trim(table)
        commit_deletion(table, {0: OffsetSet.dense(0, 1)}, read)
        if is_trimmed:
            with pytest.raises(LakeMismatchError, match="deleted rows may be in"):
                tier(table)
            return
        tier(table)
        assert ids(table.to_arrow()) == sorted(row["id"] for row in stock.read("d.t")) == [0, 1, 2, 4, 5, 100]

    def test_in_buckets_a_file_of_another_bucket_is_none(self, wh, tmp_path):
        properties = {**PAIMON, "bucket.key": "id"}
        table = wh.create_table("d.t", "id BIGINT, day INT", buckets=3, partition_by=["day"], properties=properties)
        table.append(rows(*range(12)))
        tier(table)
        read = ReadVersion.of(table.refresh())
        table.drop_partition({"day": 0})
        Stock(table.storage, tmp_path).append("d.t", rows(100))
        buckets = buckets_of(pa.array([*range(12), 100], pa.int64()), 3, "paimon")
        gone = next(n for n in (0, 3, 6, 9) if buckets[n] != buckets[-1])
        place = np.array([np.count_nonzero(buckets[:gone] == buckets[gone])])
        commit_deletion(table, {int(buckets[gone]): OffsetSet.of(place)}, read)
        assert tier(table).snapshots == ()
        assert ids(table.to_arrow()) == [1, 2, 4, 5, 7, 8, 10, 11, 100]

    @pytest.mark.parametrize("is_trimmed", [False, True])
    def test_a_rename_over_the_round_brings_no_row_back(self, table, is_trimmed):
        """Two writers that looked before the round, and before the empty snapshot that settles it."""
        table.append(rows(*range(6)))
        tier(table)
        if is_trimmed:
            trim(table)
        newest = table.open_lake().newest().id
        over_the_round = Renaming(table, newest + 1)
        delete(table, 2)
        tier(table)
        over_the_seal = Renaming(table, newest + 2)
        for rename in (over_the_round, over_the_seal):
            rename()
            table.append(rows(100 + table.refresh().version))
            assert 2 not in ids(table.to_arrow())
            tier(table)
            assert 2 not in ids(table.lake.to_arrow())
            assert ids(table.lake.to_arrow()) == ids(table.to_arrow())

    @pytest.mark.parametrize("is_trimmed", [False, True])
    def test_a_rename_before_the_log_knows_the_round(self, table, is_trimmed, monkeypatch):
        table.append(rows(*range(6)))
        tier(table)
        if is_trimmed:
            trim(table)
        rename = Renaming(table, table.open_lake().newest().id + 1)
        delete(table, 2)
        with monkeypatch.context() as patch:
            patch.setattr(TieringJob, "_record", lambda *_: None)
            job = TieringJob(table.log, table.open_lake(), world=table.world)
            state = job._refresh_state()
            job._run_round(state, state.ends, run_tasks_locally(table.storage, table.settings, table.world), [])
        rename()
        assert ids(table.lake.to_arrow()) == list(range(6))
        assert ids(table.to_arrow()) == [0, 1, 3, 4, 5]
        tier(table)
        assert ids(table.lake.to_arrow()) == ids(table.to_arrow()) == [0, 1, 3, 4, 5]
        require_verified(table)

    def test_a_rename_while_the_round_is_recorded_restores_no_row(self, table, monkeypatch):
        table.append(rows(*range(6)))
        tier(table)
        trim(table)
        rename = Renaming(table, table.open_lake().newest().id + 1)
        delete(table, 2)
        right = PaimonLake.wait_until_durable

        def settle(lake, snapshot):
            monkeypatch.undo()
            rename()
            return right(lake, snapshot)

        monkeypatch.setattr(PaimonLake, "wait_until_durable", settle)
        report = tier(table)
        assert (report.conflicts, len(report.snapshots)) == (1, 1), "the one that was lost does not count"
        assert ids(table.lake.to_arrow()) == ids(table.to_arrow()) == [0, 1, 3, 4, 5]
        require_verified(table)
