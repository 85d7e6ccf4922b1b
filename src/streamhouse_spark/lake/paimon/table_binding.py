"""Location and ownership of the Paimon table of one streamhouse table: create, adopt, open, drop."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pypaimon.common.identifier import Identifier
from pypaimon.common.json_util import JSON
from pypaimon.schema.table_schema import TableSchema as PaimonSchema
from pypaimon.snapshot.snapshot import Snapshot
from pypaimon.table.file_store_table import FileStoreTable

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import (
    CommitConflictError,
    CorruptDataError,
    LakeMismatchError,
    ObjectNotFoundError,
)
from streamhouse_spark.lake.file_access import lake_files
from streamhouse_spark.lake.paimon.evolution import evolve_lake, paimon_columns
from streamhouse_spark.lake.paimon.file_io import PaimonFiles
from streamhouse_spark.lake.paimon.schema import find_differences, paimon_schema
from streamhouse_spark.lake.paimon.snapshots import SnapshotManager, consumer_text
from streamhouse_spark.lake.parquet.parquet_io import FileAccess, StorageFiles
from streamhouse_spark.lake.snapshot_properties import TABLE_UUID_PROPERTY
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.log.catalog.names import WarehouseIdentity
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import Prefetch
from streamhouse_spark.storage.put_if_absent import slot_for_bytes

ATTEMPTS_MAX = 5
_SCHEMAS_AHEAD = 3
"""Schemas requested at once: most tables have one or two."""
_SCHEMA = "schema/schema-"


@dataclass(frozen=True, slots=True)
class PaimonTable:
    """One state of the lake table."""

    location: str
    schemas: Mapping[int, PaimonSchema]
    """All schemas that it ever had, by id."""
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
        """Return the schema that was current when the snapshot was made. Raises `CorruptDataError`."""
        schema = self.schemas.get(snapshot.schema_id)
        if schema is None:
            raise CorruptDataError(
                f"lake file {self.location}/{_SCHEMA}{snapshot.schema_id} is missing, and snapshot {snapshot.id} has "
                "this schema; restore it, or rebuild the lake from the log (streamhouse retier)"
            )
        return schema

    def store(self, files: PaimonFiles) -> FileStoreTable:
        """Return Paimon's own table, for its readers and writers of metadata."""
        return store_of(self.schema, self.location, files)


def store_of(schema: PaimonSchema, location: str, files: PaimonFiles | None) -> FileStoreTable:
    return FileStoreTable(files, Identifier.create("lake", "table"), location, schema)


class _TableCache(threading.local):
    """The states that this thread has read within `cache_metadata_for_round`, by table; None outside of it."""

    tables: dict[tuple[str, str], PaimonTable] | None = None


_cache = _TableCache()


@contextmanager
def cache_metadata_for_round() -> Iterator[None]:
    """Let this thread reuse the first state that it reads for the rest of a round."""
    before, _cache.tables = _cache.tables, _cache.tables or {}
    try:
        yield
    finally:
        _cache.tables = before


