"""`PrimaryKeyTable`: upserts and deletes by key, without Spark.

The current rows are cached in tablets of this host (`streamhouse_spark.kv`). A tablet is derived from the log, and
catches up with it before each use.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from decimal import Decimal
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.config.table_properties import DELETE_BEHAVIOR, MERGE_ENGINE, LakeFormat
from streamhouse_spark.core import arrow_rows
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.concurrency import cached_property, new_lock
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.python_values import to_python
from streamhouse_spark.core.types import BucketOffsets, Transaction, check_transaction
from streamhouse_spark.errors import CommitConflictError, InvalidOptionError, SchemaMismatchError, quote
from streamhouse_spark.expressions.generated_columns import fill_generated_columns
from streamhouse_spark.expressions.partition_filter import OverwriteFilterFactory
from streamhouse_spark.keys.keyed_batch import Bools, KeyedBatch, Places
from streamhouse_spark.kv.change_staging import ChangeStager, PreparedChanges
from streamhouse_spark.kv.log_replay import KeyedLayout
from streamhouse_spark.kv.merge_engines import FirstRowMerge, MergeEngine
from streamhouse_spark.kv.partition_overwrite import PartitionOverwriteStager
from streamhouse_spark.kv.primary_key_properties import KeyedProperties, engine_of, parse_keyed_properties
from streamhouse_spark.kv.tablet import Tablet, open_tablet
from streamhouse_spark.kv.upsert_commit import commit_upsert
from streamhouse_spark.log.actions import Action
from streamhouse_spark.log.append_commit import StateCheck
from streamhouse_spark.log.bucketing import row_buckets
from streamhouse_spark.log.identity_allocation import IdentityRanges
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.log.state import TableState
from streamhouse_spark.schema.column_defaults import default_values, evaluate_defaults, without_defaults
from streamhouse_spark.schema.default_expressions import StatementContext
from streamhouse_spark.schema.identity import reject_identity_values
from streamhouse_spark.schema.paimon_limits import check_paimon_values
from streamhouse_spark.schema.row_conversion import convert_to_schema
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.write.auto_compaction import compact_if_due
from streamhouse_spark.write.log_writer import retry_schema_changes

_SCALAR_TYPES: Final = (str, bytes, int, float, Decimal, dt.date, dt.time, np.generic, pa.Scalar)


def parse_keys(keys: Any, names: Sequence[str], table: str) -> Any:
    """Convert keys to rows: a list of mappings, of tuples of key values or, for a single-column key, of plain values.

    A single key may be given without a list: as a mapping, a value or, for a composite key, a tuple. Raises
    `SchemaMismatchError` if a key does not have the columns of the primary key.
    """
    if isinstance(keys, pa.Array | pa.ChunkedArray) and len(names) == 1:
        return pa.table({names[0]: keys})
    if isinstance(keys, _SCALAR_TYPES) or _is_one_row(keys):
        keys = [keys]
    elif isinstance(keys, tuple):
        is_one_key = len(names) > 1 and not any(isinstance(key, Mapping | tuple | list) for key in keys)
        keys = [keys] if is_one_key else list(keys)
    return [_parse_key(key, names, table) for key in keys] if isinstance(keys, list) else keys


def _is_one_row(keys: Any) -> bool:
    """Return whether the keys are a mapping of values, which is one row. A mapping of columns is a frame."""
    return isinstance(keys, Mapping) and not any(
        isinstance(v, list | pa.Array | pa.ChunkedArray) for v in keys.values()
    )


def _parse_key(key: Any, names: Sequence[str], table: str) -> Mapping[str, Any]:
    if isinstance(key, Mapping):
        return key
    values = tuple(key) if isinstance(key, tuple | list) else (key,)
    if len(values) != len(names):
        raise SchemaMismatchError(
            f"a key of {table} is {quote(key)}, expected values of ({', '.join(names)}); pass them as a tuple in this "
            "order or as a mapping"
        )
    return dict(zip(names, values, strict=True))


@dataclass(frozen=True)
class PrimaryKeySchema:
    """How a primary-key table stores rows with one schema and one set of properties."""

    name: str
    table_uuid: str
    warehouse_url: str
    schema: TableSchema
    properties: KeyedProperties
    layout: KeyedLayout
    num_buckets: int
    bucket_indexes: tuple[int, ...]
    """Column indexes of the bucket key in the schema; empty for a single bucket."""
    lake_format: LakeFormat
    """The lake format whose hash assigns the buckets."""
    numbers: IdentityRanges | None = field(default=None, compare=False)

    @classmethod
    def of(cls, state: TableState, warehouse_url: str) -> PrimaryKeySchema:
        properties = state.parsed
        bucket_key = properties.bucket_key if state.num_buckets > 1 else ()
        return cls(
            state.name,
            state.table_uuid,
            warehouse_url,
            state.schema,
            parse_keyed_properties(state.properties, state.schema, state.partition_by),
            KeyedLayout.of(state),
            state.num_buckets,
            tuple(state.schema.names.index(name) for name in bucket_key),
            properties.datalake_format,
        )

    @cached_property
    def key_schema(self) -> TableSchema:
        """The primary key columns in key order, without defaults."""
        return without_defaults(self.schema.select(self.properties.primary_key))

    @cached_property
    def bucket_key(self) -> tuple[str, ...]:
        """The columns that determine the bucket; empty for a single bucket."""
        return tuple(self.schema.names[place] for place in self.bucket_indexes)

    def bucket_numbers(self, key: Sequence[pa.Array | pa.ChunkedArray]) -> npt.NDArray[np.int32]:
        """Return the bucket of each row, given the bucket key columns."""
        return row_buckets(key, self.num_buckets, self.lake_format)

    def buckets(self, columns: Sequence[arrow_rows.Column]) -> Iterator[tuple[int, Places | None]]:
        """Yield each bucket and the indexes of its rows, or bucket 0 and None if there is a single bucket."""
        if not self.bucket_indexes:
            yield 0, None
            return
        numbers = self.bucket_numbers([columns[place] for place in self.bucket_indexes]).astype(np.uint16)
        order = np.argsort(numbers, kind="stable")
        ends = np.cumsum(np.bincount(numbers, minlength=self.num_buckets))
        for bucket, (start, end) in enumerate(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)):
            if end > start:
                yield bucket, order[start:end]

    def batches(self, rows: pa.Table, deleted: Bools) -> dict[int, KeyedBatch]:
        """Group rows with all columns by bucket and key. ``deleted`` marks the rows that delete their key."""
        columns = self._complete_columns(rows, deleted)
        return {bucket: self._group_rows(columns, deleted, places) for bucket, places in self.buckets(columns)}

    def batch(self, rows: pa.Table, deleted: Bools) -> KeyedBatch:
        """Group rows of a single bucket by key; see `batches`."""
        return self._group_rows(self._complete_columns(rows, deleted), deleted, None)

    def _complete_columns(self, rows: pa.Table, deleted: Bools) -> list[arrow_rows.Column]:
        rows = fill_generated_columns(self.properties.generated, rows, self.name)
        rows = rows if self.numbers is None else self.numbers.fill_numbers(rows, deleted)
        return [arrow_rows.combine_if_small(rows.column(name)) for name in self.schema.names]

    def _group_rows(self, columns: Sequence[arrow_rows.Column], deleted: Bools, places: Places | None) -> KeyedBatch:
        """Group the rows at the indexes ``places``, or all rows. Only key columns are copied."""
        of_key = self.layout.key_indexes
        bucket_columns = list(columns)
        if places is not None:
            bucket_columns = [
                arrow_rows.take_values(c, places, distinct=True) if i in of_key else c for i, c in enumerate(columns)
            ]
        keys = self._encode_keys(bucket_columns)
        if self.lake_format == "paimon":
            check_paimon_values(self.name, {self.schema.names[place]: bucket_columns[place] for place in of_key})
        return KeyedBatch.of(keys, columns, deleted, places)

    def _encode_keys(self, columns: Sequence[arrow_rows.Column]) -> pa.BinaryArray:
        """Encode the keys of a bucket as one array. Raises `InvalidOptionError` if they are too large for an array."""
        places = self.layout.key_indexes
        num_bytes = sum(columns[place].nbytes for place in places)
        if num_bytes > arrow_rows.KEYS_BYTES_MAX:
            raise InvalidOptionError(
                f"a batch for {self.name} has {num_bytes} bytes of primary keys for one bucket, expected at most "
                f"{arrow_rows.KEYS_BYTES_MAX}; nothing was written, write several smaller batches"
            )
        return self.layout.keys(columns)

    def find_inserted_keys(self, batch: KeyedBatch, rows: pa.Table, inserted: Bools) -> Bools:
        """Return for each key of the batch whether a row that ``inserted`` marks has the key."""
        keys = self._encode_keys(rows.filter(pa.array(inserted)).columns)
        is_inserted: Bools = pc.is_in(batch.keys, value_set=keys).to_numpy(zero_copy_only=False)
        return is_inserted

    @cached_property
    def _identity(self) -> dict[str, object]:
        return self.layout.identity

    def tablet_of(self, bucket: int) -> Tablet:
        return open_tablet(self.warehouse_url, self.table_uuid, bucket, self._identity)


def with_statement_context(keyed_schema: PrimaryKeySchema, world: World) -> PrimaryKeySchema:
    """Return the schema for a statement that starts now: functions in defaults are evaluated once."""
    schema = evaluate_defaults(keyed_schema.schema, StatementContext.of(world))
    return keyed_schema if schema is keyed_schema.schema else replace(keyed_schema, schema=schema)


class PrimaryKeyTable:
    """Writes to one primary-key table. Thread-safe."""

    def __init__(self, table: TableHandle) -> None:
        self.table = table
        self._lock = new_lock()
        self._cached_schema: tuple[int, Mapping[str, str], PrimaryKeySchema] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return PrimaryKeyTable, (self.table,)

    def keyed_schema(self, state: TableState | None = None) -> PrimaryKeySchema:
        """Return the `PrimaryKeySchema` of a state, by default of the cached state."""
        state = state or self.table.state
        with self._lock:
            if (
                self._cached_schema is None
                or self._cached_schema[0] != state.schema_id
                or self._cached_schema[1] is not state.properties
            ):
                keyed_schema = PrimaryKeySchema.of(state, self.table.storage.url)
                if (identity := keyed_schema.properties.identity) is not None:
                    keyed_schema = replace(
                        keyed_schema, numbers=IdentityRanges(self.table.log, identity, keyed_schema.name)
                    )
                self._cached_schema = (state.schema_id, state.properties, keyed_schema)
            return self._cached_schema[2]

    # -- writing --------------------------------------------------------------------------------------------------

    def upsert(
        self,
        rows: Any,
        *,
        columns: Sequence[str] | None = None,
        transaction: Transaction | None = None,
        overwrite: bool = False,
        choosing: Callable[[pa.Table], OverwriteFilterFactory] | None = None,
        require: StateCheck | None = None,
    ) -> BucketOffsets:
        """Upsert rows; see `Table.upsert` and `Table.overwrite`.

        ``choosing`` returns the filter of the rows to replace. ``require`` is called with the state before the commit.
        """

        def write(keyed_schema: PrimaryKeySchema) -> BucketOffsets:
            targets = resolve_targets(keyed_schema, columns)
            older = self.table.state.schemas
            padded = pad_columns(
                convert_to_schema(
                    rows, _require_key_columns(keyed_schema, targets), table=keyed_schema.name, older=older
                ),
                keyed_schema.schema,
            )
            reject_identity_values(keyed_schema.properties.identity, padded, keyed_schema.name)
            no_deletes = np.zeros(padded.num_rows, np.bool_)
            if choosing is not None:
                return self.replace_partitions(
                    keyed_schema, keyed_schema.batches(padded, no_deletes), choosing(padded), transaction=transaction
                )
            return self.commit_rows(
                keyed_schema, padded, no_deletes, targets, transaction, overwrite=overwrite, require=require
            )

        return self.write_with_retries(write, rows, transaction)

    def delete(
        self, keys: Any, *, transaction: Transaction | None = None, require: StateCheck | None = None
    ) -> BucketOffsets:
        """Delete rows by key; see `Table.delete`."""

        def write(keyed_schema: PrimaryKeySchema) -> BucketOffsets:
            padded = pad_columns(self.keys(keys, keyed_schema), keyed_schema.schema)
            return self.commit_rows(
                keyed_schema, padded, np.ones(padded.num_rows, np.bool_), None, transaction, require=require
            )

        return self.write_with_retries(write, keys, transaction)

    def keys(self, keys: Any, keyed_schema: PrimaryKeySchema) -> pa.Table:
        """Convert keys to a table of the key columns. Raises `SchemaMismatchError`."""
        return convert_to_schema(
            parse_keys(keys, keyed_schema.key_schema.names, keyed_schema.name),
            keyed_schema.key_schema,
            table=keyed_schema.name,
        )

    def change(self, rows: pa.Table, deleted: Bools, *, transaction: Transaction | None = None) -> BucketOffsets:
        """Write rows and delete keys in one commit. ``deleted`` marks the rows whose keys are deleted.

        If a key is both deleted and written, the written row wins. Raises `SchemaMismatchError` if a key is written
        twice.
        """
        check_transaction(transaction)
        keyed_schema = with_statement_context(self.keyed_schema(), self.table.world)
        order = np.argsort(~deleted, kind="stable")
        key = keyed_schema.key_schema.names
        # Rows that delete a key have no other values.
        nullable = TableSchema(
            tuple(c if c.name in key else replace(c, nullable=True) for c in keyed_schema.schema.columns)
        )
        padded = pad_columns(convert_to_schema(rows, nullable, table=keyed_schema.name), keyed_schema.schema)
        batches = keyed_schema.batches(arrow_rows.take_rows(padded, order, distinct=True), deleted[order])
        for batch in batches.values():
            require_unique_keys(keyed_schema, batch)
        engine = engine_of(keyed_schema.properties, keyed_schema.schema, None)
        return self.commit(keyed_schema, batches, engine, transaction=transaction)

    def require_partial(self, columns: Sequence[str], state: TableState | None = None) -> None:
        """Raise `InvalidOptionError` or `SchemaMismatchError` if a partial update of these columns is not supported."""
        keyed_schema = with_statement_context(self.keyed_schema(state), self.table.world)
        engine_of(keyed_schema.properties, keyed_schema.schema, resolve_targets(keyed_schema, columns))

    def insert_if_absent(self, keys: pa.Table) -> BucketOffsets:
        """Insert a row for each missing key, with defaults or nulls. Existing rows are unchanged.

        ``keys`` has the columns of the primary key, in its order. Raises `SchemaMismatchError` if another column is NOT
        NULL without a default.
        """
        keyed_schema = with_statement_context(self.keyed_schema(), self.table.world)
        value_columns = [c for c in keyed_schema.schema.columns if c.name not in keyed_schema.key_schema.names]
        required = [c.name for c in value_columns if not c.nullable and c.default is None]
        if required:
            raise SchemaMismatchError(
                f"column '{required[0]}' of {keyed_schema.name} is NOT NULL without a default, so rows cannot be "
                "inserted by key alone; give the column a default"
            )
        named = keys.rename_columns(list(keyed_schema.key_schema.names))  # columns may have been renamed concurrently
        rows = pad_columns(named, keyed_schema.schema, with_defaults=True)
        batches = keyed_schema.batches(rows, np.zeros(rows.num_rows, np.bool_))
        return self.commit(keyed_schema, batches, FirstRowMerge())

    def write_with_retries(
        self, write: Callable[[PrimaryKeySchema], BucketOffsets], rows: Any, transaction: Transaction | None
    ) -> BucketOffsets:
        """Call ``write`` with the cached schema, and retry with the latest if the schema changed concurrently."""
        check_transaction(transaction)
        return retry_schema_changes(
            self.table,
            rows,
            lambda: write(with_statement_context(self.keyed_schema(), self.table.world)),
            (CommitConflictError, SchemaMismatchError),
        )

    def commit_rows(
        self,
        keyed_schema: PrimaryKeySchema,
        rows: pa.Table,
        deleted: Bools,
        targets: Sequence[str] | None,
        transaction: Transaction | None,
        *,
        overwrite: bool = False,
        require: StateCheck | None = None,
    ) -> BucketOffsets:
        engine = engine_of(keyed_schema.properties, keyed_schema.schema, targets)
        batches = keyed_schema.batches(*drop_ignored_deletions(keyed_schema, rows, deleted))
        return self.commit(keyed_schema, batches, engine, transaction=transaction, overwrite=overwrite, require=require)

    def stager(
        self,
        keyed_schema: PrimaryKeySchema,
        engine: MergeEngine,
        state: TableState | None = None,
        make: Callable[..., ChangeStager] = ChangeStager,
    ) -> ChangeStager:
        """Return a stager of changes, with the segment options of a state, by default of the cached state."""
        table = self.table
        return make(
            table.storage,
            table.world,
            table.segment_options(state),
            keyed_schema.layout,
            engine,
            keyed_schema.tablet_of,
            before_images=keyed_schema.properties.changelog_image == "full",
            checks=keyed_schema.properties.checks,
        )

    def commit(
        self,
        keyed_schema: PrimaryKeySchema,
        batches: Mapping[int, KeyedBatch],
        engine: MergeEngine,
        *,
        prepared: Mapping[int, PreparedChanges] | None = None,
        transaction: Transaction | None = None,
        overwrite: bool = False,
        read: ReadVersion | None = None,
        require: StateCheck | None = None,
    ) -> BucketOffsets:
        """Commit batches by bucket, and compact inline rows if due. See `commit_upsert`."""
        commit_options = {"prepared": prepared, "transaction": transaction, "overwrite": overwrite, "read": read}
        return self._commit(self.stager(keyed_schema, engine), batches, require, **commit_options)

    def replace_partitions(
        self,
        keyed_schema: PrimaryKeySchema,
        batches: Mapping[int, KeyedBatch],
        choose: OverwriteFilterFactory,
        *,
        transaction: Transaction | None = None,
        read: ReadVersion | None = None,
    ) -> BucketOffsets:
        """Replace the rows of partitions by ``batches`` of rows of these partitions, in one commit.

        Raises `InvalidOptionError` for a table that does not support deletes, and the errors of `commit_upsert`.
        """
        require_deletions(keyed_schema)
        engine = engine_of(keyed_schema.properties, keyed_schema.schema, None)
        sources = self.table.state.parsed.partition_sources
        stager = self.stager(
            keyed_schema, engine, make=partial(PartitionOverwriteStager, choose=choose, partition_by=sources)
        )
        no_deletes = np.zeros(0, np.bool_)
        empty = keyed_schema.batch(keyed_schema.schema.arrow.empty_table(), no_deletes)
        all_buckets = {bucket: batches.get(bucket, empty) for bucket in range(keyed_schema.num_buckets)}
        return self._commit(stager, all_buckets, transaction=transaction, read=read)

    def _commit(
        self,
        stager: ChangeStager,
        batches: Mapping[int, KeyedBatch],
        require: StateCheck | None = None,
        **commit_options: Any,
    ) -> BucketOffsets:
        def require_allowed(state: TableState) -> Sequence[Action]:
            if require is not None:
                require(state)
            return ()

        offsets, committed = commit_upsert(
            self.table.log, stager, batches, extra_actions=require_allowed, **commit_options
        )
        if committed.duplicate_of is not None and require is not None:
            require(committed.state)
        if committed.is_first:
            compact_if_due(self.table, committed.state)
        return offsets


def require_rewritable(name: str, properties: KeyedProperties, *, deletes: bool) -> None:
    """Raise `InvalidOptionError` if the merge engine or delete behavior changes the effect of UPDATE or DELETE."""
    if properties.merge_engine != "last_row":
        raise InvalidOptionError(
            f"table {name} does not support UPDATE, DELETE and MERGE, because {MERGE_ENGINE} is "
            f"{properties.merge_engine}; use INSERT INTO, or a table without a merge engine"
        )
    if deletes and properties.delete_behavior != "allow":
        raise InvalidOptionError(
            f"table {name} does not support deletes ({DELETE_BEHAVIOR} is {properties.delete_behavior}); use ALTER "
            f"TABLE … SET TBLPROPERTIES ('{DELETE_BEHAVIOR}' = 'allow'), or remove the delete"
        )


def require_deletions(keyed_schema: PrimaryKeySchema) -> None:
    """Raise `InvalidOptionError` if the table does not support deletes, so that partitions cannot be replaced."""
    if (behavior := keyed_schema.properties.delete_behavior) != "allow":
        raise InvalidOptionError(
            f"table {keyed_schema.name} does not support deletes ({DELETE_BEHAVIOR} is {behavior}), so a part of it "
            "cannot be replaced; set the property to allow if the last row wins or columns are aggregated, or replace "
            "all rows"
        )


def order_deletions_first(keyed_schema: PrimaryKeySchema, rows: pa.Table, deleted: Bools) -> tuple[pa.Table, Bools]:
    """Order the rows of an UPDATE, DELETE or MERGE so that a written row wins over the deletion of its key.

    Raises the errors of `require_rewritable`.
    """
    require_rewritable(keyed_schema.name, keyed_schema.properties, deletes=bool(deleted.any()))
    order = np.argsort(~deleted, kind="stable")
    return arrow_rows.take_rows(rows, order, distinct=True), deleted[order]


def require_unique_keys(keyed_schema: PrimaryKeySchema, batch: KeyedBatch) -> None:
    """Raise `SchemaMismatchError` if a key is written twice."""
    written = np.add.reduceat(~batch.deleted, batch.starts, dtype=np.int64)
    if (written <= 1).all():
        return
    row = int(batch.starts[np.argmax(written > 1)])
    key = ", ".join(
        f"{name} = {to_python(batch.columns[keyed_schema.schema.names.index(name)][row])!r}"
        for name in keyed_schema.key_schema.names
    )
    raise SchemaMismatchError(
        f"table {keyed_schema.name}: the MERGE writes {int(written.max())} rows with the primary key ({key}), expected "
        "one; deduplicate the rows of the source by the primary key"
    )


def resolve_targets(keyed_schema: PrimaryKeySchema, columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the non-key columns of a partial update; None for whole rows."""
    if columns is None:
        return None
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise InvalidOptionError(f"columns is {columns!r}, expected a list of column names")
    key = keyed_schema.key_schema.names
    chosen = {keyed_schema.schema.column(name).name for name in columns} - set(key)
    omitted = [c for c in keyed_schema.schema.columns if c.name not in {*chosen, *key}]
    missing = [c.name for c in omitted if not c.nullable and c.default is None]
    if missing:
        raise SchemaMismatchError(
            f"column '{missing[0]}' of {keyed_schema.name} is NOT NULL and missing from the partial update, so it "
            "would be null in a new row; write whole rows, or give the column a default"
        )
    return tuple(name for name in keyed_schema.schema.names if name in chosen)


