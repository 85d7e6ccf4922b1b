"""Finds the last object of a numbered sequence with few requests.

The sequence has no gaps. Its objects are never deleted, except the oldest; then the search starts at an existing
number.
A writer puts number N only after reading N-1. So all objects between two existing ones exist, and binary search finds
the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from streamhouse_spark.errors import ObjectNotFoundError
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import Prefetch

ResultT = TypeVar("ResultT")
CHAIN_AHEAD = 3
"""Objects of a sequence that are read in one batch. A name has at most this many unless its table was dropped twice."""


def find_last(exists: Callable[[int], bool], first: int) -> int:
    """Return the last existing number after ``first``, or ``first`` if there is none.

    Sends two requests per doubling of the number of objects.
    """
    low, step = first, 1
    while exists(low + step):
        low += step
        step = low - first
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        if exists(middle):
            low = middle
        else:
            high = middle
    return low


def find_last_result(read: Callable[[int], ResultT | None], first: int, newest: ResultT) -> ResultT:
    """Return the result of ``read`` for the last existing number after ``first``, or ``newest`` if there is none.

    ``newest`` is the result for ``first``. ``read`` returns None for an absent number.
    """

    def exists(number: int) -> bool:
        nonlocal newest
        item = read(number)
        newest = newest if item is None else item  # `find_last` checks existing numbers in ascending order
        return item is not None

    find_last(exists, first)
    return newest


def find_last_object(
    storage: Storage, key_of: Callable[[int], str], prefetch: Prefetch | None = None
) -> tuple[int, bytes]:
    """Return number and bytes of the last object of a sequence that starts at 1, or ``(0, b"")`` if it is empty.

    Earlier objects may be damaged: only the last one is decoded. The first few are read in one batch, unless
    ``prefetch`` has them.
    """
    contents: dict[int, bytes] = {}
    if prefetch is None:
        prefetch = Prefetch(storage)
        prefetch.expect(key_of(number) for number in range(1, CHAIN_AHEAD + 1))

    def exists(number: int) -> bool:
        try:
            contents[number] = prefetch.read(key_of(number))
        except ObjectNotFoundError:
            return False
        return True

    last = 0
    while prefetch.has(key_of(last + 1)):  # prefetched; a search would read beyond them
        if not exists(last + 1):
            return last, contents.get(last, b"")
        last += 1
    last = find_last(exists, last)
    return last, contents.get(last, b"")
