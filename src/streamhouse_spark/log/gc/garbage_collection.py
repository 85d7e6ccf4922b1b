"""Deletes files that no reader or writer can need any more. The log decides, and a grace period passes before deletion.

=====================  ==========================================  ========================================
file                   condemned by                                deleted
=====================  ==========================================  ========================================
replaced, trimmed      the replace or trim record itself           the grace after that record
state of a tag         the record that drops the tag; of a clone   the grace after that record
                       that is buried, see `catalog.branches`
left out of the        the record that sets the archive            the grace after that record
change archive
orphan                 a condemn record, once the file is older    the grace after that record
                       than the grace and no record names it
commit record          a watermark above it                            the grace after the watermark
checkpoint             two newer, whole ones at or above a watermark   the grace after the watermark
watermark                  a newer one, see `log/low_watermark.py`    at once
temporary file         nothing: it can only be its writer's        the grace after it was last written
=====================  ==========================================  ========================================

Files that the state of a tag names are retained as long as the tag, and a grace period longer. A late writer finds its
segment condemned, or its record number below the watermark, and writes again. Every step may be interrupted and
repeated. Listings only find candidates; the log decides about each of them. Records may be voided and deleted only
below two verified checkpoints.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import Any, Final

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import (
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
from streamhouse_spark.errors import CorruptDataError, FormatVersionError, InvalidOptionError, ObjectNotFoundError
from streamhouse_spark.log.actions import Action, ConfirmDeleted, DropTag, MarkOrphans
from streamhouse_spark.log.archive.pages import ArchiveObjectKeys, find_first_record_to_archive
from streamhouse_spark.log.catalog.branches import forget_deleted_clones
from streamhouse_spark.log.checkpoint import as_stored, list_checkpoints, read_checkpoint, read_tagged_object
from streamhouse_spark.log.commit_log import WATERMARK_CHECK_MS, CommitLog
from streamhouse_spark.log.low_watermark import find_watermark_before, list_superfluous_watermarks, write_low_watermark
from streamhouse_spark.log.object_existence import list_referenced_keys, manifest_keys
from streamhouse_spark.log.record import read_record
from streamhouse_spark.log.state import TableState, fold
from streamhouse_spark.storage.base import ObjectInfo, Storage
from streamhouse_spark.storage.prefetch import Prefetch, delete_all, map_with_store_concurrency

logger = logging.getLogger(__name__)

GRACE_MS = 24 * 3600 * 1000
GRACE_MS_MIN = 10 * WATERMARK_CHECK_MS
ORPHAN_MEMORY_MS = 7 * 24 * 3600 * 1000
WATERMARK_STEP_MIN = 50
_FOLDERS = (segments_prefix, manifests_prefix, tags_prefix)
CHECKPOINTS_KEPT = 2
"""Number of checkpoints retained at or above the watermark, so that the table survives damage to one."""
_RECORDS_AHEAD: Final = 64
"""Records that are prefetched at once, and held in memory."""


@dataclass(slots=True)
class CleanReport:
    """Changes that `clean` made, or would make with ``dry_run``."""

    dry_run: bool
    condemned: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    watermark: int | None = None
    untagged: list[str] = field(default_factory=list)
    """Expired tags, and tags of deleted clones."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Uuid of a dropped table → reason why it was skipped."""


def check_grace(grace_ms: int) -> None:
    """Raise `InvalidOptionError` for a grace period that is too short to protect active writers and readers."""
    if type(grace_ms) is not int:
        raise InvalidOptionError(f"grace_ms is {grace_ms!r}, expected milliseconds as a whole number")
    if grace_ms < GRACE_MS_MIN:
        raise InvalidOptionError(
            f"grace of {grace_ms} ms: active writers and readers need at least {GRACE_MS_MIN} ms; choose more",
        )


def clean(log: CommitLog, storage: Storage, *, grace_ms: int = GRACE_MS, dry_run: bool = False) -> CleanReport:
    """Delete files that were condemned a grace period ago, then condemn files that are no longer needed.

    Raises `InvalidOptionError` for a grace period below ten minutes, which could not protect active writers and
    readers.
    """
    check_grace(grace_ms)
    report = CleanReport(dry_run)
    state, watermark, listed = _read_and_list(log, storage)
    now_ms = storage.now_ms()
    _untag_expired(log, state, now_ms, report)
    report.untagged.extend(forget_deleted_clones(log, storage, state, dry_run=dry_run))
    _delete_marked(log, storage, state, now_ms, grace_ms, report)
    _delete_records(log, storage, listed, now_ms, grace_ms, report)
    _delete_temporary(log, storage, now_ms, grace_ms, report)
    _mark_orphans(log, storage, listed, watermark, now_ms, grace_ms, report)
    _advance_start(log, storage, listed, watermark, report)
    return report


