"""Lazy scans, and the protocols by which other libraries read a table: each returns the rows of `Table.to_arrow`."""

from __future__ import annotations

import datetime as dt
import decimal
import sys
from collections.abc import Callable
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import streamhouse_spark as sh
from kit.tables import add_rows, tier, trim_tiered
from streamhouse_spark import (
    InvalidOptionError,
    MissingExtraError,
    SchemaMismatchError,
    SnapshotExpiredError,
    Table,
    Warehouse,
)
from streamhouse_spark.read import scan_executor
from streamhouse_spark.table.polars_scan import pushed_conditions
from streamhouse_spark.table.scan import Scan

COLUMNS = (
    "id BIGINT NOT NULL, yes BOOLEAN, i8 TINYINT, i32 INT, f32 FLOAT, f64 DOUBLE, dec DECIMAL(12,2), s STRING, "
    "b BINARY, d DATE, ts TIMESTAMP, ntz TIMESTAMP_NTZ, a ARRAY<INT>, m MAP<STRING,INT>, st STRUCT<x:INT,y:STRING>"
)
KINDS = ["hot", "tiered", "tiered and trimmed", "deleted", "evolved", "branch", "empty"]


def row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "yes": number % 2 == 0,
        "i8": number % 100,
        "i32": None if number % 7 == 0 else number,
        "f32": number / 2,
        "f64": number / 3,
        "dec": decimal.Decimal(number) / 4,
        "s": f"text {number}",
        "b": bytes([number % 256]),
        "d": dt.date(2024, 1, 1) + dt.timedelta(number),
        "ts": dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=number),
        "ntz": dt.datetime(2024, 1, 1) + dt.timedelta(hours=number),
        "a": [number, None],
        "m": {"k": number},
        "st": {"x": number, "y": None},
    }


def rows(*numbers: int) -> list[dict[str, Any]]:
    return [row(number) for number in numbers]


