"""Checkpoints that count: records may be voided, and deleted, only below two of them."""

from __future__ import annotations

import logging

from streamhouse_spark.errors import CorruptDataError, FormatVersionError, ObjectNotFoundError
from streamhouse_spark.log.commits.checkpoint import as_stored, list_checkpoints, read_checkpoint
from streamhouse_spark.log.commits.record import read_record
from streamhouse_spark.log.commits.state import TableState, fold
from streamhouse_spark.storage.base import Storage

logger = logging.getLogger(__name__)

CHECKPOINTS_KEPT = 2
"""Number of checkpoints at or above the floor, so that damage to one leaves the table readable."""


def verified_checkpoints(storage: Storage, state: TableState) -> list[TableState]:
    """Return the newest `CHECKPOINTS_KEPT`, the newest first, whose bytes are whole and whose content is right.

    A checkpoint is right if it and the records behind it make the next newer one; the newest has to be ``state``
    itself. Others are logged and left out.
    """
    found: list[TableState] = []
    known = as_stored(state)
    for number in reversed(list_checkpoints(storage, state.table_uuid)):
        if number > state.version:
            continue
        stored = _readable(storage, state.table_uuid, number)
        if stored is None:
            continue
        if _folded(storage, stored, known.version) != known:
            logger.error("checkpoint %d of %s does not say what the records say; delete this file", number, state.name)
            continue
        found.append(stored)
        known = stored
        if len(found) == CHECKPOINTS_KEPT:
            break
    return found


def has_whole_checkpoints(storage: Storage, table_uuid: str, *, at_least: int) -> bool:
    """Tell whether `CHECKPOINTS_KEPT` at this record or later can be read now."""
    whole = 0
    for number in reversed(list_checkpoints(storage, table_uuid)):
        if number < at_least or whole == CHECKPOINTS_KEPT:
            break
        whole += _readable(storage, table_uuid, number) is not None
    return whole == CHECKPOINTS_KEPT


def _readable(storage: Storage, table_uuid: str, number: int) -> TableState | None:
    try:
        return read_checkpoint(storage, table_uuid, number)
    except ObjectNotFoundError:  # another cleaner was faster, by more than the grace
        return None
    except (CorruptDataError, FormatVersionError) as error:
        logger.warning("a checkpoint does not count: %s", error)
        return None


def _folded(storage: Storage, state: TableState, version: int) -> TableState | None:
    try:
        while state.version < version:
            state = fold(state, read_record(storage, state.table_uuid, state.version + 1)[0])
    except (ObjectNotFoundError, CorruptDataError):
        return None
    return state
