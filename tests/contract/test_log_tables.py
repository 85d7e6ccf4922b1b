"""The contract of log tables: rows and offsets, partitions, schemas, views."""

from __future__ import annotations

import datetime as dt
import random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import IntegerType, LongType, StringType

from contract.house import in_order, rows
from faults.faulty_storage import FaultyStorage
from streamhouse_spark import (
    InvalidNameError,
    OffsetsTrimmedError,
    SchemaMismatchError,
    SnapshotExpiredError,
    TableNotFoundError,
    Warehouse,
)
from streamhouse_spark.log.bucketing import buckets_of
from streamhouse_spark.write.auto_compaction import compact_inline_rows
from unit.sample_rows import ALL_TYPES_DDL, sample

pytestmark = pytest.mark.always

PLAIN = "id BIGINT, name STRING"


def plain(first: int, num_rows: int) -> list[dict]:
    return [{"id": i, "name": f"n{i}"} for i in range(first, first + num_rows)]


class TestRowsAndOffsets:
    @pytest.mark.also_on_s3
    def test_rows_keep_their_order_in_a_bucket_and_offsets_are_dense(self, house):
        table = house.table("t", PLAIN, buckets=3)
        for number in range(5):
            table.append(plain(10 * number, 3))
        seen: dict[int, list[tuple[int, int]]] = {}
        for batch in table.tail("earliest", include_metadata=True, until_ms=0):
            for row in batch.to_pylist():
                seen.setdefault(row["_bucket"], []).append((row["_log_offset"], row["id"]))
        assert sum(map(len, seen.values())) == 15
        for found in seen.values():
            assert [offset for offset, _ in found] == list(range(len(found)))
            assert [number for _, number in found] == sorted(number for _, number in found)

    def test_offsets_stay_when_rows_are_tiered_and_merged(self, house):
        table = house.table("t", PLAIN)
        for number in range(4):
            table.append(plain(number, 1))
        house.tier(table)
        compact_inline_rows(table)
        table.append(plain(4, 1))
        found = [r for b in table.tail("earliest", include_metadata=True, until_ms=0) for r in b.to_pylist()]
        assert [(r["_log_offset"], r["id"]) for r in found] == [(i, i) for i in range(5)]


class TestBuckets:
    @pytest.mark.parametrize(
        ("ddl", "make"), [("BIGINT", int), ("STRING", str), ("INT", int)], ids=["bigint", "string", "int"]
    )
    def test_the_bucket_of_a_row_is_the_lakes_own(self, house, ddl, make):
        table = house.table("t", f"k {ddl}, v INT", buckets=5, properties={"bucket.key": "k"})
        keys = [str(i) if ddl == "STRING" else i * 7919 - 1000 for i in range(1000)]
        table.append([{"k": key, "v": 1} for key in keys])
        ours = {
            r["k"]: r["_bucket"]
            for b in table.tail("earliest", include_metadata=True, until_ms=0)
            for r in b.to_pylist()
        }
        column = pa.array(keys, table.schema.field("k").type)
        assert ours == dict(zip(keys, _library_buckets(house.lake_format, column, 5), strict=True))
        assert ours == dict(zip(keys, buckets_of(column, 5, house.lake_format).tolist(), strict=True))


def _library_buckets(lake_format: str, keys: pa.Array, num_buckets: int) -> list[int]:
    if lake_format == "iceberg":
        source = {pa.int64(): LongType(), pa.int32(): IntegerType(), pa.string(): StringType()}[keys.type]
        bucket = BucketTransform(num_buckets).transform(source)
        return [bucket(key) for key in keys.to_pylist()]
    from pypaimon.schema.data_types import AtomicType, DataField
    from pypaimon.schema.table_schema import TableSchema as PaimonSchema
    from pypaimon.write.row_key_extractor import FixedBucketRowKeyExtractor

    name = {pa.int64(): "BIGINT", pa.int32(): "INT", pa.string(): "STRING"}[keys.type]
    options = {"bucket": str(num_buckets), "bucket-key": "k"}
    schema = PaimonSchema(id=0, fields=[DataField(0, "k", AtomicType(name))], options=options)
    extractor = FixedBucketRowKeyExtractor(schema)
    return list(extractor.extract_partition_bucket_batch(pa.record_batch({"k": keys}))[1])