@pytest.fixture(params=[False, True], ids=["log", "primary key"])
def is_keyed(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture
def make(wh: Warehouse, is_keyed: bool) -> Callable[[str], Table]:
    def make(kind: str) -> Table:
        table = wh.create_table("d.t", COLUMNS, primary_key=["id"] if is_keyed else [], buckets=2)
        if kind == "empty":
            return table
        add_rows(table, rows(*range(20)))
        if kind != "hot":
            tier(table)
        if kind == "tiered and trimmed":
            trim_tiered(table)
        add_rows(table, rows(*range(20, 25)))
        if kind == "deleted":
            _ = table.delete([3, 21]) if is_keyed else table.delete(where=[("id", "in", [3, 21])])
        if kind == "evolved":
            table.drop_column("i8")
            table.rename_column("i32", "number")
            table.add_columns("i8 STRING")
            add_rows(table, [{"id": 30, "i8": "new"}])
        if kind == "branch":
            table.create_branch("b")
            table = table.branch("b")
            add_rows(table, rows(40))
        return table

    return make


def in_order(table: pa.Table) -> list[dict[str, Any]]:
    return table.sort_by("id").to_pylist()


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_to_read_returns_the_rows_of_the_table(make, kind):
    table = make(kind)
    expected = table.to_arrow()
    schema, written = expected.schema, in_order(expected)
    assert table.scan().to_arrow().schema.equals(schema, check_metadata=True)
    assert in_order(table.scan().to_arrow()) == written
    assert in_order(pa.table(table)) == written
    assert in_order(pa.Table.from_batches(table.scan().to_batches(), schema)) == written
    assert table.scan().count() == table.count() == len(written)
    assert pa.schema(table).equals(schema)
    assert in_order(table.to_duckdb("t").sql("SELECT * FROM t").to_arrow_table().cast(schema)) == written
    ids = [row["id"] for row in written]
    assert sorted(pl.DataFrame(table)["id"]) == sorted(table.to_polars()["id"]) == ids
    assert sorted(table.to_pandas()["id"]) == ids


@pytest.mark.parametrize(
    "condition",
    [
        "id > 5 AND s <> 'text 7'",
        [("id", ">", 5), ("s", "!=", "text 7")],
        (pc.field("id") > 5) & (pc.field("s") != "text 7"),
        [[("id", ">", 5), ("s", "not in", ["text 7"])], [("id", "=", 7), ("s", "is null", None), ("f64", ">", 0)]],
    ],
    ids=["sql", "list", "expression", "lists"],
)
@pytest.mark.parametrize("kind", ["tiered", "deleted", "evolved"])
def test_filters_of_every_form_may_be_combined(make, kind, condition):
    table = make(kind)
    expected = [row for row in in_order(table.to_arrow()) if row["id"] > 5 and row["s"] not in (None, "text 7")]
    scan = table.scan(filter=condition, columns=["id"])
    assert in_order(scan.to_arrow()) == [{"id": row["id"]} for row in expected]
    narrower = scan.filter("id < 12").filter(pc.field("yes")).filter([("f64", ">", 2.5)]).select("s", "id")
    few = [row for row in expected if row["id"] < 12 and row["yes"] and row["f64"] > 2.5]
    assert in_order(narrower.to_arrow()) == [{"s": row["s"], "id": row["id"]} for row in few]
    assert narrower.count() == len(few)


@pytest.mark.parametrize(
    "condition",
    ["i32 < 1e300", "i32 <> 1.5", [("f64", "!=", float("nan"))], [("f64", "<", float("inf"))], "NOT (i32 = 1.5)"],
    ids=str,
)
def test_the_columns_of_a_filter_that_excludes_nothing_are_read_too(make, condition):
    table = make("tiered")
    expected = {row["id"] for row in table.scan(filter=condition).to_arrow().to_pylist()} - {0, 1, 2}
    scan = table.scan(filter="id > 2", columns=["id"]).filter(condition)
    assert set(scan.to_arrow()["id"].to_pylist()) == expected
    assert scan.count() == len(expected)


def test_a_scan_reads_nothing_before_its_rows_are_asked_for(make):
    table = make("hot")
    scan = table.scan(filter="id >= 0")
    add_rows(table, rows(50))
    assert 50 in scan.to_arrow()["id"].to_pylist()
    view = table.to_duckdb("t")
    add_rows(table, rows(51))
    assert view.sql("SELECT max(id) FROM t").fetchall() == [(51,)]


ALTERED = {
    "added": lambda table: table.add_columns("extra STRING"),
    "moved": lambda table: table.alter(move_columns={"s": None}),
    "retyped": lambda table: (table.drop_column("i32"), table.add_columns("i32 STRING")),
    "dropped": lambda table: table.drop_column("i32"),
}


def open_polars(table: Table) -> Callable[[], list[Any]]:
    frame = sh.scan_polars(table).select("i32", "s").sort("s")
    return lambda: frame.collect().rows()


def open_duckdb(table: Table) -> Callable[[], list[Any]]:
    connection = table.to_duckdb("t")
    return lambda: connection.sql("SELECT i32, s FROM t ORDER BY s").fetchall()


def open_relation(table: Table) -> Callable[[], list[Any]]:
    relation = table.to_duckdb("t").sql("SELECT i32, s FROM t ORDER BY s")
    return relation.fetchall


@pytest.mark.parametrize("opened", [open_polars, open_duckdb, open_relation])
@pytest.mark.parametrize("kind", ALTERED)
def test_columns_that_another_process_alters_are_never_read_as_others(make, other_process, kind, opened):
    table = make("tiered")
    read = opened(other_process().table("d.t"))
    expected = read()
    ALTERED[kind](table)
    if kind in ("added", "moved"):
        assert read() == expected
    else:
        errors = (duckdb.Error, pl.exceptions.ComputeError, SchemaMismatchError)  # the last from polars 2 on
        with pytest.raises(errors, match=r"SCHEMA_MISMATCH.*column 'i32'"):
            read()
    if kind == "retyped":
        assert len(opened(table)()) == len(expected)


@pytest.mark.parametrize("name", ["d.t", "d.t$lake", "d.t$changelog"])
def test_a_reader_that_asks_for_columns_gets_those_of_the_rows(make, other_process, name):
    table = make("tiered")
    old = other_process().view(name)
    renamed = table.schema.names[1]
    table.rename_column(renamed, "renamed")
    assert "renamed" in pa.schema(old).names
    assert pa.schema(old) == pa.table(old).schema
    old = other_process().view(name)
    table.rename_column("renamed", renamed)
    assert old.count() == table.scan().count() - (5 if name == "d.t$lake" else 0)


def test_scans_of_equal_words_are_compared_without_evaluating_their_filters(make):
    scan = make("hot").scan()
    assert scan.filter(pc.field("id") > 1) != scan.filter(pc.field("id") > 2)
    assert len({scan, scan.filter([("id", ">", 1)])}) == 2


def test_a_count_with_a_limit_reads_no_further_rows(wh, monkeypatch):
    table = wh.create_table("d.t", "id BIGINT", buckets=1)
    for start in range(0, 300_000, 100_000):
        table.append(pa.table({"id": range(start, start + 100_000)}))
    batches = []
    of_segment = scan_executor.read_split
    monkeypatch.setattr(
        scan_executor, "read_split", lambda *args, **named: map(noted(batches), of_segment(*args, **named))
    )
    assert table.scan(filter="id >= 0", limit=5).count() == 5
    assert len(batches) == 1
    assert table.scan(filter="id >= 0").count() == 300_000


def noted(seen: list[Any]) -> Callable[[Any], Any]:
    return lambda item: (seen.append(item), item)[1]


@pytest.mark.parametrize("kind", ["hot", "tiered", "empty"])
def test_a_limit_bounds_the_rows(make, kind):
    table = make(kind)
    num_rows = table.count()
    for limit in (0, 1, 3, 1000):
        assert table.scan(limit=limit).to_arrow().num_rows == table.scan(limit=limit).count() == min(limit, num_rows)
    assert table.head().num_rows == min(10, num_rows)
    assert table.scan(limit=3).limit(5).count() == min(3, num_rows)


def test_a_scan_of_a_version_or_a_time_reads_the_rows_of_then(make, clock):
    table = make("tiered")
    version, then = table.state.version, clock.now_ms()
    clock.advance(1000)
    add_rows(table, rows(60))
    table.create_tag("before", version)
    table.drop_column("i8")
    for scan in (
        table.scan(version=version),
        table.scan(version="before"),
        table.scan(timestamp_ms=then),
    ):
        assert sorted(scan.to_arrow()["id"].to_pylist()) == list(range(25))
        assert "i8" in scan.schema.names
        assert scan.count() == 25
    with pytest.raises(InvalidOptionError, match="both version and timestamp_ms"):
        table.scan(version=version, timestamp_ms=then)


def test_a_branch_and_an_older_lake_are_versions(wh):
    table = wh.create_table("d.t", "id BIGINT")
    table.append([{"id": 1}])
    tier(table)
    old = table.lake.newest().id
    table.create_branch("b")
    table.branch("b").append([{"id": 2}])
    table.append([{"id": 3}])
    tier(table)
    assert table.scan(version="B").count() == table.read_version("b").num_rows == 2
    assert sorted(table.scan(version="b", filter="id > 1").to_arrow()["id"].to_pylist()) == [2]
    assert table.lake.scan(version=old).to_arrow()["id"].to_pylist() == [1]
    assert table.lake.scan(version=str(old)).count() == 1
    assert table.lake.count() == 2
    assert f"snapshot {table.lake.newest().id}, 2 files" in table.lake.scan().explain()


def test_one_line_scans_any_name(tmp_path):
    place = tmp_path / "wh"
    table = Warehouse(place).create_table("d.t", "id BIGINT, day STRING", partition_by=["day"])
    table.append([{"id": 1, "day": "mon"}])
    tier(table)
    old = table.lake.newest().id
    table.create_branch("b")
    table.append([{"id": 2, "day": "tue"}])
    tier(table)
    assert sh.scan(place, "d.t", filter=[("id", ">", 1)], columns=["day"]).to_arrow().to_pylist() == [{"day": "tue"}]
    assert sh.scan(str(place), "d.t", partitions={"day": ["mon", "sun"]}, limit=5).count() == 1
    assert sh.scan(place, "d.t$branch_b").count() == sh.scan(place, "d.t", version="b").count() == 1
    assert sh.scan(place, "d.t$lake", version=old).count() == 1
    assert sh.scan(place, "d.t$changelog", filter="id = 2").count() == 1
    assert sh.scan(place, "d.t$commits").count() == table.inspect.commits().num_rows
    with pytest.raises(InvalidOptionError, match="without versions"):
        sh.scan(place, "d.t$changelog", version=1)
    with pytest.raises(InvalidOptionError, match="without partitions"):
        sh.scan(place, "d.t$lake", partitions={"day": "mon"})
    with pytest.raises(InvalidOptionError, match="limit is 'x'"):
        sh.scan(place, "d.t", limit="x")


def test_the_text_of_a_scan_is_one_line(make):
    table = make("hot")
    assert repr(table.scan(columns=["id"], filter="id > 5", limit=3)) == "Scan(d.t: id, filter 'id > 5', limit 3)"
    assert repr(table.scan(version=1)) == "Scan(d.t at version 1: *)"
    assert repr(table.lake) == "LakeView(d.t$lake: 15 columns)"
    assert repr(table.lake.scan()) == "Scan(d.t$lake: *)"
    assert repr(table.inspect) == "Inspect(d.t)"


def test_partitions_are_column_values(wh):
    table = wh.create_table("d.p", "id BIGINT, day STRING", partition_by=["day"])
    table.append([{"id": 1, "day": "mon"}, {"id": 2, "day": None}, {"id": 3, "day": "tue"}])
    assert table.scan(partitions={"day": "mon"}, columns=["id"]).to_arrow().to_pylist() == [{"id": 1}]
    assert table.scan(partitions={"day": None}, columns=["id"]).to_arrow().to_pylist() == [{"id": 2}]
    assert table.scan(partitions={"day": ["mon", "tue"]}).count() == 2


def test_columns_and_types_that_a_reader_requests_are_respected(make):
    table = make("tiered")
    requested = pa.schema([("id", pa.int64()), ("s", pa.large_string())])
    read = pa.RecordBatchReader.from_stream(table.scan().select("id", "s"), requested).read_all()
    assert read.schema.equals(requested)
    assert sorted(read["s"].to_pylist()) == sorted(table.to_arrow()["s"].to_pylist())


@pytest.mark.parametrize("name", ["d.t$lake", "d.t$changelog", "d.t$commits", "d.t$history", "d.t$lake$snapshots"])
def test_views_are_scanned_as_tables_are(wh, make, name):
    make("tiered")
    view = wh.view(name)
    expected = view.to_arrow()
    assert pa.table(view).equals(expected)
    assert duckdb.sql("SELECT count(*) FROM view").fetchall() == [(expected.num_rows,)]
    first = expected.schema.names[0]
    assert view.scan().select(first).limit(1).to_arrow().equals(expected.select([first]).slice(0, 1))
    assert view.count() == expected.num_rows
    if name != "d.t$lake":
        with pytest.raises(InvalidOptionError, match="a view has no plan"):
            view.scan().explain()


@pytest.mark.parametrize("is_late", [False, True], ids=["before the first row", "in mid-read"])
def test_a_scan_of_a_lake_whose_snapshot_expires(wh, monkeypatch, is_late):
    table = wh.create_table("d.t", "id BIGINT", buckets=1)
    for number in range(3):
        table.append([{"id": number}])
        tier(table)
    expires = [True]

    def read(*args: Any, **named: Any) -> Any:
        first, *others = of_plan(*args, **named)
        if is_late:
            yield first
        if expires:
            expires.clear()
            raise SnapshotExpiredError("it is gone")
        yield from [first, *others][is_late:]

    of_plan = scan_executor.read_batches
    monkeypatch.setattr(scan_executor, "read_batches", read)
    if is_late:
        with pytest.raises(SnapshotExpiredError):
            list(table.lake.scan().to_batches())
    assert sorted(row["id"] for batch in table.lake.scan().to_batches() for row in batch.to_pylist()) == [0, 1, 2]
    expires.append(True)
    with pytest.raises(SnapshotExpiredError):
        list(table.lake.scan(version=table.lake.newest().id).to_batches())


def test_a_scan_of_changes_reads_the_columns_that_it_needs(wh, make, monkeypatch):
    make("hot")
    read = []
    of_log = scan_executor.read_split
    monkeypatch.setattr(
        scan_executor,
        "read_split",
        lambda s, split, schema, **kw: (read.append(schema.names), of_log(s, split, schema, **kw))[1],
    )
    assert wh.view("d.t$changelog").scan(columns=["_change_type"], filter="id < 3").count() == 3
    assert all(set(names) <= {"_change_type", "id"} for names in read), read


def test_a_filter_of_a_view_is_sql_too(wh, make):
    make("hot")
    inserted = wh.view("d.t$changelog").scan().filter("_change_type = 'insert' AND id < 3").to_arrow()
    assert sorted(inserted["id"].to_pylist()) == [0, 1, 2]


def test_the_plan_says_what_is_read_and_what_is_skipped(wh):
    table = wh.create_table("d.t", "id BIGINT", buckets=1, properties={"table.statistics.columns": "id"})
    table.append(pa.table({"id": range(50_000)}))
    tier(table)
    trim_tiered(table)
    table.append(pa.table({"id": range(50_000, 100_000)}))
    plan = table.scan(filter="id < 10").plan()
    assert (plan.version, plan.rows, plan.log_segments, plan.skipped_segments) == (table.state.version, 50_000, 0, 1)
    assert len(plan.lake_files) == 1
    assert plan.lake_bytes > 0
    plan = table.scan(filter="id > 60000").plan()
    assert (plan.lake_files, plan.log_segments, plan.skipped_segments) == ((), 1, 0)
    text = table.scan().explain()
    assert text.startswith(f"Scan of d.t at commit {table.state.version}\n")
    assert text.endswith("rows: 100,000 at most")


@pytest.mark.parametrize(
    ("ask", "error", "text"),
    [
        (lambda table: table.scan(columns=["nope"]).to_arrow(), SchemaMismatchError, "no column 'nope'"),
        (lambda table: table.scan(filter="nope = 1").to_arrow(), SchemaMismatchError, "no column 'nope'"),
        (lambda table: table.scan(filter="id >").to_arrow(), InvalidOptionError, "at character 5"),
        (lambda table: table.scan(filter=3).to_arrow(), InvalidOptionError, "expected SQL text"),
        (lambda table: table.scan(filter=[[("id", ">", 3)], []]).to_arrow(), InvalidOptionError, "expected SQL text"),
        (lambda table: table.scan(filter=[[("id", ">", 3)], ("id", ">", 3)]).to_arrow(), InvalidOptionError, "list"),
        (lambda table: table.scan(limit=-1), InvalidOptionError, "limit"),
        (lambda table: table.scan(version=99).to_arrow(), InvalidOptionError, "99"),
        (lambda _: sh.scan_polars(pl.DataFrame()), InvalidOptionError, "expected a table, view or scan"),
    ],
)
def test_what_a_scan_cannot_do_is_an_error(make, ask, error, text):
    with pytest.raises(error, match=text):
        ask(make("hot"))


@pytest.mark.parametrize("library", ["pandas", "polars", "duckdb"])
def test_a_library_that_is_not_installed_is_named(make, monkeypatch, library):
    table = make("hot")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=f"pip install {library}"):
        table.to_duckdb("t") if library == "duckdb" else getattr(table, f"to_{library}")()


