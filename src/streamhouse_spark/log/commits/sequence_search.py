"""Chains of objects that are numbered without a gap and never deleted: finding the last one in few requests.

A chain whose oldest objects are deleted works from an existing one on. Number N is put only after N-1 was seen, so all
objects between two existing ones exist, and the end can be searched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from streamhouse_spark.errors import ObjectNotFoundError
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import Prefetch

Found = TypeVar("Found")
CHAIN_AHEAD = 3
"""Objects of a chain that are asked for at once: a name, and its end, if its table was dropped once at most."""


def find_last(exists: Callable[[int], bool], first: int) -> int:
    """Return the end of the run behind ``first``: an existing number, or ``first``, whose successor was then seen
    absent.

    Two looks for each time that the run's length doubles.
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


def last_reached(read: Callable[[int], Found | None], first: int, newest: Found) -> Found:
    """Return the result of ``read`` at the end of the run that begins at ``first``, whose result is ``newest``.

    ``read`` returns None for an absent number.
    """

    def exists(number: int) -> bool:
        nonlocal newest
        item = read(number)
        newest = newest if item is None else item  # a number that is there is behind all that were there before
        return item is not None

    find_last(exists, first)
    return newest


def find_last_object(
    storage: Storage, key_of: Callable[[int], str], ahead: Prefetch | None = None
) -> tuple[int, bytes]:
    """Return number and bytes of the last object of a chain that begins at 1; ``(0, b"")`` if there is none.

    Objects before it may be damaged: none of them is looked into. The first few are asked for at once; whoever gives
    ``ahead`` has asked for those.
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
    while ahead.has(key_of(last + 1)):  # those are here; a search asks for some beyond them
        if not exists(last + 1):
            return last, contents.get(last, b"")
        last += 1
    last = find_last(exists, last)
    return last, contents.get(last, b"")
