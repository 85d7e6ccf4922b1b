"""Writes small warehouses that hold every kind of file and action of format version 1.

Run once for each, with ``python -m golden.make v1`` in ``tests``. What it wrote is what users have on their disks: it
is read by `unit/golden` for ever and never written again. What came later has a folder of its own, and so will a format
version 2.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

from faults.sim import SimClock, sim_world
from streamhouse_spark.core.types import Transaction
from streamhouse_spark.core.warehouse_layout import segment_key
from streamhouse_spark.kv import change_staging
from streamhouse_spark.kv.kv_snapshots import write_snapshots
from streamhouse_spark.log import record as record_module
from streamhouse_spark.log.actions import Payload, SetSchema, TieredSnapshot, Trim, Truncate
from streamhouse_spark.log.checkpoint import state_to_json
from streamhouse_spark.log.compaction import merge_runs, plan_small_merge
from streamhouse_spark.log.gc.garbage_collection import clean
from streamhouse_spark.log.low_watermark import write_low_watermark
from streamhouse_spark.log.record import read_record
from streamhouse_spark.log.segments import multi_bucket_writer
from streamhouse_spark.log.segments.metadata_columns import CHANGELOG_FIELDS, with_fields, with_metadata
from streamhouse_spark.log.segments.scan import plan_range, read_split
from streamhouse_spark.log.staging import BucketRouter, RowStager
from streamhouse_spark.log.state import TableState
from streamhouse_spark.schema.table_schema import Column, TableSchema
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.relocation import relocate
from streamhouse_spark.warehouse.warehouse import Warehouse
from streamhouse_spark.write.auto_compaction import compact_inline_rows

FOLDER = Path(__file__).parent / "v1"
TRUNCATED = Path(__file__).parent / "v1-truncated"
KEYED = Path(__file__).parent / "v1-keyed"
DEFAULTS = Path(__file__).parent / "v1-defaults"
COPIED = Path(__file__).parent / "v1-copied"
PARTS = Path(__file__).parent / "v1-parts"
HOUR_MS = 3600 * 1000
DDL = """
    id BIGINT NOT NULL COMMENT 'the key', yes BOOLEAN, i8 TINYINT, i16 SMALLINT, i32 INT, f32 FLOAT, f64 DOUBLE,
    money DECIMAL(38,10), name STRING, raw BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, list ARRAY<INT>,
    tags MAP<STRING,BIGINT>, nested STRUCT<x:INT,y:ARRAY<STRING>>
