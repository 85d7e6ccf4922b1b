"""Identity of a streaming batch in the table: the query id and the batch id.

A table records the queries that wrote into it. An unknown query with a batch id above 0 is suspicious. If the name
belonged to another table before, the stream's table was dropped and recreated, or renamed, and the batch is rejected.
Otherwise the query is new to this table, and the batch is accepted.
"""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import xxhash

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import StreamBatch, Transaction
from streamhouse_spark.errors import InvalidOptionError, TableNotFoundError, TransactionConflictError
from streamhouse_spark.log.catalog.names import find_other_table
from streamhouse_spark.log.commit_validation import IN_REAL_TIME
from streamhouse_spark.log.history_index import HistoryPoint
from streamhouse_spark.log.state import TableState
from streamhouse_spark.log.transactions import hash_name, make_progress_batch, make_progress_id
from streamhouse_spark.table.table import Table

QUERY_ID_PROPERTY = "sql.streaming.queryId"
"""Local property that holds a streaming query's id in its tasks; stable across restarts."""


class SourceRows(NamedTuple):
    """Rows of one source bucket between two offsets. ``begin`` is -1 if no row of the bucket is stored yet."""

    bucket: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """Transactions of a real-time query that writes the rows of a source table."""

    query_id: str
    source: str
    """Uuid of the source table."""

    def mark(self, app_id: str | None, num_ended: int) -> Transaction:
        """Return the transaction that records that the query writes in real-time mode, and how many batches ended.

        It causes later micro-batches of the query to be rejected, because a batch id does not determine which rows are
        stored. Older versions of this package always wrote version 0.
        """
        return Transaction(app_id or self.query_id, num_ended + 1, f"{self.query_id}{IN_REAL_TIME}")

    def transaction(self, app_id: str | None, rows: SourceRows, record: HistoryPoint | None) -> Transaction:
        """Return the transaction for source rows. ``record`` is the source's latest record when they were read."""
        key = make_progress_id(app_id or self.query_id, self.source, rows.bucket)
        return Transaction(key, rows.end, batch=make_progress_batch(record), follows=rows.begin)


def query_transaction(
    app_id: str | None, batch_id: int, query_ids: AbstractSet[str | None], checkpoint: str | None, table: str
) -> Transaction | None:
    """Return the transaction of a batch, or None if neither tasks nor checkpoint show the query id.

    ``query_ids`` are the ids that the tasks saw. Raises `TransactionConflictError` if there are several.
    """
    known_ids = {q for q in query_ids if q}
    if len(known_ids) > 1:
        raise TransactionConflictError(
            f"tasks of one batch into {table} belong to queries {sorted(known_ids)}; nothing was written"
        )
    query_id = next(iter(known_ids), None) or _query_id_of(checkpoint)
    if app_id is None and query_id is None:
        return None
    batch = StreamBatch(_fingerprint(checkpoint, batch_id), is_each_recorded=app_id is not None)
    return Transaction(app_id or query_id or "", batch_id, query_id, batch)


def missing_identity_error(table: str) -> InvalidOptionError:
    """Return the error for a batch without an identity, which a replay by Spark would store twice."""
    return InvalidOptionError(
        f"the stream into {table} has no query id in its tasks or its checkpoint, so repeated batches cannot be "
        "distinguished from new batches; set the option txnAppId to a name that restarts do not change"
    )


def is_first_batch_of_recreated_table(table: Table, batch: Transaction) -> bool:
    """Return whether this is the query's first batch in a table whose name belonged to another table before.

    Such a batch is recorded even without rows, so that later batches are recognised. Raises `TableNotFoundError` if it
    is not batch 0, because earlier batches were written into the other table.
    """
    if _has_query(table.state, batch) or _has_query(table.refresh(), batch):
        return False
    other = find_other_table(table.storage, table.path, table.uuid)
    if other is not None and batch.version > 0:
        entry = f"Transaction({batch.app_id!r}, {batch.version - 1}, {batch.owner!r})"
        raise TableNotFoundError(
            f"batch {batch.version} of stream {batch.app_id}: table {table.name} ({table.uuid}) has no earlier "
            f"batches, and its name belonged to table {other} before: the stream's table was dropped and created "
            "again, or renamed. Nothing was written. Start with a new checkpointLocation to write all rows; or, to "
            f"continue without the rows of earlier batches, first run Table.append([], transaction={entry})"
        )
    return other is not None


def _has_query(state: TableState, batch: Transaction) -> bool:
    if batch.app_id in state.transactions or hash_name(batch.app_id) in state.past_transactions:
        return True
    if batch.owner is None:
        return False
    past_owners = (past.owner_sum for past in state.past_transactions.values())
    return any(e.owner == batch.owner for e in state.transactions.values()) or hash_name(batch.owner) in past_owners


def _fingerprint(checkpoint: str | None, batch_id: int) -> str | None:
    """Return a hash of the offset file that Spark wrote for the batch before its first run, if it is a local file."""
    folder = _local_path(checkpoint)
    if folder is None:
        return None
    try:
        return xxhash.xxh3_128_hexdigest((folder / "offsets" / str(batch_id)).read_bytes())
    except OSError:
        return None


def _local_path(checkpoint: str | None) -> Path | None:
    parts = urlsplit(checkpoint or "")
    if not checkpoint or parts.scheme not in ("", "file"):
        return None
    return Path(unquote(parts.path) if parts.scheme else checkpoint)


def _query_id_of(checkpoint: str | None) -> str | None:
    """Return the query id in a checkpoint's metadata file, if the checkpoint is on a local disk."""
    folder = _local_path(checkpoint)
    if folder is None:
        return None
    try:
        query_id = json.loads((folder / "metadata").read_text(encoding="utf-8")).get("id")
    except (OSError, ValueError, AttributeError):
        return None
    return query_id if isinstance(query_id, str) and query_id else None