def _require_key_columns(keyed_schema: PrimaryKeySchema, targets: Sequence[str] | None) -> TableSchema:
    if targets is None:
        return keyed_schema.schema
    names = {*targets, *keyed_schema.key_schema.names}
    return TableSchema(tuple(c for c in keyed_schema.schema.columns if c.name in names))


def pad_columns(rows: pa.Table, schema: TableSchema, *, with_defaults: bool = False) -> pa.Table:
    """Return the rows with all columns of the schema, matched by name. Missing columns are null.

    With ``with_defaults``, a missing column has its default.
    """
    schema = schema if with_defaults else without_defaults(schema)
    present = set(rows.schema.names)
    if tuple(rows.schema.names) == schema.names:
        return rows
    arrays = [rows.column(c.name) if c.name in present else default_values(c, rows.num_rows) for c in schema.columns]
    return pa.Table.from_arrays(arrays, names=list(schema.names))


def drop_ignored_deletions(keyed_schema: PrimaryKeySchema, rows: pa.Table, deleted: Bools) -> tuple[pa.Table, Bools]:
    """Drop deletions if the table ignores deletes. Raises `InvalidOptionError` if deletes are disabled."""
    behavior = keyed_schema.properties.delete_behavior
    if behavior == "allow" or not deleted.any():
        return rows, deleted
    if behavior == "disable":
        raise InvalidOptionError(
            f"table {keyed_schema.name} does not support deletes (table.delete.behavior is disable), but "
            f"{int(deleted.sum())} of {rows.num_rows} rows are deletes; remove them, or set the property to ignore, or "
            "to allow if the last row wins or columns are aggregated"
        )
    return rows.filter(pa.array(~deleted)), deleted[~deleted]
