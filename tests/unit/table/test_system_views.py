"""Views of names with a suffix."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kit.tables import TableCase, tier
from streamhouse_spark import OffsetsTrimmedError, TableNotFoundError
from streamhouse_spark.log.actions import Trim
from streamhouse_spark.write.auto_compaction import compact_inline_rows, compact_small_segments

TABLE = TableCase("sales.orders", "id BIGINT, name STRING", buckets=2, properties={"bucket.key": "id"})


class TestChangelog:
    def test_every_row_is_an_insert_with_its_offset_and_time(self, wh, table, clock):
        table.append([{"id": 1, "name": "a"}])
        clock.advance(1000)
        table.append([{"id": 1, "name": "b"}, {"id": 2, "name": None}])
        rows = wh.view("sales.orders$changelog").to_arrow()
        assert rows.schema == wh.view("sales.orders$changelog").schema
        assert rows.schema.names == ["_change_type", "_log_offset", "_commit_timestamp", "id", "name"]
        assert set(rows["_change_type"].to_pylist()) == {"insert"}
        first, second = (r for r in rows.to_pylist() if r["id"] == 1)
        assert (first["_log_offset"], second["_log_offset"]) == (0, 1)
        assert (second["_commit_timestamp"] - first["_commit_timestamp"]).total_seconds() == 1
        assert second["_commit_timestamp"].timestamp() * 1000 == clock.now_ms()

    def test_merging_changes_nothing_in_it(self, wh, table, clock):
        view = wh.view("sales.orders$changelog")
        for i in range(20):
            clock.jump(-300 if i % 5 == 2 else 0)
            clock.advance(100)
            table.append([{"id": j, "name": f"{i}"} for j in range(i)])
        before = view.to_arrow()
        assert before.num_rows == sum(range(20))
        compact_inline_rows(table)
        assert view.to_arrow().equals(before)
        for _ in range(10):
            table.append(pa.table({"id": range(30_000)}))
        before = view.to_arrow()
        assert compact_small_segments(table) > 10
        assert view.to_arrow().combine_chunks().equals(before.combine_chunks())

    def test_it_shows_what_the_hot_log_holds(self, wh, table):
        table.append([{"id": i} for i in range(10)])
        start = table.state.buckets[0].segments[0].end_offset
        table.append([{"id": i} for i in range(10)])
        table.log.commit(lambda *_: (Trim({0: start}),))
        rows = wh.view("sales.orders$changelog").to_arrow()
        assert rows.num_rows == 20 - start
        assert rows["_log_offset"].to_pylist()[0] == start

    def test_rows_trimmed_from_the_log_are_read_from_the_lake_without_times(self, wh, table):
        table.append([{"id": i} for i in range(50)])
        table.append([{"id": i} for i in range(50, 90)])
        before = wh.view("sales.orders$changelog").to_arrow(columns=["_change_type", "_log_offset", "id"])
        _tier(table)
        tiered = table.refresh().ends
        table.append([{"id": i} for i in range(90, 100)])
        table.log.commit(lambda *_: (Trim({0: tiered[0], 1: tiered[1] // 2}),))
        compact_inline_rows(table)
        rows = wh.view("sales.orders$changelog").to_arrow()
        assert rows.schema == wh.view("sales.orders$changelog").schema
        starts = {b: log.start for b, log in table.refresh().buckets.items()}
        assert rows["_commit_timestamp"].null_count == sum(starts.values()) > 0
        assert sorted(rows["id"].to_pylist()) == list(range(100))
        changes = {(r["_change_type"], r["_log_offset"], r["id"]) for r in rows.to_pylist()}
        assert changes >= {tuple(r.values()) for r in before.to_pylist()}

    def test_trimmed_rows_are_read_from_a_lake_that_was_switched_off(self, wh, table):
        table.append([{"id": i} for i in range(50)])
        _tier(table)
        table.append([{"id": i} for i in range(50, 60)])
        table.log.commit(lambda state, _: (Trim({0: state.lake_offset(0)}),))
        table.alter_properties({"table.datalake.enabled": "false"})
        assert sorted(wh.view("sales.orders$changelog").to_arrow()["id"].to_pylist()) == list(range(60))

    def test_trimmed_rows_that_no_lake_holds_are_an_error(self, wh, table):
        table.append([{"id": i} for i in range(50)])
        _tier(table)
        table.append([{"id": i} for i in range(50)])
        table.log.commit(lambda *_: (Trim({0: table.state.ends[0]}),))
        with pytest.raises(OffsetsTrimmedError, match=r"bucket 0 .*tail\(start='earliest'\)"):
            wh.view("sales.orders$changelog").to_arrow()

    def test_a_changelog_view_takes_columns_and_filters(self, wh, table):
        table.append([{"id": i, "name": str(i)} for i in range(10)])
        view = wh.view("sales.orders$changelog")
        found = view.to_arrow(columns=["NAME", "_log_offset"], filter=[("id", ">=", 8)])
        assert found.column_names == ["name", "_log_offset"]
        assert sorted(found["name"].to_pylist()) == ["8", "9"]
        assert view.to_arrow(filter=[("_LOG_OFFSET", "=", 0)]).num_rows == 2
        assert view.to_arrow(columns=[]).num_rows == 10

    def test_it_is_empty_with_columns(self, wh, table):
        rows = wh.view("sales.orders$changelog").to_arrow()
        assert rows.num_rows == 0
        assert rows.schema.names[-1] == "name"


def test_a_view_without_a_suffix_is_the_table(wh, table):
    table.append([{"id": 1}])
    view = wh.view("sales.orders")
    assert view.schema == table.schema
    assert view.to_arrow(columns=["id"]).to_pylist() == [{"id": 1}]


def test_a_view_of_a_dropped_table_fails(wh, table, other_process):
    views = [wh.view(f"sales.orders{suffix}") for suffix in ("", "$changelog", "$buckets", "$commits")]
    other_process().drop_table("sales.orders")
    for view in views:
        with pytest.raises(TableNotFoundError, match="was dropped"):
            view.to_arrow()


def _tier(table) -> None:
    tier(table)
