"""Columns of live tables are renamed, dropped and widened, while others write, tail, tier and read."""

from __future__ import annotations

import decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kit.tables import TableCase, tier
from streamhouse_spark import CommitConflictError, InvalidOptionError, SchemaMismatchError
from streamhouse_spark.log.data_skipping import segment_may_match
from streamhouse_spark.table.system_views import open_view
from streamhouse_spark.write.auto_compaction import compact_inline_rows
from unit.lake.filters_of_reads import filter_of

NAME = "sales.orders"
BIG = 2**40
TABLE = TableCase(
    NAME,
    "id bigint not null, a string, b string, n int, day date",
    partition_by=["day"],
    buckets=2,
    properties={"bucket.key": "id", "table.statistics.columns": "n, a", "table.log.ttl": "1d"},
)


@pytest.fixture
def keyed(wh, own_cache):
    def make(columns="id int not null, a string, n int", **properties):
        texts = {name.replace("__", "-").replace("_", "."): text for name, text in properties.items()}
        return wh.create_table("sales.keyed", columns, primary_key=["id"], buckets=2, properties=texts)

    return make


def rows_of(found: pa.Table) -> list[dict]:
    return sorted(found.to_pylist(), key=lambda row: next(iter(row.values())))


class TestNames:
    def test_names_that_swap_follow_and_return_are_never_taken_for_one_another(self, table):
        table.append([{"id": 1, "a": "a1", "b": "b1"}])
        tier(table)
        table.append([{"id": 2, "a": "a2", "b": "b2"}])
        table.alter(rename_columns={"a": "b", "b": "a"})
        swapped = [{"id": 1, "b": "a1", "a": "b1"}, {"id": 2, "b": "a2", "a": "b2"}]
        for _ in range(2):
            assert rows_of(table.to_arrow(columns=["id", "b", "a"])) == swapped
            tier(table)
        assert rows_of(table.lake.to_arrow(columns=["id", "b", "a"])) == swapped
        table.drop_column("a")
        table.add_columns("a string")
        for _ in range(2):
            assert rows_of(table.to_arrow(columns=["id", "a"])) == [{"id": 1, "a": None}, {"id": 2, "a": None}]
            tier(table)
        table.rename_column("b", "B")
        assert table.schema.names == ["id", "B", "n", "day", "a"]
        assert table.to_arrow(filter=[("b", "=", "a1")]).num_rows == 1

    def test_what_properties_say_follows_in_the_same_record(self, keyed):
        table = keyed(
            "id int not null, v int, s int, t string",
            table_merge__engine="aggregation",
            fields_s_agg="sum",
            fields_t_agg="listagg",
            fields_t_listagg_delimiter="+",
            table_statistics_columns="id, `s`",
        )
        table.upsert([{"id": 1, "v": 1, "s": 1, "t": "x"}])
        before = table.refresh().version
        table.alter(rename_columns={"ID": "key, too", "s": "total", "t": "words"}, drop_columns=["v"])
        assert table.refresh().version == before + 1
        assert dict(table.state.properties) == {
            "primary.key": "`key, too`",
            "bucket.key": "`key, too`",
            "bucket.num": "2",
            "table.merge-engine": "aggregation",
            "fields.total.agg": "sum",
            "fields.words.agg": "listagg",
            "fields.words.listagg.delimiter": "+",
            "table.statistics.columns": "`key, too`, total",
        }
        table.upsert([{"key, too": 1, "total": 2, "words": "y"}])
        assert table.to_arrow().to_pylist() == [{"key, too": 1, "total": 3, "words": "x+y"}]
        assert table.lookup_one(1) == {"key, too": 1, "total": 3, "words": "x+y"}
        table.drop_column("words")
        assert [name for name in table.state.properties if name.startswith("fields.")] == ["fields.total.agg"]

    def test_a_version_column_follows(self, keyed):
        table = keyed(table_merge__engine="versioned", table_merge__engine_versioned_ver__column="n")
        table.upsert([{"id": 1, "a": "x", "n": 5}])
        table.alter(rename_columns={"n": "version"}, widen_columns={"n": "bigint"})
        assert table.upsert([{"id": 1, "a": "old", "version": 4}]).num_rows == 0
        table.upsert([{"id": 1, "a": "new", "version": BIG}])
        assert table.to_arrow().to_pylist() == [{"id": 1, "a": "new", "version": BIG}]
        with pytest.raises(
            InvalidOptionError, match=r"'version' cannot be dropped: it is the version column of table.merge-engine"
        ):
            table.drop_column("version")


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "error", "words"),
        [
            ({"rename_columns": {"nope": "x"}}, SchemaMismatchError, "no column 'nope'"),
            (
                {"rename_columns": {"a": "B"}},
                SchemaMismatchError,
                "'a' cannot be renamed to 'B': column 'b' already exists",
            ),
            ({"rename_columns": {"a": "x", "b": "X"}}, SchemaMismatchError, "expected names that differ"),
            ({"rename_columns": {"a": "x", "A": "y"}}, SchemaMismatchError, "renamed twice"),
            ({"rename_columns": {"a": "_Bucket"}}, SchemaMismatchError, "reserved"),
            ({"rename_columns": {"a": ""}}, SchemaMismatchError, "printable"),
            ({"rename_columns": {"a": "id_bucket"}}, SchemaMismatchError, "bucket or transform partition"),
            ({"rename_columns": {"day": "date"}}, InvalidOptionError, "renamed: it is a partition column"),
            ({"drop_columns": ["nope"]}, SchemaMismatchError, "no column 'nope'"),
            ({"drop_columns": ["day"]}, InvalidOptionError, "dropped: it is a partition column"),
            (
                {"drop_columns": ["ID"]},
                InvalidOptionError,
                "dropped: it is the bucket key, which determines the layout; create",
            ),
            ({"drop_columns": ["a"], "rename_columns": {"A": "x"}}, InvalidOptionError, "dropped and changed"),
            ({"drop_columns": "a"}, InvalidOptionError, "expected a list"),
            ({"rename_columns": ["a"]}, InvalidOptionError, "expected a mapping"),
            ({"rename_columns": {"a": None}}, InvalidOptionError, "expected a mapping"),
            ({"widen_columns": {"n": 7}}, InvalidOptionError, "expected an Arrow type"),
            ({"widen_columns": {"n": "smallint"}}, SchemaMismatchError, "of type int cannot become smallint"),
            ({"widen_columns": {"n": "double"}}, SchemaMismatchError, "cannot become double"),
            ({"widen_columns": {"a": "binary"}}, SchemaMismatchError, "cannot become binary"),
            ({"widen_columns": {"n": "nonsense"}}, SchemaMismatchError, "nonsense"),
            ({"widen_columns": {"day": pa.timestamp("us")}}, InvalidOptionError, "timestamp_ntz: it is a partition"),
        ],
    )
    def test_what_cannot_be_is_refused_before_anything_is_written(self, table, change, error, words):
        before = table.refresh()
        with pytest.raises(error, match=words):
            table.alter(**change, set_properties={"comment": "not to be seen"})
        assert table.refresh() == before

    def test_the_key_keeps_its_type_and_stays(self, keyed):
        table = keyed()
        for change, words in (
            ({"drop_columns": ["id"]}, "dropped: it is part of the primary key"),
            ({"widen_columns": {"id": "bigint"}}, "changed to bigint: it is part of the primary key"),
        ):
            with pytest.raises(InvalidOptionError, match=words):
                table.alter(**change)
        table.alter(widen_columns={"id": pa.int32()})  # its own type
        assert table.state.schema_id == 1

    def test_the_last_data_column_cannot_be_dropped(self, wh):
        one = wh.create_table("sales.one", "a int, b int")
        with pytest.raises(SchemaMismatchError, match="would leave no column"):
            one.drop_column("a", "b")
        two = wh.create_table("sales.two", "a int, day date", partition_by=["day"])
        with pytest.raises(InvalidOptionError, match="partition by fewer columns"):
            two.drop_column("a")

    def test_the_type_of_the_bucket_key_where_paimon_hashes_it(self, wh):
        properties = {"table.datalake.format": "paimon", "bucket.key": "a"}
        table = wh.create_table("sales.p", "a int, b int", buckets=2, properties=properties)
        with pytest.raises(
            InvalidOptionError, match="'a' cannot be changed to bigint: it is the bucket key, which determines"
        ):
            table.widen_column("a", "bigint")
        with pytest.raises(SchemaMismatchError, match="'_KEY_b' is reserved for a metadata column of Paimon"):
            table.rename_column("b", "_KEY_b")
        assert table.refresh().schema_id == 1
        table.alter(rename_columns={"a": "c"}, widen_columns={"b": "bigint"})
        assert table.properties.bucket_key == ("c",)

    def test_the_name_of_the_lakes_bucket_stays_taken_when_the_key_is_renamed(self, table):
        tier(table)
        table.rename_column("id", "key")
        for name in ("id_bucket", "key_bucket_"):
            with pytest.raises(SchemaMismatchError, match="bucket or transform partition"):
                table.rename_column("a", name)
            with pytest.raises(SchemaMismatchError, match="bucket or transform partition"):
                table.add_columns(f"{name} int")


