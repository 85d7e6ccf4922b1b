"""The files on which an answer to Spark's catalog rests.

While they are as they were, and those that were absent still are, another call would have the same answer. So the JVM
side looks at the files instead, and gives the answer that it has. On S3 it looks only for those that should be absent,
all at once, by a file system of Spark. Of another store it always asks for the state, but not again for a
plan of the same snapshot of a lake, or of the same commit of a log without one.

No answer is older than its grounds: the marks of the lake are taken before the lake is read, and the commit is the one
that the answer is of. What came in between is a file that should be absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from streamhouse_spark.config.spark_options import ReadOptions
from streamhouse_spark.core.paths import commit_key, table_prefix
from streamhouse_spark.datasource.catalog.scan.query_snapshot import QuerySnapshot
from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.handle import TableHandle
from streamhouse_spark.lake.model.change_detection import LakeValidators
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.table.system_views import LAKE

CacheValidators: TypeAlias = list[Mapping[str, Any]] | None
"""Paths with the stamp of the file, or without one where there must be none; None where only a call can tell."""

NO_LAKE = LakeValidators((), ())


def lake_validators(table: TableHandle, *, is_read: bool, is_shared: bool = False) -> LakeValidators | None:
    """Return the marks of the lake, if it is to be read: they are taken before. None if its changes leave none, and of
    a store where a look for them would be one more: ``is_shared`` says that the reads take what it finds.
    """
    if not is_read:
        return NO_LAKE
    if not table.has_lake or not (is_shared or _is_local(table)):
        return None
    try:
        return table.open_lake().marks()
    except StreamhouseError:
        return None  # the read itself says it, or does without the lake


def reads_lake(pin: QuerySnapshot, options: ReadOptions, state: TableState) -> bool:
    return pin.suffix == LAKE or options.as_of_lake_snapshot is not None or state.lake is not None


def snapshot_validators(table: TableHandle, pin: QuerySnapshot, lake: LakeValidators | None) -> CacheValidators:
    """Return the grounds of an answer for this pin. A state that the user chose, and one that a statement writes, have
    none, nor has a view, which is read anew.

    The log alone tells that the table has another name, or was dropped: each is a record of its own.
    """
    is_newest = not (pin.is_chosen or pin.is_rewritten) and pin.suffix in (None, LAKE)
    if lake is None or not is_newest:
        return None
    absent = [commit_key(pin.uuid, pin.commit + 1), *lake.absent]
    if _is_local(table):
        return _file_validators(table.storage, [commit_key(pin.uuid, pin.commit), *lake.there], absent)
    return _store_validators(table, absent)


def plan_validators(
    table: TableHandle, pin: QuerySnapshot, options: ReadOptions, lake: LakeValidators | None
) -> CacheValidators:
    """Return the grounds of an answer that follows from the pin, such as a plan.

    In another store than a disk these are no files of the log, nor any for a snapshot of the lake: the commit and the
    snapshot stay as they are, and whoever has pinned one has just found it to be the newest. Of a commit the lake's
    snapshot may be gone, if another engine expired it: then the lake has a newer version.
    """
    is_fixed = pin.suffix in (None, LAKE) and not (pin.is_chosen or pin.is_rewritten)
    has_moment = options.as_of_lake_snapshot is not None or options.as_of_timestamp_ms is not None
    if not is_fixed or has_moment or _is_local(table):
        return snapshot_validators(table, pin, lake)
    if pin.suffix == LAKE or lake == NO_LAKE:
        return []
    return None if lake is None else _store_validators(table, lake.absent)


@contextmanager
def observe_lake_once(
    table: TableHandle, pin: QuerySnapshot, options: ReadOptions, state: TableState
) -> Iterator[LakeValidators | None]:
    """Let an answer that follows from the pin take the lake as one look finds it, and give the marks of that."""
    is_read = reads_lake(pin, options, state)
    if not is_read or not table.has_lake or pin.suffix is not None or _is_local(table):
        yield lake_validators(table, is_read=is_read)
        return
    with table.open_lake().one_look():
        yield lake_validators(table, is_read=True, is_shared=True)


def _is_local(table: TableHandle) -> bool:
    """Tell whether lake and log lie on this machine."""
    storage = table.storage
    return storage.local_path("") is not None and storage.local_path(table_prefix(table.uuid)) is not None


def _store_validators(table: TableHandle, absent: Sequence[str]) -> CacheValidators:
    from streamhouse_spark.datasource.catalog.scan.log_files import store_folder

    folder = store_folder(table)
    if folder is None:
        return None
    settings = [setting.to_json() for setting in folder.settings]
    return [{"path": folder.folder, "stamp": None, "absent": list(absent), "file_systems": settings}]


def _file_validators(storage: Storage, present: Iterable[str], absent: Iterable[str]) -> CacheValidators:
    validators: list[Mapping[str, Any]] = []
    for key in present:
        path = storage.local_path(key)
        if path is None:
            return None
        try:
            facts = Path(path).stat()
        except OSError:
            return None
        validators.append({"path": path, "stamp": f"{facts.st_ino}-{facts.st_size}-{facts.st_mtime_ns}"})
    validators.extend({"path": storage.local_path(key), "stamp": None} for key in absent)
    return validators
