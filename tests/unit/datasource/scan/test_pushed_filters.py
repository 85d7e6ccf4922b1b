"""No segment, file or bucket that a filter prunes holds a row for which the filter is true."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string, truncate_upper_bound_text_string

from streamhouse_spark import OffsetRange, Warehouse
from streamhouse_spark.datasource.scan.pushed_filters import column_types, parse_filters
from streamhouse_spark.expressions.predicates import may_match
from streamhouse_spark.lake.reader import column_bounds, file_may_match
from streamhouse_spark.lake.types import ColumnStatistics, ScanFile
from streamhouse_spark.log.bucketing import buckets_of as buckets_of_column
from streamhouse_spark.log.data_skipping import prune_buckets, segment_may_match
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.segments.statistics import collect_partitions, collect_stats
from streamhouse_spark.log.state import BucketLog, TableState
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.warehouse.process_cache import Connection
from streamhouse_spark.write.auto_compaction import compact_inline_rows
from unit.datasource.scan.filter_trees import ROWS, SCHEMA, TREES, VALUES, is_true, literal, wire
from unit.datasource.scan.scans import Scans, tier

TABLE = TableSchema.of(SCHEMA)
LIMITS = settings(max_examples=150, derandomize=True, deadline=None)
STATE = TableState(
    table_uuid="0" * 32,
    version=1,
    name="t",
    created_ms=0,
    time_ms=0,
    schema_id=1,
    schemas={1: TABLE},
    partition_by=(),
    num_buckets=4,
    properties={},
    lake_location="lake/default/t",
    buckets={0: BucketLog()},
)


def segment_of(rows, partition_by=(), stats_columns=("i", "n", "f", "g", "s", "c", "d", "t", "u", "b")) -> Segment:
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    segment = Segment(
        bucket=2,
        base_offset=10,
        num_rows=len(rows),
        size_bytes=100,
        schema_id=1,
        commit=1,
        first_time_ms=1000,
        last_time_ms=1000,
        stats=collect_stats(table, stats_columns),
        partitions=collect_partitions(table, partition_by),
    )
    return Segment.from_json(json.loads(json.dumps(segment.to_json())))


def file_of(rows, nan_is_counted) -> ScanFile:
    """What a writer records: texts cut to two characters, NaN left out of the bounds, and sometimes counted."""
    statistics = {}
    for name in SCHEMA.names:
        values = [wire(r[name]) if name in "dtu" else r[name] for r in rows if r[name] is not None]
        numbers = [v for v in values if v == v]
        low, high = (min(numbers), max(numbers)) if numbers else (None, None)
        if name == "s" and numbers:
            low, high = low[:2], truncate_upper_bound_text_string(high, 2)
        if name == "x" and numbers:
            low, high = low[:2], truncate_upper_bound_binary_string(high, 2)
        nans = len(values) - len(numbers) if nan_is_counted else None
        statistics[name] = ColumnStatistics(low, high, len(rows) - len(values), len(rows), nans)
    return ScanFile("/f", 100, len(rows), None, statistics=statistics)


@LIMITS
@given(tree=TREES, rows=ROWS, partition_by=st.lists(st.sampled_from(list(VALUES)), max_size=2, unique=True))
def test_pruned_segments_hold_no_row_of_the_filter(tree, rows, partition_by):
    meant, pushed = tree
    node = parse_filters([pushed], column_types(TABLE))
    segment = segment_of(rows, partition_by)
    state = replace(STATE, partition_by=tuple(partition_by))
    if any(is_true(meant, row, unknown) for row in rows for unknown in (True, False, None)):
        assert segment_may_match(state, segment, segment.offsets, node)


@LIMITS
@given(tree=TREES, rows=ROWS, counted=st.booleans())
def test_pruned_lake_files_hold_no_row_of_the_filter(tree, rows, counted):
    meant, pushed = tree
    node = parse_filters([pushed], column_types(TABLE))
    if any(is_true(meant, row, unknown) for row in rows for unknown in (True, False, None)):
        assert file_may_match(file_of(rows, counted), TABLE, node)


@LIMITS
@given(
    tree=TREES,
    row=ROWS,
    key=st.sampled_from(["i", "n", "s", "x", "c", "d", "t", "u"]),
    lake_format=st.sampled_from(["iceberg", "paimon"]),
)
def test_pruned_buckets_hold_no_row_of_the_filter(tree, row, key, lake_format):
    meant, pushed = tree
    node = parse_filters([pushed], column_types(TABLE))
    allowed = prune_buckets(node, TABLE.column(key), 4, lake_format)
    column = pa.Table.from_pylist(row, schema=SCHEMA)[key]
    for bucket, one in zip(buckets_of_column(column, 4, lake_format), row, strict=True):
        if any(is_true(meant, one, unknown) for unknown in (True, False, None)):
            assert allowed is None or bucket in allowed


@LIMITS
@given(tree=TREES, rows=ROWS)
def test_one_row_is_decided_exactly_where_all_is_known(tree, rows):
    """Pruning is worth something: of exact bounds the outcome is the filter's own."""
    meant, pushed = tree
    row = {**rows[0], "x": None}
    node = parse_filters([pushed], column_types(TABLE))
    found = {is_true(meant, row, unknown) for unknown in (True, False, None)}
    if len(found) == 1 and not any(isinstance(v, float) and v != v for v in row.values()):
        statistics = file_of([row], nan_is_counted=True).statistics
        values = {name: wire(value) if name in "dtu" else value for name, value in row.items()}
        exact = {
            name: column_bounds(replace(s, low=values[name], high=values[name]), SCHEMA.field(name).type, 1)
            for name, s in statistics.items()
        }
        assert may_match(node, exact) == (found == {True})


