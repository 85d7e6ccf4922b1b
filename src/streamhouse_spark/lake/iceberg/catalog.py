"""An Iceberg catalog that consists of files only, in the layout of Iceberg's HadoopCatalog.

::

    <table>/metadata/v<N>.metadata.json   version N of the table: put-if-absent, never rewritten
    <table>/metadata/version-hint.text    a recent N; only a hint
    <table>/metadata/floors/<N>           low watermark: versions below N are void and may be deleted

It needs only a store with put-if-absent, and other engines open its tables by path. `lake.iceberg.metadata_versions`
finds the latest version. A delayed writer could reuse the slot of a deleted version. So versions are deleted only a day
after a higher low watermark was stored. A writer that took longer than a minute reads the low watermark again before it
reports success. The watermark `DROPPED` closes a table permanently.

A round reads the latest metadata about ten times, and nearly always finds the bytes that this process last read or
wrote. So parsed metadata is cached by its bytes, and updated without copying every snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Self

from pyiceberg.catalog import Catalog, MetastoreCatalog, PropertiesUpdateSummary
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    TableAlreadyExistsError,
)
from pyiceberg.exceptions import ValidationError as IcebergValidationError
from pyiceberg.io import FileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.view import View

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import find_recorded_root, is_same_place
from streamhouse_spark.errors import CorruptDataError, ObjectNotFoundError, StorageError, StorageRefusedError
from streamhouse_spark.lake.iceberg.file_io import PathRebase, StorageFileIO, rewrite_metadata_paths
from streamhouse_spark.lake.iceberg.metadata_versions import (
    DROPPED,
    FLOOR_CHECK_AFTER_MS,
    LatestVersion,
    find_latest_version,
    find_low_watermark,
    floor_key,
    floors_prefix,
    parse_version_hint,
    put_hint,
    repair_hint,
    round_cache,
    version_key,
    version_number,
    version_numbers,
)
from streamhouse_spark.lake.metadata_cache import LruCache
from streamhouse_spark.lake.snapshot_properties import TABLE_UUID_PROPERTY
from streamhouse_spark.log.catalog.names import warehouse_moved_error
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import call_both, delete_all
from streamhouse_spark.storage.put_if_absent import PutOutcome, Slot, ensure_stored, slot_for_bytes

if TYPE_CHECKING:
    import pyarrow as pa


_parsed_metadata: LruCache[bytes, TableMetadata] = LruCache(8)  # several tables are tiered concurrently

ATTEMPT_PROPERTY = "streamhouse.attempt"
"""Table property with the uuid of the commit that wrote a version, so that two writers never store equal bytes."""
FLOOR_GRACE_MS = 24 * 60 * 60 * 1000
PUT_ATTEMPTS_MAX = 4
Rewrite = Callable[[TableMetadata, PathRebase | None], TableMetadata | None]


def parse_metadata(data: bytes) -> TableMetadata:
    """Return the metadata in these bytes, which callers must not change. Raises pyiceberg's errors.

    The cache is keyed by content, so it is never stale.
    """
    metadata = _parsed_metadata.get(data)
    if metadata is None:
        metadata = TableMetadataUtil.parse_raw(data.decode())
        _parsed_metadata.put(data, metadata)
    return metadata


def apply_updates(metadata: TableMetadata, updates: tuple[TableUpdate, ...], location: str) -> TableMetadata:
    """Return the metadata after these updates. It shares its immutable snapshots with the original."""
    shared = metadata.model_copy(
        update={"snapshots": _SharedList(metadata.snapshots), "snapshot_log": _SharedList(metadata.snapshot_log)}
    )
    changed = update_table_metadata(shared, updates, metadata_location=location)
    return changed.model_copy(update={"snapshots": list(changed.snapshots), "snapshot_log": list(changed.snapshot_log)})


class _SharedList(list[Any]):
    """A list that pyiceberg's deep copy shares instead of copying."""

    def __add__(self, other: Iterable[Any]) -> Self:
        return type(self)([*self, *other])

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


# ruff: noqa: ARG002, FBT001, FBT002 - the signatures are those of pyiceberg's `Catalog`