"""


def state_of_v1(state: TableState) -> dict[str, Any]:
    """A state as JSON, without what version 1 did not know at first."""
    later = {"anchors", "transaction_times", "consumer_histories", "schema_changes"}
    return {name: value for name, value in state_to_json(state, Payload()).items() if name not in later}


def rows(first: int, count: int) -> list[dict[str, Any]]:
    """Every type, with nulls, with what JSON and text find hard."""
    out: list[dict[str, Any]] = []
    for i in range(first, first + count):
        moment = dt.datetime(2026, 1, 2, 3, 4, 5, 6 + i)
        full = {
            "yes": i % 2 == 0, "i8": -i, "i16": i * 300, "i32": -i * 100_000, "f32": i / 2, "f64": i * 1e300,
            "money": decimal.Decimal(f"{i}{'9' * 26}.{i:010d}"), "name": f"nämé \n {i}", "raw": bytes([0, 255, i]),
            "day": moment.date() + dt.timedelta(days=i), "at": moment.replace(tzinfo=dt.UTC), "local": moment,
            "list": [i, None], "tags": [("k", i), ("", None)], "nested": {"x": i, "y": ["a", None]},
        }  # fmt: skip
        out.append({"id": i, **(full if i % 3 else {})})
    return out


def as_object(table: Table, batch: list[dict[str, Any]]) -> None:
    """Append rows as an object, few as they are."""
    routing = BucketRouter(table.num_buckets, table.properties.bucket_key)
    shape, uuid = table.segment_options(), table.uuid
    stager = RowStager(table.storage, uuid, shape, routing, table.world, inline_bytes_max=-1)
    table.log_writer.commit(stager.stage(pa.Table.from_pylist(batch, table.schema)))


def build() -> MemoryStorage:
    clock = SimClock()
    world = sim_world(1, clock)
    store = MemoryStorage(world, "golden")
    wh = Warehouse("golden", storage=store, world=world)
    _orders(wh, store, clock)
    _small_tables(wh, clock)
    return store


def _orders(wh: Warehouse, store: MemoryStorage, clock: SimClock) -> None:
    table = wh.create_table(
        "sales.orders",
        " ".join(DDL.split()),
        partition_by=["day", "yes"],
        buckets=2,
        properties={"bucket.key": "id", "table.statistics.columns": "*", "table.log.ttl": "1h", "comment": "schön"},
    )

    def commit(*actions: Any) -> None:
        table.log.commit(lambda *_: actions)

    table.append(rows(0, 4), transaction=Transaction("job-ü", 3, "query-1"))
    clock.advance(1000)
    table.append(rows(4, 3), transaction=Transaction("no-owner", 0))
    compact_inline_rows(table)
    table.alter_properties({"table.log.arrow.compression.type": "zstd"}, ["comment"])
    as_object(table, rows(7, 3))
    table.alter_properties({"table.log.arrow.compression.type": "none"})
    clock.advance(1000)
    as_object(table, rows(10, 4))
    commit(TieredSnapshot(2**62, {0: 2, 1: 3}, clock.now_ms()))
    commit(
        TieredSnapshot(2**62 + 1, {bucket: log.segments[0].end_offset for bucket, log in table.state.buckets.items()})
    )
    table.move_consumer("reader", {0: 1, 1: 2})
    table.move_consumer("gone", {0: 0})
    table.move_consumer("gone", None)
    table.log.checkpoint(table.refresh())
    write_low_watermark(store, table.uuid, 1, 3)
    commit(Trim({0: table.state.buckets[0].segments[0].end_offset}))
    columns = table.state.schema.columns
    commit(SetSchema(2, TableSchema((*columns, Column(len(columns) + 1, "later", pa.int64(), comment="added")))))
    store.put(segment_key(table.uuid, "f" * 32), b"an orphan")
    clock.advance(25 * HOUR_MS)
    clean(table.log, store)
    clock.advance(25 * HOUR_MS)
    clean(table.log, store)
    table.forget_transactions("no-owner")
    table.append([{**row, "later": 7} for row in rows(14, 2)])


def _small_tables(wh: Warehouse, clock: SimClock) -> None:
    wh.create_table("sales.dropped", "a INT")
    wh.drop_table("sales.dropped")
    wh.create_table("sales.dropped", "b STRING").append([{"b": "second life"}])
    wh.create_database("empty")
    wide = wh.create_table("manifested", "a INT, b STRING")
    with mock.patch.object(record_module, "RECORD_BYTES_MAX", 600):
        wide.append([{"a": i, "b": "x" * 20} for i in range(10)])
        as_object(wide, [{"a": i, "b": "y" * 20} for i in range(10)])
    clock.advance(1000)


def build_truncated() -> MemoryStorage:
    """A table that was truncated and one that was overwritten, what the lake said before and after, a checkpoint."""
    clock = SimClock()
    world = sim_world(2, clock)
    store = MemoryStorage(world, "golden")
    wh = Warehouse("golden", storage=store, world=world)
    for name in ("emptied", "overwritten"):
        table = wh.create_table(name, "id BIGINT NOT NULL, name STRING", buckets=2, properties={"bucket.key": "id"})
        as_object(table, [{"id": i, "name": f"n{i}"} for i in range(6)])
        clock.advance(1000)
        table.append([{"id": 6}])
        ends = table.state.ends
        pair = TieredSnapshot(2**62, dict(ends), clock.now_ms())
        table.log.commit(lambda *_, pair=pair: (pair,))
        clock.advance(1000)
        if name == "emptied":
            table.truncate()
            continue
        table.overwrite([{"id": i, "name": "new"} for i in range(3)], transaction=Transaction("job", 1))
        clock.advance(1000)
        pair = TieredSnapshot(2**62 + 1, dict(table.state.ends), clock.now_ms(), dict(ends))
        table.log.commit(lambda *_, pair=pair: (pair,))
        table.log.checkpoint(table.refresh())
        table.append([{"id": 9}])
    assert isinstance(read_record(store, table.uuid, 5)[0].actions[0], Truncate)
    return store


def build_keyed() -> MemoryStorage:
    """A table with a primary key: changes inline and in segments, a snapshot by key, a checkpoint that names it."""
    clock = SimClock()
    world = sim_world(5, clock)
    store = MemoryStorage(world, "golden")
    wh = Warehouse("golden", storage=store, world=world)
    table = wh.create_table("people", "name STRING, born DATE, n BIGINT", primary_key=["name"], buckets=2)
    with mock.patch.object(change_staging, "INLINE_BYTES_MAX", 0):
        table.upsert([{"name": f"n{i}", "born": dt.date(2000, 1, 1 + i), "n": i} for i in range(8)])
    clock.advance(1000)
    table.upsert([{"name": "n1", "n": 10}, {"name": "new", "n": 11}], columns=["n"])
    table.delete(["n2"])
    clock.advance(1000)
    shape = table.keyed.keyed_schema()
    written = write_snapshots(table.log, store, world, table.segment_options(), [0, 1], shape.tablet_of)
    assert written == 2
    table.log.checkpoint(table.refresh())
    table.upsert([{"name": "n3", "born": None, "n": None}])
    return store


def build_defaults() -> MemoryStorage:
    """Defaults of every type that has some, of a table's first columns, given later and taken away; a checkpoint."""
    clock = SimClock()
    store = MemoryStorage(sim_world(6, clock), "golden")
    wh = Warehouse("golden", storage=store, world=sim_world(6, clock))
    (full,) = rows(1, 1)
    flat = {name: value for name, value in full.items() if name not in ("id", "list", "tags", "nested")}
    table = wh.create_table("filled", " ".join(DDL.split()), defaults=flat)
    table.append([{"id": 1}])
    clock.advance(1000)
    table.alter(add_columns="nan DOUBLE, inf FLOAT", defaults={"inf": float("-inf"), "yes": None})
    table.append([{"id": 2}])
    table.log.checkpoint(table.refresh())
    table.drop_default("raw")
    table.append([{"id": 3}])
    table.set_default("nan", float("nan"))
    return store


