"""The sink of real-time mode: tasks commit while they run, and the stored source offsets record their progress.

A real-time batch has no end when it starts, so its id does not identify its rows. The offsets of the rows in the source
log do. Each commit is a transaction of (query, source table, bucket). Its version is the offset after its last row, and
it must follow the offset at which its rows start. A restarted query or a zombie task therefore adds no row twice and
skips no row. A retried task first reads which rows of the query are stored.

**Commit point:** the record of each commit, for the rows of one source bucket.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from streamhouse_spark.config.spark_options import StreamWriteOptions
from streamhouse_spark.datasource.worker import release_memory
from streamhouse_spark.datasource.write.sink_transactions import SourceProgress, SourceRows
from streamhouse_spark.datasource.write.spark_writer import StreamhouseStreamWriter
from streamhouse_spark.datasource.write.staging_writer import StagedCommitMessage, format_counts, require_planned
from streamhouse_spark.datasource.write.upsert_staging import KeyedStagingPlan, commit_intents
from streamhouse_spark.log.history_index import HistoryPoint
from streamhouse_spark.log.segments.writer import StagedSegment
from streamhouse_spark.log.staging import INLINE_BYTES_MAX
from streamhouse_spark.log.transactions import select_progress_ids
from streamhouse_spark.storage.request_metrics import METER
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.process_cache import Connection

NUM_SOURCE_COLUMNS: Final = 5
"""Number of extra columns before the table's columns: source bucket, start and end offset, and number and attempt of
the source's latest record when the rows were read (null if it had none). A start offset of -1 means that no row of the
bucket is stored.
"""
STORED_KEY: Final = "streamhouse.stored"
"""Prefix of the stored offsets in a message. Java finds them by this prefix."""


class RealTimeStreamWriter(StreamhouseStreamWriter):
    """Writes the rows of one source log exactly once. Each call of `write` commits.

    Each row starts with `NUM_SOURCE_COLUMNS` extra columns.
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        options: StreamWriteOptions,
        checkpoint: str | None,
        schema: StructType,
        *,
        rows: SourceProgress,
    ) -> None:
        super().__init__(connection, name, options, checkpoint, StructType(schema.fields[NUM_SOURCE_COLUMNS:]))
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Commit the rows, or without rows report which source rows are stored.

        Raises `CommitConflictError` if another run of the query commits the same rows.
        """
        batches = [batch for batch in iterator if batch.num_rows]
        if not batches:
            return self._report_stored()
        before = METER.total()
        rows = pa.Table.from_batches(batches)
        buckets = rows.column(0)
        segments = [
            segment
            for bucket in pc.unique(buckets).to_pylist()
            for segment in self._commit(rows.filter(pc.equal(buckets, bucket)))
        ]
        release_memory()
        return StagedCommitMessage(None, counts=format_counts(segments, (METER.total() - before).total))

    def _commit(self, rows: pa.Table) -> Sequence[StagedSegment]:
        """Commit the rows of one source bucket. Returns the segments that contain them."""
        bucket, begin, end, number, attempt = (rows.column(i)[0].as_py() for i in range(NUM_SOURCE_COLUMNS))
        record = HistoryPoint(number, attempt) if attempt is not None else None
        transaction = self._rows.transaction(self._options.app_id, SourceRows(bucket, begin, end), record)
        plan, table = self._plan, self._open_table()
        data_batches = rows.select(range(NUM_SOURCE_COLUMNS, rows.num_columns)).to_batches()
        message = plan.stage(data_batches, inline_bytes_max=INLINE_BYTES_MAX)
        require_planned(table, [message])
        if isinstance(plan, KeyedStagingPlan):
            commit_intents(table, plan, [message], transaction=transaction)
        elif message.staged is not None:
            table.log_writer.commit(message.staged, transaction=transaction)
        return message.staged.segments if message.staged is not None else ()

    def _report_stored(self) -> StagedCommitMessage:
        app_id = self._options.app_id or self._rows.query_id
        transactions = self._open_table().refresh().transactions
        versions = {name: transactions[name].version for name in select_progress_ids({app_id}, transactions)}
        parsed = ((*progress_id.split("/")[-2:], version) for progress_id, version in versions.items())
        offsets = {bucket: version for source, bucket, version in parsed if source == self._rows.source}
        return StagedCommitMessage(None, counts=STORED_KEY + json.dumps(offsets))

    def _open_table(self) -> Table:
        return self._plan.connection.table_by_uuid(self._plan.table, self._plan.table_uuid)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: the rows are already committed."""
