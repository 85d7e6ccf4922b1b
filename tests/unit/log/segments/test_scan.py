"""Ranges of a bucket are cut into splits that hold every row once, in order, and read as the latest schema."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.sim import sim_world
from kit.tables import TableCase
from streamhouse_spark import CorruptDataError, OffsetRange, OffsetsTrimmedError, Warehouse
from streamhouse_spark.log.actions import SetSchema, Trim
from streamhouse_spark.log.append_commit import has_same_meaning
from streamhouse_spark.log.segment import SegmentIndex
from streamhouse_spark.log.segments.scan import LogSplit, check_dense, hot_range, plan_range, read_split, split_by_size
from streamhouse_spark.log.segments.writer import BATCH_ROWS_MAX
from streamhouse_spark.log.state import BucketLog, fold
from streamhouse_spark.schema.table_schema import Column, TableSchema
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.write.auto_compaction import compact_inline_rows
from unit.log.states import appended, record, segment

TABLE = TableCase("t", "id BIGINT, s STRING")


def rows_of(table, split) -> list[int]:
    batches = check_dense(read_split(table.storage, split, table.state.schema), split.offsets)
    return [i for b in batches for i in b.batch["id"].to_pylist()]


def big_table():
    world = sim_world(0)
    table = Warehouse("wh", storage=MemoryStorage(world), world=world).create_table("t", "id BIGINT")
    sizes = [10, BATCH_ROWS_MAX * 2 + 5, 1, 30_000, 3, BATCH_ROWS_MAX]
    start = 0
    for size in sizes:
        table.append(pa.table({"id": range(start, start + size)}))
        start += size
    return table, start


BIG, BIG_ROWS = big_table()


class TestCutting:
    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, BIG_ROWS), st.integers(0, BIG_ROWS), st.sampled_from([1, 1000, 100_000, 600_000, 10**9]))
    def test_pieces_are_the_whole(self, a, b, target_bytes):
        split = plan_range(BIG.state, 0, OffsetRange(min(a, b), max(a, b)))
        pieces = split_by_size(split, target_bytes)
        expected = split.offsets.start
        for piece in pieces:
            assert piece.offsets.start == expected < piece.offsets.end
            assert piece.segments
            expected = piece.offsets.end
        assert expected == split.offsets.end
        assert sum(p.num_rows for p in pieces) == split.num_rows == len(split.offsets)
        assert abs(sum(p.size_bytes for p in pieces) - split.size_bytes) <= 8 * len(pieces) + 8

    def test_pieces_are_about_as_large_as_asked(self):
        split = plan_range(BIG.state, 0, BIG.state.buckets[0].offsets)
        batch_bytes = BATCH_ROWS_MAX * 8
        pieces = split_by_size(split, batch_bytes)
        assert len(pieces) >= 3
        assert max(p.size_bytes for p in pieces) < 2.5 * batch_bytes
        assert split_by_size(split, 10**9) == [split]

    def test_each_piece_reads_its_rows(self):
        split = plan_range(BIG.state, 0, OffsetRange(5, BIG_ROWS - 5))
        found = []
        for piece in split_by_size(split, 300_000):
            found += rows_of(BIG, LogSplit.from_json(json.loads(json.dumps(piece.to_json()))))
        assert found == list(range(5, BIG_ROWS - 5))

    def test_an_empty_split_has_no_pieces(self):
        assert split_by_size(plan_range(BIG.state, 0, OffsetRange(7, 7)), 100) == []


class TestRanges:
    def test_what_is_trimmed_or_not_there_yet(self, table):
        table.append([{"id": i} for i in range(10)])
        table.append([{"id": i} for i in range(10, 20)])
        table.log.commit(lambda *_: (Trim({0: 10}),))
        assert rows_of(table, plan_range(table.state, 0, OffsetRange(12, 20))) == list(range(12, 20))
        for start, end in ((0, 5), (9, 20), (15, 21), (30, 31)):
            with pytest.raises(OffsetsTrimmedError, match=r"hot log holds \[10, 20\)"):
                plan_range(table.state, 0, OffsetRange(start, end))
        assert plan_range(table.state, 0, OffsetRange(3, 3)).segments == ()

    def test_a_trim_within_a_segment_hides_its_first_rows(self, table):
        table.append([{"id": i} for i in range(10)])
        table.log.commit(lambda *_: (Trim({0: 4}),))
        assert table.to_arrow()["id"].to_pylist() == list(range(4, 10))
        assert table.append([{"id": 10}])[0] == OffsetRange(10, 11)
        compact_inline_rows(table)
        assert table.to_arrow()["id"].to_pylist() == list(range(4, 11))
        assert table.inspect.buckets().to_pylist()[0]["log_start_offset"] == 4

    def test_a_hot_range_starts_at_the_lake_offset(self):
        log = BucketLog(5, 9)
        assert hot_range(log, 7) == OffsetRange(7, 9)
        assert hot_range(log, 9) == OffsetRange(9, 9)
        assert hot_range(log, 12) == OffsetRange(12, 12)
        with pytest.raises(OffsetsTrimmedError):
            hot_range(log, 4)

    def test_rows_that_are_missing_are_noticed(self, table):
        for i in range(3):
            table.append([{"id": i}])
        split = plan_range(table.state, 0, OffsetRange(0, 3))
        for left in ([0, 1], [1, 2], [0, 2], []):
            kept = LogSplit(split.table_uuid, 0, split.offsets, tuple(split.segments[i] for i in left), split.schemas)
            with pytest.raises(CorruptDataError):
                rows_of(table, kept)


class TestOlderSchemas:
    """Columns are matched by id, so that renaming, moving, dropping and adding keep what was written."""

    def evolve(self, table, columns):
        number = table.state.schema_id + 1
        table.log.commit(lambda *_: (SetSchema(number, TableSchema(tuple(columns))),))

    def test_added_renamed_moved_dropped(self, wh):
        table = wh.create_table("e", "a INT, b STRING, c DOUBLE")
        table.append([{"a": 1, "b": "x", "c": 0.5}])
        table.append(pa.table({"a": pa.array(range(60_000), pa.int32()), "b": ["y"] * 60_000}))
        swapped = [Column(2, "a", pa.string()), Column(1, "b", pa.int32())]
        self.evolve(table, [Column(4, "d", pa.int64()), *swapped, Column(5, "c", pa.string())])
        table.append([{"a": "new", "b": 7, "c": "text", "d": 8}])
        rows = table.to_arrow()
        assert rows.schema == table.schema
        assert rows.column_names == ["d", "a", "b", "c"]
        assert rows.slice(0, 1).to_pylist() == [{"d": None, "a": "x", "b": 1, "c": None}]
        assert rows.slice(60_001).to_pylist() == [{"d": 8, "a": "new", "b": 7, "c": "text"}]
        assert table.to_arrow(columns=["d"]).num_rows == 60_002
        assert table.to_arrow(columns=["c", "a"], filter=[("b", "=", 1)]).to_pylist()[0] == {"c": None, "a": "x"}
        before = table.to_arrow()
        compact_inline_rows(table)
        assert table.to_arrow().equals(before)
        assert {s.schema_id for s in table.state.live_segments()} == {1, 2}, "merging never mixes schemas"

    def test_statistics_of_an_older_schema_prune_nothing(self, wh):
        """The names of two columns change places: the older bounds belong to the other one."""
        table = wh.create_table("e", "a INT, b INT", properties={"table.statistics.columns": "*"})
        table.append([{"a": 1, "b": 100}])
        one, two = table.state.schema.columns
        self.evolve(table, [Column(one.id, "b", pa.int32()), Column(two.id, "a", pa.int32())])
        assert table.to_arrow(filter=[("a", "=", 100)]).num_rows == 1
        assert table.to_arrow(filter=[("b", "=", 1)]).num_rows == 1
        assert table.to_arrow(filter=[("a", "=", 1)]).num_rows == 0

    def test_another_writer_that_has_not_seen_the_change(self, wh, other_process):
        table = wh.create_table("e", "a INT")
        late = other_process().table("e")
        self.evolve(table, [*table.state.schema.columns, Column(2, "b", pa.string())])
        late.append([{"a": 1}])
        assert table.to_arrow().to_pylist() == [{"a": 1, "b": None}]
        late.append([{"a": 2, "b": "x"}])
        assert table.to_arrow().num_rows == 2

    def test_schemas_have_the_same_meaning_by_column_ids(self):
        def of(*columns):
            return TableSchema(tuple(Column(*c) for c in columns))

        old = of((1, "a", pa.int32()), (2, "b", pa.string(), False))
        assert has_same_meaning(old, old)
        b = (2, "b", pa.string(), False)
        assert has_same_meaning(old, of((1, "a", pa.int64()), b, (3, "new", pa.int8())))
        assert not has_same_meaning(old, of((1, "a", pa.int32()), (2, "bb", pa.string(), False)))
        assert not has_same_meaning(old, of(b)), "the rows may have values in a column that is gone"
        assert not has_same_meaning(of((1, "a", pa.int64())), of((1, "a", pa.int32())))
        assert not has_same_meaning(old, of((1, "a", pa.int32(), False), b))
        assert not has_same_meaning(old, of((1, "a", pa.int32()), b, (3, "new", pa.int8(), False)))


def with_batches(base: int, batches: list[int], row_bytes: int, uuid: str):
    """A segment object of these record batches."""
    rows = np.array(batches, np.int64)
    none = np.zeros(0, np.int64)
    index = SegmentIndex(1 << 16, np.cumsum(rows) - rows, rows, np.zeros(0, np.uint64), none, none)
    made = segment(base, sum(batches), uuid=uuid, size_bytes=sum(batches) * row_bytes)
    return replace(made, index_bytes=index.to_bytes())


LAYOUTS = st.lists(
    st.tuples(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 40)), min_size=1, max_size=6
)


@given(layout=LAYOUTS, target_bytes=st.integers(1, 3000), data=st.data())
def test_pieces_cover_a_range_once_and_in_order(layout, target_bytes, data):
    segments, base = [], 0
    for at, (batches, row_bytes) in enumerate(layout):
        segments.append(with_batches(base, batches, row_bytes, f"s{at}"))
        base += sum(batches)
    start = data.draw(st.integers(0, base - 1))
    end = data.draw(st.integers(start + 1, base))
    split = plan_range(appended(*segments), 0, OffsetRange(start, end))
    pieces = split_by_size(split, target_bytes)
    position = start
    for piece in pieces:
        assert piece.offsets.start == position
        assert piece.offsets
        position = piece.offsets.end
        assert all(s.offsets.intersect(piece.offsets) for s in piece.segments)
    assert position == end
    assert sum(p.num_rows for p in pieces) == end - start
    for piece in pieces[:-1]:
        assert piece.size_bytes >= target_bytes - len(piece.segments), "only the last piece is small"
    assert [LogSplit.from_json(p.to_json()) for p in pieces] == pieces


def test_a_range_outside_the_log_is_refused():
    state = fold(appended(segment(0, 3, uuid="a"), segment(3, 2, uuid="b")), record(4, Trim({0: 3})))
    assert plan_range(state, 0, OffsetRange(3, 5)).num_rows == 2
    for start, end in ((2, 5), (0, 1), (3, 6)):
        with pytest.raises(OffsetsTrimmedError):
            plan_range(state, 0, OffsetRange(start, end))


@pytest.mark.parametrize(
    ("start", "end", "lake", "expected"),
    [(0, 5, 0, (0, 5)), (0, 5, 3, (3, 5)), (3, 5, 3, (3, 5)), (3, 5, 5, (5, 5)), (3, 5, 7, (7, 7)), (0, 0, 0, (0, 0))],
)
def test_the_hot_range_begins_exactly_where_the_lake_ends(start, end, lake, expected):
    assert hot_range(BucketLog(start, end), lake) == OffsetRange(*expected)


def test_a_gap_between_lake_and_log_is_an_error():
    with pytest.raises(OffsetsTrimmedError):
        hot_range(BucketLog(4, 9), 3)
