"""Deletion of files that no reader or writer can need any more. Deletion is decided in the log, then waits a grace.

=====================  ==========================================  ========================================
file                   condemned by                                deleted
=====================  ==========================================  ========================================
replaced, trimmed      the replace or trim record itself           the grace after that record
state of a tag         the record that drops the tag               the grace after that record
orphan                 a condemn record, once the file is older    the grace after that record
                       than the grace and no record names it
commit record          a floor above it                            the grace after the floor
checkpoint             two newer, whole ones at or above a floor   the grace after the floor
floor                  a newer one, see `log/commits/floors.py`            at once
temporary file         nothing: it can only be its writer's        the grace after it was last written
=====================  ==========================================  ========================================

Files that the state of a tag names stay while the tag does, and the grace longer. A writer that comes late finds its
segment condemned, or its record number below the floor, and writes anew. Every step
may be interrupted and repeated. Listings only find candidates; the log decides about each of them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from streamhouse_spark.core.paths import (
    checkpoint_key,
    commit_key,
    commits_prefix,
    manifests_prefix,
    parse_numbers,
    segments_prefix,
    table_prefix,
    tag_key,
    tags_prefix,
)
from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.log.commits.actions import Action, Condemn, Purge, Untag
from streamhouse_spark.log.commits.checkpoint import list_checkpoints, read_tagged_object, write_floor
from streamhouse_spark.log.commits.commit_log import FLOOR_CHECK_MS, CommitLog
from streamhouse_spark.log.commits.floors import floor_before, superfluous_floors
from streamhouse_spark.log.commits.referenced import manifest_keys, referenced_keys
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.commits.verified import CHECKPOINTS_KEPT, has_whole_checkpoints, verified_checkpoints
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.read_ahead import at_once, delete_all

logger = logging.getLogger(__name__)

GRACE_MS = 24 * 3600 * 1000
GRACE_MS_MIN = 10 * FLOOR_CHECK_MS
ORPHAN_MEMORY_MS = 7 * 24 * 3600 * 1000
FLOOR_STEP_MIN = 50


@dataclass(slots=True)
class CleanReport:
    """Changes that `clean` made, or with ``dry_run`` would make."""

    dry_run: bool
    condemned: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    floor: int | None = None
    untagged: list[str] = field(default_factory=list)
    """Tags whose time to be kept is over."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Uuid of a dropped table → reason why it was left as it is."""


def check_grace(grace_ms: int) -> None:
    """Raise `InvalidOptionError` for a grace too short to protect writers and readers under way."""
    if type(grace_ms) is not int:
        raise InvalidOptionError(f"grace_ms is {grace_ms!r}, expected milliseconds as a whole number")
    if grace_ms < GRACE_MS_MIN:
        raise InvalidOptionError(
            f"grace of {grace_ms} ms: writers and readers under way need at least {GRACE_MS_MIN} ms; choose more",
        )


def clean(log: CommitLog, storage: Storage, *, grace_ms: int = GRACE_MS, dry_run: bool = False) -> CleanReport:
    """Delete files that were condemned long enough ago, then condemn newly unneeded ones.

    Raises `InvalidOptionError` for a grace below ten minutes, which could not protect writers and readers under way.
    """
    check_grace(grace_ms)
    report = CleanReport(dry_run)
    state = log.refresh()
    now_ms = storage.now_ms()
    _untag_expired(log, state, now_ms, report)
    _delete_marked(log, storage, state, now_ms, grace_ms, report)
    _delete_records(log, storage, now_ms, grace_ms, report)
    _delete_temporary(log, storage, now_ms, grace_ms, report)
    _mark_orphans(log, storage, now_ms, grace_ms, report)
    _advance_start(log, storage, report)
    return report


def _delete(storage: Storage, keys: Sequence[str], report: CleanReport) -> None:
    report.deleted.extend(keys)
    if not report.dry_run:
        delete_all(storage, keys)


def _untag_expired(log: CommitLog, state: TableState, now_ms: int, report: CleanReport) -> None:
    def expired(state: TableState) -> tuple[str, ...]:
        return tuple(name for name, tag in state.tags.items() if tag.until_ms is not None and tag.until_ms <= now_ms)

    report.untagged.extend(expired(state))
    if report.untagged and not report.dry_run:
        log.commit(lambda current, _: (Untag(names),) if (names := expired(current)) else ())


