"""Batch writes and the streaming sink: tasks stage rows, and the driver commits them in one record.

**Commit point:** the one commit record. A failed task, a failed commit or an abort leaves orphan files, which garbage
collection deletes after the grace period. Abort deletes nothing, because Spark also calls it after a commit with
unknown outcome. Modules for primary-key tables are imported only for such tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from streamhouse_spark.config.spark_options import StreamWriteOptions, WriteOptions
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.worker import ErrorBoundary, release_memory_after
from streamhouse_spark.datasource.write.frame_schema import (
    merge_columns,
    merge_frame_columns,
    open_table_for_writing,
)
from streamhouse_spark.datasource.write.inline_rows import stage_inline_rows
from streamhouse_spark.datasource.write.sink_transactions import (
    QUERY_ID_PROPERTY,
    is_first_batch_of_recreated_table,
    missing_identity_error,
    query_transaction,
)
from streamhouse_spark.datasource.write.staging_writer import (
    StagedCommitMessage,
    StagingPlan,
    combine_staged_rows,
    merge_staged_messages,
    require_fitting_columns,
    require_messages,
    require_planned,
    with_task_metrics,
)
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.log.staging import StagedRows
from streamhouse_spark.log.state import TableState
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.process_cache import Connection

if TYPE_CHECKING:
    from streamhouse_spark.datasource.write.replaced_part import ReplacedPart
    from streamhouse_spark.datasource.write.upsert_staging import KeyedStagingPlan


class StreamhouseWriter(ErrorBoundary, DataSourceArrowWriter):
    """Appends a DataFrame in one record, or with ``overwrite`` also deletes all existing rows in that record.

    With ``txnAppId`` and ``txnVersion`` each version is stored once. Writes in ``foreachBatch`` do not use the identity
    of the query, because a batch may contain several writes. To make them idempotent, set a separate ``txnAppId`` per
    write, and the batch id as ``txnVersion``.
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        options: WriteOptions,
        schema: StructType,
        *,
        overwrite: bool = False,
        replaced: ReplacedPart | None = None,
        staged: str | None = None,
        is_clustered: bool = False,
    ) -> None:
        """``replaced`` is the part of the table to replace, if only a part is replaced. ``staged`` is the uuid of a
        staged table, which has no name yet. ``is_clustered`` means that Spark was requested to cluster the rows by
        bucket.
        """
        self._transaction = options.transaction
        self._overwrite = overwrite and replaced is None
        if (overwrite or replaced is not None) and (options.row_kind_column or options.partial_update):
            raise InvalidOptionError(
                f"an overwrite of {name} does not support rowKindColumn and partialUpdate, which change existing rows; "
                "omit them, or use mode('append')"
            )
        plan_options = {"overwrites": self._overwrite, "is_clustered": is_clustered}
        self._plan = _plan_staging(connection, name, schema, options, replaced=replaced, staged=staged, **plan_options)
        self._replaced = self._plan.replaced

    @release_memory_after
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return with_task_metrics(lambda: self._plan.stage(iterator))

    @release_memory_after
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        plan, table = self._plan, _open_table(self._plan)
        staged_messages = require_messages(messages, StagedCommitMessage)
        replaced, is_recorded = self._replaced, self._transaction is not None or self._overwrite
        if replaced is not None or isinstance(plan, StagingPlan):  # otherwise `commit_intents` does this
            require_planned(table, staged_messages)
        choose = None
        if replaced is not None:
            choose = replaced.choose(table.refresh(), (message.partitions for message in staged_messages))
        if not isinstance(plan, StagingPlan):
            from streamhouse_spark.datasource.write.upsert_staging import commit_intents

            if replaced is not None or is_recorded or merge_staged_messages(staged_messages) is not None:
                read = replaced.read if replaced is not None else None
                commit_intents(table, plan, staged_messages, transaction=self._transaction, read=read, choose=choose)
            return
        staged = combine_staged_rows(table, staged_messages) or _stage_no_rows(plan)
        if replaced is not None and choose is not None:
            from streamhouse_spark.dml.overwrite import commit_replacement  # imports the read modules

            fields = replaced.fields if replaced.condition is None else None
            commit_replacement(table, staged, choose, self._transaction, replaced.read, fields)
        elif staged.segments or is_recorded:
            table.log_writer.commit(staged, transaction=self._transaction, overwrite=self._overwrite)


