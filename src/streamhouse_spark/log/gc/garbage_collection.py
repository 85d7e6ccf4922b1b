"""Deletes files that no reader or writer can need any more. The log decides, and a grace period passes before deletion.

=====================  ==========================================  =======================================
file                   condemned by                                deleted one grace period after
=====================  ==========================================  =======================================
replaced, trimmed      the replace or trim record                  that record
state of a tag         the record that drops the tag, or the tag   that record
                       of a buried clone (`catalog.branches`)
removed from the       the record that sets the archive            that record
change archive
orphan                 a condemn record, if no record names the    that record
                       file and it is older than the grace period
commit record          a low watermark above it                    the low watermark
checkpoint             two later, whole checkpoints at or above a  the low watermark
                       low watermark
low watermark          a later one (`log.low_watermark`)           no grace period: deleted immediately
temporary file         nothing: only its writer can use it         the last write to it
=====================  ==========================================  =======================================

Files that the state of a tag names are retained until one grace period after the tag is dropped. A late writer finds
that its segment is condemned, or that its record number is below the low watermark, and writes again. Every step may be
interrupted and repeated. Listings only find candidates; the log decides about each candidate. Records are voided and
deleted only below two verified checkpoints.
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
from streamhouse_spark.log.actions import ConfirmDeleted, DropTag, MarkOrphans
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
"""Number of checkpoints retained at or above the low watermark, so that the table survives damage to one checkpoint."""
_RECORDS_AHEAD: Final = 64
"""Records that are prefetched together, and held in memory."""


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

    Raises `InvalidOptionError` for a grace period below ten minutes, which would not protect active writers and
    readers.
    """
    check_grace(grace_ms)
    run = _start_run(log, storage, grace_ms, dry_run=dry_run)
    _untag_expired(run)
    run.report.untagged.extend(forget_deleted_clones(log, storage, run.state, dry_run=dry_run))
    _delete_marked(run)
    _delete_records(run)
    _delete_temporary(run)
    _mark_orphans(run)
    _advance_start(run)
    return run.report


@dataclass(frozen=True, slots=True)
class _CleanRun:
    """A run of `clean`, with the content of the log before anything was deleted."""

    log: CommitLog
    storage: Storage
    grace_ms: int
    report: CleanReport
    now_ms: int
    state: TableState
    watermark: int
    """The low watermark."""
    records: Sequence[int]
    checkpoints: Sequence[int]
    objects: Sequence[ObjectInfo]
    """Segments, manifests and states of tags."""

    @property
    def table_uuid(self) -> str:
        return self.log.table_uuid

    def is_due(self, time_ms: int) -> bool:
        """Return whether the grace period that started at ``time_ms`` has ended."""
        return time_ms + self.grace_ms <= self.now_ms


def _start_run(log: CommitLog, storage: Storage, grace_ms: int, *, dry_run: bool) -> _CleanRun:
    """Read the latest state, the low watermark and the content of the folders, in the time of one request."""
    uuid = log.table_uuid
    reads: list[Callable[[], Any]] = [
        log.refresh,
        log.refresh_low_watermark,
        lambda: parse_numbers(storage.list_names(commits_prefix(uuid))),
        lambda: list_checkpoints(storage, uuid),
        *(partial(storage.list, prefix_of(uuid)) for prefix_of in _FOLDERS),
    ]
    state, watermark, records, checkpoints, *listings = map_with_store_concurrency(storage, lambda read: read(), reads)
    objects = [info for listing in listings for info in listing]
    report = CleanReport(dry_run)
    return _CleanRun(log, storage, grace_ms, report, storage.now_ms(), state, watermark, records, checkpoints, objects)


def _delete(run: _CleanRun, keys: Sequence[str]) -> None:
    run.report.deleted.extend(keys)
    if not run.report.dry_run:
        delete_all(run.storage, keys)


def _untag_expired(run: _CleanRun) -> None:
    def expired(state: TableState) -> tuple[str, ...]:
        return tuple(
            name for name, tag in state.tags.items() if tag.until_ms is not None and tag.until_ms <= run.now_ms
        )

    run.report.untagged.extend(expired(run.state))
    if run.report.untagged and not run.report.dry_run:
        run.log.commit(lambda current, _: (DropTag(names),) if (names := expired(current)) else ())


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


def _delete_marked(run: _CleanRun) -> None:
    condemned = run.state.condemned
    passed = [key for key, c in condemned.items() if run.is_due(c.time_ms)]
    tagged = _list_tag_keys(run.storage, run.state, set(passed))
    due = [key for key in passed if key not in tagged]
    _delete(run, due)
    forgettable = tuple(
        key for key in due if not condemned[key].orphan or condemned[key].time_ms + ORPHAN_MEMORY_MS <= run.now_ms
    )
    if forgettable and not run.report.dry_run:
        run.log.commit(lambda current, _: (ConfirmDeleted(tuple(k for k in forgettable if k in current.condemned)),))


