"""Low watermarks: records below them are void, and may be deleted after the grace period.

Low watermark ``k`` is written by put-if-absent. Low watermarks are numbered without gaps, and their values only grow.
Every `LANDMARK_EVERY`-th is a landmark. Landmarks, and all low watermarks up to the first landmark, are never deleted.
Any other low watermark is deleted once a landmark lies above it.

**Invariant:** a process that knows low watermark ``k`` finds a later one by reading ``k + 1`` and then the next
landmark above ``k``, however long ago it read ``k``. If ``k + 1`` was deleted, that landmark was stored before.
Low watermarks are never found by listing; checkpoints only say where to start. A process that was suspended during a
clean-up therefore learns of it before it trusts an absent or reused record number.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import parse_numbers, watermark_key, watermarks_prefix
from streamhouse_spark.errors import CorruptDataError, FormatVersionError, ObjectNotFoundError
from streamhouse_spark.log.framing import decode_frame, encode_frame
from streamhouse_spark.storage.base import Storage, read_or_none, url_of
from streamhouse_spark.storage.prefetch import Prefetch
from streamhouse_spark.storage.put_if_absent import slot_for_bytes
from streamhouse_spark.storage.sequence_search import find_last

logger = logging.getLogger(__name__)

NO_WATERMARK: Final = 0
DROPPED_WATERMARK: Final = 10**19
"""The low watermark of a dropped table whose files are being deleted: every record number is permanently void."""
LANDMARK_EVERY = 256
_LANDMARK_VERSION = 2
"""Format of a landmark. It stops an older version of this package, which reads every low watermark and would miss those
after deleted ones.
"""
_COPIES = 2


@dataclass(frozen=True, slots=True)
class LowWatermark:
    """Records below ``number`` are void. ``time_ms`` is the store time of that decision."""

    number: int
    time_ms: int
    is_landmark: bool = False
    """Whether the low watermarks after it may be absent."""


def write_low_watermark(storage: Storage, table_uuid: str, index: int, number: int) -> bool:
    """Void the records below ``number``. Return False if another process has put low watermark ``index``.

    The object holds several copies, so that one survives a flipped bit: nothing else contains this number.
    """
    header: dict[str, Any] = {"table": table_uuid, "floor": number, "time_ms": storage.now_ms()}
    version = None
    if index % LANDMARK_EVERY == 0:
        header, version = {**header, "landmark": True}, _LANDMARK_VERSION
    copies = [encode_frame("floor", header, version=version)] * _COPIES
    data = encode_frame("floor", header, copies, version=version)
    return slot_for_bytes(storage, watermark_key(table_uuid, index), data).take(data).won()


def read_low_watermark(storage: Storage, table_uuid: str, index: int) -> LowWatermark | None:
    key = watermark_key(table_uuid, index)
    data = read_or_none(storage, key)
    return None if data is None else decode_low_watermark(data, url_of(storage, key))


def decode_low_watermark(data: bytes, where: str) -> LowWatermark:
    """Decode a low watermark from the object or one of its copies.

    Raises `CorruptDataError` if all copies are damaged, `FormatVersionError` for a newer format.
    """
    failure: CorruptDataError | FormatVersionError | None = None
    for copy in _split_copies(data):
        try:
            header = decode_frame("floor", copy, where, newest=_LANDMARK_VERSION).header
        except (CorruptDataError, FormatVersionError) as error:
            failure = failure or error
        else:
            if failure is not None:
                logger.warning("a copy in the object is used: %s", failure)
            return LowWatermark(header["floor"], header["time_ms"], header.get("landmark", False))
    assert failure is not None
    raise failure


def _split_copies(data: bytes) -> list[bytes]:
    """Return the whole object and the copies in its payload. Each copy is as long as the bytes before the copies."""
    size, rest = divmod(len(data), 1 + _COPIES)
    return [data] if rest or not size else [data, *(data[at : at + size] for at in range(size, len(data), size))]


def next_watermark_keys(table_uuid: str, index: int) -> list[str]:
    """Return the keys that `find_latest_watermark` reads if there is no later low watermark."""
    indexes = [index + 1]
    if not _is_never_deleted(index + 1):
        indexes.append((index // LANDMARK_EVERY + 1) * LANDMARK_EVERY)
    return [watermark_key(table_uuid, index) for index in indexes]


def find_latest_watermark(
    storage: Storage, table_uuid: str, known_index: int = NO_WATERMARK, *, prefetch: Prefetch | None = None
) -> tuple[int, LowWatermark | None]:
    """Return index and content of the latest low watermark above ``known_index``; ``(known_index, None)`` for none.

    Objects in ``prefetch`` are as they were when they were prefetched. Without a later low watermark this takes one
    request in a young log and two in an old one; otherwise a few per doubling of the distance. Raises
    `CorruptDataError` if all copies of the latest low watermark are damaged.
    """
    contents: dict[int, bytes] = {}

    def exists(index: int) -> bool:
        try:
            contents[index] = (prefetch or storage).read(watermark_key(table_uuid, index))
        except ObjectNotFoundError:
            return False
        return True

    index = known_index
    while True:
        following = exists(index + 1)
        if not following and _is_never_deleted(index + 1):
            break
        landmark = find_last(lambda step: exists(step * LANDMARK_EVERY), index // LANDMARK_EVERY)
        if landmark * LANDMARK_EVERY > index:
            index = landmark * LANDMARK_EVERY
        elif not following:
            break
        else:
            index += 1
        index = find_last(exists, index)
    if index == known_index:
        return known_index, None
    return index, decode_low_watermark(contents[index], url_of(storage, watermark_key(table_uuid, index)))


def _is_never_deleted(index: int) -> bool:
    return index <= LANDMARK_EVERY or index % LANDMARK_EVERY == 0


def find_watermark_before(storage: Storage, table_uuid: str, newest: int, before_ms: int) -> int:
    """Return the largest number of a low watermark that a search by time finds at ``before_ms`` or earlier; 0 for none.

    ``newest`` is the index of the latest low watermark.
    """
    begin = max(newest // LANDMARK_EVERY * LANDMARK_EVERY, 1)
    older = range(begin - LANDMARK_EVERY, 0, -LANDMARK_EVERY) if begin > 1 else range(0)
    indexes = [*range(newest, begin - 1, -1), *older]
    best, low, high = 0, 0, len(indexes)
    while low < high:
        middle = (low + high) // 2
        watermark = _read_if_whole(storage, table_uuid, indexes[middle])
        if watermark is not None and watermark.time_ms <= before_ms:
            best, high = max(best, watermark.number), middle
        else:
            low = middle + 1
    return best


def _read_if_whole(storage: Storage, table_uuid: str, index: int) -> LowWatermark | None:
    try:
        return read_low_watermark(storage, table_uuid, index)
    except (CorruptDataError, FormatVersionError):
        return None


def list_superfluous_watermarks(storage: Storage, table_uuid: str, newest: int) -> list[str]:
    """Return the keys of low watermarks that no reader needs: those between two landmarks, after the first landmark.

    Low watermarks after a multiple of `LANDMARK_EVERY` that is no landmark are retained. An older version of this
    package wrote it, and reads all that follow it.
    """
    last = newest // LANDMARK_EVERY
    if last < 2:
        return []
    first, high = 0, last  # the first landmark: all later ones are landmarks too
    while high - first > 1:
        middle = (first + high) // 2
        watermark = _read_if_whole(storage, table_uuid, middle * LANDMARK_EVERY)
        if watermark is not None and watermark.is_landmark:
            high = middle
        else:
            first = middle
    numbers = parse_numbers(storage.list_names(watermarks_prefix(table_uuid)))
    superfluous = range(high * LANDMARK_EVERY + 1, last * LANDMARK_EVERY)
    return [watermark_key(table_uuid, n) for n in numbers if n in superfluous and n % LANDMARK_EVERY]
