"""Adoption of an Iceberg table with rows as the lake of a new table: requirements and claim.

**Commit point** of the claim: one metadata version with the owner property, and with a snapshot of the same files that
has the start offsets. It fails if the lake's snapshot is not the examined one, or if the lake has another owner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
from pyiceberg import types as ice
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AssertTableUUID, RemovePropertiesUpdate
from pyiceberg.transforms import BucketTransform

from streamhouse_spark.core.types import TablePath
from streamhouse_spark.errors import CommitConflictError, LakeMismatchError
from streamhouse_spark.lake.base import UNKNOWN_COLUMNS, AdoptionCandidate, LakeAdoption
from streamhouse_spark.lake.column_mapping import map_by_name
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.lake.iceberg.evolution import add_external_nested_ids
from streamhouse_spark.lake.iceberg.file_io import StorageFileIO, translate_commit_errors
from streamhouse_spark.lake.iceberg.scan import plan_tasks, projection, require_snapshot, scan_files, snapshot_schema
from streamhouse_spark.lake.iceberg.schema import (
    FORMAT_VERSION,
    describe_spec,
    iceberg_type,
    lake_schema,
    to_own_field,
    type_without_ids,
)
from streamhouse_spark.lake.iceberg.snapshot_commit import SnapshotUpdate, commit_snapshot
from streamhouse_spark.lake.iceberg.table_binding import IcebergTableBinding
from streamhouse_spark.lake.parquet.parquet_io import StorageFiles
from streamhouse_spark.lake.parquet.reader import read_split
from streamhouse_spark.lake.snapshot_properties import TABLE_UUID_PROPERTY, LakeOffsets
from streamhouse_spark.lake.table_spec import LakeTableSpec
from streamhouse_spark.lake.types import LakeSnapshot, LakeSplit
from streamhouse_spark.log.bucketing import row_buckets
from streamhouse_spark.schema.table_schema import TableSchema

_CLAIM_PROPERTIES: Mapping[str, str] = {
    # Versions are deleted only below a low watermark; see `table_binding.TABLE_PROPERTIES`.
    "write.metadata.delete-after-commit.enabled": "false"
}


class IcebergAdoption(LakeAdoption):
    """The `LakeAdoption` of Iceberg."""

    kind = "Iceberg table"

    def examine(self, path: TablePath, location: str) -> AdoptionCandidate:
        """Examine a lake table. ``location`` is the name of the table, whose location is in its catalog."""
        spec = LakeTableSpec("", path, location, UNKNOWN_COLUMNS, (), (), 1)
        opened = self._bind(spec)
        table = opened.find()
        if table is None:
            raise LakeMismatchError(
                f"there is no Iceberg table {'.'.join(opened.identifier)} to adopt as {path}; specify its name in the "
                "catalog of the lake"
            )
        metadata = table.metadata
        problems = _find_wrong_location(opened, table)
        if metadata.format_version != FORMAT_VERSION:
            problems.append(f"its format version is {metadata.format_version}, expected {FORMAT_VERSION}")
        if not problems:
            problems = list(_find_column_problems(metadata.schema()))
        if problems:
            raise LakeMismatchError(f"the Iceberg table at {table.location()} cannot be adopted: {'; '.join(problems)}")
        columns = lake_schema(metadata.schema()).columns
        partition_by, bucket_key, num_buckets = _parse_layout(metadata.spec(), metadata.schema())
        head = metadata.current_snapshot()
        files = [task.file for task in plan_tasks(table, head)] if head is not None else []
        return AdoptionCandidate(
            location=table.location(),
            schema=TableSchema(tuple(replace(column, id=i) for i, column in enumerate(columns, start=1))),
            partition_by=partition_by,
            bucket_key=bucket_key,
            num_buckets=num_buckets,
            layout=tuple(describe_spec(metadata.spec(), metadata.schema())),
            snapshot_id=head.snapshot_id if head else None,
            version=str(head.snapshot_id) if head else None,
            num_rows=sum(file.record_count for file in files),
            num_files=len(files),
            owner=metadata.properties.get(TABLE_UUID_PROPERTY),
            key=tuple(sorted(metadata.schema().identifier_field_names())),
        )

    def require_key(self, examined: AdoptionCandidate, key: tuple[str, ...]) -> None:
        """Require that the key is the identifier fields of the lake table, and that its columns are required."""
        problems = []
        if examined.key and set(examined.key) != set(key):
            requested = f"primary_key is {', '.join(key)}" if key else "no primary_key is given"
            problems.append(f"it has the identifier fields {', '.join(examined.key)}, but {requested}")
        problems += [
            f"column '{name}' of the primary key is optional, expected required"
            for name in key
            if examined.schema.column(name).nullable
        ]
        if problems:
            raise LakeMismatchError(
                f"the Iceberg table at {examined.location} cannot be adopted: {'; '.join(problems)}"
            )

    def rows_by_bucket(self, spec: LakeTableSpec, examined: AdoptionCandidate) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows by bucket. A file whose partition does not determine its bucket is read once per bucket."""
        if examined.snapshot_id is None:
            return
        binding = self._bind(spec)
        table = binding.require()
        snapshot = require_snapshot(table.metadata, examined.snapshot_id)
        lake = snapshot_schema(table.metadata, snapshot)
        mapping = map_by_name([(field.field_id, field.name) for field in lake.fields], examined.schema)
        mapping = add_external_nested_ids(mapping, table.metadata)
        table_projection = projection(lake, mapping, examined.schema, None, examined.schema)
        by_bucket: dict[int | None, list[LakeSplit]] = {}
        files = scan_files(table, snapshot, table_projection, examined.num_buckets)
        for split in (split for file in files for split in file.splits()):
            by_bucket.setdefault(split.bucket if examined.bucket_key else 0, []).append(split)
        mixed = by_bucket.pop(None, [])
        for bucket in range(examined.num_buckets):
            batches = [
                b
                for s in by_bucket.get(bucket, ())
                for b in read_split(binding.files_at(s.location), s, table_projection)
            ]
            for split in mixed:
                batches_of_split = read_split(binding.files_at(split.location), split, table_projection)
                batches += (_filter_bucket(batch, examined, bucket) for batch in batches_of_split)
            rows = pa.Table.from_batches(batches, examined.schema.arrow)
            if rows.num_rows:
                yield bucket, rows

    def claim(self, spec: LakeTableSpec, examined: AdoptionCandidate, offsets: Mapping[int, int]) -> LakeSnapshot:
        """Claim the lake table. See the module."""
        binding = self._bind(spec)
        binding.require_home("adoption")
        table_uuid = spec.table_uuid

        def validated(metadata: TableMetadata) -> SnapshotUpdate:
            owner = metadata.properties.get(TABLE_UUID_PROPERTY)
            if metadata.current_snapshot_id != examined.snapshot_id or owner != examined.owner:
                raise CommitConflictError(
                    f"the Iceberg table at {metadata.location} changed concurrently with its adoption; "
                    "nothing was changed, adopt it again"
                )
            summary = LakeOffsets(offsets).to_properties(table_uuid)
            properties = {**_CLAIM_PROPERTIES, TABLE_UUID_PROPERTY: table_uuid}
            operation = Operation.REPLACE if examined.snapshot_id is not None else Operation.APPEND
            return SnapshotUpdate(operation, summary=summary, properties=properties)

        return commit_snapshot(binding, validated)

    def release(self, spec: LakeTableSpec) -> None:
        binding = self._bind(spec)
        binding.require_home("releasing the lake table")
        table = binding.find()
        if table is None or table.properties.get(TABLE_UUID_PROPERTY) != spec.table_uuid:
            return
        update = RemovePropertiesUpdate(removals=[TABLE_UUID_PROPERTY])
        try:
            with translate_commit_errors(f"releasing lake table {table.location()}"):
                binding.catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), (update,))
        except CommitFailedException as error:
            raise CommitConflictError(f"lake table {table.location()} changed during its release; retry") from error

    def _bind(self, spec: LakeTableSpec) -> IcebergTableBinding:
        return IcebergTableBinding(self.storage, spec, settings=self.settings, world=self.world)


