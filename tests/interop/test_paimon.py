"""Readers and writers of Paimon that know nothing of us: pypaimon's own, from a catalog of files."""

from __future__ import annotations

import datetime as dt
import multiprocessing
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pypaimon import CatalogFactory

from interop.lake_cases import (
    EVENTS,
    EVERY_TYPE,
    PLAIN,
    by_bucket,
    event_rows,
    every_type_rows,
    lake_of,
    numbered,
    sorted_rows,
    tier,
    tier_numbers,
    tier_through_faults,
    write_round,
)
from kit.lake_rows import lake_rows
from kit.tables import tier as tier_table
from storage.s3_proxy import Fault
from storage.s3_server import settings_for
from streamhouse_spark import LakeMismatchError, OffsetRange, Table, Warehouse
from streamhouse_spark.lake import base as lake_base
from streamhouse_spark.lake.paimon import compaction as paimon_maintain
from streamhouse_spark.log.bucketing import buckets_of
from streamhouse_spark.storage.factory import open_storage
from streamhouse_spark.storage.local import LocalStorage

PAIMON = {"table.datalake.format": "paimon"}


@pytest.fixture
def wh(warehouse_path) -> Warehouse:
    return Warehouse("wh", storage=LocalStorage(warehouse_path, fsync=False))


def _stock(table: Table, **options: str) -> Any:
    catalog = CatalogFactory.create({"warehouse": f"{table.storage.url}/lake"})
    found = catalog.get_table(table.name)
    return found.copy(options) if options else found


def _read(paimon: Any, where: Any = None) -> pa.Table:
    builder = paimon.new_read_builder()
    if where is not None:
        builder = builder.with_filter(where(builder.new_predicate_builder()))
    splits = builder.new_scan().plan().splits()
    assert all(split.raw_convertible for split in splits)
    return builder.new_read().to_arrow(splits)


def _num_files(paimon: Any, where: Any) -> int:
    builder = paimon.new_read_builder()
    builder = builder.with_filter(where(builder.new_predicate_builder()))
    return sum(len(split.files) for split in builder.new_scan().plan().splits())


def _append(paimon: Any, rows: pa.Table) -> None:
    builder = paimon.new_batch_write_builder()
    write, commit = builder.new_write(), builder.new_commit()
    write.write_arrow(rows)
    commit.commit(write.prepare_commit())
    write.close()
    commit.close()


@pytest.mark.parametrize("num_buckets", [1, 3])
def test_pypaimon_reads_values_of_every_type(wh, num_buckets):
    table = wh.create_table("sales.every", EVERY_TYPE.arrow, buckets=num_buckets, properties=PAIMON)
    rounds = [every_type_rows(30, seed=i) for i in range(2)]
    for rows in rounds:
        table.append(rows)
        tier_table(table)
    assert sorted_rows(_read(_stock(table)).cast(EVERY_TYPE.arrow)) == sorted_rows(pa.concat_tables(rounds))


@pytest.fixture
def events(wh) -> Table:
    return wh.create_table(
        "sales.events",
        EVENTS.arrow,
        partition_by=["day", "region"],
        properties={"bucket.num": "4", "bucket.key": "id", **PAIMON},
    )


def test_pypaimon_reads_partitions_and_buckets(events):
    rounds = [event_rows(40, seed=i, null_keys=True) for i in range(3)]
    for rows in rounds:
        events.append(rows)
        tier_table(events)
    rows, paimon = pa.concat_tables(rounds), _stock(events)
    assert sorted_rows(_read(paimon).cast(EVENTS.arrow)) == sorted_rows(rows)
    for row in rows.slice(0, 5).to_pylist():
        wanted = rows.filter(pc.equal(rows["id"], row["id"]))
        found = _read(paimon, lambda p, row=row: p.equal("id", row["id"]))
        assert sorted_rows(found.cast(EVENTS.arrow)) == sorted_rows(wanted)
        bucket = int(buckets_of(pa.array([row["id"]]), 4, "paimon")[0])
        in_bucket = events.lake.files()["bucket"].to_pylist().count(bucket)
        assert 1 <= _num_files(paimon, lambda p, row=row: p.equal("id", row["id"])) < in_bucket, "by bucket and bounds"
    day = dt.date(2026, 1, 2)
    found = _read(paimon, lambda p: p.equal("day", day))
    assert sorted_rows(found.cast(EVENTS.arrow)) == sorted_rows(rows.filter(pc.equal(rows["day"], day)))
    found = _read(paimon, lambda p: p.is_null("region"))
    assert found.num_rows == rows["region"].null_count