def pruned(*filters, rows=({"i": 5, "s": "m", "f": 1.0},), partition_by=()) -> bool:
    rows = [dict.fromkeys(SCHEMA.names) | row for row in rows]
    node = parse_filters(filters, column_types(TABLE))
    segment = segment_of(rows, partition_by)
    return not segment_may_match(replace(STATE, partition_by=partition_by), segment, segment.offsets, node)


def compare(operator, name, value):
    return {"op": operator, "children": [{"column": [name]}, literal(name, value)]}


@pytest.mark.parametrize(
    ("pushed", "is_pruned"),
    [
        (compare(">", "i", 5), True),
        (compare(">=", "i", 5), False),
        (compare("<>", "i", 5), True),
        ({"op": "NOT", "children": [compare("=", "i", 5)]}, True),
        (compare("=", "i", None), True),
        (compare("<=>", "i", None), True),
        (compare("<=>", "n", None), False),
        ({"op": "IS_NOT_NULL", "children": [{"column": ["n"]}]}, True),
        (compare("STARTS_WITH", "s", "n"), True),
        (compare("STARTS_WITH", "s", "m"), False),
        ({"op": "=", "children": [{"column": ["_bucket"]}, literal("i", 3)]}, True),
        ({"op": "<", "children": [{"column": ["_log_offset"]}, literal("n", 10)]}, True),
        ({"op": "OR", "children": [compare(">", "i", 5), {"op": "MOD", "children": []}]}, False),
        ({"op": "AND", "children": [compare(">", "i", 5), {"unknown": "?"}]}, True),
        ({"op": "=", "children": [{"column": ["s", "a"]}, literal("s", "z")]}, False),
        ({"op": "=", "children": [{"column": ["i"]}, {"literal": "9", "type": '"string"'}]}, False),
        ({"op": "=", "children": [{"column": ["i"]}, {"literal": 9.5, "type": '"double"'}]}, False),
        ({"op": "ALWAYS_FALSE", "children": []}, True),
        ({"literal": None, "type": '"boolean"'}, True),
        ({"column": ["b"]}, True),
    ],
)
def test_what_a_segment_is_pruned_by(pushed, is_pruned):
    assert pruned(pushed) == is_pruned


def test_filters_must_all_hold():
    assert not pruned(compare("=", "i", 5), compare("=", "s", "m"))
    assert pruned(compare("=", "i", 5), compare("=", "s", "x"))


def test_partition_values_prune_where_bounds_do_not():
    rows = ({"s": "a"}, {"s": "z"})
    assert not pruned(compare("=", "s", "m"), rows=rows)
    assert pruned(compare("=", "s", "m"), rows=rows, partition_by=("s",))


