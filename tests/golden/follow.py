"""Writes a log with every kind of record that a reader in real-time mode meets, and what it has to make of it.

Run once, with ``python -m golden.follow`` in ``tests``. Python's tests and Java's read it for ever: the positions that
Python plans there are those of ``cases.json``, and Java finds the rows of ``cases.json`` from these positions.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

from faults.sim import SimClock, sim_world
from golden.make import KEYED, PARTS, as_object
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.core.warehouse_layout import commit_key, parse_table_name
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.realtime.planning import begin_real_time, plan_real_time_batch
from streamhouse_spark.datasource.scan.query_snapshot import take_query_snapshot
from streamhouse_spark.datasource.scan.scan import METADATA_COLUMNS
from streamhouse_spark.log import record as record_module
from streamhouse_spark.log.actions import Append
from streamhouse_spark.log.compaction import merge_runs, plan_small_merge
from streamhouse_spark.log.history import state_at
from streamhouse_spark.log.record import GroupMember, encode_record, read_record
from streamhouse_spark.log.segments import multi_bucket_writer
from streamhouse_spark.log.segments.metadata_columns import CHANGELOG_FIELDS, METADATA_FIELDS, ROW_ID, with_metadata
from streamhouse_spark.log.segments.scan import plan_range, read_split
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.warehouse.process_cache import Connection
from streamhouse_spark.warehouse.warehouse import Warehouse
from streamhouse_spark.write.auto_compaction import compact_inline_rows

FOLDER = Path(__file__).parent / "follow"
DDL = "id BIGINT NOT NULL, name STRING, money DECIMAL(38,10), at TIMESTAMP, list ARRAY<INT>"


def rows(first: int, count: int) -> list[dict[str, Any]]:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    return [
        {
            "id": i,
            "name": f"nämé {i}" if i % 3 else None,
            "money": decimal.Decimal(f"-{i}.{i:010d}"),
            "at": moment.replace(microsecond=i),
            "list": [i, i + 1],
        }
        for i in range(first, first + count)
    ]


class Build:
    """A log in two parts: rows that are there when a batch begins, and records that come while it lasts."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.store = MemoryStorage(sim_world(11, self.clock), "golden")
        wh = Warehouse("golden", storage=self.store, world=sim_world(12, self.clock))
        self.table = wh.create_table("default.followed", DDL, buckets=2, properties={"bucket.key": "id"})

    def _compressed(self, codec: str) -> None:
        self.table.alter_properties({"table.log.arrow.compression.type": codec})

    def first(self) -> None:
        table = self.table
        for number in range(3):
            table.append(rows(3 * number, 3))
            self.clock.advance(1000)
        compact_inline_rows(table)
        as_object(table, rows(10, 5))
        for codec in ("zstd", "lz4"):
            self._compressed(codec)
            as_object(table, [{**row, "name": "again " * 40} for row in rows(20 if codec == "zstd" else 30, 5)])
        self._compressed("none")
        table.delete(where=[("id", "in", [1, 2, 12, 22])])
        table.add_columns("later BIGINT")
        self.clock.advance(1000)
        table.append([{**row, "later": 7} for row in rows(40, 4)])

    def second(self) -> None:
        table = self.table
        table.append([{**row, "later": None} for row in rows(50, 4)])
        self.clock.advance(1000)
        as_object(table, [{**row, "later": 8} for row in rows(60, 4)])
        self._compressed("zstd")
        as_object(table, [{**row, "name": "more " * 40, "later": 9} for row in rows(70, 5)])
        with mock.patch.object(record_module, "RECORD_BYTES_MAX", 1000):
            table.append([{**row, "later": 10} for row in rows(80, 3)])
        with mock.patch.object(multi_bucket_writer, "PARTS_MIN", 2):
            as_object(table, [{**row, "later": 11} for row in rows(90, 4)])
        merge_runs(table.log, self.store, table.world, plan_small_merge(table.refresh(), 2), table.segment_options())
        table.move_consumer("reader", {0: 1, 1: 2})
        self._shared_record()
        table.truncate()
        table.append(rows(200, 2))

    def _shared_record(self) -> None:
        """A record that says that several attempts share it."""
        self.table.append([{**row, "later": 12} for row in rows(100, 3)])
        key = commit_key(self.table.uuid, self.table.state.version)
        record, payload = read_record(self.store, self.table.uuid, self.table.state.version)
        (action,) = record.actions
        assert isinstance(action, Append)
        inline = tuple(bytes(payload[slice(*s.inline)]) for s in action.segments if s.inline is not None)
        members = (GroupMember(record.attempt, 1),)
        again = replace(record, actions=(Append(action.segments, inline),), members=members)
        self.store.delete(key)
        self.store.put(key, encode_record(again, "").data)


