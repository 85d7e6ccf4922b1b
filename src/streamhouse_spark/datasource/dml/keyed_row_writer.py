"""UPDATE, DELETE and MERGE of primary-key tables: tasks stage the changed rows, and the driver commits them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from streamhouse_spark.config.spark_options import WriteOptions
from streamhouse_spark.core.python_values import to_python
from streamhouse_spark.datasource.dml.row_changes import KIND, read_name
from streamhouse_spark.datasource.worker import release_memory_after
from streamhouse_spark.datasource.write.staging_writer import (
    StagedCommitMessage,
    merge_staged_messages,
    require_messages,
)
from streamhouse_spark.datasource.write.upsert_staging import KeyedStagingPlan, commit_intents
from streamhouse_spark.errors import SchemaMismatchError
from streamhouse_spark.keys.key_codec import encode_keys
from streamhouse_spark.log.read_version import READING, ReadVersion
from streamhouse_spark.warehouse.process_cache import Connection
from streamhouse_spark.write.upsert_intents import IntentWrite

_PART_PROPERTY: Final = "streamhouse.part"
"""Set by Java if a task passes its rows in several parts."""


class KeyedRowWriter(DataSourceArrowWriter):
    """Commits the changes of a statement atomically.

    **Commit point:** the one commit record. The commit fails if rows that the statement depends on changed. A task
    calls `write` once per part of its rows. An insert-only MERGE sends only the table's columns.
    """

    def __init__(
        self, connection: Connection, name: str, read: ReadVersion, schema: StructType, *, is_clustered: bool = False
    ) -> None:
        table = connection.table(name)
        has_kinds = KIND in schema.fieldNames()
        read_names = {read_name(column) for column in table.state.primary_key} if has_kinds else set()
        frame = StructType([field for field in schema.fields if field.name not in read_names])
        options = WriteOptions(row_kind_column=KIND if has_kinds else None)
        self._staging = KeyedStagingPlan.of(
            connection, table, frame, options, write=IntentWrite(rewrites=True), is_clustered=is_clustered
        )
        self._has_kinds = has_kinds
        self._read = read

    @release_memory_after
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task, or one part of them. Raises the errors of `KeyedStagingPlan.stage`.

        For a part, only intents are staged. The commit computes the changes, because a later part may contain newer
        rows with the same keys.
        """
        staging = self._staging
        if not self._has_kinds:
            return staging.stage(iterator)
        context = TaskContext.get()
        if context is not None and context.getLocalProperty(_PART_PROPERTY) is not None:
            staging = replace(staging, is_clustered=False)
        return staging.stage(set_key_columns(batch, staging.key, staging.table) for batch in iterator)

    @release_memory_after
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the staged rows. If no row is touched, nothing is committed and nothing can conflict."""
        staged_messages = require_messages(messages, StagedCommitMessage)
        if merge_staged_messages(staged_messages) is not None:
            staging = self._staging
            table = staging.connection.table_by_uuid(staging.table, staging.table_uuid)
            table.log.require_history([self._read.history], READING)
            commit_intents(table, staging, staged_messages, transaction=None, read=self._read)


def set_key_columns(batch: pa.RecordBatch, key: Sequence[str], table: str) -> pa.RecordBatch:
    """Return the rows with the key of the affected row in the key columns: the read key for a delete.

    Raises `SchemaMismatchError` if an update changes a primary key.
    """
    kinds = batch.column(KIND)
    read = [batch.column(read_name(name)) for name in key]
    written = [batch.column(name) for name in key]
    _require_unchanged_keys(kinds, key, read, written, table)
    deleted = pc.equal(kinds, "delete")
    keys = [pc.if_else(deleted, *pair) for pair in zip(read, written, strict=True)]
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns |= zip(key, keys, strict=True)
    read_columns = {read_name(name) for name in key}
    return pa.RecordBatch.from_pydict({name: c for name, c in columns.items() if name not in read_columns})


def _require_unchanged_keys(
    kinds: pa.Array, key: Sequence[str], read: Sequence[pa.Array], written: Sequence[pa.Array], table: str
) -> None:
    updated = pc.equal(kinds, "update")
    before, after = ([column.filter(updated) for column in columns] for columns in (read, written))
    if not len(before[0]):
        return
    differs = np.ones(len(before[0]), np.bool_)
    if not any(column.null_count for column in after):
        differs = pc.not_equal(encode_keys(before), encode_keys(after)).to_numpy(zero_copy_only=False)
    if not differs.any():
        return
    row = int(np.argmax(differs))
    changes = (
        f"{name} = {to_python(a[row])!r} would become {to_python(b[row])!r}"
        for name, a, b in zip(key, before, after, strict=True)
    )
    raise SchemaMismatchError(
        f"table {table}: an UPDATE changes the primary key ({', '.join(changes)}), which is not supported; nothing was "
        "written; do not assign these columns, or INSERT rows with new keys and DELETE the old rows"
    )
