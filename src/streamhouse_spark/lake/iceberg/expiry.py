"""Expiry of Iceberg snapshots with the files that only they needed, and removal of orphan files.

Lost rounds, killed tasks and interrupted expiry leave orphan files. A slow round could still commit files that look
like orphans. So orphan removal first stores the cutoff time, which is the grace period ago, as a property of the lake
table. A commit whose round was planned before the cutoff fails its own validation. A commit that was validated before
the property was stored fails by the requirement that the property has not changed (`iceberg.snapshot_commit`). If the
catalog does not support that requirement, the property is committed with a new snapshot of the same files, and such a
commit fails by the requirement on the current snapshot. Only then are unneeded files older than the cutoff deleted.
**Commit point:** the property's metadata version. A crash after it leaves orphans for the next run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import chain, groupby
from typing import Literal, cast

from pydantic import Field
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    ValidatableTableRequirement,
)

from streamhouse_spark.core.concurrency import parallel_map
from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.lake.iceberg.clone import select_own_files
from streamhouse_spark.lake.iceberg.compaction import carry_offsets
from streamhouse_spark.lake.iceberg.file_io import (
    StorageFileIO,
    prefetch_files,
    read_snapshot_manifests,
    translate_commit_errors,
    translate_metadata_errors,
)
from streamhouse_spark.lake.iceberg.metadata_versions import round_cache
from streamhouse_spark.lake.iceberg.snapshot_commit import NOT_BEFORE_PROPERTY, SnapshotUpdate, commit_snapshot
from streamhouse_spark.lake.iceberg.snapshot_commit import not_before_ms as known_not_before_ms
from streamhouse_spark.lake.iceberg.snapshots import iter_ancestor_snapshots, newest_offsets, own_time_ms
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.lake.snapshot_properties import effective_times_ms
from streamhouse_spark.lake.types import Claim, ExpireReport, ExpiryRules
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import delete_all, map_with_store_concurrency


def expire(
    binding: IcebergTableBinding,
    rules: Sequence[ExpiryRules],
    *,
    dry_run: bool,
    tagged: Collection[int] = (),
    claim: Claim | None = None,
) -> ExpireReport:
    """Expire snapshots. See `LakeTable.expire`."""
    table = binding.find()
    if table is None:
        return ExpireReport()
    binding.require_owner(table.metadata)
    now_ms = binding.storage.now_ms()
    metadata, owner = table.metadata, binding.spec.table_uuid
    expirable_ids = [
        find_expirable(metadata, owner, keep_last=rule.last, now_ms=now_ms, keep_ms=rule.ms) for rule in rules
    ]
    expired_ids = tuple(
        snapshot_id for snapshot_id in dict.fromkeys(chain.from_iterable(expirable_ids)) if snapshot_id not in tagged
    )
    if not expired_ids:
        return ExpireReport()
    if dry_run:
        remaining = [s for s in table.metadata.snapshots if s.snapshot_id not in expired_ids]
        after = table.metadata.model_copy(update={"snapshots": remaining})
        return ExpireReport(expired_ids, tuple(find_unreachable_files(table, table.metadata, after)))
    if claim is not None:
        claim(expired_ids, [snapshot.snapshot_id for snapshot in metadata.snapshots])
    after = remove_snapshots(binding.catalog, table, expired_ids)
    files = find_unreachable_files(table, table.metadata, after)

    def delete(location: str) -> None:
        with suppress(FileNotFoundError):
            table.io.delete(location)

    for _, files_of_depth in groupby(files, key=_deletion_rank):  # data files, then manifests, then manifest lists
        for _ in map_with_store_concurrency(binding.storage, delete, list(files_of_depth)):
            pass
    return ExpireReport(expired_ids, tuple(files))


def find_expirable(
    metadata: TableMetadata, table_uuid: str, *, keep_last: int, now_ms: int, keep_ms: int
) -> tuple[int, ...]:
    """Return the snapshots that may expire.

    Retains the latest ``keep_last``, those younger than ``keep_ms``, those of tags and branches, the latest with
    offsets.
    """
    head = metadata.current_snapshot()
    if head is None:
        return ()
    retained = {ref.snapshot_id for ref in metadata.refs.values()}
    retained.update(s.snapshot_id for s in list(iter_ancestor_snapshots(metadata, head))[: max(keep_last, 1)])
    offsets = newest_offsets(metadata, table_uuid)
    if offsets is not None:
        retained.add(offsets.snapshot_id)
    for ref in metadata.refs.values():
        branch_head = metadata.snapshot_by_id(ref.snapshot_id) if ref.snapshot_ref_type == "branch" else None
        if branch_head is not None and branch_head is not head:
            retained.update(s.snapshot_id for s in iter_ancestor_snapshots(metadata, branch_head))
    in_commit_order = sorted(metadata.snapshots, key=lambda s: s.sequence_number or 0)
    times_ms = effective_times_ms([own_time_ms(s) for s in in_commit_order], now_ms)
    age_of = {s.snapshot_id: now_ms - time_ms for s, time_ms in zip(in_commit_order, times_ms, strict=True)}
    return tuple(
        s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in retained and age_of[s.snapshot_id] >= keep_ms
    )


def remove_snapshots(catalog: Catalog, table: Table, snapshot_ids: Sequence[int]) -> TableMetadata:
    """Remove snapshots from the metadata. **Commit point:** the metadata version without them.

    Removing a snapshot drops its tags and branches, so the commit fails if a tag or branch changed after the selection.
    Raises `CommitConflictError` if the table changed concurrently, and `CommitStateUnknownError`.
    """
    requirements = (AssertTableUUID(uuid=table.metadata.table_uuid), *require_unchanged_refs(catalog, table.metadata))
    update = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(snapshot_ids)})
    try:
        with translate_commit_errors(f"expiring snapshots of {table.metadata.location}"):
            return catalog.commit_table(table, requirements, (update,)).metadata
    except CommitFailedException as error:
        raise CommitConflictError(
            f"lake table {table.metadata.location} changed during the expiry of snapshots; retry"
        ) from error


def list_files(table: Table, snapshots: Sequence[Snapshot]) -> dict[str, None]:
    """Return all files that the snapshots need, in no order: manifest lists, manifests, data and delete files."""
    needed: dict[str, None] = {}
    manifests: dict[str, ManifestFile] = {}

    def locations(manifest: ManifestFile) -> list[str]:
        return [entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)]

    with translate_metadata_errors(table.location()):
        prefetch_files(table.io, ((snapshot.manifest_list, 0) for snapshot in snapshots))
        for snapshot, manifests_of_snapshot in zip(
            snapshots, parallel_map(lambda s: read_snapshot_manifests(table.io, s), snapshots), strict=True
        ):
            needed[snapshot.manifest_list] = None
            manifests.update((manifest.manifest_path, manifest) for manifest in manifests_of_snapshot)
        needed.update(dict.fromkeys(manifests))
        prefetch_files(table.io, ((path, manifest.manifest_length) for path, manifest in manifests.items()))
        for locations_of_manifest in parallel_map(locations, list(manifests.values())):
            needed.update(dict.fromkeys(locations_of_manifest))
    return needed


def find_unreachable_files(table: Table, before: TableMetadata, after: TableMetadata) -> list[str]:
    """Return the files that only removed snapshots needed, data files first, so that a crash hides none of them."""
    remaining = {s.snapshot_id for s in after.snapshots}
    expired = [s for s in before.snapshots if s.snapshot_id not in remaining]
    retained: Mapping[str, None] = list_files(table, after.snapshots)
    unreachable = [location for location in list_files(table, expired) if location not in retained]
    if isinstance(table.io, StorageFileIO):  # files outside the warehouse belong to other engines
        files = table.io.files
        unreachable = select_own_files(
            (expired_location for expired_location in unreachable if files.holds(expired_location)),
            files,
            before.properties,
        )
    return sorted(unreachable, key=lambda location: (*_deletion_rank(location), location))


def _deletion_rank(location: str) -> tuple[bool, bool]:
    """Rank data files before manifests before manifest lists. Files of the next kind reference each kind."""
    return location.endswith(".avro"), "/snap-" in location


class AssertRefs(ValidatableTableRequirement):
    """Requires that the table has exactly these tags and branches. Iceberg's requirements do not cover new ones."""

    type: Literal["assert-refs"] = Field(default="assert-refs")
    refs: dict[str, int]
    """Name → snapshot."""

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        refs = _refs(base_metadata) if base_metadata is not None else {}
        if refs != self.refs:
            names = sorted(name for name in {*refs, *self.refs} if refs.get(name) != self.refs.get(name))
            raise CommitFailedException(f"Requirement failed: tags or branches {', '.join(names)} have changed")


