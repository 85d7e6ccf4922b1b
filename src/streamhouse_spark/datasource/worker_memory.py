"""Exclusion of loaded modules from garbage collection in a reused Python worker of Spark."""

from __future__ import annotations

import gc
import sys

_num_modules = 0


def spare_modules() -> None:
    """Take all loaded objects out of garbage collection, in a worker process of Spark's only.

    Its daemon collects garbage after each request before it takes the next one: 70 ms with this package's modules,
    about three times the duration of a call of the catalog. Done again only when modules were loaded since.
    """
    global _num_modules  # noqa: PLW0603 - a process has one garbage collector
    if len(sys.modules) == _num_modules or not _is_worker():
        return
    _num_modules = len(sys.modules)
    gc.collect()
    gc.freeze()


def _is_worker() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == "pyspark.daemon"
