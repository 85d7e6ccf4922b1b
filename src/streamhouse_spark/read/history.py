"""History of a table: its commits as `$history` shows them, derived from the retained records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from streamhouse_spark.config.partition_specs import SetPartitioning
from streamhouse_spark.core.option_parsing import join_names
from streamhouse_spark.core.types import PUBLICATIONS, ROLLBACKS
from streamhouse_spark.log.commit_reader import iter_records_backwards
from streamhouse_spark.log.commits import actions as act
from streamhouse_spark.log.commits.archive_metadata import SetArchive
from streamhouse_spark.log.commits.delete_vectors import DeleteRows
from streamhouse_spark.log.commits.record import CommitAttempt, Record
from streamhouse_spark.log.commits.segment import Segment
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.lifecycle.branches import BRANCH_TAG
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
    (SetArchive, "archive"),
)
"""Action → operation, for records without rows. The first matching entry names the record."""


def history_rows(storage: Storage, state: TableState, limit: int | None = None) -> Sequence[Sequence[Any]]:
    """Return the rows of `$history`, oldest first: one per attempt, of the latest ``limit`` at most."""
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
    files = {segment.uuid for segment in added if segment.uuid is not None}
    return (
        record.number,
        record.time_ms,
        _branch_operation(part) or _rollback_operation(part) or operation_of(part.actions, added, is_keyed=is_keyed),
        record.author.user if record.author else None,
        record.author.engine if record.author else None,
        part.transaction.app_id if part.transaction else None,
        num_rows,
        None if _may_delete(part.actions, num_rows, is_keyed=is_keyed) else _count_deleted(part.actions),
        sum(segment.size_bytes for segment in added),
        len(files),
        _details(part),
    )


def _branch_operation(part: CommitAttempt) -> str | None:
    """Return the name of a branch operation, or None if the attempt is none."""
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
    """Return the operation of an attempt with these actions, which ``added`` segments."""
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
    """Return whether rows may have been removed that the record does not count: by upserts, or all rows at once."""
    if any(isinstance(action, act.Truncate) for action in actions):
        return True
    if any(isinstance(action, act.TieredSnapshot) and action.dropped_rows for action in actions):
        return True
    if any(isinstance(action, act.ResetLake) and action.starts for action in actions):
        return True
    return is_keyed and num_rows > 0


def _count_deleted(actions: Sequence[act.Action]) -> int:
    """Count the rows deleted by offset, or by position in lake files."""
    return sum(action.num_rows for action in actions if isinstance(action, DeleteRows))


def _details(part: CommitAttempt) -> str | None:
    """Return the details of an attempt as JSON, or None."""
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