class TestColumns:
    def test_one_of_twenty_columns_is_read_alone(self, house):
        columns = ", ".join(f"c{i} BIGINT" for i in range(20))
        table = house.table("t", columns)
        values = np.random.default_rng(1).integers(0, 1 << 60, 20_000)
        table.append(pa.table({f"c{i}": values + i for i in range(20)}))
        counting = _Counting(table.storage)
        reader = Warehouse(house.wh.url, table.settings, world=table.world, storage=counting).table("t")
        reader.refresh()
        counting.num_bytes = 0
        assert reader.to_arrow(columns=["c7"])["c7"].to_numpy().tolist() == (values + 7).tolist()
        assert counting.num_bytes < 3 * values.nbytes, "about one column of twenty"

    def test_columns_come_in_the_order_asked_for(self, house):
        table = house.table("t", "a INT, b STRING, c INT")
        for number in range(2):
            table.append([{"a": 1, "b": "x", "c": 2}])
            assert table.to_arrow(columns=["c", "a"]).to_pylist() == [{"c": 2, "a": 1}] * (number + 1)
            house.tier(table)


class _Counting(FaultyStorage):
    def __init__(self, inner) -> None:
        super().__init__(inner)
        self.num_bytes = 0

    def read(self, key):
        found = super().read(key)
        self.num_bytes += len(found)
        return found

    def read_ranges(self, key, ranges):
        self.num_bytes += sum(end - start for start, end in ranges)
        return super().read_ranges(key, ranges)

    def local_path(self, key):
        return None


class TestFilters:
    FILTERS = (
        [("a", "=", 150)],
        [("a", "in", [3, 250])],
        [("a", "<", 0)],
        [("s", "is null", None)],
        pc.field("s").is_valid() & (pc.field("a") > 270),
        pc.starts_with(pc.field("s"), "p1"),
        pc.match_substring(pc.field("s"), "99"),
    )

    @pytest.mark.parametrize("number", range(len(FILTERS)))
    def test_filters_find_exactly_their_rows_hot_and_tiered(self, house, number):
        table = house.table("t", "a INT, s STRING")
        everything = []
        for start in (0, 100, 200):
            part = [{"a": i, "s": None if i % 10 == 0 else f"p{i}"} for i in range(start, start + 100)]
            everything += part
            table.append(part)
            wanted = in_order(_matching(everything, number))
            assert rows(table.to_arrow(filter=self.FILTERS[number])) == wanted
            house.tier(table)
            assert rows(table.to_arrow(filter=self.FILTERS[number])) == wanted
            assert rows(table.lake.to_arrow(filter=self.FILTERS[number])) == wanted


def _matching(found, number):
    keeps = (
        lambda r: r["a"] == 150,
        lambda r: r["a"] in (3, 250),
        lambda r: r["a"] < 0,
        lambda r: r["s"] is None,
        lambda r: r["s"] is not None and r["a"] > 270,
        lambda r: r["s"] is not None and r["s"].startswith("p1"),
        lambda r: r["s"] is not None and "99" in r["s"],
    )
    return [row for row in found if keeps[number](row)]


class TestCounts:
    def test_rows_are_counted_without_reading_columns(self, house):
        empty = house.table("e", PLAIN)
        assert empty.to_arrow(columns=[]).num_rows == empty.lake.to_arrow(columns=[]).num_rows == 0
        parted = house.table("p", "id BIGINT, d STRING", partition_by=["d"], buckets=2)
        for day in ("a", "b"):
            parted.append([{"id": i, "d": day} for i in range(10)])
            house.tier(parted)
        parted.append([{"id": 1, "d": "c"}])
        assert parted.to_arrow(columns=[]).num_rows == 21
        assert parted.lake.to_arrow(columns=[]).num_rows == 20
        assert parted.to_arrow(columns=[], filter=[("d", "=", "b")]).num_rows == 10


class TestTypes:
    @pytest.mark.also_on_s3
    def test_every_type_goes_through_log_lake_and_union(self, house):
        table = house.table("t", ALL_TYPES_DDL, buckets=2)
        first, second = sample(40, 1), sample(40, 2, first_id=40)
        table.append(first)
        assert table.to_arrow().sort_by("id").equals(first.combine_chunks())
        house.tier(table)
        assert table.lake.to_arrow().sort_by("id").equals(first.combine_chunks())
        table.append(second)
        both = pa.concat_tables([first, second]).combine_chunks()
        assert table.to_arrow().sort_by("id").combine_chunks().equals(both)


