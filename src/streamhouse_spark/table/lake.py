"""`LakeView`: reads and maintenance of the lake table alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from streamhouse_spark.config.table_properties import BRANCH
from streamhouse_spark.core.argument_validation import validates_arguments
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.concurrency import cached_property
from streamhouse_spark.errors import count_of
from streamhouse_spark.expressions.where import parse_condition
from streamhouse_spark.lake.base import LakeTable
from streamhouse_spark.lake.snapshot_history import newest_snapshot, require_metadata
from streamhouse_spark.lake.types import SNAPSHOTS_KEPT, CompactReport, ExpireReport, LakeSnapshot, ManifestReport
from streamhouse_spark.log.catalog.branches import require_no_branch
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS, check_grace
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.table.scan import LakeSource, Scan, Scannable
from streamhouse_spark.table_handle import TableHandle

if TYPE_CHECKING:
    from streamhouse_spark.expressions.filters import FilterLike


def drop_lake_table(storage: Storage, settings: Mapping[str, str], state: TableState, world: World) -> None:
    """Delete the lake table of a dropped table with its files, unless it is in an external catalog.

    An adopted lake table is kept, without an owner. The lake that a branch reads belongs to its table.
    """
    if BRANCH in state.properties:
        return
    properties = state.parsed
    if properties.datalake_adopted is not None:
        from streamhouse_spark.lake.formats import release_lake_table

        release_lake_table(storage, settings, state, world)
        return
    if properties.datalake_format == "iceberg" and any(name.startswith("lake.") for name in settings):
        return
    from streamhouse_spark.lake.formats import open_lake_table

    for location in (*state.former_lakes, state.lake_location):
        if storage.list_names(f"{location}/"):
            open_lake_table(storage, settings, replace(state, lake_location=location), world).drop(purge=True)


@validates_arguments()
class LakeView(Scannable):
    """The lake table of a table; see `Table.lake`. It has no rows before the first tiering round."""

    def __init__(self, table: TableHandle) -> None:
        require_no_branch(table.state, "reading and maintaining the lake alone")
        self._table = table
        _ = self._lake  # fail early for a table without a lake

    def __getstate__(self) -> dict[str, TableHandle]:
        """Pickle the table. The lake is reopened on first use."""
        return {"_table": self._table}

    @cached_property
    def _lake(self) -> LakeTable:
        return self._table.open_lake()

    def newest(self) -> LakeSnapshot | None:
        """Return the latest snapshot, with its offsets; None before the first tiering round."""
        return newest_snapshot(self._table.log, self._lake)

    def __repr__(self) -> str:
        return f"LakeView({self._table.name}$lake: {count_of(len(self.schema), 'column')})"

    @property
    def schema(self) -> pa.Schema:
        return self._table.refresh().schema.arrow

    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter: FilterLike | None = None,
        version: int | str | None = None,
        timestamp_ms: int | None = None,
        limit: int | None = None,
    ) -> Scan:
        """Return a lazy scan of the latest snapshot, of ``version``, or of the snapshot that was current at a time.

        ``version`` is the id of a snapshot, or a tag or branch of the lake table.
        """
        return Scan(LakeSource(self._table, version, timestamp_ms)).scan(columns=columns, filter=filter, limit=limit)

    def to_arrow(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter: FilterLike | None = None,
        as_of_snapshot: int | None = None,
        as_of_timestamp_ms: int | None = None,
    ) -> pa.Table:
        """Read the rows of a snapshot, by default the latest.

        * ``columns``, ``filter``: as for `Table.to_arrow`.
        * ``as_of_snapshot``: id of the snapshot.
        * ``as_of_timestamp_ms``: reads the snapshot that was current at that time.

        Raises the errors of `Table.to_arrow`, and `SnapshotExpiredError` for an unknown snapshot.
        """
        scan = self.scan(columns=columns, filter=filter, version=as_of_snapshot, timestamp_ms=as_of_timestamp_ms)
        return scan.to_arrow()

    def _current(self) -> LakeTable:
        """Return the lake with the latest state, because other processes may have altered the table.

        Raises `TableNotFoundError`, and `DifferentHistoryError` if the log was restored from an older copy.
        """
        lake = self._lake.with_state(self._table.refresh())
        newest_snapshot(self._table.log, lake)
        return lake

    # -- maintenance ----------------------------------------------------------------------------------------------

    def compact(self, *, purge: bool = False, dry_run: bool = False) -> CompactReport:
        """Compact small adjacent files of a bucket, and rewrite files with more than a tenth of their rows deleted.

        It commits about a gigabyte at a time, also if the properties disable automatic compaction.

        * ``purge``: rewrite all files with deleted rows. After older snapshots have expired and the log was trimmed,
          deleted rows are in no file.
        * ``dry_run``: only report.

        Raises `CommitConflictError` if tiering or another engine committed first (earlier commits are kept),
        `LakeMismatchError`, `CommitStateUnknownError`.
        """
        from streamhouse_spark.table.maintenance.lake import compact

        return compact(self._table, self._current(), purge=purge, dry_run=dry_run)

    def optimize(self, order_by: str, *, filter: FilterLike | None = None, dry_run: bool = False) -> CompactReport:
        """Cluster the rows of files by columns, so that queries that filter on them skip most files.

        Each file gets a range of the order, per bucket and partition. It commits about a gigabyte at a time. Files that
        were clustered before are skipped until about as many other bytes have accumulated. Rows, their offsets and
        older snapshots are kept.

        * ``order_by``: ``a, b`` or ``zorder(a, b)``.
        * ``filter``: rewrite only files that may have matching rows.
        * ``dry_run``: only report.

        Raises `InvalidOptionError` for a primary-key table, a Paimon lake and an invalid order, `SchemaMismatchError`
        for an unknown column, `CommitConflictError` if rows were deleted or files replaced concurrently (earlier
        commits are kept), `LakeMismatchError`, `CommitStateUnknownError`.
        """
        from streamhouse_spark.table.maintenance.lake import optimize

        lake = self._current()
        return optimize(self._table, lake, order_by, chosen=parse_condition(filter), dry_run=dry_run)

    def expire_snapshots(
        self, *, retain_last: int = SNAPSHOTS_KEPT, older_than_ms: int | None = None, dry_run: bool = False
    ) -> ExpireReport:
        """Expire old snapshots and delete the files that only they need. Snapshots of tags and branches are kept.

        * ``retain_last``: the number of latest snapshots to keep.
        * ``older_than_ms``: a time since 1970; later snapshots are kept. The default is a day ago.
        * ``dry_run``: only report.

        Raises `InvalidOptionError` for an invalid number or a time in the future, and `CommitConflictError`.
        """
        from streamhouse_spark.table.maintenance.lake import expire_snapshots

        return expire_snapshots(
            self._table, self._current(), retain_last=retain_last, older_than_ms=older_than_ms, dry_run=dry_run
        )

    def remove_orphan_files(self, *, grace_ms: int = GRACE_MS, dry_run: bool = False) -> list[str]:
        """Delete orphan files of the lake table that are older than ``grace_ms``, and return their keys.

        Raises `InvalidOptionError` for a grace period below ten minutes. After `CommitConflictError` run it again.
        """
        check_grace(grace_ms)
        return self._current().remove_orphans(grace_ms=grace_ms, dry_run=dry_run)

    def rewrite_manifests(self, *, dry_run: bool = False) -> ManifestReport:
        """Combine small manifests. Raises `InvalidOptionError` for a lake format other than Iceberg."""
        from streamhouse_spark.table.maintenance.lake import rewrite_manifests

        return rewrite_manifests(self._table, self._current(), dry_run=dry_run)

    # -- metadata -------------------------------------------------------------------------------------------------

    def metadata_table_names(self) -> tuple[str, ...]:
        """Return the names of the metadata tables of the lake format."""
        return self._lake.metadata_tables

    def metadata(self, name: str) -> pa.Table:
        """Return a metadata table of the lake. Raises `InvalidNameError` with the existing names."""
        require_metadata(self._table.state, self._lake, self._lake.newest())
        return self._lake.metadata_table(name)

    def snapshots(self) -> pa.Table:
        """Return the metadata table ``snapshots``."""
        return self.metadata("snapshots")

    def files(self) -> pa.Table:
        """Return the metadata table ``files``."""
        return self.metadata("files")
