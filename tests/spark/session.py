"""Statements that the tests give Spark again and again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streamhouse_spark import Table, Warehouse


@contextmanager
def in_python(spark: Any) -> Iterator[None]:
    """Leave batch reads of ``format("streamhouse")`` to Python's workers, as in a session without the jar."""
    spark.conf.set("spark.sql.streamhouse.jvmReads", "false")
    try:
        yield
    finally:
        spark.conf.unset("spark.sql.streamhouse.jvmReads")


def load(spark: Any, wh: Warehouse, name: str, schema: Any = None, **options: Any) -> Any:
    reader = spark.read if schema is None else spark.read.schema(schema)
    return reader.format("streamhouse").option("warehouse", wh.url).options(**options).load(name)


def load_stream(spark: Any, wh: Warehouse, name: str, schema: Any = None, **options: Any) -> Any:
    reader = spark.readStream if schema is None else spark.readStream.schema(schema)
    return reader.format("streamhouse").option("warehouse", wh.url).options(**options).load(name)


def append(frame: Any, wh: Warehouse, name: str, **options: Any) -> None:
    frame.write.format("streamhouse").option("warehouse", wh.url).options(**options).mode("append").save(name)


def sink(stream: Any, wh: Warehouse, name: str, checkpoint: str, **options: Any) -> Any:
    """A stream into a table; it reads what is there and ends, unless the caller sets another trigger."""
    writer = stream.writeStream.format("streamhouse").option("warehouse", wh.url).options(**options)
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(name)


def drain(stream: Any, wh: Warehouse, name: str, checkpoint: str, **options: Any) -> Any:
    """Run `sink` to its end, however slow the machine is; the query, ended."""
    query = sink(stream, wh, name, checkpoint, **options)
    query.awaitTermination()
    return query


def forget_commit(checkpoint: str) -> int:
    """Take the last batch's entry out of a checkpoint's commit log: Spark repeats this batch at the next start."""
    folder = Path(checkpoint) / "commits"
    last = max(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    for path in folder.glob(f"*{last}*"):
        if path.name in (str(last), f".{last}.crc"):
            path.unlink()
    return last


def ids(table: Table) -> list[int]:
    return sorted(table.to_arrow(columns=["id"])["id"].to_pylist())


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"id": i, "name": f"n{i}", "amount": i * 0.5} for i in range(start, start + count)]


COLUMNS = "id BIGINT NOT NULL, name STRING, amount DOUBLE"
