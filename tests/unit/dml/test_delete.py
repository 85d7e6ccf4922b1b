"""Rows of a table without a primary key, deleted by a filter: every reader leaves them out, and nothing else."""

from __future__ import annotations

import random

import pyarrow.compute as pc
import pytest

from kit.rows import ids, rows
from kit.tables import TableCase
from streamhouse_spark import Transaction
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.dml.conflict_check import make_delete_actions
from streamhouse_spark.dml.delete import commit_deletion
from streamhouse_spark.errors import CommitConflictError, CorruptDataError, InvalidOptionError, OffsetsTrimmedError
from streamhouse_spark.log import deletion_vectors
from streamhouse_spark.log import state as state_module
from streamhouse_spark.log.actions import Trim
from streamhouse_spark.log.checkpoint import as_stored
from streamhouse_spark.log.deletion_vectors import DeleteRows
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.log.segments import metadata_columns
from streamhouse_spark.table.partitions_table import count_partitions
from streamhouse_spark.table.system_views import changelog_batches
from streamhouse_spark.write.auto_compaction import compact_inline_rows

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)
HOT = {"table.datalake.enabled": "false"}
TABLE = TableCase("d.t", "id BIGINT, day INT", buckets=2, partition_by=["day"], properties=HOT)


def runs(*offsets):
    return OffsetSet.union([OffsetSet.dense(offset, 1) for offset in offsets])


class TestReads:
    def test_rows_are_gone_in_one_record_and_the_others_stay(self, table, other_process):
        table.append(rows(*range(10)))
        table.append(rows(*range(10, 20)))
        before = table.refresh().version
        assert table.delete(where=pc.field("id") >= 15) == 5
        assert table.delete(where=[("id", "<", 3)]) == 3
        assert table.delete(where=[("id", "<", 3)]) == 0
        assert table.refresh().version == before + 2
        kept = list(range(3, 15))
        for reader in (table, other_process().table("d.t")):
            assert ids(reader.to_arrow()) == kept
            assert ids(reader.to_arrow(filter=[("id", ">", 12)])) == [13, 14]
            assert reader.state.num_rows == len(kept)

    def test_only_rows_that_the_condition_wants_are_named(self, wh, monkeypatch):
        """Of all others an identity would be made for nothing, and that takes longer than the look at their values."""
        table = wh.create_table("d.named", "id BIGINT, note STRING", properties=HOT)
        table.append([{"id": number, "note": f"note {number}"} for number in range(1_000)])
        named = []
        make = metadata_columns.add_log_positions

        def noting(batch, *args, **kwargs):
            named.append(batch.num_rows)
            return make(batch, *args, **kwargs)

        monkeypatch.setattr(metadata_columns, "add_log_positions", noting)
        assert table.delete(where=[("id", "in", [5, 500])]) == 2
        assert table.delete(where=[("id", "in", [4, 5, 6, 501])]) == 3, "beside rows that are left out already"
        assert sum(named) == 5
        gone = {4, 5, 6, 500, 501}
        assert ids(table.to_arrow()) == [number for number in range(1_000) if number not in gone]
        assert ids(table.to_arrow(filter=[("id", ">", 2), ("id", "<", 9)])) == [3, 7, 8]

    def test_a_null_is_not_what_a_condition_wants(self, table):
        table.append([{"id": None, "day": 1}, {"id": 1, "day": 1}])
        assert table.delete(where=pc.field("id") != 5) == 1
        assert table.to_arrow().to_pylist() == [{"id": None, "day": 1}]

    def test_merged_segments_keep_the_places_of_deleted_rows(self, table):
        for number in range(6):
            table.append(rows(number))
        table.delete(where=[("id", "in", [1, 4])])
        assert compact_inline_rows(table) > 0
        assert ids(table.to_arrow()) == [0, 2, 3, 5]

    def test_the_places_of_the_others_are_known(self, table):
        table.append(rows(*range(6)))
        table.delete(where=[("id", "in", [1, 4])])
        found = list(table.tail("earliest", include_metadata=True, until_ms=0, poll_ms=0))
        places = {(r["_bucket"], r["_log_offset"]): r["id"] for batch in found for r in batch.to_pylist()}
        assert sorted(places.values()) == [0, 2, 3, 5]
        assert {offset for _, offset in places} == {0, 2, 3, 5}

    def test_partitions_are_counted_without_them(self, table):
        table.append(rows(*range(9)))
        table.append(rows(0, 3))
        table.delete(where=[("id", "=", 0)])
        table.delete(where=[("day", "=", 1)])
        found = {r["day"]: r["hot_rows"] for r in count_partitions(table).to_pylist() if r["hot_rows"]}
        assert found == {0: 3, 2: 3}

    def test_a_time_before_has_them(self, table, clock):
        table.append(rows(*range(4)))
        clock.advance(1000)
        moment = table.storage.now_ms()
        clock.advance(1000)
        table.delete(where=[("id", "<", 2)])
        later = table.storage.now_ms()
        assert ids(table.to_arrow(as_of_timestamp_ms=moment)) == [0, 1, 2, 3]
        assert ids(table.to_arrow(as_of_timestamp_ms=later)) == [2, 3]

    def test_times_between_deletions_that_are_no_longer_told_apart(self, table, clock, monkeypatch):
        monkeypatch.setattr(state_module, "DELETIONS_MAX", 2)
        table.append(rows(*range(6)))
        moments = []
        for number in range(4):
            clock.advance(1000)
            table.delete(where=[("id", "=", number)])
            moments.append(table.storage.now_ms())
        assert ids(table.to_arrow()) == [4, 5]
        assert len(table.state.deletions) == 2
        assert ids(table.to_arrow(as_of_timestamp_ms=moments[2])) == [3, 4, 5]
        with pytest.raises(OffsetsTrimmedError, match="can no longer be distinguished; choose a later time"):
            table.to_arrow(as_of_timestamp_ms=moments[1])

    def test_all_of_them_are_joined_once(self, table, monkeypatch):
        monkeypatch.setattr(state_module, "DELETIONS_MAX", 3)
        table.append(rows(*range(40)))
        for number in (3, 21, 4, 30, 22, 5):
            table.delete(where=[("id", "=", number)])
            before = table.state.deleted
            assert before == deletion_vectors.union_deleted_offsets(tuple(table.state.deletions))
            table.append(rows(100 + number))
            assert table.state.deleted is before
        table.delete(where=[("day", "=", 0)])
        assert table.state.deleted == deletion_vectors.union_deleted_offsets(tuple(table.state.deletions))
        assert as_stored(table.state).deleted == table.state.deleted

    def test_a_checkpoint_has_them(self, table):
        table.append(rows(*range(5)))
        table.delete(where=[("id", "in", [1, 2, 4])])
        assert as_stored(table.state).deletions == table.state.deletions

    def test_they_go_with_a_truncation(self, table):
        table.append(rows(*range(5)))
        table.delete(where=[("id", "<", 3)])
        table.truncate()
        table.append(rows(7))
        assert ids(table.to_arrow()) == [7]
        assert table.refresh().deletions == ()


