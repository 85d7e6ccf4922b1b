"""How long after an append began a `ForeachWriter` has its row: in real-time mode, and by micro-batches."""

from __future__ import annotations

import subprocess
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamhouse_spark
from benchmarks.measure import Bench, Figure, percentile, ratio_at_most
from benchmarks.spark import session_builder
from streamhouse_spark import Table, Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_S = 600
"""Longer than a turn, so that no batch ends in it."""
WARM_ROWS = 50
FIRST_ROW_S = 180
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def writers(folder: Path) -> str:
    """Compile the writer, and return its jar: a writer in Python gets rows late, through buffers of Spark's."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    classes = folder / "classes"
    source = Path(__file__).parent / "java" / "AgeWriter.java"
    command = ["javac", "--release", "17", "-nowarn", "-d", str(classes), "-cp", f"{jars}/*", str(source)]
    subprocess.run(command, check=True)
    jar = folder / "writers.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for path in classes.rglob("*.class"):
            archive.write(path, path.relative_to(classes))
    return str(jar)


def realtime(bench: Bench) -> Iterator[Figure]:
    """One row an append, so many a second; both ways in one session, one after the other."""
    url = str(bench.scratch / "warehouse")
    builder = session_builder(bench.scratch).config("spark.sql.streaming.stateStore.providerClass", STATE_STORE)
    builder = builder.config("spark.driver.extraClassPath", writers(bench.directory("writers")))
    spark = streamhouse_spark.configure(builder, warehouse=url).getOrCreate()
    try:
        for buckets in (1, 4):
            for rate in (10, 200):
                yield _figure(bench, spark, Warehouse(url), buckets, rate)
    finally:
        spark.stop()


def _figure(bench: Bench, spark: SparkSession, wh: Warehouse, buckets: int, rate: int) -> Figure:
    seconds = bench.rounds(30, 5)
    ages = {}
    for way in ("real-time", "micro-batches"):
        name = f"bench.{way.replace('-', '_')}_{buckets}_{rate}"
        table = wh.create_table(
            name, "number BIGINT, began_ns BIGINT", buckets=buckets, properties={"bucket.key": "number"}
        )
        trigger = {"realTime": f"{BATCH_S} seconds"} if way == "real-time" else {"processingTime": "0 seconds"}
        ages[way] = ages_of(spark, table, bench.directory(name), rate, seconds, trigger)
    ours, peer = (percentile(found, 0.5) for found in ages.values())
    said = [tail_of(found) for found in ages.values()]
    return Figure(
        name=f"from append to foreach, {buckets} bucket{'s' * (buckets > 1)}, {rate} rows/s",
        unit="ms",
        ours=ours,
        peer_name="micro-batches",
        peer=peer,
        ratio=ours / peer,
        pairs=1,
        goal=ratio_at_most(0.1),
        note=f"{said[0]}; micro-batches {said[1]}; {len(ages['real-time'])} rows",
    )


def tail_of(ages: Sequence[float]) -> str:
    """The slow ones, in words."""
    return ", ".join(f"p{share} {percentile(ages, share / 100):.1f}" for share in (90, 99))


def ages_of(
    spark: SparkSession, table: Table, folder: Path, rate: int, seconds: int, trigger: dict[str, str]
) -> list[float]:
    """Milliseconds from the beginning of each row's append to `foreach`; the first rows are not counted."""
    stream = spark.readStream.table(f"streamhouse.{table.name}")

    def append(number: int) -> None:
        table.append([{"number": number, "began_ns": time.time_ns()}])

    return ages_of_rows(spark, stream, append, folder, rate, seconds, trigger)


def ages_of_rows(
    spark: SparkSession,
    rows: DataFrame,
    append: Callable[[int], None],
    folder: Path,
    rate: int,
    seconds: int,
    trigger: dict[str, str],
) -> list[float]:
    """The same of a stream of numbers and the moments at which their appends began."""
    out = folder / "out"
    out.mkdir()
    stream = rows.writeStream.outputMode("update")
    stream = stream.option("checkpointLocation", str(folder / "checkpoint"))
    _write_by_jvm(spark, stream, str(out))
    query = stream.trigger(**trigger).start()
    try:
        _append(append, 0, WARM_ROWS, rate)
        _wait(query, out, WARM_ROWS)
        count = seconds * rate
        appender = threading.Thread(target=_append, args=(append, WARM_ROWS, count, rate))
        appender.start()
        appender.join()
        found = _wait(query, out, WARM_ROWS + count)
    finally:
        query.stop()
    return [age for number, age in found.items() if number >= WARM_ROWS]


def _write_by_jvm(spark: Any, stream: Any, folder: str) -> None:
    stream._jwrite.foreach(spark._jvm.bench.AgeWriter(folder))  # noqa: SLF001 - PySpark has no other way


def _append(append: Callable[[int], None], first: int, count: int, rate: int) -> None:
    """Append rows one by one, each at its time; one that is late does not wait."""
    start = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, start + number / rate - time.monotonic()))
        append(first + number)


def _wait(query: Any, out: Path, count: int) -> dict[int, float]:
    end = time.monotonic() + FIRST_ROW_S
    while True:
        lines = [line.split() for path in out.iterdir() for line in path.read_text().splitlines()]
        found = {int(line[0]): float(line[1]) for line in lines if len(line) == 2}
        if len(found) >= count:
            return found
        if query.exception() is not None or time.monotonic() > end:
            raise RuntimeError(f"{len(found)} of {count} rows came: {query.exception()}")
        time.sleep(0.2)