def test_a_stream_needs_memory_for_a_few_batches_only(wh):
    table = wh.create_table("d.t", "id BIGINT", buckets=1)
    for start in range(0, 4_000_000, 1_000_000):
        table.append(pa.table({"id": range(start, start + 1_000_000)}))
    before, most, total = pa.total_allocated_bytes(), 0, 0
    for batch in table.scan().to_batches():
        total += batch.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
    assert total == 4_000_000
    assert most < 24_000_000  # three segments of eight million bytes; all of them are 32 million


@pytest.mark.parametrize("kind", KINDS)
def test_a_lazy_polars_frame_has_the_rows_of_the_table(make, kind):
    table = make(kind)
    frame = sh.scan_polars(table)
    expected = table.to_polars()
    assert frame.collect_schema() == expected.schema
    assert frame.sort("id").collect().equals(expected.sort("id"))
    condition = (pl.col("id") > 4) & (pl.col("s") < "text 9") & (pl.col("f64") > 2.5)
    assert (
        frame.filter(condition)
        .select("s", "id")
        .sort("id")
        .collect()
        .equals(expected.filter(condition).select("s", "id").sort("id"))
    )
    assert frame.filter(pl.col("id") >= 2).head(3).collect().height == min(3, expected.filter(pl.col("id") >= 2).height)
    assert frame.select(pl.len()).collect().item() == expected.height
    assert frame.with_row_index().select(pl.col("index").count()).collect().item() == expected.height
    first = sh.scan_polars(table.scan(limit=3)).collect()
    expected_of_first = first.filter(pl.col("id") > 1)
    assert frame.head(3).filter(pl.col("id") > 1).collect().equals(expected_of_first)
    assert sh.scan_polars(table.scan(limit=3)).filter(pl.col("id") > 1).collect().equals(expected_of_first)


