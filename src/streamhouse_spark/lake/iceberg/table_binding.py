"""Location and ownership of the Iceberg table of one streamhouse table: creates, adopts, opens and drops it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.warehouse_layout import LAKE_PREFIX, find_recorded_root, is_same_place
from streamhouse_spark.errors import CommitConflictError, CorruptDataError, LakeMismatchError
from streamhouse_spark.lake.base import LakeTableBinding
from streamhouse_spark.lake.column_mapping import COLUMNS_PROPERTY, ColumnMapping, map_by_name
from streamhouse_spark.lake.file_access import CATALOG_SETTINGS, catalog_properties
from streamhouse_spark.lake.iceberg.metadata_versions import (
    DROPPED,
    find_latest_version,
    floor_key,
    parse_version_hint,
    version_key,
)
from streamhouse_spark.lake.iceberg.snapshots import SnapshotLike, SnapshotsLike, read_snapshots
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.lake.snapshot_properties import TABLE_UUID_PROPERTY
from streamhouse_spark.lake.table_spec import TARGET_FILE_BYTES, LakeTableSpec
from streamhouse_spark.lake.types import LakeValidators
from streamhouse_spark.storage.base import Storage

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import Identifier

    from streamhouse_spark.lake.iceberg.evolution import SchemaUpdate

ATTEMPTS_MAX = 5

TABLE_PROPERTIES: Mapping[str, str] = {
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "10",
    "write.metadata.previous-versions-max": "20",
    # Versions are deleted only below a low watermark: deletion by count would free slots for a slow writer.
    "write.metadata.delete-after-commit.enabled": "false",
    "write.parquet.compression-codec": "zstd",
    "write.target-file-size-bytes": str(TARGET_FILE_BYTES),
    "gc.enabled": "true",
}


class IcebergTableBinding(LakeTableBinding["Table"]):
    """The location of one lake table in a catalog.

    Iceberg's library is slow to import, so only methods that need it import it. Reading the latest snapshots does not.
    """

    def __init__(
        self,
        storage: Storage,
        spec: LakeTableSpec,
        *,
        settings: Mapping[str, str] | None = None,
        world: World | None = None,
    ) -> None:
        if len(spec.bucket_key) > 1:
            raise LakeMismatchError(
                f"table {spec.path} has {len(spec.bucket_key)} bucket keys ({', '.join(spec.bucket_key)}), but Iceberg "
                "buckets by one column; choose one, or disable the lake with table.datalake.enabled=false"
            )
        super().__init__(storage, spec, settings=settings, world=world)
        self._catalog_opened: Catalog | None = None

    def owner_of(self, table: Table) -> str | None:
        return table.properties.get(TABLE_UUID_PROPERTY)

    def columns_of(self, table: Table) -> ColumnMapping:
        from streamhouse_spark.lake.iceberg.evolution import iceberg_columns

        return iceberg_columns(table.metadata, self.spec)

    def create_or_evolve(self) -> None:
        """Create or migrate the table. A new table is created with its column map. See `LakeTable.create_or_evolve`."""
        from pyiceberg.exceptions import NamespaceAlreadyExistsError
        from pyiceberg.exceptions import TableAlreadyExistsError as IcebergTableExistsError

        from streamhouse_spark.lake.iceberg.catalog import FileCatalog
        from streamhouse_spark.lake.iceberg.evolution import commit_columns, iceberg_columns
        from streamhouse_spark.lake.iceberg.file_io import translate_catalog_errors, translate_commit_errors
        from streamhouse_spark.lake.iceberg.schema import find_differences, iceberg_schema, partition_spec

        schema = iceberg_schema(self.spec.schema, self.spec.primary_key)
        bucket_key = self.spec.bucket_key[0] if self.spec.bucket_key else None
        spec = partition_spec(schema, self.spec.layout, bucket_key, self.spec.num_buckets)
        table: Table | None = None
        for _ in range(ATTEMPTS_MAX):
            table = self.find()
            if table is None:
                with suppress(NamespaceAlreadyExistsError), translate_catalog_errors(f"{self.spec.path} was made"):
                    self.catalog.create_namespace(self.identifier[:-1])
                properties = {**TABLE_PROPERTIES, **self._identity(schema), "format-version": "2"}
                with (
                    suppress(IcebergTableExistsError),
                    translate_commit_errors(f"making the lake table of {self.spec.path}"),
                ):
                    self.catalog.create_table(
                        self.identifier, schema, self._new_location(), spec, properties=properties
                    )
                    return
                continue
            is_own = table.properties.get(TABLE_UUID_PROPERTY) == self.spec.table_uuid
            evolved = self._evolve(table.metadata, is_own=is_own)
            here = (table.metadata, evolved.schema, evolved.spec)
            fits = find_differences(*here, self.spec.schema, spec, schema, self.spec.primary_key)
            if problems := evolved.differences or fits:
                raise LakeMismatchError(
                    f"the Iceberg table at {table.location()} does not fit {self.spec.path}: {'; '.join(problems)}; "
                    "change it, or rebuild the lake at another location (streamhouse retier)"
                )
            is_right = not is_own or evolved.columns == iceberg_columns(table.metadata, self.spec)
            is_right &= evolved.schema is table.schema() and evolved.spec.spec_id == table.metadata.default_spec_id
            if not is_right and not commit_columns(self.catalog, table, evolved, self.spec.table_uuid):
                continue
            self._adopt(table)
            if isinstance(self.catalog, FileCatalog):
                self.catalog.repair_hint(self.identifier)
            return
        if table is not None:
            raise CommitConflictError(
                f"the Iceberg table at {table.location()} changed concurrently in {ATTEMPTS_MAX} attempts; retry"
            )
        raise LakeMismatchError(
            f"the name of the Iceberg table {'.'.join(self.identifier)} is taken by a table that was dropped in its "
            "catalog without its files; purge it there, or create the table with another name"
        )

    def _evolve(self, metadata: TableMetadata, *, is_own: bool) -> SchemaUpdate:
        """Return the evolved schema. A table to adopt must already have the columns."""
        from streamhouse_spark.lake.iceberg.evolution import SchemaUpdate, evolve_lake
        from streamhouse_spark.lake.iceberg.schema import nested_field_finder

        if is_own:
            return evolve_lake(metadata, self.spec)
        fields = [(field.field_id, field.name) for field in metadata.schema().fields]
        columns = map_by_name(fields, self.spec.schema, self.spec.schema_id, nested_field_finder(metadata.schema()))
        return SchemaUpdate(metadata.schema(), columns, (), metadata.spec())

    def _identity(self, schema: Schema) -> dict[str, str]:
        """Return the properties that identify the owner of the lake table, with its column map."""
        from streamhouse_spark.lake.iceberg.schema import nested_field_finder

        fields = [(field.field_id, field.name) for field in schema.fields]
        columns = map_by_name(fields, self.spec.schema, self.spec.schema_id, nested_field_finder(schema))
        return {TABLE_UUID_PROPERTY: self.spec.table_uuid, COLUMNS_PROPERTY: columns.to_text(self.spec.table_uuid)}

    def _adopt(self, table: Table) -> None:
        from streamhouse_spark.lake.iceberg.file_io import read_snapshot_manifests, translate_commit_errors

        owner = table.properties.get(TABLE_UUID_PROPERTY)
        if owner == self.spec.table_uuid:
            return
        if owner is not None:
            raise self._external_table_error(table.location(), owner)
        head = table.metadata.current_snapshot()
        manifests = read_snapshot_manifests(table.io, head) if head is not None else []
        if any(m.has_added_files() or m.has_existing_files() for m in manifests):
            raise LakeMismatchError(
                f"the Iceberg table at {table.location()} has rows that {self.spec.path} does not have; "
                "adopt it as a table (adopt_table), or rebuild the lake at another location (streamhouse retier)"
            )
        with translate_commit_errors(f"lake table {table.location()}"), table.transaction() as transaction:
            transaction.set_properties(self._identity(table.schema()))

    def drop(self, *, purge: bool) -> None:
        """Drop the lake table, unless another table owns it."""
        from pyiceberg.exceptions import NoSuchTableError

        from streamhouse_spark.lake.iceberg.catalog import FileCatalog
        from streamhouse_spark.lake.iceberg.file_io import translate_commit_errors

        table = self.find()
        if table is not None:
            owner = table.properties.get(TABLE_UUID_PROPERTY)
        else:
            owner = self.catalog.find_dropped_owner(self.identifier) if isinstance(self.catalog, FileCatalog) else None
        if owner != self.spec.table_uuid:
            return
        drop = self.catalog.purge_table if purge else self.catalog.drop_table
        with suppress(NoSuchTableError), translate_commit_errors(f"dropping lake table {'.'.join(self.identifier)}"):
            drop(self.identifier)

    def require_owner(self, metadata: SnapshotsLike[SnapshotLike]) -> None:
        """Raise `LakeMismatchError` if another table owns the lake table."""
        owner = metadata.properties.get(TABLE_UUID_PROPERTY)
        if owner != self.spec.table_uuid:
            raise self._external_table_error(metadata.location, owner)

    # -- the catalog ----------------------------------------------------------------------------------------------

    @property
    def catalog(self) -> Catalog:
        if self._catalog_opened is None:
            self._catalog_opened = self._open_catalog()
        return self._catalog_opened

    def _open_catalog(self) -> Catalog:
        properties = catalog_properties(self.settings)
        if self.uses_files:
            from streamhouse_spark.lake.iceberg.catalog import FileCatalog

            return FileCatalog(self.storage, world=self.world, properties=properties)
        from pyiceberg.catalog import load_catalog

        from streamhouse_spark.lake.iceberg.file_io import translate_catalog_errors

        with translate_catalog_errors(f"it was opened for {self.spec.path}"):
            return load_catalog(properties.pop("name", "lake"), **properties)

    @property
    def uses_files(self) -> bool:
        """Whether the catalog is a `FileCatalog`."""
        return not any(key.startswith(CATALOG_SETTINGS) for key in self.settings)

    @property
    def identifier(self) -> Identifier:
        """The identifier, from the location at creation. Renaming the table does not change it."""
        database, _, name = self.spec.location.removeprefix(LAKE_PREFIX).partition("/")
        return (database, name if self.uses_files else name.replace("-", "_"))

    def _new_location(self) -> str | None:
        if self.uses_files or f"{CATALOG_SETTINGS}warehouse" in self.settings:
            return None
        return StorageFiles(self.storage).location_of(self.spec.location)

    def load(self) -> Table:
        """Return the latest state. Raises pyiceberg's `NoSuchTableError`, `StorageError`, `CorruptDataError`."""
        from streamhouse_spark.lake.iceberg.file_io import translate_catalog_errors

        name = ".".join(self.identifier)
        with translate_catalog_errors(f"{name} of {self.spec.path} was loaded"):
            try:
                return self.catalog.load_table(self.identifier)
            except FileNotFoundError as error:
                raise CorruptDataError(
                    f"the Iceberg catalog refers to missing metadata of {name} ({self.spec.path}): {error}; an older "
                    "copy of either the catalog or the lake's files was restored. Restore both from copies of the same "
                    "time, or rebuild the lake from the log (streamhouse retier)"
                ) from error

    def find(self) -> Table | None:
        """Return the result of `load`, or None if the lake table is absent."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self.load()
        except NoSuchTableError:
            return None

    def snapshots(self) -> SnapshotsLike[SnapshotLike] | None:
        """Return the snapshots of the latest state, or None if the table is absent. Raises the errors of `load`."""
        key = self._key
        if key is not None:
            version = find_latest_version(self.storage, self.world, key)
            if version is None:
                return None
            snapshots = read_snapshots(version.data)
            root = None if snapshots is None else find_recorded_root(snapshots.location, key)
            if snapshots is not None and (root is None or is_same_place(root, self.storage.url)):
                return snapshots
        table = self.find()
        return None if table is None else table.metadata

    def validators(self) -> LakeValidators | None:
        """Return the objects whose changes reveal the next change, or None without such objects or a lake table."""
        key = self._key
        version = None if key is None else find_latest_version(self.storage, self.world, key)
        if key is None or version is None:
            return None
        absent = version_key(key, version.number + 1), floor_key(key, DROPPED)
        return LakeValidators((version_key(key, version.number),), absent)

    def newest_file(self) -> tuple[str, bytes, str] | None:
        """Return key and bytes of the latest version, and the key of the next version. None without a lake table."""
        key = self._key
        version = None if key is None else find_latest_version(self.storage, self.world, key)
        if key is None or version is None:
            return None
        return version_key(key, version.number), version.data, version_key(key, version.number + 1)

    def missing_metadata(self, recorded: int) -> str | None:
        """Return the lost metadata file. See `LakeTable.missing_metadata`.

        A version in the hint must have existed, because the hint is written after it.
        """
        key = self._key
        if key is None:
            return f"table {'.'.join(self.identifier)} of the Iceberg catalog" if self.find() is None else None
        version = find_latest_version(self.storage, self.world, key)
        hint = parse_version_hint(self.storage, key) or 1
        if version is None:
            return f"lake file {version_key(key, hint)}"
        table = self.find()
        if hint <= version.number or (table is not None and table.metadata.snapshot_by_id(recorded) is not None):
            return None
        return f"lake file {version_key(key, version.number + 1)}"

    @property
    def _key(self) -> str | None:
        """The folder of the table in a `FileCatalog`, or None in another catalog."""
        return self.spec.location if self.uses_files else None

    def _external_table_error(self, location: str, owner: str | None) -> LakeMismatchError:
        return LakeMismatchError(
            f"the Iceberg table at {location} belongs to {f'table {owner}' if owner else 'nobody'}, expected table "
            f"{self.spec.table_uuid} ({self.spec.path}); rebuild the lake at another location (streamhouse retier)"
        )
