"""The chain of a table's floors: finds the latest in few requests, and the old ones that may be deleted.

Floors are numbered without gaps when they are put, and their values only grow. Every `LANDMARK_EVERY`-th floor is a
landmark. Landmarks and all floors up to the first landmark are never deleted. Others are deleted once a landmark lies
above them.

**Invariant:** a process that knows floor ``k`` finds a later one, if there is one, by reading ``k + 1`` and then the
next landmark above ``k``, however long ago it read ``k``. If ``k + 1`` was deleted, that landmark existed before.
Floors are never found by listing; checkpoints only say where to start.
"""

from __future__ import annotations

from typing import Final

from streamhouse_spark.core.warehouse_layout import floor_key, floors_prefix, parse_numbers
from streamhouse_spark.errors import CorruptDataError, FormatVersionError, ObjectNotFoundError
from streamhouse_spark.log.checkpoint import LANDMARK_EVERY, Floor, decode_floor, read_floor
from streamhouse_spark.storage.base import Storage, url_of
from streamhouse_spark.storage.prefetch import Prefetch
from streamhouse_spark.storage.sequence_search import find_last

NO_FLOOR: Final = 0


def next_floor_keys(table_uuid: str, index: int) -> list[str]:
    """Return the keys that `find_newest_floor` reads if there is no later floor."""
    landmark = (index // LANDMARK_EVERY + 1) * LANDMARK_EVERY
    return [
        floor_key(table_uuid, index + 1),
        *([] if _is_never_deleted(index + 1) else [floor_key(table_uuid, landmark)]),
    ]


def find_newest_floor(
    storage: Storage, table_uuid: str, known_index: int = NO_FLOOR, *, ahead: Prefetch | None = None
) -> tuple[int, Floor | None]:
    """Return index and content of the latest floor above ``known_index``; ``(known_index, None)`` if there is none.

    Floors in ``ahead`` are as they were when it read them. Without a later floor this takes one request in a young
    chain and two in an old one; otherwise a few per doubling of the distance. Raises `CorruptDataError` if all copies
    of the latest floor are damaged.
    """
    contents: dict[int, bytes] = {}

    def exists(index: int) -> bool:
        try:
            contents[index] = (ahead or storage).read(floor_key(table_uuid, index))
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
    return index, decode_floor(contents[index], url_of(storage, floor_key(table_uuid, index)))


def _is_never_deleted(index: int) -> bool:
    return index <= LANDMARK_EVERY or index % LANDMARK_EVERY == 0


def find_floor_before(storage: Storage, table_uuid: str, newest: int, before_ms: int) -> int:
    """Return the largest floor that a search by time finds at ``before_ms`` or earlier; 0 for none."""
    begin = max(newest // LANDMARK_EVERY * LANDMARK_EVERY, 1)
    older = range(begin - LANDMARK_EVERY, 0, -LANDMARK_EVERY) if begin > 1 else range(0)
    indexes = [*range(newest, begin - 1, -1), *older]
    best, low, high = 0, 0, len(indexes)
    while low < high:
        middle = (low + high) // 2
        floor = _read_if_whole(storage, table_uuid, indexes[middle])
        if floor is not None and floor.time_ms <= before_ms:
            best, high = max(best, floor.floor), middle
        else:
            low = middle + 1
    return best


def _read_if_whole(storage: Storage, table_uuid: str, index: int) -> Floor | None:
    try:
        return read_floor(storage, table_uuid, index)
    except (CorruptDataError, FormatVersionError):
        return None


def list_superfluous_floors(storage: Storage, table_uuid: str, newest: int) -> list[str]:
    """Return the keys of floors that no reader needs: those between two landmarks, from the first landmark on.

    Floors that follow a landmark index without a landmark stay: an older version of this package put it, and reads on
    from there floor by floor.
    """
    last = newest // LANDMARK_EVERY
    if last < 2:
        return []
    first, high = 0, last  # the first landmark: all later ones are landmarks too
    while high - first > 1:
        middle = (first + high) // 2
        floor = _read_if_whole(storage, table_uuid, middle * LANDMARK_EVERY)
        if floor is not None and floor.is_landmark:
            high = middle
        else:
            first = middle
    numbers = parse_numbers(storage.list_names(floors_prefix(table_uuid)))
    passed = range(high * LANDMARK_EVERY + 1, last * LANDMARK_EVERY)
    return [floor_key(table_uuid, n) for n in numbers if n in passed and n % LANDMARK_EVERY]
