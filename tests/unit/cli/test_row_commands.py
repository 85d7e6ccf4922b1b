"""head, tail, append, segments, snapshots."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import json
import threading
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from streamhouse_spark.write import file_readers

COLUMNS = "id BIGINT NOT NULL, name STRING, amount DECIMAL(12,2), at TIMESTAMP"


@pytest.fixture
def table(run, warehouse):
    run("create", "t", "--schema", COLUMNS, "--buckets", "2", "-p", "bucket.key=id")
    return warehouse.table("t")


def ids(table) -> list[int]:
    return sorted(table.to_arrow(columns=["id"])["id"].to_pylist())


def json_lines(*rows: dict) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


# -- append ---------------------------------------------------------------------------------------------------------


def test_append_prints_the_offsets(run, table):
    found = run("append", "t", "-", "--format", "json", "-o", "json", stdin=json_lines({"id": 1}, {"id": 2}, {"id": 3}))
    assert found.document["rows"] == 3
    assert sum(end - start for start, end in found.document["offsets"].values()) == 3
    text = run("append", "t", "-", "--format", "json", stdin=json_lines({"id": 4})).stdout
    assert "default.t: added 1 row\n" in text
    assert "[" in text
    assert ids(table) == [1, 2, 3, 4]


def test_append_of_days_in_json_as_head_shows_them(run, warehouse):
    run("create", "d", "--schema", "id INT, day DATE NOT NULL, other DATE")
    run("append", "d", "-", "--format", "json", stdin=json_lines({"id": 1, "day": "1969-12-31", "other": None}))
    run("append", "d", "-", "--format", "json", stdin=json_lines({"id": 2, "day": "2024-02-29"}))
    assert warehouse.table("d").to_arrow()["day"].to_pylist() == [dt.date(1969, 12, 31), dt.date(2024, 2, 29)]
    assert json.loads(run("head", "d", "-o", "json").stdout.splitlines()[0])["day"] == "1969-12-31"
    for text in ("2023-02-29", None):
        lines = json_lines({"id": 3, "day": text})
        error = run("append", "d", "-", "--format", "json", stdin=lines, code=1).stderr
        assert error.startswith("SCHEMA_MISMATCH: ")


def test_append_of_every_format_gives_the_same_rows(run, table, tmp_path):
    rows = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "name": ["ann", None],
            "amount": pa.array([Decimal("9.50"), None], pa.decimal128(12, 2)),
            "at": pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC), None], pa.timestamp("us", "UTC")),
        }
    )
    pq.write_table(rows, tmp_path / "a.parquet")
    pa.feather.write_feather(rows, tmp_path / "a.feather")
    with pa.ipc.new_stream(tmp_path / "a.arrows", rows.schema) as writer:
        writer.write_table(rows)
    (tmp_path / "a.csv").write_text("id,name,amount,at\n1,ann,9.50,2026-01-01T00:00:00Z\n2,NA,,\n")
    (tmp_path / "a.tsv").write_text("id\tname\tamount\tat\n1\tann\t9.50\t2026-01-01T00:00:00Z\n2\t\t\t\n")
    with gzip.open(tmp_path / "a.csv.gz", "wt") as file:
        file.write("at,amount,name,id\n2026-01-01T00:00:00Z,9.50,ann,1\n,,,2\n")
    lines = json_lines({"id": 1, "name": "ann", "amount": "9.50", "at": "2026-01-01T00:00:00Z"}, {"id": 2})
    (tmp_path / "a.jsonl").write_text(lines)
    paths = sorted(tmp_path.glob("a.*"))
    assert len(paths) == 7
    for path in paths:
        run("append", "t", str(path), "--null", "NA")
    found = table.to_arrow().sort_by("id").to_pylist()
    assert found == [rows.to_pylist()[0]] * 7 + [rows.to_pylist()[1]] * 7


@pytest.mark.parametrize("format_", ["parquet", "arrow"])
def test_append_reads_binary_formats_from_standard_input(run, table, format_):
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})
    sink = io.BytesIO()
    if format_ == "parquet":
        pq.write_table(rows, sink)
    else:
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
    run("append", "t", "-", "--format", format_, stdin=sink.getvalue())
    assert ids(table) == [1, 2]


def test_append_of_several_files_is_one_commit(run, table, tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.csv").write_text(f"id\n{i}\n")
    before = table.refresh().version
    run("append", "t", *(str(tmp_path / f"{i}.csv") for i in range(3)))
    assert table.refresh().version == before + 1
    assert ids(table) == [0, 1, 2]


def test_a_bad_file_among_good_ones_adds_nothing(run, table, tmp_path):
    (tmp_path / "good.csv").write_text("id\n1\n")
    (tmp_path / "bad.csv").write_text("id\nx\n")
    failed = run("append", "t", str(tmp_path / "good.csv"), str(tmp_path / "bad.csv"), code=1)
    assert failed.stderr.startswith("SCHEMA_MISMATCH: ")
    assert "bad.csv" in failed.stderr
    assert ids(table) == []


def test_large_files_are_read_in_pieces(run, table, tmp_path, monkeypatch):
    from streamhouse_spark.schema import row_conversion
    from streamhouse_spark.write import file_readers as files

    monkeypatch.setattr(row_conversion, "PIECE_BYTES_MAX", 1 << 16)
    monkeypatch.setattr(files, "BLOCK_BYTES", 1 << 14)
    path = tmp_path / "rows.jsonl"
    path.write_text(json_lines(*({"id": i, "name": f"name {i}"} for i in range(20_000))))
    before = table.refresh().version
    run("append", "t", str(path))
    assert table.refresh().version == before + 1
    assert len(table.state.live_segments()) > 4
    assert ids(table) == list(range(20_000))


def test_append_with_a_transaction_adds_its_rows_once(run, table, tmp_path):
    (tmp_path / "a.csv").write_text("id\n1\n2\n")
    call = ("append", "t", str(tmp_path / "a.csv"), "--txn-app-id", "nightly", "--txn-version", "1")
    first = run(*call, "-o", "json").document
    again = run(*call, "-o", "json").document
    assert (first["rows"], first["duplicate"]) == (2, False)
    assert (again["rows"], again["duplicate"], again["offsets"]) == (0, True, first["offsets"])
    assert "nothing was added" in run(*call).stdout
    assert ids(table) == [1, 2]
    assert "require each other" in run("append", "t", str(tmp_path / "a.csv"), "--txn-app-id", "x", code=2).stderr


def test_append_accepts_files_without_rows(run, table, tmp_path):
    for name in ("empty.jsonl", "header.csv"):
        (tmp_path / name).write_text("id\n" if name.endswith("csv") else "")
        assert run("append", "t", str(tmp_path / name), "-o", "json").document["rows"] == 0


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("rows.csv", "id,nam\n1,x\n", "SCHEMA_MISMATCH: "),
        ("rows.csv", "name\nx\n", "SCHEMA_MISMATCH: "),
        ("rows.csv", "id,name\n1,a\nx,b\n", "SCHEMA_MISMATCH: rows.csv: line 3: column 'id': conversion error to int"),
        ("rows.csv", "\nid,name\r\n\r\n1,a\r\n2\r\n", "SCHEMA_MISMATCH: rows.csv: line 5: CSV parse error: Expected 2"),
        ("rows.csv", 'name,id\n"a\n\nb",1\nc,x\n', "SCHEMA_MISMATCH: rows.csv: line 5: column 'id'"),
        (
            "rows.csv",
            "id,day\n1,2026-01-31\n2,2026-02-31\n",
            "SCHEMA_MISMATCH: rows.csv: line 3: column 'day' has \"2026-02-31",
        ),
        ("rows.csv", "id,day\n1,10000-01-01\n", "SCHEMA_MISMATCH: rows.csv: line 2: column 'day' has \"10000-01-01"),
        ("rows.csv", "id,amount\n1,1e400\n", "SCHEMA_MISMATCH: rows.csv: line 2: column 'amount'"),
        ("rows.csv", "id\n1\n99999999999999999999\n", "SCHEMA_MISMATCH: rows.csv: line 3: column 'id'"),
        ("rows.jsonl", '{"id": 1', "SCHEMA_MISMATCH: rows.jsonl: line 1: "),
        ("rows.jsonl", '{"id": 1}\n\n{"id": "x"}\n', "SCHEMA_MISMATCH: rows.jsonl: line 3: column 'id' has \"x\""),
        ("rows.jsonl", '{"id": 99999999999999999999}\n', "SCHEMA_MISMATCH: rows.jsonl: line 1: column 'id'"),
        ("rows.jsonl", '{"id": 1, "day": "10000-01-01"}\n', "SCHEMA_MISMATCH: rows.jsonl: line 1: column 'day'"),
        ("rows.json", '[{"id": 1}, {"id": "x"}]', "SCHEMA_MISMATCH: rows.json: row 2: column 'id' has \"x\""),
        (
            "rows.json",
            '[{"id": 1}, 2]',
            "SCHEMA_MISMATCH: rows.json: the rows are valid JSON but not an array of objects",
        ),
        ("rows.json", '[{"id": 1}', "SCHEMA_MISMATCH: rows.json: the rows are not JSON: the array does not end"),
        ("rows.parquet", "no parquet", "SCHEMA_MISMATCH: "),
        ("rows.arrow", "no arrow", "SCHEMA_MISMATCH: "),
        ("rows.txt", "id\n1\n", "INVALID_OPTION: "),
    ],
)
def test_append_of_what_does_not_fit(run, table, tmp_path, monkeypatch, name, content, text):
    table.add_columns("day DATE")
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(content, newline="")
    failed = run("append", "t", name, code=1)
    assert failed.stderr.startswith(text), failed.stderr
    assert len(failed.stderr.splitlines()) == 1
    assert ids(table) == []


@pytest.mark.parametrize("text", ['[{"id": 1}, {"id": 2}]', '[\n  {"id": 1,\n   "name": "x"},\n  {"id": 2}\n]\n', "[]"])
def test_append_of_a_json_array_adds_its_objects(run, table, text):
    run("append", "t", "-", "--format", "json", stdin=text)
    assert ids(table) == ([] if text == "[]" else [1, 2])


@pytest.mark.parametrize("day", ["0000-01-01", "-0001-12-31", "+10000-01-01", "9999-12-31"])
@pytest.mark.parametrize("format_", ["csv", "json"])
def test_days_beyond_the_calendar_of_python_are_stored(run, table, format_, day):
    table.add_columns("day DATE")
    rows = f"id,day\n1,{day}\n" if format_ == "csv" else f'{{"id": 1, "day": "{day}"}}\n'
    run("append", "t", "-", "--format", format_, stdin=rows)
    assert [line["day"] for line in run("head", "t", "-o", "json").lines] == [day]


def test_csv_is_read_in_the_thread_of_the_caller():
    """A thread of Arrow that waits for Python when the process exits aborts it."""
    threads = set()

    class Source(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            threads.add(threading.get_ident())
            return super().read(size)

    _, batches = file_readers.read_csv(Source(b"id\n1\n"), None)
    assert [batch.num_rows for batch in batches] == [1]
    assert threads == {threading.get_ident()}


def test_the_line_of_a_wrong_field_is_counted_over_blocks(run, table, monkeypatch):
    monkeypatch.setattr(file_readers, "BLOCK_BYTES", 16)
    rows = "id,name\n" + "".join(f'{n},"a\nb"\n' for n in range(10, 40)) + "x,y\n"
    failed = run("append", "t", "-", "--format", "csv", stdin=rows, code=1)
    assert "line 62: column 'id'" in failed.stderr


def test_append_rejects_an_absent_file(run, table):
    assert run("append", "t", "absent.csv", code=1).stderr.startswith("INVALID_OPTION: file absent.csv does not exist")
    assert "--format" in run("append", "t", "-", code=1, stdin="").stderr


# -- head -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def filled(table):
    for start in (0, 10):
        table.append([{"id": i, "name": f"n{i}", "amount": Decimal(i)} for i in range(start, start + 10)])
    return table


def test_head_limits_columns_and_rows(run, filled):
    found = run("head", "t", "-n", "3", "--columns", "name,id", "-o", "json").lines
    assert len(found) == 3
    assert list(found[0]) == ["name", "id"]
    assert len(run("head", "t", "-o", "json", "-n", "100").lines) == 20
    assert run("head", "t", "-n", "0", "-o", "json").lines == []


def test_head_filters_rows_by_a_condition(run, filled):
    found = run("head", "t", "--where", "amount > 5 AND name IN ('n7', 'n15', 'n2')", "-o", "json").lines
    assert sorted(row["id"] for row in found) == [7, 15]
    found = run("head", "t", "--where", "id < 2 OR NOT (id <= 17)", "--columns", "id", "-o", "json").lines
    assert sorted(row["id"] for row in found) == [0, 1, 18, 19]
    assert run("head", "t", "--where", "nam = 'x'", code=1).stderr.startswith("SCHEMA_MISMATCH: ")
    assert "did you mean 'name'?" in run("head", "t", "--where", "nam = 'x'", code=1).stderr


def test_head_shows_values_for_people_and_for_programs(run, filled):
    assert "null" in run("head", "t").stdout
    row = run("head", "t", "--where", "id = 3", "-o", "json").lines[0]
    assert row == {"id": 3, "name": "n3", "amount": "3.00", "at": None}


def test_head_reads_the_union_the_lake_and_views(run, filled):
    run("tier", "--once")
    filled.append([{"id": 100}])
    names = {name: run("head", name, "-n", "1000", "-o", "json").lines for name in ("t", "t$lake", "t$changelog")}
    assert [len(rows) for rows in names.values()] == [21, 20, 21]
    assert {row["_change_type"] for row in names["t$changelog"]} == {"insert"}
    assert sorted(row["id"] for row in names["t"]) == [*range(20), 100]
    views = ("buckets", "segments", "commits", "history", "schemas", "options", "tiering", "lake$files")
    for name in (f"t${view}" for view in views):
        assert run("head", name, "-o", "json").lines, name
    assert [row["id"] for row in run("head", "t$lake", "--where", "id = 4", "-o", "json").lines] == [4]
    assert run("head", "t$changelog", "--columns", "_log_offset,id", "-n", "1", "-o", "json").lines[0].keys() == {
        "_log_offset",
        "id",
    }


def test_head_of_a_lake_that_was_never_tiered_is_empty(run, filled):
    assert run("head", "t$lake", "-o", "json").lines == []
    assert run("head", "t$nothing", code=1).stderr.startswith("INVALID_NAME: default.t$nothing: unknown suffix")


# -- tail -----------------------------------------------------------------------------------------------------------


def test_tail_without_following_ends_with_the_last_row(run, filled):
    found = run("tail", "t", "--from", "earliest", "--no-follow", "-o", "json").lines
    assert sorted(row["id"] for row in found) == list(range(20))
    for bucket in (0, 1):
        offsets = [row["_log_offset"] for row in found if row["_bucket"] == bucket]
        assert offsets == list(range(len(offsets)))
    assert run("tail", "t", "--no-follow").stdout == ""
    text = run("tail", "t", "--from", "earliest", "--no-follow", "--columns", "name").stdout.splitlines()
    assert text[0].split() == ["_bucket", "_log_offset", "_commit_timestamp", "name"]
    assert len(text) == 21
    found = run("tail", "t", "--from", "earliest", "--no-follow", "--where", "id IN (3, 5)", "-o", "json").lines
    assert sorted(row["id"] for row in found) == [3, 5]


def test_tail_starts_at_a_time(run, filled):
    assert run("tail", "t", "--from", "2000-01-01T00:00:00Z", "--no-follow", "-o", "json").lines
    assert run("tail", "t", "--from", "2999-01-01T00:00:00Z", "--no-follow").stdout == ""
    assert run("tail", "t", "--from", "yesterday", code=1).stderr.startswith("INVALID_OPTION: --from is 'yesterday'")


def test_tail_follows_until_it_has_enough(run, filled):
    found = run("tail", "t", "--from", "earliest", "-n", "15", "-o", "json").lines
    assert len(found) == 15


# -- what a table is made of ----------------------------------------------------------------------------------------


def test_segments_and_snapshots_are_listed_as_json(run, filled):
    assert sum(row["num_rows"] for row in run("segments", "t", "-o", "json").lines) == 20
    assert run("snapshots", "t", "-o", "json").lines == []
    run("tier", "--once")
    (snapshot,) = run("snapshots", "t", "-o", "json").lines
    assert "streamhouse-offsets" in str(snapshot["summary"])
    text = run("snapshots", "t").stdout
    assert str(snapshot["snapshot_id"]) in text
    assert "rows_added" in text


def test_history_lists_commits_with_their_engine(run, filled):
    run("tier", "--once")
    first, *others = run("history", "t", "-o", "json").lines
    assert (first["operation"], others[-1]["operation"]) == ("tier", "create")
    assert sum(row["rows_added"] for row in others) == 20
    assert first["engine"].startswith("cli/")
    (last,) = run("history", "t", "-n", "1", "-o", "json").lines
    assert last == first
    assert "usage" in run("history", "t", "-n", "0", code=2).stderr.lower()


# -- tables with a primary key ----------------------------------------------------------------------------------------


@pytest.fixture
def keyed(run, warehouse, own_cache):
    run("create", "k", "--schema", "id BIGINT, name STRING", "--primary-key", "id", "--buckets", "2")
    return warehouse.table("k")


def test_append_upserts_by_primary_key(run, keyed):
    text = run("append", "k", "-", "--format", "json", stdin=json_lines({"id": 1, "name": "a"}, {"id": 2})).stdout
    assert "default.k: added 2 changes" in text
    run("append", "k", "-", "--format", "json", stdin=json_lines({"id": 1, "name": "b"}))
    assert keyed.to_arrow(filter=[("id", "=", 1)]).to_pylist() == [{"id": 1, "name": "b"}]
    assert keyed.to_arrow().num_rows == 2
    assert run("head", "k", "-o", "json", "--where", "id = 1").stdout.count("name") == 1
    changes = run("tail", "k", "--from", "earliest", "--no-follow", "-o", "json", "--columns", "name").stdout
    kinds = [json.loads(line)["_change_type"] for line in changes.splitlines() if json.loads(line)["name"]]
    assert kinds == ["insert", "update_before", "update_after"]
    assert "primary key     id" in run("describe", "k").stdout


def test_variants_are_appended_as_json_and_csv(run, warehouse, tmp_path):
    run("create", "v", "--schema", "id INT, v VARIANT", "-p", "table.datalake.format=paimon")
    rows = [{"id": 1, "v": {"a": [1, 2.5, "x", None]}}, {"id": 2, "v": "text"}, {"id": 3, "v": None}, {"id": 4}]
    run("append", "v", "-", "--format", "json", stdin=json_lines(*rows))
    (tmp_path / "rows.csv").write_text('id,v\n5,"{""b"": 1e300}"\n6,\n')
    run("append", "v", str(tmp_path / "rows.csv"))
    shown = [json.loads(line) for line in run("head", "v", "-o", "json").stdout.splitlines()]
    more = [{"id": 4, "v": None}, {"id": 5, "v": {"b": 1e300}}, {"id": 6, "v": None}]
    assert sorted(shown, key=lambda row: row["id"]) == [*rows[:3], *more]
    assert '{"a": [1, 2.5, "x", null]}' in run("head", "v").stdout
    error = run("append", "v", "-", "--format", "csv", stdin="id,v\n7,{\n", code=1).stderr
    assert error.startswith("SCHEMA_MISMATCH: ")
    assert "column 'v' has '{', which is not JSON" in error


def test_rows_that_head_and_tail_print_are_taken_by_append(run, warehouse):
    schema = (
        "id INT, x BINARY, d DOUBLE, m MAP<STRING, BINARY>, k MAP<INT, STRING>, y DATE, z TIMESTAMP, n INT DEFAULT 7"
    )
    run("create", "a", "--schema", schema)
    run("create", "b", "--schema", schema)
    far = pa.array([-(2**31), None], pa.int32()).cast(pa.date32())
    rows = pa.table({
        "id": pa.array([1, 2], pa.int32()), "x": [b"\xff", None], "d": [float("-inf"), 0.5], "y": far,
        "m": pa.array([[("a", b"\x00")], []], pa.map_(pa.string(), pa.binary())),
        "k": pa.array([[(1, "a")], None], pa.map_(pa.int32(), pa.string())),
        "z": pa.array([2**62, 0], pa.int64()).cast(pa.timestamp("us", "UTC")), "n": pa.array([None, 5], pa.int32()),
    })  # fmt: skip
    warehouse.table("a").append(rows)
    for printed in (
        run("head", "a", "-o", "json"),
        run("tail", "a", "--from", "earliest", "--no-follow", "-o", "json"),
    ):
        run("append", "b", "-", "--format", "json", stdin=printed.stdout)
    assert "+148108-07-06T14:00:27.387904Z" in run("head", "a").stdout
    found = warehouse.table("b").to_arrow()
    assert found.equals(pa.concat_tables([warehouse.table("a").to_arrow()] * 2))
    run("append", "b", "-", "--format", "json", stdin='{"id": 3}\n{"ID": 4, "N": null}\n')
    assert warehouse.table("b").to_arrow(columns=["id", "n"]).to_pylist()[-2:] == [
        {"id": 3, "n": 7},
        {"id": 4, "n": None},
    ]


@pytest.mark.parametrize("text", ['id,name\n1,"a\n2,b\n', 'id,name\n1,a"b\n', 'id,name\n1,"a"b\n2,c\n'])
@pytest.mark.parametrize("blocks", [False, True])
def test_quotes_that_are_not_rfc_4180_are_refused_and_nothing_is_stored(run, table, monkeypatch, text, blocks):
    if blocks:
        monkeypatch.setattr(file_readers, "BLOCK_BYTES", 16)
        text = text.replace("\n1,", "\n" + "".join(f"{n},x\n" for n in range(10, 40)) + "1,")
    failed = run("append", "t", "-", "--format", "csv", stdin=text, code=1)
    assert failed.stderr.startswith("SCHEMA_MISMATCH: ")
    assert "quote" in failed.stderr
    assert ids(table) == []
