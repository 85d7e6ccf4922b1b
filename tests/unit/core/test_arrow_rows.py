"""Rows in slices of bounded bytes, and every verb with more text than a slice: here one is a few hundred bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kit.rows import rows_by_id
from kit.tables import tier
from streamhouse_spark import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.core import arrow_rows
from streamhouse_spark.lookup.batch_lookup import BatchLookup
from streamhouse_spark.lookup.lookup_join import LookupPlan
from streamhouse_spark.schema.conversion import Conversion
from streamhouse_spark.write.auto_compaction import compact_small_segments

SLICE_BYTES = 400
ROWS = 60
COLUMNS = "id BIGINT NOT NULL, text STRING, tags ARRAY<STRING>, data BINARY, pair STRUCT<a: STRING, b: INT>"

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(autouse=True)
def small_slices(monkeypatch):
    monkeypatch.setattr(arrow_rows, "SLICE_BYTES_MAX", SLICE_BYTES)


@pytest.fixture
def no_large_arrays(monkeypatch):
    """Nothing gathers more than a few slices into one array, as Arrow could not with slices of its own size."""
    real = pa.concat_arrays

    def concat(arrays, *args, **options):
        found = real(arrays, *args, **options)
        assert _is_fixed(found.type) or int(arrow_rows.estimate_row_bytes(found).sum()) <= 3 * SLICE_BYTES
        return found

    monkeypatch.setattr(pa, "concat_arrays", concat)


def _is_fixed(data_type: pa.DataType) -> bool:
    return pa.types.is_primitive(data_type)


def row(i: int, turn: int = 0) -> dict[str, object]:
    text = f"{turn}:{i}:" * (i % 13 + 1)
    odd = i % 5 == 0
    return {
        "id": i,
        "text": None if odd else text,
        "tags": None if i % 7 == 0 else [text, None, text[:3]],
        "data": text.encode(),
        "pair": None if odd else {"a": text, "b": i},
    }


def given(ids, turn: int = 0) -> list[dict[str, object]]:
    return [row(i, turn) for i in ids]


@pytest.mark.parametrize("lake_format", ["iceberg", "paimon"])
@pytest.mark.parametrize("buckets", [1, 3])
def test_every_verb_of_a_log_table_works_with_more_text_than_a_slice(wh, monkeypatch, lake_format, buckets):
    monkeypatch.setattr("streamhouse_spark.log.staging.INLINE_BYTES_MAX", 0)
    monkeypatch.setattr("streamhouse_spark.lake.parquet.reader.BATCH_BYTES_MAX", SLICE_BYTES)
    properties = {"table.datalake.format": lake_format, **({"bucket.key": "id"} if buckets > 1 else {})}
    table = wh.create_table("t", COLUMNS, buckets=buckets, properties=properties)
    expected = []
    for turn in range(9):
        ids = range(turn * ROWS, (turn + 1) * ROWS)
        table.append(given(ids, turn))
        expected += given(ids, turn)
    assert rows_by_id(table.to_arrow()) == expected
    assert compact_small_segments(table) > 0
    assert rows_by_id(table.to_arrow()) == expected
    for turn in (9, 10):
        tier(table)
        assert rows_by_id(table.to_arrow()) == rows_by_id(table.lake.to_arrow()) == expected
        ids = range(turn * ROWS, (turn + 1) * ROWS)
        table.append(given(ids, turn))
        expected += given(ids, turn)
        assert rows_by_id(table.to_arrow()) == expected
    tier(table)
    table.lake.compact()
    assert rows_by_id(table.to_arrow()) == rows_by_id(table.lake.to_arrow()) == expected


@pytest.mark.parametrize("lake_format", ["iceberg", "paimon"])
@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.usefixtures("no_large_arrays")
def test_every_verb_of_a_keyed_table_works_with_more_text_than_a_slice(
    wh, other_process, monkeypatch, lake_format, buckets
):
    monkeypatch.setattr("streamhouse_spark.lake.parquet.reader.BATCH_BYTES_MAX", SLICE_BYTES)
    properties = {"table.datalake.format": lake_format}
    table = wh.create_table("t", COLUMNS, primary_key=["id"], buckets=buckets, properties=properties)
    rows = {}

    def agree() -> None:
        expected = [rows[i] for i in sorted(rows)]
        assert rows_by_id(table.to_arrow()) == expected
        assert rows_by_id(other_process().table("t").to_arrow()) == expected
        keys = [*rows, -1]
        looked = table.lookup(keys).to_pylist()
        assert [r["_found"] for r in looked] == [True] * len(rows) + [False]
        assert [{name: r[name] for name in rows[keys[0]]} for r in looked[:-1]] == list(rows.values())

    def upsert(ids, turn: int) -> None:
        table.upsert(given(ids, turn))
        rows.update((i, row(i, turn)) for i in ids)

    upsert(range(ROWS), 0)
    agree()
    upsert(range(ROWS // 2, 2 * ROWS), 1)
    table.delete(list(range(0, ROWS, 3)))
    for i in range(0, ROWS, 3):
        del rows[i]
    agree()
    tier(table)
    agree()
    assert rows_by_id(table.lake.to_arrow()) == [rows[i] for i in sorted(rows)]
    upsert(range(5, ROWS + 9), 2)
    agree()
    table.upsert([{"id": i, "text": "now"} for i in range(9, 50)], columns=["text"])
    for i in range(9, 50):
        rows[i] = {**rows[i], "text": "now"}
    agree()
    tier(table)
    table.lake.compact()
    agree()
    assert rows_by_id(table.lake.to_arrow()) == [rows[i] for i in sorted(rows)]
    found_by_prefix = table.prefix_lookup([6])
    assert rows_by_id(found_by_prefix) == [rows[6]]
    plan = LookupPlan.of(table.state, ["k"], {"k": "id"}, None, "left", "")
    asked = pa.record_batch({"k": pa.array([*range(ROWS), 10**6])})
    joined = pa.Table.from_batches(plan.batches(asked, BatchLookup(table.keyed).matches)).to_pylist()
    assert [r["k"] for r in joined] == [*range(ROWS), 10**6]
    assert [r["text"] for r in joined] == [rows.get(r["k"], {}).get("text") for r in joined]


def test_the_same_changes_whatever_the_slices_are(wh, monkeypatch):
    """The changelog of a large batch is that of the same batch in one piece: by key, each update's rows together."""
    logs = []
    for turn, size in enumerate([SLICE_BYTES, 1 << 30]):
        monkeypatch.setattr(arrow_rows, "SLICE_BYTES_MAX", size)
        table = wh.create_table(f"t{turn}", COLUMNS, primary_key=["id"])
        table.upsert(given(range(ROWS)))
        table.upsert(given(range(10, 2 * ROWS), 1))
        table.delete(list(range(20)))
        logs.append(pa.Table.from_batches(table.tail("earliest", until_ms=0)).to_pylist())
    assert logs[0] == logs[1]
    assert len(logs[0]) > 2 * ROWS