class TestConflicts:
    def test_an_append_in_between_is_none(self, table, other_process):
        table.append(rows(*range(4)))
        read = ReadVersion.of(table.refresh())
        other_process().table("d.t").append(rows(*range(4, 8)))
        (bucket,) = [b for b, (_, end) in read.buckets.items() if end]
        assert commit_deletion(table, {bucket: runs(1, 2)}, read) == 2
        assert ids(table.to_arrow()) == [0, 3, 4, 5, 6, 7]

    def test_a_row_that_another_deleted_is_one(self, table, other_process):
        table.append(rows(*range(4)))
        read = ReadVersion.of(table.refresh())
        (bucket,) = [b for b, (_, end) in read.buckets.items() if end]
        other_process().table("d.t").delete(where=[("id", "=", 2)])
        with pytest.raises(CommitConflictError, match=f"offset 2 of bucket {bucket} was deleted concurrently"):
            commit_deletion(table, {bucket: runs(1, 2)}, read)
        assert ids(table.to_arrow()) == [0, 1, 3]

    def test_a_truncation_is_one(self, table, other_process):
        table.append(rows(*range(4)))
        read = ReadVersion.of(table.refresh())
        (bucket,) = [b for b, (_, end) in read.buckets.items() if end]
        other_process().table("d.t").overwrite(rows(9))
        with pytest.raises(CommitConflictError, match="it was truncated at offset"):
            commit_deletion(table, {bucket: runs(1)}, read)

    def test_trimmed_rows_are_gone_already(self, table):
        table.append(rows(*range(4)))
        state = table.refresh()
        (bucket,) = [b for b, log in state.buckets.items() if log.end]
        read = ReadVersion.of(state)
        table.append(rows(4))
        table.log.commit(lambda _s, _t: (Trim({bucket: 4}),))
        assert make_delete_actions(table.refresh(), {bucket: runs(1)}, read) == ()
        assert commit_deletion(table, {bucket: runs(1)}, read) == 0

    def test_rows_that_are_not_the_tables_are_damage(self, table):
        table.append(rows(*range(4)))
        with pytest.raises(CorruptDataError, match="that are not the table's"):
            table.log.commit(lambda _s, _t: (DeleteRows({0: runs(100)}),))

    def test_a_transaction_happens_once(self, table):
        table.append(rows(*range(4)))
        transaction = Transaction("clean", 1)
        assert table.delete(where=[("id", "<", 2)], transaction=transaction) == 2
        table.append(rows(0))
        assert table.delete(where=[("id", "<", 2)], transaction=transaction) == 0
        assert ids(table.to_arrow()) == [0, 2, 3]
        nothing = Transaction("clean", 2)
        assert table.delete(where=[("id", "=", 50)], transaction=nothing) == 0
        table.append(rows(50))
        assert table.delete(where=[("id", "=", 50)], transaction=nothing) == 0


