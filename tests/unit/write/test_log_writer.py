"""Rows that arrive batch by batch are staged in pieces and committed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from streamhouse_spark import InvalidOptionError, SchemaMismatchError, Table, Transaction
from streamhouse_spark.schema import row_conversion

ROWS = 20_000
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


def batches(num_rows: int = ROWS) -> Iterator[pa.RecordBatch]:
    for start in range(0, num_rows, 1000):
        days = pa.array([f"day {number % 3}" for number in range(start, start + 1000)])
        yield pa.record_batch([pa.array(range(start, start + 1000), pa.int64()), days], schema=SCHEMA)


def whole() -> pa.Table:
    return pa.Table.from_batches(batches())


class Capsule:
    """What nanoarrow and others give: a stream that may be read once."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return pa.RecordBatchReader.from_batches(SCHEMA, batches()).__arrow_c_stream__(requested_schema)


STREAMS: dict[str, Callable[[], Any]] = {
    "generator": lambda: pa.RecordBatchReader.from_batches(SCHEMA, batches()),
    "capsule": Capsule,
    "duckdb": lambda: duckdb.sql("SELECT i::BIGINT AS id, 'day ' || (i % 3) AS day FROM range(20000) t(i)"),
    "polars": lambda: pl.from_arrow(whole()),
    "table": whole,
}


@pytest.fixture
def small_pieces(monkeypatch) -> None:
    monkeypatch.setattr(row_conversion, "PIECE_BYTES_MAX", 1 << 15)


@pytest.fixture
def table(wh, small_pieces) -> Table:
    return wh.create_table("d.t", "id BIGINT NOT NULL, day STRING, note STRING DEFAULT 'none'", partition_by=["day"])


def ids(table: Table) -> list[int]:
    return sorted(table.to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("kind", STREAMS)
def test_all_rows_of_a_stream_are_one_commit(table, kind):
    version = table.refresh().version
    assert table.append(STREAMS[kind]()).num_rows == ROWS
    assert table.refresh().version == version + 1
    assert ids(table) == list(range(ROWS))
    assert set(table.to_arrow()["note"].to_pylist()) == {"none"}
    assert (len(table.state.live_segments()) > 4) is (kind in ("generator", "capsule"))  # DuckDB sends one batch
    assert table.overwrite(STREAMS[kind]()).num_rows == ROWS
    assert table.count() == ROWS


@pytest.mark.parametrize("kind", STREAMS)
def test_a_stream_replaces_what_a_condition_names_and_its_partitions(table, kind):
    table.append([{"id": -1, "day": "day 0"}, {"id": -2, "day": "day 9"}])
    table.overwrite_partitions(STREAMS[kind]())
    assert ids(table) == [-2, *range(ROWS)]
    table.overwrite(STREAMS[kind](), where=[("day", "in", ["day 0", "day 1", "day 2"])])
    assert ids(table) == [-2, *range(ROWS)]
    version = table.refresh().version
    with pytest.raises(SchemaMismatchError, match="condition of the overwrite"):
        table.overwrite(STREAMS[kind](), where="day IN ('day 0', 'day 1')")
    assert table.refresh().version == version


def test_a_stream_without_rows_still_commits_what_it_should(table):
    table.append(whole())
    empty = pa.RecordBatchReader.from_batches(SCHEMA, [])
    assert table.append(empty, transaction=Transaction("app", 1)).num_rows == 0
    table.overwrite_partitions(pa.RecordBatchReader.from_batches(SCHEMA, []))
    assert table.count() == ROWS
    table.overwrite(pa.RecordBatchReader.from_batches(SCHEMA, []))
    assert table.count() == 0


def test_a_transaction_of_a_stream_is_stored_once(table):
    for _ in range(2):
        table.append(STREAMS["generator"](), transaction=Transaction("app", 1))
    assert table.count() == ROWS


def test_a_stream_that_fails_adds_nothing(table):
    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches(5000)
        raise RuntimeError("the source is gone")

    def with_null() -> Iterator[pa.RecordBatch]:
        yield from batches(5000)
        yield pa.record_batch([pa.array([None], pa.int64()), pa.array(["x"])], schema=SCHEMA)

    version = table.refresh().version
    with pytest.raises(RuntimeError, match="the source is gone"):
        table.append(pa.RecordBatchReader.from_batches(SCHEMA, failing()))
    with pytest.raises(SchemaMismatchError, match="NOT NULL, and null in 1 of"):
        table.append(pa.RecordBatchReader.from_batches(SCHEMA, with_null()))
    assert (table.refresh().version, table.count()) == (version, 0)


@pytest.mark.parametrize("rows", [pa.chunked_array([[1, 2]]), pl.Series([1, 2])], ids=["arrow", "polars"])
def test_a_column_is_no_stream_of_rows(table, rows):
    with pytest.raises(SchemaMismatchError, match="pass named columns"):
        table.append(rows)


def test_columns_of_a_stream_that_another_process_added_are_written(table, other_process):
    other_process().table("d.t").add_columns("more INT")
    schema = pa.schema([*SCHEMA, ("more", pa.int32())])
    rows = pa.record_batch([pa.array([1]), pa.array(["x"]), pa.array([7], pa.int32())], schema=schema)
    table.append(pa.RecordBatchReader.from_batches(schema, [rows]))
    assert table.to_arrow(columns=["more"]).to_pylist() == [{"more": 7}]


def test_identity_numbers_and_clocks_of_a_stream_are_those_of_one_statement(wh, small_pieces):
    table = wh.create_table(
        "d.n",
        "n BIGINT, at TIMESTAMP DEFAULT current_timestamp(), id BIGINT",
        properties={"table.identity.n": "ALWAYS"},
    )
    table.append(whole().select(["id"]).to_reader(1000))
    rows = table.to_arrow()
    assert len(set(rows["n"].to_pylist())) == ROWS
    assert len(set(rows["at"].to_pylist())) == 1


def test_a_stream_appends_with_memory_for_a_few_pieces(wh):
    table = wh.create_table("d.t", "id BIGINT", buckets=1)
    step = pa.record_batch({"id": pa.array(range(1 << 20))})
    before = pa.total_allocated_bytes()
    most = [0]

    def rows() -> Iterator[pa.RecordBatch]:
        for _ in range(100):  # 800 MiB
            most[0] = max(most[0], pa.total_allocated_bytes() - before)
            yield pa.record_batch([pa.concat_arrays([step.column(0)])], schema=step.schema)

    table.append(pa.RecordBatchReader.from_batches(step.schema, rows()))
    assert table.count() == 100 << 20
    assert most[0] < 400 << 20


def test_an_upsert_takes_a_stream_too(wh):
    table = wh.create_table("d.k", "id BIGINT, day STRING", primary_key=["id"], buckets=2)
    table.upsert(STREAMS["duckdb"]())
    assert table.count() == ROWS
    table.overwrite(Capsule())
    assert table.count() == ROWS
    with pytest.raises(InvalidOptionError, match="upsert"):
        table.append(Capsule())
