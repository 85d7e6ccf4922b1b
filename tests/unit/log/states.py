"""States and records made by hand, for tests of pure functions."""

from __future__ import annotations

import pyarrow as pa

from streamhouse_spark import Transaction
from streamhouse_spark.log.actions import Action, Append, Create
from streamhouse_spark.log.record import Record
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.state import TableState, fold
from streamhouse_spark.schema.table_schema import TableSchema

UUID = "0" * 32
SCHEMA = TableSchema.of(pa.schema([("id", pa.int64())]))


def segment(
    base: int, rows: int, *, bucket: int = 0, commit: int = 2, uuid: str | None = None, time_ms: int = 0,
    size_bytes: int = 100, schema_id: int = 1,
) -> Segment:  # fmt: skip
    """An object where it has a uuid, else inline rows."""
    return Segment(
        bucket=bucket, base_offset=base, num_rows=rows, size_bytes=size_bytes, schema_id=schema_id, commit=commit,
        first_time_ms=time_ms, last_time_ms=time_ms, uuid=uuid, inline=None if uuid else (0, size_bytes),
    )  # fmt: skip


def record(number: int, *actions: Action, transaction: Transaction | None = None, time_ms: int = 0) -> Record:
    return Record(number, UUID, f"attempt-{number}", time_ms, actions, transaction)


def created(buckets: int = 1) -> TableState:
    return fold(None, record(1, Create("d.t", SCHEMA, (), buckets, {}, "lake/d/t")))


def appended(*segments: Segment, buckets: int = 1) -> TableState:
    """A table with these segments, one record each."""
    state = created(buckets)
    for added in segments:
        state = fold(state, record(state.version + 1, Append((added,))))
    return state
