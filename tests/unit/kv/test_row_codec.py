"""Rows come back as they were, whatever their types, nulls and slices."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from streamhouse_spark.kv.row_codec import PackedStrings, RowCodec
from unit.sample_rows import ALL_TYPES, COLUMNS, sample

TYPES = [column.type for column in ALL_TYPES.columns]


def packed(codec, columns, **options):
    return codec.pack(columns, **options).to_numpy(zero_copy_only=False).tolist()


def columns_of(rows):
    return rows.combine_chunks().to_batches()[0].columns


@pytest.fixture(scope="module")
def rows():
    return columns_of(sample(1000))


def require_round_trip(codec, columns):
    found = codec.unpack(PackedStrings.of(packed(codec, columns)))
    for before, after in zip(columns, found, strict=True):
        after.validate(full=True)
        assert after.type == before.type
        assert after.equals(before)


@pytest.mark.parametrize(("start", "length"), [(0, 1000), (1, 998), (500, 1), (7, 0)])
def test_rows_of_every_type_come_back(rows, start, length):
    assert all(0 < column.null_count < 1000 for column in rows[1:])
    require_round_trip(RowCodec(TYPES), [column.slice(start, length) for column in rows])


@pytest.mark.parametrize("place", range(1, len(COLUMNS) + 1))
def test_each_type_alone_comes_back(rows, place):
    column = rows[place]
    codec = RowCodec([column.type])
    require_round_trip(codec, [column])
    require_round_trip(codec, [pa.nulls(3, column.type)])
    require_round_trip(codec, [column.drop_null()])


@pytest.mark.parametrize("length", [1, 2, 3])
def test_numbers_lie_where_arrow_wants_them(rows, length):
    """Joins and sums of Arrow warn of others. The numbers of a single row are in one piece where they lie, too."""
    codec = RowCodec(TYPES)
    for array in codec.unpack(PackedStrings.of(packed(codec, [column.slice(0, length) for column in rows]))):
        if pa.types.is_primitive(array.type) or pa.types.is_decimal(array.type):
            assert array.buffers()[1].address % 8 == 0, array.type


def test_only_wanted_columns_are_unpacked_in_their_order(rows):
    codec = RowCodec(TYPES)
    found = codec.unpack(PackedStrings.of(packed(codec, rows)), [12, 0, 16])
    assert [f.equals(rows[i]) for f, i in zip(found, (12, 0, 16), strict=True)] == [True] * 3


def test_prefixed_and_selected_rows_are_unpacked(rows):
    codec = RowCodec(TYPES)
    values = packed(codec, rows, first=b"\x07\x00")
    assert all(value.startswith(b"\x07\x00") for value in values)
    chosen = PackedStrings.of(values).skip_bytes(2).select(np.arange(1000) % 3 == 1)
    for found, column in zip(codec.unpack(chosen), rows, strict=True):
        assert found.equals(column.take(pa.array(range(1, 1000, 3))))


def test_nulls_hide_what_lies_under_them():
    """Equal rows are equal bytes: merging tells by them whether a row changed."""
    validity = pa.py_buffer(b"\x02")
    dirty = {
        pa.int64(): [pa.py_buffer(np.array([99, 1], "<i8"))],
        pa.decimal128(20, 2): [pa.py_buffer(np.array([99, 0, 1, 0], "<i8"))],
        pa.string(): [pa.py_buffer(np.array([0, 3, 4], "<i4")), pa.py_buffer(b"dirt")],
    }
    for data_type, buffers in dirty.items():
        column = pa.Array.from_buffers(data_type, 2, [validity, *buffers])
        codec = RowCodec([data_type])
        assert packed(codec, [column])[0] == packed(codec, [pa.nulls(1, data_type)])[0]
    struct = pa.StructArray.from_arrays([pa.array([5, 6])], ["a"], mask=pa.array([True, False]))
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), pa.array([1, 2, 3]), mask=pa.array([True, False]))
    for column in (struct, lists):
        codec = RowCodec([column.type])
        assert packed(codec, [column])[0] == packed(codec, [pa.nulls(1, column.type)])[0]
        require_round_trip(codec, [column])


def test_nested_lists_of_every_length():
    rng = np.random.default_rng(5)

    def some(make, length_max):
        return [None if rng.random() < 0.2 else make() for _ in range(rng.integers(0, length_max))]

    values = [None if i % 7 == 3 else some(lambda: some(lambda: "x" * int(rng.integers(4)), 4), 5) for i in range(500)]
    column = pa.array(values, pa.list_(pa.list_(pa.string())))
    codec = RowCodec([pa.int8(), column.type, pa.string()])
    require_round_trip(codec, [pa.array([1] * 500, pa.int8()), column, pa.array(["z"] * 500)])
    require_round_trip(codec, [pa.array([1] * 99, pa.int8()), column.slice(77, 99), pa.array(["z"] * 99)])


def test_types_without_bytes_are_refused():
    with pytest.raises(TypeError, match="duration"):
        RowCodec([pa.duration("us")])