def _tagged_keys(storage: Storage, state: TableState, due: set[str]) -> set[str]:
    """Return what the states of tags name, and those of tags that were dropped less than the grace ago.

    Raises `CorruptDataError` or `ObjectNotFoundError` where one cannot be read: then nothing is deleted.
    """
    prefix = tags_prefix(state.table_uuid)
    dropped = {key for key in state.condemned if key.startswith(prefix) and key not in due}
    keys = {tag_key(state.table_uuid, tag.uuid) for tag in state.tags.values()} | dropped
    return {k for key in keys for k in referenced_keys(read_tagged_object(storage, state.table_uuid, key))}


def _delete_marked(
    log: CommitLog, storage: Storage, state: TableState, now_ms: int, grace_ms: int, report: CleanReport
) -> None:
    passed = [key for key, c in state.condemned.items() if c.time_ms + grace_ms <= now_ms]
    tagged = _tagged_keys(storage, state, set(passed))
    due = [key for key in passed if key not in tagged]
    _delete(storage, due, report)
    forgettable = tuple(
        k for k in due if not state.condemned[k].orphan or state.condemned[k].time_ms + ORPHAN_MEMORY_MS <= now_ms
    )
    if forgettable and not report.dry_run:
        log.commit(lambda current, _: (Purge(tuple(k for k in forgettable if k in current.condemned)),))


def _delete_records(log: CommitLog, storage: Storage, now_ms: int, grace_ms: int, report: CleanReport) -> None:
    log.check_floor()
    effective = floor_before(storage, log.table_uuid, log.floor_index, now_ms - grace_ms)
    if not effective:
        return
    numbers = parse_numbers(storage.list_names(commits_prefix(log.table_uuid)))
    records = [commit_key(log.table_uuid, n) for n in numbers if n < effective]
    listed = list_checkpoints(storage, log.table_uuid)
    checkpoints = [checkpoint_key(log.table_uuid, n) for n in listed[:-CHECKPOINTS_KEPT] if n < effective]
    if not records and not checkpoints:
        return
    if not has_whole_checkpoints(storage, log.table_uuid, at_least=log.check_floor() - 1):
        logger.error("%s: fewer than two checkpoints at its floor are whole, so no record is deleted", log.state.name)
        return
    state = log.refresh()  # a record of which a tag has rows was above every floor when the tag was made
    due = {key for key, c in state.condemned.items() if c.time_ms + grace_ms <= now_ms}
    tagged = _tagged_keys(storage, state, due)
    _delete(storage, [*(key for key in records if key not in tagged), *checkpoints], report)


def _delete_temporary(log: CommitLog, storage: Storage, now_ms: int, grace_ms: int, report: CleanReport) -> None:
    list_temporary = getattr(storage, "list_temporary", None)
    if list_temporary is not None:
        found = list_temporary(table_prefix(log.table_uuid))
        _delete(storage, [i.key for i in found if i.modified_ms + grace_ms <= now_ms], report)


def _mark_orphans(log: CommitLog, storage: Storage, now_ms: int, grace_ms: int, report: CleanReport) -> None:
    uuid = log.table_uuid
    prefixes = (segments_prefix(uuid), manifests_prefix(uuid), tags_prefix(uuid))
    listed = [info for found in at_once(storage, storage.list, prefixes) for info in found]
    old = [i.key for i in listed if i.modified_ms + grace_ms <= now_ms]
    floor = log.check_floor()

    def orphans(state: TableState) -> tuple[str, ...]:
        named = referenced_keys(state) | manifest_keys(state, at_least=floor)
        return tuple(k for k in old if k not in named and k not in state.condemned)

    report.condemned.extend(orphans(log.state))
    if report.condemned and not report.dry_run:

        def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
            keys = orphans(state)
            return (Condemn(keys),) if keys else ()

        log.commit(plan)


def _advance_start(log: CommitLog, storage: Storage, report: CleanReport) -> None:
    """Void the records that two verified checkpoints make superfluous and that hold no live rows."""
    newest = log.check_floor()
    superfluous = superfluous_floors(storage, log.table_uuid, log.floor_index)
    _delete(storage, superfluous, report)
    listed = list_checkpoints(storage, log.table_uuid)
    if len(listed) < CHECKPOINTS_KEPT or listed[-CHECKPOINTS_KEPT] < newest + FLOOR_STEP_MIN:
        return
    state = log.refresh()
    verified = verified_checkpoints(storage, state)
    if len(verified) < CHECKPOINTS_KEPT:
        return
    oldest_inline = state.oldest_inline_commit()
    floor = min(verified[-1].version, oldest_inline if oldest_inline is not None else state.version)
    if floor < log.check_floor() + FLOOR_STEP_MIN:
        return
    report.floor = floor
    if not report.dry_run:
        write_floor(storage, log.table_uuid, log.floor_index + 1, floor)  # or another cleaner was faster