@dataclass(frozen=True, slots=True)
class _Listed:
    """The content of a log's folders before anything was deleted: candidates, about which the log decides."""

    records: Sequence[int]
    checkpoints: Sequence[int]
    objects: Sequence[ObjectInfo]
    """Segments, manifests and states of tags."""


def _read_and_list(log: CommitLog, storage: Storage) -> tuple[TableState, int, _Listed]:
    """Return the latest state, the latest watermark and the content of the folders, in the time of one request."""
    uuid = log.table_uuid
    looks: list[Callable[[], Any]] = [
        log.refresh,
        log.refresh_low_watermark,
        lambda: parse_numbers(storage.list_names(commits_prefix(uuid))),
        lambda: list_checkpoints(storage, uuid),
        *(partial(storage.list, prefix_of(uuid)) for prefix_of in _FOLDERS),
    ]
    state, watermark, records, checkpoints, *objects = map_with_store_concurrency(storage, lambda look: look(), looks)
    return state, watermark, _Listed(records, checkpoints, [info for listing in objects for info in listing])


def _delete(storage: Storage, keys: Sequence[str], report: CleanReport) -> None:
    report.deleted.extend(keys)
    if not report.dry_run:
        delete_all(storage, keys)


def _untag_expired(log: CommitLog, state: TableState, now_ms: int, report: CleanReport) -> None:
    def expired(state: TableState) -> tuple[str, ...]:
        return tuple(name for name, tag in state.tags.items() if tag.until_ms is not None and tag.until_ms <= now_ms)

    report.untagged.extend(expired(state))
    if report.untagged and not report.dry_run:
        log.commit(lambda current, _: (DropTag(names),) if (names := expired(current)) else ())


def _list_tag_keys(storage: Storage, state: TableState, due: set[str]) -> set[str]:
    """Return the keys named by states of tags, including tags that were dropped less than a grace period ago.

    Raises `CorruptDataError` or `ObjectNotFoundError` if a state cannot be read; nothing is deleted then.
    """
    prefix = tags_prefix(state.table_uuid)
    dropped = {key for key in state.condemned if key.startswith(prefix) and key not in due}
    keys = {tag_key(state.table_uuid, tag.uuid) for tag in state.tags.values()} | dropped
    states = map_with_store_concurrency(
        storage, lambda key: read_tagged_object(storage, state.table_uuid, key), sorted(keys)
    )
    return {key for tagged in states for key in list_referenced_keys(tagged)}


def _delete_marked(
    log: CommitLog, storage: Storage, state: TableState, now_ms: int, grace_ms: int, report: CleanReport
) -> None:
    passed = [key for key, c in state.condemned.items() if c.time_ms + grace_ms <= now_ms]
    tagged = _list_tag_keys(storage, state, set(passed))
    due = [key for key in passed if key not in tagged]
    _delete(storage, due, report)
    forgettable = tuple(
        k for k in due if not state.condemned[k].orphan or state.condemned[k].time_ms + ORPHAN_MEMORY_MS <= now_ms
    )
    if forgettable and not report.dry_run:
        log.commit(lambda current, _: (ConfirmDeleted(tuple(k for k in forgettable if k in current.condemned)),))


def _delete_records(
    log: CommitLog, storage: Storage, listed: _Listed, now_ms: int, grace_ms: int, report: CleanReport
) -> None:
    effective = find_watermark_before(storage, log.table_uuid, log.watermark_index, now_ms - grace_ms)
    if not effective:
        return
    records = [commit_key(log.table_uuid, n) for n in listed.records if n < effective]
    superseded = listed.checkpoints[:-CHECKPOINTS_KEPT]
    checkpoints = [checkpoint_key(log.table_uuid, n) for n in superseded if n < effective]
    if not records and not checkpoints:
        return
    if not has_whole_checkpoints(storage, log.table_uuid, listed.checkpoints, at_least=log.refresh_low_watermark() - 1):
        logger.error(
            "%s: fewer than two checkpoints at its watermark are whole, so no record is deleted", log.state.name
        )
        return
    state = log.refresh()  # records with rows of a tag were above every watermark when the tag was made
    due = {key for key, c in state.condemned.items() if c.time_ms + grace_ms <= now_ms}
    tagged = _list_tag_keys(storage, state, due)
    _delete(storage, [*(key for key in records if key not in tagged), *checkpoints], report)


def _delete_temporary(log: CommitLog, storage: Storage, now_ms: int, grace_ms: int, report: CleanReport) -> None:
    list_temporary = getattr(storage, "list_temporary", None)
    if list_temporary is not None:
        temporary = list_temporary(table_prefix(log.table_uuid))
        _delete(storage, [i.key for i in temporary if i.modified_ms + grace_ms <= now_ms], report)


