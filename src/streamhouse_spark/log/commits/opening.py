"""The beginning of a read of a log where requests take long: at a checkpoint, with all that follows it asked for ahead.

A process that fell far behind need not read all records in between either. Once some of the news follow the record that
it stands on, a checkpoint behind them is of the same log, and says the same as the records before it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from streamhouse_spark.core.paths import checkpoint_hint_key, checkpoint_key, commit_key
from streamhouse_spark.errors import CorruptDataError, FormatVersionError, ObjectNotFoundError
from streamhouse_spark.log.commits.checkpoint import Checkpoint, find_checkpoint, parsed_hint, read_from
from streamhouse_spark.log.commits.floors import keys_behind
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.read_ahead import ReadAhead

logger = logging.getLogger(__name__)

_HINT_AFTER: Final = 5
LEAP_AFTER: Final = 15
"""News that are read before a checkpoint is looked for, the hint together with the last ten of them."""
LEAP_MIN: Final = 20
"""Distance of a checkpoint that is worth reading: fewer records take no more round trips."""


def begin(
    storage: Storage, table_uuid: str, at_least: int, ahead: ReadAhead
) -> tuple[Checkpoint | None, Sequence[CorruptDataError | FormatVersionError]]:
    """Find the checkpoint to begin with, as `find_checkpoint` does. Floors behind the one that it knows are asked for
    with the next records.
    """
    found, damaged = find_checkpoint(storage, table_uuid, at_least=at_least, ahead=ahead)
    ahead.join(keys_behind(table_uuid, found.floor_index if found is not None else 0))
    return found, damaged


def leap(ahead: ReadAhead, table_uuid: str, num_news: int, version: int) -> Checkpoint | None:
    """Return a checkpoint far behind the record ``version``, which is the last of some news; None to read on."""
    if not ahead.is_useful or num_news > LEAP_AFTER:
        return None
    if num_news == _HINT_AFTER:
        ahead.join([checkpoint_hint_key(table_uuid)])
    if num_news < LEAP_AFTER:
        return None
    number = parsed_hint(ahead.found(checkpoint_hint_key(table_uuid)) or b"")
    if number is None or number < version + LEAP_MIN:
        return None
    records = (commit_key(table_uuid, number + step) for step in range(1, 1 + ahead.window))
    ahead.expect([checkpoint_key(table_uuid, number), *records])
    try:
        return read_from(ahead, table_uuid, number)
    except (CorruptDataError, FormatVersionError, ObjectNotFoundError) as error:
        logger.warning("a checkpoint is passed over: %s", error)
        return None
