"""Row groups are left out by what the footer says of them: never one with a wanted row, and those of other values."""

from __future__ import annotations

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamhouse_spark.expressions.filters import parse_filter
from streamhouse_spark.expressions.predicates import ALWAYS_TRUE, And, Compare, In, IsNull
from streamhouse_spark.expressions.row_masks import mask_rows_to_keep
from streamhouse_spark.lake.parquet.file_columns import FileColumns
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.lake.parquet.reader import RowGroups, read_split, select_matching_groups
from streamhouse_spark.lake.parquet.row_positions import read_numbered
from streamhouse_spark.lake.types import LakeProjection, LakeSplit
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.memory import MemoryStorage

GROUP_ROWS = 10
MOMENT = dt.datetime(2026, 1, 1, 12, 30)
TWO_VALUES = {
    "tiny": (pa.int8(), 1, 2),
    "int": (pa.int32(), 1, 2),
    "long": (pa.int64(), 2**62, 2**62 + 1),
    "double": (pa.float64(), 1.5, -2.0),
    "float": (pa.float32(), 1.5, -2.0),
    "text": (pa.string(), "a", "ä"),
    "bytes": (pa.binary(), b"a", b"\xff"),
    "small decimal": (pa.decimal128(9, 2), decimal.Decimal("1.50"), decimal.Decimal("-1.50")),
    "decimal": (pa.decimal128(18, 3), decimal.Decimal("1.500"), decimal.Decimal("1.501")),
    "large decimal": (pa.decimal128(30, 2), decimal.Decimal("1.50"), decimal.Decimal("1e20")),
    "date": (pa.date32(), MOMENT.date(), dt.date(1969, 1, 1)),
    "timestamp": (pa.timestamp("us", "UTC"), MOMENT.replace(tzinfo=dt.UTC), dt.datetime(1, 1, 1, tzinfo=dt.UTC)),
    "timestamp_ntz": (pa.timestamp("us"), MOMENT, MOMENT + dt.timedelta(microseconds=1)),
    "bool": (pa.bool_(), True, False),
}


def opened(table: pa.Table, wanted: pa.Schema | None = None, **how) -> tuple[pq.FileMetaData, FileColumns]:
    """Write a file, and find the wanted columns in it; a row group has `GROUP_ROWS` rows."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=GROUP_ROWS, **how)
    file = pq.ParquetFile(sink.getvalue())
    schema = TableSchema.of(wanted or table.schema)
    projection = LakeProjection(schema, (None,) * len(schema.names), schema.names)
    return file.metadata, FileColumns(file, "memory://test/data.parquet", projection)


def groups_of(table: pa.Table, node, wanted: pa.Schema | None = None, **how) -> list[int]:
    footer, columns = opened(table, wanted, **how)
    return select_matching_groups(footer, range(footer.num_row_groups), columns, node)


def in_two_groups(kind: pa.DataType, first, second) -> pa.Table:
    return pa.table({"v": pa.array([first] * GROUP_ROWS + [second] * GROUP_ROWS, kind)})


@pytest.mark.parametrize("as_integer", [False, True], ids=["decimals as bytes", "decimals as integers"])
@pytest.mark.parametrize(("kind", "first", "second"), TWO_VALUES.values(), ids=TWO_VALUES)
def test_each_type_tells_its_values_apart(kind, first, second, as_integer):
    """Leaving out none would be right too."""
    table = in_two_groups(kind, first, second)
    for value, group in ((first, 0), (second, 1)):
        node = parse_filter([("v", "=", value)]).bind(table.schema).node
        assert groups_of(table, node, store_decimal_as_integer=as_integer) == [group]
    if kind not in (pa.binary(), pa.bool_()):
        node = parse_filter([("v", ">", min(first, second))]).bind(table.schema).node
        assert groups_of(table, node, store_decimal_as_integer=as_integer) == [int(second > first)]
    assert groups_of(table, IsNull("v"), store_decimal_as_integer=as_integer) == []


ONE, TWO = decimal.Decimal(1), decimal.Decimal(2)
DAYS = dt.date(1970, 1, 1), dt.date(1970, 1, 2)


@pytest.mark.parametrize(
    ("stored", "values", "wanted", "asked", "left"),
    [
        (pa.int32(), (1, 2), pa.int64(), 1, [0]),
        (pa.float32(), (1.0, 2.0), pa.float64(), 1.0, [0]),
        (pa.int32(), (1, 2), pa.decimal128(20, 2), ONE, [0, 1]),
        (pa.int64(), (1, 2), pa.string(), "1", [0, 1]),
        (pa.timestamp("ms"), (1, 2), pa.timestamp("us"), 1_000, [0]),
        (pa.timestamp("ns"), (1_000, 2_000), pa.timestamp("us"), 1, [0, 1]),
        (pa.timestamp("us"), (1, 2), pa.timestamp("us", "UTC"), 1, [0, 1]),
        (pa.decimal128(9, 2), (ONE, TWO), pa.decimal128(18, 2), ONE, [0]),
        (pa.decimal128(9, 3), (ONE, TWO), pa.decimal128(18, 2), ONE, [0, 1]),
        (pa.date32(), DAYS, pa.timestamp("us"), 0, [0, 1]),
    ],
    ids=str,
)
def test_a_column_that_is_stored_in_another_type(stored, values, wanted, asked, left):
    """What the file says counts where values keep their order and their meaning in the table's type, and only there."""
    table = in_two_groups(stored, *values)
    assert groups_of(table, Compare("=", "v", asked), pa.schema([("v", wanted)])) == left


