"""Position delete files, one per data file, and the rounds of a primary-key table, which write them.

Every reader of Iceberg v2 applies position deletes. A round merges a range of changes by key, and writes the remaining
rows in key order. It finds every older row of a changed key in the bucket's data files, and deletes it by position,
even if the range starts with an insert of the key. So a round repairs keys whose rows another engine duplicated or
deleted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform

from streamhouse_spark.core.clock import Ids
from streamhouse_spark.core.concurrency import parallel_map
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.python_values import scalar_to_ticks
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.keys.changelog_merge import KeySet, MergedChangelog
from streamhouse_spark.keys.key_codec import encode_keys
from streamhouse_spark.lake.column_mapping import map_by_name
from streamhouse_spark.lake.iceberg.file_spec import IcebergFileSpec
from streamhouse_spark.lake.iceberg.scan import decode_bound, is_only_of, plan_tasks, position_deletes, projection
from streamhouse_spark.lake.iceberg.schema import PATH_ID, bucket_of, bucket_source, partition_types
from streamhouse_spark.lake.parquet.bucket_writer import write_rows
from streamhouse_spark.lake.parquet.file_columns import FIELD_ID
from streamhouse_spark.lake.parquet.file_writer import FileOutput
from streamhouse_spark.lake.parquet.footer_checksum import close_with_checksum
from streamhouse_spark.lake.parquet.parquet_io import FileAccess, open_parquet_sink
from streamhouse_spark.lake.parquet.reader import BATCH_ROWS, DELETED_KEY, FilesAt, read_deleted_positions
from streamhouse_spark.lake.parquet.row_positions import read_numbered
from streamhouse_spark.lake.types import DeletedRows, LakeFile, LakeProjection, LakeSplit, LiveFile, WriteContext
from streamhouse_spark.schema.table_schema import TableSchema

_NAME: Final = re.compile(r"/\d{5}-deletes-[0-9a-f]{32}\.parquet$")
POSITION_ID: Final = 2147483545
"""Field id of the positions (Iceberg specification, reserved field ids)."""
_SCHEMA: Final = pa.schema(
    [
        pa.field(
            "file_path", pa.dictionary(pa.int32(), pa.string()), nullable=False, metadata={FIELD_ID: str(PATH_ID)}
        ),
        pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID: str(POSITION_ID)}),
    ]
)

DELETES_WRITER_OPTIONS: Final[dict[str, Any]] = {
    "compression": "zstd",
    "use_dictionary": ["file_path"],
    "column_encoding": {"pos": "DELTA_BINARY_PACKED"},
    "store_schema": False,
    "write_page_checksum": True,
}
Positions = npt.NDArray[np.int64]
_NONE: Positions = np.zeros(0, np.int64)
PROBE_VALUES_MAX = 50_000
"""Arrow hashes the values again for each batch. With more values, searching whole keys is as fast."""


def write_deletes(
    output: FileOutput,
    bucket: int,
    offsets: OffsetRange,
    file: LiveFile,
    positions: npt.NDArray[np.int64],
    *,
    num_duplicates: int = 0,
    num_dropped: int = 0,
) -> LakeFile:
    """Write a delete file for these positions of a data file, and return its description. It is durable on return.

    There is at least one position, and positions ascend. The file replaces the earlier delete files of this data file.
    Its bounds identify the data file, so that readers of other data files need not open it.
    """
    spec = output.spec
    directory = spec.directory(file.partition, bucket) if file.spec_id == spec.spec_id else spec.data_location
    location = f"{directory}/{bucket:05d}-deletes-{output.ids.new_uuid()}.parquet"
    paths = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(positions), np.int32)), pa.array([file.location]))
    table = pa.Table.from_arrays([paths, pa.array(positions)], schema=_SCHEMA)
    with open_parquet_sink(output.files, location) as sink:
        with pq.ParquetWriter(sink, _SCHEMA, **DELETES_WRITER_OPTIONS) as writer:
            writer.write_table(table, row_group_size=table.num_rows)
            close_with_checksum(writer, sink, {DELETED_KEY: str(len(positions))})
        size_bytes = sink.size_bytes
    return LakeFile(
        location=location,
        bucket=bucket,
        offsets=offsets,
        num_rows=len(positions),
        size_bytes=size_bytes,
        schema_id=spec.schema_id,
        spec_id=file.spec_id,
        partition=file.partition,
        columns=_statistics(file.location, positions),
        deletes=DeletedRows(file.location, file.own_deletes, num_duplicates, num_dropped),
    )


def is_own_delete_file(location: str) -> bool:
    """Return whether `write_deletes` gives such a name to a position delete file."""
    return _NAME.search(location) is not None


def _statistics(location: str, positions: npt.NDArray[np.int64]) -> dict[str, dict[int, Any]]:
    path = location.encode()
    first, last = (int(position).to_bytes(8, "little") for position in (positions[0], positions[-1]))
    return {
        "value_counts": {PATH_ID: len(positions), POSITION_ID: len(positions)},
        "null_value_counts": {PATH_ID: 0, POSITION_ID: 0},
        "lower_bounds": {PATH_ID: path, POSITION_ID: first},
        "upper_bounds": {PATH_ID: path, POSITION_ID: last},
    }


@dataclass(frozen=True, slots=True)
class KeyIndexProbe:
    """A key column and its distinct values in the searched keys.

    A row with another value matches none of these keys, so its key is not encoded.
    """

    index: int
    """Index of the column in the key."""
    values: pa.Array


def choose_probe(columns: Sequence[pa.Array]) -> KeyIndexProbe | None:
    """Return the most selective column of these keys, or None if no column helps.

    Excludes floating-point columns, because zeros of both signs, and all NaNs, are equal keys but different values.
    """
    distinct = [
        KeyIndexProbe(index, column.unique())
        for index, column in enumerate(columns)
        if not pa.types.is_floating(column.type)
    ]
    best = max(distinct, key=lambda probe: len(probe.values), default=None)
    return best if best is not None and len(best.values) <= PROBE_VALUES_MAX else None


@dataclass(frozen=True, slots=True)
class KeyMatches:
    """Live rows of one data file with one of the keys."""

    file: LiveFile
    deleted: Positions
    """All row numbers for the data file's position delete file: the matches and the earlier deletes."""
    key_indexes: Positions
    """For each matched row, the index of its key among the searched keys."""