def test_pypaimon_reads_no_deleted_row(events):
    """Of files in the lake and of rows that were not there yet, in partitions and buckets; its bounds stay right."""
    rounds = [event_rows(40, seed=i, null_keys=True) for i in range(3)]
    for rows in rounds[:2]:
        events.append(rows)
        tier_table(events)
    before = events.state.lake.snapshot_id
    events.append(rounds[2])
    half = 500_000_000
    assert events.delete(where=pc.field("id") < half) > 0
    tier_table(events)
    rows = pa.concat_tables(rounds)
    left = rows.filter(pc.greater_equal(rows["id"], half))
    assert sorted_rows(_read(_stock(events)).cast(EVENTS.arrow)) == sorted_rows(left)
    for row in rows.slice(0, 8).to_pylist():
        found = _read(_stock(events), lambda p, row=row: p.equal("id", row["id"]))
        assert sorted_rows(found.cast(EVENTS.arrow)) == sorted_rows(left.filter(pc.equal(left["id"], row["id"])))
    older = _read(_stock(events, **{"scan.snapshot-id": str(before)}))
    assert sorted_rows(older.cast(EVENTS.arrow)) == sorted_rows(pa.concat_tables(rounds[:2]))


@pytest.mark.parametrize("name", EVERY_TYPE.names[:14])
def test_no_reader_prunes_a_row_that_matches(wh, name):
    table = wh.create_table("sales.every", EVERY_TYPE.arrow, properties=PAIMON)
    rounds = [every_type_rows(12, seed=i) for i in range(3)]
    for part in rounds:
        table.append(part)
        tier_table(table)
    rows, paimon = pa.concat_tables(rounds), _stock(table)
    values = sorted(set(rows[name].to_pylist()) - {None}, key=repr)
    for value in [values[0], values[len(values) // 2], values[-1]]:
        if name == "a_time":  # pypaimon has no comparison of times with a zone
            continue
        expected = pc.sum(pc.equal(rows[name], pa.scalar(value, rows.schema.field(name).type))).as_py()
        assert _read(paimon, lambda p, value=value: p.equal(name, value)).num_rows == expected, value
    assert _read(paimon, lambda p: p.is_null(name)).num_rows == rows[name].null_count


def test_a_column_added_between_rounds_is_null_in_older_paimon_files(wh):
    name = "sales.manifest"  # as a folder of every Paimon table is called
    table = wh.create_table(name, "id bigint, day date", partition_by=["day"], buckets=2, properties=PAIMON)
    day = dt.date(2026, 1, 1)
    table.append([{"id": 1, "day": day}])
    tier_table(table)
    table.alter(add_columns="note string comment 'why', s struct<x:int>", comments={"id": "the key"})
    table.append([{"id": 2, "day": day, "note": "b", "s": {"x": 1}}, {"id": 3, "day": None}])
    tier_table(table)
    expected = [
        {"id": 1, "day": day, "note": None, "s": None},
        {"id": 2, "day": day, "note": "b", "s": {"x": 1}},
        {"id": 3, "day": None, "note": None, "s": None},
    ]
    assert sorted_rows(table.lake.to_arrow()) == expected
    paimon = _stock(table)
    assert sorted_rows(_read(paimon)) == expected
    assert [f.description for f in paimon.fields] == ["the key", None, "why", None]
    assert table.lake.metadata("schemas").num_rows == 2
    assert table.lake.files().num_rows == 3
    assert sorted_rows(_read(_stock(table, **{"scan.snapshot-id": "1"})))[0]["id"] == 1


def test_truncations_and_time_travel(events):
    for i in range(3):
        events.append(event_rows(20, seed=i))
        tier_table(events)
    events.overwrite(event_rows(7, seed=9))
    tier_table(events)
    assert sorted_rows(_read(_stock(events)).cast(EVENTS.arrow)) == sorted_rows(event_rows(7, seed=9))
    older = _stock(events, **{"scan.snapshot-id": "2"})
    assert _read(older).num_rows == 40
    assert events.lake.to_arrow(as_of_snapshot=2).num_rows == 40
    events.truncate()
    tier_table(events)
    assert _read(_stock(events)).num_rows == 0


def test_paimon_manifests_are_merged_and_every_file_is_found(wh):
    """They are merged, and every reader finds every file afterwards, also those of before a truncation."""
    table = wh.create_table("t", PLAIN.arrow, properties=PAIMON)
    for i in range(70):
        rows = pa.table({"id": [i], "name": ["x"]}, schema=PLAIN.arrow)
        _ = table.overwrite(rows) if i == 20 else table.append(rows)
        tier_table(table)
    paimon = _stock(table)
    assert (
        sorted(_read(paimon)["id"].to_pylist()) == sorted(table.lake.to_arrow()["id"].to_pylist()) == [*range(20, 70)]
    )
    assert table.lake.metadata("manifests").num_rows < 40
    assert paimon.snapshot_manager().get_latest_snapshot().total_record_count == 50
    assert sorted(_read(_stock(table, **{"scan.snapshot-id": "15"}))["id"].to_pylist()) == [*range(15)]


def test_rows_that_pypaimon_appends_are_read_and_kept(events):
    first, foreign, last = (event_rows(20, seed=i) for i in range(3))
    foreign = foreign.filter(foreign["day"].is_valid())  # pypaimon cannot write into a partition of null
    events.append(first)
    tier_table(events)
    _append(_stock(events), foreign)
    assert events.lake.newest().offsets == events.state.lake.offsets, "its snapshot holds the same rows of the log"
    events.append(last)
    assert tier_table(events).conflicts == 0
    assert sorted_rows(events.lake.to_arrow()) == sorted_rows(pa.concat_tables([first, foreign, last]))
    assert sorted_rows(_read(_stock(events)).cast(EVENTS.arrow)) == sorted_rows(events.lake.to_arrow())
    lake = events.open_lake()
    for bucket, end in events.state.ends.items():
        rows = [batch for _, batch in lake.read_offsets(bucket, OffsetRange(0, end))]
        assert sum(batch.num_rows for batch in rows) == end
    events.truncate()
    tier_table(events)
    assert events.lake.to_arrow().num_rows == 0


def test_a_table_that_another_engine_altered_is_refused(events):
    from pypaimon.schema.schema_change import SchemaChange

    events.append(event_rows(5))
    tier_table(events)
    catalog = CatalogFactory.create({"warehouse": f"{events.storage.url}/lake"})
    catalog.alter_table(events.name, [SchemaChange.rename_column("amount", "value")], False)
    assert events.lake.to_arrow().num_rows == 5
    events.append(event_rows(5))
    with pytest.raises(LakeMismatchError, match=r"'amount' \(field 3\) was renamed to 'value' in the lake"):
        tier_table(events)


# -- on S3 ------------------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_pypaimon_reads_a_lake_on_s3(s3_server):
    settings, bucket = settings_for(s3_server.endpoint), s3_server.new_bucket()
    url = f"s3://{bucket}/wh"
    lake = lake_of(
        open_storage(url, settings),
        EVENTS,
        partition_by=["day"],
        bucket_key="id",
        num_buckets=2,
        settings=settings,
        lake_format="paimon",
    )
    rounds = [event_rows(30, seed=i) for i in range(2)]
    for rows in rounds:
        tier(lake, by_bucket(rows, "id", 2, "paimon"))
    everything = sorted_rows(pa.concat_tables(rounds))
    assert sorted_rows(lake_rows(lake, lake.plan_read())) == everything
    in_order = pa.concat_tables([by_bucket(rows, "id", 2, "paimon")[0] for rows in rounds])
    found = [b for _, b in lake.read_offsets(0, OffsetRange(2, in_order.num_rows - 1))]
    assert pa.Table.from_batches(found).to_pylist() == in_order.slice(2, in_order.num_rows - 3).to_pylist()
    stock = CatalogFactory.create(
        {
            "warehouse": f"{url}/lake",
            "fs.s3.endpoint": s3_server.endpoint,
            "fs.s3.accessKeyId": settings["s3.access-key-id"],
            "fs.s3.accessKeySecret": settings["s3.secret-access-key"],
            "fs.s3.region": settings["s3.region"],
        }
    )
    assert sorted_rows(_read(stock.get_table("sales.orders")).cast(EVENTS.arrow)) == everything


@pytest.mark.s3
@pytest.mark.long
def test_a_paimon_lake_on_s3_is_compacted_expired_and_cleaned(s3_server, monkeypatch):
    monkeypatch.setattr(paimon_maintain, "COMPACT_FILES_MIN", 2)
    monkeypatch.setattr(lake_base, "ORPHAN_GRACE_MS_MIN", -60_000)  # objects are as young as the test
    settings, bucket = settings_for(s3_server.endpoint), s3_server.new_bucket()
    storage = open_storage(f"s3://{bucket}/wh", settings)
    lake = lake_of(storage, PLAIN, settings=settings, lake_format="paimon")
    for number in range(3):
        tier(lake, numbered(number))
    lost, _ = write_round(lake, {0: numbered(3)}, {0: 9})
    assert lake.compact().files_removed == 3
    assert lake.find_durable().offsets == lake.newest().offsets == {0: 9}
    assert lake.expire(keep_last=1, keep_ms=-60_000, dry_run=True).snapshots == (1, 2, 3)
    assert lake.expire(keep_last=1, keep_ms=-60_000).snapshots == (1, 2, 3)
    assert lake.binding.snapshots.ids() == [4]
    orphans = [lake.binding.files.key_of(lost[0].location)]
    assert lake.remove_orphans(grace_ms=-60_000, dry_run=True) == orphans
    assert lake.remove_orphans(grace_ms=-60_000) == orphans
    assert not set(orphans) & {info.key for info in storage.list("lake/")}
    assert len([info.key for info in storage.list("lake/") if info.key.endswith(".parquet")]) == 1
    rows = [i for _, batch in lake.read_offsets(0, OffsetRange(0, 9)) for i in batch["id"].to_pylist()]
    assert rows == sorted(lake_rows(lake, lake.plan_read())["id"].to_pylist()) == list(range(9))


@pytest.mark.s3
@pytest.mark.long
def test_a_round_on_s3_survives_a_lost_acknowledgement_of_each_of_its_writes(s3_server):
    assert tier_through_faults(s3_server, Fault.LOST_ACK, "paimon") > 7


# -- races ------------------------------------------------------------------------------------------------------------

ROUNDS = 100
ROWS = 2


@pytest.mark.long
def test_two_processes_commit_each_row_once(warehouse_path):
    """Paimon's own commit by rename lets two processes win the same number now and then."""
    context = multiprocessing.get_context("spawn")
    tasks = [
        context.Process(target=tier_numbers, args=(warehouse_path, ROUNDS, ROWS, "paimon"), kwargs={"fsync": False})
        for _ in range(2)
    ]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join(240)
    assert [task.exitcode for task in tasks] == [0, 0]
    lake = lake_of(LocalStorage(warehouse_path), lake_format="paimon")
    expected = list(range(2 * ROUNDS * ROWS))
    assert lake.newest().offsets == {0: len(expected)}
    assert lake.newest().id == 2 * ROUNDS
    assert sorted(lake_rows(lake, lake.plan_read(columns=["id"]))["id"].to_pylist()) == expected
    read = pa.Table.from_batches([b for _, b in lake.read_offsets(0, OffsetRange(0, len(expected)))])
    assert read["id"].to_pylist() == expected
    alone = CatalogFactory.create({"warehouse": f"{warehouse_path}/lake"}).get_table("sales.orders")
    assert sorted(_read(alone)["id"].to_pylist()) == expected
