"""A table of a Paimon table that was there: its rows are the history, and whatever fails, nobody loses one."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from pypaimon.schema.schema_change import SchemaChange

from interop.paimon_cases import Stock
from streamhouse_spark.config.properties import ADOPTED
from streamhouse_spark.config.spark_options import EARLIEST, ReadOptions, StreamReadOptions
from streamhouse_spark.datasource.read.target import batch_target, stream_target
from streamhouse_spark.errors import (
    CommitConflictError,
    InvalidOptionError,
    LakeMismatchError,
    OffsetsTrimmedError,
)
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.lake.offsets import TABLE_UUID_PROPERTY
from streamhouse_spark.lake.paimon import adoption as paimon_adopt
from streamhouse_spark.lake.tiering.job import run_tasks_locally
from streamhouse_spark.table.tiering import tier_table
from streamhouse_spark.warehouse import adoption

COLUMNS = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("region", pa.string()), ("day", pa.date32()), ("n", pa.int32())]
)
LAYOUTS = {
    "plain": {},
    "by text": {"partition_by": ["region"]},
    "by day": {"partition_by": ["day"]},
    "by day as text": {"partition_by": ["day"], "partition.legacy_name": "false"},
    "buckets": {"bucket": "3", "bucket_key": "id,region"},
}
DAY_MS = 24 * 3600 * 1000


def some(ids) -> list[dict]:
    days = [dt.date(2026, 1, 1), dt.date(2026, 1, 2)]
    return [{"id": i, "region": ["eu", "u/s"][i % 2], "day": days[i % 2], "n": i} for i in ids]


OLD, NEW = some(range(6)), some(range(100, 103))


@pytest.fixture
def store(memory):
    """The contract has a case on a disk."""
    return memory


@pytest.fixture
def stock(store, tmp_path) -> Stock:
    return Stock(store, tmp_path / "stock")


@pytest.fixture
def table(wh, stock):
    stock.make("sales.orders", COLUMNS, OLD[:4], OLD[4:])
    wh.adopt_table("sales.orders")
    return wh.table("sales.orders")


def tier(table):
    return tier_table(table, run_tasks_locally(table.storage, table.settings, table.world))


def by_id(*parts) -> list[dict]:
    return sorted((row for part in parts for row in part), key=lambda row: row["id"])


def agree(table, stock: Stock, *parts, name: str = "sales.orders") -> None:
    """The table, its lake and pypaimon alone have exactly these rows."""
    expected = by_id(*parts)
    assert by_id(table.to_arrow().to_pylist()) == expected
    assert by_id(table.lake.to_arrow().to_pylist()) == expected
    assert by_id(stock.read(name)) == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_adopted_rows_are_the_history(wh, stock, layout):
    stock.make("sales.orders", COLUMNS, OLD[:4], OLD[4:], **LAYOUTS[layout])
    report = wh.adopt_table("sales.orders")
    assert (report.table, report.rows, report.snapshot_id, report.format) == ("sales.orders", 6, 2, "paimon")
    table = wh.table("sales.orders")
    files = set(table.lake.files()["file_path"].to_pylist())
    assert report.files == len(files)
    assert (table.properties.datalake_format, table.properties.datalake_adopted) == ("paimon", "2")
    assert table.partition_by == tuple(LAYOUTS[layout].get("partition_by", ()))
    buckets = (3, ("id", "region")) if layout == "buckets" else (1, ())
    assert (table.num_buckets, table.properties.bucket_key) == buckets
    agree(table, stock, OLD)
    table.append(NEW)
    assert by_id(table.to_arrow().to_pylist()) == by_id(OLD, NEW)
    assert by_id(table.lake.to_arrow().to_pylist()) == OLD
    assert tier(table).rows == 3
    agree(table, stock, OLD, NEW)
    assert files < set(table.lake.files()["file_path"].to_pylist())
    assert by_id(table.to_arrow(filter=[("id", ">=", 5)]).to_pylist()) == by_id(OLD[5:], NEW)
    assert by_id(table.to_arrow(filter=[("day", "==", dt.date(2026, 1, 2))]).to_pylist()) == by_id(OLD[1::2], NEW[1:2])


def test_upkeep_leaves_adopted_files_and_rows(table, stock, clock):
    old = set(table.lake.files()["file_path"].to_pylist())
    for i in range(200, 207):
        table.append(some([i]))
        tier(table)
    compacted = table.lake.compact()
    assert (compacted.files_removed, compacted.rows) == (7, 7)
    clock.advance(3 * DAY_MS)
    assert len(table.lake.expire_snapshots(retain_last=1).snapshots) > 8
    table.maintain()
    assert table.lake.remove_orphan_files() == []
    files = table.lake.files().select(["file_path", "record_count"]).to_pylist()
    assert sorted((f["file_path"] in old, f["record_count"]) for f in files) == [(False, 7), (True, 2), (True, 4)]
    agree(table, stock, OLD, some(range(200, 207)))


def test_files_that_nobody_adopted_are_removed(table, stock, store, clock):
    store.put("lake/sales.db/orders/bucket-0/data-left-over.parquet", b"x")
    clock.advance(3 * DAY_MS)
    assert table.lake.remove_orphan_files() == ["lake/sales.db/orders/bucket-0/data-left-over.parquet"]
    agree(table, stock, OLD)


def test_another_name_and_another_lake(wh, stock):
    stock.make("sales.legacy", COLUMNS, OLD)
    wh.adopt_table("sales.orders", "sales.legacy", properties={"comment": "adopted", "bucket.num": "2"})
    table = wh.table("sales.orders")
    assert (table.properties.comment, table.num_buckets) == ("adopted", 2)
    table.append(NEW)
    tier(table)
    agree(table, stock, OLD, NEW, name="sales.legacy")


def test_a_table_without_snapshots(wh, stock):
    stock.make("sales.orders", COLUMNS)
    assert wh.adopt_table("sales.orders").snapshot_id is None
    table = wh.table("sales.orders")
    assert table.state.properties[ADOPTED] == "empty"
    agree(table, stock)
    table.truncate()
    table.append(NEW)
    tier(table)
    agree(table, stock, NEW)


def test_columns_that_other_engines_changed_before_and_we_change_after(wh, stock):
    """Files say which schema wrote them, and have no field ids."""
    stock.make("sales.orders", COLUMNS, OLD[:3])
    stock.alter("sales.orders", SchemaChange.rename_column("n", "number"), SchemaChange.drop_column("region"))
    stock.append("sales.orders", [{"id": 3, "day": None, "number": 3}])
    wh.adopt_table("sales.orders")
    table = wh.table("sales.orders")
    first = [{"id": r["id"], "day": r["day"], "number": r["n"]} for r in OLD[:3]]
    rows = [*first, {"id": 3, "day": None, "number": 3}]
    agree(table, stock, rows)
    table.alter(rename_columns={"number": "m"}, drop_columns=["day"], add_columns="number STRING, region INT")
    table.append([{"id": 4, "m": 4, "number": "four", "region": 9}])
    tier(table)
    rows = [{"id": r["id"], "m": r["number"], "number": None, "region": None} for r in rows]
    agree(table, stock, rows, [{"id": 4, "m": 4, "number": "four", "region": 9}])


def test_partitions_of_adopted_rows_are_dropped(wh, stock):
    stock.make("sales.orders", COLUMNS, OLD, partition_by=["day"])
    wh.adopt_table("sales.orders")
    table = wh.table("sales.orders")
    table.append(NEW)
    tier(table)
    table.append(some([200, 201]))
    table.drop_partition({"day": dt.date(2026, 1, 1)})
    tier(table)
    agree(table, stock, OLD[1::2], NEW[1::2], some([201]))


def test_rows_that_another_engine_appends_later(table, stock):
    stock.append("sales.orders", some([50, 51]))
    table.append(NEW)
    tier(table)
    agree(table, stock, OLD, some([50, 51]), NEW)


def test_a_dry_run_changes_nothing(wh, stock, store):
    stock.make("sales.orders", COLUMNS, OLD)
    before = {info.key: store.read(info.key) for info in store.list("")}
    report = wh.adopt_table("sales.orders", dry_run=True)
    columns = "id BIGINT NOT NULL, region STRING, day DATE, n INT"
    assert (report.rows, report.schema, report.buckets, report.primary_key) == (6, columns, 1, ())
    assert {info.key: store.read(info.key) for info in store.list("")} == before


def test_which_of_two_lake_tables_is_meant_has_to_be_said(wh, stock, store, world):
    stock.make("sales.orders", COLUMNS, OLD)
    made = FileCatalog(store, world=world).create_table("sales.orders", COLUMNS, properties={"format-version": "2"})
    made.append(pa.Table.from_pylist(NEW, schema=COLUMNS))
    with pytest.raises(InvalidOptionError, match=r"say which one by table\.datalake\.format"):
        wh.adopt_table("sales.orders")
    wh.adopt_table("sales.a", "sales.orders", properties={"table.datalake.format": " Paimon"})
    wh.adopt_table("sales.b", "sales.orders", properties={"table.datalake.format": "iceberg"})
    assert by_id(wh.table("sales.a").to_arrow().to_pylist()) == OLD
    assert by_id(wh.table("sales.b").to_arrow().to_pylist()) == NEW


# -- what has no offset -----------------------------------------------------------------------------------------------


def test_reads_by_offset_say_that_they_begin_behind_the_adopted_rows(table):
    table.append(NEW)
    for target in (
        lambda: stream_target(table, None, StreamReadOptions()),
        lambda: batch_target(table, None, ReadOptions(include_metadata=True)),
    ):
        with pytest.raises(InvalidOptionError, match="startingOffsets=earliest"):
            target()
    assert stream_target(table, None, StreamReadOptions(starting_offsets=EARLIEST)).kind == "range"


def test_the_past_of_the_lake_is_read_from_the_lake(table, clock):
    adopted = int(table.state.properties[ADOPTED])
    clock.advance(60_000)
    table.append(NEW)
    tier(table)
    assert by_id(table.lake.to_arrow(as_of_snapshot=adopted).to_pylist()) == OLD
    assert by_id(table.lake.to_arrow(as_of_snapshot=1).to_pylist()) == OLD[:4]
    assert by_id(table.to_arrow(as_of_timestamp_ms=table.state.created_ms).to_pylist()) == OLD
    with pytest.raises(OffsetsTrimmedError, match="was made of a lake table later"):
        table.to_arrow(as_of_timestamp_ms=table.state.created_ms - 1)


@pytest.mark.parametrize("empties", [lambda t: t.truncate(), lambda t: t.overwrite(NEW)], ids=["truncate", "overwrite"])
@pytest.mark.parametrize("is_appended", [True, False])
def test_truncation_takes_adopted_rows_too(table, stock, empties, is_appended):
    agree(table, stock, OLD)
    if is_appended:
        table.append(some([50]))
    empties(table)
    left = [row for row in NEW if row in table.to_arrow().to_pylist()]
    tier(table)
    agree(table, stock, left)


# -- one lake, one table ----------------------------------------------------------------------------------------------


def test_dropping_leaves_the_paimon_table_as_nobodys_and_other_engines_to_do_as_they_did(table, wh, stock, clock):
    table.append(NEW)
    tier(table)
    wh.drop_table("sales.orders")
    for _ in range(4):
        clock.advance(2 * DAY_MS)
        wh.clean_dropped()
    assert by_id(stock.read("sales.orders")) == by_id(OLD, NEW)
    assert stock.options("sales.orders") == {"bucket": "-1"}
    kept = [info.key for info in wh.storage.list("lake/sales.db/orders/")]
    assert not [key for key in kept if "/consumer/" in key or "/tag/" in key]
    wh.adopt_table("sales.orders")
    again = wh.table("sales.orders")
    again.append(some([500]))
    tier(again)
    agree(again, stock, OLD, NEW, some([500]))


def test_a_dropped_table_does_not_keep_its_lake(table, wh, stock, clock):
    """Before cleaning has come by, which then leaves the new table alone. Offsets of the old one say nothing more."""
    table.append(NEW)
    tier(table)
    tiered = table.lake.newest().id
    wh.drop_table("sales.orders")
    wh.adopt_table("sales.orders")
    again = wh.table("sales.orders")
    agree(again, stock, OLD, NEW)
    assert by_id(again.lake.to_arrow(as_of_snapshot=tiered).to_pylist()) == by_id(OLD, NEW)
    for _ in range(4):
        clock.advance(2 * DAY_MS)
        wh.clean_dropped()
    again.append(some([500]))
    tier(again)
    again.maintain()
    again.lake.expire_snapshots(retain_last=1)
    again.lake.remove_orphan_files()
    agree(again, stock, OLD, NEW, some([500]))
    with pytest.raises(LakeMismatchError, match="belongs to table"):
        table.lake.newest()


def test_a_lake_has_one_table(table, wh, stock):
    with pytest.raises(LakeMismatchError, match=r"is the lake of table sales\.orders"):
        wh.adopt_table("sales.second", "sales.orders")
    stock.alter("sales.orders", SchemaChange.set_option(TABLE_UUID_PROPERTY, "f" * 32))
    with pytest.raises(LakeMismatchError, match="which this warehouse does not have"):
        wh.adopt_table("sales.second", "sales.orders")


def test_a_lake_with_rows_is_not_taken_unseen(wh, stock):
    stock.make("sales.orders", COLUMNS, OLD)
    wh.adopt_table("sales.first", "sales.orders", dry_run=True)
    wh._ensure(around="lake")
    columns = "id BIGINT NOT NULL, region STRING, day DATE, n INT"
    table = wh.create_table("sales.orders", columns, properties={"table.datalake.format": "paimon"})
    table.append(NEW)
    with pytest.raises(LakeMismatchError, match="adopt_table"):
        tier(table)
    assert by_id(table.to_arrow().to_pylist()) == NEW
    assert by_id(stock.read("sales.orders")) == OLD


def _a_snapshot(stock):
    stock.append("sales.orders", NEW)


def _a_schema(stock):
    stock.alter("sales.orders", SchemaChange.set_option("snapshot.num-retained.min", "5"))


@pytest.mark.parametrize("change", [_a_snapshot, _a_schema])
@pytest.mark.parametrize("when", ["before the claim", "between its two files"])
def test_a_lake_that_changes_meanwhile_is_not_adopted(wh, stock, monkeypatch, change, when):
    stock.make("sales.orders", COLUMNS, OLD)
    module, name = (adoption, "put_first_record") if when == "before the claim" else (paimon_adopt, "commit_snapshot")
    then = getattr(module, name)

    def late(*arguments):
        if module is adoption:
            then(*arguments)
            change(stock)
            return None
        change(stock)
        return then(*arguments)

    monkeypatch.setattr(module, name, late)
    with pytest.raises(CommitConflictError, match="adopt it again"):
        wh.adopt_table("sales.orders")
    assert not wh.exists("sales.orders")
    monkeypatch.undo()
    wh.adopt_table("sales.orders")
    agree(wh.table("sales.orders"), stock, OLD, NEW if change is _a_snapshot else [])


def test_a_writer_that_renames_over_the_claim_is_noticed(wh, stock, store, monkeypatch):
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
    with pytest.raises(CommitConflictError, match="in the place of 2"):
        wh.adopt_table("sales.orders")
    assert not wh.exists("sales.orders")
    monkeypatch.undo()
    wh.adopt_table("sales.orders")
    agree(wh.table("sales.orders"), stock, OLD, NEW)


def test_rows_whose_round_was_renamed_over_are_tiered_again_beside_those_of_an_older_table(table, wh, stock, store):
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
    agree(again, stock, OLD, some(range(20, 30)), some([50]), NEW, some([60]))


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bucket": "2"}, "2 buckets .option bucket. and no bucket-key"),
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
    with pytest.raises(LakeMismatchError, match="1 files lie elsewhere"):
        wh.adopt_table("sales.orders")


_ROUND_ROBIN = {"data-file.external-paths.strategy": "round-robin"}


def test_arguments_that_cannot_be(wh, stock):
    stock.make("sales.orders", COLUMNS, OLD)
    for properties, words in (
        ({"table.datalake.enabled": "false"}, "which is enabled"),
        ({"bucket.key": "id"}, "has no bucket key"),
    ):
        with pytest.raises(InvalidOptionError, match=words):
            wh.adopt_table("sales.orders", properties=properties)
    with pytest.raises(LakeMismatchError, match="has no primary key, primary_key is id"):
        wh.adopt_table("sales.orders", primary_key=["id"])
    assert "write-only" not in stock.options("sales.orders")