@pytest.mark.parametrize("key", [(), ("id",)])
def test_a_row_that_is_too_large_is_refused_before_anything_is_written(wh, monkeypatch, key):
    monkeypatch.setattr(arrow_rows, "ROW_BYTES_MAX", 1000)
    table = wh.create_table("t", COLUMNS, primary_key=key)
    write = table.upsert if key else table.append
    version = table.refresh().version
    for large in ({"text": "x" * 1001}, {"tags": ["x" * 501, "y" * 500]}, {"pair": {"a": "x" * 1001, "b": 1}}):
        with pytest.raises(SchemaMismatchError, match=r"in row 1 of these rows.*expected at most 1000"):
            write([row(1), {**row(2), **large}, row(3)])
    wide = pa.table({"id": [1], "text": pa.array(["x" * 1001], pa.large_string())})
    with pytest.raises(
        SchemaMismatchError,
        match=r"'text' of default\.t has the largest value in row 0 of these rows, which has 1005 bytes",
    ):
        write(wide)
    assert table.refresh().version == version


def test_a_row_that_grows_too_large_is_refused(wh, monkeypatch):
    monkeypatch.setattr(arrow_rows, "ROW_BYTES_MAX", 1000)
    table = wh.create_table("t", COLUMNS, primary_key=["id"])
    table.upsert([{"id": 1, "text": "x" * 700}])
    version = table.refresh().version
    with pytest.raises(SchemaMismatchError, match="the rows of one primary key in bucket 0"):
        table.upsert([{"id": 1, "data": b"y" * 700}], columns=["data"])
    monkeypatch.setattr(arrow_rows, "KEY_ROWS_BYTES_MAX", 2000)
    with pytest.raises(SchemaMismatchError, match="rows of one key in several batches"):
        table.upsert([{"id": 1, "data": b"y" * 700} for _ in range(3)])
    assert table.refresh().version == version


