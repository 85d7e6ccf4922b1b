"""A query in real-time mode without Spark: its driver, its tasks and its checkpoint, over a store that fails.

Each life of the query cuts its rows elsewhere, as a machine does. The checkpoint is Spark's own: the number of the next
batch and the offsets at which it begins, stored behind the end of the batch before.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from faults.faulty_storage import Crash, Fault, FaultyStorage
from faults.sim import sim_world
from streamhouse_spark import CommitConflictError, StreamhouseError, Table, Warehouse
from streamhouse_spark.config.spark_options import parse_stream_write_options
from streamhouse_spark.datasource.realtime.sink import STORED_KEY, RealTimeStreamWriter
from streamhouse_spark.datasource.realtime.sink_progress import begin_real_time_write, end_real_time_write
from streamhouse_spark.datasource.write.sink_transactions import SourceProgress
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage

SOURCE, TARGET = "sales.source", "sales.target"
QUERY, ANOTHER = "the query", "another query"
BUCKETS = 2
ROWS = 24
NUM_BATCHES = 2
"""Batches that a life runs to their ends, before it takes all rows that are left in one more."""
SUMS = {"table.merge-engine": "aggregation", "fields.times.agg": "sum", "fields.total.agg": "sum"}
SCHEMA = pa.schema(
    [
        ("__bucket", pa.int32()),
        ("__begin", pa.int64()),
        ("__end", pa.int64()),
        ("__record", pa.int64()),
        ("__attempt", pa.string()),
        ("id", pa.int64()),
        ("times", pa.int64()),
        ("total", pa.int64()),
    ]
)
FRAME = StructType(
    [
        StructField("__bucket", IntegerType(), nullable=False),
        StructField("__begin", LongType(), nullable=False),
        StructField("__end", LongType(), nullable=False),
        StructField("__record", LongType()),
        StructField("__attempt", StringType()),
        StructField("id", LongType(), nullable=False),
        StructField("times", LongType()),
        StructField("total", LongType()),
    ]
)


def new_store(*, by_key: bool) -> MemoryStorage:
    storage = MemoryStorage(sim_world(0))
    warehouse = Warehouse("wh", storage=storage, world=sim_world(1))
    properties = {"bucket.key": "id", "table.datalake.enabled": "false"}
    source = warehouse.create_table(SOURCE, "id BIGINT", buckets=BUCKETS, properties=properties)
    for first in range(0, ROWS, 8):
        source.append([{"id": i} for i in range(first, first + 8)])
    columns = "id BIGINT NOT NULL, times BIGINT, total BIGINT"
    keyed: dict[str, Any] = {"primary_key": ["id"], "properties": SUMS} if by_key else {}
    warehouse.create_table(TARGET, columns, **keyed)
    return storage


def copied(storage: MemoryStorage) -> MemoryStorage:
    found = MemoryStorage(sim_world(0))
    found._objects = dict(storage._objects)
    return found


@dataclass
class Checkpoint:
    batch: int = 0
    starts: Mapping[int, int] = field(default_factory=lambda: dict.fromkeys(range(BUCKETS), 0))


class Here:
    """What `Connection` is in one process."""

    location = "wh"

    def __init__(self, storage: Storage, seed: int) -> None:
        self._warehouse = Warehouse("wh", storage=storage, world=sim_world(seed))
        self._tables = {name: self._warehouse.table(name) for name in (SOURCE, TARGET)}

    def warehouse(self) -> Warehouse:
        return self._warehouse

    def table(self, name: str) -> Table:
        return self._tables[name]

    def table_by_uuid(self, name: str, uuid: str) -> Table:
        assert self._tables[name].uuid == uuid
        return self._tables[name]


class Life:
    """A run of the query from its checkpoint. ``cut`` is the number of rows of a bucket between two commits."""

    def __init__(
        self, storage: Storage, checkpoint: Checkpoint, seed: int, *, query: str = QUERY, app_id: str | None = None
    ) -> None:
        self.checkpoint, self.cut, self.query = checkpoint, 2 + seed % 3, query
        self.options = {"txnAppId": app_id} if app_id else {}
        self.here: Any = Here(storage, 10 + seed)
        self.rows = rows_of(getattr(storage, "inner", storage))
        self.stored: dict[int, int] = {}
        self.at: dict[int, int] = {}

    def run(self, *, tries: int = 1, num_batches: int = NUM_BATCHES) -> None:
        """Take all rows. A task that fails is begun again, ``tries`` times in all."""
        for _ in range(num_batches):
            self.batch(tries, rounds=1)
        self.batch(tries, rounds=ROWS)

    def batch(self, tries: int = 1, *, rounds: int) -> None:
        self.begin()
        self.take(tries, rounds)
        self.end()

    def begin(self) -> None:
        given = {**self._asked(), "source_name": SOURCE, "buckets": BUCKETS}
        found = begin_real_time_write(self.here, given)["offsets"]
        self.stored = {int(bucket): offset for bucket, offset in found.items()}

    def take(self, tries: int, rounds: int) -> None:
        """A task: what it has of a bucket is written, and then its next rows."""
        for attempt in range(tries):
            try:
                if attempt:
                    self.take_again(rounds)
                else:
                    self._take(rounds)
                return
            except StreamhouseError:
                if attempt == tries - 1:
                    raise

    def take_again(self, rounds: int) -> None:
        """Another attempt of the task, as Spark makes it: from the beginning of the batch."""
        self.ask_stored()
        self._take(rounds)

    def ask_stored(self) -> None:
        found: Any = self._writer().write(iter([]))
        offsets = json.loads(found.counts.removeprefix(STORED_KEY))
        self.stored |= {int(bucket): offset for bucket, offset in offsets.items()}

    def _take(self, rounds: int) -> None:
        self.at = {b: max(start, self.stored.get(b, 0)) for b, start in self.checkpoint.starts.items()}
        for _ in range(rounds):
            self.step()

    def step(self) -> None:
        """Commit the next rows of each bucket."""
        for bucket, begin in self.at.items():
            end = min(begin + self.cut, len(self.rows[bucket]))
            ids = [key for key in self.rows[bucket][begin:end] if key % 5 != 3]
            if ids:
                self._write(bucket, end, ids)
            self.at[bucket] = end

    def end(self) -> None:
        end_real_time_write(self.here, self._asked())
        self.checkpoint.batch += 1
        self.checkpoint.starts = dict(self.at)

    def _asked(self) -> dict[str, Any]:
        table, source = self.here.table(TARGET), self.here.table(SOURCE)
        named = {"name": TARGET, "uuid": table.uuid, "query": self.query, "source": source.uuid}
        return {**named, "batch": self.checkpoint.batch, "options": self.options}

    def _writer(self) -> RealTimeStreamWriter:
        options = parse_stream_write_options({"path": TARGET, **self.options})
        rows = SourceProgress(self.query, self.here.table(SOURCE).uuid)
        return RealTimeStreamWriter(self.here, TARGET, options, None, FRAME, rows=rows)

    def _write(self, bucket: int, end: int, ids: list[int]) -> None:
        """Commit rows, without those that another run of the query has stored meanwhile, as Java does."""
        while left := [key for key in ids if self.rows[bucket].index(key) >= self.stored.get(bucket, 0)]:
            record = self.here.table(SOURCE).state.anchors.rows
            place = (bucket, self.stored.get(bucket, -1), end, *record)
            rows = [dict(zip(SCHEMA.names, (*place, key % 4, 1, key), strict=True)) for key in left]
            try:
                self._writer().write(iter([pa.RecordBatch.from_pylist(rows, schema=SCHEMA)]))
            except CommitConflictError:
                before = dict(self.stored)
                self.ask_stored()
                if self.stored == before:
                    raise
            else:
                self.stored[bucket] = end


def rows_of(storage: Storage) -> dict[int, list[int]]:
    """The source's ids by bucket, in the order of their offsets."""
    found: dict[int, list[int]] = {bucket: [] for bucket in range(BUCKETS)}
    table = Warehouse("wh", storage=storage, world=sim_world(2)).table(SOURCE)
    for batch in table.tail("earliest", include_metadata=True, until_ms=0):
        for bucket, key in zip(batch["_bucket"].to_pylist(), batch["id"].to_pylist(), strict=True):
            found[bucket].append(key)
    return found


