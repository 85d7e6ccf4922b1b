"""The beginning of a batch of a stream into a table in real-time mode: the rows that are stored already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamhouse_spark.config.spark_options import parse_stream_write_options
from streamhouse_spark.datasource.write.query_identity import SourceOfRows
from streamhouse_spark.errors import TableNotFoundError, TransactionConflictError
from streamhouse_spark.log.commits.transactions import name_sum, stored_version
from streamhouse_spark.log.lifecycle.names import other_table
from streamhouse_spark.warehouse.connection import Connection


def begin_real_time_write(connection: Connection, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer the ``offsets`` of the source up to which rows are stored, by bucket; absent where there is none.

    The first batch leaves a mark that the query writes in real-time mode. **Commit point:** that mark's record.
    Raises `TransactionConflictError` for a query that wrote micro-batches, and `TableNotFoundError` where the table of
    an earlier batch was dropped.
    """
    options = parse_stream_write_options(args["options"])
    table = connection.table_by_uuid(args["name"], args["uuid"])
    state = table.refresh()
    rows = SourceOfRows(args["query"], args["source"])
    mark = rows.mark(options.app_id)
    app_id = mark.app_id
    known, past = state.transactions.get(app_id), state.past_transactions.get(name_sum(app_id))
    query = args["query"]
    if known.owner == query if known is not None else past is not None and past.owner_sum == name_sum(query):
        raise TransactionConflictError(
            f"application id {app_id!r} of {table.name} belongs to query {query} of micro-batches, and a "
            "real-time trigger cannot tell which of their rows are stored; go on with a micro-batch trigger, or start "
            "with a new checkpointLocation (and txnAppId) whose startingOffsets are behind the rows that are stored"
        )
    if stored_version(state.transactions, state.past_transactions, app_id) is None:
        other = other_table(table.storage, table.path, table.uuid)
        if other is not None and args["batch"] > 0:
            raise TableNotFoundError(
                f"batch {args['batch']} of stream {app_id}: table {table.name} ({table.uuid}) has none of its earlier "
                f"batches, and the name meant table {other} before: the stream's table was dropped and created again, "
                "or renamed. Nothing was written. Start with a new checkpointLocation to write all rows"
            )
    (table.upsert if state.primary_key else table.append)([], transaction=mark)
    state = table.refresh()
    found = {
        bucket: stored_version(
            state.transactions, state.past_transactions, rows.transaction(options.app_id, bucket, -1, 0).app_id
        )
        for bucket in range(args["buckets"])
    }
    return {"offsets": {str(bucket): offset for bucket, offset in found.items() if offset is not None}}