def test_a_column_that_was_added_later_is_null_in_older_segments():
    segment = segment_of([dict.fromkeys(SCHEMA.names) | {"i": 1}], stats_columns=("i",))
    state = replace(STATE, schemas={1: TableSchema(TABLE.columns[:1]), 2: TABLE}, schema_id=2)
    node = parse_filters([compare(">", "n", 0)], column_types(TABLE))
    assert not segment_may_match(state, segment, segment.offsets, node)
    node = parse_filters([{"op": "IS_NULL", "children": [{"column": ["n"]}]}], column_types(TABLE))
    assert segment_may_match(state, segment, segment.offsets, node)


def test_a_thousand_nested_parts_prune_nothing_and_break_nothing():
    tree = compare(">", "i", 5)
    for _ in range(5000):
        tree = {"op": "OR", "children": [tree, compare(">", "i", 5)]}
    assert not pruned(tree)


def test_a_long_chain_still_prunes():
    assert pruned({"op": "OR", "children": [compare("=", "i", n) for n in range(100, 3100)]})
    assert not pruned({"op": "OR", "children": [compare("=", "i", n) for n in range(3000)]})


def test_a_part_of_a_segment_is_pruned_by_its_offsets():
    segment = segment_of([dict.fromkeys(SCHEMA.names)] * 4)
    node = parse_filters(
        [{"op": ">=", "children": [{"column": ["_log_offset"]}, literal("n", 12)]}], column_types(TABLE)
    )
    assert segment_may_match(STATE, segment, OffsetRange(10, 14), node)
    assert not segment_may_match(STATE, segment, OffsetRange(10, 12), node)


