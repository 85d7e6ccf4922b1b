"""Verified checkpoints: records may be voided and deleted only below two of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from streamhouse_spark.core.paths import commit_key
from streamhouse_spark.errors import CorruptDataError, FormatVersionError, ObjectNotFoundError
from streamhouse_spark.log.commits.checkpoint import as_stored, list_checkpoints, read_checkpoint
from streamhouse_spark.log.commits.record import read_record
from streamhouse_spark.log.commits.state import TableState, fold
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import Prefetch

logger = logging.getLogger(__name__)

CHECKPOINTS_KEPT = 2
"""Number of checkpoints retained at or above the floor, so that the table survives damage to one."""
_RECORDS_AHEAD: Final = 64
"""Records that are prefetched at once, and held in memory."""


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
