"""What another engine commits to a lake, and what happens around a commit of ours: the same for both formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from interop.lake_cases import PLAIN
from streamhouse_spark import StorageError
from streamhouse_spark.storage.memory import MemoryStorage


def rows_from(first: int, num_rows: int = 2) -> pa.Table:
    ids = range(first, first + num_rows)
    return pa.table({"id": ids, "name": [f"n{i}" for i in ids]}, schema=PLAIN.arrow)


class RacingCatalog:
    """Runs something between the validation and the catalog's own commit, or loses the catalog's answer."""

    def __init__(
        self,
        lake: Any,
        *,
        before: Callable[[], object] | None = None,
        after: Exception | None = None,
        times: int = 1,
    ) -> None:
        self._catalog = lake.binding.catalog
        self._before, self._after, self._times = before, after, times
        lake.binding._catalog_opened = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        self._times, active = self._times - 1, self._times > 0
        if active and self._before:
            self._before()
        response = self._catalog.commit_table(table, requirements, updates)
        if active and self._after:
            raise self._after
        return response


class RacingPuts:
    """Runs something before a put of a Paimon snapshot, or replaces its answer."""

    def __init__(
        self,
        lake: Any,
        *,
        before: Callable[[], object] | None = None,
        instead: Exception | None = None,
        after: Exception | None = None,
        times: int = 1,
    ) -> None:
        storage = lake.binding.storage
        self._put, self._is_running = storage.put_if_absent, False
        self._before, self._instead, self._after, self._times = before, instead, after, times
        storage.put_if_absent = self

    def __call__(self, key: str, data: bytes) -> None:
        active = "/snapshot/" in key and self._times > 0 and not self._is_running
        self._times -= active
        if active and self._before:
            self._is_running = True
            self._before()
            self._is_running = False
        if active and self._instead:
            raise self._instead
        self._put(key, data)
        if active and self._after:
            raise self._after


class IcebergCommits:
    format = "iceberg"
    race = RacingCatalog
    added_ids = (100, 101)
    """Ids of the rows that each foreign commit appends."""

    attempts_max = "streamhouse_spark.lake.iceberg.snapshot_commit.ATTEMPTS_MAX"
    lost_answers = (CommitFailedException("409"), CommitStateUnknownException("500"), ConnectionError("reset"))

    def commit(self, lake: Any, properties: Mapping[str, str] | None = None) -> None:
        table = lake.binding.load()
        rows = rows_from(self.added_ids[0]).cast(table.schema().as_arrow())
        table.append(rows, snapshot_properties=dict(properties or {}))

    def latest_id(self, lake: Any) -> int | None:
        latest: int | None = lake.binding.load().metadata.current_snapshot_id
        return latest

    def manifest_list(self, lake: Any) -> str:
        latest: str = lake.binding.load().metadata.current_snapshot().manifest_list
        return latest

    def drop(self, lake: Any, storage: MemoryStorage) -> None:
        for info in storage.list("lake/sales/orders/metadata"):
            storage.delete(info.key)


class PaimonCommits:
    format = "paimon"
    race = RacingPuts
    added_ids = ()
    attempts_max = "streamhouse_spark.lake.paimon.snapshot_commit.ATTEMPTS_MAX"
    lost_answers = (StorageError("500"), StorageError("timeout"))

    def commit(self, lake: Any, properties: Mapping[str, str] | None = None) -> None:
        from streamhouse_spark.lake.paimon.snapshot_commit import SnapshotUpdate, commit_snapshot

        commit_snapshot(lake.binding, lambda _: SnapshotUpdate(properties=dict(properties or {})))

    def latest_id(self, lake: Any) -> int | None:
        latest: int | None = lake.binding.snapshots.newest().id
        return latest

    def manifest_list(self, lake: Any) -> str:
        latest: str = lake.binding.snapshots.newest().base_manifest_list
        return latest

    def drop(self, lake: Any, storage: MemoryStorage) -> None:
        lake.drop(purge=True)
        assert not storage.list("lake/sales.db/orders/")


COMMITS = {"iceberg": IcebergCommits(), "paimon": PaimonCommits()}
