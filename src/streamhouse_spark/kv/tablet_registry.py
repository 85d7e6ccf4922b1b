"""The open tablets of this process: one object per bucket, shared by all tables and threads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import xxhash

from streamhouse_spark.core.fork_safety import new_lock
from streamhouse_spark.kv.lmdb.tablet_files import CACHE_DIR_VARIABLE, TabletFiles, cache_bytes_max, cache_folder, evict
from streamhouse_spark.kv.tablet import Tablet

_open: dict[Path, Tablet] = {}
_by_name: dict[tuple[str | None, str, str, int], Tablet] = {}
"""Open tablets by the parts of their names, because building a path costs more than a lookup."""
_lock = new_lock()


def open_tablet(warehouse_url: str, table_uuid: str, bucket: int, identity: Mapping[str, object]) -> Tablet:
    """Return the bucket's tablet in this host's cache, opening it if needed. Raises `StorageError` if the disk fails.

    Opening one evicts unused tablets if the cache is too large. The table may have been restored since the rows were
    applied: see `streamhouse_spark.kv.tablet_lineage`.
    """
    name = (os.environ.get(CACHE_DIR_VARIABLE), warehouse_url, table_uuid, bucket)
    cached = _by_name.get(name)
    if cached is not None:
        return cached
    folder = f"{table_uuid}-{xxhash.xxh3_64_hexdigest(warehouse_url.encode())}"
    files = TabletFiles(cache_folder(), folder, bucket)
    with _lock:
        opened = _open.get(files.folder)
        if opened is None:
            bytes_max = cache_bytes_max()
            opened = _open[files.folder] = Tablet(files, identity)
            evict(cache_folder(), bytes_max)
        _by_name[name] = opened
        return opened


def close_tablets() -> None:
    """Close all tablets; the next use reopens them. None may be in use."""
    with _lock:
        _by_name.clear()
        while _open:
            _open.popitem()[1].close()