def written(store: MemoryStorage, folder: Path) -> Path:
    """Write the files of a store below a folder, where Java reads them."""
    for key in (found.key for found in store.list("")):
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.read(key))
    return folder


def planned(folder: Path, name: str) -> dict[str, Any]:
    """Plan a stream of all rows that the log of a warehouse holds, as Java would ask for it."""
    connection = Connection.of(str(folder), {})
    path = parse_table_name(name)
    table = connection.table(str(path.path))
    pin = take_query_snapshot(table, path.suffix, None, None)
    metadata = METADATA_COLUMNS if path.suffix is None else ()
    fields = list(table.state.schema.arrow) if path.suffix is None else [*CHANGELOG_FIELDS, *table.state.schema.arrow]
    schema = spark_versions.spark_schema_of(pa.schema([*fields, *metadata]))
    given = {"snapshot": pin.to_text(), "options": {"startingOffsets": "earliest"}}
    given |= {"native_schemes": ["file"], "hadoop_version": None}
    begun = begin_real_time(connection, given)
    asked = {"start": begun["offset"], "initial_schema": begun["initial_schema"], "columns": schema.names}
    asked |= {"parallelism": 1, "tasks": 1, "taken": 0}
    (task,) = plan_real_time_batch(connection, {**given, **asked})["tasks"]
    return {"schema": schema.json(), "task": {**task, "folder": f"tables/{table.uuid}"}}


def rows_of(folder: Path, name: str, number: int, begin: dict[int, int]) -> list[list[str]]:
    """Read the rows up to a record as micro-batches do, as texts, in the order of buckets and offsets."""
    connection = Connection.of(str(folder), {})
    path = parse_table_name(name)
    table = connection.table(str(path.path))
    state = state_at(table.log, table.storage, number)
    fields = (*METADATA_FIELDS, ROW_ID) if path.suffix is None else CHANGELOG_FIELDS
    columns = table.state.schema if path.suffix is None else state.written_schema(state.schema_id)
    found: list[list[str]] = []
    for bucket, log in sorted(state.buckets.items()):
        split = plan_range(state, bucket, OffsetRange(begin[bucket], log.end))
        for batch in read_split(table.storage, split, columns):
            for row in with_metadata(batch, fields).to_pylist():
                names = [f.name for f in fields]
                ordered = [n for n in row if n not in names] + names if path.suffix is None else list(row)
                found.append([text_of(row[n]) for n in ordered])
    return found


def text_of(value: Any) -> str:
    """A value as Java shows Spark's."""
    match value:
        case None:
            return "null"
        case dt.datetime():
            moment = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
            return str((moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1))
        case dt.date():
            return str((value - dt.date(1970, 1, 1)).days)
        case list():
            return "[" + ", ".join(map(str, value)) + "]"
    return str(value)


def case(folder: Path, name: str, plan: dict[str, Any], last: int) -> dict[str, Any]:
    begin = {each["bucket"]: each["offset"] for each in plan["task"]["buckets"]}
    found = rows_of(folder, name, last, begin)
    return {"name": name, "warehouse": f"{folder.parent.name}/{folder.name}", **plan, "last": last, "rows": found}


def main() -> None:
    if FOLDER.exists():
        sys.exit(f"{FOLDER} exists: golden files are written once")
    build = Build()
    build.first()
    with tempfile.TemporaryDirectory() as early:
        plan = planned(written(build.store, Path(early)), "default.followed")
    build.second()
    last = build.table.state.version - 2  # behind it the table is emptied
    cases = [case(written(build.store, FOLDER / "warehouse"), "default.followed", plan, last)]
    for made, name in ((KEYED, "default.people$changelog"), (PARTS, "default.shared")):
        folder = made / "warehouse"
        cases.append(case(folder, name, known := planned(folder, name), known["task"]["next"] - 1))
    (FOLDER / "cases.json").write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
