"""Finds the last object of a numbered sequence in few requests.

The sequence has no gaps, and its objects are never deleted; if the oldest are deleted, the search starts at an existing
one. Number N is put only after N-1 was read, so all objects between two existing ones exist, and the end can be found
by binary search.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from streamhouse_spark.errors import ObjectNotFoundError
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import Prefetch

ResultT = TypeVar("ResultT")
CHAIN_AHEAD = 3
"""Objects of a sequence that are read at once: a name and its end, if its table was dropped at most once."""


def find_last(exists: Callable[[int], bool], first: int) -> int:
    """Return the last existing number of the run after ``first``, or ``first`` if there is none.

    Two checks per doubling of the run's length.
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
    """Return the result of ``read`` at the end of the run that starts at ``first``, whose result is ``newest``.

    ``read`` returns None for an absent number.
    """

    def exists(number: int) -> bool:
        nonlocal newest
        item = read(number)
        newest = newest if item is None else item  # every existing number is higher than those before
        return item is not None

    find_last(exists, first)
    return newest


def find_last_object(
    storage: Storage, key_of: Callable[[int], str], ahead: Prefetch | None = None
) -> tuple[int, bytes]:
    """Return number and bytes of the last object of a sequence from 1 on; ``(0, b"")`` if there is none.

    Earlier objects may be damaged: they are not decoded. The first few are read at once; if ``ahead`` is given, it must
    have them.
    """
    contents: dict[int, bytes] = {}
    if ahead is None:
        ahead = Prefetch(storage)
        ahead.expect(key_of(number) for number in range(1, CHAIN_AHEAD + 1))

    def exists(number: int) -> bool:
        try:
            contents[number] = ahead.read(key_of(number))
        except ObjectNotFoundError:
            return False
        return True

    last = 0
    while ahead.has(key_of(last + 1)):  # prefetched; a search would read beyond them
        if not exists(last + 1):
            return last, contents.get(last, b"")
        last += 1
    last = find_last(exists, last)
    return last, contents.get(last, b"")
