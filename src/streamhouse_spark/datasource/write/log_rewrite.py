"""UPDATE, DELETE and MERGE of tables without a primary key: tasks stage new rows and name the old ones by bucket and
offset, or by lake file and position, the driver commits both in one record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from streamhouse_spark.core.offset_runs import OffsetRuns
from streamhouse_spark.core.row_ids import NO_PLACE, file_places_of, places_of
from streamhouse_spark.core.values import dataclass
from streamhouse_spark.datasource.worker_memory import sparing
from streamhouse_spark.datasource.write.changed_rows import KIND, read_name
from streamhouse_spark.datasource.write.staging_task import (
    StagedMessage,
    StagingPlan,
    combined,
    received,
    require_planned,
)
from streamhouse_spark.kv.read_base import READING, ReadBase
from streamhouse_spark.log.segments.metadata_columns import ROW_ID
from streamhouse_spark.read.file_rows import named_rows, require_named
from streamhouse_spark.schema.identity import refuse_given
from streamhouse_spark.table.row_deletion import commit_rewrite
from streamhouse_spark.warehouse.connection import Connection

_READ_ID: Final = read_name(ROW_ID.name)


@dataclass(frozen=True)
class RewriteMessage(WriterCommitMessage):
    """The new rows that a task staged, and the rows that they replace or that are deleted."""

    new: StagedMessage
    old: Mapping[int, OffsetRuns]
    """Bucket → offsets."""
    of_files: Mapping[int, OffsetRuns]
    """Place of a lake file in the snapshot that was read → positions."""


class LogRewriteWriter(DataSourceArrowWriter):
    """Commits the rows that an operation changed, all of it or nothing.

    **Commit point:** the one commit record, refused if others deleted rows that the operation read to replace or to
    delete. A task calls `write` once for each part of its rows. A MERGE that only inserts sends just the table's
    columns.
    """

    def __init__(self, connection: Connection, name: str, read: ReadBase) -> None:
        self._plan = replace(StagingPlan.of(connection, connection.table(name)), keeps_given=True)
        self._read = read

    @sparing
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the new rows. Raises `InvalidOptionError` for a row that is to change and cannot be named."""
        ids: list[pa.Array] = []
        staged = self._plan.message(self._new_rows(batch, ids) for batch in iterator)
        found = np.concatenate([np.zeros(0, np.int64), *(part.to_numpy() for part in ids)])
        require_named(self._plan.table, found)
        return RewriteMessage(staged, places_of(found), file_places_of(found))

    def _new_rows(self, batch: pa.RecordBatch, ids: list[pa.Array]) -> pa.RecordBatch:
        """Return the rows to add, in the table's columns, and put the identities of the old ones to ``ids``."""
        identity, table = self._plan.identity, self._plan.table
        if KIND not in batch.schema.names:
            refuse_given(identity, batch, table)
            return batch
        kinds = batch.column(KIND)
        refuse_given(identity, batch.filter(pc.equal(kinds, "insert")), table)
        changed = pc.not_equal(kinds, "insert")
        ids.append(pc.fill_null(batch.column(_READ_ID).filter(changed), NO_PLACE))
        rows = batch.filter(pc.not_equal(kinds, "delete"))
        return rows.select([name for name in rows.schema.names if name not in (KIND, _READ_ID)])

    @sparing
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the staged rows. If no row is touched there is nothing to commit, and nothing to be in
        conflict with.
        """
        found = received(messages, RewriteMessage)
        plan = self._plan
        table = plan.connection.table_by_uuid(plan.table, plan.table_uuid)
        new = [message.new for message in found]
        require_planned(table, new)
        staged = combined(table, new)
        old = _merged(message.old for message in found)
        places = _merged(message.of_files for message in found)
        if staged is None and not old and not places:
            return
        table.log.require_history([self._read.history], READING)
        files = named_rows(table, table.state, self._read, places)
        commit_rewrite(table, old, staged, self._read, files)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing, as in `StreamhouseWriter.abort`."""


def _merged(parts: Iterable[Mapping[int, OffsetRuns]]) -> dict[int, OffsetRuns]:
    """Return the rows of all tasks; one that several of them name is one."""
    found: dict[int, list[OffsetRuns]] = {}
    for rows in parts:
        for place, runs in rows.items():
            found.setdefault(place, []).append(runs)
    return {place: OffsetRuns.merged(runs) for place, runs in found.items()}
