"""Adoption of a Paimon table with rows as the lake of a new table: requirements and claim.

The claim consists of two files. The next schema file, stored by put-if-absent, has the owner, the column map, and
Paimon's defaults as explicit options: buckets and merge engine. **Commit point** of the claim: the snapshot file, which
has the same data files and the start offsets. It fails if the lake's snapshot is not the examined one, the schema is
not the claim's, or the owner changed. An empty snapshot after it prevents writers that rename from replacing it. A
crash in between leaves a lake that is claimed by a table without a name.

Sequence numbers of the rows need no stored state: each round starts after the largest live one
(`merge_tree.sequence_offset_gaps`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from pypaimon.common.json_util import JSON
from pypaimon.manifest.schema.manifest_entry import ManifestEntry
from pypaimon.schema.table_schema import TableSchema as PaimonSchema
from pypaimon.snapshot.snapshot import Snapshot

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.python_values import to_python
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.errors import CommitConflictError, LakeMismatchError, count_of
from streamhouse_spark.lake.base import UNKNOWN_COLUMNS, AdoptionCandidate, LakeAdoption
from streamhouse_spark.lake.column_mapping import COLUMNS_PROPERTY, map_by_name
from streamhouse_spark.lake.paimon.evolution import add_external_nested_ids
from streamhouse_spark.lake.paimon.file_io import StorageFileIO
from streamhouse_spark.lake.paimon.manifests import MetadataReader
from streamhouse_spark.lake.paimon.scan import projection, scan_files
from streamhouse_spark.lake.paimon.schema import (
    KEYED_OPTIONS,
    UNAWARE_BUCKETS,
    bucket_options,
    find_differences,
    lake_schema,
)
from streamhouse_spark.lake.paimon.snapshot_commit import SnapshotUpdate, commit_snapshot
from streamhouse_spark.lake.paimon.snapshots import TAG_PREFIX, consumer_text
from streamhouse_spark.lake.paimon.table_binding import PaimonTable, PaimonTableBinding
from streamhouse_spark.lake.paimon.tiering_commit import make_snapshot_durable
from streamhouse_spark.lake.parquet.merge_on_read import SequenceMergedFiles
from streamhouse_spark.lake.parquet.reader import read_split
from streamhouse_spark.lake.snapshot_properties import TABLE_UUID_PROPERTY, LakeOffsets
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.lake.types import COMMIT_USER, LakeSnapshot, LakeSplit
from streamhouse_spark.log.bucketing import row_buckets
from streamhouse_spark.schema.table_schema import TableSchema

_RESTORED_BY_RELEASE = "write-only"
"""The option that a claim sets, so that other writers do not compact and files keep their offsets."""

SEQUENCE_MAX = 1 << 62
"""Largest sequence number of a table to adopt. Later rows get larger 64-bit numbers."""

_POSTPONED_BUCKETS = -2
_EXPECTED_OPTIONS = {"file.format": "parquet", "manifest.format": "avro", "type": "table", "branch": "main"}
"""Option → its default, which is the only supported value."""
_REFUSED_OPTIONS = ("scan.fallback-branch", "chain-table.enabled", "data-file.thin-mode")


class PaimonAdoption(LakeAdoption):
    """The `LakeAdoption` of Paimon."""

    kind = "Paimon table"

    def examine(self, path: TablePath, location: str) -> AdoptionCandidate:
        opened = self._bind(LakeTableSpec("", path, location, UNKNOWN_COLUMNS, (), (), 1))
        table = opened.find()
        if table is None:
            raise LakeMismatchError(
                f"there is no Paimon table at {opened.location} to adopt as {path}; specify its <database>.<table>, "
                "which is in <database>.db/<table> of the lake's folder"
            )
        layout = read_layout(table.schema)
        columns = lake_schema(table.schema).columns
        schema = TableSchema(tuple(replace(column, id=i) for i, column in enumerate(columns, start=1)))
        spec = _make_spec(path, location, table.schema, schema, layout)
        claimed = _with_options(table.schema, options_of_adopted_table(table.schema, spec, write_only=False))
        _require_no_problems(
            table, [*layout.problems, *find_option_problems(table.schema), *find_differences(claimed, spec)]
        )
        entries = MetadataReader(table, StorageFileIO(opened.files)).live_entries(table.snapshot)
        _require_no_problems(table, _find_file_problems(table, entries, layout))
        return AdoptionCandidate(
            location=table.location,
            schema=schema,
            partition_by=tuple(table.schema.partition_keys),
            bucket_key=layout.bucket_key,
            num_buckets=layout.num_buckets,
            layout=_describe_layout(table.schema),
            snapshot_id=table.snapshot.id if table.snapshot else None,
            version=_version(table.snapshot),
            num_rows=sum(int(entry.file.row_count) for entry in entries),
            num_files=len(entries),
            owner=table.owner,
            key=tuple(table.schema.primary_keys),
            is_keyed=bool(table.schema.primary_keys),
        )

    def require_key(self, examined: AdoptionCandidate, key: tuple[str, ...]) -> None:
        """Require that the key is the Paimon table's primary key, by which its merge tree is sorted."""
        if key != examined.key:
            has = f"the primary key {', '.join(examined.key)}" if examined.key else "no primary key"
            raise LakeMismatchError(
                f"the Paimon table at {examined.location} has {has}, but primary_key is {', '.join(key) or 'none'}; "
                "omit primary_key to use the existing key, or copy the rows into a table with another key"
            )

    def rows_by_bucket(self, spec: LakeTableSpec, examined: AdoptionCandidate) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows by bucket. Rejects rows with equal keys and sequence numbers, and rows in wrong buckets."""
        binding = self._bind(spec)
        table = binding.require()
        _require_unchanged(table, examined)
        if table.snapshot is None:
            return
        fields = [(field.id, field.name) for field in table.schema.fields]
        mapping = add_external_nested_ids(map_by_name(fields, spec.schema), table.schema, table.schemas)
        table_projection = projection(table.schema, mapping, spec.schema, None, spec.schema)
        by_bucket: dict[int, list[LakeSplit]] = {}
        for file in scan_files(binding, table, table.snapshot, table.schema, table_projection, ()):
            assert file.bucket is not None, "`examine` rejects such files"
            by_bucket.setdefault(file.bucket, []).extend(file.splits())
        for bucket, splits in sorted(by_bucket.items()):
            batches: list[pa.RecordBatch] = []
            for split in splits:
                files = binding.files_at(split.location)
                if split.merge is None:
                    batches += read_split(files, split, table_projection)
                    continue
                newest = SequenceMergedFiles(files, split.merge, table_projection)
                batches += [rows.select(list(range(len(table_projection.schema.columns)))) for rows in newest.batches()]
                _require_distinct_sequences(table, bucket, newest)
            rows = pa.Table.from_batches(batches, spec.schema.arrow)
            _require_own_bucket(table, spec, bucket, rows)
            if rows.num_rows:
                yield bucket, rows

    def claim(self, spec: LakeTableSpec, examined: AdoptionCandidate, offsets: Mapping[int, int]) -> LakeSnapshot:
        """Claim the lake table. See the module."""
        binding = self._bind(spec)
        binding.require_home("adoption")
        claimed = _put_claim(binding, examined)
        # Engines that expire snapshots retain those that a consumer needs.
        binding.storage.put(binding.snapshots.consumer_key, consumer_text(examined.snapshot_id or 1))

        def validated(table: PaimonTable) -> SnapshotUpdate:
            if JSON.to_json(table.schema) != JSON.to_json(claimed):
                raise _schema_changed_error(table.location)
            if _version(table.snapshot) != examined.version:
                raise _schema_changed_error(table.location)
            properties = LakeOffsets(offsets).to_properties(spec.table_uuid)
            return SnapshotUpdate(is_compaction=table.snapshot is not None, properties=properties)

        snapshot = commit_snapshot(binding, validated)
        make_snapshot_durable(binding, snapshot)
        return LakeSnapshot(snapshot.id, dict(offsets), snapshot.time_millis)

    def release(self, spec: LakeTableSpec) -> None:
        """Release the lake table. **Commit point:** the next schema file, without the owner.

        The tag and the consumer that retained snapshots are deleted before it.
        """
        binding = self._bind(spec)
        binding.require_home("releasing the lake table")
        table = binding.find()
        if table is None or table.owner != spec.table_uuid:
            return
        options = {k: v for k, v in table.schema.options.items() if k not in (TABLE_UUID_PROPERTY, COLUMNS_PROPERTY)}
        before = _schema_before_claim(table).options.get(_RESTORED_BY_RELEASE)
        options = {k: v for k, v in options.items() if k != _RESTORED_BY_RELEASE}
        options |= {_RESTORED_BY_RELEASE: before} if before is not None else {}
        for key in (binding.snapshots.consumer_key, f"{spec.location}/tag/{TAG_PREFIX}{COMMIT_USER}"):
            binding.storage.delete(key)
        binding.put_schema(_next_schema(table.schema, options, self.world.clock.now_ms()))
        if binding.require().owner == spec.table_uuid:
            raise CommitConflictError(f"lake table {table.location} changed during its release; retry")

    def _bind(self, spec: LakeTableSpec) -> PaimonTableBinding:
        return PaimonTableBinding(self.storage, spec, settings=self.settings, world=self.world)


def _make_spec(
    path: TablePath, location: str, lake: PaimonSchema, schema: TableSchema, layout: Layout
) -> LakeTableSpec:
    """Return the spec of the lake table as if it were created for a table with its columns."""
    key = tuple(lake.primary_keys)
    return LakeTableSpec(
        "", path, location, schema, tuple(lake.partition_keys), layout.bucket_key, layout.num_buckets, primary_key=key
    )


def _require_no_problems(table: PaimonTable, problems: Sequence[str]) -> None:
    if problems:
        raise LakeMismatchError(
            f"the Paimon table at {table.location} cannot be adopted: {'; '.join(problems)}; change that with the "
            "engine that wrote it, or copy its rows into a new table"
        )


def _find_file_problems(table: PaimonTable, entries: Sequence[ManifestEntry], layout: Layout) -> list[str]:
    problems = []
    outside = [
        e.file.file_name
        for e in entries
        if e.file.external_path and not str(e.file.external_path).startswith(f"{table.location}/")
    ]
    if outside:
        problems.append(
            f"it has {count_of(len(outside), 'file')} at other locations, for example {outside[0]}, so it was moved or "
            "copied"
        )
    highest = max((int(entry.file.max_sequence_number) for entry in entries), default=0)
    if table.schema.primary_keys and highest > SEQUENCE_MAX:
        problems.append(f"its rows have sequence numbers up to {highest}, expected at most {SEQUENCE_MAX}")
    bucket_counts = sorted({entry.total_buckets for entry in entries if entry.total_buckets != layout.bucket})
    if bucket_counts and table.schema.primary_keys:
        problems.append(
            f"it has files of {', '.join(map(str, bucket_counts))} buckets in addition to {layout.bucket}: rewrite "
            "the partitions that were not rescaled"
        )
    return problems


def _describe_layout(lake: PaimonSchema) -> tuple[str, ...]:
    return (f"schema {lake.id}",)


def _version(snapshot: Snapshot | None) -> str | None:
    """Return the snapshot's manifest list, whose name is unique."""
    return None if snapshot is None else str(snapshot.delta_manifest_list)