def test_a_file_without_statistics_may_hold_anything():
    table = in_two_groups(pa.int64(), 1, 2)
    assert groups_of(table, Compare("=", "v", 1), write_statistics=False) == [0, 1]
    assert groups_of(table, Compare("=", "v", 1), write_statistics=["other"]) == [0, 1]


def test_columns_with_dots_are_told_from_nested_fields():
    """Parquet joins the names of fields with dots, and a column may have one in its name."""
    nested = pa.array([{"b": 5}] * 2 * GROUP_ROWS)
    for names in (["a", "a.b"], ["a.b", "a"]):
        columns = {"a": nested, "a.b": in_two_groups(pa.int64(), 1, 2)["v"]}
        table = pa.table({name: columns[name] for name in names})
        assert groups_of(table, Compare("=", "a.b", 1)) == [0, 1]


def test_a_column_that_the_file_lacks_is_null():
    table, wanted = in_two_groups(pa.int64(), 1, 2), pa.schema([("v", pa.int64()), ("late", pa.int64())])
    assert groups_of(table, Compare("=", "late", 1), wanted) == []
    assert groups_of(table, And((IsNull("late"), Compare("=", "v", 2))), wanted) == [1]


def test_row_groups_of_nulls_and_nan_are_pruned_rightly():
    nan = float("nan")
    table = pa.table({"v": pa.array([None] * GROUP_ROWS + [1.0, nan] * 5 + [nan] * GROUP_ROWS + [2.0, None] * 5)})
    assert groups_of(table, IsNull("v")) == [0, 3]
    assert groups_of(table, Compare("=", "v", 2.0)) == [2, 3], "of NaN alone there are no bounds"
    assert groups_of(table, Compare(">", "v", 5.0)) == [1, 2, 3], "NaN is above all numbers, and no writer counts it"


# -- reads ------------------------------------------------------------------------------------------------------------

NUM_ROWS = 100
ROWS = pa.table({"id": pa.array(range(NUM_ROWS)), "n": pa.array([i % 7 for i in range(NUM_ROWS)])})
DELETED = [0, 5, 31, 39, 40, 77, 99]


@pytest.fixture
def files():
    storage = MemoryStorage()
    for name, table in (
        ("data", ROWS),
        ("gone", pa.table({"file_path": ["memory://test/data.parquet"] * len(DELETED), "pos": DELETED})),
    ):
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=GROUP_ROWS)
        storage.put(f"{name}.parquet", sink.getvalue().to_pybytes())
    return StorageFiles(storage)


@pytest.mark.parametrize("part", [None, (0, 10), (3, 8)], ids=str)
@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize(
    ("node", "chosen"),
    [
        (ALWAYS_TRUE, range(10)),
        (In("id", (3, 38, 76), has_null=False), [0, 3, 7]),
        (In("id", (31, 99), has_null=False), [3, 9]),
        (Compare("<", "id", 41), range(5)),
        (Compare("=", "id", 1_000), []),
    ],
    ids=["all", "apart", "also apart", "the first ones", "none"],
)
def test_rows_and_their_numbers(files, node, chosen, is_deleted, part):
    """Row groups that are apart are read as one; deleted rows, and the numbers of the others, are those of the file."""
    deletes = (files.location_of("gone.parquet"),) if is_deleted else ()
    split = LakeSplit(files.location_of("data.parquet"), 1, NUM_ROWS, part, deletes)
    schema = TableSchema.of(ROWS.schema)
    projection = LakeProjection(schema, (None,) * 2, schema.names)
    groups = [group for group in chosen if part is None or group in range(*part)]
    expected = [i for group in groups for i in range(group * GROUP_ROWS, (group + 1) * GROUP_ROWS)]
    expected = [i for i in expected if not (is_deleted and i in DELETED)]
    for threads in (False, True):
        read = list(read_split(files, split, projection, node=node, threads=threads))
        assert [i for batch in read for i in batch.column("id").to_pylist()] == expected
    found = list(read_numbered(files, split, projection, node=node))
    in_groups = [i for group in groups for i in range(group * GROUP_ROWS, (group + 1) * GROUP_ROWS)]
    possible = (
        mask_rows_to_keep(node, ROWS.take(pa.array(in_groups, pa.int64())).combine_chunks().to_batches()[0])
        if groups
        else None
    )
    unwanted = set() if possible is None else {i for i, wanted in zip(in_groups, possible, strict=True) if not wanted}
    expected = [i for i in expected if i not in unwanted]
    assert [i for numbers, _ in found for i in numbers.tolist()] == expected
    assert [i for _, batch in found for i in batch.column("id").to_pylist()] == expected


def test_numbers_of_batches_that_cross_row_groups():
    sizes = [3, 0, 4, 2, 5]
    for places in ([0, 1, 2, 3, 4], [1, 3], [0, 4], [2], [1], []):
        groups = RowGroups.of(sizes, places)
        starts = np.cumsum([0, *sizes])
        numbers = [n for place in places for n in range(starts[place], starts[place + 1])]
        assert groups.num_rows == len(numbers)
        for begin in range(len(numbers) + 1):
            for end in range(begin, len(numbers) + 1):
                assert groups.row_numbers(begin, end - begin).tolist() == numbers[begin:end]
        for asked in (np.arange(14), np.array([1, 3, 12]), np.zeros(0, np.int64)):
            expected = [numbers.index(n) for n in asked.tolist() if n in numbers]
            assert groups.positions_of(asked).tolist() == expected
        kept = np.array([place % 2 == 0 for place in places], bool)
        assert groups.select(kept).indexes == tuple(place for place in places if place % 2 == 0)
        left = [n for place in places if place % 2 == 0 for n in range(starts[place], starts[place + 1])]
        assert groups.select(kept).row_numbers(0, len(left)).tolist() == left
