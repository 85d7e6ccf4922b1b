"""Columns, comments and properties of live tables change, while others write, tail, tier and read."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kit.tables import TableCase, tier
from streamhouse_spark import (
    CommitConflictError,
    InvalidOptionError,
    LakeMismatchError,
    SchemaMismatchError,
    TableNotFoundError,
    Warehouse,
)
from streamhouse_spark.expressions.filters import ArrowFilter
from streamhouse_spark.lake.iceberg import compaction as iceberg_maintain
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.log.data_skipping import segment_may_match
from streamhouse_spark.write.auto_compaction import compact_inline_rows

NAME = "sales.orders"
TABLE = TableCase(NAME, "id bigint not null, text string", properties={"table.log.ttl": "1d"})


def by_id(rows: pa.Table) -> dict[int, dict]:
    return {row.pop("id"): row for row in rows.to_pylist()}


class TestColumns:
    def test_old_rows_have_null_and_new_ones_their_values(self, table):
        table.append([{"id": 1, "text": "a"}])
        table.add_columns("note string comment 'why', tags array<int>")
        table.append([{"id": 2, "note": "b", "tags": [1]}])
        table.append([{"id": 3, "text": "c"}])
        assert by_id(table.to_arrow()) == {
            1: {"text": "a", "note": None, "tags": None},
            2: {"text": None, "note": "b", "tags": [1]},
            3: {"text": "c", "note": None, "tags": None},
        }
        assert table.to_arrow(columns=["tags", "id"], filter=pc.field("note") == "b").to_pylist() == [
            {"tags": [1], "id": 2}
        ]
        assert table.state.schema.columns[2].comment == "why"
        assert [c.id for c in table.state.schema.columns] == [1, 2, 3, 4]
        assert table.inspect.schemas().column("is_current").to_pylist() == [False, True]

    def test_columns_are_added_by_any_form_of_a_schema(self, table):
        table.add_columns(pa.schema([pa.field("a", pa.uint8(), metadata={"comment": "of arrow"})]))
        assert (table.schema.field("a").type, table.state.schema.column("a").comment) == (pa.int16(), "of arrow")

    @pytest.mark.parametrize(
        ("columns", "words"),
        [
            ("TEXT string", "column 'text' already"),
            ("a int, A int", "expected names that differ"),
            ("a int not null", "NOT NULL"),
            ("_log_offset bigint", "reserved"),
            ("__BUCKET int", "reserved"),
            ("a interval", "interval"),
            (pa.schema([("a\nb", pa.int32())]), "printable"),
        ],
    )
    def test_what_cannot_be_added(self, table, columns, words):
        before = table.refresh()
        with pytest.raises(SchemaMismatchError, match=words):
            table.alter(add_columns=columns, set_properties={"comment": "not to be seen"})
        assert table.refresh() == before

    def test_of_two_that_add_one_column_one_is_told(self, table, other_process):
        other = other_process().table(NAME)
        table.add_columns("a int")
        with pytest.raises(SchemaMismatchError, match="already"):
            other.add_columns("a string")

    def test_a_writer_that_knew_the_old_columns_takes_rows_with_the_new_ones(self, table, other_process):
        writer = other_process().table(NAME)
        table.add_columns("note string")
        writer.append([{"id": 1, "note": "x"}])
        with pytest.raises(SchemaMismatchError, match="nope"):
            writer.append([{"id": 1, "nope": "x"}])
        assert table.to_arrow().to_pylist() == [{"id": 1, "text": None, "note": "x"}]

    def test_a_stream_of_rows_is_not_read_twice(self, table, other_process):
        writer = other_process().table(NAME)
        table.add_columns("note string")
        rows = pa.table({"id": [1], "note": ["x"]})
        writer.append(rows.to_reader())  # its columns are known before its rows are read
        assert table.to_arrow(columns=["id", "note"]).to_pylist() == [{"id": 1, "note": "x"}]

        def altered_meanwhile():
            table.drop_column("note")
            yield from rows.to_batches()

        with pytest.raises(CommitConflictError):
            writer.append(pa.RecordBatchReader.from_batches(rows.schema, altered_meanwhile()))
        assert table.to_arrow().num_rows == 1

    def test_rows_that_were_staged_before_are_committed_after(self, table, other_process):
        writer = other_process().table(NAME)
        staged = writer.log_writer.stager().stage(pa.table({"id": [1], "text": ["a"]}, schema=writer.schema))
        table.add_columns("note string")
        writer.log_writer.commit(staged)
        table.append([{"id": 2, "note": "b"}])
        compact_inline_rows(table)
        assert by_id(table.to_arrow()) == {1: {"text": "a", "note": None}, 2: {"text": None, "note": "b"}}

    def test_a_tail_keeps_the_columns_that_it_began_with(self, table):
        tail = table.tail("earliest", until_ms=0, poll_ms=0)
        table.append([{"id": 1}])
        assert next(tail).schema.names == ["id", "text"]
        table.add_columns("note string")
        table.append([{"id": 2, "note": "b"}])
        assert [batch.schema.names for batch in tail] == [["id", "text"]]
        assert [b.schema.names for b in table.tail("earliest", until_ms=0, poll_ms=0)] == [["id", "text", "note"]] * 2

    def test_statistics_of_segments_from_before_still_prune(self, wh):
        table = wh.create_table("sales.days", "id bigint, day date")
        table.log_writer.stager()._inline_bytes_max = 0
        for year in (2020, 2021):
            table.append([{"id": year, "day": dt.date(year, 1, 1)}])
        table.add_columns("note string")
        state = table.refresh()
        wanted = pc.field("day") < dt.date(2020, 6, 1)
        for asked, num_segments in ((wanted, 1), (pc.field("note") == "x", 0), (pc.field("note").is_null(), 2)):
            node = ArrowFilter(asked, state.schema.arrow)
            found = [s for s in state.buckets[0].segments if segment_may_match(state, s, s.offsets, node)]
            assert len(found) == num_segments
        assert table.to_arrow(filter=wanted).column("id").to_pylist() == [2020]

    def test_another_process_opens_it_from_the_checkpoint(self, table, other_process):
        table.add_columns("note string")
        table.append([{"id": 1, "note": "x"}])
        table.log.checkpoint(table.refresh())
        assert other_process().table(NAME).refresh() == table.refresh()


class TestComments:
    def test_comments_of_columns_and_table_change_in_one_record(self, table):
        before = table.refresh()
        table.alter(comments={"ID": "the key", "text": "it's `x`"}, set_properties={"comment": "orders"})
        state = table.refresh()
        assert [c.comment for c in state.schema.columns] == ["the key", "it's `x`"]
        assert (table.properties.comment, state.version) == ("orders", before.version + 1)
        assert state.schema_id == before.schema_id, "rows are the same: no segment becomes one of another schema"
        table.alter(comments={"id": None}, unset_properties=["comment"])
        assert (table.refresh().schema.columns[0].comment, table.properties.comment) == (None, None)

    def test_bad_comments_of_columns_are_rejected(self, table):
        with pytest.raises(SchemaMismatchError, match="no column 'nope'"):
            table.alter(comments={"nope": "x"})
        with pytest.raises(SchemaMismatchError, match="Unicode"):
            table.alter(comments={"id": "\ud800"})
        with pytest.raises(InvalidOptionError, match="mapping"):
            table.alter(comments=["id"])
        with pytest.raises(InvalidOptionError, match="list of names"):
            table.alter(unset_properties="comment")


class TestTiering:
    def test_the_lake_gets_the_column_and_older_files_stay(self, table):
        table.append([{"id": 1, "text": "a"}])
        tier(table)
        files = set(table.lake.files().column("file_path").to_pylist())
        table.alter(add_columns="note string comment 'why'", comments={"id": "the key"})
        assert table.lake.to_arrow().to_pylist() == [{"id": 1, "text": "a", "note": None}]
        tier(table)
        metadata = table.open_lake().binding.require().metadata
        assert [(f.field_id, f.name, f.doc) for f in metadata.schema().fields] == [
            (1, "id", "the key"),
            (2, "text", None),
            (3, "note", "why"),
        ]
        table.append([{"id": 2, "note": "b"}])
        tier(table)
        assert files < set(table.lake.files().column("file_path").to_pylist())
        rows = {1: {"text": "a", "note": None}, 2: {"text": None, "note": "b"}}
        assert by_id(table.lake.to_arrow()) == by_id(table.to_arrow()) == rows

    def test_without_a_change_the_lakes_schema_is_left_alone(self, table):
        table.append([{"id": 1}])
        tier(table)
        before = table.open_lake().binding.require().metadata_location
        tier(table)
        assert table.open_lake().binding.require().metadata_location == before

    @pytest.mark.parametrize("when", ["planned", "written"])
    def test_a_round_that_meets_the_change_is_planned_again(self, table, other_process, when):
        table.append([{"id": 1}])
        tier(table)
        table.append([{"id": 2}])
        met = []
        local = run_tasks_locally(table.storage, table.settings, table.world)

        def change() -> None:
            other = other_process().table(NAME)
            other.add_columns("note string")
            other.append([{"id": 3, "note": "x"}])
            tier(other)

        def run(tasks):
            if not met and when == "planned":
                met.append(change())
            files = local(tasks)
            if not met:
                met.append(change())
            return files

        report = TieringJob(table.log, table.open_lake(), world=table.world).run(run)
        assert report.conflicts == 1
        expected = {i: {"text": None, "note": "x" if i == 3 else None} for i in (1, 2, 3)}
        assert by_id(table.lake.to_arrow()) == by_id(table.to_arrow()) == expected

    def test_a_round_of_a_process_that_knows_the_old_columns(self, table, other_process):
        table.append([{"id": 1}])
        tier(table)
        old = other_process().table(NAME)
        old.open_lake()
        job = TieringJob(old.log, old.open_lake(), world=old.world)
        table.add_columns("note string")
        table.append([{"id": 2, "note": "x"}])
        tier(table)
        table.append([{"id": 3, "note": "y"}])
        job.run(run_tasks_locally(old.storage, old.settings, old.world))
        notes = {1: None, 2: "x", 3: "y"}
        assert {i: row["note"] for i, row in by_id(table.lake.to_arrow()).items()} == notes

    def test_compaction_by_a_process_that_knows_the_old_columns_loses_no_values(
        self, table, other_process, monkeypatch
    ):
        monkeypatch.setattr(iceberg_maintain, "COMPACT_FILES_MIN", 2)
        old = other_process().table(NAME)
        stale = old.open_lake()
        table.add_columns("note string")
        for i in range(3):
            table.append([{"id": i, "note": str(i)}])
            tier(table)
        with pytest.raises(CommitConflictError, match="note"):
            stale.compact()
        assert table.open_lake().compact().files_removed == 3
        assert {i: row["note"] for i, row in by_id(table.lake.to_arrow()).items()} == {i: str(i) for i in range(3)}

    def test_a_lake_column_of_another_type_made_by_another_engine_is_a_mismatch(self, table):
        table.append([{"id": 1}])
        tier(table)
        with table.open_lake().binding.require().update_schema() as update:
            from pyiceberg.types import LongType

            update.add_column("note", LongType())
        table.add_columns("note string")
        with pytest.raises(LakeMismatchError, match="'note' is long, expected string"):
            tier(table)

    def test_trimmed_offsets_are_read_with_the_new_columns(self, wh, clock):
        table = wh.create_table("sales.trimmed", "id bigint", properties={"table.log.ttl": "1h"})
        table.append([{"id": 1}])
        tier(table)
        table.add_columns("note string")
        table.append([{"id": 2, "note": "x"}])
        tier(table)
        clock.advance(2 * 3_600_000)
        table.maintain()
        assert table.refresh().buckets[0].start == 2
        found = wh.view("sales.trimmed$changelog").to_arrow()
        assert found.select(["id", "note"]).to_pylist() == [{"id": 1, "note": None}, {"id": 2, "note": "x"}]


def test_nothing_of_a_dropped_table_changes_without_saying_so(tmp_path):
    wh = Warehouse(str(tmp_path / "warehouse"))
    table = wh.create_table("d.t", "a INT")
    wh.drop_table("d.t")
    for change in (
        lambda: table.add_columns("a INT"),
        lambda: table.alter_properties({}),
        table.truncate,
        lambda: table.forget_transactions("x"),
        lambda: table.move_consumer("x", None),
    ):
        with pytest.raises(TableNotFoundError, match="was dropped"):
            change()


FORMATS = ("iceberg", "paimon")
BEFORE = [{"id": 1, "n": 10, "text": "a"}, {"id": 2, "n": 20, "text": "b"}]


@pytest.fixture(params=[(lake, key) for lake in FORMATS for key in ((), ("id",))], ids=str)
def ordered_table(request, wh):
    lake, key = request.param
    ordered_table = wh.create_table(
        NAME,
        "id bigint not null, n int not null, text string",
        primary_key=key,
        properties={"table.datalake.format": lake, "bucket.key": "id", "bucket.num": "2"},
    )
    store(ordered_table, BEFORE)
    return ordered_table


def store(ordered_table, rows):
    return ordered_table.upsert(rows) if ordered_table.state.primary_key else ordered_table.append(rows)


def rows_of(ordered_table):
    found = ordered_table.to_arrow()
    return found.schema.names, sorted(found.to_pylist(), key=lambda row: row["id"])


def test_old_and_new_rows_are_read_in_the_new_order_from_log_and_lake(ordered_table):
    before_version, before = ordered_table.refresh().version, rows_of(ordered_table)
    tier(ordered_table)
    ordered_table.alter(add_columns="note string", drop_not_null=["N"], move_columns={"text": None, "note": "ID"})
    names = ["text", "id", "note", "n"]
    assert (ordered_table.schema.names, ordered_table.schema.field("n").nullable) == (names, True)
    new = {"text": None, "id": 3, "note": "x", "n": None}
    old = [{"text": row["text"], "id": row["id"], "note": None, "n": row["n"]} for row in BEFORE]
    assert rows_of(ordered_table) == (names, old)
    store(ordered_table, [new])
    assert rows_of(ordered_table) == (names, [*old, new])
    tier(ordered_table)
    assert rows_of(ordered_table) == (names, [*old, new])
    found = ordered_table.lake.to_arrow()
    assert found.schema.names == names
    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == [*old, new]
    store(ordered_table, [{**new, "id": 4, "n": 7}])
    assert rows_of(ordered_table) == (names, [*old, new, {**new, "id": 4, "n": 7}])
    then = ordered_table.read_version(before_version)
    assert (then.schema.names, sorted(then.to_pylist(), key=lambda row: row["id"])) == before


def test_the_order_changes_again_behind_tiered_rows(ordered_table):
    tier(ordered_table)
    for moved in ({"n": None}, {"id": "text"}, {"text": None, "id": "text", "n": "id"}):
        ordered_table.alter(move_columns=moved)
        store(ordered_table, BEFORE[:1] if ordered_table.state.primary_key else [])
        tier(ordered_table)
        names = list(ordered_table.schema.names)
        assert rows_of(ordered_table) == (names, [{name: row[name] for name in names} for row in BEFORE])
        assert ordered_table.lake.to_arrow().schema.names == names


def test_a_lookup_finds_rows_of_the_old_order(ordered_table):
    if not ordered_table.state.primary_key:
        pytest.skip("lookups need a primary key")
    assert ordered_table.lookup_one(1)["n"] == 10
    ordered_table.alter(move_columns={"text": None}, drop_not_null=["n"])
    assert ordered_table.lookup_one(1) == {"text": "a", "id": 1, "n": 10}
    ordered_table.upsert([{"id": 1, "text": "c", "n": None}])
    assert ordered_table.lookup_one(1) == {"text": "c", "id": 1, "n": None}


def test_a_tail_goes_on_over_a_move_and_ends_where_its_column_accepts_null(ordered_table):
    tail = ordered_table.tail("latest", poll_ms=0)
    store(ordered_table, [{"id": 3, "n": 30, "text": "c"}])
    assert next(tail).schema.names[-3:] == ["id", "n", "text"]
    ordered_table.alter(move_columns={"text": None})
    store(ordered_table, [{"id": 4, "n": 40, "text": "d"}])
    batch = next(tail)
    assert (batch.column("text").to_pylist(), batch.column("n").to_pylist()) == (["d"], [40])
    ordered_table.alter(drop_not_null=["n"])
    store(ordered_table, [{"id": 5, "n": None, "text": "e"}])
    with pytest.raises(SchemaMismatchError, match="column 'n' accepts null since the read began"):
        next(tail)


def test_a_writer_that_knew_the_old_order_stores_values_by_name(ordered_table, other_process):
    other = other_process().table(NAME)
    ordered_table.alter(move_columns={"n": None, "text": None}, drop_not_null=["n"])
    store(other, [{"id": 3, "n": 30, "text": "c"}])
    assert rows_of(ordered_table)[1][-1] == {"text": "c", "n": 30, "id": 3}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"drop_not_null": ["nope"]}, SchemaMismatchError, "no column 'nope'"),
        ({"drop_not_null": "n"}, InvalidOptionError, "expected a list of"),
        ({"move_columns": {"n": "n"}}, SchemaMismatchError, "cannot follow itself"),
        ({"move_columns": {"n": "nope"}}, SchemaMismatchError, "no column 'nope'"),
        ({"move_columns": ["n"]}, InvalidOptionError, "move_columns"),
    ],
)
def test_an_impossible_change_leaves_the_table_as_it_is(wh, change, error, words):
    ordered_table = wh.create_table("a.t", "id bigint not null, n int not null", primary_key=["id"])
    before = ordered_table.refresh()
    with pytest.raises(error, match=words):
        ordered_table.alter(**change)
    with pytest.raises(InvalidOptionError, match="it is part of the primary key"):
        ordered_table.alter(drop_not_null=["ID"])
    assert ordered_table.refresh() == before
