"""Location and ownership of the Paimon table of one streamhouse table: creates, adopts, opens and drops it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pypaimon.common.identifier import Identifier
from pypaimon.common.json_util import JSON
from pypaimon.schema.table_schema import TableSchema as PaimonSchema
from pypaimon.snapshot.snapshot import Snapshot
from pypaimon.table.file_store_table import FileStoreTable

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import CommitConflictError, CorruptDataError, LakeMismatchError, ObjectNotFoundError
from streamhouse_spark.lake.base import LakeTableBinding
from streamhouse_spark.lake.column_mapping import ColumnMapping
from streamhouse_spark.lake.metadata_cache import RoundCache
from streamhouse_spark.lake.paimon.evolution import evolve_lake, paimon_columns
from streamhouse_spark.lake.paimon.file_io import StorageFileIO
from streamhouse_spark.lake.paimon.schema import find_differences, paimon_schema
from streamhouse_spark.lake.paimon.snapshots import SnapshotManager, consumer_text
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.lake.snapshot_properties import TABLE_UUID_PROPERTY
from streamhouse_spark.storage.prefetch import Prefetch
from streamhouse_spark.storage.put_if_absent import slot_for_bytes

ATTEMPTS_MAX = 5
_SCHEMAS_AHEAD = 3
"""Number of schemas that are requested together. Most tables have one or two."""
_SCHEMA = "schema/schema-"


@dataclass(frozen=True, slots=True)
class PaimonTable:
    """One state of the lake table."""

    location: str
    schemas: Mapping[int, PaimonSchema]
    """All current and former schemas by id."""
    snapshot: Snapshot | None
    """The latest snapshot."""

    @property
    def schema(self) -> PaimonSchema:
        """The current schema."""
        return self.schemas[max(self.schemas)]

    @property
    def owner(self) -> str | None:
        table_uuid: str | None = self.schema.options.get(TABLE_UUID_PROPERTY)
        return table_uuid

    def schema_of(self, snapshot: Snapshot) -> PaimonSchema:
        """Return the schema that was current when the snapshot was committed. Raises `CorruptDataError`."""
        schema = self.schemas.get(snapshot.schema_id)
        if schema is None:
            raise CorruptDataError(
                f"lake file {self.location}/{_SCHEMA}{snapshot.schema_id} is missing, but snapshot {snapshot.id} has "
                "this schema; restore it, or rebuild the lake from the log (streamhouse retier)"
            )
        return schema

    def store(self, files: StorageFileIO) -> FileStoreTable:
        """Return Paimon's table object, for its readers and writers of metadata."""
        return store_of(self.schema, self.location, files)


def store_of(schema: PaimonSchema, location: str, files: StorageFileIO | None) -> FileStoreTable:
    return FileStoreTable(files, Identifier.create("lake", "table"), location, schema)


round_cache: RoundCache[PaimonTable] = RoundCache()


