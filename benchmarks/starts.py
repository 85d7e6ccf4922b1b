"""Starts of processes: Python workers that Spark begins for a data source, the import of the package, the command
line.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.measure import Bench, Figure, Goal, in_turns, ours_at_most, time_figure, timed
from streamhouse_spark import Warehouse

MORE_MS_MAX: Final = 150
IMPORT_MS_MAX: Final = 250
HELP_MS_MAX: Final = 300
_SPARK_S_OWN: Final = {
    "read": "pyspark.sql.worker.plan_data_source_read",
    "write": "pyspark.sql.worker.write_into_data_source",
    "begin a stream": "pyspark.sql.worker.plan_data_source_read",
}
"""Role → the module of PySpark that such a worker runs."""
_BEGIN: Final = """
import sys
import {module}
import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType
SCHEMA = StructType([StructField("id", LongType())])
ROWS = [pa.record_batch([pa.array([1, 2, 3])], names=["id"])]
"""
_OURS: Final = """
from streamhouse_spark.datasource.source import StreamhouseDataSource
source = StreamhouseDataSource({"warehouse": sys.argv[1], "path": "bench.t"})
"""
_TRIVIAL: Final = """
from pyspark.sql.datasource import *
class Reader(DataSourceReader, DataSourceStreamReader):
    def partitions(self, *_):
        return [InputPartition(0)]
    def read(self, _):
        yield ROWS[0]
    def initialOffset(self):
        return {"at": 0}
class Writer(DataSourceArrowWriter):
    def write(self, rows):
        return WriterCommitMessage() if sum(batch.num_rows for batch in rows) else None
    def commit(self, _):
        pass
class Source(DataSource):
    def reader(self, _):
        return Reader()
    def streamReader(self, _):
        return Reader()
    def writer(self, _, __):
        return Writer()
source = Source({})
"""
_WORK: Final = {
    "read": "r = source.reader(SCHEMA)\nassert sum(b.num_rows for p in r.partitions() for b in r.read(p))",
    "write": "writer = source.writer(SCHEMA, False)\nwriter.commit([writer.write(iter(ROWS))])",
    "begin a stream": "assert source.streamReader(SCHEMA).initialOffset()",
}


def starts(bench: Bench) -> Iterator[Figure]:
    """A worker's whole life in each role, beside one of a data source that does nothing; then smaller starts."""
    warehouse = Warehouse(bench.scratch / "warehouse")
    table = warehouse.create_table("bench.t", "id BIGINT")
    table.append([{"id": 1}, {"id": 2}])
    for role, module in _SPARK_S_OWN.items():
        begin = _BEGIN.format(module=module)
        programs = {"ours": begin + _OURS + _WORK[role], "trivial": begin + _TRIVIAL + _WORK[role]}
        runs = in_turns(
            {name: lambda text=text: _run(text, warehouse.url) for name, text in programs.items()},
            bench.rounds(9, 3),
            warm_up=1,
        )
        more_ms = sorted((a - b) * 1e3 for a, b in zip(runs["ours"], runs["trivial"], strict=True))[
            len(runs["ours"]) // 2
        ]
        verdict = "met" if more_ms <= MORE_MS_MAX else "missed"
        note = f"{more_ms:.0f} ms more; the goal is at most {MORE_MS_MAX}: {verdict}"
        named = {"ours": runs["ours"], "a source that does nothing": runs["trivial"]}
        yield time_figure(f"worker: {role}", named, "a source that does nothing", note=note)
    yield from _small(
        bench, "import streamhouse_spark", [sys.executable, "-c", "import streamhouse_spark"], IMPORT_MS_MAX
    )
    script = str(Path(sys.executable).parent / "streamhouse")
    yield from _small(bench, "streamhouse --help", [script, "--help"], HELP_MS_MAX)


def _small(bench: Bench, what: str, command: list[str], most_ms: int) -> Iterator[Figure]:
    nothing = [sys.executable, "-c", "pass"]
    runs = in_turns(
        {"ours": lambda: _timed(command), "python -c pass": lambda: _timed(nothing)}, bench.rounds(9, 3), warm_up=1
    )
    goal: Goal = ours_at_most(most_ms)
    yield time_figure(what, runs, "python -c pass", goal)


def _run(program: str, url: str) -> float:
    return _timed([sys.executable, "-c", program, url])


def _timed(command: list[str]) -> float:
    return timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120))
