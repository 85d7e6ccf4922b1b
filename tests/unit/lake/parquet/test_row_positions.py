"""Positions of the rows of a data file, by a mask of row groups and by all of their values."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from streamhouse_spark.expressions.filters import parse_filter
from streamhouse_spark.expressions.predicates import ALWAYS_TRUE, And, Compare, In, Or
from streamhouse_spark.expressions.row_masks import mask_rows_to_keep
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.lake.parquet.parquet_source import ParquetSource
from streamhouse_spark.lake.parquet.reader import NO_POSITIONS
from streamhouse_spark.lake.parquet.row_positions import RowMultiset, encode_rows, read_numbered
from streamhouse_spark.lake.types import LakeProjection, LakeSplit
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.schema.variant import VARIANT
from streamhouse_spark.storage.memory import MemoryStorage

ROWS, GROUP_ROWS = 1_000, 100
TABLE = pa.table({"id": pa.array(range(ROWS)), "name": [f"n{i % 7}" for i in range(ROWS)], "late": [None] * ROWS})


@pytest.fixture
def files():
    storage = MemoryStorage()
    sink = pa.BufferOutputStream()
    pq.write_table(TABLE.select(["id", "name"]), sink, row_group_size=GROUP_ROWS, write_statistics=False)
    storage.put("data.parquet", sink.getvalue().to_pybytes())
    return StorageFiles(storage)


def projection(*names):
    fields = [pa.field("late", pa.int64()) if name == "late" else TABLE.schema.field(name) for name in names]
    return LakeProjection(TableSchema.of(pa.schema(fields)), (None,) * len(names), names)


def numbered(files, node, *names, row_groups=None, gone=NO_POSITIONS):
    split = LakeSplit(files.location_of("data.parquet"), 1, ROWS, row_groups)
    found = list(
        read_numbered(files, split, projection(*names), node=ALWAYS_TRUE if node is None else node, deleted=gone)
    )
    numbers = np.concatenate([numbers for numbers, _ in found]) if found else np.zeros(0, np.int64)
    return numbers, pa.Table.from_batches([batch for _, batch in found]) if found else None


@pytest.fixture
def columns_read(monkeypatch):
    """Notes the row groups and columns of each read."""
    noted = []
    read = ParquetSource.batches

    def noting(self, batch_rows, groups, names, *, threads):
        noted.append((list(groups), list(names)))
        return read(self, batch_rows, groups, names, threads=threads)

    monkeypatch.setattr(ParquetSource, "batches", noting)
    return noted


@pytest.mark.parametrize(
    ("node", "groups"),
    [
        (Compare("=", "id", 250), [2]),
        (In("id", (0, 1, 999), has_null=False), [0, 9]),
        (Or((Compare("<", "id", 101), Compare(">=", "id", 899))), [0, 1, 8, 9]),
        (Compare("=", "id", 5_000), []),
        (And((Compare(">=", "id", 300), ALWAYS_TRUE)), [3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_only_row_groups_with_a_wanted_row_are_read(files, columns_read, node, groups):
    numbers, rows = numbered(files, node, "name", "id")
    possible = mask_rows_to_keep(node, TABLE.to_batches()[0])
    in_groups = [number for group in groups for number in range(group * GROUP_ROWS, (group + 1) * GROUP_ROWS)]
    expected = [number for number in in_groups if possible is None or possible[number]]
    assert numbers.tolist() == expected
    if expected:
        assert rows["id"].to_pylist() == expected, "each row stands beside its number"
        assert rows["name"].to_pylist() == TABLE["name"].take(expected).to_pylist()
    looked_at, *read = columns_read
    assert looked_at == (list(range(10)), ["id"]), "the filter's columns are read first"
    assert [group for found, _ in read for group in found] == groups


def test_row_positions_of_chosen_row_groups_are_found(files):
    numbers, _ = numbered(files, In("id", (150, 450, 950), has_null=False), "name", "id", row_groups=(4, 9))
    assert numbers.tolist() == [450]


def test_a_filter_of_every_column_reads_them_once(files, columns_read):
    numbers, _ = numbered(files, Compare("=", "id", 1), "id")
    assert numbers.tolist() == [1]
    assert len(columns_read) == 1


def test_rows_that_are_not_wanted_stay_where_they_are_few(files):
    numbers, _ = numbered(files, Compare(">", "id", 10), "id")
    assert numbers.tolist() == list(range(ROWS)), "a copy without them would take longer"


def test_rows_at_positions_are_left_out_too(files):
    gone = np.array([0, 449, 450, 999])
    assert numbered(files, None, "id", gone=gone)[0].tolist() == np.delete(np.arange(ROWS), gone).tolist()
    assert numbered(files, In("id", (449, 451, 999), has_null=False), "id", gone=gone)[0].tolist() == [451]


def test_a_column_that_the_file_has_not_is_null(files):
    assert len(numbered(files, Compare("=", "late", 1), "id", "late")[0]) == 0


def test_without_a_mask_all_rows_are_read_at_once(files, columns_read):
    assert numbered(files, None, "id", "name")[0].tolist() == list(range(ROWS))
    assert columns_read == [(list(range(10)), ["id", "name"])]


def test_a_filter_of_none_of_the_columns_leaves_out_none(files, columns_read):
    """Such as one of a hidden column alone, which is no column of the file."""
    assert numbered(files, Compare("=", "_bucket", 1), "id", "name")[0].tolist() == list(range(ROWS))
    assert len(columns_read) == 1


def test_an_expression_of_arrow_tells_no_row_and_no_column_is_looked_at_for_it(files, columns_read):
    node = parse_filter(pc.field("id") == 250).bind(TABLE.schema).node
    assert numbered(files, node, "id", "name")[0].tolist() == list(range(ROWS))
    assert columns_read == [(list(range(10)), ["id", "name"])]


NAN = float("nan")
COLUMNS = {
    "numbers": (pa.int64(), [1, 2, None]),
    "floats": (pa.float64(), [0.0, -0.0, NAN, None, 1.5]),
    "single": (pa.float32(), [0.0, -0.0, NAN, None]),
    "text": (pa.string(), ["", "a", None]),
    "bytes": (pa.binary(), [b"", b"a", None]),
    "flags": (pa.bool_(), [True, False, None]),
    "days": (pa.date32(), [dt.date(2020, 1, 1), dt.date(2020, 1, 2), None]),
    "decimals": (pa.decimal128(9, 2), [decimal.Decimal("1.10"), decimal.Decimal("1.1"), decimal.Decimal(2), None]),
    "lists": (pa.list_(pa.int32()), [[], [1], [1, 2], [None], None]),
    "large lists": (pa.large_list(pa.int32()), [[], [1], [1, 2], [None], None]),
    "structs": (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        [{"a": 1, "b": None}, {"a": None, "b": None}, None],
    ),
    "maps": (pa.map_(pa.string(), pa.int32()), [[], [("a", 1)], [("a", None)], None]),
    "deep": (pa.list_(pa.struct([("x", pa.list_(pa.string()))])), [[{"x": ["a"]}], [{"x": None}], [None], [], None]),
    "nothing": (pa.null(), [None]),
}


def plain(value):
    """Return a value as one that is equal to the same one alone."""
    if isinstance(value, float):
        return "nan" if np.isnan(value) else (value, bool(np.signbit(value)))
    if isinstance(value, list | tuple):
        return ("list", *map(plain, value))
    return ("struct", *((k, plain(v)) for k, v in value.items())) if isinstance(value, dict) else value


@pytest.mark.parametrize("name", COLUMNS)
def test_rows_of_each_type_are_matched_by_value(name):
    kind, values = COLUMNS[name]
    drawn = random.Random(name).choices(values, k=60)
    rows = pa.table({"c": pa.chunked_array([pa.array(drawn[:25], kind), pa.array(drawn[25:], kind)])})
    codes = encode_rows(rows)
    for i, one in enumerate(drawn):
        for j, other in enumerate(drawn):
            assert (codes[i] == codes[j]) == (plain(one) == plain(other)), (one, other)


@pytest.mark.parametrize("seed", range(5))
def test_as_many_are_found_as_are_wanted(seed):
    rng = random.Random(seed)
    schema = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.string()))])

    def some(number):
        return [{"a": rng.choice([1, 2, None]), "b": rng.choice([["x"], [], None])} for _ in range(number)]

    wanted, batches = some(12), [some(rng.randrange(9)) for _ in range(4)]
    left = RowMultiset(pa.Table.from_pylist(wanted, schema))
    found: Counter[str] = Counter()
    for rows in batches:
        mask = left.take_matches(pa.RecordBatch.from_pylist(rows, schema))
        assert len(mask) == len(rows)
        found += Counter(repr(row) for row, is_found in zip(rows, mask, strict=True) if is_found)
    there = Counter(repr(row) for rows in batches for row in rows)
    assert found == Counter(map(repr, wanted)) & there
    assert left.num_unmatched == len(wanted) - found.total()


def test_an_empty_multiset_matches_no_row():
    left = RowMultiset(pa.table({"a": pa.array([], pa.int64())}))
    assert left.num_unmatched == 0
    assert not left.take_matches(pa.record_batch({"a": pa.array([1, None])})).any()


def test_variants_that_are_null():
    kind = VARIANT
    values = [None, {"value": b"\x0c\x01", "metadata": b"\x01\x00\x00"}]
    rows = pa.table({"v": pa.array(values, kind)})
    batch = pa.RecordBatch.from_arrays([pa.concat_arrays([pa.nulls(2, kind), rows.column(0).chunk(0)])], names=["v"])
    assert RowMultiset(rows).take_matches(batch).tolist() == [True, False, False, True]
