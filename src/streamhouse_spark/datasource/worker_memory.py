"""Relief of a reused Python worker of Spark from work between two requests."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar
from zipimport import zipimporter

_P = ParamSpec("_P")
_R = TypeVar("_R")

_num_modules = 0


def release_memory_after(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Do `release_memory` behind each call of the method that answers a request."""

    @functools.wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        result = method(*args, **kwargs)
        release_memory()
        return result

    return call


def release_memory() -> None:
    """Take all loaded objects out of garbage collection, and PySpark's archive out of the search for modules, in a
    worker process of Spark's only.

    Its daemon collects garbage after each request before it takes the next one: 70 ms with this package's modules,
    about three times the duration of a call of the catalog. Done again only when modules were loaded since.

    At the beginning of each request Spark before 4.3 lets every finder of modules read anew what it looks in. Those of
    PySpark's archive, one for each of its packages, read all of the archive each: 90 ms.
    """
    if not _is_worker():
        return
    _forget_archive()
    global _num_modules  # noqa: PLW0603 - a process has one garbage collector
    if len(sys.modules) == _num_modules:
        return
    _num_modules = len(sys.modules)
    gc.collect()
    gc.freeze()


def _forget_archive() -> None:
    """Drop the finders of the archive that PySpark was loaded from. An import that needs one makes it again."""
    loader = getattr(sys.modules.get("pyspark"), "__loader__", None)
    if not isinstance(loader, zipimporter):
        return
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and finder.archive == loader.archive:
            sys.path_importer_cache.pop(path, None)


def _is_worker() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == "pyspark.daemon"
