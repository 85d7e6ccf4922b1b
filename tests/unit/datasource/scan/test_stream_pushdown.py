"""Batches of a stream with the columns and filters of its query: fewer pieces and columns, the same answer."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from property.stream_driver import Opened
from streamhouse_spark import OffsetsTrimmedError, SchemaMismatchError, Warehouse
from streamhouse_spark.config.spark_options import parse_stream_read_options
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.read.read_target import resolve_stream_target
from streamhouse_spark.datasource.rpc_arguments import NEED_OPTION
from streamhouse_spark.datasource.scan.arrow_reader import COUNTS_KEY
from streamhouse_spark.datasource.scan.stream_pushdown import PrunedStreamReader, StreamPart, StreamPartReader
from streamhouse_spark.lake.parquet import reader as parquet_reader
from streamhouse_spark.read.scan_tasks import LogScanTask, OffsetsScanTask
from streamhouse_spark.warehouse.process_cache import Connection
from streamhouse_spark.write.auto_compaction import compact_inline_rows
from unit.datasource.scan.filter_trees import SCHEMA, TREES, is_true
from unit.datasource.scan.scans import tier
from unit.datasource.scan.test_pushed_filters import LIMITS, row

COLUMNS = "id long not null, name string, amount double"
KEY = COUNTS_KEY.encode()


@pytest.fixture
def wh(memory, world):
    return Warehouse("wh", storage=memory, world=world)


def above(low):
    return {"op": ">=", "children": [{"column": ["id"]}, {"literal": low, "type": '"long"'}]}


class Stream:
    """A query of one stream, whose batches are planned with a need."""

    def __init__(self, connection, name, **options):
        parsed = parse_stream_read_options(options)
        table = connection.table(str(parse_table_name(name).path))
        target = resolve_stream_target(table, parse_table_name(name).suffix, parsed)
        self.schema = spark_versions.spark_schema_of(target.schema)
        self.connection = connection
        self.reader = PrunedStreamReader(connection, target, parsed, self.schema, table.state)
        self.start = self.reader.initialOffset()
        self.end = self.reader.latestOffset(self.start, self.reader.getDefaultReadLimit())

    def plan_parts(self, columns, *filters):
        fields = [field for field in json.loads(self.schema.json())["fields"] if field["name"] in columns]
        need = {"columns": list(columns), "schema": {"type": "struct", "fields": fields}, "filters": list(filters)}
        before = json.dumps(self.start)
        found = self.reader.partitions({**self.start, NEED_OPTION: need}, self.end)
        assert json.dumps(self.start) == before
        return [pickle.loads(pickle.dumps(part)) for part in found]

    def pieces(self, *filters, columns=("id",)):
        return [piece for part in self.plan_parts(columns, *filters) for piece in part.plan().groups[0]]

    def segments(self, *filters):
        return sum(len(p.split.segments) for p in self.pieces(*filters) if isinstance(p, LogScanTask))

    def tables(self, columns, *filters):
        reader = StreamPartReader(self.connection)
        parts = self.plan_parts(columns, *filters)
        assert all(isinstance(part, StreamPart) for part in parts)
        streams = [row.column(0)[0].as_py() for part in parts for row in reader.read(part)]
        found = [pa.ipc.open_stream(stream).read_all() for stream in streams]
        counted = [json.loads(one.schema.metadata[KEY]) for one in found if KEY in (one.schema.metadata or {})]
        assert len(counted) == len(parts)
        self.counts = {name: sum(counts[name] for counts in counted) for name in counted[0]}
        return [one for one in found if KEY not in (one.schema.metadata or {})]

    def rows(self, columns, *filters):
        return [row for table in self.tables(columns, *filters) for row in table.to_pylist()]

    def unpruned(self):
        parts = self.reader.partitions(self.start, self.end)
        return [row for part in parts for batch in self.reader.read(part) for row in batch.to_pylist()]


@pytest.fixture
def table(wh):
    table = wh.create_table("t", COLUMNS, buckets=1, properties={"table.statistics.columns": "*"})
    for start in range(0, 40, 10):
        table.append([{"id": i, "name": f"n{i}", "amount": i / 2} for i in range(start, start + 10)])
        compact_inline_rows(table)  # a segment, with statistics
    return table


def test_segments_without_a_row_of_the_filter_are_left_out(wh, table):
    stream = Stream(Opened(wh), "t")
    assert [stream.segments(), stream.segments(above(25)), stream.segments(above(40))] == [4, 2, 0]
    assert [row["id"] for row in stream.rows(["id"], above(25))] == list(range(25, 40))
    assert stream.counts == {"segmentsRead": 2, "segmentsSkipped": 2, "storeRequests": 0}
    assert stream.rows(["id"], above(40)) == []
    assert stream.counts == {"segmentsRead": 0, "segmentsSkipped": 4, "storeRequests": 0}
    assert stream.end["offsets"] == {"0": 40}


def test_only_the_columns_that_the_query_needs_are_read(wh, table):
    stream = Stream(Opened(wh), "t", includemetadata="true")
    plan = stream.plan_parts(["amount", "_log_offset"])[0].plan()
    assert plan.common.schema.names == ("amount",)
    assert plan.metadata == ("_log_offset",)
    found = stream.rows(["_log_offset", "amount"])
    assert found == [{"_log_offset": i, "amount": i / 2} for i in range(40)]


def test_rows_are_counted_without_columns(wh, table):
    tables = Stream(Opened(wh), "t").tables([])
    assert (sum(found.num_rows for found in tables), tables[0].num_columns) == (40, 0)


def test_names_are_found_in_the_case_that_the_user_gave(wh, table):
    stream = Stream(Opened(wh), "t")
    field = {"name": "AMOUNT", "type": "double", "nullable": True, "metadata": {}}
    need = {"columns": ["AMOUNT"], "schema": {"type": "struct", "fields": [field]}, "filters": []}
    parts = stream.reader.partitions({**stream.start, NEED_OPTION: need}, stream.end)
    assert parts[0].plan().common.schema.names == ("amount",)


@pytest.mark.parametrize("suffix", ["", "$changelog", "$binlog"])
def test_all_rows_of_all_kinds_of_streams_are_those_of_python_s_way(wh, own_cache, suffix):
    table = wh.create_table("t", COLUMNS, buckets=2, primary_key=["id"] if suffix else [])
    for start in (0, 5):
        rows = [{"id": i, "name": f"n{start}", "amount": None} for i in range(start, start + 8)]
        (table.upsert if suffix else table.append)(rows)
    stream = Stream(Opened(wh), f"t{suffix}")
    assert sorted(stream.rows(stream.schema.names), key=str) == sorted(stream.unpruned(), key=str)
    few = stream.schema.names[:1]
    assert stream.rows(few) == [{few[0]: row[few[0]]} for row in stream.rows(stream.schema.names)]


def test_changes_of_a_key_are_filtered_one_by_one(wh, own_cache):
    table = wh.create_table("t", COLUMNS, buckets=1, primary_key=["id"])
    table.upsert([{"id": 1, "name": "a", "amount": 1.0}])
    table.upsert([{"id": 1, "name": "b", "amount": 2.0}])
    stream = Stream(Opened(wh), "t$changelog")
    is_b = {"op": "=", "children": [{"column": ["name"]}, {"literal": "b", "type": '"string"'}]}
    kinds = [(row["_change_type"], row["name"]) for row in stream.rows(["_change_type", "name"], is_b)]
    assert kinds == [("update_after", "b")]
    of_binlog = Stream(Opened(wh), "t$binlog")
    assert of_binlog.rows(of_binlog.schema.names, is_b) == of_binlog.unpruned()


CHANGES = {
    "renamed": {"rename_columns": {"count": "total"}},
    "dropped": {"drop_columns": ["count"]},
    "widened": {"widen_columns": {"count": "bigint"}},
}


class TestChangedColumns:
    """Of a stream that runs, only the columns that its query reads matter. ``count`` is the narrowest one."""

    @pytest.fixture
    def table(self, wh):
        table = wh.create_table("t", "id long not null, name string, count int", buckets=1)
        table.append([{"id": 1, "name": "a", "count": 1}])
        return table

    @pytest.fixture(params=[False, True], ids=["before its first batch", "between batches"])
    def stream(self, request, wh, table):
        stream = Stream(Opened(wh), "t")
        if request.param:
            assert len(stream.rows(["id", "name"])) == 1
        return stream

    def next_batch(self, stream, table):
        table.append([{"id": 2, "name": "b"}])
        stream.end = stream.reader.latestOffset(stream.start, stream.reader.getDefaultReadLimit())

    @pytest.mark.parametrize("change", CHANGES)
    def test_a_change_of_a_column_that_is_not_read_changes_nothing(self, stream, table, change):
        table.alter(**CHANGES[change])
        self.next_batch(stream, table)
        assert stream.rows(["id", "name"]) == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
        assert sum(found.num_rows for found in stream.tables([])) == 2

    @pytest.mark.parametrize("change", CHANGES)
    def test_a_change_of_a_column_that_is_read_ends_the_stream(self, stream, table, change):
        table.alter(**CHANGES[change])
        self.next_batch(stream, table)
        with pytest.raises(SchemaMismatchError, match=r"column 'count' (was|changed) .*since the read began"):
            stream.plan_parts(["id", "count"])
        with pytest.raises(SchemaMismatchError, match="column 'count'"):
            stream.reader.latestOffset(stream.start, stream.reader.getDefaultReadLimit())

    def test_a_stream_without_a_need_reads_all_columns(self, stream, table):
        table.alter(**CHANGES["renamed"])
        self.next_batch(stream, table)
        with pytest.raises(SchemaMismatchError, match="column 'count' was renamed to 'total'"):
            stream.reader.partitions(stream.start, stream.end)


# -- below the hot log ------------------------------------------------------------------------------------------------


@pytest.fixture(params=["iceberg", "paimon"])
def tiered(request, warehouse_path):
    """Rows 0 to 29 are in the lake alone, in a file for each ten, 30 to 39 in the log."""
    connection = Connection.of(warehouse_path, {})
    properties = {"table.datalake.format": request.param, "table.log.ttl": "1ms"}
    table = Warehouse(warehouse_path).create_table("t", COLUMNS, buckets=1, properties=properties)
    for start in range(0, 40, 10):
        table.append([{"id": i, "name": f"n{i}", "amount": i / 2} for i in range(start, start + 10)])
        if start < 30:
            tier(table)
    table.maintain()
    assert table.refresh().buckets[0].start == 30
    return connection


def test_files_of_the_lake_without_a_row_of_the_filter_are_not_read(tiered, monkeypatch):
    read = []
    between = parquet_reader._read_rows_between
    monkeypatch.setattr(
        parquet_reader, "_read_rows_between", lambda files, *given: (read.append(given[0]), between(files, *given))[1]
    )
    stream = Stream(tiered, "t", includemetadata="true")
    kinds = [type(piece) for piece in stream.pieces(above(12))]
    assert kinds == [OffsetsScanTask, LogScanTask]
    found = stream.rows(["id", "_log_offset"], above(25))
    assert found == [{"_log_offset": i, "id": i} for i in range(25, 40)]
    assert len(read) == 1
    assert len(stream.rows(["id"])) == 40
    assert len(read) == 4


def test_a_lost_file_is_an_error_whatever_the_filter(tiered):
    stream = Stream(tiered, "t")
    parts = stream.plan_parts(["id"], above(22))
    lost = replace(stream.pieces(above(22))[0], bucket=7)
    plan = parts[0].plan()
    with pytest.raises(OffsetsTrimmedError, match="no longer have exactly"):
        list(StreamPartReader(tiered).read(StreamPart(replace(plan, groups=((lost,),)))))


# -- random filters ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["d", pytest.param("c,t", marks=pytest.mark.long)])
def odd(request, tmp_path_factory):
    """A table with odd values whose older rows are in the lake alone, and all its rows."""
    path = str(tmp_path_factory.mktemp("streams") / "warehouse")
    rows = [row(i) for i in range(300)]
    properties = {"bucket.num": "3", "bucket.key": "i", "table.statistics.columns": "*", "table.log.ttl": "1ms"}
    table = Warehouse(path).create_table("t", SCHEMA, partition_by=request.param.split(","), properties=properties)
    for part in (rows[:80], rows[80:150]):
        table.append(part)
        tier(table)
    table.maintain()
    for part in (rows[150:200], rows[200:250]):
        table.append(part)
    compact_inline_rows(table)
    table.append(rows[250:])
    assert any(log.start for log in table.refresh().buckets.values())
    return Stream(Connection.of(path, {}), "t"), rows


@LIMITS
@given(tree=TREES, read=st.sets(st.sampled_from([name for name in SCHEMA.names if name != "n"])))
def test_a_batch_has_all_rows_of_the_filter_once(odd, tree, read):
    stream, rows = odd
    meant, pushed = tree
    wanted = {r["n"] for r in rows if any(is_true(meant, r, unknown) for unknown in (True, False, None))}
    columns = [name for name in SCHEMA.names if name == "n" or name in read or name in str(pushed)]
    by_number = {r["n"]: r for r in _canonical(rows)}
    found = stream.rows(columns, pushed)
    numbers = [r["n"] for r in found]
    assert wanted <= set(numbers)
    assert len(set(numbers)) == len(numbers)
    assert [str(r) for r in found] == [str({name: by_number[r["n"]][name] for name in columns}) for r in found]


def _canonical(rows):
    return pa.Table.from_pylist(rows, SCHEMA).to_pylist()
