"""Progress of a real-time stream into a table, as recorded in the table.

A *mark* records that a query writes in real-time mode, and how many of its batches ended. The mark is written before
the first row. It advances after each batch, before Spark stores the end of the batch. If a checkpoint's batch id is
ahead of the mark, the table was restored from an older copy, and the rows of some batches are missing. The *progress*
of a source bucket records which of its rows are stored. It is valid only together with its query's mark, and only if
the source still has the record that was its latest when the rows were read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamhouse_spark.config.spark_options import parse_stream_write_options
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import Transaction
from streamhouse_spark.datasource.write.sink_transactions import SourceProgress
from streamhouse_spark.errors import DifferentHistoryError, TableNotFoundError, TransactionConflictError
from streamhouse_spark.log.actions import Action, Append, ForgetTransactions
from streamhouse_spark.log.catalog.names import find_other_table
from streamhouse_spark.log.history_index import HistoryPoint, HistoryRelation
from streamhouse_spark.log.state import TableState
from streamhouse_spark.log.transactions import (
    find_stored_version,
    hash_name,
    make_progress_id,
    select_progress_ids,
    source_record_of,
)
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.process_cache import Connection


def begin_real_time_write(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return bucket → stored source offset as ``offsets``. Buckets without stored rows are absent.

    Commit point and errors are those of `RealTimeBatch.begin`.
    """
    batch = _open_batch(connection, args)
    source = connection.table_by_uuid(args["source_name"], args["source"])
    offsets = batch.begin(source, args["buckets"])
    return {"offsets": {str(bucket): offset for bucket, offset in offsets.items()}}


