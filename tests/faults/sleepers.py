"""Writers by key that sleep for days at any storage call, while others clean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

import numpy as np
import pyarrow as pa

from faults.faulty_storage import Fault, FaultyStorage
from faults.share import WHOLE, Share
from faults.sim import SimClock
from kit.warehouses import new_store, open_warehouse
from streamhouse_spark import CommitConflictError, Table
from streamhouse_spark.kv import change_staging, kv_snapshots
from streamhouse_spark.kv import partition_overwrite as deletion
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS, clean
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.write.upsert_intents import BucketIntents, IntentWrite, commit_prepared, prepare_changes

NAMES = ["id", "p", "v"]
ROWS = {i: (i % 3, f"v{i}") for i in range(12)}


@contextmanager
def objects_only() -> Iterator[None]:
    """However small, what is staged is an object of its own."""
    with (
        mock.patch.object(change_staging, "INLINE_BYTES_MAX", 0),
        mock.patch.object(deletion, "INLINE_BYTES_MAX", 0),
        mock.patch.object(kv_snapshots, "CHANGES_MIN", 1),
    ):
        yield


def table_of(rows: dict[int, tuple[int, str]]) -> pa.Table:
    columns = [list(rows), [p for p, _ in rows.values()], [v for _, v in rows.values()]]
    return pa.table(dict(zip(NAMES, columns, strict=True)), schema=pa.schema(SCHEMA_FIELDS))


SCHEMA_FIELDS = [("id", pa.int64()), ("p", pa.int32()), ("v", pa.string())]
NEW = {i: (i % 3, "new") for i in range(6, 18)}


def upserts(table: Table) -> dict[int, tuple[int, str]]:
    table.upsert(table_of(NEW))
    return ROWS | NEW


def deletes(table: Table) -> dict[int, tuple[int, str]]:
    table.delete([(i, i % 3) for i in (1, 2, 3)])
    return {i: row for i, row in ROWS.items() if i not in (1, 2, 3)}


def overwrites(table: Table) -> dict[int, tuple[int, str]]:
    table.overwrite(table_of(NEW))
    return NEW


def drops_a_partition(table: Table) -> dict[int, tuple[int, str]]:
    table.drop_partition({"p": 1})
    return {i: row for i, row in ROWS.items() if row[0] != 1}


def commits_what_tasks_prepared(table: Table) -> dict[int, tuple[int, str]]:
    rows, write = table_of(NEW), IntentWrite()
    shape = table.keyed.keyed_schema()
    places = {b: p for b, p in shape.buckets([c.combine_chunks() for c in rows.columns]) if p is not None}

    def read(places: np.ndarray, _schema: object) -> BucketIntents:
        return BucketIntents(rows.take(pa.array(places)), np.zeros(len(places), np.bool_))

    intents = {bucket: partial(read, chosen) for bucket, chosen in places.items()}
    commit_prepared(table.keyed, write, intents, prepare_changes(table.keyed, write, intents))
    return ROWS | NEW


def maintains(table: Table) -> dict[int, tuple[int, str]]:
    table.maintain()
    return ROWS


WORK: dict[str, Callable[[Table], dict[int, tuple[int, str]]]] = {
    f.__name__: f for f in (upserts, deletes, overwrites, drops_a_partition, commits_what_tasks_prepared, maintains)
}


def prepared_table(seed: int) -> tuple[MemoryStorage, SimClock]:
    clock = SimClock()
    memory = new_store(seed, clock)
    warehouse = open_warehouse(memory, seed + 1, clock)
    properties = {"table.datalake.enabled": "false", "bucket.num": "2", "bucket.key": "id", "table.log.ttl": "900d"}
    table = warehouse.create_table(
        "t", pa.schema(SCHEMA_FIELDS), primary_key=["id", "p"], partition_by=["p"], properties=properties
    )
    table.upsert(table_of(ROWS))
    return memory, clock


def sleeps(memory: MemoryStorage, clock: SimClock, days: int) -> None:
    for day in range(days):
        clock.advance(GRACE_MS + 3_600_000)
        table = open_warehouse(memory, 100 + day, clock).table("t")
        clean(table.log, memory)


def check_sleepers(work: str, days: int, share: Share = WHOLE) -> None:
    """Sleep before each storage call of the work in turn, or before a share of them.

    Raises `AssertionError`, or the error of a reader.
    """
    with objects_only():
        calls, at, refused = 1, 0, 0
        while at < calls:
            if at and at not in share:  # the first run counts the calls
                at += 1
                continue
            memory, clock = prepared_table(1000 * at)

            def plan(number: int, _method: str, _key: str, at=at, memory=memory, clock=clock) -> Fault | None:
                if number == at:
                    sleeps(memory, clock, days)
                return None

            storage = FaultyStorage(memory, plan)
            table = open_warehouse(storage, 1000 * at + 2, clock).table("t")
            try:
                expected = WORK[work](table)
            except CommitConflictError:
                expected, refused = ROWS, refused + 1
            calls = max(calls, len(storage.trace)) if at == 0 else calls
            found = open_warehouse(memory, 1000 * at + 3, clock).table("t").to_arrow()
            rows = {row["id"]: (row["p"], row["v"]) for row in found.to_pylist()}
            assert rows == expected, f"{work}, slept {days} days before call {at} of {calls}"
            at += 1
    assert refused < calls / 2