class TestTypes:
    @pytest.mark.parametrize(
        ("before", "after", "low", "high"),
        [
            ("tinyint", "smallint", -128, 30_000),
            ("tinyint", "bigint", -128, BIG),
            ("smallint", "int", -5, 2**30),
            ("int", "bigint", -(2**31), BIG),
            ("float", "double", 0.5, 1e300),
            ("decimal(5,2)", "decimal(38,2)", decimal.Decimal("-999.99"), decimal.Decimal(10) ** 30),
        ],
    )
    def test_rows_of_both_types_are_one_column(self, wh, before, after, low, high):
        table = wh.create_table("sales.wide", f"id int, v {before}", properties={"table.statistics.columns": "*"})
        table.log_writer.stager()._inline_bytes_max = 0
        table.append([{"id": 1, "v": low}])
        tier(table)
        table.append([{"id": 2, "v": low}])
        table.widen_column("v", after)
        table.append([{"id": 3, "v": high}])
        for _ in range(2):
            assert [row["v"] for row in rows_of(table.to_arrow())] == [low, low, high]
            assert rows_of(table.to_arrow(filter=[("v", "<=", low)], columns=["id"])) == [{"id": 1}, {"id": 2}]
            assert table.to_arrow(filter=[("v", ">", low)], columns=["id"]).to_pylist() == [{"id": 3}]
            tier(table)
        plan = table.open_lake().plan_read(node=filter_of(table.state.schema, ("v", ">", low)))
        assert sum(split.num_rows for split in plan.splits) == 2, "bounds of the older file still leave it out"
        assert [row["v"] for row in rows_of(table.lake.to_arrow())] == [low, low, high]
        assert table.lake.to_arrow().schema == table.schema

    def test_rows_that_were_staged_before_are_committed_after(self, table, other_process):
        writer = other_process().table(NAME)
        rows = pa.Table.from_pylist([{"id": 1, "n": 7}], schema=writer.schema)
        staged = writer.log_writer.stager().stage(rows)
        table.widen_column("n", "bigint")
        writer.log_writer.commit(staged)
        assert table.to_arrow(columns=["n"])["n"].to_pylist() == [7]


