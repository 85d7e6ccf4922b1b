"""The chain of a table's floors: its newest in few requests, and the old ones that may go.

Floors are put one behind the other, so at first they are dense, and their values only grow. Every `LANDMARK_EVERY`-th,
a landmark, is kept for good, and so are those up to the first landmark; others go once a landmark lies above them.

**Invariant:** a process that knows floor ``k`` learns of a newer one, if there is one, by reading ``k + 1`` and then
the next landmark above ``k``, however long ago it learned of ``k``: if ``k + 1`` was deleted, that landmark was there
before. Listings never find a floor; checkpoints only tell where to begin.
"""

from __future__ import annotations

from typing import Final

from streamhouse_spark.core.paths import floor_key, floors_prefix, parse_numbers
from streamhouse_spark.errors import CorruptDataError, FormatVersionError, ObjectNotFoundError
from streamhouse_spark.log.commits.checkpoint import LANDMARK_EVERY, Floor, decode_floor, read_floor
from streamhouse_spark.log.commits.sequence_search import find_last
from streamhouse_spark.storage.base import Storage, url_of
from streamhouse_spark.storage.prefetch import Prefetch

NO_FLOOR: Final = 0


def next_floor_keys(table_uuid: str, index: int) -> list[str]:
    """Return what `newest_floor` reads where there is no newer one."""
    landmark = (index // LANDMARK_EVERY + 1) * LANDMARK_EVERY
    return [
        floor_key(table_uuid, index + 1),
        *([] if _is_never_deleted(index + 1) else [floor_key(table_uuid, landmark)]),
    ]


def newest_floor(
    storage: Storage, table_uuid: str, known_index: int = NO_FLOOR, *, ahead: Prefetch | None = None
) -> tuple[int, Floor | None]:
    """Return index and content of the latest floor above ``known_index``; ``(known_index, None)`` if there is none.
    Floors in ``ahead`` are as they were when it read them.

    Without a newer one this takes one request in the young chain of a table, two in an old one; else some for each
    doubling of the distance. Raises `CorruptDataError` if all copies of the newest are damaged.
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
    """Return the largest floor that was put at ``before_ms`` or before, as far as a search by time tells; 0
    for none.
    """
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
    """Return the keys of floors that nobody needs: between two landmarks, from the first on.

    Floors behind one that an older version of this package put at a landmark's index stay: that version reads on from
    there floor by floor.
    """
    last = newest // LANDMARK_EVERY
    if last < 2:
        return []
    first, high = 0, last  # the first landmark: those behind it are landmarks too
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
