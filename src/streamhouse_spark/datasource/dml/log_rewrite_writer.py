"""UPDATE, DELETE and MERGE of log tables: tasks stage new rows and identify old rows, and the driver commits the
changes.

An old row is identified by bucket and offset, or by lake file and position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.datasource.dml.row_changes import KIND, read_name
from streamhouse_spark.datasource.worker import release_memory_after
from streamhouse_spark.datasource.write.staging_writer import (
    StagedCommitMessage,
    StagingPlan,
    combine_staged_rows,
    require_messages,
    require_planned,
)
from streamhouse_spark.dml.rewrite import commit_rewrite
from streamhouse_spark.log.read_version import READING, ReadVersion
from streamhouse_spark.log.segments.metadata_columns import (
    NO_PLACE,
    ROW_ID,
    Int64Array,
    offsets_by_bucket,
    positions_by_file,
)
from streamhouse_spark.read.lake_row_ids import RowLocations, file_names_at, require_row_ids
from streamhouse_spark.schema.identity import reject_identity_values
from streamhouse_spark.warehouse.process_cache import Connection

_READ_ID: Final = read_name(ROW_ID.name)


@dataclass(frozen=True, slots=True)
class ReadRows:
    """Rows that a task read, by their row ids."""

    rows: Mapping[int, OffsetSet]
    """Bucket → offsets."""
    of_files: Mapping[int, OffsetSet]
    """Index of a file in the lake snapshot that was read → positions."""

    @classmethod
    def of(cls, ids: Int64Array) -> ReadRows:
        return cls(offsets_by_bucket(ids), positions_by_file(ids))

    @classmethod
    def merged(cls, parts: Sequence[ReadRows]) -> ReadRows:
        """Merge the rows of all tasks, without duplicates."""
        return cls(_merge_ranges(part.rows for part in parts), _merge_ranges(part.of_files for part in parts))


@dataclass(frozen=True)
class RewriteCommitMessage(WriterCommitMessage):
    """The new rows that a task staged, and the old rows."""

    new: StagedCommitMessage
    old: ReadRows
    """Rows that are replaced or deleted."""
    updated: ReadRows
    """The replaced rows among ``old``."""


class LogRewriteWriter(DataSourceArrowWriter):
    """Commits the changes of a statement atomically.

    **Commit point:** the one commit record. The commit fails if another writer deleted rows that the statement replaces
    or deletes. A task calls `write` once per part of its rows. An insert-only MERGE sends only the table's columns.
    """

    def __init__(self, connection: Connection, name: str, read: ReadVersion) -> None:
        self._plan = replace(StagingPlan.of(connection, connection.table(name)), keeps_given=True)
        self._read = read

    @release_memory_after
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the new rows, updated rows first. Raises `InvalidOptionError` for an old row without a row id."""
        first = next(iterator, None)
        if first is None or KIND not in first.schema.names:
            batches = chain([] if first is None else [first], iterator)
            staged = self._plan.stage(self._require_no_identity_values(batches))
            return RewriteCommitMessage(staged, _NOTHING, _NOTHING)
        rows = pa.Table.from_batches([first, *iterator])  # parts are bounded in size
        kinds = rows[KIND]
        inserted, updated = (rows.filter(pc.equal(kinds, kind)) for kind in ("insert", "update"))
        reject_identity_values(self._plan.identity, inserted, self._plan.table)
        new = pa.concat_tables([updated, inserted]).drop_columns([KIND, _READ_ID])
        staged = self._plan.stage(iter(new.to_batches()), num_updated=updated.num_rows)
        old = _read_ids(rows.filter(pc.not_equal(kinds, "insert")))
        require_row_ids(self._plan.table, old)
        return RewriteCommitMessage(staged, ReadRows.of(old), ReadRows.of(_read_ids(updated)))

    def _require_no_identity_values(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            reject_identity_values(self._plan.identity, batch, self._plan.table)
            yield batch

    @release_memory_after
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the staged rows. If no row is touched, nothing is committed and nothing can conflict."""
        rewrite_messages = require_messages(messages, RewriteCommitMessage)
        plan = self._plan
        table = plan.connection.table_by_uuid(plan.table, plan.table_uuid)
        new = [message.new for message in rewrite_messages]
        require_planned(table, new)
        staged = combine_staged_rows(table, new)
        old = ReadRows.merged([message.old for message in rewrite_messages])
        updated = ReadRows.merged([message.updated for message in rewrite_messages])
        if staged is None and not old.rows and not old.of_files:
            return
        table.log.require_history([self._read.history], READING)
        names = file_names_at(table, table.state, self._read, old.of_files)
        of_old, of_updated = (
            RowLocations(part.rows, {names[place]: positions for place, positions in part.of_files.items()})
            for part in (old, updated)
        )
        commit_rewrite(table, of_old, staged, self._read, of_updated)


_NOTHING: Final = ReadRows({}, {})


def _read_ids(rows: pa.Table) -> Int64Array:
    """Return the row ids of the rows that were read; `NO_PLACE` for rows without one."""
    ids: Int64Array = pc.fill_null(rows[_READ_ID], NO_PLACE).to_numpy()
    return ids


def _merge_ranges(parts: Iterable[Mapping[int, OffsetSet]]) -> dict[int, OffsetSet]:
    runs_by_place: dict[int, list[OffsetSet]] = {}
    for rows in parts:
        for place, runs in rows.items():
            runs_by_place.setdefault(place, []).append(runs)
    return {place: OffsetSet.merged(runs) for place, runs in runs_by_place.items()}
