"""The same work on many files at once, where each waits for storage."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

THREADS_MAX = 8

T = TypeVar("T")
R = TypeVar("R")


def in_parallel(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Return the results in the order of the items; the first error ends the work."""
    if len(items) < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(min(THREADS_MAX, len(items), 2 * (os.cpu_count() or 1))) as pool:
        yield from pool.map(work, items)