def require_unchanged_refs(catalog: Catalog, planned: TableMetadata) -> tuple[TableRequirement, ...]:
    """Return the requirements that tags and branches are unchanged.

    A REST catalog checks requirements itself, and supports only those on existing names. It does not detect a tag that
    was created between planning and commit.
    """
    refs_before = {MAIN_BRANCH: None, **_refs(planned)}
    per_ref = tuple(
        AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": i}) for name, i in refs_before.items()
    )
    return (
        per_ref
        if isinstance(catalog, RestCatalog)
        else (*per_ref, cast("TableRequirement", AssertRefs(refs=_refs(planned))))
    )


def _refs(metadata: TableMetadata) -> dict[str, int]:
    return {name: ref.snapshot_id for name, ref in metadata.refs.items()}


def remove_orphans(binding: IcebergTableBinding, *, grace_ms: int, dry_run: bool) -> list[str]:
    """Delete files that are older than ``grace_ms`` and that no snapshot references. Returns their keys.

    With ``dry_run``, only returns the keys. Checks the data and metadata folders of a table in the warehouse, and
    retains statistics files that the metadata references. Raises `LakeMismatchError` if the lake belongs to another
    table, and `CommitConflictError` if the table changed concurrently.
    """
    table = binding.find()
    if table is None:
        return []
    binding.require_owner(table.metadata)
    storage, files = binding.storage, StorageFiles(binding.storage)
    if not files.holds(table.location()):
        return []
    not_before_ms = storage.now_ms() - grace_ms
    old = _list_old_files(storage, files, table, not_before_ms)
    if not old:
        return []
    needed = _referenced_paths(table, files)
    if dry_run or not any(key not in needed for key in old):
        return [key for key in old if key not in needed]
    _store_not_before(binding, table, not_before_ms)
    round_cache.forget()
    needed = _referenced_paths(binding.load(), files)  # a round may have committed before the property was stored
    orphans = [key for key in old if key not in needed]
    delete_all(storage, orphans)
    return orphans