class PaimonTableBinding:
    """The location of one lake table. It holds no table state: `find` reads the latest metadata."""

    def __init__(
        self,
        storage: Storage,
        spec: LakeTableSpec,
        *,
        settings: Mapping[str, str] | None = None,
        world: World | None = None,
    ) -> None:
        self.storage = storage
        self.spec = spec
        self.settings = dict(settings or {})
        self.world = world or World()
        self.files = StorageFiles(storage)
        self.snapshots = SnapshotManager(storage, spec.location)
        self._home = WarehouseIdentity(storage)

    def require_home(self, doing: str) -> None:
        """Require that the warehouse is at home, before a write or delete in the lake. Raises `WarehouseMovedError`,
        and `InvalidOptionError` for a branch.
        """
        self.spec.require_own(doing)
        self._home.require(f"{doing} of {self.spec.path}")

    @property
    def location(self) -> str:
        return self.files.location_of(self.spec.location)

    def with_spec(self, spec: LakeTableSpec) -> PaimonTableBinding:
        """Return the same location for the table with other columns."""
        place = PaimonTableBinding(self.storage, spec, settings=self.settings, world=self.world)
        place._home = self._home
        return place

    def exists(self) -> bool:
        try:
            self.storage.size_bytes(self.schema_key(0))
        except ObjectNotFoundError:
            return False
        return True

    def find(self) -> PaimonTable | None:
        """Return the latest state, or None if there is no lake table. Within `cache_metadata_for_round` returns the
        first state read. Raises `CorruptDataError`.
        """
        key = (self.storage.url, self.spec.location)
        if _cache.tables is not None and key in _cache.tables:
            return _cache.tables[key]
        table = self._find()
        if _cache.tables is not None and table is not None:
            _cache.tables[key] = table
        return table

    def forget_cached_table(self) -> None:
        """Make the next step within `cache_metadata_for_round` read the state itself."""
        if _cache.tables is not None:
            _cache.tables.pop((self.storage.url, self.spec.location), None)

    def _find(self) -> PaimonTable | None:
        schemas: dict[int, PaimonSchema] = {}
        ahead = Prefetch(self.storage)
        likely = self.snapshots.likely_keys()
        ahead.expect([*map(self.schema_key, range(_SCHEMAS_AHEAD)), self.snapshots.hint_key, *likely])
        while (schema := self._read_schema(len(schemas), ahead)) is not None:
            schemas[schema.id] = schema
        if not schemas:
            return None
        newest = self.snapshots.newest(ahead)
        while newest is not None and newest.schema_id not in schemas:  # added since, or lost
            schema = self._read_schema(len(schemas), Prefetch(self.storage))
            if schema is None:
                raise CorruptDataError(
                    f"lake file {self.schema_key(len(schemas))} is missing, and snapshot {newest.id} has schema "
                    f"{newest.schema_id}; restore it, or rebuild the lake from the log (streamhouse retier)"
                )
            schemas[schema.id] = schema
        return PaimonTable(self.location, schemas, newest)

    def require(self) -> PaimonTable:
        """Return the result of `find` for a table that must exist. Raises `LakeMismatchError`."""
        table = self.find()
        if table is None:
            raise LakeMismatchError(
                f"{self.spec.path} has no lake table at {self.spec.location}: dropped, or not tiered yet; tier it"
            )
        return table

    def create_or_evolve(self) -> None:
        """Create or migrate the table. **Commit point:** put-if-absent of the schema file, the first or one with other
        columns.
        """
        for _ in range(ATTEMPTS_MAX):
            table = self.find()
            if table is None:
                self._require_free()
                # Put before there is anything to expire: an engine that expires snapshots keeps those with offsets.
                self.storage.put(self.snapshots.consumer_key, consumer_text(1))
                self.put_schema(paimon_schema(self.spec, self.world.clock.now_ms()))
                continue
            self.require_owner(table)
            evolved = evolve_lake(table.schema, self.spec, self.world.clock.now_ms())
            if problems := evolved.differences or find_differences(evolved.schema, self.spec):
                raise LakeMismatchError(
                    f"the Paimon table at {table.location} does not fit {self.spec.path}: {'; '.join(problems)}; "
                    "change it, or build the lake at another place (streamhouse retier)"
                )
            if evolved.schema is table.schema:
                return
            self.put_schema(evolved.schema)
        raise CommitConflictError(
            f"the Paimon table at {self.location} was changed by others {ATTEMPTS_MAX} times; try again"
        )

    def migrate_columns(self) -> None:
        """Migrate the lake table, if it exists, to the table's columns before its files are rewritten."""
        table = self.find()
        if table is None or table.owner != self.spec.table_uuid:
            return
        schema_id = paimon_columns(table.schema, self.spec).schema_id
        if schema_id is None or schema_id < self.spec.schema_id:
            self.create_or_evolve()

    def drop(self, *, purge: bool) -> None:
        """Drop the lake table if it is this table's. The owner's mark is deleted last, so that a failed drop can be
        repeated.

        Without ``purge`` only the schemas are deleted: then there is no table, and its files stay.
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
        """Raise `LakeMismatchError` if the lake table is not this table's."""
        owner = table.owner
        if owner != self.spec.table_uuid:
            raise LakeMismatchError(
                f"the Paimon table at {table.location} belongs to {f'table {owner}' if owner else 'nobody'}, expected "
                f"table {self.spec.table_uuid} ({self.spec.path}); "
                f"{'' if owner else 'make a table of it (adopt_table), or '}build the lake at "
                "another place (streamhouse retier)"
            )

    def files_at(self, location: str) -> FileAccess:
        return lake_files(self.storage, self.settings, location)

    def _require_free(self) -> None:
        if self.snapshots.newest() is not None:
            raise LakeMismatchError(
                f"the place of the Paimon table {self.location} has snapshots and no schema: a table was dropped "
                "there; delete the folder, or build the lake at another place (streamhouse retier)"
            )

    def put_schema(self, schema: PaimonSchema) -> None:
        """Store the ``schema`` under its id, unless another has that id: the next read shows which one it was."""
        self.forget_cached_table()
        data = JSON.to_json(schema, indent=2).encode()
        slot_for_bytes(self.storage, self.schema_key(schema.id), data).take(data).won()

    def _read_schema(self, schema_id: int, ahead: Prefetch) -> PaimonSchema | None:
        key = self.schema_key(schema_id)
        try:
            data = ahead.read(key)
        except ObjectNotFoundError:
            return None
        try:
            schema = PaimonSchema.from_json(data.decode())
            if schema.id != schema_id or not isinstance(json.loads(data), dict):
                raise ValueError(f"its id is {schema.id}")
        except (ValueError, RuntimeError, TypeError, AttributeError) as error:
            raise CorruptDataError(
                f"lake file {key} cannot be read ({type(error).__name__}: {error}); restore it, "
                "or rebuild the lake from the log (streamhouse retier)"
            ) from error
        return schema

    def schema_key(self, schema_id: int) -> str:
        """Return the key of the file of a schema."""
        return f"{self.spec.location}/{_SCHEMA}{schema_id}"
