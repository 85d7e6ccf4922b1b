"""Parallel execution of the same work on many items, in threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TypeVar

THREADS_MAX = 16

T = TypeVar("T")
R = TypeVar("R")


def parallel_map(work: Callable[[T], R], items: Sequence[T], *, threads_max: int | None = None) -> Iterator[R]:
    """Yield the results in the order of the items. The first error ends the work.

    Pass ``threads_max`` for work that keeps a core busy, or that only waits. By default there are more threads than
    cores.
    """
    threads = min(len(items), threads_max or min(THREADS_MAX, 2 * (os.cpu_count() or 1)))
    if threads < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(work, items)


def map_with_prefetch(pool: Executor, work: Callable[[T], R], items: Iterable[T], *, num_ahead: int) -> Iterator[R]:
    """Yield the results in the order of the items, with up to ``num_ahead`` items processed in advance."""
    waiting: deque[Future[R]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) > num_ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
