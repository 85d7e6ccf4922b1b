"""Every type comes back as it was written: inline in a record, from an object, and after merging; with every codec."""

from __future__ import annotations

import decimal
import itertools

import pyarrow as pa
import pytest

from streamhouse_spark.log.segments.scan import LogSplit, plan_range, read_split
from streamhouse_spark.write.auto_compaction import compact_inline_rows, compact_small_segments
from unit.sample_rows import ALL_TYPES, ALL_TYPES_DDL, COLUMNS, SCALAR_TYPES, VALUES, sample

CODECS = ["none", "lz4", "zstd"]
INLINE_ROWS, OBJECT_ROWS = 50, 1500


@pytest.fixture(params=CODECS)
def codec(request):
    return request.param


@pytest.fixture
def table(wh, codec):
    return wh.create_table("t", ALL_TYPES_DDL, properties={"table.log.arrow.compression.type": codec})


def files_of(table) -> list[str | None]:
    return table.inspect.segments()["file"].to_pylist()


def test_the_samples_hold_every_kind_of_value():
    rows = sample(OBJECT_ROWS)
    assert rows.nbytes > 256 << 10, "too few to become an object"
    assert sample(INLINE_ROWS).nbytes < 100 << 10, "too many to be inline"
    for name in COLUMNS:
        assert 0 < rows[name].null_count < rows.num_rows


def test_every_type_comes_back_inline_from_objects_and_merged(table, codec, other_process):
    parts = [
        sample(INLINE_ROWS, 1),
        sample(INLINE_ROWS, 2, first_id=INLINE_ROWS),
        sample(OBJECT_ROWS, 3, first_id=2 * INLINE_ROWS),
        sample(INLINE_ROWS, 4, null_share=1.0, first_id=2 * INLINE_ROWS + OBJECT_ROWS),
    ]
    for part in parts:
        table.append(part)
    expected = pa.concat_tables(parts)
    assert [file is None for file in files_of(table)] == [True, True, False, True]
    read_and_compare(table, expected)
    read_and_compare(other_process().table("t"), expected)

    assert compact_inline_rows(table) == 3
    assert [file is None for file in files_of(table)] == [False, False, False]
    read_and_compare(table, expected)
    assert {s.compressed for s in table.state.live_segments()} == {codec != "none"}

    for i in range(8):
        table.append(sample(OBJECT_ROWS, 10 + i))
        expected = pa.concat_tables([expected, sample(OBJECT_ROWS, 10 + i)])
    assert compact_small_segments(table) == 11
    assert len(files_of(table)) == 1
    read_and_compare(table, expected)
    read_and_compare(other_process().table("t"), expected)


def read_and_compare(table, expected: pa.Table) -> None:
    found = table.to_arrow()
    assert found.schema.equals(ALL_TYPES.arrow, check_metadata=True)
    assert found.equals(expected)
    found.validate(full=True)
    for name in ("c8", "c15", "c10"):
        assert table.to_arrow(columns=[name]).equals(expected.select([name]))
    some = ["c19", "id", "c0"]
    assert table.to_arrow(columns=some).equals(expected.select(some))


def test_rows_between_any_offsets_come_back(table):
    expected = pa.concat_tables([sample(INLINE_ROWS, 1), sample(OBJECT_ROWS, 2)])
    table.append(expected.slice(0, INLINE_ROWS))
    table.append(expected.slice(INLINE_ROWS))
    ends = [0, 1, INLINE_ROWS - 1, INLINE_ROWS, INLINE_ROWS + 1, 500, expected.num_rows]
    log = table.state.buckets[0]
    for start, end in itertools.combinations_with_replacement(ends, 2):
        offsets = type(log.offsets)(start, end)
        split = LogSplit.from_json(plan_range(table.state, 0, offsets).to_json())
        batches = list(read_split(table.storage, split, table.state.schema))
        found = pa.Table.from_batches([b.batch for b in batches], expected.schema)
        assert found.equals(expected.slice(start, end - start))
        assert [b.base_offset for b in batches] == list(
            itertools.accumulate([b.batch.num_rows for b in batches[:-1]], initial=start)
        )[: len(batches)]