def _require_unchanged(table: PaimonTable, examined: AdoptionCandidate) -> None:
    same_schema = _describe_layout(table.schema) == examined.layout
    if not same_schema or _version(table.snapshot) != examined.version or table.owner != examined.owner:
        raise _schema_changed_error(table.location)


def _schema_changed_error(location: str) -> CommitConflictError:
    return CommitConflictError(
        f"the Paimon table at {location} changed concurrently with its adoption; the adoption did not "
        "change its rows, adopt it again"
    )


def _put_claim(binding: PaimonTableBinding, examined: AdoptionCandidate) -> PaimonSchema:
    """Store the schema with the lake's owner. It is durable on return. Raises `CommitConflictError`."""
    table, spec = binding.require(), binding.spec
    _require_unchanged(table, examined)
    fields = [(field.id, field.name) for field in table.schema.fields]
    columns = map_by_name(fields, spec.schema, spec.schema_id)
    options = options_of_adopted_table(table.schema, spec, write_only=True) | {
        TABLE_UUID_PROPERTY: spec.table_uuid,
        COLUMNS_PROPERTY: columns.to_text(spec.table_uuid),
    }
    claimed = _next_schema(table.schema, options, binding.world.clock.now_ms())
    if find_differences(claimed, spec) or len(columns.fields) != len(spec.schema.columns):
        raise _schema_changed_error(table.location)  # its columns changed
    binding.put_schema(claimed)
    current = binding.require()
    if current.schema.id != claimed.id or current.owner != spec.table_uuid:
        raise _schema_changed_error(table.location)
    return claimed


