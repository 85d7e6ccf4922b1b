"""Random filters on tables with rows in the lake, in segments and inline: pruning loses no row."""

from __future__ import annotations

import datetime as dt
import decimal
import math

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamhouse_spark import Warehouse
from streamhouse_spark.warehouse.process_cache import Connection
from streamhouse_spark.write.auto_compaction import merge_inline
from unit.datasource.catalog.filter_trees import SCHEMA, TREES, is_true
from unit.datasource.catalog.scans import Scans, tier

LIMITS = settings(
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
    merge_inline(table)
    table.append(rows[250:])
    return Scans(Connection.of(path, {})), rows


@LIMITS
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


def test_aggregates_of_nothing(tmp_path):
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