@pytest.mark.parametrize(
    ("predicate", "conditions"),
    [
        (pl.col("id") > 5, [("id", ">", 5)]),
        ((pl.col("id") == 5) & (pl.col("s") <= "x"), [("id", "=", 5), ("s", "<=", "x")]),
        (pl.col("d") >= dt.date(2024, 1, 2), [("d", ">=", pa.scalar(dt.date(2024, 1, 2)))]),
        ((pl.col("id") > 5) & (pl.col("f64") > 1.5), [("id", ">", 5)]),
        ((pl.col("id") > 5) | (pl.col("s") == "x"), []),
        (pl.col("f64") > 1.5, []),
        (pl.col("id").is_between(2, 5), [("id", ">=", 2), ("id", "<=", 5)]),
        (pl.col("id") > pl.lit(7, pl.Int64), [("id", ">", 7)]),
        (pl.col("id") > pl.lit(7, pl.UInt8), []),
        (pl.col("id") != 5, []),
        (pl.col("id").is_in([5]), []),
    ],
    ids=str,
)
def test_conditions_of_polars_that_are_pushed_down(predicate, conditions):
    schema = pa.schema([("id", pa.int64()), ("s", pa.string()), ("d", pa.date32()), ("f64", pa.float64())])
    assert pushed_conditions(predicate, schema) == conditions


def test_polars_skips_segments_that_its_condition_excludes(wh, monkeypatch):
    table = wh.create_table("d.t", "id BIGINT", buckets=1, properties={"table.statistics.columns": "id"})
    table.append(pa.table({"id": range(50_000)}))
    table.append(pa.table({"id": range(50_000, 100_000)}))
    asked = []
    filtered = Scan.filter
    monkeypatch.setattr(Scan, "filter", lambda self, condition: (asked.append(condition), filtered(self, condition))[1])
    assert sh.scan_polars(table).filter(pl.col("id") > 60_000).select(pl.len()).collect().item() == 39_999
    assert asked == [[("id", ">", 60_000)]], asked
    assert table.scan(filter=asked[0]).plan().skipped_segments == 1
