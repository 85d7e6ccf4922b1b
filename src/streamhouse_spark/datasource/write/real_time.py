"""The sink of real-time mode: its tasks commit while they run, and what is stored says how far they came.

A batch there has no end when it begins, so the number of a batch says nothing about its rows. The rows' places in the
log that the query reads do: each commit is a transaction of (query, table that is read, bucket), whose version is the
offset behind its last row and which has to follow the offset at which its rows begin. So whoever repeats rows, a query
that was started again or an older one that still runs, adds none twice and leaves none out.

**Commit point:** the record of each commit, for the rows of one bucket of the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from streamhouse_spark.config.spark_options import StreamWriteOptions
from streamhouse_spark.datasource.worker_memory import spare_modules
from streamhouse_spark.datasource.write.keyed_staging import KeyedStagingPlan, commit_intents
from streamhouse_spark.datasource.write.query_identity import SourceOfRows
from streamhouse_spark.datasource.write.staging_task import StagedMessage, require_planned
from streamhouse_spark.datasource.write.writer import StreamhouseStreamWriter
from streamhouse_spark.log.append import INLINE_BYTES_MAX
from streamhouse_spark.warehouse.connection import Connection

PLACES: Final = 3
"""Columns in front of the rows: the bucket of the source, and the offsets at which its rows begin and end. Offset -1 is
the beginning of a bucket of which nothing is stored."""


class RealTimeStreamWriter(StreamhouseStreamWriter):
    """Writes rows of one log, each once, as its tasks hand them over: each call of `write` commits.

    Rows have `PLACES` columns in front.
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        options: StreamWriteOptions,
        checkpoint: str | None,
        schema: StructType,
        *,
        rows: SourceOfRows,
    ) -> None:
        super().__init__(connection, name, options, checkpoint, StructType(schema.fields[PLACES:]))
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Commit the rows. Raises `CommitConflictError` where others of the same query did so, or do."""
        rows = pa.Table.from_batches(iterator)
        buckets = rows.column(0)
        for bucket in pc.unique(buckets).to_pylist():
            self._commit(rows.filter(pc.equal(buckets, bucket)))
        spare_modules()
        return StagedMessage(None)

    def _commit(self, rows: pa.Table) -> None:
        bucket, begin, end = (rows.column(i)[0].as_py() for i in range(PLACES))
        transaction = self._rows.transaction(self._options.app_id, bucket, begin, end)
        plan = self._plan
        table = plan.connection.table_by_uuid(plan.table, plan.table_uuid)
        given = rows.select(range(PLACES, rows.num_columns)).to_batches()
        message = plan.message(given, inline_bytes_max=INLINE_BYTES_MAX)
        require_planned(table, [message])
        if isinstance(plan, KeyedStagingPlan):
            commit_intents(table, plan, [message], transaction=transaction)
        elif message.staged is not None:
            table.commit(message.staged, transaction=transaction)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: the rows are stored."""