class TestWriters:
    @pytest.mark.parametrize("change", [{"rename_columns": {"a": "b", "b": "a"}}, {"drop_columns": ["a"]}])
    def test_rows_that_were_staged_before_a_name_moved_are_refused(self, table, other_process, change):
        writer = other_process().table(NAME)
        rows = pa.Table.from_pylist([{"id": 1, "a": "x"}], schema=writer.schema)
        staged = writer.log_writer.stager().stage(rows)
        table.alter(**change)
        with pytest.raises(CommitConflictError, match="renamed or dropped while rows were staged"):
            writer.log_writer.commit(staged)
        assert table.to_arrow().num_rows == 0

    def test_a_writer_that_knew_the_old_columns_means_the_new_ones(self, table, other_process):
        writer = other_process().table(NAME)
        table.alter(rename_columns={"a": "b", "b": "a"})
        writer.append([{"id": 1, "a": "new a", "b": "new b"}])
        assert table.to_arrow(columns=["a", "b"]).to_pylist() == [{"a": "new a", "b": "new b"}]
        table.rename_column("a", "text")
        with pytest.raises(SchemaMismatchError, match=r"column 'a' of the rows is not in .*: it was renamed to 'text'"):
            writer.append([{"id": 2, "a": "x"}])
        table.drop_column("text")
        with pytest.raises(SchemaMismatchError, match=r"column 'a' of the rows is not in .*: it was dropped"):
            writer.append([{"id": 2, "a": "x"}])

    def test_a_stream_of_rows_is_not_read_twice(self, table, other_process):
        writer = other_process().table(NAME)
        table.alter(rename_columns={"a": "b", "b": "a"})
        rows = pa.table({"id": [1], "a": ["x"]})
        with pytest.raises(CommitConflictError, match="write the rows again"):
            writer.append(pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches()))
        assert table.to_arrow().num_rows == 0

    def test_a_keyed_writer_follows_renamed_and_widened_columns(self, keyed, other_process):
        table = keyed()
        writer = other_process().table("sales.keyed")
        table.upsert([{"id": 1, "a": "x", "n": 1}])
        table.alter(rename_columns={"id": "key", "a": "text"}, widen_columns={"n": "bigint"})
        writer.upsert([{"key": 1, "n": BIG}], columns=["n"])
        with pytest.raises(SchemaMismatchError, match="it was renamed to 'text'"):
            writer.upsert([{"key": 1, "a": "y"}])
        assert writer.lookup_one(1) == {"key": 1, "text": "x", "n": BIG}
        assert open_view(table, "changelog").to_arrow().select(["key", "text", "n"]).to_pylist() == [
            {"key": 1, "text": "x", "n": 1},
            {"key": 1, "text": "x", "n": 1},
            {"key": 1, "text": "x", "n": BIG},
        ]


