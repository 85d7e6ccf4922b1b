"""Rows of a small streaming batch: tasks return them in their messages, and the driver stages them at commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.log.staging import INLINE_BYTES_MAX

if TYPE_CHECKING:
    from streamhouse_spark.datasource.write.staging_writer import StagingPlan
    from streamhouse_spark.datasource.write.upsert_staging import KeyedStagingPlan

_STAGED: Final = "staged"
"""Placeholder for the query id in messages with staged rows. Real query ids are UUIDs."""


@dataclass(frozen=True, slots=True)
class InlineRows(WriterCommitMessage):
    """All rows of a task. The JVM serialises them without a Python worker, and writes a pickled call of this class."""

    data: bytes
    """An Arrow IPC stream; empty if the task had no row."""
    query_id: str | None

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self.data:
            yield from pa.ipc.open_stream(self.data)


def stage_inline_rows(
    plan: StagingPlan | KeyedStagingPlan, messages: Sequence[WriterCommitMessage | None]
) -> list[WriterCommitMessage | None]:
    """Stage inline rows in task order. Rows of adjacent tasks are staged together, like the rows of one task.

    Raises `SchemaMismatchError` for values that do not fit.
    """
    staged_messages: list[WriterCommitMessage | None] = []
    for query_id, neighbours in groupby(messages, _query):
        if query_id is _STAGED:
            staged_messages += neighbours
            continue
        inline_messages = (message for message in neighbours if isinstance(message, InlineRows))
        batches = (batch for message in inline_messages for batch in message.batches())
        staged_messages.append(plan.stage(batches, query_id, inline_bytes_max=INLINE_BYTES_MAX))
    return staged_messages


def _query(message: WriterCommitMessage | None) -> str | None:
    return message.query_id if isinstance(message, InlineRows) else _STAGED