def _filter_bucket(rows: pa.RecordBatch, examined: AdoptionCandidate, bucket: int) -> pa.RecordBatch:
    keys = [rows.column(name) for name in examined.bucket_key]
    return rows.filter(pa.array(row_buckets(keys, examined.num_buckets, "iceberg") == bucket))


def _find_wrong_location(binding: IcebergTableBinding, table: Table) -> list[str]:
    """Describe the problem of a table in the file catalog that records another location, because it is a copy."""
    files = StorageFiles(binding.storage)
    if not isinstance(binding.catalog, FileCatalog):
        return []
    location, move = table.location(), table.io.move if isinstance(table.io, StorageFileIO) else None
    if move is None and files.holds(location) and files.key_of(location).rstrip("/") == binding.spec.location:
        return []
    actual = f"{binding.storage.url}/{binding.spec.location}"
    recorded = actual if move is None else move.inverse().of(location)
    text = (
        f"its metadata records the location {recorded}, but it is at {actual}, so it was moved or copied; rewrite its "
        "metadata with the engine that wrote it, or configure its catalog with lake.iceberg.catalog settings"
    )
    return [text]


def _find_column_problems(schema: Schema) -> list[str]:
    nested = filter(None, (_find_required_field(field.field_type, field.name) for field in schema.fields))
    problems = [
        f"{name} is required within a column, but new rows may have null there; make it optional" for name in nested
    ]
    ids = iter(range(10_000, 20_000))
    for column in lake_schema(schema).columns:
        actual, expected = schema.find_field(column.id).field_type, iceberg_type(column.type, ids)
        if type_without_ids(actual) != type_without_ids(expected):
            problems.append(
                f"column '{column.name}' is {type_without_ids(actual)}, expected {type_without_ids(expected)} of new "
                "rows"
            )
    return problems