class TestReaders:
    def test_a_lookup_of_an_older_state_meets_rows_of_newer_columns(self, keyed, other_process):
        table = keyed()
        reader = other_process().table("sales.keyed")
        table.upsert([{"id": 1, "a": "x", "n": 1}])
        assert reader.lookup_one(1) == {"id": 1, "a": "x", "n": 1}
        table.alter(rename_columns={"id": "key", "a": "text"}, drop_columns=["n"])
        table.upsert([{"key": 1, "text": "y"}])
        table.lookup([1])
        stale = {"max_staleness_ms": 10**9}
        assert reader.lookup([1], **stale).to_pylist() == [{"key": 1, "text": "y", "_found": True}]
        again = other_process().table("sales.keyed")
        assert again.lookup_one(1, **stale) == {"key": 1, "text": "y"}

    def test_a_lookup_with_an_older_state_follows_renamed_columns(self, keyed, other_process):
        table = keyed()
        reader = other_process().table("sales.keyed")
        table.upsert([{"id": 1, "a": "x", "n": 1}])
        reader.lookup_one(1)
        table.alter(rename_columns={"a": "n", "n": "a"})
        table.upsert([{"id": 1, "a": 5, "n": "z"}])
        table.lookup([1])
        assert reader.lookup_one(1, max_staleness_ms=10**9) == {"id": 1, "n": "z", "a": 5}

    def test_keys_that_are_inserted_where_absent_are_known_by_their_place(self, keyed, other_process):
        table = keyed()
        late = other_process().table("sales.keyed")
        keys = pa.table({"id": pa.array([1, 2], pa.int32())})
        table.rename_column("id", "key")
        late.refresh()
        late.keyed.insert_if_absent(keys)
        assert table.to_arrow(columns=["key"]).to_pylist() == [{"key": 1}, {"key": 2}]

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"rename_columns": {"a": "c"}}, "column 'a' was renamed to 'c'"),
            ({"drop_columns": ["a"]}, "column 'a' was dropped"),
            ({"widen_columns": {"n": "bigint"}}, "column 'n' changed from int to bigint"),
        ],
    )
    def test_a_tail_of_the_column_ends_and_another_goes_on(self, table, change, words):
        table.append([{"id": 1, "a": "x"}])
        whole = table.tail("earliest", until_ms=0, poll_ms=0)
        other = table.tail("earliest", columns=["id", "b"], until_ms=0, poll_ms=0)
        next(whole), next(other)
        table.alter(**change)
        table.append([{"id": 2, "b": "y"}])
        with pytest.raises(SchemaMismatchError, match=f"{words} since the read began; follow it again"):
            next(whole)
        assert [row for batch in other for row in batch.to_pylist()] == [{"id": 2, "b": "y"}]

    def test_statistics_by_an_older_name_are_of_the_older_column(self, wh):
        table = wh.create_table("sales.days", "a int, b int", properties={"table.statistics.columns": "*"})
        table.log_writer.stager()._inline_bytes_max = 0
        table.append([{"a": 1, "b": 100}])
        table.alter(rename_columns={"a": "b", "b": "a"})
        table.log_writer.stager()._inline_bytes_max = 0
        table.append([{"a": 7, "b": 7}])
        state, node = table.refresh(), filter_of(table.state.schema, ("a", "=", 100))
        found = [s for s in state.buckets[0].segments if segment_may_match(state, s, s.offsets, node)]
        assert [s.schema_id for s in found] == [1]
        assert table.to_arrow(filter=pc.field("a") == 100).to_pylist() == [{"b": 1, "a": 100}]

    def test_merging_takes_statistics_of_the_columns_whatever_they_were_called(self, wh):
        table = wh.create_table("sales.m", "a string, b binary, c int", properties={"table.statistics.columns": "*"})
        for number in range(3):
            table.append([{"a": f"a{number}", "b": b"b", "c": number}])
        table.alter(rename_columns={"a": "b", "b": "a", "c": "d"})
        table.append([{"a": b"x", "b": "y", "d": 9}])
        compact_inline_rows(table)
        first, last = table.refresh().buckets[0].segments
        assert (first.schema_id, dict(first.stats)) == (1, {"a": ["a0", "a2", 0], "c": [0, 2, 0]})
        assert (last.schema_id, dict(last.stats)) == (2, {"b": ["y", "y", 0], "d": [9, 9, 0]})
        assert table.to_arrow(filter=[("d", "=", 2)]).to_pylist() == [{"b": "a2", "a": b"b", "d": 2}]

    def test_merged_and_trimmed_rows_keep_their_columns(self, table, clock):
        for number in range(3):
            table.append([{"id": number, "a": f"a{number}", "n": number}])
        table.alter(rename_columns={"a": "c"}, widen_columns={"n": "bigint"}, drop_columns=["b"], add_columns="b int")
        table.append([{"id": 3, "c": "c3", "n": BIG, "b": 3}])
        compact_inline_rows(table)
        expected = [
            {"id": i, "c": f"{'ca'[i < 3]}{i}", "n": (i, BIG)[i == 3], "b": (None, 3)[i == 3]} for i in range(4)
        ]
        columns = ["id", "c", "n", "b"]
        assert rows_of(table.to_arrow(columns=columns)) == expected
        tier(table)
        clock.advance(48 * 3_600_000)
        table.maintain()
        assert all(log.start == log.end for log in table.refresh().buckets.values())
        assert rows_of(open_view(table, "changelog").to_arrow().select(columns)) == expected
        assert rows_of(table.to_arrow(columns=columns)) == expected