SCAN_LIMITS = settings(
    max_examples=30, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def row(i: int) -> dict:
    """Row ``i``, with nulls and odd values now and then."""
    here = {
        "i": i % 5 - 2,
        "n": i,
        "f": [0.0, math.nan, 1.5, -2.0, math.inf][i % 5],
        "g": [-0.0, 1.5, math.nan][i % 3],
        "s": ["", "a", "aé" * 12, "z\U0001f600", "\uffff"][i // 7 % 5],
        "x": [b"", b"\xff" * 20, b"a"][i // 4 % 3],
        "c": decimal.Decimal(i % 700 - 350) / 100,
        "d": dt.date(1970, 1, 1) + dt.timedelta(days=i // 40 - 1),
        "t": dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=i - 20),
        "u": dt.datetime(1970, 1, 1) + dt.timedelta(seconds=i - 20),
        "b": i // 30 % 2 == 0,
    }
    for position, name in enumerate(here):
        if name != "n" and (i // 10 + position) % 6 == 0:
            here[name] = None
    return here


FIRST_NAMES = {"i": "n", "n": "i", "f": "u", "u": "f", "s": "x", "x": "s"}
FIRST_COLUMNS = (
    "n smallint, i int, u float, g float, x string, gone string, s binary, c decimal(5,2), d date, t timestamp, "
    "f timestamp_ntz, b boolean"
)


def altered(path, rows):
    """The table as it is when its columns had other names and narrower types while its first rows came."""
    properties = {"bucket.num": "3", "bucket.key": "n", "table.statistics.columns": "*"}
    table = Warehouse(path).create_table("sales.t", FIRST_COLUMNS, properties=properties)
    older = [{FIRST_NAMES.get(name, name): value for name, value in one.items()} for one in rows]
    table.append([{**one, "gone": "x"} for one in older[:50]])
    tier(table)
    table.append(older[50:80])
    table.alter(
        rename_columns={old: name for name, old in FIRST_NAMES.items()},
        drop_columns=["gone"],
        widen_columns={"n": "int", "i": "bigint", "u": "double", "c": "decimal(9,2)"},
    )
    table.append(rows[80:150])
    return table


@pytest.fixture(
    scope="module",
    params=[*(pytest.param(by, marks=pytest.mark.long) for by in (["d"], ["s", "b"], [])), ["c", "t"], None],
    ids=["date", "text", "none", "moment", "altered"],
)
def table(request, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("filters") / "warehouse")
    rows = [row(i) for i in range(300)]
    if request.param is None:
        table = altered(path, rows)
    else:
        properties = {"bucket.num": "3", "bucket.key": "i", "table.statistics.columns": "*"}
        table = Warehouse(path).create_table("sales.t", SCHEMA, partition_by=request.param, properties=properties)
        table.append(rows[:150])
    tier(table)
    table.append(rows[150:200])
    table.append(rows[200:250])
    compact_inline_rows(table)
    table.append(rows[250:])
    return Scans(Connection.of(path, {})), rows


@SCAN_LIMITS
@given(tree=TREES, read=st.sets(st.sampled_from([name for name in SCHEMA.names if name != "n"])))
def test_a_filtered_scan_has_all_its_rows(table, tree, read):
    scans, rows = table
    meant, pushed = tree
    wanted = {r["n"] for r in rows if any(is_true(meant, r, unknown) for unknown in (True, False, None))}
    for schemes in (["file"], []):
        planned = scans.plan(scans.load("sales.t"), ["n", *read], filters=[pushed], native_schemes=schemes)
        found = [r["n"] for r in planned.rows()]
        assert wanted <= set(found)
        assert len(set(found)) == len(found)
        assert planned["rows"] >= len(found), "rows that are planned may be left out while they are read"


FUNCTIONS = [(name, column) for name in ("min", "max", "count") for column in SCHEMA.names]


def expected(rows: list[dict], function: str, column: str):
    values = [r[column] for r in rows if r[column] is not None]
    if function == "count":
        return len(values)
    order = (lambda v: (v != v, v)) if column in "fg" else None
    return (min if function == "min" else max)(values, key=order)


def given_back(value, column: str):
    """A value in Spark's internal form as Python has it."""
    match column:
        case "c":
            return decimal.Decimal(value)
        case "d":
            return dt.date(1970, 1, 1) + dt.timedelta(days=value)
        case "t" | "u":
            moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=value)
            return moment if column == "t" else moment.replace(tzinfo=None)
    return value


@pytest.mark.parametrize(("function", "column"), FUNCTIONS)
def test_aggregates_are_exact_or_not_given(table, function, column):
    scans, rows = table
    loaded = scans.load("sales.t")
    found = scans.aggregate(loaded, (function, column), ("count_star", None))
    if found is None:
        assert function != "count"
        assert column in "fgsx"
        return
    assert found[1] == len(rows)
    value = found[0] if function == "count" else given_back(found[0], column)
    assert value == expected(rows, function, column)


def test_the_lake_alone_is_counted(table):
    scans, _ = table
    assert scans.aggregate(scans.load("sales.t$lake"), ("count_star", None), ("max", "n")) == [150, 149]
    assert scans.aggregate(scans.load("sales.t$changelog"), ("count_star", None)) == [300]
    assert scans.aggregate(scans.load("sales.t$buckets"), ("count_star", None)) is None
    ends = {"endingOffsets": '{"0": 1, "1": 1, "2": 1}'}
    assert scans.aggregate(scans.load("sales.t"), ("count_star", None), ("count", "n"), **ends) == [3, 3]


def test_aggregates_of_an_empty_table_are_zero_and_null(tmp_path):
    path = str(tmp_path / "w")
    Warehouse(path).create_table("sales.t", SCHEMA)
    scans = Scans(Connection.of(path, {}))
    asked = (("count_star", None), ("count", "i"), ("min", "s"), ("max", "f"))
    assert scans.aggregate(scans.load("sales.t"), *asked) == [0, 0, None, None]


def test_large_segments_without_statistics_are_not_read(tmp_path, monkeypatch):
    from streamhouse_spark.datasource.scan import aggregates

    path = str(tmp_path / "w")
    table = Warehouse(path).create_table("sales.t", SCHEMA, properties={"table.statistics.columns": "i"})
    table.append(pa.Table.from_pylist([row(i) for i in range(5000)], schema=SCHEMA))
    scans = Scans(Connection.of(path, {}))
    assert scans.aggregate(scans.load("sales.t"), ("max", "n")) == [4999]
    monkeypatch.setattr(aggregates, "READ_BYTES_MAX", 1000)
    assert scans.aggregate(scans.load("sales.t"), ("max", "n")) is None
    assert scans.aggregate(scans.load("sales.t"), ("max", "i"), ("count_star", None)) == [2, 5000]