def _find_required_field(kind: ice.IcebergType, name: str) -> str | None:
    """Return the path of the first part of a nested type that is not nullable, or None."""
    match kind:
        case ice.StructType():
            parts = [(f.field_type, f"{name}.{f.name}", f.required) for f in kind.fields]
        case ice.ListType():
            parts = [(kind.element_type, f"{name}.element", kind.element_required)]
        case ice.MapType():
            parts = [(kind.key_type, f"{name}.key", False), (kind.value_type, f"{name}.value", kind.value_required)]
        case _:
            return None
    required_paths = (path if required else _find_required_field(part, path) for part, path, required in parts)
    return next(filter(None, required_paths), None)


def _parse_layout(spec: PartitionSpec, schema: Schema) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """Return partition columns, bucket key and number of buckets. Raises `LakeMismatchError` for other specs."""
    fields = list(spec.fields)
    bucket_key: tuple[str, ...] = ()
    num_buckets = 1
    last = fields[-1].transform if fields else None
    if isinstance(last, BucketTransform):
        bucket_key, num_buckets = (schema.find_field(fields.pop().source_id).name,), last.num_buckets
    parts = [to_own_field(field.transform, schema.find_column_name(field.source_id) or "") for field in fields]
    named = [part for part in parts if part is not None]
    if len(named) < len(parts):
        raise LakeMismatchError(
            f"the Iceberg table cannot be adopted: it is partitioned by [{', '.join(describe_spec(spec, schema))}], "
            "expected columns, their years, months, days, hours or truncate, and then at most one bucket[N]; change "
            "its partition spec, which does not require rewriting files"
        )
    nested = [f.source_id for f in spec.fields if f.source_id not in {c.field_id for c in schema.fields}]
    if nested:
        raise LakeMismatchError("the Iceberg table cannot be adopted: it is partitioned by a field within a column")
    texts = (part.column if part.transform == "identity" else str(part) for part in named)
    return tuple(texts), bucket_key, num_buckets
