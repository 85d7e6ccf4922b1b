"""Staged rows: put together, shipped, refused when too late, and nobody's until they are committed."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from kit.rows import ids
from kit.tables import TableCase
from streamhouse_spark import CommitConflictError, OffsetRange, TableNotFoundError, Transaction
from streamhouse_spark.core.paths import segment_key
from streamhouse_spark.log.actions import MarkOrphans, SetSchema
from streamhouse_spark.log.staging import STAGED_AGE_MS_MAX, merge_staged_rows
from streamhouse_spark.schema.table_schema import Column, TableSchema

TABLE = TableCase("t", "id BIGINT", buckets=2, properties={"bucket.key": "id"})


def stage(table, first, count):
    return table.log_writer.stager().stage(pa.table({"id": pa.array(range(first, first + count), pa.int64())}))


def test_staged_rows_are_seen_by_nobody(table):
    version = table.state.version
    staged = stage(table, 0, 60_000)
    assert staged.num_rows == 60_000
    assert table.refresh().version == version
    assert ids(table) == []


def test_parts_of_several_processes_are_committed_as_one(table, other_process):
    parts = [
        stage(each.table("t"), i * 100_000, 3 if i % 2 else 50_000)
        for i, each in enumerate(other_process() for _ in range(4))
    ]
    shipped = [pickle.loads(pickle.dumps(p)) for p in parts]
    offsets = table.log_writer.commit(merge_staged_rows(shipped), transaction=Transaction("job", 1))
    assert offsets.num_rows == 100_006
    assert table.state.version == 2
    assert ids(table) == sorted(
        [*range(50_000), *range(100_000, 100_003), *range(200_000, 250_000), *range(300_000, 300_003)]
    )
    assert table.log_writer.commit(merge_staged_rows(shipped), transaction=Transaction("job", 1)) == offsets
    assert table.to_arrow().num_rows == 100_006


def test_an_abandoned_staging_changes_nothing(table):
    stage(table, 0, 60_000)
    assert table.append([{"id": 1}]).num_rows == 1
    assert ids(table) == [1]


class TestTooLate:
    def test_another_table_has_the_name(self, wh, table):
        staged = stage(table, 0, 3)
        wh.drop_table("t")
        again = wh.create_table("t", "id BIGINT", buckets=2, properties={"bucket.key": "id"})
        with pytest.raises(CommitConflictError, match="dropped and created again; write them again"):
            again.log_writer.commit(staged)
        with pytest.raises(TableNotFoundError):
            table.log_writer.commit(staged)
        with pytest.raises(CommitConflictError, match="different tables"):
            merge_staged_rows([staged, stage(again, 0, 3)])
        assert ids(again) == []

    def test_cleaning_may_have_removed_them(self, table, clock):
        staged = stage(table, 0, 60_000)
        clock.advance(STAGED_AGE_MS_MAX + 1)
        with pytest.raises(CommitConflictError, match="staged so long ago"):
            table.log_writer.commit(staged)
        assert ids(table) == []

    def test_the_oldest_part_counts(self, table, clock):
        old = stage(table, 0, 3)
        clock.advance(STAGED_AGE_MS_MAX - 10)
        new = stage(table, 3, 3)
        both = merge_staged_rows([new, old])
        clock.advance(11)
        with pytest.raises(CommitConflictError, match="staged so long ago"):
            table.log_writer.commit(both)
        assert table.log_writer.commit(new).num_rows == 3

    def test_cleaning_condemned_one(self, table):
        staged = stage(table, 0, 60_000)
        key = segment_key(table.uuid, staged.segments[0].segment.uuid)
        table.log.commit(lambda *_: (MarkOrphans((key,)),))
        with pytest.raises(CommitConflictError, match="maintenance may have deleted them"):
            table.log_writer.commit(staged)
        assert ids(table) == []

    @pytest.mark.parametrize("first_is_older", [True, False])
    def test_the_schema_changed_type(self, table, first_is_older):
        older = stage(table, 0, 3)
        changed = TableSchema((Column(1, "id", pa.int64(), nullable=False),))
        table.log.commit(lambda *_: (SetSchema(2, changed),))
        newer = stage(table, 3, 3)
        parts = [older, newer] if first_is_older else [newer, older]
        with pytest.raises(CommitConflictError, match="write them again"):
            table.log_writer.commit(merge_staged_rows(parts))
        assert table.log_writer.commit(newer).num_rows == 3


def test_nothing_staged_is_nothing_committed(table):
    staged = table.log_writer.stager().stage(pa.table({"id": pa.array([], pa.int64())}))
    assert staged.segments == ()
    assert table.log_writer.commit(staged) == {}
    assert table.state.version == 1
    assert table.log_writer.commit(staged, transaction=Transaction("job", 1)) == {}
    assert table.state.version == 2
    assert table.append([{"id": 1}], transaction=Transaction("job", 2)) in (
        {0: OffsetRange(0, 1)},
        {1: OffsetRange(0, 1)},
    )
