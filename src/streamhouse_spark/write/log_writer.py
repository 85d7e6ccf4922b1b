"""Appends to a log table: stage, commit, and retry if the columns changed concurrently."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeVar

import pyarrow as pa

from streamhouse_spark.core.concurrency import new_lock
from streamhouse_spark.core.progress import track_rows
from streamhouse_spark.core.types import BucketOffsets, Transaction, check_transaction
from streamhouse_spark.errors import CommitConflictError, InvalidOptionError, SchemaMismatchError, StreamhouseError
from streamhouse_spark.log.append_commit import DeleteActionsFactory, StateCheck, commit_append
from streamhouse_spark.log.commit_validation import require_writable
from streamhouse_spark.log.identity_allocation import IdentityRanges
from streamhouse_spark.log.staging import BucketRouter, RowStager, StagedRows, merge_staged_rows
from streamhouse_spark.log.state import TableState
from streamhouse_spark.schema.column_defaults import evaluate_defaults
from streamhouse_spark.schema.default_expressions import StatementContext
from streamhouse_spark.schema.row_conversion import convert_rows, is_rereadable, iter_tables, open_stream
from streamhouse_spark.table_handle import TableHandle
from streamhouse_spark.write.auto_compaction import compact_if_due

SCHEMA_CHANGES_MAX = 10
"""Retries of a write after concurrent schema changes."""
_T = TypeVar("_T")


def retry_schema_changes(
    table: TableHandle,
    rows: Any,
    write: Callable[[], _T],
    errors: tuple[type[StreamhouseError], ...] = (CommitConflictError,),
) -> _T:
    """Return the result of ``write``, and retry it if the schema changed concurrently.

    If ``rows`` can be read only once, the write is not retried.
    """
    for attempt in itertools.count():
        schema_id = table.state.schema_id
        try:
            return write()
        except errors:
            is_same = table.refresh().schema_id == schema_id
            if is_same or attempt == SCHEMA_CHANGES_MAX or not is_rereadable(rows):
                raise
    raise AssertionError


class LogTableWriter:
    """Appends to one log table. Thread-safe."""

    def __init__(self, table: TableHandle) -> None:
        self.table = table
        self._cached_stager: tuple[int, Mapping[str, str], RowStager] | None = None
        self._lock = new_lock()
        self._numbers: IdentityRanges | None = None

    def append(
        self,
        rows: Any,
        transaction: Transaction | None,
        *,
        overwrite: bool = False,
        require: StateCheck | None = None,
    ) -> BucketOffsets:
        """Stage and commit rows, and retry if the schema changed concurrently.

        Rejects a materialized table before it checks the rows or the transaction.
        """
        require_writable(self.table.state, transaction)

        def attempt() -> BucketOffsets:
            return self.commit(self.stage(rows), transaction=transaction, overwrite=overwrite, require=require)

        return retry_schema_changes(self.table, rows, attempt)

    def commit(
        self,
        staged: StagedRows,
        *,
        transaction: Transaction | None = None,
        overwrite: bool = False,
        removing: DeleteActionsFactory | None = None,
        require: StateCheck | None = None,
    ) -> BucketOffsets:
        """Commit staged rows, also of other processes, and compact inline rows if due. See `commit_append`."""
        check_transaction(transaction)
        offsets, committed = commit_append(
            self.table.log, staged, transaction=transaction, overwrite=overwrite, removing=removing, require=require
        )
        if committed.is_first:
            compact_if_due(self.table, committed.state)
        return offsets

    def stage(self, rows: Any) -> StagedRows:
        """Convert the rows with `fit_pieces` and stage them."""
        state, missing, pieces = self.fit_pieces(rows)
        stager = self.stager(state)
        return merge_staged_rows(stager.stage(piece, missing) for piece in pieces)

    def fit_pieces(self, rows: Any) -> tuple[TableState, frozenset[int], Iterator[pa.Table]]:
        """Convert rows as `fit_rows` does. A stream is converted in pieces, one of which is in memory at a time."""
        reader = open_stream(rows, self.table.name)
        state, fitted, missing = self.fit_rows(rows if reader is None else reader.schema.empty_table())
        if reader is None:
            return state, missing, iter((fitted,))
        schema, older = evaluate_defaults(state.schema, StatementContext.of(self.table.world)), state.schemas
        pieces = (convert_rows(piece, schema, table=self.table.name, older=older)[0] for piece in iter_tables(reader))
        tracked = track_rows(pieces, f"append to {self.table.name}", None, self.table.world.clock)
        return state, missing, chain((fitted,), tracked)

    def fit_rows(self, rows: Any) -> tuple[TableState, pa.Table, frozenset[int]]:
        """Convert rows to the columns of the table; see `convert_rows`. Refreshes a stale schema.

        Returns the state with the schema, the rows, and the ids of the columns that were missing.
        """
        table = self.table
        state = table.state
        try:
            return state, *self._convert(rows, state)
        except SchemaMismatchError:
            stale_state, state = state, table.refresh()
            if state.schema_id == stale_state.schema_id or not is_rereadable(rows):
                raise
            return state, *self._convert(rows, state)

    def _convert(self, rows: Any, state: TableState) -> tuple[pa.Table, frozenset[int]]:
        schema = evaluate_defaults(state.schema, StatementContext.of(self.table.world))
        return convert_rows(rows, schema, table=self.table.name, older=state.schemas)

    def identity_ranges(self, state: TableState) -> IdentityRanges | None:
        """Return the allocator of identity values; None for a table without an identity column."""
        with self._lock:
            identity = state.parsed.identity
            if self._numbers is None and identity is not None:
                self._numbers = IdentityRanges(self.table.log, identity, self.table.name)
            return self._numbers

    def stager(self, state: TableState | None = None) -> RowStager:
        """Return the stager for the schema and properties of a state, by default of the cached state.

        Raises `InvalidOptionError` for a primary-key table.
        """
        table = self.table
        state = state or table.state
        if state.primary_key:
            raise InvalidOptionError(
                f"table {table.name} has the primary key {', '.join(state.primary_key)}, and an append could "
                "duplicate keys; use upsert(rows)"
            )
        with self._lock:
            if (
                self._cached_stager is None
                or self._cached_stager[0] != state.schema_id
                or self._cached_stager[1] is not state.properties
            ):
                self._cached_stager = (state.schema_id, state.properties, self._make_stager(state))
            return self._cached_stager[2]

    def restoring_stager(self, state: TableState) -> RowStager:
        """Return a stager for rows of an earlier version, which keep their identity values."""
        return self._make_stager(state, accepts_identity_values=True)

    def _make_stager(self, state: TableState, *, accepts_identity_values: bool = False) -> RowStager:
        table, properties = self.table, state.parsed
        return RowStager(
            table.storage,
            table.uuid,
            table.segment_options(state),
            BucketRouter.of(state.num_buckets, properties),
            table.world,
            checks=properties.checks,
            generated=properties.generated,
            numbers=self.identity_ranges(state),
            keeps_given=accepts_identity_values,
            table=table.name,
        )
