"""Cache validators of catalog answers: the files that an answer depends on.

While these files are unchanged, and files that were absent still are, the same call returns the same answer. Java
therefore stats the files and reuses its cached answer. On S3 it checks only the files that should be absent, all at
once, through a Spark file system. For other stores it always reads the state, but reuses a plan of the same lake
snapshot, or of the same commit if the table has no lake.

An answer is never older than its validators: the lake's validators are taken before the lake is read, and the commit is
the one that the answer describes. A concurrent change creates a file that should be absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from streamhouse_spark.core.warehouse_layout import commit_key, table_prefix
from streamhouse_spark.datasource.read.read_target import reads_past
from streamhouse_spark.datasource.scan.file_systems import store_folder
from streamhouse_spark.datasource.scan.query_snapshot import QuerySnapshot
from streamhouse_spark.datasource.scan.scan_planning import SparkScanRequest
from streamhouse_spark.errors import StreamhouseError
from streamhouse_spark.lake.types import LakeValidators
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.table.system_views import LAKE
from streamhouse_spark.table_handle import TableHandle

CacheValidators: TypeAlias = list[Mapping[str, Any]] | None
"""Paths with the stamp of the file, or without a stamp if it must be absent. None if only a call can tell."""

NO_LAKE = LakeValidators((), ())


def lake_validators(table: TableHandle, *, is_read: bool, is_shared: bool = False) -> LakeValidators | None:
    """Return the lake's validators, taken before the lake is read. None if changes of the lake leave no trace, or if
    the store would need an extra request: ``is_shared`` says that the reads reuse what it returns.
    """
    if not is_read:
        return NO_LAKE
    if not table.has_lake or not (is_shared or _is_local(table)):
        return None
    try:
        return table.open_lake().validators()
    except StreamhouseError:
        return None  # the read raises it, or does not need the lake


def snapshot_validators(table: TableHandle, pin: QuerySnapshot, lake: LakeValidators | None) -> CacheValidators:
    """Return the validators of an answer for this query snapshot. A user-chosen state, a state that a statement
    rewrites, and a view have none.

    Renames and drops are commit records, so the log alone shows them.
    """
    is_newest = not (pin.is_chosen or pin.is_rewritten) and pin.suffix in (None, LAKE)
    if lake is None or not is_newest:
        return None
    absent = [commit_key(pin.uuid, pin.commit + 1), *lake.absent]
    if _is_local(table):
        return _file_validators(table.storage, [commit_key(pin.uuid, pin.commit), *lake.present], absent)
    return _store_validators(table, absent)


def plan_validators(request: SparkScanRequest, lake: LakeValidators | None) -> CacheValidators:
    """Return the validators of an answer that follows from the query snapshot, such as a plan.

    On a remote store these include neither log files nor files of a pinned lake snapshot: commits and snapshots are
    immutable, and the caller has just verified that its pin is the latest. Another engine may expire the lake snapshot
    of a commit, but that creates a new lake version.
    """
    table, pin = request.table, request.pin
    is_fixed = pin.suffix in (None, LAKE) and not (pin.is_chosen or pin.is_rewritten)
    if not is_fixed or reads_past(request.options) or _is_local(table):
        return snapshot_validators(table, pin, lake)
    if pin.suffix == LAKE or lake == NO_LAKE:
        return []
    return None if lake is None else _store_validators(table, lake.absent)


@contextmanager
def observe_lake_once(request: SparkScanRequest) -> Iterator[LakeValidators | None]:
    """Share one metadata lookup of the lake between the validators and the answer, and yield the validators."""
    table, pin = request.table, request.pin
    is_read = pin.suffix == LAKE or request.options.as_of_lake_snapshot is not None or request.state.lake is not None
    if not is_read or not table.has_lake or pin.suffix is not None or _is_local(table):
        yield lake_validators(table, is_read=is_read)
        return
    with table.open_lake().cache_metadata_for_round():
        yield lake_validators(table, is_read=True, is_shared=True)


def _is_local(table: TableHandle) -> bool:
    """Return whether both lake and log are on a local disk."""
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
            facts = Path(path).stat()
        except OSError:
            return None
        validators.append({"path": path, "stamp": f"{facts.st_ino}-{facts.st_size}-{facts.st_mtime_ns}"})
    validators.extend({"path": storage.local_path(key), "stamp": None} for key in absent)
    return validators