def build_copied() -> MemoryStorage:
    """The copy of a copy: its log's first record says so; with checkpoints from before and after, and past writers."""
    clock = SimClock()
    store = MemoryStorage(sim_world(7, clock), "first")
    wh = Warehouse("wh", storage=store, world=sim_world(7, clock))
    table = wh.create_table("copied", "id BIGINT, s STRING", properties={"table.datalake.enabled": "false"})
    table.append([{"id": 1, "s": "x"}], transaction=Transaction("app", 3, "owner"))
    table.log.checkpoint(table.refresh())
    clock.advance(40 * 24 * HOUR_MS)
    table.maintain()
    table.append([{"id": 2, "s": None}])
    table.log.checkpoint(table.refresh())
    for number, name in enumerate(("second", "golden")):
        there = MemoryStorage(sim_world(8, clock), name)
        for info in store.list(""):
            there.put(info.key, store.read(info.key))
        store = there
        wh = Warehouse("wh", storage=store, world=sim_world(10 + number, clock))
        relocate(wh, copy=True)
        wh.table("copied").append([{"id": 10 + number}])
    return store


def build_parts() -> MemoryStorage:
    """Segments that share objects: appended, merged, trimmed in part; a checkpoint between."""
    clock = SimClock()
    store = MemoryStorage(sim_world(7, clock), "golden")
    wh = Warehouse("golden", storage=store, world=sim_world(7, clock))
    table = wh.create_table("shared", "id BIGINT, text STRING", buckets=3, properties={"bucket.key": "id"})
    with mock.patch.object(multi_bucket_writer, "PARTS_MIN", 2):
        for first in (0, 10):
            clock.advance(1000)
            as_object(table, [{"id": i, "text": f"row {i}"} for i in range(first, first + 10)])
        merge_runs(table.log, store, wh.world, plan_small_merge(table.refresh(), 2), table.segment_options())
        table.log.checkpoint(table.refresh())
        as_object(table, [{"id": i, "text": None} for i in range(20, 30)])
    table.log.commit(lambda state, _: (Trim({0: state.buckets[0].end}),))
    return store


BUILDS = {
    FOLDER: build,
    TRUNCATED: build_truncated,
    KEYED: build_keyed,
    DEFAULTS: build_defaults,
    COPIED: build_copied,
    PARTS: build_parts,
}


def shown(value: Any) -> Any:
    """A value as `expected.json` has it."""
    match value:
        case dt.date() | dt.datetime():
            return value.isoformat()
        case decimal.Decimal():
            return str(value)
        case bytes():
            return value.hex()
        case dict():
            return {k: shown(v) for k, v in value.items()}
        case list() | tuple():
            return [shown(v) for v in value]
        case _:
            return value


def hot_changes(table: Table) -> pa.Table:
    """The changelog of what the hot log holds: for the rest there would have to be a lake."""
    state = table.refresh()
    batches = [
        with_metadata(found, CHANGELOG_FIELDS)
        for bucket, log in state.buckets.items()
        for found in read_split(
            table.storage, plan_range(state, bucket, log.offsets), state.written_schema(state.schema_id)
        )
    ]
    return pa.Table.from_batches(batches, with_fields(CHANGELOG_FIELDS, table.schema))


def expected(wh: Warehouse) -> dict[str, Any]:
    """Return the view of a reader, without the lake, which a golden warehouse does not have."""
    tables = {}
    for name in wh.tables():
        table = wh.table(name)
        state = table.state
        tables[name] = {
            "ddl": state.schema.ddl(),
            "changelog": shown(hot_changes(table).to_pylist()),
            "commits": [row["actions"] for row in table.inspect.commits().to_pylist()],
            "state": state_of_v1(state),
            "splits": [plan_range(state, b, log.offsets).to_json() for b, log in state.buckets.items()],
        }
    return {"databases": wh.databases(), "tables": tables}


def main() -> None:
    folder = next(f for f in BUILDS if f.name == sys.argv[1])
    if folder.exists():
        sys.exit(f"{folder} exists: golden files are written once; a new format version gets a new folder")
    store = BUILDS[folder]()
    for info in store.list(""):
        path = folder / "warehouse" / info.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.read(info.key))
    wh = Warehouse("golden", storage=store, world=sim_world(2))
    text = json.dumps(expected(wh), indent=1, ensure_ascii=False)
    (folder / "expected.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
