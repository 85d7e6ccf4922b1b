"""The identity under which a streaming batch is stored: the query's id and the batch id."""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet
from pathlib import Path
from urllib.parse import unquote, urlsplit

from streamhouse_spark.errors import InvalidOptionError, TransactionConflictError
from streamhouse_spark.model import Transaction

QUERY_ID_PROPERTY = "sql.streaming.queryId"
"""The local property in which Spark tells the tasks of a streaming query its id, the same over restarts."""


def query_transaction(
    app_id: str | None, batch_id: int, query_ids: AbstractSet[str | None], checkpoint: str | None, table: str
) -> Transaction:
    """The transaction of one batch.

    ``query_ids`` is what the tasks saw. Raises `InvalidOptionError` where no identity can be had, because a batch that
    Spark repeats would then be stored twice; `TransactionConflictError` where tasks saw several.
    """
    known = {q for q in query_ids if q}
    if len(known) > 1:
        raise TransactionConflictError(
            f"tasks of one batch into {table} belong to queries {sorted(known)}; nothing was written"
        )
    query_id = next(iter(known), None) or _query_id_of(checkpoint)
    if app_id is None and query_id is None:
        raise InvalidOptionError(
            f"the stream into {table} shows no query id, neither in its tasks nor in its checkpoint, so "
            "repeated batches could not be told from new ones; set the option txnAppId to a name that stays the same "
            "over restarts",
        )
    return Transaction(app_id or query_id or "", batch_id, query_id)


def _query_id_of(checkpoint: str | None) -> str | None:
    """The id in a checkpoint's metadata file, where it can be read from here without Hadoop."""
    if not checkpoint:
        return None
    parts = urlsplit(checkpoint)
    if parts.scheme not in ("", "file"):
        return None
    path = Path(unquote(parts.path) if parts.scheme else checkpoint) / "metadata"
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("id")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, str) and found else None
