"""Tables with a primary key and a Paimon lake in Python: keys are found in the buckets that Paimon gives."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pypaimon import CatalogFactory

from kit.tables import tier
from streamhouse_spark import InvalidOptionError, SchemaMismatchError, Table, Warehouse
from streamhouse_spark.storage.local import LocalStorage

COLUMNS = "shop STRING, id BIGINT, day DATE, n INT"
PAIMON = {"table.datalake.format": "paimon"}


def rows_of(ids, n: int) -> pa.Table:
    names = ["shop", "id", "day", "n"]
    values = [(f"shop {i % 7}", i, None, n) for i in ids]
    columns = [pa.array(column) for column in zip(*values, strict=True)]
    return pa.table(columns, names=names)


@pytest.fixture(params=["id", "shop", "shop,id", "id,shop"])
def table(request, warehouse_path, own_cache) -> Table:
    wh = Warehouse("wh", storage=LocalStorage(warehouse_path, fsync=False))
    wh.create_database("sales")
    return wh.create_table(
        "sales.stock",
        COLUMNS,
        primary_key=["id", "shop"],
        buckets=5,
        properties={**PAIMON, "bucket.key": request.param},
    )


def stock(table: Table):
    return CatalogFactory.create({"warehouse": f"{table.storage.url}/lake"}).get_table("sales.stock")


def test_keys_are_where_paimon_looks_for_them(table):
    """Its readers leave out buckets by the key, and its writers put a key's next row into that bucket."""
    table.upsert(rows_of(range(60), 1))
    tier(table)
    table.upsert(rows_of(range(10), 2))
    table.delete([{"id": 11, "shop": "shop 4"}])
    tier(table)
    for i in (3, 11, 40):
        builder = stock(table).new_read_builder()
        make = builder.new_predicate_builder()
        both = make.and_predicates([make.equal("id", i), make.equal("shop", f"shop {i % 7}")])
        builder = builder.with_filter(both)
        splits = builder.new_scan().plan().splits()
        assert len({split.bucket for split in splits}) <= 1
        found = builder.new_read().to_arrow(splits).to_pylist()
        assert [row["n"] for row in found] == {3: [2], 11: [], 40: [1]}[i]
    builder = stock(table).new_batch_write_builder()
    write, commit = builder.new_write(), builder.new_commit()
    target = stock(table).new_read_builder().new_read().to_arrow([]).schema
    write.write_arrow(rows_of(range(60), 3).cast(target))
    commit.commit(write.prepare_commit())
    found = table.lake.to_arrow()
    assert sorted(found["id"].to_pylist()) == list(range(60)), "each key once"
    assert set(found["n"].to_pylist()) == {3}


def test_keys_are_found_in_paimon_buckets(table):
    table.upsert(rows_of(range(60), 1))
    tier(table)
    table.upsert(rows_of(range(10), 2))
    keys = [{"id": i, "shop": f"shop {i % 7}"} for i in (2, 59, 7)] + [{"id": 2, "shop": "none"}]
    assert table.lookup(keys)["n"].to_pylist() == [2, 1, 2, None]
    assert table.lookup_one((59, "shop 3"))["n"] == 1
    assert table.lookup_one((59, "shop 4")) is None
    assert table.prefix_lookup({"id": 4}).to_pylist()[0]["n"] == 2
    assert sorted(table.to_arrow()["id"].to_pylist()) == list(range(60))
    assert len(table.to_arrow(filter=[("id", "=", 5), ("shop", "=", "shop 5")])) == 1
    other = Warehouse("wh", storage=table.storage).table(table.name)
    assert other.lookup(keys)["n"].to_pylist() == [2, 1, 2, None]


def test_a_log_table_is_bucketed_by_several_columns(warehouse_path):
    wh = Warehouse("wh", storage=LocalStorage(warehouse_path, fsync=False))
    wh.create_database("sales")
    table = wh.create_table("sales.stock", COLUMNS, buckets=5, properties={**PAIMON, "bucket.key": "id,shop"})
    table.append(rows_of(range(60), 1))
    tier(table)
    builder = stock(table).new_read_builder()
    make = builder.new_predicate_builder()
    builder = builder.with_filter(make.and_predicates([make.equal("id", 9), make.equal("shop", "shop 2")]))
    splits = builder.new_scan().plan().splits()
    assert len({split.bucket for split in splits}) == 1
    assert builder.new_read().to_arrow(splits)["id"].to_pylist() == [9]
    assert stock(table).table_schema.options["bucket-key"] == "id,shop"


def test_keys_that_paimon_cannot_hold_are_refused_before_anything_is_written(memory, own_cache):
    wh = Warehouse("wh", storage=memory)
    wh.create_database("sales")
    columns = "id BIGINT, day DATE, at TIMESTAMP_NTZ, seen DATE"
    table = wh.create_table("sales.times", columns, primary_key=["id", "day", "at"], properties=PAIMON)

    def rows(day: int, at: int) -> pa.Table:
        schema = table.state.schema.arrow
        values = pa.array([day], pa.int32()).cast(pa.date32()), pa.array([at], pa.int64()).cast(pa.timestamp("us"))
        return pa.table([pa.array([1]), *values, pa.array([day], pa.int32()).cast(pa.date32())], schema=schema)

    for day, at in ((-719_163, 0), (2_932_897, 0), (0, -62_135_596_800_000_001), (0, 253_402_300_800_000_000)):
        with pytest.raises(SchemaMismatchError, match="expected the years 1 to 9999 in keys"):
            table.upsert(rows(day, at))
    assert table.to_arrow().num_rows == 0
    for day, at in ((-719_162, -62_135_596_800_000_000), (2_932_896, 253_402_300_799_999_999)):
        table.upsert(rows(day, at))
        tier(table)
    table.upsert(rows(0, 0).set_column(3, "seen", pa.array([2_932_897], pa.int32()).cast(pa.date32())))
    tier(table)
    assert table.lake.to_arrow(columns=["id"]).num_rows == table.to_arrow().num_rows == 3


def test_bucket_keys_that_cannot_be(memory):
    wh = Warehouse("wh", storage=memory)
    wh.create_database("sales")
    with pytest.raises(InvalidOptionError, match="expected one column, because an Iceberg bucket"):
        wh.create_table("sales.a", COLUMNS, buckets=4, properties={"bucket.key": "id,shop"})
    many = ", ".join(f"c{i} INT" for i in range(26))
    key = ",".join(f"c{i}" for i in range(25))
    with pytest.raises(InvalidOptionError, match="has 25 columns, expected at most 24"):
        wh.create_table("sales.a", many, buckets=4, properties={**PAIMON, "bucket.key": key})