def _next_schema(lake: PaimonSchema, options: Mapping[str, str], now_ms: int) -> PaimonSchema:
    return replace(_with_options(lake, options), id=lake.id + 1, time_millis=now_ms)


def _with_options(lake: PaimonSchema, options: Mapping[str, str]) -> PaimonSchema:
    return replace(lake, options=dict(options))


def _schema_before_claim(table: PaimonTable) -> PaimonSchema:
    """Return the latest schema before the claim."""
    free = [schema_id for schema_id, schema in table.schemas.items() if TABLE_UUID_PROPERTY not in schema.options]
    return table.schemas[max(free, default=0)]


def _require_distinct_sequences(table: PaimonTable, bucket: int, newest: SequenceMergedFiles) -> None:
    if newest.num_tied:
        raise LakeMismatchError(
            f"the Paimon table at {table.location} cannot be adopted: bucket {bucket} has "
            f"{count_of(newest.num_tied, 'row')} with the key and sequence number of another row, so that engines "
            "disagree on the latest row; rewrite those keys, or compact the table with the engine that wrote it"
        )


def _require_own_bucket(table: PaimonTable, spec: LakeTableSpec, bucket: int, rows: pa.Table) -> None:
    """Reject a row in another bucket than its key's, because it would become a duplicate when it changes."""
    if not spec.bucket_key or not rows.num_rows:
        return
    buckets = row_buckets([rows.column(name) for name in spec.bucket_key], spec.num_buckets, "paimon")
    num_misplaced = int(np.count_nonzero(buckets != bucket))
    if num_misplaced:
        index = int(np.flatnonzero(buckets != bucket)[0])
        example = {name: to_python(rows.column(name)[index]) for name in spec.bucket_key}
        raise LakeMismatchError(
            f"the Paimon table at {table.location} cannot be adopted: bucket {bucket} has "
            f"{count_of(num_misplaced, 'row')} of other buckets, for example {example} of bucket "
            f"{int(buckets[index])}; copy its rows into a new table"
        )


