"""The contestants beside servers: ours, Kafka through librdkafka, Fluss through its Java client, with the same calls.

Each call says how many seconds it took. What is written is in memory before: Arrow tables for ours and for Kafka, whose
messages are Arrow record batches, and row objects for Fluss.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.measure import timed
from benchmarks.server_processes import OPENS
from streamhouse_spark import Table, Warehouse

BATCH_ROWS = 1000
KAFKA_MESSAGE_ROWS = 4096
"""Of bulk writes: Kafka takes messages of a megabyte at most."""
IN_FLIGHT_MAX = 64
FLUSS_ROWS_MAX = 1_000_000
"""As many row objects fit in a small heap; a bulk write sends them several times."""
TYPES = {pa.int64(): "BIGINT", pa.int32(): "INT", pa.date32(): "DATE", pa.string(): "STRING"}


class Log(Protocol):
    """A table or topic of one bucket to which rows are appended."""

    def create(self, name: str) -> None: ...

    def append(self, name: str, number: int) -> float:
        """One batch of 1,000 rows, until it is acknowledged."""

    def append_by(self, name: str, writers: int, batches: int, *, waits: bool) -> float:
        """Batches of several writers. Without ``waits`` many are under way, and all acknowledged at the end."""

    def bulk(self, name: str) -> float: ...

    def read(self, name: str, columns: Sequence[str] | None) -> float: ...

    def log_bytes(self, name: str) -> int: ...


def batch_of(rows: pa.Table, number: int) -> pa.Table:
    return rows.slice(number * BATCH_ROWS % (rows.num_rows - BATCH_ROWS + 1), BATCH_ROWS).combine_chunks()


def file_bytes(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern) if path.is_file())


def touch(rows: pa.Table) -> None:
    """A look at each page of the rows: what is only mapped is read now."""
    for column in rows.columns:
        for chunk in column.chunks:
            for buffer in chunk.buffers():
                if buffer is not None and buffer.size:
                    np.frombuffer(buffer, np.uint8)[::4096].sum()


def _by_threads(works: Sequence[Callable[[], object]]) -> float:
    with ThreadPoolExecutor(len(works)) as pool:
        return timed(lambda: [future.result() for future in [pool.submit(work) for work in works]])


class Ours:
    """Durable when a call returns: each file is fsynced, and its directory."""

    def __init__(self, folder: Path, rows: pa.Table) -> None:
        self._folder = folder
        self._rows = rows

    def create(self, name: str) -> None:
        Warehouse(str(self._folder / name)).create_table("bench.rows", self._rows.schema)

    def _table(self, name: str) -> Table:
        return Warehouse(str(self._folder / name)).table("bench.rows")

    def appender(self, name: str) -> Callable[[int], float]:
        """What appends to one opened table, as a writer does that stays."""
        table = self._table(name)

        def append(number: int) -> float:
            rows = batch_of(self._rows, number)
            return timed(lambda: table.append(rows))

        return append

    def append_by(self, name: str, writers: int, batches: int, *, waits: bool) -> float:
        rows = [batch_of(self._rows, number) for number in range(100)]
        table = self._table(name)
        table.append(rows[0])
        if waits:

            def work(first: int) -> None:
                for number in range(first, first + batches):
                    table.append(rows[number % len(rows)])

            return _by_threads([lambda first=writer * batches: work(first) for writer in range(writers)])

        def send() -> None:
            with table.writer() as writer:

                def work(first: int) -> None:
                    for number in range(first, first + batches):
                        writer.send(rows[number % len(rows)])

                _by_threads([lambda first=number * batches: work(first) for number in range(writers)])

        return timed(send)

    def append(self, name: str, number: int) -> float:
        return self.appender(name)(number)

    def bulk(self, name: str) -> float:
        table = self._table(name)
        return timed(lambda: table.append(self._rows))

    def read(self, name: str, columns: Sequence[str] | None) -> float:
        def run() -> None:
            rows = self._table(name).to_arrow(columns=columns)
            touch(rows)
            _require_rows(rows.num_rows, self._rows.num_rows)

        return timed(run)

    def log_bytes(self, name: str) -> int:
        return file_bytes(self._folder / name, "**/*")


class Kafka:
    """``acks=all``: a leader without followers answers when the batch is in its page cache."""

    def __init__(self, address: str, data: Path, rows: pa.Table, topic: Mapping[str, str] | None = None) -> None:
        self._connection = {"bootstrap.servers": address, "log_level": 0}  # it would say that the server has ended
        self._data = data
        self._rows = rows
        self._topic = dict(topic or {})
        self._kept = self._producer()

    def _producer(self) -> Any:
        from confluent_kafka import Producer

        return Producer({**self._connection, "acks": "all"})

    def create(self, name: str) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient(self._connection)
        made = admin.create_topics([NewTopic(name, 1, 1, config=self._topic)])
        for future in made.values():
            future.result(30)
        self._kept.list_topics(name)

    def append(self, name: str, number: int) -> float:
        rows = batch_of(self._rows, number)
        return timed(lambda: self._send_all(self._kept, name, [rows], waits=True))

    def append_by(self, name: str, writers: int, batches: int, *, waits: bool) -> float:
        rows = [batch_of(self._rows, number) for number in range(100)]
        producers = [self._producer() for _ in range(writers)]
        for producer in producers:
            self._send_all(producer, name, rows[:1], waits=True)
        sent = [rows[number % len(rows)] for number in range(batches)]
        return _by_threads([lambda p=p: self._send_all(p, name, sent, waits=waits) for p in producers])

    @staticmethod
    def _send_all(producer: Any, name: str, tables: Sequence[pa.Table], *, waits: bool) -> None:
        errors: list[Any] = []

        def answered(error: Any, _message: Any) -> None:
            if error is not None:
                errors.append(error)

        for rows in tables:
            for batch in rows.to_batches():
                while len(producer) >= IN_FLIGHT_MAX:
                    producer.poll(0.005)
                producer.produce(name, batch.serialize().to_pybytes(), on_delivery=answered)
            if waits:
                producer.flush()
        if producer.flush() or errors:
            raise RuntimeError(f"Kafka refused batches: {errors[:1]}")

    def bulk(self, name: str) -> float:
        batches = self._rows.to_batches(max_chunksize=KAFKA_MESSAGE_ROWS)
        tables = [pa.Table.from_batches([batch]) for batch in batches]
        return timed(lambda: self._send_all(self._producer(), name, tables, waits=False))

    def read(self, name: str, columns: Sequence[str] | None) -> float:
        """Whole messages come over the network; columns are chosen after that, without a copy."""
        from confluent_kafka import Consumer, TopicPartition

        def run() -> None:
            consumer = Consumer({**self._connection, "group.id": name, "enable.auto.commit": False})
            partition = TopicPartition(name, 0, 0)
            left = consumer.get_watermark_offsets(partition)[1]
            consumer.assign([partition])
            batches: list[pa.RecordBatch] = []
            while left:
                for message in consumer.consume(min(left, 500), 1.0):
                    if message.error():
                        raise RuntimeError(str(message.error()))
                    batches.append(pa.ipc.read_record_batch(pa.py_buffer(message.value()), self._rows.schema))
                    left -= 1
            rows = pa.Table.from_batches(batches)
            touch(rows if columns is None else rows.select(columns))
            consumer.close()
            _require_rows(rows.num_rows, self._rows.num_rows)

        return timed(run)

    def log_bytes(self, name: str) -> int:
        return file_bytes(self._data, f"{name}-0/*.log")

    def upsert(self, name: str, rows: pa.Table, key: str) -> float:
        """A message a row, as JSON by its key: what a compacted topic takes."""
        messages = [(str(row[key]), json.dumps(row, default=str)) for row in rows.to_pylist()]
        producer = self._producer()

        def run() -> None:
            for number, (name_of_key, text) in enumerate(messages):
                producer.produce(name, text, name_of_key)
                if number % 1000 == 0:
                    producer.poll(0)
            if producer.flush():
                raise RuntimeError("Kafka did not answer for all messages")

        return timed(run)


class Fluss:
    """The Java client in a JVM of its own. A server without copies elsewhere answers from its page cache."""

    def __init__(self, address: str, data: Path, scratch: Path, class_path: str) -> None:
        self._data = data
        self._scratch = scratch
        self._row_counts: dict[str, int] = {}
        self._schemas: dict[str, pa.Schema] = {}
        command = ["java", "-Xmx3g", *OPENS, "-cp", class_path, "FlussDriver", address]
        self._errors = (scratch / "fluss-client.log").open("ab")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )

    def close(self) -> None:
        self._process.communicate()  # the driver ends with its input
        self._errors.close()

    def ask(self, *words: object) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*words, sep="\t", file=self._process.stdin, flush=True)
        status, _, answer = self._process.stdout.readline().rstrip("\n").partition("\t")
        if status != "ok":
            raise RuntimeError(f"Fluss's client: {answer or 'it has ended'}")
        return float(answer)

    def load(self, name: str, rows: pa.Table) -> None:
        """The rows as objects of the client, by a file of texts between tabs."""
        path = self._scratch / "rows.tsv"
        selected = ", ".join(_as_text(field) for field in rows.schema)
        duckdb.from_arrow(rows.slice(0, FLUSS_ROWS_MAX)).project(selected).to_csv(
            str(path), sep="\t", header=False, quotechar="", escapechar=""
        )
        self.ask("load", name, path, columns_text(rows.schema))
        path.unlink()
        self._row_counts[name] = rows.num_rows
        self._schemas[name] = rows.schema

    def create(self, name: str, *, like: str = "rows", key: str = "-") -> None:
        self.ask("create", name, key, columns_text(self._schemas[like]))

    def append(self, name: str, number: int) -> float:
        return self.ask("append", name, "rows", number)

    def append_by(self, name: str, writers: int, batches: int, *, waits: bool) -> float:
        return self.ask("append-by", name, "rows", writers, batches, str(waits).lower())

    def bulk(self, name: str) -> float:
        return self.ask("bulk", name, "rows", -(-self._row_counts["rows"] // FLUSS_ROWS_MAX))

    def read(self, name: str, columns: Sequence[str] | None) -> float:
        return self.ask("read", name, ";".join(columns or "-"), self._row_counts["rows"])

    def log_bytes(self, name: str) -> int:
        return file_bytes(self._data, f"fluss/{name}-*/log-*/*.log")

    def upsert(self, name: str, rows: pa.Table) -> float:
        self.load("changes", rows)
        return self.ask("upsert", name, "changes")

    def lookup(self, name: str, count: int, at_a_time: int) -> float:
        """Seconds for random keys of what was loaded as ``rows``."""
        return self.ask("lookup", name, "rows", count, at_a_time)


def columns_text(schema: pa.Schema) -> str:
    return ";".join(f"{field.name} {TYPES.get(field.type, 'DECIMAL')}" for field in schema)


def _as_text(field: pa.Field) -> str:
    if pa.types.is_decimal(field.type):
        return f"CAST({field.name} * {10**field.type.scale} AS BIGINT)"
    return f"{field.name} - DATE '1970-01-01'" if pa.types.is_date(field.type) else field.name


def _require_rows(found: int, written: int) -> None:
    if found != written:
        raise AssertionError(f"{found:,} rows were read, {written:,} written")