class TestPartitions:
    DDL = "id BIGINT, d DATE, r STRING"

    def rows(self, first: int, *days: int) -> list[dict]:
        return [
            {"id": first + i, "d": dt.date(2026, 1, day), "r": r}
            for i, (day, r) in enumerate((day, r) for day in days for r in ("eu", "us"))
        ]

    def test_a_write_creates_its_partition(self, house):
        table = house.table("t", self.DDL, partition_by=["d", "r"])
        table.append(self.rows(0, 1))
        house.tier(table)
        table.append(self.rows(10, 2, 3))
        house.tier(table)
        house.agree(table, [*self.rows(0, 1), *self.rows(10, 2, 3)])

    def test_a_filter_on_one_partition_column_selects_its_rows(self, house):
        table = house.table("t", self.DDL, partition_by=["d", "r"], buckets=2)
        everything = []
        for number in range(3):
            part = self.rows(10 * number, 1, 2)
            everything += part
            table.append(part)
            for read in (table.to_arrow,) if number == 0 else (table.to_arrow, table.lake.to_arrow):
                found = rows(read(filter=[("r", "=", "eu")]))
                visible = everything if read == table.to_arrow else everything[: 4 * number]
                assert found == in_order(r for r in visible if r["r"] == "eu")
            house.tier(table)
        assert rows(table.to_arrow(filter=[("d", "=", dt.date(2026, 1, 2))])) == in_order(
            r for r in everything if r["d"].day == 2
        )

    def test_a_filter_that_no_partition_matches_selects_nothing(self, house):
        table = house.table("t", self.DDL, partition_by=["d"])
        table.append(self.rows(0, 1))
        house.tier(table)
        assert table.to_arrow(filter=[("d", "=", dt.date(2030, 1, 1))]).num_rows == 0

    def test_partitions_by_integers_include_null(self, house):
        table = house.table("t", "id BIGINT, n INT", partition_by=["n"])
        found = [{"id": i, "n": None if i % 3 == 0 else i % 3} for i in range(9)]
        table.append(found)
        house.tier(table)
        house.agree(table, found)
        assert table.to_arrow(filter=[("n", "is null", None)]).num_rows == 3

    def test_trimmed_rows_are_read_from_the_lake(self, house):
        table = house.table("t", self.DDL, partition_by=["d"], properties={"table.log.ttl": "1s"})
        table.append(self.rows(0, 1))
        house.tier(table)
        house.age()
        assert table.maintain().trimmed_to
        table.append(self.rows(10, 2))
        assert rows(table.to_arrow()) == in_order([*self.rows(0, 1), *self.rows(10, 2)])
        assert rows(table.lake.to_arrow()) == in_order(self.rows(0, 1))


class TestSchemas:
    def test_rows_of_three_schemas_are_read_together(self, house):
        table = house.table("t", PLAIN)
        table.append(plain(0, 2))
        table.add_columns("extra INT")
        table.append([{"id": 2, "name": "n2", "extra": 7}])
        house.tier(table)
        table.add_columns("last STRING")
        table.append([{"id": 3, "name": "n3", "extra": 8, "last": "x"}])
        wanted = [
            *({**row, "extra": None, "last": None} for row in plain(0, 2)),
            {"id": 2, "name": "n2", "extra": 7, "last": None},
            {"id": 3, "name": "n3", "extra": 8, "last": "x"},
        ]
        assert rows(table.to_arrow()) == in_order(wanted)
        house.tier(table)
        house.agree(table, wanted)
        assert house.foreign(table).schema.names == ["id", "name", "extra", "last"]

    @pytest.mark.parametrize("ddl", ["id INT", "more INT NOT NULL", "NAME STRING", "_log_offset BIGINT"])
    def test_a_column_that_cannot_be_added_changes_nothing(self, house, ddl):
        table = house.table("t", PLAIN)
        table.append(plain(0, 1))
        house.tier(table)
        before = table.refresh().version
        with pytest.raises(SchemaMismatchError):
            table.add_columns(ddl)
        assert table.refresh().version == before
        house.agree(table, plain(0, 1))

    def test_the_lake_gets_a_column_after_a_crash_between_both_schemas(self, house):
        table = house.table("t", PLAIN)
        table.append(plain(0, 1))
        house.tier(table)
        table.add_columns("extra INT")  # and the process ends here: the lake does not know the column yet
        again = house.other_process().table("t")
        assert again.to_arrow()["extra"].null_count == 1
        again.open_lake().create_or_evolve()
        again.open_lake().create_or_evolve()
        house.tier(again)
        house.agree(again, [{**row, "extra": None} for row in plain(0, 1)])


