"""What a reused Python worker of Spark need not look through again and again."""

from __future__ import annotations

import gc
import sys

_num_modules = 0


def spare_modules() -> None:
    """Take what is loaded out of garbage collection, in a worker process of Spark's only.

    Its daemon collects garbage after each request before it takes the next one: 70 ms with our modules, about three
    times what a call of the catalog needs. Done again only when modules were loaded since.
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