@dataclass(frozen=True, slots=True)
class _MetadataVersion:
    number: int
    metadata: TableMetadata
    checked_ms: int = 0


class FileCatalog(MetastoreCatalog):
    """A catalog whose tables are the folders ``<prefix><namespace>/<table>`` of a store. Supports concurrent writers.

    ``properties`` are pyiceberg's (``s3.*`` …), for files of a table outside the warehouse.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        prefix: str = "lake/",
        world: World | None = None,
        name: str = "streamhouse",
        properties: Properties = EMPTY_DICT,
    ) -> None:
        super().__init__(name, **properties)
        self._storage = storage
        self._prefix = prefix
        self._world = world or World()
        self._io = StorageFileIO(storage, properties)
        self._stale_hints: dict[str, int] = {}
        """Table → its latest version, if its hint was older at the last check."""

    # -- tables ---------------------------------------------------------------------------------------------------

    def load_table(self, identifier: str | Identifier) -> Table:
        key = self._key(identifier)
        return self._table(identifier, key, self._newest(key))

    def repair_hint(self, identifier: str | Identifier) -> None:
        """Update a stale hint that the last check found. Its writer crashed before updating it.

        Engines that open a table by path find its latest version only by the hint.
        """
        key = self._key(identifier)
        number = self._stale_hints.pop(key, None)
        if number is not None:
            with suppress(StorageError):  # the next check retries
                repair_hint(self._storage, key, number)

    def table_exists(self, identifier: str | Identifier) -> bool:
        try:
            self.load_table(identifier)
        except NoSuchTableError:
            return False
        return True

    def create_table(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> Table:
        """Create a table. Raises `TableAlreadyExistsError`, also if the location has files of a dropped table."""
        key = self._key(identifier)
        started_ms = self._world.clock.boot_ms()
        if find_low_watermark(self._storage, key) > 0 or parse_version_hint(self._storage, key) is not None:
            raise TableAlreadyExistsError(
                f"cannot create an Iceberg table at {self._storage.url}/{key}: the location holds a table, or metadata "
                "of a dropped one"
            )
        metadata = new_table_metadata(
            location=location or self._io.files.location_of(key),
            schema=self._convert_schema_if_needed(schema),
            partition_spec=partition_spec,
            sort_order=sort_order,
            properties=dict(properties),
        )
        created = metadata.model_copy(update={"last_updated_ms": self._storage.now_ms()})
        version = self._put_version(key, 1, created, started_ms)
        if version is None:
            raise TableAlreadyExistsError(f"an Iceberg table at {self._storage.url}/{key} was created concurrently")
        return self._table(identifier, key, version)

    def create_from_metadata(self, identifier: str | Identifier, metadata: TableMetadata) -> Table:
        """Create a table from the metadata of another. **Commit point:** its first version.

        Raises `TableAlreadyExistsError`, `CommitStateUnknownException`.
        """
        key = self._key(identifier)
        version = self._put_version(key, 1, metadata, self._world.clock.boot_ms())
        if version is None:
            raise TableAlreadyExistsError(f"an Iceberg table at {self._storage.url}/{key} exists")
        return self._table(identifier, key, version)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Check the requirements against the latest version, and write exactly its successor with the updates.

        Raises `CommitFailedException` if a requirement fails or another writer won, and `CommitStateUnknownException`
        if the storage did not report the outcome.
        """
        identifier = table.name()
        key = self._key(identifier)
        base = self._newest(key, from_number=version_number(table.metadata_location))
        self._require_home(key, base.metadata)
        if base.metadata.table_uuid != table.metadata.table_uuid:
            raise CommitFailedException(
                f"{self._storage.url}/{key} was replaced: table uuid is {base.metadata.table_uuid}, "
                f"expected {table.metadata.table_uuid}"
            )
        for requirement in requirements:
            requirement.validate(base.metadata)
        location = self._location(key, base.number)
        changed = apply_updates(base.metadata, updates, location)
        if changed == base.metadata:
            return _response(base.metadata, location)
        version = self._put_version(key, base.number + 1, self._set_store_time(changed, base.metadata), base.checked_ms)
        if version is None:
            raise CommitFailedException(f"another writer committed version {base.number + 1} of {location}")
        return _response(version.metadata, self._location(key, version.number))

    def relocate_table(self, identifier: str | Identifier, rewrite: Rewrite) -> bool:
        """Replace the recorded location of the table with the opened one. Returns whether anything was done.

        ``rewrite`` gets the stored metadata and the move, which is None at the recorded location. It returns the next
        metadata, or None if there is nothing to do. **Commit point:** the metadata version. Raises `NoSuchTableError`,
        `CommitFailedException` after too many conflicts, `CommitStateUnknownException`.
        """
        key = self._key(identifier)
        for _ in range(PUT_ATTEMPTS_MAX):
            started_ms = self._world.clock.boot_ms()
            base = self._newest(key)
            changed = rewrite(base.metadata, self._move(key, base.metadata))
            if changed is None:
                return False
            changed = self._set_store_time(changed, base.metadata)
            if self._put_version(key, base.number + 1, changed, started_ms) is not None:
                return True
        raise CommitFailedException(f"{self._storage.url}/{key} changed concurrently in {PUT_ATTEMPTS_MAX} attempts")

    def drop_table(self, identifier: str | Identifier) -> None:
        """Close the table permanently. Its files remain, so `undrop_table` can restore it until `purge_table`."""
        key = self._key(identifier)
        owner = self._newest(key).metadata.properties.get(TABLE_UUID_PROPERTY, "")
        closed = floor_key(key, DROPPED)
        slot = Slot(self._storage, closed, lambda: self._storage.read(closed), lambda _: True)
        put = slot.take(owner.encode())
        if put.outcome is PutOutcome.UNREADABLE:
            raise put.error
        if put.outcome is not PutOutcome.WON:
            if isinstance(put.failure, StorageRefusedError):
                raise put.failure
            raise CommitStateUnknownException(f"the outcome of dropping {self._storage.url}/{key} is unknown")

    def find_dropped_owner(self, identifier: str | Identifier) -> str | None:
        """Return the uuid of the streamhouse table whose lake was dropped here, or None."""
        try:
            return self._storage.read(floor_key(self._key(identifier), DROPPED)).decode()
        except ObjectNotFoundError:
            return None

    def undrop_table(self, identifier: str | Identifier) -> Table:
        """Restore a dropped table. Raises `NoSuchTableError` if its files are missing."""
        key = self._key(identifier)
        self._storage.delete(floor_key(key, DROPPED))
        return self.load_table(identifier)

    def purge_table(self, identifier: str | Identifier) -> None:
        """Drop the table and delete all its files, except the watermark that closes it."""
        key = self._key(identifier)
        with suppress(NoSuchTableError):
            self.drop_table(identifier)
        floor = floor_key(key, DROPPED)
        for info in self._storage.list(f"{key}/"):
            if info.key != floor:
                self._storage.delete(info.key)

    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        (database,) = Catalog.identifier_to_tuple(namespace)
        names = self._storage.list_names(f"{self._prefix}{database}/")
        return [(database, name) for name in names if self.table_exists((database, name))]

    # -- namespaces -----------------------------------------------------------------------------------------------
    # A namespace is a folder: it exists if it has a table.

    def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
        if namespace:
            return []
        return [(name,) for name in self._storage.list_names(self._prefix)]

    def create_namespace(self, namespace: str | Identifier, properties: Properties = EMPTY_DICT) -> None:
        Catalog.identifier_to_tuple(namespace)

    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        if Catalog.identifier_to_tuple(namespace) not in self.list_namespaces():
            raise NoSuchNamespaceError(f"{self._storage.url}/{self._prefix} has no namespace {namespace}")
        return {}

    # -- maintenance ----------------------------------------------------------------------------------------------

    def prune_versions(
        self, identifier: str | Identifier, *, grace_ms: int = FLOOR_GRACE_MS, dry_run: bool = False
    ) -> list[str]:
        """Delete metadata versions that were replaced at least ``grace_ms`` ago, and return their keys.

        A call deletes versions below an old enough low watermark, and stores the watermark of a later call. Versions
        are deleted oldest first, so that no gap hides a newer version. On a remote store deletes are concurrent, which
        readers cannot see, because all these versions are below a watermark older than the grace period.
        """
        key = self._key(identifier)
        newest = self._newest(key)
        floor_files, names = call_both(
            self._storage,
            lambda: list(self._storage.list(floors_prefix(key))),
            partial(self._storage.list_names, f"{key}/metadata/"),
        )
        floors = sorted((int(info.key.rpartition("/")[2]), info) for info in floor_files)
        cutoff_ms = self._storage.now_ms() - grace_ms
        safe_floor = max((number for number, info in floors if info.modified_ms <= cutoff_ms), default=0)
        numbers = sorted(version_numbers(names))
        expired_keys = [version_key(key, number) for number in numbers if number < safe_floor]
        if dry_run:
            return expired_keys
        delete_all(self._storage, expired_keys)
        if newest.number > max((number for number, _ in floors), default=1):
            with suppress(StorageError):  # the next call retries
                ensure_stored(self._storage, floor_key(key, newest.number), b"")
        delete_all(self._storage, [info.key for number, info in floors if number < safe_floor])
        return expired_keys

    @staticmethod
    def _delete_old_metadata(io: FileIO, base: TableMetadata, metadata: TableMetadata) -> None:
        """Do nothing, because deleting by the length of the log would free slots. See `prune_versions`."""

    # -- versions -------------------------------------------------------------------------------------------------

    def _newest(self, key: str, *, from_number: int | None = None) -> _MetadataVersion:
        """Return the latest version, even if the hint is wrong. Raises `NoSuchTableError`."""
        latest = find_latest_version(self._storage, self._world, key, from_number=from_number)
        if latest is None:
            raise NoSuchTableError(f"no Iceberg table at {self._storage.url}/{key}")
        if latest.has_stale_hint:
            self._stale_hints[key] = latest.number
        return self._parse_version(key, latest)

    def _parse_version(self, key: str, latest: LatestVersion) -> _MetadataVersion:
        try:
            return _MetadataVersion(latest.number, parse_metadata(latest.data), latest.checked_ms)
        except (ValueError, IcebergValidationError) as error:
            raise CorruptDataError(
                f"{self._storage.url}/{version_key(key, latest.number)} is not Iceberg table metadata "
                f"({str(error).splitlines()[0]}); restore it, or rebuild the lake from the log (streamhouse retier)"
            ) from error

    def _put_version(self, key: str, number: int, metadata: TableMetadata, started_ms: int) -> _MetadataVersion | None:
        """Store version ``number``. Returns None if another writer stored it. Raises `CommitStateUnknownException`."""
        attempt = {ATTEMPT_PROPERTY: self._world.ids.new_uuid()}
        stored = metadata.model_copy(update={"properties": {**metadata.properties, **attempt}})
        data = stored.model_dump_json().encode()
        round_cache.forget()
        with self._storage.commit_lock(f"{key}/metadata/.lock"):
            won = self._put_and_read_back(version_key(key, number), data)
        if not won:
            return None
        _parsed_metadata.put(data, stored)
        waited_ms = self._world.clock.boot_ms() - started_ms
        if waited_ms > FLOOR_CHECK_AFTER_MS and find_low_watermark(self._storage, key) >= number:
            return None  # the slot was empty only because its version had been deleted, so the new version is void
        with suppress(StorageError):
            put_hint(self._storage, key, number)
        return _MetadataVersion(number, stored)

    def _set_store_time(self, changed: TableMetadata, base: TableMetadata) -> TableMetadata:
        """Return the metadata with the store's time instead of this host's, but at least its predecessor's time."""
        newest_ms = max((s.timestamp_ms for s in changed.snapshots[-1:]), default=0)
        time_ms = max(self._storage.now_ms(), base.last_updated_ms, newest_ms)
        return changed.model_copy(update={"last_updated_ms": time_ms})

    def _put_and_read_back(self, version_key: str, data: bytes) -> bool:
        """Store ``data`` and return whether the slot has it. After any error the slot is read back.

        Raises `StorageRefusedError` if the slot is empty and the store rejects writes of this process.
        """
        slot = slot_for_bytes(self._storage, version_key, data)
        refusals = 0
        for attempt in range(PUT_ATTEMPTS_MAX):
            if attempt:
                self._world.clock.sleep_ms(100 * 2**attempt * (0.5 + self._world.ids.jitter()))
            put = slot.take(data)
            if put.outcome in (PutOutcome.WON, PutOutcome.LOST):
                return put.won()
            if put.outcome is PutOutcome.NOT_DURABLE:
                break
            refusals += isinstance(put.failure, StorageRefusedError)
            if put.outcome is PutOutcome.NOT_STORED and refusals == attempt + 1:
                raise put.error  # the slot is empty, and no request in flight can fill it
        raise CommitStateUnknownException(f"the outcome of storing {self._storage.url}/{version_key} is unknown") from (
            put.read_error or put.failure
        )

    # -- names ----------------------------------------------------------------------------------------------------

    def _key(self, identifier: str | Identifier) -> str:
        parts = Catalog.identifier_to_tuple(identifier)
        if len(parts) != 2 or any(not part or "/" in part or part in (".", "..") for part in parts):
            raise NoSuchTableError(f"invalid table identifier {identifier!r}, expected <namespace>.<table>")
        return f"{self._prefix}{parts[0]}/{parts[1]}"

    def _location(self, key: str, number: int) -> str:
        return self._io.files.location_of(version_key(key, number))

    def _table(self, identifier: str | Identifier, key: str, version: _MetadataVersion) -> Table:
        """Return the table with the current locations of its files."""
        metadata, io = version.metadata, self._io
        if (move := self._move(key, metadata)) is not None:
            metadata, io = rewrite_metadata_paths(metadata, move), StorageFileIO(self._storage, self.properties, move)
        return Table(
            identifier=Catalog.identifier_to_tuple(identifier),
            metadata=metadata,
            metadata_location=self._location(key, version.number),
            io=io,
            catalog=self,
        )

    def _move(self, key: str, metadata: TableMetadata) -> PathRebase | None:
        """Return the move of the table, or None if it is at the location in its metadata."""
        root = find_recorded_root(metadata.location, key)
        if root is None or is_same_place(root, self._storage.url):
            return None
        return PathRebase.to(root, self._storage.url)

    # -- unsupported operations -----------------------------------------------------------------------------------

    def _require_home(self, key: str, metadata: TableMetadata) -> None:
        if (move := self._move(key, metadata)) is not None:
            raise warehouse_moved_error(f"lake table {key} cannot be changed", move.recorded_root, self._storage.url)

    def register_table(self, identifier: str | Identifier, metadata_location: str, overwrite: bool = False) -> Table:
        self._refuse("registering a table: create it here, or use another catalog")

    def rename_table(self, from_identifier: str | Identifier, to_identifier: str | Identifier) -> Table:
        self._refuse("renaming a table, whose location is its name")

    def drop_namespace(self, namespace: str | Identifier) -> None:
        self._refuse("dropping a namespace, which exists while it has a table")

    def update_namespace_properties(
        self, namespace: str | Identifier, removals: set[str] | None = None, updates: Properties = EMPTY_DICT
    ) -> PropertiesUpdateSummary:
        self._refuse("properties of a namespace")

    def list_views(self, namespace: str | Identifier) -> list[Identifier]:
        return []

    def view_exists(self, identifier: str | Identifier) -> bool:
        return False

    def load_view(self, identifier: str | Identifier) -> View:
        raise NoSuchViewError(f"no view {identifier}: this catalog has only tables")

    def register_view(self, identifier: str | Identifier, metadata_location: str) -> View:
        self._refuse("views")

    def drop_view(self, identifier: str | Identifier) -> None:
        raise NoSuchViewError(f"no view {identifier}: this catalog has only tables")

    def _refuse(self, reason: str) -> NoReturn:
        raise NotImplementedError(f"a file catalog does not support {reason}")


def _response(metadata: TableMetadata, location: str) -> CommitTableResponse:
    return CommitTableResponse.model_validate({"metadata": metadata, "metadata-location": location})