class PaimonTableBinding(LakeTableBinding[PaimonTable]):
    """The location of one lake table in the warehouse."""

    @property
    def files(self) -> StorageFiles:
        return StorageFiles(self.storage)

    @property
    def snapshots(self) -> SnapshotManager:
        return SnapshotManager(self.storage, self.spec.location)

    @property
    def location(self) -> str:
        return self.files.location_of(self.spec.location)

    def owner_of(self, table: PaimonTable) -> str | None:
        return table.owner

    def columns_of(self, table: PaimonTable) -> ColumnMapping:
        return paimon_columns(table.schema, self.spec)

    def exists(self) -> bool:
        try:
            self.storage.size_bytes(self.schema_key(0))
        except ObjectNotFoundError:
            return False
        return True

    def find(self) -> PaimonTable | None:
        """Return the latest state, or None if the lake table is absent. Raises `CorruptDataError`.

        Within `LakeTable.cache_metadata_for_round`, returns the first state that was read.
        """
        table = round_cache.get(self.storage, self.spec.location)
        if table is None and (table := self._find()) is not None:
            round_cache.put(self.storage, self.spec.location, table)
        return table

    def _find(self) -> PaimonTable | None:
        schemas: dict[int, PaimonSchema] = {}
        prefetch = Prefetch(self.storage)
        likely = self.snapshots.likely_keys()
        prefetch.expect([*map(self.schema_key, range(_SCHEMAS_AHEAD)), self.snapshots.hint_key, *likely])
        while (schema := self._read_schema(len(schemas), prefetch)) is not None:
            schemas[schema.id] = schema
        if not schemas:
            return None
        newest = self.snapshots.newest(prefetch)
        while newest is not None and newest.schema_id not in schemas:  # the schema was added since, or lost
            schema = self._read_schema(len(schemas), Prefetch(self.storage))
            if schema is None:
                raise CorruptDataError(
                    f"lake file {self.schema_key(len(schemas))} is missing, but snapshot {newest.id} has schema "
                    f"{newest.schema_id}; restore it, or rebuild the lake from the log (streamhouse retier)"
                )
            schemas[schema.id] = schema
        return PaimonTable(self.location, schemas, newest)

    def create_or_evolve(self) -> None:
        """Create or migrate the table. **Commit point:** put-if-absent of the first or next schema file."""
        for _ in range(ATTEMPTS_MAX):
            table = self.find()
            if table is None:
                self._require_free()
                # Put before any snapshot can expire: engines that expire snapshots retain those that a consumer needs.
                self.storage.put(self.snapshots.consumer_key, consumer_text(1))
                self.put_schema(paimon_schema(self.spec, self.world.clock.now_ms()))
                continue
            self.require_owner(table)
            evolved = evolve_lake(table.schema, self.spec, self.world.clock.now_ms())
            if problems := evolved.differences or find_differences(evolved.schema, self.spec):
                raise LakeMismatchError(
                    f"the Paimon table at {table.location} does not fit {self.spec.path}: {'; '.join(problems)}; "
                    "change it, or rebuild the lake at another location (streamhouse retier)"
                )
            if evolved.schema is table.schema:
                return
            self.put_schema(evolved.schema)
        raise CommitConflictError(
            f"the Paimon table at {self.location} changed concurrently in {ATTEMPTS_MAX} attempts; retry"
        )

    def drop(self, *, purge: bool) -> None:
        """Drop the lake table, unless another table owns it.

        The schema with the owner is deleted last, so that a failed drop can be repeated. Without ``purge``, only the
        schemas are deleted: the table no longer exists, but its files remain.
        """
        table = self.find()
        if table is None or table.owner != self.spec.table_uuid:
            return
        schema_keys = [self.schema_key(schema_id) for schema_id in sorted(table.schemas, reverse=True)]
        if purge:
            for info in self.storage.list(f"{self.spec.location}/"):
                if info.key not in schema_keys:
                    self.storage.delete(info.key)
        for key in schema_keys:
            self.storage.delete(key)

    def require_owner(self, table: PaimonTable) -> None:
        """Raise `LakeMismatchError` if another table owns the lake table."""
        owner = table.owner
        if owner != self.spec.table_uuid:
            raise LakeMismatchError(
                f"the Paimon table at {table.location} belongs to {f'table {owner}' if owner else 'nobody'}, expected "
                f"table {self.spec.table_uuid} ({self.spec.path}); "
                f"{'' if owner else 'adopt it as a table (adopt_table), or '}rebuild the lake "
                "at another location (streamhouse retier)"
            )

    def _require_free(self) -> None:
        if self.snapshots.newest() is not None:
            raise LakeMismatchError(
                f"the location of the Paimon table {self.location} has snapshots but no schema, because a table was "
                "dropped there; delete the folder, or rebuild the lake at another location (streamhouse retier)"
            )

    def put_schema(self, schema: PaimonSchema) -> None:
        """Store the ``schema`` under its id, unless another schema has that id. The next read shows which one won."""
        round_cache.forget()
        data = JSON.to_json(schema, indent=2).encode()
        slot_for_bytes(self.storage, self.schema_key(schema.id), data).take(data).won()

    def _read_schema(self, schema_id: int, prefetch: Prefetch) -> PaimonSchema | None:
        key = self.schema_key(schema_id)
        try:
            data = prefetch.read(key)
        except ObjectNotFoundError:
            return None
        try:
            schema = PaimonSchema.from_json(data.decode())
            if schema.id != schema_id or not isinstance(json.loads(data), dict):
                raise ValueError(f"found the schema {schema.id}, expected a JSON object of the schema {schema_id}")
        except (ValueError, RuntimeError, TypeError, AttributeError) as error:
            raise CorruptDataError(
                f"cannot read lake file {key} ({type(error).__name__}: {error}); restore it, "
                "or rebuild the lake from the log (streamhouse retier)"
            ) from error
        return schema

    def schema_key(self, schema_id: int) -> str:
        """Return the key of the file of a schema."""
        return f"{self.spec.location}/{_SCHEMA}{schema_id}"