def end_real_time_write(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Record that a batch ended. See `RealTimeBatch.end` for the commit point."""
    _open_batch(connection, args).end()
    return {}


def _open_batch(connection: Connection, args: Mapping[str, Any]) -> RealTimeBatch:
    options = parse_stream_write_options(args["options"])
    table = connection.table_by_uuid(args["name"], args["uuid"])
    return RealTimeBatch(table, SourceProgress(args["query"], args["source"]), options.app_id, args["batch"])


@dataclass(frozen=True, slots=True)
class RealTimeBatch:
    """A batch of a query. ``number`` is the batch id in its checkpoint."""

    table: Table
    rows: SourceProgress
    app_id: str | None
    number: int

    @property
    def _mark(self) -> Transaction:
        return self.rows.mark(self.app_id, self.number)

    def begin(self, source: Table, num_buckets: int) -> Mapping[int, int]:
        """Return bucket → stored offset of the source. Buckets without stored rows are absent.

        **Commit point:** the record that adds the query's mark, if the table has no mark yet. The record also deletes
        the progress of an earlier query with this ``txnAppId``.

        Raises `TransactionConflictError` for a query that wrote micro-batches, and for another query's ``txnAppId``.
        Raises `TableNotFoundError` or `DifferentHistoryError` if an earlier batch is missing, and
        `DifferentHistoryError` if stored rows are from another history of the source.
        """
        self._require_no_micro_batches(self.table.refresh())
        progress_ids = [make_progress_id(self._mark.app_id, self.rows.source, bucket) for bucket in range(num_buckets)]

        def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
            self.table.require_not_dropped(state)
            if self._require_all_before(state):
                return (Append((), ()),)
            obsolete = [
                *select_progress_ids({self._mark.app_id}, state.transactions),
                *(progress_id for progress_id in progress_ids if hash_name(progress_id) in state.past_transactions),
            ]
            return (*((ForgetTransactions(tuple(obsolete)),) if obsolete else ()), Append((), ()))

        state = self.table.log.commit(plan, transaction=self._mark).state
        offsets = {
            bucket: find_stored_version(state.transactions, state.past_transactions, progress_id)
            for bucket, progress_id in enumerate(progress_ids)
        }
        stored = {bucket: offset for bucket, offset in offsets.items() if offset is not None}
        records = {bucket: _source_record(state, progress_ids[bucket]) for bucket in stored}
        self._require_same_source(source, stored, records)
        return stored

    def end(self) -> None:
        """Record that the batch ended. Call this before Spark stores the end. **Commit point:** the mark's record.

        Raises `CommitConflictError` if another run of the query is ahead.
        """

        def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
            self.table.require_not_dropped(state)
            return (Append((), ()),)

        ended = self.rows.mark(self.app_id, self.number + 1)
        mark = Transaction(ended.app_id, ended.version, ended.owner, follows=self._mark.version)
        self.table.log.commit(plan, transaction=mark)

    def _require_no_micro_batches(self, state: TableState) -> None:
        app_id, query = self._mark.app_id, self.rows.query_id
        entry, past = state.transactions.get(app_id), state.past_transactions.get(hash_name(app_id))
        if entry.owner == query if entry is not None else past is not None and past.owner_sum == hash_name(query):
            raise TransactionConflictError(
                f"application id {app_id!r} of {self.table.name} belongs to query {query}, which wrote micro-batches, "
                "so a real-time trigger cannot determine which rows are stored; continue with a micro-batch trigger, "
                "or start with a new checkpointLocation (and txnAppId) and with startingOffsets after the stored rows"
            )

    def _require_all_before(self, state: TableState) -> bool:
        """Raise if an earlier batch is missing in the table. Returns whether the table has the query's mark."""
        mark = self._mark
        stored = find_stored_version(state.transactions, state.past_transactions, mark.app_id)
        if stored == 0 or (stored is None and self.number == 0):  # mark of an older package version, or first batch
            return stored is not None
        name = f"{self.table.name} ({self.table.uuid})"
        verb = "upsert" if state.primary_key else "append"
        entry = f"Transaction({mark.app_id!r}, {mark.version}, {mark.owner!r})"
        go_on = f"to continue without the rows of earlier batches, first run Table.{verb}([], transaction={entry})"
        other = find_other_table(self.table.storage, self.table.path, self.table.uuid) if stored is None else None
        if other is not None:
            raise TableNotFoundError(
                f"batch {self.number} of stream {mark.app_id}: table {name} has no earlier batches, and its name "
                f"belonged to table {other} before: the stream's table was dropped and created again, or renamed. "
                f"Nothing was written. Start with a new checkpointLocation to write all rows; or, {go_on}"
            )
        stored_batches = "no earlier batches" if stored is None else f"only the batches below {stored - 1}"
        raise DifferentHistoryError(
            f"batch {self.number} of stream {mark.app_id}: table {name} has {stored_batches}, but by the query's "
            "checkpoint all earlier batches are done: the table was restored from an older copy, or the query wrote "
            "to another table before. Nothing was written. Start with a new checkpointLocation (and txnAppId), and set "
            f"startingOffsets to the end of the stored rows; or, {go_on}"
        )

    def _require_same_source(
        self, source: Table, stored: Mapping[int, int], records: Mapping[int, HistoryPoint | None]
    ) -> None:
        """Raise `DifferentHistoryError` if the source no longer has the stored rows."""
        if not stored:
            return
        ends = source.refresh().ends
        for bucket, offset in stored.items():
            if offset > ends[bucket]:
                raise self._other_source_error(source.name, bucket, offset, f"where the bucket ends at {ends[bucket]}")
        for record in {record for record in records.values() if record is not None}:
            if source.log.relation(record) is HistoryRelation.OTHER:
                bucket = next(bucket for bucket, candidate in records.items() if candidate == record)
                difference = (
                    f"whose log does not have record {record.number} of attempt {record.attempt} that the rows are from"
                )
                raise self._other_source_error(source.name, bucket, stored[bucket], difference)

    def _other_source_error(self, source: str, bucket: int, offset: int, difference: str) -> DifferentHistoryError:
        return DifferentHistoryError(
            f"batch {self.number} of stream {self._mark.app_id} into {self.table.name}: the table has rows of bucket "
            f"{bucket} up to offset {offset} of {source}, {difference}: {source} was restored from an older copy. "
            "Nothing was written. Start with a new checkpointLocation (and txnAppId), and set startingOffsets: all "
            f"rows after them are written, even if {self.table.name} already has them. The end offsets of {source} in "
            "the copy write each row once"
        )


def _source_record(state: TableState, progress_id: str) -> HistoryPoint | None:
    entry = state.transactions.get(progress_id)
    return source_record_of(entry.batch) if entry is not None else None