class TestViews:
    @pytest.mark.also_on_s3
    def test_the_lake_view_has_the_rows_and_columns_of_the_lake(self, house):
        table = house.table("t", PLAIN)
        table.append(plain(0, 2))
        house.tier(table)
        table.append(plain(2, 1))
        lake = house.wh.view("t$lake")
        assert rows(lake.to_arrow()) == plain(0, 2)
        assert lake.schema.names == ["id", "name"]
        assert rows(house.foreign(table)) == plain(0, 2)

    def test_the_snapshots_view_has_a_row_for_each_round(self, house):
        table = house.table("t", PLAIN)
        for number in range(3):
            table.append(plain(number, 1))
            house.tier(table)
        assert house.wh.view("t$lake$snapshots").to_arrow().num_rows == 3
        assert house.wh.view("t$lake$files").to_arrow().num_rows == 3

    def test_views_of_an_absent_lake_or_unknown_suffix_are_rejected(self, house):
        house.table("t", PLAIN, properties={"table.datalake.enabled": "false"})
        with pytest.raises(InvalidNameError, match="has no lake"):
            house.wh.view("t$lake")
        with pytest.raises(InvalidNameError, match="unknown suffix"):
            house.wh.view("t$nope")

    def test_the_lake_view_travels_by_snapshot_and_time(self, house):
        table = house.table("t", PLAIN)
        table.append(plain(0, 1))
        house.tier(table)
        first = table.lake.newest()
        house.age()
        table.append(plain(1, 1))
        house.tier(table)
        assert rows(table.lake.to_arrow(as_of_snapshot=first.id)) == plain(0, 1)
        assert rows(table.lake.to_arrow(as_of_timestamp_ms=first.timestamp_ms)) == plain(0, 1)
        assert rows(table.lake.to_arrow()) == plain(0, 2)
        with pytest.raises(SnapshotExpiredError):
            table.lake.to_arrow(as_of_snapshot=first.id + 987_654_321)

    def test_changes_are_bounded_by_commit_times(self, house):
        table = house.table("t", PLAIN)
        table.append(plain(0, 1))
        house.age()
        table.append(plain(1, 1))
        changes = house.wh.view("t$changelog").to_arrow()
        times = sorted(set(changes["_commit_timestamp"].to_pylist()))
        assert len(times) == 2
        found = house.wh.view("t$changelog").to_arrow(filter=pc.field("_commit_timestamp") >= times[1])
        assert found["id"].to_pylist() == [1]

    def test_a_tail_starts_at_each_kind_of_position(self, house):
        table = house.table("t", PLAIN)
        table.append(plain(0, 1))
        house.age()
        table.append(plain(1, 1))
        newest = house.wh.view("t$changelog").to_arrow()["_commit_timestamp"].to_pylist()[-1]
        late = table.tail("latest", until_ms=0)
        table.append(plain(2, 1))

        def ids(start) -> list[int]:
            return [r["id"] for b in table.tail(start, until_ms=0) for r in b.to_pylist()]

        assert [r["id"] for b in late for r in b.to_pylist()] == [2]
        assert ids("earliest") == [0, 1, 2]
        assert ids({0: 2}) == [2]
        assert ids(newest) == [1, 2]

    def test_a_tail_that_slept_past_trimming_fails(self, house):
        table = house.table("t", PLAIN, properties={"table.log.ttl": "1s"})
        table.append(plain(0, 2))
        tail = table.tail({0: 0}, until_ms=0)
        house.tier(table)
        house.age()
        assert table.maintain().trimmed_to
        with pytest.raises(OffsetsTrimmedError):
            list(tail)


def test_any_life_of_a_table_ends_with_every_row_once(house):
    """U4: some buckets and partitions never tiered, others several times, in any order of steps."""
    rng = random.Random(house.lake_format)
    table = house.table(
        "t", "id BIGINT, d STRING, v INT", partition_by=["d"], buckets=3, properties={"bucket.key": "id"}
    )
    everything: list[dict] = []
    for _ in range(25):
        match rng.choice(["append", "append", "tier", "maintain", "truncate" if rng.random() < 0.1 else "append"]):
            case "append":
                first, count = len(everything), rng.randrange(1, 9)
                ids = range(first, first + count)
                part = [{"id": i, "d": rng.choice("abc"), "v": rng.randrange(9)} for i in ids]
                table.append(part)
                everything += part
            case "tier":
                house.tier(table)
            case "maintain":
                table.maintain()
            case "truncate":
                table.truncate()
                everything.clear()
        assert rows(table.to_arrow()) == in_order(everything)
        some = rng.choice("abc")
        assert rows(table.to_arrow(filter=[("d", "=", some)])) == in_order(r for r in everything if r["d"] == some)
    house.tier(table)
    house.agree(table, everything)


def test_a_recreated_table_gets_none_of_the_old_files(house):
    table = house.table("t", PLAIN)
    table.append(plain(0, 2))
    job, written = house.job(table), []

    def run(tasks):
        files = house.tasks(table)(tasks)
        written.extend(files)
        house.other_process().drop_table("t")
        house.table("t", PLAIN).append(plain(10, 1))
        return files

    with pytest.raises(TableNotFoundError):
        job.run(run)
    assert written
    again = house.wh.table("t")
    house.tier(again)
    house.agree(again, plain(10, 1))
