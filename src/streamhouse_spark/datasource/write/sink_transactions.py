"""The identity under which a streaming batch is stored: the query's id and the batch id.

A table remembers the queries that wrote into it. Suppose that an unknown query comes with a later batch. Under a name
that another table had before, its table was dropped and created again (or renamed away) while it ran or slept: it is
refused. Under a name that only ever meant this table, it just goes on writing here, and is welcome.
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
from streamhouse_spark.log.commits.history_epochs import HistoryPoint
from streamhouse_spark.log.commits.idempotency import IN_REAL_TIME
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.commits.transactions import name_sum
from streamhouse_spark.log.lifecycle.names import other_table
from streamhouse_spark.log.progress_ids import place_id, read_at
from streamhouse_spark.table.table import Table

QUERY_ID_PROPERTY = "sql.streaming.queryId"
"""The local property in which Spark gives the tasks of a streaming query its id, the same over restarts."""


class Place(NamedTuple):
    """Rows of one bucket of the source, from one offset to another; -1 is the beginning of a bucket of which nothing
    is stored.
    """

    bucket: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """The log whose rows a query in real-time mode writes."""

    query_id: str
    source: str
    """Uuid of the table that is read."""

    def mark(self, app_id: str | None, num_ended: int) -> Transaction:
        """Return the transaction that says that the query writes in real-time mode, and how many of its batches ended.

        No micro-batch of the query may follow, because its number says nothing about the rows that are stored. Older
        versions of this package left version 0, whatever the batch.
        """
        return Transaction(app_id or self.query_id, num_ended + 1, f"{self.query_id}{IN_REAL_TIME}")

    def transaction(self, app_id: str | None, place: Place, record: HistoryPoint | None) -> Transaction:
        """Return the transaction of rows of one place; ``record`` is the newest of the source when they were read."""
        key = place_id(app_id or self.query_id, self.source, place.bucket)
        return Transaction(key, place.end, batch=read_at(record), follows=place.begin)


def query_transaction(
    app_id: str | None, batch_id: int, query_ids: AbstractSet[str | None], checkpoint: str | None, table: str
) -> Transaction | None:
    """Return the transaction of one batch; None if no identity can be found.

    ``query_ids`` are those that the tasks saw. Raises `TransactionConflictError` if they saw several.
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
    """Return the error for a batch without an identity: if Spark repeated it, it would be stored twice."""
    return InvalidOptionError(
        f"the stream into {table} shows no query id, neither in its tasks nor in its checkpoint, so repeated batches "
        "could not be told from new ones; set the option txnAppId to a name that stays the same over restarts",
    )


def is_first_under_reused_name(table: Table, batch: Transaction) -> bool:
    """Tell whether this is the query's first batch in a table whose name meant another table before.

    Such a batch has to be recorded even without rows, so that the next one is known. Raises `TableNotFoundError` if it
    is not the query's first batch: those before went into the other table.
    """
    if _has_query(table.state, batch) or _has_query(table.refresh(), batch):
        return False
    other = other_table(table.storage, table.path, table.uuid)
    if other is not None and batch.version > 0:
        entry = f"Transaction({batch.app_id!r}, {batch.version - 1}, {batch.owner!r})"
        raise TableNotFoundError(
            f"batch {batch.version} of stream {batch.app_id}: table {table.name} ({table.uuid}) has none of its "
            f"earlier batches, and the name meant table {other} before: the stream's table was dropped and "
            "created again, or renamed. Nothing was written. Start with a new checkpointLocation to write all rows; "
            f"or, to go on without those of earlier batches, first run Table.append([], transaction={entry})",
        )
    return other is not None


def _has_query(state: TableState, batch: Transaction) -> bool:
    if batch.app_id in state.transactions or name_sum(batch.app_id) in state.past_transactions:
        return True
    if batch.owner is None:
        return False
    past_owners = (past.owner_sum for past in state.past_transactions.values())
    return any(e.owner == batch.owner for e in state.transactions.values()) or name_sum(batch.owner) in past_owners


def _fingerprint(checkpoint: str | None, batch_id: int) -> str | None:
    """Return a fingerprint of the offsets and the time that Spark wrote down for the batch, once, before it ran it
    first.
    """
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
    """Return the id in a checkpoint's metadata file, if it can be read from here without Hadoop."""
    folder = _local_path(checkpoint)
    if folder is None:
        return None
    try:
        query_id = json.loads((folder / "metadata").read_text(encoding="utf-8")).get("id")
    except (OSError, ValueError, AttributeError):
        return None
    return query_id if isinstance(query_id, str) and query_id else None
