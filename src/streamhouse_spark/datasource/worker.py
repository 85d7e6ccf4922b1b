"""Python workers of Spark: their error boundary, and the work that a reused worker does between two requests."""

from __future__ import annotations

import functools
import gc
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, ParamSpec, Self, TypeVar
from zipimport import zipimporter

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from streamhouse_spark.errors import StreamhouseError

logger = logging.getLogger(__name__)

_HIDDEN: Final = "SPARK_HIDE_TRACEBACK"


class ErrorBoundary:
    """Wraps the public methods of each subclass, and the row iterators that they return."""

    keeps_traceback = False
    """Whether errors keep their traceback, as for batch reads and writes of the catalog: Java shows the message itself
    and keeps Spark's text as the cause.
    """

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        for name, method in vars(cls).copy().items():
            if inspect.isfunction(method) and not name.startswith("_"):
                setattr(cls, name, _with_error_boundary(method))

    def with_tracebacks(self, source: ErrorBoundary) -> Self:
        """Keep tracebacks if ``source`` does, and return this object."""
        self.keeps_traceback = source.keeps_traceback
        return self


def _with_error_boundary(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: ErrorBoundary, *args: Any, **kwargs: Any) -> Any:
        with _boundary(self):
            result = method(self, *args, **kwargs)
        return _rows(self, result) if isinstance(result, Iterator) else result

    return call


def _rows(part: ErrorBoundary, rows: Iterator[Any]) -> Iterator[Any]:
    with _boundary(part):
        yield from rows


@contextmanager
def _boundary(part: ErrorBoundary) -> Iterator[None]:
    try:
        yield
    except StreamhouseError as error:
        if not part.keeps_traceback and _is_worker():
            logger.exception("%s, raised here:", error.condition)
            os.environ[_HIDDEN] = "1"
        raise


def _is_worker() -> bool:
    """Return whether Spark started this process. A user's own process keeps its environment."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


class UnsupportedStream(ErrorBoundary, DataSourceStreamReader):
    """Placeholder for an invalid stream, whose first use raises the error.

    If ``streamReader`` itself raised, Spark would fail while stopping a reader that does not exist and hide the error.
    """

    def __init__(self, error: StreamhouseError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        raise self._error

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802, ARG002
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:  # noqa: ARG002
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002
        raise self._error

    def stop(self) -> None:
        """Do nothing: nothing was started."""


_P = ParamSpec("_P")
_R = TypeVar("_R")

_num_modules = 0


def release_memory_after(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Call `release_memory` after each call of a method that answers a request."""

    @functools.wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        result = method(*args, **kwargs)
        release_memory()
        return result

    return call


def release_memory() -> None:
    """Exclude all loaded objects from garbage collection, and PySpark's archive from module search. Only in a worker
    process.

    The worker daemon collects garbage after each request before it takes the next one. With this package's modules that
    takes 70 ms, about three times as long as a catalog call. It is repeated only if modules were loaded since.

    Before 4.3, Spark invalidates all module finders at the start of each request. PySpark's archive has a finder per
    package, and each re-reads the whole archive, which takes 90 ms in total.
    """
    if not _is_daemon_worker():
        return
    _forget_archive()
    global _num_modules  # noqa: PLW0603 - a process has one garbage collector
    if len(sys.modules) == _num_modules:
        return
    _num_modules = len(sys.modules)
    gc.collect()
    gc.freeze()


def _forget_archive() -> None:
    """Drop the finders of the archive that PySpark was loaded from. An import that needs one recreates it."""
    loader = getattr(sys.modules.get("pyspark"), "__loader__", None)
    if not isinstance(loader, zipimporter):
        return
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and finder.archive == loader.archive:
            sys.path_importer_cache.pop(path, None)


def _is_daemon_worker() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == "pyspark.daemon"