def _mark_orphans(
    log: CommitLog, storage: Storage, listed: _Listed, watermark: int, now_ms: int, grace_ms: int, report: CleanReport
) -> None:
    deleted = set(report.deleted)
    old = [i.key for i in listed.objects if i.modified_ms + grace_ms <= now_ms and i.key not in deleted]

    def orphans(state: TableState) -> tuple[str, ...]:
        named = list_referenced_keys(state) | manifest_keys(state, at_least=watermark) | of_archive(state)
        return tuple(k for k in old if k not in named and k not in state.condemned)

    of_archive = ArchiveObjectKeys(storage)
    report.condemned.extend(orphans(log.state))
    if report.condemned and not report.dry_run:

        def plan(state: TableState, _time_ms: int) -> Sequence[Action]:
            keys = orphans(state)
            return (MarkOrphans(keys),) if keys else ()

        log.commit(plan)


def _advance_start(log: CommitLog, storage: Storage, listed: _Listed, newest: int, report: CleanReport) -> None:
    """Void the records that two verified checkpoints make superfluous and that hold no live rows.

    ``newest`` is the watermark at the start of this run.
    """
    checkpoints = listed.checkpoints
    superfluous = list_superfluous_watermarks(storage, log.table_uuid, log.watermark_index)
    _delete(storage, superfluous, report)
    if len(checkpoints) < CHECKPOINTS_KEPT or checkpoints[-CHECKPOINTS_KEPT] < newest + WATERMARK_STEP_MIN:
        return
    state = log.refresh()
    verified = verify_checkpoints(storage, state, checkpoints)
    if len(verified) < CHECKPOINTS_KEPT:
        return
    needed = (verified[-1].version, state.oldest_inline_commit(), find_first_record_to_archive(state))
    watermark = min(number for number in needed if number is not None)
    if watermark < log.refresh_low_watermark() + WATERMARK_STEP_MIN:
        return
    report.watermark = watermark
    if not report.dry_run:
        write_low_watermark(
            storage, log.table_uuid, log.watermark_index + 1, watermark
        )  # no effect if another process put this watermark


# -- verified checkpoints ---------------------------------------------------------------------------------------------


def verify_checkpoints(storage: Storage, state: TableState, listed: Sequence[int] | None = None) -> list[TableState]:
    """Return the latest `CHECKPOINTS_KEPT` checkpoints that are whole and correct, the latest first.

    A checkpoint is correct if folding the records after it yields the next later one; the last must yield ``state``.
    Others are logged and skipped. ``listed`` are the numbers of existing checkpoints.
    """
    verified: list[TableState] = []
    newer = as_stored(state)
    for number in reversed(list_checkpoints(storage, state.table_uuid) if listed is None else listed):
        if number > state.version:
            continue
        stored = _read_if_whole(storage, state.table_uuid, number)
        if stored is None:
            continue
        if _fold_records(storage, stored, newer.version) != newer:
            logger.error("checkpoint %d of %s does not say what the records say; delete this file", number, state.name)
            continue
        verified.append(stored)
        newer = stored
        if len(verified) == CHECKPOINTS_KEPT:
            break
    return verified


def has_whole_checkpoints(storage: Storage, table_uuid: str, listed: Sequence[int], *, at_least: int) -> bool:
    """Return whether `CHECKPOINTS_KEPT` of the ``listed`` checkpoints at this record or later can be read now."""
    whole = 0
    for number in reversed(listed):
        if number < at_least or whole == CHECKPOINTS_KEPT:
            break
        whole += _read_if_whole(storage, table_uuid, number) is not None
    return whole == CHECKPOINTS_KEPT


def _read_if_whole(storage: Storage, table_uuid: str, number: int) -> TableState | None:
    try:
        return read_checkpoint(storage, table_uuid, number)
    except ObjectNotFoundError:  # another process deleted it, after the grace period
        return None
    except (CorruptDataError, FormatVersionError) as error:
        logger.warning("a checkpoint does not count: %s", error)
        return None


def _fold_records(storage: Storage, state: TableState, version: int) -> TableState | None:
    ahead = Prefetch(storage)
    try:
        while state.version < version:
            number = state.version + 1
            if not ahead.has(commit_key(state.table_uuid, number)):
                following = range(number, min(number + _RECORDS_AHEAD, version + 1))
                ahead.expect(commit_key(state.table_uuid, n) for n in following)
            state = fold(state, read_record(storage, state.table_uuid, number, ahead)[0])
    except (ObjectNotFoundError, CorruptDataError):
        return None
    return state
