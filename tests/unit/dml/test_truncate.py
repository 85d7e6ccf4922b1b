"""`Table.truncate` and `Table.overwrite`: at once, once, and whoever writes or reads meanwhile."""

from __future__ import annotations

import pytest

from kit.tables import TableCase
from streamhouse_spark import OffsetRange, Transaction
from streamhouse_spark.errors import CommitConflictError, OffsetsTrimmedError, SchemaMismatchError, TableNotFoundError
from streamhouse_spark.expressions.filters import Projection
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS
from streamhouse_spark.read.read_snapshot import take_latest_snapshot
from streamhouse_spark.read.snapshot_reader import read_snapshot_rows

TABLE = TableCase("t", "id BIGINT NOT NULL", properties={"table.datalake.enabled": "false"})


def rows(*ids):
    return [{"id": i} for i in ids]


def ids(table) -> list[int]:
    return table.to_arrow().column("id").to_pylist()


def actions(table) -> list[str]:
    return table.inspect.commits().column("actions").to_pylist()


def test_a_truncated_table_is_empty_and_offsets_continue(table, other_process):
    table.append(rows(1, 2, 3))
    table.truncate()
    assert ids(table) == []
    assert ids(other_process().table("t")) == []
    assert dict(table.append(rows(4))) == {0: OffsetRange(3, 4)}, "offsets go on"
    assert ids(table) == [4]
    assert repr(table).endswith("1 row)")
    assert table.inspect.buckets().to_pylist()[0]["log_start_offset"] == 3


def test_truncating_nothing_commits_nothing(table):
    table.truncate()
    table.append(rows(1))
    table.truncate()
    table.truncate()
    assert actions(table) == ["create", "append", "truncate"]


def test_overwritten_in_one_record(table):
    table.append(rows(1, 2, 3))
    assert dict(table.overwrite(rows(7, 8))) == {0: OffsetRange(3, 5)}
    assert ids(table) == [7, 8]
    assert dict(table.overwrite([])) == {}
    assert ids(table) == []
    assert dict(table.overwrite(rows(9))) == {0: OffsetRange(5, 6)}, "an empty table is only appended to"
    assert actions(table) == ["create", "append", "truncate, append", "truncate", "append"]
    assert table.inspect.commits().column("rows_added").to_pylist() == [0, 3, 2, 0, 1]


def test_rows_that_do_not_fit_remove_nothing(table):
    table.append(rows(1))
    with pytest.raises(SchemaMismatchError):
        table.overwrite([{"id": None}])
    assert ids(table) == [1]


def test_a_transaction_overwrites_once(table, other_process):
    table.append(rows(1))
    transaction = Transaction("job", 1)
    written = table.overwrite(rows(2), transaction=transaction)
    table.append(rows(3))
    again = other_process().table("t").overwrite(rows(2), transaction=transaction)
    assert dict(again) == dict(written)
    assert ids(table) == [2, 3], "the repetition removed nothing"
    table.overwrite([], transaction=Transaction("job", 2))
    table.append(rows(4))
    table.overwrite([], transaction=Transaction("job", 2))
    assert ids(table) == [4]


def test_what_was_staged_before_a_truncation_is_appended_behind_it(table, other_process):
    table.append(rows(1))
    staged = table.log_writer.stager().stage(table.to_arrow())
    other_process().table("t").truncate()
    assert dict(table.log_writer.commit(staged)) == {0: OffsetRange(1, 2)}
    assert ids(table) == [1]


def test_rows_committed_while_an_overwrite_was_staged_are_replaced_too(table, other_process):
    table.append(rows(1))
    staged = table.log_writer.stager().stage(table.to_arrow())
    other_process().table("t").append(rows(5))
    assert dict(table.log_writer.commit(staged, overwrite=True)) == {0: OffsetRange(2, 3)}
    assert ids(table) == [1]


def test_what_was_staged_too_long_ago_removes_nothing(table, clock):
    table.append(rows(1))
    staged = table.log_writer.stager().stage(table.to_arrow())
    clock.advance(13 * 3_600_000)
    with pytest.raises(CommitConflictError):
        table.log_writer.commit(staged, overwrite=True)
    assert ids(table) == [1]


def test_a_dropped_table_is_not_truncated(table, wh):
    table.append(rows(1))
    wh.drop_table("t")
    with pytest.raises(TableNotFoundError):
        table.truncate()
    with pytest.raises(TableNotFoundError):
        table.overwrite(rows(2))


def test_a_read_under_way_ends_well_and_its_files_go_after_the_grace(table, clock):
    staged = table.log_writer.stager().stage(table.schema.empty_table().from_pylist(rows(*range(40_000)), table.schema))
    table.log_writer.commit(staged)
    pin = take_latest_snapshot(table.refresh())
    table.overwrite(rows(1))
    projection = Projection.of(table.state.schema, None, None)
    assert read_snapshot_rows(table, pin, projection).num_rows == 40_000
    table.maintain()
    assert read_snapshot_rows(table, pin, projection).num_rows == 40_000
    clock.advance(GRACE_MS + 1000)
    deleted = table.maintain().cleaned.deleted
    assert [key for key in deleted if key.endswith(".arrow")]
    assert ids(table) == [1]


class TestTails:
    def test_a_tail_fails_even_where_it_had_read_everything(self, table):
        table.append(rows(1, 2))
        tail = table.tail("earliest")
        assert next(tail).num_rows == 2
        table.truncate()
        with pytest.raises(OffsetsTrimmedError, match=r"default\.t was truncated or overwritten by commit 3"):
            next(tail)

    def test_a_tail_that_begins_later_reads_the_new_rows(self, table):
        table.append(rows(1, 2))
        table.overwrite(rows(3))
        assert [b["id"].to_pylist() for b in table.tail("earliest", until_ms=0)] == [[3]]
        assert list(table.tail("latest", until_ms=0)) == []
        with pytest.raises(OffsetsTrimmedError, match="truncated"):
            next(table.tail({0: 1}))

    def test_truncating_an_empty_table_disturbs_nobody(self, table):
        table.append(rows(1))
        table.truncate()
        tail = table.tail("earliest", until_ms=0)
        table.overwrite(rows(5))
        assert next(tail)["id"].to_pylist() == [5]


def test_the_changelog_begins_at_the_truncation(table, wh):
    table.append(rows(1, 2))
    table.overwrite(rows(3))
    assert wh.view("t$changelog").to_arrow().select(["_log_offset", "id"]).to_pylist() == [{"_log_offset": 2, "id": 3}]