class TestRefusals:
    def test_keys_are_rejected_where_a_condition_is_needed(self, wh, table):
        keyed = wh.create_table("d.k", "id BIGINT", primary_key=["id"])
        with pytest.raises(InvalidOptionError, match=r"delete\(keys\)"):
            keyed.delete(where=[("id", "=", 1)])
        with pytest.raises(InvalidOptionError, match="keys and where"):
            keyed.delete([1], where=[("id", "=", 1)])
        with pytest.raises(InvalidOptionError, match=r"delete\(where=...\)"):
            table.delete([1])


def test_deleted_rows_are_deletions_in_the_changelog(table):
    table.append(rows(*range(4)))
    table.delete(where=[("id", "=", 1)])
    found = [row for batch in changelog_batches(table, table.refresh()) for row in batch.to_pylist()]
    assert [row["_change_type"] for row in found] == ["insert"] * 4 + ["delete"]
    assert found[-1]["id"] == 1
    inserted = next(row for row in found if row["id"] == 1)
    assert found[-1]["_log_offset"] == inserted["_log_offset"]
    assert found[-1]["_commit_timestamp"] > inserted["_commit_timestamp"]


class TestTails:
    def test_rows_that_were_read_and_then_deleted_end_it(self, table, other_process):
        table.append(rows(*range(4)))
        tail = table.tail("earliest", until_ms=0, poll_ms=0)
        next(tail)
        position = tail.position
        other_process().table("d.t").delete(where=[("id", "=", 1)])
        with pytest.raises(OffsetsTrimmedError, match=r"offset 1 of bucket .* follow it again from 'earliest'"):
            next(tail)
        with pytest.raises(OffsetsTrimmedError, match="that this tail has read"):
            next(table.tail(position, until_ms=0, poll_ms=0))
        assert ids(next(table.tail("earliest", until_ms=0, poll_ms=0))) == [0, 2, 3]

    def test_rows_that_are_deleted_before_they_are_read_are_left_out(self, table):
        table.append(rows(*range(4)))
        table.append(rows(4))
        tail = table.tail("earliest", until_ms=0, poll_ms=0)
        table.delete(where=[("id", "in", [1, 4])])
        assert [n for batch in tail for n in batch["id"].to_pylist()] == [0, 2, 3]


@pytest.mark.parametrize("seed", range(6))
def test_random_lives_with_deletions_agree_with_a_list(wh, other_process, seed, monkeypatch):
    """Appends, deletions, merges, truncations and new processes, against a list."""
    monkeypatch.setattr(state_module, "DELETIONS_MAX", 3)
    chance = random.Random(seed)
    table = wh.create_table("d.t", "id BIGINT, day INT", buckets=chance.choice([1, 3]), properties=HOT)
    expected: list[int] = []
    next_id = 0
    for _ in range(40):
        match chance.choice(["append", "append", "delete", "delete", "merge", "truncate", "open"]):
            case "append":
                new = list(range(next_id, next_id + chance.randrange(1, 8)))
                next_id += len(new)
                table.append(rows(*new))
                expected += new
            case "delete":
                first = chance.randrange(next_id + 1)
                last = first + chance.randrange(5)
                gone = [n for n in expected if first <= n < last]
                assert table.delete(where=[("id", ">=", first), ("id", "<", last)]) == len(gone)
                expected = [n for n in expected if n not in gone]
            case "merge":
                compact_inline_rows(table)
            case "truncate" if chance.random() < 0.3:
                table.truncate()
                expected = []
            case "open":
                table = other_process().table("d.t")
        state = table.refresh()
        assert ids(table.to_arrow()) == expected
        assert state.num_rows == len(expected)
        assert as_stored(state).deleted == state.deleted