def test_too_many_bytes_of_keys_are_refused(wh, monkeypatch):
    monkeypatch.setattr(arrow_rows, "KEYS_BYTES_MAX", 1000)
    table = wh.create_table("t", "id STRING NOT NULL, n INT", primary_key=["id"])
    version = table.refresh().version
    with pytest.raises(InvalidOptionError, match="bytes of primary keys for one bucket"):
        table.upsert([{"id": f"{i:0100d}", "n": i} for i in range(11)])
    with pytest.raises(InvalidOptionError, match="look up the keys in several calls"):
        table.lookup([f"{i:0100d}" for i in range(11)])
    assert table.refresh().version == version


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a" * 90, None, "b" * 300] * 9, pa.large_string()),
        pa.array(["a" * 90, None, "b" * 300] * 9).dictionary_encode(),
        pa.array(["a" * 90, None, "b" * 300] * 9, pa.string_view()),
        pa.array([b"a" * 90, None, b"b" * 300] * 9, pa.large_binary()).cast(pa.large_binary()),
    ],
    ids=["large_string", "dictionary", "string_view", "large_binary"],
)
def test_columns_of_other_types_come_in_slices(wh, column):
    kind = "BINARY" if pa.types.is_large_binary(column.type) else "STRING"
    table = wh.create_table("t", f"v {kind}")
    table.append(pa.table({"v": column}))
    assert table.to_arrow()["v"].to_pylist() == column.to_pylist()
    assert len(arrow_rows.slice_for_cast(column)) > 5


def test_python_values_that_one_array_cannot_hold_come_in_halves(monkeypatch):
    real = pa.array

    def array(values, *args, **options):
        if isinstance(values, list) and len(values) > 2:
            raise pa.ArrowCapacityError("too many bytes")
        return real(values, *args, **options)

    monkeypatch.setattr(pa, "array", array)
    values = [["a"], None, ["b", "c"], [], ["d"]]
    made = Conversion("t", "v").from_python(values, pa.list_(pa.string()))
    assert made.to_pylist() == values


def test_gathered_rows_are_those_that_take_gives():
    column = pa.chunked_array([[f"{i}" * (i % 40) for i in range(50)], [], ["x", None], ["y" * 500]])
    places = np.array([52, -1, 0, 49, 49, 51, 3, *range(50), -1, 50, 52, 52])
    expected = [None if place < 0 else column[place].as_py() for place in places.tolist()]
    taken = arrow_rows.take_values(column, places)
    assert taken.to_pylist() == expected
    assert taken.num_chunks > 3
    assert all(len(chunk) == 1 or chunk.nbytes <= SLICE_BYTES for chunk in taken.chunks)


def test_rows_are_never_fewer_bytes_than_their_arrays_have():
    rows = pa.Table.from_pylist(given(range(40)))
    for column in rows.columns:
        (chunk,) = column.chunks
        assert int(arrow_rows.estimate_row_bytes(chunk).sum()) >= chunk.nbytes - 40
        assert (
            arrow_rows.estimate_row_bytes(chunk.slice(7, 9)).tolist()
            == arrow_rows.estimate_row_bytes(chunk).tolist()[7:16]
        )


def test_rows_have_the_bytes_of_their_values():
    texts = ["a" * (i % 9) if i % 4 else None for i in range(50)]
    columns = {
        "flag": pa.array([True] * 50),
        "day": pa.array(range(50), pa.date32()),
        "price": pa.array(range(50), pa.decimal128(12, 2)),
        "nothing": pa.nulls(50),
        "fixed": pa.array([b"abc"] * 50, pa.binary(3)),
        "text": pa.chunked_array([texts[:7], texts[7:7], texts[7:]], pa.string()),
        "word": pa.array(texts).dictionary_encode(),
        "list": pa.array([[text, text] for text in texts]),
        "pair": pa.array([{"a": text, "b": 1} for text in texts]),
    }
    rows = pa.table(columns)
    expected = sum(map(arrow_rows.estimate_row_bytes, rows.columns), start=np.zeros(50, np.int64))
    assert arrow_rows.table_row_bytes(rows).tolist() == expected.tolist()
    batch = rows.combine_chunks().to_batches()[0]
    assert arrow_rows.table_row_bytes(batch.slice(3, 20)).tolist() == expected[3:23].tolist()
    assert arrow_rows.table_row_bytes(rows.slice(0, 0)).tolist() == []


