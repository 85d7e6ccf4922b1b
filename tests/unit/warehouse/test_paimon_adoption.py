"""Adoption of Paimon tables: writers that rename over snapshots, and tables that do not fit."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pypaimon.schema.schema_change import SchemaChange

from kit.tables import tier
from streamhouse_spark import CommitConflictError, InvalidOptionError, LakeMismatchError
from streamhouse_spark.lake.paimon import adoption as paimon_adopt
from unit.warehouse.adopted_lakes import COLUMNS, NEW, OLD, PaimonLakes, agree, some

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def store(memory):
    """The contract has a case on a disk."""
    return memory


@pytest.fixture
def lake(store, world, tmp_path):
    return PaimonLakes(store, world, tmp_path)


@pytest.fixture
def stock(lake):
    return lake.stock


@pytest.fixture
def table(wh, lake):
    lake.make(OLD[:4], OLD[4:])
    wh.adopt_table("sales.orders")
    return wh.table("sales.orders")


def test_orphan_files_are_removed(table, stock, store, clock, lake):
    store.put("lake/sales.db/orders/bucket-0/data-left-over.parquet", b"x")
    clock.advance(3 * DAY_MS)
    assert table.lake.remove_orphan_files() == ["lake/sales.db/orders/bucket-0/data-left-over.parquet"]
    agree(table, lake, OLD)


def test_columns_change_before_and_after_the_adoption(wh, stock, lake):
    """Files say which schema wrote them, and have no field ids."""
    stock.make("sales.orders", COLUMNS, OLD[:3])
    stock.alter("sales.orders", SchemaChange.rename_column("n", "number"), SchemaChange.drop_column("region"))
    stock.append("sales.orders", [{"id": 3, "day": None, "number": 3}])
    wh.adopt_table("sales.orders")
    table = wh.table("sales.orders")
    first = [{"id": r["id"], "day": r["day"], "number": r["n"]} for r in OLD[:3]]
    rows = [*first, {"id": 3, "day": None, "number": 3}]
    agree(table, lake, rows)
    table.alter(rename_columns={"number": "m"}, drop_columns=["day"], add_columns="number STRING, region INT")
    table.append([{"id": 4, "m": 4, "number": "four", "region": 9}])
    tier(table)
    rows = [{"id": r["id"], "m": r["number"], "number": None, "region": None} for r in rows]
    agree(table, lake, rows, [{"id": 4, "m": 4, "number": "four", "region": 9}])


def test_a_snapshot_renamed_over_the_claim_is_a_conflict(wh, stock, store, monkeypatch, lake):
    """It looked before the claim. No table gets a name whose lake does not say what it holds."""
    stock.make("sales.orders", COLUMNS, OLD)
    then = paimon_adopt.commit_snapshot
    stock.append("sales.orders", NEW)
    theirs = store.read("lake/sales.db/orders/snapshot/snapshot-2")
    store.delete("lake/sales.db/orders/snapshot/snapshot-2")
    store.put("lake/sales.db/orders/snapshot/LATEST", b"1")

    def replaced(*arguments):
        made = then(*arguments)
        store.put("lake/sales.db/orders/snapshot/snapshot-2", theirs)
        return made

    monkeypatch.setattr(paimon_adopt, "commit_snapshot", replaced)
    with pytest.raises(CommitConflictError, match="replaced lake snapshot 2"):
        wh.adopt_table("sales.orders")
    assert not wh.exists("sales.orders")
    monkeypatch.undo()
    wh.adopt_table("sales.orders")
    agree(wh.table("sales.orders"), lake, OLD, NEW)


def test_a_round_renamed_over_is_tiered_again_next_to_an_older_tables_files(table, wh, stock, store, lake):
    """Its files have our names with offsets beyond the new table's, and are none of its rounds."""
    table.append(some(range(20, 30)))
    tier(table)
    wh.drop_table("sales.orders")
    wh.adopt_table("sales.orders")
    again = wh.table("sales.orders")
    number = again.lake.newest().id + 1
    key, hint = f"lake/sales.db/orders/snapshot/snapshot-{number}", "lake/sales.db/orders/snapshot/LATEST"
    before = store.read(hint)
    stock.append("sales.orders", some([50]))
    theirs = store.read(key)
    store.delete(key)
    store.put(hint, before)
    again.append(NEW)
    tier(again)
    store.put(key, theirs)
    again.append(some([60]))
    tier(again)
    agree(again, lake, OLD, some(range(20, 30)), some([50]), NEW, some([60]))


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bucket": "2"}, "2 buckets .option bucket. but no bucket-key"),
        ({"bucket": "2", "bucket_key": "id", "bucket-function.type": "mod"}, "bucket-function.type is mod"),
        ({"file.format": "orc"}, "option file.format is orc, expected parquet"),
        ({"row-tracking.enabled": "true"}, "row-tracking.enabled is true"),
        ({"fields.n.default-value": "5"}, "fields.n.default-value is 5"),
        ({"primary_key": ["id"]}, "dynamic buckets.*expected a fixed number"),
        ({"primary_key": ["id"], "bucket": "-2"}, "postponed buckets"),
        ({"primary_key": ["id"], "bucket": "1", "merge_engine": "partial-update"}, "merge-engine is partial-update"),
        ({"primary_key": ["id"], "bucket": "1", "merge_engine": "first-row"}, "merge-engine is first-row"),
        ({"primary_key": ["id"], "bucket": "1", "merge_engine": "aggregation"}, "merge-engine is aggregation"),
        ({"primary_key": ["id"], "bucket": "1", "changelog_producer": "input"}, "changelog-producer is input"),
        ({"primary_key": ["id"], "bucket": "1", "deletion-vectors.enabled": "true"}, "deletion-vectors.enabled"),
        ({"primary_key": ["id"], "bucket": "1", "sequence.field": "n"}, "sequence.field is n"),
        ({"primary_key": ["id"], "bucket": "1", "partition_by": ["region"]}, "'region' is not in its primary key id"),
    ],
)
def test_what_does_not_fit_is_named(wh, stock, store, options, words):
    stock.make("sales.orders", COLUMNS, **options)
    before = {info.key: store.read(info.key) for info in store.list("lake/")}
    with pytest.raises(LakeMismatchError, match=f"cannot be adopted: .*{words}.*copy its rows into a new table"):
        wh.adopt_table("sales.orders")
    assert {info.key: store.read(info.key) for info in store.list("lake/")} == before
    assert not wh.exists("sales.orders")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (pa.timestamp("ms"), r"'x' is TIMESTAMP\(3\), expected TIMESTAMP\(6\)"),
        (pa.time32("ms"), "'x' has the Arrow type time32"),
    ],
)
def test_types_that_new_rows_would_not_have(wh, stock, kind, words):
    stock.make("sales.orders", pa.schema([("id", pa.int64()), ("x", kind)]))
    with pytest.raises(LakeMismatchError, match=words):
        wh.adopt_table("sales.orders")


def test_files_that_lie_elsewhere_are_refused(wh, stock, store, tmp_path):
    """As those of a table that was copied do, where their places could not be folders."""
    stock.make("sales.orders", COLUMNS, OLD, **{"data-file.external-paths": f"file://{tmp_path}/x"}, **_ROUND_ROBIN)
    stock.alter("sales.orders", SchemaChange.remove_option("data-file.external-paths"))
    with pytest.raises(LakeMismatchError, match="it has 1 file at other locations"):
        wh.adopt_table("sales.orders")


_ROUND_ROBIN = {"data-file.external-paths.strategy": "round-robin"}


def test_arguments_that_cannot_be(wh, stock):
    stock.make("sales.orders", COLUMNS, OLD)
    for properties, words in (
        ({"table.datalake.enabled": "false"}, "expected true for an adopted lake table"),
        ({"bucket.key": "id"}, "has no bucket"),
    ):
        with pytest.raises(InvalidOptionError, match=words):
            wh.adopt_table("sales.orders", properties=properties)
    with pytest.raises(LakeMismatchError, match="has no primary key, but primary_key is id"):
        wh.adopt_table("sales.orders", primary_key=["id"])
    assert "write-only" not in stock.options("sales.orders")