def _list_old_files(storage: Storage, files: StorageFiles, table: Table, not_before_ms: int) -> list[str]:
    """Return data files, manifests and manifest lists from before ``not_before_ms``."""
    base = files.key_of(table.location())
    folders = (f"{base}/data/", f"{base}/metadata/")
    listed = [info for listing in map_with_store_concurrency(storage, storage.list, folders) for info in listing]
    return sorted(i.key for i in listed if i.key.endswith((".parquet", ".avro")) and i.modified_ms < not_before_ms)


def _referenced_paths(table: Table, files: StorageFiles) -> set[str]:
    metadata = table.metadata
    statistics = [file.statistics_path for file in (*metadata.statistics, *metadata.partition_statistics)]
    locations = (*list_files(table, metadata.snapshots), *statistics)
    return {files.key_of(location) for location in locations if files.holds(location)}


def _store_not_before(binding: IcebergTableBinding, table: Table, not_before_ms: int) -> None:
    moment_ms = max(known_not_before_ms(table.metadata), not_before_ms)
    if not isinstance(binding.catalog, MetastoreCatalog):
        _commit_not_before(binding, moment_ms)
        return
    update = SetPropertiesUpdate(updates={NOT_BEFORE_PROPERTY: str(moment_ms)})
    try:
        with translate_commit_errors(f"removing orphans of {table.metadata.location}"):
            binding.catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), (update,))
    except CommitFailedException as error:
        raise CommitConflictError(f"lake table {table.location()} changed during orphan removal; retry") from error


def _commit_not_before(binding: IcebergTableBinding, moment_ms: int) -> None:
    """Commit the cutoff with a snapshot of the same files, for catalogs that do not support our requirement."""

    def validated(metadata: TableMetadata) -> SnapshotUpdate:
        binding.require_owner(metadata)
        summary = carry_offsets(metadata)
        properties = {NOT_BEFORE_PROPERTY: str(max(known_not_before_ms(metadata), moment_ms))}
        operation = Operation.REPLACE if metadata.current_snapshot() else Operation.APPEND
        return SnapshotUpdate(operation, summary=summary, properties=properties)

    commit_snapshot(binding, validated)
