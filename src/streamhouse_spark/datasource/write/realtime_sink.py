"""The sink of real-time mode: its tasks commit while they run, and what is stored says how far they came.

A batch there has no end when it begins, so the number of a batch says nothing about its rows. The rows' places in the
log that the query reads do: each commit is a transaction of (query, table that is read, bucket), whose version is the
offset behind its last row and which has to follow the offset at which its rows begin. So whoever repeats rows, a query
that was started again or an older one that still runs, adds none twice and leaves none out. A task that Spark runs
again asks first how far the rows of the query are stored by now.

**Commit point:** the record of each commit, for the rows of one bucket of the source.
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
from streamhouse_spark.datasource.worker_memory import release_memory
from streamhouse_spark.datasource.write.sink_transactions import Place, SourceProgress
from streamhouse_spark.datasource.write.spark_writer import StreamhouseStreamWriter
from streamhouse_spark.datasource.write.staging_writer import StagedCommitMessage, format_counts, require_planned
from streamhouse_spark.datasource.write.upsert_staging import KeyedStagingPlan, commit_intents
from streamhouse_spark.log.commits.history_epochs import HistoryPoint
from streamhouse_spark.log.progress_ids import places_of
from streamhouse_spark.log.segments.writer import StagedSegment
from streamhouse_spark.log.staging import INLINE_BYTES_MAX
from streamhouse_spark.storage.request_metrics import METER
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.process_cache import Connection

PLACES: Final = 5
"""Columns in front of the rows: the bucket of the source, the offsets at which its rows begin and end, and the number
and the attempt of the source's newest record when they were read, null where it had none. Offset -1 is the beginning
of a bucket of which nothing is stored."""
STORED_KEY: Final = "streamhouse.stored"
"""Stands in a message before the offsets up to which rows are stored: Java looks for it."""


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
        rows: SourceProgress,
    ) -> None:
        super().__init__(connection, name, options, checkpoint, StructType(schema.fields[PLACES:]))
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Commit the rows. Raises `CommitConflictError` where others of the same query did so, or do.

        Without rows the message says which of the source are stored.
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
        """Commit the rows of one bucket of the source. Returns the segments that they were staged in."""
        bucket, begin, end, number, attempt = (rows.column(i)[0].as_py() for i in range(PLACES))
        record = HistoryPoint(number, attempt) if attempt is not None else None
        transaction = self._rows.transaction(self._options.app_id, Place(bucket, begin, end), record)
        plan, table = self._plan, self._open_table()
        data_batches = rows.select(range(PLACES, rows.num_columns)).to_batches()
        message = plan.message(data_batches, inline_bytes_max=INLINE_BYTES_MAX)
        require_planned(table, [message])
        if isinstance(plan, KeyedStagingPlan):
            commit_intents(table, plan, [message], transaction=transaction)
        elif message.staged is not None:
            table.commit(message.staged, transaction=transaction)
        return message.staged.segments if message.staged is not None else ()

    def _report_stored(self) -> StagedCommitMessage:
        """Return the offset of each bucket of the source up to which rows are stored by now."""
        app_id = self._options.app_id or self._rows.query_id
        transactions = self._open_table().refresh().transactions
        versions = {place: transactions[place].version for place in places_of({app_id}, transactions)}
        offsets = {
            place.rpartition("/")[2]: version for place, version in versions.items() if self._is_of_source(place)
        }
        return StagedCommitMessage(None, counts=STORED_KEY + json.dumps(offsets))

    def _is_of_source(self, place: str) -> bool:
        return place.split("/")[-2] == self._rows.source

    def _open_table(self) -> Table:
        return self._plan.connection.table_by_uuid(self._plan.table, self._plan.table_uuid)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: the rows are stored."""
