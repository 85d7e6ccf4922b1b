"""A store in memory that counts requests and round trips: requests that are under way together are one round trip.

Depth is simulated time. Each request takes one unit of it, whatever it takes in fact. Work in a pool begins when it was
submitted and one of the pool's threads is free; its caller goes on when it has the result. So depth does not depend on
the load of the machine, nor on the thread that happens to do the work.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from streamhouse_spark.errors import ObjectNotFoundError
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import RangePlan


@dataclass
class Cost:
    """Requests of some work, and how many of them followed one another."""

    requests: int = 0
    depth: int = 0
    """Round trips in sequence that the caller waited for."""
    kinds: dict[str, int] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    """What was asked for, in the order in which it was."""


@dataclass
class _Clock:
    """Simulated time of one thread, or of one piece of work in a pool."""

    now: int = 0

    def wait_for(self, end: int) -> None:
        self.now = max(self.now, end)


@dataclass
class _Span:
    """Work in a pool: the time at which it was submitted, and how long it took once it was done."""

    submitted: int
    length: int | None = None


_threads = threading.local()


def _clock() -> _Clock | None:
    return getattr(_threads, "clock", None)


class RemoteStorage:
    """A store whose every request takes a round trip, and which can send several at once."""

    def __init__(self, inner: Storage) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._cost = Cost()
        self._foreign = 0
        self._foreign_under_way = 0

    @contextmanager
    def measured(self) -> Iterator[Cost]:
        """Count what is asked within, by this thread and by those that it waits for.

        Threads of native code, of which nobody knows what they wait for, come on top: each request counts that begins
        when no other of theirs is under way.
        """
        cost, clock = Cost(), _Clock()
        with self._lock:
            self._cost, self._foreign = cost, 0
        with _followed_pools(), _followed_threads():
            _threads.clock = clock
            try:
                yield cost
            finally:
                del _threads.clock
                with self._lock:
                    cost.depth = clock.now + self._foreign
                    self._cost = Cost()

    def read_many(self, keys: Sequence[str]) -> list[bytes | None]:
        with self._sent("read", keys):
            return [self._found(key) for key in keys]

    def _found(self, key: str) -> bytes | None:
        try:
            return self._inner.read(key)
        except ObjectNotFoundError:
            return None

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        with self._sent("read_ranges", [key] * max(1, len(RangePlan.of(ranges).pieces))):
            return self._inner.read_ranges(key, ranges)

    @contextmanager
    def _sent(self, kind: str, keys: Sequence[str]) -> Iterator[None]:
        clock = _clock()
        with self._lock:
            self._cost.requests += len(keys)
            self._cost.kinds[kind] = self._cost.kinds.get(kind, 0) + len(keys)
            self._cost.keys += keys
            if clock is not None:
                clock.now += 1
            else:
                self._foreign += self._foreign_under_way == 0
                self._foreign_under_way += 1
        try:
            yield
        finally:
            if clock is None:
                with self._lock:
                    self._foreign_under_way -= 1

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in _REQUESTS:

            def call(key: str, *arguments: Any) -> Any:
                with self._sent(name, [key]):
                    return found(key, *arguments)

            return call
        return found


_REQUESTS = {"read", "size_bytes", "put_if_absent", "put", "create", "list", "list_names", "delete"}


# -- threads ----------------------------------------------------------------------------------------------------------

_spans_of: dict[ThreadPoolExecutor, list[_Span]] = {}
_span_of: dict[Future[Any], tuple[ThreadPoolExecutor, _Span]] = {}


def _end_of(pool: ThreadPoolExecutor, asked: _Span | None) -> int:
    """Return when a span ends, or all of the pool: each one is done by the thread that is free first, in their order.

    Spans that are not done yet count as not begun.
    """
    free_at = [0] * pool._max_workers
    end = 0
    for span in _spans_of.get(pool, ()):
        if span.length is None:
            continue
        end_of_one = max(span.submitted, free_at[0]) + span.length
        heapq.heapreplace(free_at, end_of_one)
        if span is asked:
            return end_of_one
        end = max(end, end_of_one)
    return end


@contextmanager
def _followed_pools() -> Iterator[None]:
    """Give work in pools clocks that begin and end with those of their callers."""
    submit, shutdown, result = ThreadPoolExecutor.submit, ThreadPoolExecutor.shutdown, Future.result

    def timed_submit(pool: ThreadPoolExecutor, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        clock = _clock()
        if clock is None:
            return submit(pool, work, *args, **kwargs)
        span = _Span(clock.now)
        _spans_of.setdefault(pool, []).append(span)

        def run() -> Any:
            before, _threads.clock = _clock(), _Clock()
            try:
                return work(*args, **kwargs)
            finally:
                span.length, _threads.clock = _threads.clock.now, before

        future = submit(pool, run)
        _span_of[future] = pool, span
        return future

    def timed_result(future: Future[Any], timeout: float | None = None) -> Any:
        try:
            return result(future, timeout)
        finally:
            if (clock := _clock()) is not None and future in _span_of:
                clock.wait_for(_end_of(*_span_of[future]))

    def timed_shutdown(pool: ThreadPoolExecutor, wait: bool = True, **kwargs: Any) -> None:
        shutdown(pool, wait, **kwargs)
        if wait and (clock := _clock()) is not None:
            clock.wait_for(_end_of(pool, None))

    with (
        mock.patch.object(ThreadPoolExecutor, "submit", timed_submit),
        mock.patch.object(ThreadPoolExecutor, "shutdown", timed_shutdown),
        mock.patch.object(Future, "result", timed_result),
    ):
        try:
            yield
        finally:
            _spans_of.clear()
            _span_of.clear()


@contextmanager
def _followed_threads() -> Iterator[None]:
    """Give threads, those of pools apart, clocks that begin and end with those of their callers."""
    start, join = threading.Thread.start, threading.Thread.join
    clocks: dict[threading.Thread, _Clock] = {}

    def timed_start(thread: threading.Thread) -> None:
        if (clock := _clock()) is not None:
            own = clocks[thread] = _Clock(clock.now)
            run = thread.run

            def timed_run() -> None:
                _threads.clock = own
                run()

            thread.run = timed_run  # type: ignore[method-assign]
        start(thread)

    def timed_join(thread: threading.Thread, timeout: float | None = None) -> None:
        join(thread, timeout)
        if (clock := _clock()) is not None and thread in clocks and not thread.is_alive():
            clock.wait_for(clocks[thread].now)

    with (
        mock.patch.object(threading.Thread, "start", timed_start),
        mock.patch.object(threading.Thread, "join", timed_join),
    ):
        yield
