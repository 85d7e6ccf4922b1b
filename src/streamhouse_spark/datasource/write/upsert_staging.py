"""Writes to primary-key tables in Spark: tasks stage intents per key, and prepare the changes if possible.

Changes depend on the rows that are stored at commit time. Tasks therefore stage *intents*, rows with their effect on
their key, as segment files that no record references. If Spark clusters the rows by bucket, which the catalog requests,
a task also prepares the changes with the tablets of its host. The driver adds the prepared changes in one record. It
recomputes changes only for buckets that advanced concurrently, or whose rows were in several tasks
(`streamhouse_spark.write.upsert_intents`). Correctness does not depend on Spark's clustering.

The driver deletes the intents after the commit. After a crash, intents and unused prepared changes are orphan files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from streamhouse_spark.config.spark_options import StreamWriteOptions, WriteOptions
from streamhouse_spark.core import arrow_rows
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import BucketOffsets, Transaction
from streamhouse_spark.core.warehouse_layout import segment_key
from streamhouse_spark.datasource import spark_versions
from streamhouse_spark.datasource.write.replaced_part import ReplacedPart
from streamhouse_spark.datasource.write.staging_writer import (
    TASK_INLINE_BYTES_MAX,
    StagedCommitMessage,
    concat_partitions,
    iter_chunks,
    make_identity_ranges,
    make_stager,
    merge_staged_messages,
    require_fitting_columns,
    require_planned,
    require_same_table,
)
from streamhouse_spark.errors import CommitConflictError, InvalidOptionError, SchemaMismatchError, StorageError
from streamhouse_spark.expressions.partition_filter import OverwriteFilterFactory
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.kv.change_staging import PreparedChanges
from streamhouse_spark.log.append_commit import STAGED_AGE_MS_MAX, has_same_meaning, schema_changed_error
from streamhouse_spark.log.commit_validation import require_writable
from streamhouse_spark.log.history_index import HistoryPoint
from streamhouse_spark.log.identity_allocation import IdentityRanges
from streamhouse_spark.log.object_existence import must_check_stored, require_stored
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.log.segments.reader import InlineRecords, read_segment
from streamhouse_spark.log.segments.scan import ColumnAdapter
from streamhouse_spark.log.segments.writer import SegmentOptions, StagedSegment
from streamhouse_spark.log.staging import BucketRouter, StagedRows, merge_staged_rows
from streamhouse_spark.log.state import CHANGE_COLUMN, TableState
from streamhouse_spark.schema.column_defaults import evaluate_defaults, same_defaults, without_defaults
from streamhouse_spark.schema.default_expressions import StatementContext
from streamhouse_spark.schema.identity import Identity, reject_identity_values
from streamhouse_spark.schema.row_conversion import convert_to_schema
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.process_cache import Connection
from streamhouse_spark.write.upsert_intents import (
    BucketIntents,
    IntentWrite,
    ReadIntents,
    commit_prepared,
    prepare_changes,
)

_UPSERT: Final = int(ChangeType.INSERT)
_UPDATE: Final = int(ChangeType.UPDATE_AFTER)
"""Kind of rows with which an UPDATE or MERGE replaces a row that it read. All other written rows are new."""
_DELETE: Final = int(ChangeType.DELETE)
_IGNORED: Final = int(ChangeType.UPDATE_BEFORE)
_KINDS: Final = {
    **dict.fromkeys(("insert", "update", "update_after", "upsert", "update_postimage", "+i", "+u", "i", "u"), _UPSERT),
    **dict.fromkeys(("c", "r"), _UPSERT),
    **dict.fromkeys(("delete", "-d", "d"), _DELETE),
    **dict.fromkeys(("update_before", "update_preimage", "-u"), _IGNORED),
}
"""Change type in this package, Delta, Flink or Debezium, in lower case → kind."""
_REWRITING_KINDS: Final = {"insert": _UPSERT, "update": _UPDATE, "delete": _DELETE}
_COMMIT_TRIES_MAX: Final = 10

Kinds = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class KeyedStagingPlan:
    """Everything that a task needs to stage intents for a table."""

    connection: Connection
    table: str
    table_uuid: str
    schema_id: int
    schema: TableSchema
    key: tuple[str, ...]
    write: IntentWrite
    row_kind_column: str | None
    routing: BucketRouter
    is_clustered: bool
    """Whether Spark was requested to pass all rows of a bucket to one task."""
    missing: frozenset[int] = frozenset()
    """Ids of columns in `row_schema` that are missing from the rows. Tasks fill in their defaults."""
    history: HistoryPoint | None = None
    """The latest log record when the write was planned."""
    replaced: ReplacedPart | None = None
    identity: Identity | None = None

    @classmethod
    def of(
        cls,
        connection: Connection,
        table: Table,
        frame: StructType,
        options: WriteOptions | StreamWriteOptions,
        *,
        write: IntentWrite | None = None,
        is_clustered: bool = False,
        state: TableState | None = None,
        replaced: ReplacedPart | None = None,
    ) -> KeyedStagingPlan:
        """Plan for a state of the table, by default its last read state.

        Raises `SchemaMismatchError` or `InvalidOptionError` if rows of the DataFrame cannot be written with the
        options.
        """
        require_writable(state or table.state, None)
        frame_schema = spark_versions.arrow_schema_of(frame)
        kind = None
        if options.row_kind_column is not None:
            kind = _find_kind_column(frame_schema, options.row_kind_column, table.name)
            frame_schema = frame_schema.remove(frame_schema.names.index(kind))
        state = state or table.state
        targets = None
        if options.partial_update:
            targets = tuple(state.schema.column(n).name for n in frame_schema.names if state.schema.find(n) is not None)
            targets = tuple(name for name in targets if name not in state.primary_key)
            table.keyed.require_partial(targets, state)
        properties = state.parsed
        routing = BucketRouter.of(state.num_buckets, properties)
        plan = cls(
            connection,
            table.name,
            table.uuid,
            state.schema_id,
            state.schema,
            state.primary_key,
            replace(write or IntentWrite(), columns=targets, now=StatementContext.of(table.world)),
            kind,
            routing,
            is_clustered,
            history=state.anchors.newest,
            replaced=replaced,
            identity=properties.identity,
        )
        names = {name.casefold() for name in frame_schema.names}
        plan = replace(plan, missing=frozenset(c.id for c in plan.row_schema.columns if c.name.casefold() not in names))
        require_fitting_columns(frame_schema, plan.row_schema, state.schemas, table.name)
        return plan

    @property
    def row_schema(self) -> TableSchema:
        """The columns that the rows write."""
        if self.write.columns is None:
            return self.schema
        column_names = {*self.write.columns, *self.key}
        return TableSchema(tuple(c for c in self.schema.columns if c.name in column_names))

    @property
    def _filled_schema(self) -> TableSchema:
        return self.row_schema if self.write.now is None else evaluate_defaults(self.row_schema, self.write.now)

    @property
    def segment_options(self) -> SegmentOptions:
        return SegmentOptions(self.schema_id)

    def stage(
        self,
        batches: Iterable[pa.RecordBatch],
        query_id: str | None = None,
        *,
        inline_bytes_max: int = TASK_INLINE_BYTES_MAX,
    ) -> StagedCommitMessage:
        """Stage all rows of a task, and prepare their changes if Spark clusters the rows by bucket.

        When this returns, the intents are durable but not visible. Raises `SchemaMismatchError` for values that do not
        fit.
        """
        partitions: list[pa.Table] = []
        numbers = make_identity_ranges(self.connection, self.table, self.table_uuid, self.identity)
        staged = self._stage_intents(batches, inline_bytes_max, partitions, numbers)
        history = self.history if numbers is None else numbers.newest
        if staged is None or not self.is_clustered or self.replaced is not None:
            return StagedCommitMessage(staged, query_id, history=history, partitions=concat_partitions(partitions))
        table = self.connection.table_by_uuid(self.table, self.table_uuid)
        prepared = prepare_changes(table.keyed, self.write, self.intents(table, staged.segments))
        return StagedCommitMessage(staged, query_id, prepared, history)

    def intents(self, table: Table, segments: Sequence[StagedSegment]) -> dict[int, ReadIntents]:
        """Return bucket → function that reads the intents of the bucket in segment order."""
        segments_by_bucket: dict[int, list[StagedSegment]] = {}
        for segment in segments:
            segments_by_bucket.setdefault(segment.segment.bucket, []).append(segment)
        return {
            bucket: partial(self._read_intents, table, of_bucket)
            for bucket, of_bucket in sorted(segments_by_bucket.items())
        }

    def _read_intents(self, table: Table, segments: Sequence[StagedSegment], schema: TableSchema) -> BucketIntents:
        """Read intents with the columns of the table's current schema.

        Raises `CommitConflictError` if columns, or defaults that are in the intents, changed.
        """
        filled_schema = schema
        if self.write.columns is not None:  # the commit fills in the defaults of all other columns
            column_ids = {column.id for column in self.row_schema.columns}
            filled_schema = TableSchema(tuple(column for column in schema.columns if column.id in column_ids))
        if not has_same_meaning(self.schema, schema) or not same_defaults(self.schema, filled_schema, self.missing):
            raise schema_changed_error(table.state)
        batches = list(_read_batches(table, _intent_schema(self.schema), segments, _intent_schema(schema)))
        rows = pa.Table.from_batches(batches, _intent_schema(schema).arrow)
        kinds = rows.column(0).to_numpy()
        inserted = kinds == _UPSERT if self.write.rewrites else None
        return BucketIntents(rows.drop_columns([CHANGE_COLUMN.name]), kinds == _DELETE, inserted)

    def _stage_intents(
        self,
        batches: Iterable[pa.RecordBatch],
        inline_bytes_max: int,
        partitions: list[pa.Table],
        numbers: IdentityRanges | None,
    ) -> StagedRows | None:
        options = {"inline_bytes_max": inline_bytes_max, "table": self.table}
        stager = make_stager(self.connection, self.table_uuid, self.segment_options, self.routing, **options)
        parts = []
        for chunk in iter_chunks(batches):
            if (intents := self._number_rows(self._make_intents(chunk), numbers)).num_rows:
                if self.replaced is not None:
                    partitions.append(self.replaced.partitions_of_rows(intents, self.schema, self.table))
                parts.append(stager.stage(intents))
        return merge_staged_rows(parts) if parts else None

    def _number_rows(self, intents: pa.Table, numbers: IdentityRanges | None) -> pa.Table:
        """Fill in identity values of new rows. Existing rows keep their values. Raises `SchemaMismatchError` for a new
        row that has a value, and the errors of `IdentityRanges.fill_numbers`.
        """
        if numbers is None:
            return intents
        kinds = intents.column(0).to_numpy()
        reject_identity_values(self.identity, intents.filter(pa.array(kinds == _UPSERT)), self.table)
        return numbers.fill_numbers(intents, kinds == _DELETE)

    def _make_intents(self, rows: pa.Table) -> pa.Table:
        """Return the intents of rows: the effect on the key, and all table columns, which are null if they do not
        apply.
        """
        if self.row_kind_column is None:
            upserts = convert_to_schema(rows, self._filled_schema, table=self.table)
            return _add_kinds(np.full(rows.num_rows, _UPSERT, np.int8), upserts, self.schema)
        words = _REWRITING_KINDS if self.write.rewrites else _KINDS
        kinds = _parse_kinds(rows.column(self.row_kind_column), words, self.table, self.row_kind_column)
        rows = rows.drop_columns([self.row_kind_column])
        upserted = np.flatnonzero((kinds == _UPSERT) | (kinds == _UPDATE))
        deleted = np.flatnonzero(kinds == _DELETE)
        upserts = convert_to_schema(
            arrow_rows.take_rows(rows, upserted, distinct=True), self._filled_schema, table=self.table
        )
        keys = [name for name in rows.column_names if (c := self.schema.find(name)) is not None and c.name in self.key]
        key_schema = without_defaults(self.schema.select(self.key))
        deletes = convert_to_schema(
            arrow_rows.take_rows(rows.select(keys), deleted, distinct=True), key_schema, table=self.table
        )
        rows_by_kind = pa.concat_tables(
            [
                _add_kinds(kinds[upserted], upserts, self.schema),
                _add_kinds(np.full(len(deleted), _DELETE, np.int8), deletes, self.schema),
            ]
        )
        order = np.argsort(np.concatenate([upserted, deleted]), kind="stable")
        return arrow_rows.take_rows(rows_by_kind, order, distinct=True)


def commit_intents(
    table: Table,
    plan: KeyedStagingPlan,
    messages: Sequence[StagedCommitMessage],
    *,
    transaction: Transaction | None,
    read: ReadVersion | None = None,
    choose: OverwriteFilterFactory | None = None,
) -> BucketOffsets:
    """Convert the tasks' staged intents, in task order, to changes and commit them. See `Table.upsert`.

    With ``read``, the intents are from a statement that read the table. Their order has no meaning: a key that is
    deleted and written keeps the written row. Raises `CommitConflictError` if rows that the statement depends on
    changed since. With ``choose``, the intents replace the rows of these partitions.
    """
    require_planned(table, messages)
    staged = merge_staged_messages(messages)
    if staged is not None:
        require_same_table(table, staged)
    if staged is not None and table.storage.now_ms() - staged.staged_ms > STAGED_AGE_MS_MAX:
        raise CommitConflictError(
            f"{table.name}: rows were staged so long ago that garbage collection may have deleted them; nothing was "
            "written, retry the write"
        )
    segments = staged.segments if staged else ()
    uuids = [s.segment.uuid for s in segments if s.segment.uuid is not None]
    if staged is not None and uuids and must_check_stored(table.storage, staged.staged_ms):
        require_stored(table.storage, table.state, uuids)
    intents, prepared = plan.intents(table, segments), select_complete_changes(messages)
    for attempt in range(1, _COMMIT_TRIES_MAX + 1):
        state = table.refresh()
        try:
            offsets = commit_prepared(
                table.keyed, plan.write, intents, prepared, transaction=transaction, read=read, choose=choose
            )
            break
        except CommitConflictError:
            if attempt == _COMMIT_TRIES_MAX or table.refresh().schema_id == state.schema_id:
                raise
    for uuid in set(uuids):
        with suppress(StorageError):  # garbage collection deletes the orphan file later
            table.storage.delete(segment_key(table.uuid, uuid))
    return offsets


def select_complete_changes(messages: Sequence[StagedCommitMessage]) -> list[PreparedChanges]:
    """Return the prepared changes of the buckets whose rows were all in one task."""
    parts = [message.staged for message in messages if message.staged is not None]
    having_rows = Counter(bucket for part in parts for bucket in {s.segment.bucket for s in part.segments})
    return [p for message in messages for p in message.prepared if having_rows[p.bucket] == 1]


def _read_batches(
    table: Table, written: TableSchema, segments: Sequence[StagedSegment], schema: TableSchema
) -> Iterator[pa.RecordBatch]:
    adapter = ColumnAdapter(written, schema)
    records = InlineRecords(table.storage, table.uuid)
    records.expect(staged.segment for staged in segments)
    for staged in segments:
        segment = staged.segment
        if staged.inline_rows is not None:
            yield adapter.adapt(pa.ipc.read_record_batch(pa.py_buffer(staged.inline_rows), written.arrow))
            continue
        segment_batches = read_segment(
            table.storage, table.uuid, segment, written.arrow, segment.offsets, records=records
        )
        for batch in segment_batches:
            yield adapter.adapt(batch.batch)


def _intent_schema(schema: TableSchema) -> TableSchema:
    """Return the schema of intents. All columns are nullable, because a delete has only the key."""
    return TableSchema((CHANGE_COLUMN, *(replace(column, nullable=True) for column in schema.columns)))


def _add_kinds(kinds: Kinds, rows: pa.Table, schema: TableSchema) -> pa.Table:
    names = set(rows.column_names)
    columns = [rows[c.name] if c.name in names else pa.nulls(rows.num_rows, c.type) for c in schema.columns]
    return pa.Table.from_arrays([pa.array(kinds), *columns], schema=_intent_schema(schema).arrow)


def _find_kind_column(frame_schema: pa.Schema, name: str, table: str) -> str:
    matching_fields = [field for field in frame_schema if field.name.casefold() == name.casefold()]
    if len(matching_fields) != 1 or not pa.types.is_string(matching_fields[0].type):
        problem = f"has type {matching_fields[0].type}" if matching_fields else "is missing"
        raise InvalidOptionError(
            f"rowKindColumn of the write into {table} is '{name}', which {problem}, expected a text column; the rows "
            f"have {', '.join(frame_schema.names)}"
        )
    text: str = matching_fields[0].name
    return text


def _parse_kinds(values: pa.ChunkedArray, kind_by_word: Mapping[str, int], table: str, column: str) -> Kinds:
    """Return the kind of each row. Raises `SchemaMismatchError` for an unknown word."""
    words = pc.utf8_lower(pc.utf8_trim_whitespace(values.combine_chunks()))
    places = pc.index_in(words, value_set=pa.array(list(kind_by_word)))
    if places.null_count:
        wrong = values.filter(places.is_null())[0].as_py()
        raise SchemaMismatchError(
            f"column '{column}' of the rows for {table} is {wrong!r} in a row, expected insert, update_after, delete "
            "or update_before, or the short forms +I, +U, -D, -U or c, r, u, d"
        )
    kinds: Kinds = np.array(list(kind_by_word.values()), np.int8)[places.to_numpy()]
    return kinds