def check(storage: Storage, times: int = 1) -> None:
    """Each row of the source is in the target, so many times."""
    wanted = Counter(key for ids in rows_of(storage).values() for key in ids if key % 5 != 3 for _ in range(times))
    table = Warehouse("wh", storage=storage, world=sim_world(3)).table(TARGET)
    found = table.to_arrow().to_pylist()
    if not table.state.primary_key:
        assert Counter(row["total"] for row in found) == wanted
        return
    sums = {row["id"]: (row["times"], row["total"]) for row in found}
    own = {key: [i for i in wanted.elements() if i % 4 == key] for key in range(4)}
    assert sums == {key: (len(ids), sum(ids)) for key, ids in own.items() if ids}


def goes_on(store: Storage, checkpoint: Checkpoint, seed: int) -> None:
    """The query is started again until it ends by itself, and everything is there once."""
    Life(store, checkpoint, seed).run()
    check(store)


def calls(store: MemoryStorage) -> int:
    probe = FaultyStorage(copied(store))
    Life(probe, Checkpoint(), 0).run()
    return len(probe.trace)


def survive(base: MemoryStorage, plan: Any, *, tries: int = 1) -> FaultyStorage:
    """Run one life under a plan of faults, and others after it."""
    checkpoint = Checkpoint()
    storage = FaultyStorage(copied(base), plan)
    try:
        Life(storage, checkpoint, 0).run(tries=tries)
    except (Crash, StreamhouseError):
        pass
    goes_on(storage.inner, checkpoint, 1)
    goes_on(storage.inner, checkpoint, 2)
    return storage


def rival_before(base: MemoryStorage, call: int, *, has_begun: bool, steps: int) -> None:
    """Before a call another run of the query, which began before or begins now, commits some rows and lives on."""
    checkpoint, store = Checkpoint(), copied(base)
    rival = Life(store, replace(checkpoint), 1)
    if has_begun:
        rival.begin()
        rival.at = dict(rival.checkpoint.starts)

    def goes_first(number: int, _method: str, _key: str) -> Fault | None:
        if number == call:
            lives_on()
        return None

    def lives_on() -> None:
        try:
            if not has_begun:
                rival.checkpoint = replace(checkpoint)
                rival.begin()
                rival.at = {b: max(o, rival.stored.get(b, 0)) for b, o in rival.checkpoint.starts.items()}
            for _ in range(steps):
                rival.step()
        except StreamhouseError:
            pass

    Life(FaultyStorage(store, goes_first), checkpoint, 0).run()
    lives_on()
    goes_on(store, checkpoint, 2)


def table_objects(store: MemoryStorage, name: str) -> dict[str, Any]:
    uuid = Warehouse("wh", storage=store, world=sim_world(4)).table(name).uuid
    return {key: data for key, data in store._objects.items() if uuid in PurePath(key).parts}


def put_back(store: MemoryStorage, name: str, copy: Mapping[str, Any]) -> None:
    """A copy takes the place of a table."""
    for key in table_objects(store, name):
        del store._objects[key]
    store._objects.update(copy)