def find_rows(
    files: FileAccess, file: LiveFile, keys: KeySet, projection: LakeProjection, probe: KeyIndexProbe | None = None
) -> KeyMatches | None:
    """Return the live rows of a file with one of the keys, or None. ``projection`` has the key columns in key order.

    Matches all rows of a key, so duplicates of another engine are deleted too. Memory is bounded by one batch and the
    deleted positions.
    """
    split = LakeSplit(file.location, file.size_bytes, file.num_rows)
    hits = [_find_matches(numbers, rows, keys, probe) for numbers, rows in read_numbered(files, split, projection)]
    positions, key_indexes = (np.concatenate(parts) for parts in zip((_NONE, _NONE), *hits, strict=True))
    if not len(positions):
        return None
    older = read_deleted_positions(files, file.location, file.own_deletes)
    deleted = read_deleted_positions(files, file.location, file.deletes) if file.shared_deletes else older
    is_live = ~is_in_sorted(positions, deleted)
    positions, key_indexes = positions[is_live], key_indexes[is_live]
    if not len(positions):
        return None
    return KeyMatches(file, np.sort(np.concatenate([older, positions]), kind="stable"), key_indexes)


def _find_matches(
    numbers: Positions, rows: pa.RecordBatch, keys: KeySet, probe: KeyIndexProbe | None
) -> tuple[Positions, Positions]:
    """Return the numbers of the rows with one of the keys, and the indexes of their keys."""
    if probe is not None:
        candidates = pc.indices_nonzero(pc.is_in(rows.column(probe.index), value_set=probe.values))
        if not len(candidates):
            return _NONE, _NONE
        numbers, rows = numbers[candidates.to_numpy()], rows.take(candidates)
    is_hit, key_indexes = keys.find(rows.columns)
    return numbers[is_hit], key_indexes


def is_in_sorted(values: Positions, ascending: Positions) -> npt.NDArray[np.bool_]:
    """Return which of the values are in ``ascending``."""
    if not len(ascending):
        return np.zeros(len(values), np.bool_)
    indexes = np.searchsorted(ascending, values)
    indexes[indexes == len(ascending)] = 0
    same: npt.NDArray[np.bool_] = ascending[indexes] == values
    return same


def find_live_files(
    table: Table, snapshot: Snapshot, key_ids: Sequence[int], buckets: Collection[int], num_buckets: int
) -> dict[int, tuple[LiveFile, ...]]:
    """Return the data files of each bucket. A file whose partition does not determine its bucket is in every bucket."""
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


def find_data_file_of_deletes(delete: DataFile) -> str | None:
    """Return the data file of a position delete file of the package, or None for another engine's file."""
    location = (delete.lower_bounds or {}).get(PATH_ID, b"").decode()
    return location if is_own_delete_file(delete.file_path) and is_only_of(delete, location) else None


