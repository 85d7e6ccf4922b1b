"""System tables of a table as Arrow tables, such as its history, segments, commits and buckets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import join_names
from streamhouse_spark.core.types import PUBLICATIONS, ROLLBACKS, OffsetRange
from streamhouse_spark.core.warehouse_layout import segment_key
from streamhouse_spark.errors import InvalidNameError, quote
from streamhouse_spark.log import actions as act
from streamhouse_spark.log.catalog.branches import BRANCH_TAG, find_branches
from streamhouse_spark.log.commit_reader import iter_records_backwards
from streamhouse_spark.log.deletion_vectors import DeleteRows
from streamhouse_spark.log.record import CommitAttempt, Record
from streamhouse_spark.log.segment import Segment
from streamhouse_spark.log.state import TableState
from streamhouse_spark.log.transactions import lineage_of
from streamhouse_spark.schema.partitioning import SetPartitioning
from streamhouse_spark.storage.base import Storage

_MAINTENANCE: Final[Sequence[tuple[type[Any], str]]] = (
    (DeleteRows, "delete"),
    (act.Drop, "drop"),
    (act.Undrop, "undrop"),
    (act.Tombstone, "bury"),
    (act.ResetLake, "retier"),
    (SetPartitioning, "change partitioning"),
    (act.SetSchema, "change columns"),
    (act.SetProperties, "set properties"),
    (act.Rename, "rename"),
    (act.TieredSnapshot, "tier"),
    (act.Replace, "merge segments"),
    (act.KvSnapshot, "publish keys"),
    (act.Trim, "trim"),
    (act.MarkOrphans, "clean"),
    (act.ConfirmDeleted, "clean"),
    (act.CommitConsumerOffset, "move consumer"),
    (act.ForgetTransactions, "forget writers"),
    (act.ExpireTransactions, "forget writers"),
    (act.Tag, "tag"),
    (act.DropTag, "drop tag"),
    (act.SetArchive, "archive"),
)
"""Action type → operation, for records without rows. The first matching entry is used."""
_TIME = pa.timestamp("ms", "UTC")
SYSTEM_TABLES: Mapping[str, pa.Schema] = {
    "buckets": pa.schema([
        ("bucket", pa.int32()),
        ("log_start_offset", pa.int64()),
        ("log_end_offset", pa.int64()),
        ("lake_offset", pa.int64()),
        ("lag", pa.int64()),
        ("segments", pa.int64()),
        ("size_bytes", pa.int64()),
    ]),
    "segments": pa.schema([
        ("bucket", pa.int32()),
        ("start_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("num_rows", pa.int64()),
        ("size_bytes", pa.int64()),
        ("schema_id", pa.int32()),
        ("commit", pa.int64()),
        ("first_committed_at", _TIME),
        ("last_committed_at", _TIME),
        ("file", pa.string()),
    ]),
    "commits": pa.schema([
        ("commit", pa.int64()),
        ("committed_at", _TIME),
        ("actions", pa.string()),
        ("rows_added", pa.int64()),
        ("txn_app_id", pa.string()),
        ("txn_version", pa.int64()),
        ("attempt", pa.string()),
    ]),
    "history": pa.schema([
        ("version", pa.int64()),
        ("timestamp", _TIME),
        ("operation", pa.string()),
        ("user", pa.string()),
        ("engine", pa.string()),
        ("query_id", pa.string()),
        ("rows_added", pa.int64()),
        ("rows_deleted", pa.int64()),
        ("bytes_added", pa.int64()),
        ("files_added", pa.int64()),
        ("details", pa.string()),
    ]),
    "refs": pa.schema([
        ("name", pa.string()),
        ("type", pa.string()),
        ("version", pa.int64()),
        ("created_at", _TIME),
        ("expires_at", _TIME),
        ("lake_snapshot_id", pa.int64()),
    ]),
    "lineage": pa.schema([
        ("version", pa.int64()),
        ("source", pa.string()),
        ("source_version", pa.int64()),
        ("source_offsets", pa.string()),
    ]),
    "schemas": pa.schema([
        ("schema_id", pa.int32()),
        ("columns", pa.string()),
        ("is_current", pa.bool_()),
    ]),
    "options": pa.schema([("key", pa.string()), ("value", pa.string())]),
    "tiering": pa.schema([
        ("lake_snapshot_id", pa.int64()),
        ("recorded_at", _TIME),
        ("bucket", pa.int32()),
        ("lake_offset", pa.int64()),
    ]),
}  # fmt: skip
"""System table → its columns. ``timestamp`` columns are milliseconds in UTC."""


def history_rows(storage: Storage, state: TableState, limit: int | None = None) -> Sequence[Sequence[Any]]:
    """Return the latest ``limit`` rows of `$history`, oldest first. A record has one row per commit that shares it."""
    is_keyed = bool(state.primary_key)
    rows: list[Sequence[Any]] = []
    for record in iter_records_backwards(storage, state):
        rows += [_row(record, part, is_keyed=is_keyed) for part in reversed(record.attempts)]
        if limit is not None and len(rows) >= limit:
            break
    return rows[:limit][::-1]


def _row(record: Record, part: CommitAttempt, *, is_keyed: bool) -> Sequence[Any]:
    added = [segment for action in part.actions if isinstance(action, act.Append) for segment in action.segments]
    num_rows = sum(segment.num_rows for segment in added)
    num_deleted = sum(action.num_rows for action in part.actions if isinstance(action, DeleteRows))
    files = {segment.uuid for segment in added if segment.uuid is not None}
    return (
        record.number,
        record.time_ms,
        _branch_operation(part) or _rollback_operation(part) or operation_of(part.actions, added, is_keyed=is_keyed),
        record.author.user if record.author else None,
        record.author.engine if record.author else None,
        part.transaction.app_id if part.transaction else None,
        num_rows,
        None if _may_delete(part.actions, num_rows, is_keyed=is_keyed) else num_deleted,
        sum(segment.size_bytes for segment in added),
        len(files),
        _details(part),
    )


def _branch_operation(part: CommitAttempt) -> str | None:
    """Return the operation if it concerns a branch, else None."""
    if part.transaction is not None and part.transaction.app_id.startswith(PUBLICATIONS):
        return "publish"
    if any(isinstance(action, act.Tag) and action.name.startswith(BRANCH_TAG) for action in part.actions):
        return "branch"
    dropped_tags = (name for action in part.actions if isinstance(action, act.DropTag) for name in action.names)
    return "drop branch" if any(name.startswith(BRANCH_TAG) for name in dropped_tags) else None


def _rollback_operation(part: CommitAttempt) -> str | None:
    is_rollback = part.transaction is not None and part.transaction.app_id.startswith(ROLLBACKS)
    return "rollback" if is_rollback else None


def operation_of(actions: Sequence[act.Action], added: Sequence[Segment], *, is_keyed: bool) -> str:
    """Return the operation of a commit with these actions, which ``added`` segments."""
    first = actions[0]
    if isinstance(first, act.Create):
        return "copy" if first.former_uuids else "create"
    if any(isinstance(action, act.Truncate) for action in actions):
        return "overwrite" if added else "truncate"
    if any(segment.rewrites for segment in added):
        return "change"
    if added and any(isinstance(action, DeleteRows) for action in actions):
        return "overwrite"
    if any(isinstance(action, act.Append) for action in actions):
        return "upsert" if is_keyed else "append"
    return next(name for kind, name in _MAINTENANCE if any(isinstance(action, kind) for action in actions))


def _may_delete(actions: Sequence[act.Action], num_rows: int, *, is_keyed: bool) -> bool:
    """Return whether the commit may have removed rows that its record does not count."""
    return (is_keyed and num_rows > 0) or any(
        isinstance(action, act.Truncate)
        or (isinstance(action, act.TieredSnapshot) and action.dropped_rows)
        or (isinstance(action, act.ResetLake) and action.starts)
        for action in actions
    )


def _details(part: CommitAttempt) -> str | None:
    """Return the details of a commit as JSON, or None."""
    details: dict[str, Any] = {}
    for action in part.actions:
        match action:
            case act.Create(name=name) | act.Rename(name) | act.Undrop(name):
                details["name"] = name
            case act.SetProperties(changed, removed):
                details |= {"set": dict(changed), "unset": list(removed)}
            case act.SetSchema(schema_id):
                details["schema_id"] = schema_id
            case SetPartitioning(schema_id, columns, fields):
                details |= {"schema_id": schema_id, "partition_by": fields or join_names(columns)}
            case act.TieredSnapshot(snapshot_id):
                details["lake_snapshot_id"] = snapshot_id
            case act.ResetLake(lake_location):
                details["lake_location"] = lake_location
            case act.Tag(name, version):
                details |= {"tag": name, "tagged_version": version}
            case act.DropTag(names):
                details["tags"] = list(names)
            case act.CommitConsumerOffset(consumer_id):
                details["consumer_id"] = consumer_id
            case _:
                pass
    if part.transaction is not None:
        name = "to_version" if _rollback_operation(part) else "txn_version"
        details[name] = part.transaction.version
    return json.dumps(details, ensure_ascii=False) if details else None


@dataclass(frozen=True, slots=True)
class SystemTables:
    """Builds the system tables of one state."""

    storage: Storage
    state: TableState
    limit: int | None = None
    """Maximum number of rows of `$history`, which are the latest."""

    def read(self, name: object) -> pa.Table:
        if not isinstance(name, str) or name not in SYSTEM_TABLES:
            raise InvalidNameError(f"unknown system table {quote(name)}; available: {', '.join(SYSTEM_TABLES)}")
        rows: Callable[[], Sequence[Sequence[Any]]] = getattr(self, f"_{name}")
        schema = SYSTEM_TABLES[name]
        columns = list(zip(*rows(), strict=True)) or [()] * len(schema)
        return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)

    def _buckets(self) -> Sequence[Sequence[Any]]:
        out = []
        for bucket, log in self.state.buckets.items():
            lake_offset = self.state.lake_offset(bucket)
            size_bytes = sum(s.size_bytes for s in log.segments)
            out.append((bucket, log.start, log.end, lake_offset, log.end - lake_offset, len(log.segments), size_bytes))
        return out

    def _refs(self) -> Sequence[Sequence[Any]]:
        lake = self.state.lake.snapshot_id if self.state.lake is not None else None
        tags = [
            (name, "TAG", tag.version, tag.time_ms, tag.until_ms, tag.lake_snapshot)
            for name, tag in sorted(self.state.tags.items())
            if not name.startswith(BRANCH_TAG)
        ]
        branches = [
            (branch.name, "BRANCH", branch.base.version, branch.base.time_ms, None, branch.base.lake_snapshot)
            for branch in find_branches(self.state)
        ]
        return [("main", "BRANCH", self.state.version, self.state.time_ms, None, lake), *branches, *tags]

    def _segments(self) -> Sequence[Sequence[Any]]:
        return [
            (
                s.bucket,
                s.base_offset,
                s.end_offset,
                s.num_rows,
                s.size_bytes,
                s.schema_id,
                s.commit,
                s.first_time_ms,
                s.last_time_ms,
                segment_key(self.state.table_uuid, s.uuid) if s.uuid else None,
            )
            for s in self.state.live_segments()
        ]

    def _commits(self) -> Sequence[Sequence[Any]]:
        """List the retained records, oldest first."""
        out: list[Sequence[Any]] = []
        for record in iter_records_backwards(self.storage, self.state):
            out += [_commit_row(record, part) for part in reversed(record.attempts)]
        return out[::-1]

    def _history(self) -> Sequence[Sequence[Any]]:
        return history_rows(self.storage, self.state, self.limit)

    def _lineage(self) -> Sequence[Sequence[Any]]:
        """List the source versions of each refresh of a view whose record is retained, oldest first.

        If the view contains a source version in part, the row has the offsets at which the part ends.
        """
        out: list[Sequence[Any]] = []
        for record in iter_records_backwards(self.storage, self.state):
            for part in record.attempts:
                lineage = lineage_of(part.transaction)
                sources = reversed(lineage.sources) if lineage is not None else ()
                out += [(record.number, source.name, source.version, source.cut_text()) for source in sources]
        return out[::-1]

    def _schemas(self) -> Sequence[Sequence[Any]]:
        return [(i, schema.ddl(), i == self.state.schema_id) for i, schema in self.state.schemas.items()]

    def _options(self) -> Sequence[Sequence[Any]]:
        return sorted(self.state.properties.items())

    def _tiering(self) -> Sequence[Sequence[Any]]:
        return [
            (tiered.snapshot_id, tiered.time_ms, bucket, offset)
            for tiered in self.state.lake_history
            for bucket, offset in sorted(tiered.offsets.items())
        ]


def bucket_lags(state: TableState) -> dict[int, int]:
    """Return bucket → number of rows that are not tiered."""
    return {b: len(OffsetRange(min(state.lake_offset(b), log.end), log.end)) for b, log in state.buckets.items()}


def _snake(class_name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(class_name))


def _commit_row(record: Record, part: CommitAttempt) -> Sequence[Any]:
    """Return the row of `$commits` for one commit of the record."""
    kinds = [_snake(type(a).__name__) for a in part.actions]
    added = sum(s.num_rows for a in part.actions if isinstance(a, act.Append) for s in a.segments)
    txn = part.transaction
    return (
        record.number,
        record.time_ms,
        ", ".join(dict.fromkeys(kinds)),
        added,
        txn.app_id if txn else None,
        txn.version if txn else None,
        part.attempt,
    )