def _delete_records(run: _CleanRun) -> None:
    log, uuid = run.log, run.table_uuid
    effective = find_watermark_before(run.storage, uuid, log.watermark_index, run.now_ms - run.grace_ms)
    if not effective:
        return
    records = [commit_key(uuid, n) for n in run.records if n < effective]
    checkpoints = [checkpoint_key(uuid, n) for n in run.checkpoints[:-CHECKPOINTS_KEPT] if n < effective]
    if not records and not checkpoints:
        return
    if not has_whole_checkpoints(run.storage, uuid, run.checkpoints, at_least=log.refresh_low_watermark() - 1):
        logger.error(
            "%s: fewer than two checkpoints at its low watermark are whole, so no record is deleted", log.state.name
        )
        return
    state = log.refresh()  # records with rows of a tag were above the low watermark when the tag was created
    due = {key for key, c in state.condemned.items() if run.is_due(c.time_ms)}
    tagged = _list_tag_keys(run.storage, state, due)
    _delete(run, [*(key for key in records if key not in tagged), *checkpoints])


def _delete_temporary(run: _CleanRun) -> None:
    list_temporary = getattr(run.storage, "list_temporary", None)
    if list_temporary is not None:
        temporary = list_temporary(table_prefix(run.table_uuid))
        _delete(run, [info.key for info in temporary if run.is_due(info.modified_ms)])


def _mark_orphans(run: _CleanRun) -> None:
    deleted = set(run.report.deleted)
    old = [info.key for info in run.objects if run.is_due(info.modified_ms) and info.key not in deleted]
    archive_keys = ArchiveObjectKeys(run.storage)

    def orphans(state: TableState) -> tuple[str, ...]:
        named = list_referenced_keys(state) | manifest_keys(state, at_least=run.watermark) | archive_keys(state)
        return tuple(key for key in old if key not in named and key not in state.condemned)

    run.report.condemned.extend(orphans(run.log.state))
    if run.report.condemned and not run.report.dry_run:
        run.log.commit(lambda current, _: (MarkOrphans(keys),) if (keys := orphans(current)) else ())


def _advance_start(run: _CleanRun) -> None:
    """Void the records without live rows that two verified checkpoints make superfluous."""
    log, storage, checkpoints = run.log, run.storage, run.checkpoints
    _delete(run, list_superfluous_watermarks(storage, run.table_uuid, log.watermark_index))
    step_end = run.watermark + WATERMARK_STEP_MIN
    if len(checkpoints) < CHECKPOINTS_KEPT or checkpoints[-CHECKPOINTS_KEPT] < step_end:
        return
    state = log.refresh()
    verified = verify_checkpoints(storage, state, checkpoints)
    if len(verified) < CHECKPOINTS_KEPT:
        return
    needed = (verified[-1].version, state.oldest_inline_commit(), find_first_record_to_archive(state))
    watermark = min(number for number in needed if number is not None)
    if watermark < log.refresh_low_watermark() + WATERMARK_STEP_MIN:
        return
    run.report.watermark = watermark
    if not run.report.dry_run:  # no effect if another process put this low watermark
        write_low_watermark(storage, run.table_uuid, log.watermark_index + 1, watermark)


# -- verified checkpoints ---------------------------------------------------------------------------------------------


def verify_checkpoints(storage: Storage, state: TableState, listed: Sequence[int] | None = None) -> list[TableState]:
    """Return the latest `CHECKPOINTS_KEPT` checkpoints that are whole and correct, the latest first.

    A checkpoint is correct if folding the records after it yields the next correct checkpoint, or ``state`` for the
    latest. Incorrect checkpoints are logged and skipped. ``listed`` are the numbers of existing checkpoints.
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
            logger.error("checkpoint %d of %s differs from the state of the records; delete it", number, state.name)
            continue
        verified.append(stored)
        newer = stored
        if len(verified) == CHECKPOINTS_KEPT:
            break
    return verified


def has_whole_checkpoints(storage: Storage, table_uuid: str, listed: Sequence[int], *, at_least: int) -> bool:
    """Return whether `CHECKPOINTS_KEPT` of the ``listed`` checkpoints from record ``at_least`` can be read."""
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
        logger.warning("a checkpoint is skipped: %s", error)
        return None


def _fold_records(storage: Storage, state: TableState, version: int) -> TableState | None:
    prefetch = Prefetch(storage)
    try:
        while state.version < version:
            number = state.version + 1
            if not prefetch.has(commit_key(state.table_uuid, number)):
                following = range(number, min(number + _RECORDS_AHEAD, version + 1))
                prefetch.expect(commit_key(state.table_uuid, n) for n in following)
            state = fold(state, read_record(storage, state.table_uuid, number, prefetch)[0])
    except (ObjectNotFoundError, CorruptDataError):
        return None
    return state
