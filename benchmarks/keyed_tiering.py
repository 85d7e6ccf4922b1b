"""Rounds of a table with a primary key: a few changes against a large bucket of the lake."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.measure import Bench, Figure, in_turns, ours_at_most, time_figure, timed
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import commit_key
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.lake.iceberg.table import IcebergLake
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.log.actions import Append, Create
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.record import Record, encode_record
from streamhouse_spark.log.segments.writer import SegmentOptions, stage_object
from streamhouse_spark.log.state import TableState
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.local import LocalStorage

ROWS = 5_000_000
CHANGES = 10_000
LOAD_ROWS = 1_000_000
SCHEMAS = {
    "bigint key": TableSchema.of("id bigint not null, name string, n bigint, amount double"),
    "string key": TableSchema.of("id string not null, name string, n bigint, amount double"),
}


class KeyedBucket:
    """A table of one bucket, with its log and its lake in one directory."""

    def __init__(self, path: str, schema: TableSchema) -> None:
        self._storage, self._world = LocalStorage(path), World()
        self._schema = schema
        self._uuid = self._world.ids.new_uuid()
        create = Create("bench.keyed", schema, (), 1, {"primary.key": "id"}, "lake/bench/keyed")
        record = encode_record(Record(1, self._uuid, "create", 0, (create,)), "0" * 32)
        self._storage.put_if_absent(commit_key(self._uuid, 1), record.data)
        self._log = CommitLog(self._storage, self._uuid, self._world)

    @property
    def lake(self) -> IcebergLake:
        spec = LakeTableSpec(
            self._uuid, TablePath("bench", "keyed"), "lake/bench/keyed", self._schema, (), ("id",), 1,
            primary_key=("id",),
        )  # fmt: skip
        return IcebergLake(self._storage, spec, world=self._world)

    def change(self, ids: np.ndarray, kind: ChangeType) -> None:
        """One commit that writes these rows."""
        names = pa.array(["name"]).take(pa.array(np.zeros(len(ids), np.int8)))
        keys = pa.array(ids)
        if self._schema.column("id").type == pa.string():
            keys = pc.binary_join_element_wise("customer", pc.cast(keys, pa.string()), "-")
        kinds = pa.array(np.full(len(ids), int(kind), np.int8))
        schema = self._log.state.written_schema(1).arrow
        rows = pa.table([kinds, keys, names, pa.array(ids), pa.array(ids * 0.5)], schema=schema)
        staged = stage_object(self._storage, self._uuid, self._world.ids.new_uuid(), rows, 0, SegmentOptions(1))

        def plan(state: TableState, time_ms: int) -> Sequence[Append]:
            return (Append((staged.segment.placed(state.ends[0], state.version + 1, time_ms),), (None,)),)

        self._log.commit(plan)

    def tier(self) -> None:
        job = TieringJob(self._log, self.lake, world=self._world)
        job.run(run_tasks_locally(self._storage, {}, self._world))


def keyed_tiering(bench: Bench) -> Iterator[Figure]:
    """Two rounds side by side: few changes of keys from all over the bucket, and as many rows that are new to it."""
    total = ROWS // 10 if bench.quick else ROWS
    for name, schema in SCHEMAS.items():
        bucket = KeyedBucket(str(bench.scratch / name.replace(" ", "-")), schema)
        order = np.random.default_rng(1).permutation(total)
        for start in range(0, total, LOAD_ROWS):
            bucket.change(order[start : start + LOAD_ROWS], ChangeType.INSERT)
        bucket.tier()
        bucket.lake.compact()
        chosen = np.random.default_rng(2)
        fresh = (np.arange(start, start + CHANGES) for start in itertools.count(total, CHANGES))

        def ours(bucket: KeyedBucket = bucket, chosen: np.random.Generator = chosen) -> float:
            bucket.change(chosen.choice(total, CHANGES, replace=False), ChangeType.UPDATE_AFTER)
            return timed(bucket.tier)

        def peer(bucket: KeyedBucket = bucket, fresh: Iterator[np.ndarray] = fresh) -> float:
            bucket.change(next(fresh), ChangeType.INSERT)
            return timed(bucket.tier)

        rival = "as many new keys"
        runs = in_turns({"ours": ours, rival: peer}, bench.rounds(9, 3), warm_up=1)
        what = f"{CHANGES // 1000}k changes, {total / 1e6:.3g}M rows, {name}"
        yield time_figure(what, runs, rival, ours_at_most(1000))
