"""Keys of the objects that a state references, and checks that staged objects survived a restore of the table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from streamhouse_spark.core.concurrency import parallel_map
from streamhouse_spark.core.warehouse_layout import commit_key, manifest_key, segment_key, tag_key
from streamhouse_spark.errors import CommitConflictError, ObjectNotFoundError
from streamhouse_spark.log.actions import Action, Append, KvSnapshot, Replace
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage

STAGED_MS_MIN: Final = 60_000
"""Files that were staged on a remote store no longer ago than this are assumed to be stored, because a check costs
requests.
"""


def list_referenced_keys(state: TableState) -> set[str]:
    """Return the keys of all files that a reader of this state may open, including records and the objects of tags."""
    keys: set[str] = set()
    for segment in state.kept_segments():
        if segment.uuid is not None:
            keys.add(segment_key(state.table_uuid, segment.uuid))
        else:
            keys.add(commit_key(state.table_uuid, segment.commit))
            if segment.commit in state.manifests:
                keys.add(manifest_key(state.table_uuid, state.manifests[segment.commit]))
    keys.update(tag_key(state.table_uuid, tag.uuid) for tag in state.tags.values())
    return keys


def manifest_keys(state: TableState, *, at_least: int = 0) -> set[str]:
    """Return the keys of the manifests of records ``at_least`` and later that may still be read."""
    return {manifest_key(state.table_uuid, uuid) for n, uuid in state.manifests.items() if n >= at_least}


def must_check_stored(storage: Storage, staged_ms: int) -> bool:
    """Return whether to check files staged since ``staged_ms``. On a local disk a check is cheap."""
    return storage.local_path("") is not None or storage.now_ms() - staged_ms > STAGED_MS_MIN


def list_staged_uuids(actions: Iterable[Action]) -> list[str]:
    """Return the distinct uuids of the objects that these actions add to the table."""
    segment_lists = (a.segments for a in actions if isinstance(a, Append | Replace | KvSnapshot))
    return list(
        dict.fromkeys(segment.uuid for segments in segment_lists for segment in segments if segment.uuid is not None)
    )


def require_stored(storage: Storage, state: TableState, uuids: Sequence[str]) -> None:
    """Raise `CommitConflictError` unless these segments are stored. Sends one request per segment."""

    def size(uuid: str) -> int:
        return storage.size_bytes(segment_key(state.table_uuid, uuid))

    try:
        for _ in parallel_map(size, uuids):
            pass
    except ObjectNotFoundError as error:
        raise CommitConflictError(
            f"{state.name}: staged rows were deleted before they were committed ({error}), because the table was "
            "restored from a backup or its folder was cleared; nothing was written, write the rows again"
        ) from error
