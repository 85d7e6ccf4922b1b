"""Cache validators of catalog replies: the files that a reply depends on.

While these files are unchanged and the absent files remain absent, the same call returns the same reply. Java therefore
stats the files and reuses its cached reply. On S3, Java checks only that the absent files are still absent, in parallel
through a Spark file system. For other stores, Java always requests the state, but reuses a plan of the same lake
snapshot, or of the same commit if the table has no lake.

A reply is never older than its validators: the lake's validators are taken before the lake is read, and the reply
describes exactly the validated commit. A concurrent change creates a file that must be absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from streamhouse_spark.core.warehouse_layout import commit_key, table_prefix
from streamhouse_spark.datasource.read.read_target import is_time_travel
from streamhouse_spark.datasource.scan.file_systems import store_folder
from streamhouse_spark.datasource.scan.query_snapshot import QuerySnapshot
from streamhouse_spark.datasource.scan.scan_planning import SparkScanRequest
from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.lake.types import LakeValidators
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.table.system_views import LAKE
from streamhouse_spark.table_handle import TableHandle

CacheValidators: TypeAlias = list[Mapping[str, Any]] | None
"""Paths with the stamp of each file, or without a stamp if the file must be absent. None if a reply is not cacheable.
"""

NO_LAKE = LakeValidators((), ())


def lake_validators(table: TableHandle, *, is_read: bool, is_shared: bool = False) -> LakeValidators | None:
    """Return the lake's validators. The caller must take them before it reads the lake.

    Returns None if changes of the lake cannot be detected, or if the validators would cost an extra request.
    ``is_shared`` means that later reads reuse the request.
    """
    if not is_read:
        return NO_LAKE
    if not table.has_lake or not (is_shared or _is_local(table)):
        return None
    try:
        return table.open_lake().validators()
    except StreamhouseError:
        return None  # the read raises the error if it needs the lake


def snapshot_validators(table: TableHandle, snapshot: QuerySnapshot, lake: LakeValidators | None) -> CacheValidators:
    """Return the validators of a reply for this query snapshot. System tables, states that the user chose, and states
    that a statement rewrites have none.

    Renames and drops are commit records, so validators of the log also detect them.
    """
    is_newest = not (snapshot.is_chosen or snapshot.is_rewritten) and snapshot.suffix in (None, LAKE)
    if lake is None or not is_newest:
        return None
    absent = [commit_key(snapshot.uuid, snapshot.commit + 1), *lake.absent]
    if _is_local(table):
        return _file_validators(table.storage, [commit_key(snapshot.uuid, snapshot.commit), *lake.present], absent)
    return _store_validators(table, absent)


def plan_validators(request: SparkScanRequest, lake: LakeValidators | None) -> CacheValidators:
    """Return the validators of a reply that is computed from the query snapshot, such as a plan.

    On a remote store these include neither log files nor files of the snapshot's lake snapshot. Commits and lake
    snapshots are immutable, and the caller has just verified that its query snapshot is the latest. If another engine
    expires the lake snapshot, that creates a new lake version.
    """
    table, snapshot = request.table, request.snapshot
    is_fixed = snapshot.suffix in (None, LAKE) and not (snapshot.is_chosen or snapshot.is_rewritten)
    if not is_fixed or is_time_travel(request.options) or _is_local(table):
        return snapshot_validators(table, snapshot, lake)
    if snapshot.suffix == LAKE or lake == NO_LAKE:
        return []
    return None if lake is None else _store_validators(table, lake.absent)


@contextmanager
def observe_lake_once(request: SparkScanRequest) -> Iterator[LakeValidators | None]:
    """Share one metadata lookup of the lake between the validators and the reply, and yield the validators."""
    table, snapshot = request.table, request.snapshot
    is_read = (
        snapshot.suffix == LAKE or request.options.as_of_lake_snapshot is not None or request.state.lake is not None
    )
    if not is_read or not table.has_lake or snapshot.suffix is not None or _is_local(table):
        yield lake_validators(table, is_read=is_read)
        return
    with table.open_lake().cache_metadata_for_round():
        yield lake_validators(table, is_read=True, is_shared=True)


def _is_local(table: TableHandle) -> bool:
    storage = table.storage
    return storage.local_path("") is not None and storage.local_path(table_prefix(table.uuid)) is not None


def _store_validators(table: TableHandle, absent: Sequence[str]) -> CacheValidators:
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
            stat = Path(path).stat()
        except OSError:
            return None
        validators.append({"path": path, "stamp": f"{stat.st_ino}-{stat.st_size}-{stat.st_mtime_ns}"})
    validators.extend({"path": storage.local_path(key), "stamp": None} for key in absent)
    return validators