@dataclass(frozen=True, slots=True)
class Layout:
    bucket: int
    """Paimon's ``bucket`` option."""
    bucket_key: tuple[str, ...]
    """Empty if the columns of a row do not determine its bucket."""
    problems: tuple[str, ...]

    @property
    def num_buckets(self) -> int:
        return max(self.bucket, 1)


def read_layout(lake: PaimonSchema) -> Layout:
    """Return the layout. Without ``bucket-key``, the key columns that do not partition determine the bucket."""
    text = lake.options.get("bucket", str(UNAWARE_BUCKETS)).strip()
    bucket = int(text) if text.lstrip("-").isdigit() else 0
    option = lake.options.get("bucket-key", "")
    bucket_key = tuple(name.strip() for name in option.split(",")) if option.strip() else ()
    if lake.primary_keys:
        if not bucket_key and bucket > 1:
            bucket_key = tuple(name for name in lake.primary_keys if name not in lake.partition_keys)
        return Layout(bucket, bucket_key, tuple(_find_keyed_problems(lake, bucket, text)))
    if bucket == UNAWARE_BUCKETS:
        return Layout(bucket, bucket_key, ())
    if bucket < 1:
        problem = f"its option bucket is {text}, expected {UNAWARE_BUCKETS} or the number of its buckets"
        return Layout(bucket, bucket_key, (problem,))
    problem = f"it has {bucket} buckets (option bucket) but no bucket-key, so that the bucket of a row is unknown"
    return Layout(bucket, bucket_key, () if bucket_key else (problem,))


def _find_keyed_problems(lake: PaimonSchema, bucket: int, text: str) -> list[str]:
    problems = []
    if bucket < 1:
        kinds = {
            UNAWARE_BUCKETS: "dynamic buckets, which only its index defines",
            _POSTPONED_BUCKETS: "postponed buckets",
        }
        problems.append(f"it has {kinds.get(bucket, 'no buckets')} (option bucket is {text}), expected a fixed number")
    outside = [name for name in lake.partition_keys if name not in lake.primary_keys]
    if outside:
        problems.append(f"partition column '{outside[0]}' is not in its primary key {', '.join(lake.primary_keys)}")
    return problems


def find_option_problems(lake: PaimonSchema) -> list[str]:
    """Describe options that move or change rows, except those of `schema.find_differences`."""
    problems = [
        f"option {name} is {lake.options[name]}, expected {expected}"
        for name, expected in {**_EXPECTED_OPTIONS, **(KEYED_OPTIONS if lake.primary_keys else {})}.items()
        if lake.options.get(name, expected).strip().lower() != expected
    ]
    problems += [
        f"option {name} is {value}, which is not supported"
        for name, value in sorted(lake.options.items())
        if (name in _REFUSED_OPTIONS and value.strip().lower() not in ("", "false"))
        or (name.startswith("fields.") and name.endswith(".default-value"))
    ]
    return problems


def options_of_adopted_table(lake: PaimonSchema, spec: LakeTableSpec, *, write_only: bool) -> dict[str, str]:
    """Return the table's options with Paimon's defaults made explicit, without those of a former owner."""
    options = {k: v for k, v in lake.options.items() if k not in (TABLE_UUID_PROPERTY, COLUMNS_PROPERTY)}
    own = {**bucket_options(spec), **(KEYED_OPTIONS if spec.primary_key else {})}
    return {**options, **own, **({"write-only": "true"} if write_only else {})}
