"""Adoption of an existing lake table: its rows become the history of a new table. No row is rewritten.

1. Write the first record of an unnamed log, which starts at offset 0 after the adopted rows.
2. For a primary-key table, stage key-value snapshots (`kv.kv_snapshots`).
3. Claim the lake table (`lake.iceberg.adoption`, `lake.paimon.adoption`).
4. Record the tiered snapshot.
5. Write the name's pointer. **Commit point.**

A crash before step 5 leaves a lake that an unnamed table has claimed. The next adoption drops that table by a record in
its log, which also stops a stalled adoption, and takes over the lake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from streamhouse_spark.config.table_properties import NOTHING_ADOPTED, PRIMARY_KEY, LakeFormat, parse_properties
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import join_names, parse_names
from streamhouse_spark.core.types import TablePath, is_text_list
from streamhouse_spark.core.warehouse_layout import LAKE_PREFIX, lake_location, parse_table_name
from streamhouse_spark.errors import (
    CommitConflictError,
    InvalidOptionError,
    LakeMismatchError,
    TableExistsError,
    TableNotFoundError,
)
from streamhouse_spark.lake.base import AdoptionCandidate, LakeAdoption
from streamhouse_spark.lake.formats import open_lake_adoption
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.log.actions import Action, Create, Drop, TieredSnapshot
from streamhouse_spark.log.bootstrap import put_first_record
from streamhouse_spark.log.catalog import names
from streamhouse_spark.log.catalog.log_locations import create_table_uuid, require_log_location
from streamhouse_spark.log.catalog.name_changes import free_name
from streamhouse_spark.log.catalog.names import NamePointer
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.low_watermark import DROPPED_WATERMARK, find_latest_watermark
from streamhouse_spark.log.record import Record
from streamhouse_spark.log.segments.writer import SegmentOptions
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.warehouse.creation import make_create_action

if TYPE_CHECKING:
    from streamhouse_spark.kv.kv_snapshots import BucketBootstrap

_RACES_MAX = 5
_FORMAT = "table.datalake.format"


@dataclass(frozen=True, slots=True)
class AdoptReport:
    """The adopted table, or with ``dry_run`` the table that would be created."""

    table: str
    location: str
    """Location of the lake table."""
    snapshot_id: int | None
    """The latest snapshot of the lake table."""
    rows: int
    """Rows in all lake files, including deleted rows, and all versions of a row in a Paimon primary-key table."""
    files: int
    schema: str
    """The columns, as Spark DDL."""
    partition_by: tuple[str, ...]
    bucket_key: str | None
    buckets: int
    format: LakeFormat
    """The format of the lake table."""
    primary_key: tuple[str, ...]


def adopt_table(
    storage: Storage,
    settings: Mapping[str, str],
    world: World,
    name: str,
    lake: str | None,
    primary_key: Sequence[str],
    properties: Mapping[str, str] | None,
    *,
    dry_run: bool,
) -> AdoptReport:
    """Adopt a lake table; see `Warehouse.adopt_table`."""
    path = parse_table_name(name).require_table("adopt as")
    source = parse_table_name(lake).require_table("adopt") if lake is not None else path
    if not isinstance(properties, Mapping | None):
        raise InvalidOptionError(f"table {path}: properties are {properties!r}, expected a mapping of texts")
    if not is_text_list(primary_key):
        raise InvalidOptionError(f"table {path}: primary_key is {primary_key!r}, expected a list of column names")
    lake_format = _detect_format(storage, settings, source, properties or {})
    place = lake_location(source, "", has_conflict=False, lake_format=lake_format)
    adopter = _Adopter(storage, settings, world, path, lake_format, place, tuple(primary_key), dict(properties or {}))
    if dry_run:
        adopter.require_free(names.resolve(storage, path))
        return adopter.report(adopter.examine())
    for _ in range(_RACES_MAX):
        candidate = adopter.adopt()
        if candidate is not None:
            return adopter.report(candidate)
    raise CommitConflictError(
        f"cannot adopt {path}: {_RACES_MAX} attempts conflicted with other creators of this name; nothing was adopted, "
        "try again"
    )


def _detect_format(
    storage: Storage, settings: Mapping[str, str], source: TablePath, properties: Mapping[str, str]
) -> LakeFormat:
    """Return the format in the properties, or the format of the lake table in the warehouse."""
    text = str(properties.get(_FORMAT, "")).strip().lower()
    if text:
        return "paimon" if text == "paimon" else "iceberg"  # validation of the properties rejects other values
    if any(name.startswith("lake.") for name in settings):
        return "iceberg"
    iceberg, paimon = (
        bool(storage.list_names(f"{lake_location(source, '', has_conflict=False, lake_format=of)}/{folder}/"))
        for of, folder in (("iceberg", "metadata"), ("paimon", "schema"))
    )
    if iceberg and paimon:
        raise InvalidOptionError(
            f"{source} is both an Iceberg and a Paimon table in {storage.url}/{LAKE_PREFIX}; choose the table with "
            f"{_FORMAT}"
        )
    return "paimon" if paimon else "iceberg"


@dataclass(frozen=True, slots=True)
class _Adopter:
    storage: Storage
    settings: Mapping[str, str]
    world: World
    path: TablePath
    lake_format: LakeFormat
    place: str
    primary_key: tuple[str, ...]
    properties: Mapping[str, str]

    def require_free(self, pointer: NamePointer) -> None:
        storage, world = self.storage, self.world
        if not free_name(storage, world, self.path, pointer):
            raise TableExistsError(
                f"table {self.path} exists in {self.storage.url}; drop it first, or adopt under another name"
            )

    def lake(self) -> LakeAdoption:
        return open_lake_adoption(self.storage, self.settings, self.world, self.lake_format)

    @property
    def kind(self) -> str:
        return self.lake().kind

    def examine(self) -> AdoptionCandidate:
        """Examine the lake table. Raises `LakeMismatchError` if it is unsupported, or another table owns it."""
        candidate = self.lake().examine(self.path, self.place)
        state = self._find_owner(candidate, candidate.owner) if candidate.owner is not None else None
        if state is not None and not state.dropped and self._is_named(state):
            raise LakeMismatchError(f"the {self.kind} at {candidate.location} is the lake of table {state.name}")
        return candidate

    def _find_owner(self, candidate: AdoptionCandidate, owner: str) -> TableState | None:
        """Return the state of the table that owns the lake; None if cleaning deleted the table."""
        try:
            return CommitLog(self.storage, owner, self.world).refresh()
        except TableNotFoundError:
            pass
        _, watermark = find_latest_watermark(self.storage, owner)
        if watermark is not None and watermark.number >= DROPPED_WATERMARK:
            return None
        raise LakeMismatchError(
            f"the {self.kind} at {candidate.location} belongs to table {owner}, which is not in this warehouse; drop "
            "and clean that table in its own warehouse"
        )

    def _is_named(self, state: TableState) -> bool:
        path = parse_table_name(state.name).path
        return names.resolve(self.storage, path).uuid == state.table_uuid

    def adopt(self) -> AdoptionCandidate | None:
        """Attempt the adoption once. Returns None if another table got the name."""
        storage, world = self.storage, self.world
        pointer = names.resolve(storage, self.path)
        self.require_free(pointer)
        candidate = self.examine()
        create = replace(self._make_create(candidate), lake_location=self.place)
        require_log_location(storage, create.properties)
        names.create_database(storage, self.path.database, world)
        if candidate.owner is not None:
            self._drop_owner(candidate, candidate.owner)
        uuid = create_table_uuid(storage, world, create.properties)
        record = Record(1, uuid, world.ids.new_uuid(), storage.now_ms(), (create,), author=world.author)
        put_first_record(storage, record)
        self._claim(candidate, uuid)
        if not names.put_name_pointer(storage, self.path, pointer, uuid, world):
            return None
        names.create_database(storage, self.path.database, world)  # if it was dropped concurrently
        return candidate

    def _make_create(self, candidate: AdoptionCandidate) -> Create:
        properties = {str(k): str(v) for k, v in self.properties.items()}
        if self.lake_format != "iceberg":
            properties.setdefault(_FORMAT, self.lake_format)
        key = join_names(candidate.bucket_key)
        of_lake = {"bucket.num": str(candidate.num_buckets), "bucket.key": key} if key else {}
        for key, value in of_lake.items():
            if properties.setdefault(key, value) != value:
                raise InvalidOptionError(
                    f"table {self.path}: {key} is {properties[key]}, expected {value} as in the {self.kind}; leave it "
                    "out"
                )
        snapshot = NOTHING_ADOPTED if candidate.snapshot_id is None else str(candidate.snapshot_id)
        has_explicit_key = self.primary_key or PRIMARY_KEY in properties
        create = make_create_action(
            self.path,
            candidate.schema,
            candidate.key if candidate.is_keyed and not has_explicit_key else self.primary_key,
            candidate.partition_by,
            None,
            properties,
            adopted=snapshot,
            chooses_bucket_key=False,
        )
        parsed = parse_properties(create.properties, create.schema, create.partition_by)
        if not parsed.datalake_enabled:
            raise InvalidOptionError(
                f"table {self.path}: table.datalake.enabled is false, expected true for an adopted lake table; leave "
                "it out"
            )
        self.lake().require_key(candidate, parsed.primary_key)
        if parsed.bucket_key != candidate.bucket_key:
            raise InvalidOptionError(
                f"table {self.path}: bucket.key is {join_names(parsed.bucket_key)}, but the {self.kind} has no bucket "
                "key; leave it out"
            )
        return create

    def _drop_owner(self, candidate: AdoptionCandidate, owner: str) -> None:
        """Drop the unnamed table that claimed the lake. Raises `LakeMismatchError` if it got a name."""
        if self._find_owner(candidate, owner) is None:
            return
        log = CommitLog(self.storage, owner, self.world)
        log.commit(lambda state, _: () if state.dropped or self._is_named(state) else (Drop(),))
        if not log.state.dropped:
            raise LakeMismatchError(f"the {self.kind} at {candidate.location} is the lake of table {log.state.name}")

    def _claim(self, candidate: AdoptionCandidate, uuid: str) -> None:
        """Stage key-value snapshots of a primary-key table, claim the lake, and record the snapshots."""
        storage, world = self.storage, self.world
        log = CommitLog(storage, uuid, world)
        created = log.refresh()
        spec, lake = LakeTableSpec.of(created), self.lake()
        adopted: list[BucketBootstrap] = []
        if created.primary_key:
            from streamhouse_spark.kv.kv_snapshots import make_adopt_action, stage_snapshot_rows

            options = _segment_options(created)
            buckets = lake.rows_by_bucket(spec, candidate)
            adopted = [stage_snapshot_rows(storage, world, created, options, bucket, rows) for bucket, rows in buckets]
        ends = {**dict.fromkeys(range(created.num_buckets), 0), **{bucket_rows.bucket: 1 for bucket_rows in adopted}}
        snapshot = lake.claim(spec, candidate, ends)

        def plan(state: TableState, time_ms: int) -> Sequence[Action]:
            if state.dropped:
                raise CommitConflictError(f"another adoption of the {lake.kind} committed before that of {self.path}")
            if state.recorded_lake is not None:
                return ()
            actions = make_adopt_action(state, time_ms, adopted) if adopted else ()
            return (*actions, TieredSnapshot(snapshot.id, dict(snapshot.offsets), time_ms))

        log.commit(plan)

    def report(self, candidate: AdoptionCandidate) -> AdoptReport:
        create = self._make_create(candidate)
        return AdoptReport(
            table=str(self.path),
            location=candidate.location,
            snapshot_id=candidate.snapshot_id,
            rows=candidate.num_rows,
            files=candidate.num_files,
            schema=candidate.schema.ddl(),
            partition_by=candidate.partition_by,
            bucket_key=join_names(candidate.bucket_key) if candidate.bucket_key else None,
            buckets=create.num_buckets,
            format=self.lake_format,
            primary_key=parse_names(create.properties.get(PRIMARY_KEY, "")),
        )


def _segment_options(state: TableState) -> SegmentOptions:
    properties = state.parsed
    return SegmentOptions(
        state.schema_id, state.partition_by, properties.statistics_columns, properties.log_compression
    )
