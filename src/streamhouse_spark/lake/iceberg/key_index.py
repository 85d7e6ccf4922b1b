"""Data files of a snapshot by bucket, and the selection of those that may hold given keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform

from streamhouse_spark.core.python_values import scalar_to_ticks
from streamhouse_spark.keys.changelog_merge import KeySet
from streamhouse_spark.keys.key_codec import encode_keys
from streamhouse_spark.lake.iceberg.file_spec import IcebergFileSpec
from streamhouse_spark.lake.iceberg.partitions import decode_bound
from streamhouse_spark.lake.iceberg.position_deletes import has_own_name
from streamhouse_spark.lake.iceberg.scan import is_only_of, plan_tasks, position_deletes
from streamhouse_spark.lake.iceberg.schema import (
    PATH_ID,
    bucket_of,
    bucket_source,
    partition_types,
)
from streamhouse_spark.lake.model.data_files import LiveFile
from streamhouse_spark.lake.parquet.key_lookup import KeyIndexProbe, best_probe
from streamhouse_spark.schema.table_schema import TableSchema


def find_live_files(
    table: Table, snapshot: Snapshot, key_ids: Sequence[int], buckets: Collection[int], num_buckets: int
) -> dict[int, tuple[LiveFile, ...]]:
    """Return each bucket's data files. A file whose partition does not determine its bucket is in each of them."""
    files_of_bucket: dict[int, list[LiveFile]] = {bucket: [] for bucket in buckets}
    specs, source_id = table.metadata.specs(), bucket_source(table.metadata, num_buckets)
    for task in plan_tasks(table, snapshot):
        bucket = bucket_of(specs[task.file.spec_id], task.file.partition, num_buckets, source_id)
        if bucket is not None and bucket not in files_of_bucket:
            continue
        file = describe_live_file(task, table, key_ids)
        for files in files_of_bucket.values() if bucket is None else [files_of_bucket[bucket]]:
            files.append(file)
    return {bucket: tuple(files) for bucket, files in files_of_bucket.items()}


def describe_live_file(task: FileScanTask, table: Table, key_ids: Sequence[int]) -> LiveFile:
    file, ids = task.file, set(key_ids)
    spec = table.metadata.specs()[file.spec_id]
    types = partition_types(spec, table.metadata.schema())
    values = [file.partition[position] for position in range(len(types))]
    deletes = sorted(task.delete_files, key=lambda delete: delete.file_path)
    locations = {delete.file_path: position_deletes(delete, table.location()) for delete in deletes}
    own = [delete.file_path for delete in deletes if is_only_of(delete, file.file_path)]
    return LiveFile(
        location=file.file_path,
        size_bytes=file.file_size_in_bytes,
        num_rows=file.record_count,
        spec_id=file.spec_id,
        partition=tuple(None if v is None else to_bytes(t, v) for t, v in zip(types, values, strict=True)),
        own_deletes=tuple(own),
        shared_deletes=tuple(location for location in locations if location not in own),
        lower={i: bound for i, bound in (file.lower_bounds or {}).items() if i in ids},
        upper={i: bound for i, bound in (file.upper_bounds or {}).items() if i in ids},
    )


def row_deletes_of(delete: DataFile) -> str | None:
    """Return the data file of a position delete file of the package, or None for another engine's."""
    location = (delete.lower_bounds or {}).get(PATH_ID, b"").decode()
    return location if has_own_name(delete.file_path) and is_only_of(delete, location) else None


class KeyedFilter:
    """A filter of data files by the keys of a changelog range."""

    def __init__(self, file_spec: IcebergFileSpec, schema: TableSchema, primary_key: Sequence[str]) -> None:
        self._file_spec = file_spec
        names = {field_id: name for name, field_id in zip(primary_key, file_spec.field_ids(primary_key), strict=True)}
        self._keys = [(field_id, schema.column(name).type) for field_id, name in names.items()]
        self._names = list(names.values())
        self._key_values: list[list[pa.Array]] = [[] for _ in self._names]
        types = dict(self._keys)
        self._partitions: dict[int, tuple[str, set[bytes | None]]] = {
            position: (names[field.source_id], set())
            for position, field in enumerate(file_spec.spec.fields)
            if isinstance(field.transform, IdentityTransform)
            and field.source_id in names
            and not pa.types.is_floating(types[field.source_id])  # equal zeros and NaNs fall into several partitions
        }

    def add_keys(self, rows: pa.RecordBatch) -> None:
        """Add the keys of rows of the range, which have the table's columns."""
        for name, values_of_name in zip(self._names, self._key_values, strict=True):
            values_of_name.append(rows.column(name).unique())
        for position, (name, values) in self._partitions.items():
            field_type = self._file_spec.partition_types[position]
            distinct = rows.column(name).unique()
            parts = (scalar_to_ticks(value) for value in distinct)
            values.update(None if value is None else to_bytes(field_type, value) for value in parts)

    def probe(self) -> KeyIndexProbe | None:
        """Return the column to search first for the collected keys."""
        return best_probe([pa.concat_arrays(values) for values in self._key_values]) if all(self._key_values) else None

    def may_contain_keys(self, file: LiveFile, keys: KeySet) -> bool:
        """Return False only if no row of the file has one of the keys, which must be the collected ones."""
        if file.spec_id == self._file_spec.spec.spec_id:
            may_match = (file.partition[position] in values for position, (_, values) in self._partitions.items())
            if not all(may_match):
                return False
        low, high = self._bounds(file)
        return not low or keys.reaches(low, high)

    def _bounds(self, file: LiveFile) -> tuple[bytes, bytes]:
        """Return the least and greatest key prefix of the file; empty if unknown."""
        lows, highs = [], []
        for field_id, arrow in self._keys:
            field_type = self._file_spec.schema.find_type(field_id)
            low, high = (_as_key(decode_bound(field_type, b.get(field_id)), arrow) for b in (file.lower, file.upper))
            if low is None or high is None:
                break
            lows.append(low)
            highs.append(high)
        return (encode_keys(lows)[0].as_py(), encode_keys(highs)[0].as_py()) if lows else (b"", b"")


def _as_key(value: object, arrow: pa.DataType) -> pa.Array | None:
    """Return a bound as a value of the column, or None if there is none. A float bound does not hold for NaN."""
    if value is None or pa.types.is_floating(arrow):
        return None
    try:
        return pa.array([value], arrow)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None
