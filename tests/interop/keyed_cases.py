"""Tables with a primary key for tests of the lake: a dictionary, the changelog that it makes, and its lake."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import clear_manifest_cache

from kit.lake_rows import lake_rows
from streamhouse_spark.config.table_properties import LakeFormat
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.warehouse_layout import commit_key
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.lake.iceberg.table import IcebergLake
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.lake.tiering.job import TieringJob, TieringReport, run_task
from streamhouse_spark.lake.tiering.plan import TieringTask
from streamhouse_spark.lake.types import LakeFile
from streamhouse_spark.log.actions import Append, Create, SetSchema
from streamhouse_spark.log.append_commit import make_truncate_actions
from streamhouse_spark.log.bucketing import row_buckets
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.record import Record, encode_record
from streamhouse_spark.log.segments.writer import SegmentOptions, stage_inline
from streamhouse_spark.log.state import TableState
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.storage.base import Storage

UUID = "6" * 32
LOCATIONS: Mapping[LakeFormat, str] = {"iceberg": "lake/d/t", "paimon": "lake/d.db/t"}
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
        bucket_key: str | Sequence[str] | None = None,
        num_buckets: int = 1,
        before_images: bool = True,
        target_file_bytes: int = 128 << 20,
        lake_format: LakeFormat = "iceberg",
    ) -> None:
        self.storage, self.world, self.lake_format = storage, world, lake_format
        self.bucket_key = [bucket_key] if isinstance(bucket_key, str) else list(bucket_key or ())
        self.before_images, self.target_file_bytes = before_images, target_file_bytes
        properties = {"primary.key": ",".join(key), "table.datalake.format": lake_format}
        if self.bucket_key:
            properties["bucket.key"] = ",".join(self.bucket_key)
        create = Create("d.t", schema, tuple(partition_by), num_buckets, properties, LOCATIONS[lake_format])
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
    def key_indexes(self) -> tuple[int, ...]:
        return tuple(self.state.schema.names.index(name) for name in self.state.primary_key)

    def key_of(self, row: Row) -> Row:
        return tuple(row[place] for place in self.key_indexes)

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
        buckets: Any = [0] * len(rows)
        if self.bucket_key:
            buckets = row_buckets([rows[name] for name in self.bucket_key], state.num_buckets, self.lake_format)
        by_bucket = {b: rows.filter(pa.array([x == b for x in buckets])) for b in sorted(set(map(int, buckets)))}
        shape = SegmentOptions(state.schema_id, state.partition_by)
        staged = [stage_inline(part, bucket, shape) for bucket, part in by_bucket.items()]

        def plan(state: TableState, time_ms: int) -> Sequence[Append]:
            ends = state.ends
            segments = [s.segment.placed(ends[s.segment.bucket], state.version + 1, time_ms) for s in staged]
            return (Append(tuple(segments), tuple(s.inline_rows for s in staged)),)

        self.log.commit(plan)

    def truncate(self) -> None:
        self.log.commit(lambda state, _ms: make_truncate_actions(state))
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

    def lake(self, storage: Storage | None = None) -> Any:
        state = self.log.refresh()
        spec = replace(LakeTableSpec.of(state), target_file_bytes=self.target_file_bytes)
        if self.lake_format == "paimon":
            from streamhouse_spark.lake.paimon.table import PaimonLake

            return PaimonLake(storage or self.storage, spec, world=self.world)
        return IcebergLake(storage or self.storage, spec, world=self.world)

    def tier(self, *, before_commit: Any = None, **options: Any) -> TieringReport:
        """``before_commit`` runs between the tasks of a round and its commit."""

        def run(tasks: Sequence[TieringTask]) -> list[Any]:
            """Run tasks as on executors: all values that go there and come back are JSON."""
            shipped = [TieringTask.from_json(json.loads(json.dumps(task.to_json()))) for task in tasks]
            found = [run_task(self.storage, {}, self.world, task) for task in shipped]
            if before_commit is not None:
                before_commit()
            texts = [[json.dumps(file.to_json()) for file in files] for files in found]
            return [[LakeFile.from_json(json.loads(text)) for text in files] for files in texts]

        return TieringJob(self.log, self.lake(), world=self.world, **options).run(run)

    def lake_rows(self) -> list[Row]:
        """Read the lake by our reader, in the columns of the table as it is."""
        return rows_of(lake_rows(self.lake(), self.lake().plan_read(schema=self.state.schema)), self.state.schema)

    def foreign_rows(self) -> list[Row]:
        """Read the lake by pyiceberg, or pypaimon, alone."""
        if self.lake_format == "paimon":
            return rows_of(read_by_pypaimon(self.storage), self.state.schema)
        return rows_of(self.lake().binding.load().scan().to_arrow(), self.state.schema)

    def unmerged_rows(self) -> list[Row]:
        """All rows of all live data files of a Paimon lake, as a reader has them that merges nothing."""
        lake = self.lake()
        snapshot = lake.newest()
        files = lake.scan_files(
            snapshot_id=snapshot.id, columns=self.state.schema.names[:1], schema=self.state.schema
        ).files
        found = [one.location for file in files for one in (file.merge.files if file.merge else (file,))]
        keys = [location.removeprefix(f"{self.storage.url}/") for location in found]
        tables = [pq.read_table(pa.BufferReader(self.storage.read(key))) for key in keys]
        names = list(self.state.schema.names)
        rows = [
            table.select([n for n in names if n in table.column_names]).replace_schema_metadata() for table in tables
        ]
        return rows_of(pa.concat_tables(rows, promote_options="default"), self.state.schema) if rows else []

    def require_expected(self) -> None:
        """Raise `AssertionError` unless the lake has the rows, also to a reader that is not ours."""
        assert self.lake_rows() == self.foreign_rows() == self.expected()

    def expected(self) -> list[Row]:
        return sorted(self.rows.values(), key=repr)


def rows_of(table: pa.Table, schema: TableSchema) -> list[Row]:
    """The rows in the columns of a schema, sorted; a column that is not there is null."""
    columns = [table[name].to_pylist() if name in table.column_names else [None] * len(table) for name in schema.names]
    return sorted(zip(*columns, strict=True), key=repr)


def read_by_pypaimon(storage: Storage, name: str = "d.t", **options: str) -> pa.Table:
    """All rows of a lake table, as pypaimon alone reads them from a copy on a disk."""
    from pypaimon import CatalogFactory

    with tempfile.TemporaryDirectory() as folder:
        for info in storage.list("lake/"):
            path = Path(folder, info.key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(storage.read(info.key))
        found = CatalogFactory.create({"warehouse": f"{folder}/lake"}).get_table(name)
        builder = (found.copy(options) if options else found).new_read_builder()
        return builder.new_read().to_arrow(builder.new_scan().plan().splits())


def live_deletes(lake: IcebergLake) -> Mapping[str, int]:
    """The live delete files with their positions."""
    found = lake.metadata_table("delete_files")
    return dict(zip(found["file_path"].to_pylist(), found["record_count"].to_pylist(), strict=True))


def data_files(lake: IcebergLake) -> list[str]:
    return sorted(lake.metadata_table("data_files")["file_path"].to_pylist())