class StreamhouseStreamWriter(ErrorBoundary, DataSourceStreamArrowWriter):
    """Exactly-once sink: replays and restarts do not store a batch of a query again.

    A batch is identified by the query id or ``txnAppId``, and by the batch id. The record that adds the rows contains
    this identity. A batch without rows commits no record, because a replay adds no rows. With ``txnAppId`` the batch
    commits a record, so that an earlier run of the query cannot later add other rows for this batch.

    Spark creates a writer from the table's name for each batch, and another writer for the commit of the batch. If the
    table was dropped and recreated in between, the batch is rejected, see `sink_transactions`. The sink cannot detect
    that a whole warehouse was deleted and recreated.
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        options: StreamWriteOptions,
        checkpoint: str | None,
        schema: StructType,
        *,
        is_clustered: bool = False,
    ) -> None:
        self._plan = _plan_staging(connection, name, schema, options, is_clustered=is_clustered)
        self._options = options
        self._checkpoint = checkpoint

    @release_memory_after
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query_id = context.getLocalProperty(QUERY_ID_PROPERTY) if context is not None else None
        return with_task_metrics(lambda: self._plan.stage(iterator, query_id))

    @release_memory_after
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        table = _open_table(self._plan)
        staged_messages = require_messages(stage_inline_rows(self._plan, messages), StagedCommitMessage)
        require_planned(table, staged_messages)
        staged = (
            combine_staged_rows(table, staged_messages)
            if isinstance(self._plan, StagingPlan)
            else merge_staged_messages(staged_messages)
        )
        transaction = query_transaction(
            self._options.app_id, batchId, {m.query_id for m in staged_messages}, self._checkpoint, self._plan.table
        )
        if transaction is None:
            if staged is None:
                return
            raise missing_identity_error(self._plan.table)
        is_recorded = is_first_batch_of_recreated_table(table, transaction) or self._options.app_id is not None
        if staged is None and is_recorded:
            staged = _stage_no_rows(self._plan)
        if staged is None:
            return
        if isinstance(self._plan, StagingPlan):
            table.log_writer.commit(staged, transaction=transaction)
            return
        from streamhouse_spark.datasource.write.upsert_staging import commit_intents

        commit_intents(table, self._plan, staged_messages, transaction=transaction)


def _plan_staging(
    connection: Connection,
    name: str,
    frame: StructType,
    options: WriteOptions | StreamWriteOptions,
    *,
    is_clustered: bool,
    overwrites: bool = False,
    replaced: ReplacedPart | None = None,
    staged: str | None = None,
) -> StagingPlan | KeyedStagingPlan:
    """Plan the staging. With ``mergeSchema``, first add the DataFrame's new columns to the table in a separate record.

    Raises the errors of `open_table_for_writing`, and `InvalidOptionError` for options that the table does not support.
    """
    table = connection.table_by_uuid(name, staged) if staged else open_table_for_writing(connection, name, frame)
    if replaced is not None:
        replaced = replaced.bind(table.state)
    if (
        options.merge_schema
        and (merged := merge_frame_columns(table, frame, options.row_kind_column)) is not table.state
    ):
        _require_writable_rows(connection, table, merged, frame, options)  # before adding columns
        merge_columns(table, frame, options.row_kind_column)
    if table.state.primary_key:
        from streamhouse_spark.datasource.write.upsert_staging import KeyedStagingPlan
        from streamhouse_spark.write.upsert_intents import IntentWrite

        plan_options: dict[str, Any] = {"write": IntentWrite(overwrites=overwrites), "is_clustered": is_clustered}
        return KeyedStagingPlan.of(connection, table, frame, options, replaced=replaced, **plan_options)
    _require_writable_rows(connection, table, table.state, frame, options)
    return StagingPlan.of(connection, table, replaced)


def _require_writable_rows(
    connection: Connection,
    table: Table,
    state: TableState,
    frame: StructType,
    options: WriteOptions | StreamWriteOptions,
) -> None:
    """Raise `SchemaMismatchError` or `InvalidOptionError` if the table in this state rejects rows of this schema."""
    if state.primary_key:
        from streamhouse_spark.datasource.write.upsert_staging import KeyedStagingPlan

        KeyedStagingPlan.of(connection, table, frame, options, state=state)
        return
    if options.row_kind_column or options.partial_update:
        option = "rowKindColumn" if options.row_kind_column else "partialUpdate"
        raise InvalidOptionError(
            f"{table.name} has no primary key, which {option} requires; omit the option, or create the table with "
            "PRIMARY KEY"
        )
    require_fitting_columns(spark_versions.arrow_schema_of(frame), state.schema, state.schemas, table.name)


def _open_table(plan: StagingPlan | KeyedStagingPlan) -> Table:
    return plan.connection.table_by_uuid(plan.table, plan.table_uuid)


def _stage_no_rows(plan: StagingPlan | KeyedStagingPlan) -> StagedRows:
    storage = plan.connection.warehouse().storage
    return StagedRows(plan.table_uuid, plan.segment_options.schema_id, (), storage.now_ms())
