"""Rows of a stream's small batch: tasks carry them to the driver in their messages, and the commit stages them."""

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
"""In the place of the query of a message whose rows are staged. No query has such an id: theirs are UUIDs."""


@dataclass(frozen=True, slots=True)
class InlineRows(WriterCommitMessage):
    """All rows of one task, which the JVM made without a Python worker: it writes a pickled call of this class."""

    data: bytes
    """A stream of Arrow's IPC format; nothing if the task had no row."""
    query_id: str | None

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self.data:
            yield from pa.ipc.open_stream(self.data)


def stage_inline_rows(
    plan: StagingPlan | KeyedStagingPlan, messages: Sequence[WriterCommitMessage | None]
) -> list[WriterCommitMessage | None]:
    """Stage the carried rows in the order of the tasks: those of neighbours together, as if of one task.

    Raises `SchemaMismatchError` for values that do not fit.
    """
    staged_messages: list[WriterCommitMessage | None] = []
    for query_id, neighbours in groupby(messages, _query):
        if query_id is _STAGED:
            staged_messages += neighbours
            continue
        inline_messages = (message for message in neighbours if isinstance(message, InlineRows))
        batches = (batch for message in inline_messages for batch in message.batches())
        staged_messages.append(plan.message(batches, query_id, inline_bytes_max=INLINE_BYTES_MAX))
    return staged_messages


def _query(message: WriterCommitMessage | None) -> str | None:
    return message.query_id if isinstance(message, InlineRows) else _STAGED