class KeyFileFilter:
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
            and not pa.types.is_floating(types[field.source_id])  # equal zeros and NaNs are in several partitions
        }

    def add_keys(self, rows: pa.RecordBatch) -> None:
        """Add the keys of rows of the range. The rows have the table's columns."""
        for name, values_of_name in zip(self._names, self._key_values, strict=True):
            values_of_name.append(rows.column(name).unique())
        for position, (name, values) in self._partitions.items():
            field_type = self._file_spec.partition_types[position]
            distinct = rows.column(name).unique()
            parts = (scalar_to_ticks(value) for value in distinct)
            values.update(None if value is None else to_bytes(field_type, value) for value in parts)

    def probe(self) -> KeyIndexProbe | None:
        """Return the most selective column of the collected keys, or None."""
        return (
            choose_probe([pa.concat_arrays(values) for values in self._key_values]) if all(self._key_values) else None
        )

    def may_contain_keys(self, file: LiveFile, keys: KeySet) -> bool:
        """Return False only if no row of the file has one of the keys, which must be the collected ones."""
        if file.spec_id == self._file_spec.spec.spec_id:
            may_match = (file.partition[position] in values for position, (_, values) in self._partitions.items())
            if not all(may_match):
                return False
        low, high = self._bounds(file)
        return not low or keys.reaches(low, high)

    def _bounds(self, file: LiveFile) -> tuple[bytes, bytes]:
        """Return the minimum and maximum key prefix of the file, or empty bytes if unknown."""
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
    """Return a bound as a value of the column, or None if there is none. A float bound does not cover NaN."""
    if value is None or pa.types.is_floating(arrow):
        return None
    try:
        return pa.array([value], arrow)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None


def write_changes(
    context: WriteContext,
    files_at: FilesAt,
    ids: Ids,
    bucket: int,
    offsets: OffsetRange,
    changes: Iterable[pa.RecordBatch],
    live: Sequence[LiveFile],
    open_files: Callable[[Sequence[LakeSplit]], FileAccess],
) -> list[LakeFile]:
    """Write data files and position delete files of a range of changes. The files are durable on return.

    ``changes`` have the change type, then the table's columns, and are in the order of ``offsets``. ``live`` are the
    bucket's data files. ``open_files`` opens those that may have a changed key. Memory is bounded by the rows of the
    range and the positions that it deletes.
    """
    spec = IcebergFileSpec.from_json(context.lake)
    chosen = KeyFileFilter(spec, context.schema, context.primary_key)
    tail = MergedChangelog.of(
        _collect_keys(changes, context.schema.arrow, chosen), context.schema.arrow, context.key_indexes, sort=True
    )
    output = FileOutput(context, spec, files_at(spec.data_location), ids)
    written = write_rows(output, bucket, offsets, tail.rows.to_batches(max_chunksize=BATCH_ROWS))
    projection = key_projection(context, spec)
    candidates = [file for file in live if chosen.may_contain_keys(file, tail.keys)]
    probe = chosen.probe()
    older = open_files([LakeSplit(f.location, f.size_bytes, f.num_rows, None, f.deletes) for f in candidates])
    hits = list(parallel_map(lambda file: find_rows(older, file, tail.keys, projection, probe), candidates))
    is_matched = np.zeros(len(tail.keys), np.bool_)
    deletes = [
        write_deletes(
            output, bucket, offsets, f.file, f.deleted, num_duplicates=_count_duplicates(f.key_indexes, is_matched)
        )
        for f in hits
        if f is not None
    ]
    return [*written, *deletes]


def _count_duplicates(key_indexes: npt.NDArray[np.int64], is_matched: npt.NDArray[np.bool_]) -> int:
    """Return the number of rows that are not the first of their key, and mark the keys in ``is_matched``."""
    distinct = np.unique(key_indexes)
    num_first = int(np.count_nonzero(~is_matched[distinct]))
    is_matched[distinct] = True
    return len(key_indexes) - num_first


def key_projection(context: WriteContext, spec: IcebergFileSpec) -> LakeProjection:
    """Return the projection of the key columns, in key order."""
    fields = [(field.field_id, field.name) for field in spec.schema.fields]  # their names are those of the columns
    mapping = map_by_name(fields, context.schema)  # key columns have no nested fields that change
    return projection(spec.schema, mapping, context.schema, context.primary_key, context.schema)


def _collect_keys(
    changes: Iterable[pa.RecordBatch], schema: pa.Schema, chosen: KeyFileFilter
) -> Iterator[pa.RecordBatch]:
    """Yield the changes without update-before rows, and add their keys to the filter."""
    with_change = pa.schema([pa.field("change", pa.int8()), *schema])
    for batch in changes:
        after = batch.column(0).to_numpy() != int(ChangeType.UPDATE_BEFORE)
        counting = batch if after.all() else batch.filter(pa.array(after))
        chosen.add_keys(pa.RecordBatch.from_arrays(counting.columns[1:], schema=schema))
        yield pa.RecordBatch.from_arrays(counting.columns, schema=with_change)
