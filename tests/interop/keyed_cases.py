"""Tables with a primary key for tests of the lake: a dictionary, the changelog that it makes, and its lake."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import clear_manifest_cache

from streamhouse_spark.clock import World
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.lake.base import LakeFile
from streamhouse_spark.lake.iceberg import IcebergLake, LakeTableSpec
from streamhouse_spark.lake.plan import TieringTask
from streamhouse_spark.lake.tiering import TieringJob, TieringReport, run_task
from streamhouse_spark.log.actions import Append, Create, SetSchema
from streamhouse_spark.log.bucketing_iceberg import iceberg_buckets
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.record import Record, encode_record
from streamhouse_spark.log.segment_writer import SegmentShape, stage_inline
from streamhouse_spark.log.staging import truncating
from streamhouse_spark.log.state import TableState
from streamhouse_spark.model import TablePath
from streamhouse_spark.paths import commit_key
from streamhouse_spark.schema import TableSchema
from streamhouse_spark.storage import Storage

UUID = "6" * 32
ITEMS = TableSchema.of("id bigint not null, name string, n bigint")
Row = tuple[Any, ...]


class KeyedTable:
    """A table whose log is written from a dictionary. Another object over the same storage is another process."""

    def __init__(
        self,
        storage: Storage,
        world: World,
        schema: TableSchema = ITEMS,
        *,
        key: Sequence[str] = ("id",),
        partition_by: Sequence[str] = (),
        bucket_key: str | None = None,
        num_buckets: int = 1,
        before_images: bool = True,
        target_file_bytes: int = 128 << 20,
    ) -> None:
        self.storage, self.world = storage, world
        self.bucket_key, self.before_images, self.target_file_bytes = bucket_key, before_images, target_file_bytes
        properties = {"primary.key": ",".join(key), **({"bucket.key": bucket_key} if bucket_key else {})}
        create = Create("d.t", schema, tuple(partition_by), num_buckets, properties, "lake/d/t")
        record = encode_record(Record(1, UUID, "first", 0, (create,)), "0" * 32)
        if not storage.list_names(commit_key(UUID, 1).rpartition("/")[0] + "/"):
            storage.put_if_absent(commit_key(UUID, 1), record.data)
            clear_manifest_cache()  # by location, and seeded tables in memory have the same ones
        self.log = CommitLog(storage, UUID, world)
        self.rows: dict[Row, Row] = {}

    @property
    def state(self) -> TableState:
        return self.log.state

    @property
    def key_places(self) -> tuple[int, ...]:
        return tuple(self.state.schema.names.index(name) for name in self.state.primary_key)

    def key_of(self, row: Row) -> Row:
        return tuple(row[place] for place in self.key_places)

    # -- writing --------------------------------------------------------------------------------------------------

    def change(self, upserts: Iterable[Row] = (), deletes: Iterable[Row] = ()) -> None:
        """One commit of upserts, in order, and then of deletions by key of keys that are there."""
        changes: list[tuple[ChangeType, Row]] = []
        for row in upserts:
            key = self.key_of(row)
            old = self.rows.get(key)
            if old is None:
                changes.append((ChangeType.INSERT, row))
            else:
                changes += [(ChangeType.UPDATE_BEFORE, old)] if self.before_images else []
                changes.append((ChangeType.UPDATE_AFTER, row))
            self.rows[key] = row
        changes += [(ChangeType.DELETE, self.rows.pop(key)) for key in deletes]
        self.append(changes)

    def append(self, changes: Sequence[tuple[ChangeType, Row]]) -> None:
        """Write changes into the log as they are."""
        if not changes:
            return
        state = self.state
        schema = state.written_schema(state.schema_id).arrow
        wide = len(schema) - 1
        columns = zip(*((int(kind), *row, *[None] * (wide - len(row))) for kind, row in changes), strict=True)
        rows = pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
        buckets = iceberg_buckets(rows[self.bucket_key], state.num_buckets) if self.bucket_key else [0] * len(rows)
        by_bucket = {b: rows.filter(pa.array([x == b for x in buckets])) for b in sorted(set(map(int, buckets)))}
        shape = SegmentShape(state.schema_id, state.partition_by)
        staged = [stage_inline(part, bucket, shape) for bucket, part in by_bucket.items()]

        def plan(state: TableState, time_ms: int) -> Sequence[Append]:
            ends = state.ends
            segments = [s.segment.placed(ends[s.segment.bucket], state.version + 1, time_ms) for s in staged]
            return (Append(tuple(segments), tuple(s.inline_rows for s in staged)),)

        self.log.commit(plan)

    def truncate(self) -> None:
        self.log.commit(lambda state, _ms: truncating(state))
        self.rows.clear()

    def add_column(self, ddl: str) -> None:
        state = self.state
        added = TableSchema.of(ddl)
        first = 1 + max(c.id for schema in state.schemas.values() for c in schema.columns)
        wider = state.schema.with_added(added, first_id=first)
        self.log.commit(lambda state, _ms: (SetSchema(state.schema_id + 1, wider),))
        nulls = (None,) * len(added.columns)
        self.rows = {key: (*row, *nulls) for key, row in self.rows.items()}

    # -- the lake -------------------------------------------------------------------------------------------------

    def lake(self, storage: Storage | None = None) -> IcebergLake:
        state = self.log.refresh()
        spec = LakeTableSpec(
            table_uuid=UUID,
            path=TablePath("d", "t"),
            location="lake/d/t",
            schema=state.schema,
            partition_by=state.partition_by,
            bucket_key=(self.bucket_key,) if self.bucket_key else (),
            num_buckets=state.num_buckets,
            target_file_bytes=self.target_file_bytes,
            primary_key=state.primary_key,
            schema_id=state.schema_id,
            schemas=state.schemas,
        )
        return IcebergLake(storage or self.storage, spec, world=self.world)

    def tier(self, *, before_commit: Any = None, **options: Any) -> TieringReport:
        """``before_commit`` runs between the tasks of a round and its commit."""

        def run(tasks: Sequence[TieringTask]) -> list[Any]:
            """As on executors: what goes there and comes back is JSON."""
            shipped = [TieringTask.from_json(json.loads(json.dumps(task.to_json()))) for task in tasks]
            found = [run_task(self.storage, {}, self.world, task) for task in shipped]
            if before_commit is not None:
                before_commit()
            texts = [[json.dumps(file.to_json()) for file in files] for files in found]
            return [[LakeFile.from_json(json.loads(text)) for text in files] for files in texts]

        return TieringJob(self.log, self.lake(), world=self.world, **options).run(run)

    def lake_rows(self) -> list[Row]:
        """As our reader reads the lake, in the columns of the table as it is."""
        return rows_of(self.lake().to_arrow(self.lake().plan_read(schema=self.state.schema)), self.state.schema)

    def foreign_rows(self) -> list[Row]:
        """As pyiceberg alone reads the lake."""
        return rows_of(self.lake().place.load().scan().to_arrow(), self.state.schema)

    def expected(self) -> list[Row]:
        return sorted(self.rows.values(), key=repr)


def rows_of(table: pa.Table, schema: TableSchema) -> list[Row]:
    """The rows in the columns of a schema, sorted; a column that is not there is null."""
    columns = [table[name].to_pylist() if name in table.column_names else [None] * len(table) for name in schema.names]
    return sorted(zip(*columns, strict=True), key=repr)


def live_deletes(lake: IcebergLake) -> Mapping[str, int]:
    """The live delete files with their positions."""
    found = lake.metadata_table("delete_files")
    return dict(zip(found["file_path"].to_pylist(), found["record_count"].to_pylist(), strict=True))


def data_files(lake: IcebergLake) -> list[str]:
    return sorted(lake.metadata_table("data_files")["file_path"].to_pylist())