def test_a_few_large_rows_do_not_hide_behind_many_small_ones():
    rows = pa.table({"v": ["s"] * 500 + ["l" * 300] * 5})
    parts = list(arrow_rows.slice_by_size(rows))
    assert pa.concat_tables(parts) == rows
    assert max(part.nbytes for part in parts) <= SLICE_BYTES


@pytest.mark.parametrize("step_rows", [1, 7, 100, 1 << 16])
@pytest.mark.parametrize("seed", range(4))
def test_slices_are_the_cuts_row_by_row_however_rows_are_counted(monkeypatch, step_rows, seed):
    monkeypatch.setattr(arrow_rows, "STEP_ROWS", step_rows)
    random = np.random.default_rng(seed)
    lengths = random.choice([0, 3, 40, 399, 1000], 300, p=[0.3, 0.4, 0.2, 0.05, 0.05])
    columns = {"v": ["é" * int(n) for n in lengths], "n": np.arange(300)}
    rows = pa.table(columns)
    chunked = pa.concat_tables([rows.slice(at, 37) for at in range(0, 300, 37)])
    parts = list(arrow_rows.slice_by_size(chunked))
    assert pa.concat_tables(parts).equals(rows)
    assert [part.num_rows for part in parts] == [
        end - start for start, end in arrow_rows.cut_by_size(arrow_rows.table_row_bytes(rows))
    ]


def test_rows_are_counted_one_by_one_only_near_a_cut(monkeypatch):
    counted = []
    real = arrow_rows.table_row_bytes
    monkeypatch.setattr(arrow_rows, "table_row_bytes", lambda rows: counted.append(rows.num_rows) or real(rows))
    monkeypatch.setattr(arrow_rows, "STEP_ROWS", 10)
    rows = pa.table({"n": np.arange(1000)})
    assert len(list(arrow_rows.slice_by_size(rows, 4000))) == 2
    assert sum(counted) == 10
    assert not arrow_rows.may_have_large_row(rows)
    monkeypatch.setattr(arrow_rows, "ROW_BYTES_MAX", 70)
    assert arrow_rows.may_have_large_row(rows)


def test_words_of_a_dictionary_count_as_often_as_they_stand_there():
    rows = pa.table({"word": pa.array(["w" * 300] * 50).dictionary_encode()})
    assert max(part.num_rows for part in arrow_rows.slice_by_size(rows)) == 1


class TestBlanks:
    """CHAR(n): what is written is larger than what was given."""

    @pytest.mark.parametrize("key", [(), ("id",)])
    def test_texts_with_blanks_come_in_slices(self, wh, monkeypatch, key):
        real, largest = pc.utf8_rpad, []

        def pad(texts, *args):
            found = real(texts, *args)
            largest.append(found.nbytes)
            return found

        monkeypatch.setattr(pc, "utf8_rpad", pad)
        table = wh.create_table("t", "id BIGINT NOT NULL, c CHAR(100)", primary_key=key)
        texts = [None if i % 9 == 0 else "é" * (i % 3) for i in range(ROWS)]
        (table.upsert if key else table.append)(pa.table({"id": range(ROWS), "c": pa.array(texts)}))
        assert table.to_arrow().sort_by("id")["c"].to_pylist() == [t if t is None else t.ljust(100) for t in texts]
        assert len(largest) > 10
        assert max(largest) <= SLICE_BYTES + 100

    def test_a_text_that_is_too_long_is_named_by_its_row(self, wh):
        table = wh.create_table("t", "id BIGINT, c CHAR(100)")
        rows = [{"id": i, "c": "x" * (101 if i == 50 else 1)} for i in range(ROWS)]
        with pytest.raises(SchemaMismatchError, match="the string in row 50 of these rows has 101 characters"):
            table.append(rows)

    def test_rows_that_blanks_make_too_large_are_refused(self, wh, monkeypatch):
        monkeypatch.setattr(arrow_rows, "ROW_BYTES_MAX", 1000)
        wide = wh.create_table("wide", "id BIGINT, c CHAR(2000)")
        both = wh.create_table("both", "id BIGINT, c CHAR(600), d CHAR(600)")
        with pytest.raises(SchemaMismatchError, match=r"'c' of default\.wide is char\(2000\), .* row 1 .*VARCHAR"):
            wide.append([{"id": 1, "c": None}, {"id": 2, "c": "x"}])
        with pytest.raises(SchemaMismatchError, match="expected at most 1000"):
            both.append([{"id": 1, "c": "x", "d": "y"}])
        assert wide.append([{"id": 1, "c": None}])
        assert (both.refresh().version, len(wide.to_arrow())) == (1, 1)
