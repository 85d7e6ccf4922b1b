"""Clones, as known to the table that they were made from: a tag per clone, of the version that it started from.

The clone is a table with its own log before the tag is made. The tag exists before the clone reads any file that it
retains. A clone that never got a name is therefore dropped and buried like any table without a name. Its tag is dropped
by one rule: once the clone's tombstone exists, which is permanent. Neither a clock nor a listing decides.
"""

from __future__ import annotations

from typing import Final

from streamhouse_spark.log.commits.actions import DropTag
from streamhouse_spark.log.commits.checkpoint import DROPPED_FLOOR
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.low_watermark import find_newest_floor
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.commits.tags import TaggedVersion
from streamhouse_spark.log.lifecycle.branches import find_branches
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import map_with_store_concurrency

CLONE: Final = "clone:"
"""Prefix of such a tag, followed by the clone's uuid. Users' tags have no colon."""


def list_clones(state: TableState) -> list[str]:
    """Return the uuids of the clones that a table knows, including deleted ones whose tag was not dropped yet."""
    return sorted(name.removeprefix(CLONE) for name in state.tags if name.startswith(CLONE))


def base_version_of_clone(state: TableState, uuid: str) -> TaggedVersion:
    """Return the version that a clone started from. Raises `KeyError` for an unknown clone."""
    return state.tags[f"{CLONE}{uuid}"]


def list_live_clones(storage: Storage, state: TableState) -> list[str]:
    """Return the uuids of the clones that may still read files of this table: those without a tombstone."""
    uuids = list_clones(state)
    buried = map_with_store_concurrency(storage, lambda uuid: _is_buried(storage, uuid), uuids)
    return [uuid for uuid, is_buried in zip(uuids, buried, strict=True) if not is_buried]


def forget_deleted_clones(log: CommitLog, storage: Storage, state: TableState, *, dry_run: bool = False) -> list[str]:
    """Drop the tags of buried clones and branches, and return their names. **Commit point:** the record."""
    uuids_by_tag = {f"{CLONE}{uuid}": uuid for uuid in list_clones(state)}
    uuids_by_tag |= {branch.tag: branch.uuid for branch in find_branches(state)}
    buried = map_with_store_concurrency(storage, lambda uuid: _is_buried(storage, uuid), list(uuids_by_tag.values()))
    dropped = [name for name, is_buried in zip(uuids_by_tag, buried, strict=True) if is_buried]
    if dropped and not dry_run:
        log.commit(
            lambda current, _: (DropTag(names),) if (names := tuple(n for n in dropped if n in current.tags)) else ()
        )
    return dropped


def _is_buried(storage: Storage, uuid: str) -> bool:
    _, floor = find_newest_floor(storage, uuid)
    return floor is not None and floor.floor >= DROPPED_FLOOR