@pytest.mark.parametrize("kind", SCALAR_TYPES)
def test_a_table_is_partitioned_by_any_scalar_type(memory, world, kind):
    from streamhouse_spark.warehouse.warehouse import Warehouse

    wh = Warehouse("wh", storage=memory, world=world)
    table = wh.create_table("t", f"id BIGINT, p {kind}, q STRING", partition_by=["p", "q"], buckets=2)
    arrow = table.schema.field("p").type
    some = sample(40, 5).column(next(c for c, k in COLUMNS.items() if k == kind))
    rows = pa.table(
        [pa.array(range(40)), some.cast(arrow), pa.array([None, "x", "y", "y"] * 10)],
        schema=pa.schema([("id", pa.int64()), ("p", arrow), ("q", pa.string())]),
    )
    table.append(rows)
    assert table.to_arrow().equals(rows)
    (segment,) = table.state.live_segments()
    pairs = zip(some.to_pylist(), rows["q"].to_pylist(), strict=True)
    assert len(segment.partitions) == len({(str(p), q) for p, q in pairs})
    compact_inline_rows(table)
    assert table.to_arrow().equals(rows)
    value = some.drop_null()[0]
    found = table.to_arrow(filter=[("p", "=", value.as_py())])
    assert found.num_rows == sum(v == value.as_py() for v in some.to_pylist())


@pytest.mark.parametrize("kind", [k for k in SCALAR_TYPES if k not in ("boolean", "float", "double")])
def test_a_table_is_bucketed_by_any_type_that_iceberg_buckets(memory, world, kind):
    from streamhouse_spark.log.bucketing import iceberg_buckets
    from streamhouse_spark.warehouse.warehouse import Warehouse

    wh = Warehouse("wh", storage=memory, world=world)
    table = wh.create_table("t", ALL_TYPES_DDL, buckets=3, properties={"bucket.key": key_of(kind)})
    rows = sample(60, 6)
    rows = pa.concat_tables([rows.slice(0, 7), rows.slice(7)])  # chunks
    offsets = table.append(rows)
    buckets = iceberg_buckets(rows[key_of(kind)], 3)
    expected = [rows.filter(pa.array(buckets == b)) for b in range(3)]
    assert {b: len(r) for b, r in offsets.items()} == {b: e.num_rows for b, e in enumerate(expected) if e.num_rows}
    assert table.to_arrow().equals(pa.concat_tables(expected).combine_chunks())
    nulls = expected[0][key_of(kind)].null_count
    assert nulls == rows[key_of(kind)].null_count > 0, "null belongs to bucket 0"


def key_of(kind: str) -> str:
    return next(c for c, k in COLUMNS.items() if k == kind)


@pytest.mark.parametrize("kind", ["boolean", "float", "double", "array<int>", "map<string,bigint>"])
def test_what_iceberg_cannot_bucket_is_no_key(wh, kind):
    from streamhouse_spark.errors import InvalidOptionError

    with pytest.raises(InvalidOptionError, match="bucket"):
        wh.create_table("t", ALL_TYPES_DDL, buckets=3, properties={"bucket.key": key_of(kind)})


def test_the_extremes_of_each_type_come_back(wh):
    """The ends of each type, which Python's own dates cannot hold."""
    table = wh.create_table(
        "t",
        "d DATE, ts TIMESTAMP, ntz TIMESTAMP_NTZ, big DECIMAL(38,0), i BIGINT, s STRING",
        partition_by=["d"],
        properties={"table.statistics.columns": "*"},
    )
    low, high = decimal.Decimal("-" + "9" * 38), decimal.Decimal("9" * 38)
    rows = pa.table(
        [
            pa.array([-(2**31), 2**31 - 1, None], pa.int32()).cast(pa.date32()),
            pa.array([-(2**63), 2**63 - 1, None], pa.int64()).cast(pa.timestamp("us", "UTC")),
            pa.array([-(2**63), 2**63 - 1, None], pa.int64()).cast(pa.timestamp("us")),
            pa.array([low, high, None], pa.decimal128(38)),
            pa.array([-(2**63), 2**63 - 1, None], pa.int64()),
            pa.array(["", "\U0010ffff" * 64, None]),
        ],
        schema=table.schema,
    )
    table.append(rows)
    compact_inline_rows(table)
    assert table.to_arrow().equals(rows)
    assert table.to_arrow(filter=[("i", ">", 0)]).num_rows == 1
    assert table.to_arrow(filter=[("i", "is null", None)]).num_rows == 1


def test_values_of_all_kinds_exist():
    assert set(COLUMNS.values()) == set(VALUES)


def test_what_is_read_lies_aligned(wh):
    """Arrow's kernels warn, and some processors fail, where values lie across their natural boundaries."""
    table = wh.create_table("t", ALL_TYPES_DDL)
    for i in range(6):
        table.append(sample(INLINE_ROWS + i, i))
    for column in table.to_arrow().columns:
        for chunk in column.chunks:
            assert all(b is None or b.address % 8 == 0 for b in chunk.buffers())
