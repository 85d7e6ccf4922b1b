"""Loads, plans and reads as Spark does, without Spark: native files by name, hot groups through `ArrowReader`."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from streamhouse_spark import Table
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.scan import aggregates, scan
from streamhouse_spark.datasource.scan.arrow_plan import ArrowReadPlan
from streamhouse_spark.datasource.scan.arrow_reader import BATCH_COLUMN, COUNTS_KEY, ArrowReader, make_partitions
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.warehouse.process_cache import Connection


def tier(table: Table) -> None:
    job = TieringJob(table.log, table.open_lake(), world=table.world)
    job.run(run_tasks_locally(table.storage, table.settings, table.world))
    table.refresh()


@dataclass(frozen=True)
class Scans:
    connection: Connection

    def load(self, name: str, **args: Any) -> dict[str, Any]:
        database, _, table = name.partition(".")
        given = {"database": database, "table": table, "version": None, "timestamp_us": None, **args}
        return json.loads(json.dumps(scan.load(self.connection, given), allow_nan=False))

    def plan(self, loaded: dict[str, Any], columns: Sequence[str] | None = None, **args: Any) -> Planned:
        schema = StructType.fromJson(json.loads(loaded["schema"]))
        wanted = list(schema.names if columns is None else columns)
        given = {
            "snapshot": loaded["snapshot"],
            "columns": wanted,
            "filters": [],
            "limit": None,
            "options": {},
            "parallelism": 2,
            "native_schemes": ["file"],
            **args,
        }
        reply = json.loads(json.dumps(scan.plan(self.connection, json.loads(json.dumps(given))), allow_nan=False))
        types = {f.name: f for f in schema} | {
            m["name"]: StructType.fromJson(
                {"type": "struct", "fields": [{**m, "type": json.loads(m["type"]), "metadata": {}}]}
            )[0]
            for m in loaded["metadata_columns"]
        }
        return Planned(self.connection, reply, StructType([types[name] for name in wanted]))

    def rows(self, name: str, columns: Sequence[str] | None = None, **args: Any) -> list[dict[str, Any]]:
        return self.plan(self.load(name), columns, **args).rows()

    def aggregate(self, loaded: dict[str, Any], *functions: tuple[str, str | None], **options: str) -> Any:
        asked = [{"function": name, "column": column} for name, column in functions]
        args = {"snapshot": loaded["snapshot"], "options": options, "aggregates": asked}
        return json.loads(json.dumps(aggregates.aggregate(self.connection, args), allow_nan=False))["row"]


@dataclass(frozen=True)
class Planned:
    connection: Connection
    reply: dict[str, Any]
    schema: StructType
    arrow: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arrow", spark_versions.arrow_schema_of(self.schema))

    def __getitem__(self, name: str) -> Any:
        return self.reply[name]

    @property
    def native(self) -> list[dict[str, Any]]:
        return [group for group in self.reply["native"] if group["files"]]

    def table(self) -> pa.Table:
        parts = [native_rows(f, self.arrow) for group in self.native for f in group["files"]]
        return pa.concat_tables([self.arrow.empty_table(), *parts, *(t for group in self.hot() for t in group)])

    def rows(self) -> list[dict[str, Any]]:
        return self.table().to_pylist()

    def hot(self) -> list[list[pa.Table]]:
        """The batches of each hot group, as another process reads them."""
        tasks = make_partitions(ArrowReadPlan.from_text(self.reply["read"]))
        reader = ArrowReader(self.connection, self.reply["read"])
        assert len(reader.partitions()) == len(tasks) == len(self.reply["hot"])
        reader = pickle.loads(pickle.dumps(reader))
        tasks = [pickle.loads(pickle.dumps(task)) for task in tasks]
        return [[one for batch in reader.read(task) for one in self._streams(batch)] for task in tasks]

    def _streams(self, batch: pa.RecordBatch) -> list[pa.Table]:
        assert batch.schema.equals(spark_versions.arrow_schema_of(BATCH_COLUMN))
        found = []
        for stream in batch.column(0):
            reader = pa.ipc.open_stream(stream.as_py())
            batches = list(reader)
            assert len(batches) == 1
            if COUNTS_KEY.encode() in (reader.schema.metadata or {}):
                assert batches[0].num_rows == 0
                continue
            assert reader.schema.equals(self.arrow), (reader.schema, self.arrow)
            found.append(pa.Table.from_batches(batches))
        return found


def native_rows(file: dict[str, Any], wanted: pa.Schema) -> pa.Table:
    """Read as Spark's reader does: the row groups whose middle lies in the range, columns by name, null where
    absent, and no row whose position was deleted.
    """
    parquet = pq.ParquetFile(_path(file))
    inside = range(file["start"], file["start"] + file["length"])
    groups = [i for i in range(parquet.num_row_groups) if _middle(parquet, i) in inside]
    sizes = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
    numbers = [n for i in groups for n in range(sum(sizes[:i]), sum(sizes[: i + 1]))]
    deleted = {n for delete in file["deletes"] for n in pq.read_table(_path(delete))["pos"].to_pylist()}
    deleted |= set(gone(file))
    rows = parquet.read_row_groups(groups).filter(pa.array([n not in deleted for n in numbers], pa.bool_()))
    columns = [
        rows[f.name].cast(f.type) if f.name in rows.column_names else pa.nulls(rows.num_rows, f.type) for f in wanted
    ]
    return pa.table(columns, schema=wanted)


def gone(file: dict[str, Any]) -> list[int]:
    """The positions that the plan itself names."""
    bits = (
        zlib.decompress(base64.b64decode(file["deleted_positions"])) if file["deleted_positions"] is not None else b""
    )
    return [8 * place + bit for place, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1]


def _path(file: dict[str, Any]) -> str:
    assert file["path"].startswith("file:///")
    return unquote(file["path"].removeprefix("file://"))


def _middle(parquet: pq.ParquetFile, group: int) -> int:
    columns = [parquet.metadata.row_group(group).column(i) for i in range(parquet.metadata.num_columns)]
    start = min(c.dictionary_page_offset or c.data_page_offset for c in columns)
    return start + sum(c.total_compressed_size for c in columns) // 2
