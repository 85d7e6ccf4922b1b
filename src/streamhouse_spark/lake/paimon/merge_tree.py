"""Data files of a primary-key Paimon table: rows sorted by key, each with its sequence number and change type.

Such a file is part of a sorted run of Paimon's merge tree. Besides the table's columns, it has a copy of the key
columns, and a sequence number that identifies the latest row of a key. A round writes files of level 0, which may share
keys with other files. Files that share keys form a *section*, which a read must merge.

A round writes only the last change of each key in its range, including deletes. It does not search older files, because
readers merge, and return the row with the largest sequence number. That number is the offset of the change in its log
bucket, so it only grows, and a truncation never reuses one. Another engine's writer uses the numbers after the largest
that it finds, which are offsets of later changes. All later numbers of the bucket are then shifted above these numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pypaimon.manifest.schema.data_file_meta import DataFileMeta
from pypaimon.manifest.schema.manifest_entry import ManifestEntry
from pypaimon.manifest.schema.simple_stats import SimpleStats
from pypaimon.schema.data_types import SYSTEM_FIELD_ID_START, DataField
from pypaimon.schema.table_schema import TableSchema as PaimonSchema
from pypaimon.table.row.generic_row import GenericRow
from pypaimon.table.special_fields import SpecialFields

from streamhouse_spark.core.arrow_rows import combine_small_chunks
from streamhouse_spark.core.clock import Ids
from streamhouse_spark.core.concurrency import cached_property
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import CommitConflictError, LakeMismatchError
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.keys.changelog_merge import LatestChanges
from streamhouse_spark.lake.paimon.file_spec import PaimonFileSpec, decode_field, encoded_scalar
from streamhouse_spark.lake.parquet.bucket_writer import PartitionSplitter
from streamhouse_spark.lake.parquet.file_columns import FIELD_ID
from streamhouse_spark.lake.parquet.file_writer import FileOutput, PartitionFile, PartitionKey, is_keyed_file
from streamhouse_spark.lake.parquet.reader import BATCH_ROWS, FilesAt
from streamhouse_spark.lake.types import (
    ColumnStatistics,
    KeyRange,
    LakeFile,
    LakeProjection,
    MergedFile,
    MergedFiles,
    ScanFile,
    WriteContext,
)
from streamhouse_spark.schema.table_schema import Column, TableSchema

OWN_PREFIX = "data-"

KEY_PREFIX: Final = "_KEY_"
SEQUENCE: Final = SpecialFields.SEQUENCE_NUMBER
KIND: Final = SpecialFields.VALUE_KIND
LEVEL_MAX: Final = 5
"""Level of files that are merged with all other files: the last of Paimon's default of six levels."""
_COMPACTED: Final = 1
"""``file_source`` of a file that compaction wrote."""


def is_own_keyed_name(name: str) -> bool:
    """Return whether a file of a primary-key table is the package's, by its name."""
    return is_keyed_file(name.removeprefix(OWN_PREFIX))


def is_raw(entry: ManifestEntry) -> bool:
    """Return whether the file has unique keys and no deletes, so that it can be read directly.

    Files of other engines at level 0 may not have a number of deletes.
    """
    file = entry.file
    return file.delete_row_count == 0 and (file.level > 0 or is_own_keyed_name(file.file_name))


def group_files(entries: Sequence[ManifestEntry]) -> dict[tuple[Any, ...], list[ManifestEntry]]:
    """Return the files of each partition and bucket. Raises `LakeMismatchError` for a file without a key range."""
    groups: dict[tuple[Any, ...], list[ManifestEntry]] = {}
    for entry in entries:
        if not entry.file.min_key.values:
            raise LakeMismatchError(
                f"lake file {entry.file.file_name} has no key range, which files of a primary-key table must have; "
                "rewrite it with the engine that wrote it"
            )
        group = (tuple(entry.partition.values), entry.bucket, entry.total_buckets)
        groups.setdefault(group, []).append(entry)
    return groups


def group_sections(entries: Sequence[ManifestEntry]) -> list[list[ManifestEntry]]:
    """Group files of one partition and bucket into sections. Files of different sections share no keys."""
    ordered = sorted(entries, key=lambda e: (tuple(e.file.min_key.values), tuple(e.file.max_key.values)))
    overlapping: list[list[ManifestEntry]] = []
    highest: tuple[Any, ...] = ()
    for entry in ordered:
        if not overlapping or tuple(entry.file.min_key.values) > highest:
            overlapping.append([])
            highest = ()
        overlapping[-1].append(entry)
        highest = max(highest, tuple(entry.file.max_key.values))
    return overlapping


def merge_scan_files(files: Sequence[ScanFile], by: LakeProjection) -> ScanFile:
    """Return the files of one section as one file that is merged on read."""
    first = files[0]
    return ScanFile(
        location=first.location,
        size_bytes=sum(file.size_bytes for file in files),
        num_rows=sum(file.num_rows for file in files),
        bucket=first.bucket,
        partition=first.partition,
        statistics=_common_statistics([file.statistics for file in files]),
        merge=MergedFiles(tuple(MergedFile(f.location, f.size_bytes, f.num_rows, f.field_names) for f in files), by),
        num_deleted=None,
    )


def _common_statistics(statistics: Sequence[Mapping[str, ColumnStatistics]]) -> Mapping[str, ColumnStatistics]:
    """Return the statistics of all files together, because a file is skipped only with its whole section."""
    names = set.intersection(*(set(of_file) for of_file in statistics))
    return {name: _merge_statistics([of_file[name] for of_file in statistics]) for name in sorted(names)}


def _merge_statistics(parts: Sequence[ColumnStatistics]) -> ColumnStatistics:
    counts = [part.null_count for part in parts if part.null_count is not None]
    values = [part.value_count for part in parts if part.value_count is not None]
    have_values = [part for part in parts if part.null_count is None or part.null_count != part.value_count]
    lows = [part.low for part in have_values]
    highs = [part.high for part in have_values]
    return ColumnStatistics(
        low=min(lows) if lows and None not in lows else None,
        high=max(highs) if highs and None not in highs else None,
        null_count=sum(counts) if len(counts) == len(parts) else None,
        value_count=sum(values) if len(values) == len(parts) else None,
    )


def key_fields(schema: PaimonSchema) -> list[DataField]:
    """Return the columns that identify rows within a partition, in key order."""
    by_name = {field.name: field for field in schema.fields}
    return [by_name[name] for name in schema.primary_keys if name not in schema.partition_keys]


def merge_projection(key: LakeProjection) -> LakeProjection:
    """Return `MergedFiles.by` for a projection of the key columns."""
    own = (Column(SEQUENCE.id, SEQUENCE.name, pa.int64(), False), Column(KIND.id, KIND.name, pa.int8(), False))
    return LakeProjection(
        TableSchema((*key.schema.columns, *own)),
        (*key.field_ids, SEQUENCE.id, KIND.id),
        (*key.lake_names, SEQUENCE.name, KIND.name),
    )


@dataclass(frozen=True)
class KeyValueFileSpec(PaimonFileSpec):
    """The `PaimonFileSpec` of files of the merge tree."""

    @cached_property
    def key_fields(self) -> list[DataField]:
        return key_fields(self.schema)

    @cached_property
    def file_schema(self) -> pa.Schema:
        values = PaimonFileSpec.file_schema.func(self)  # `super()` would return the cached value of this name
        keys = [_key_field(values.field(field.name), field) for field in self.key_fields]
        own = [_file_field(SEQUENCE, pa.int64()), _file_field(KIND, pa.int8())]
        return pa.schema([*keys, *own, *values])


def write_key_values(
    output: FileOutput, bucket: int, offsets: OffsetRange, batches: Iterable[pa.RecordBatch], *, level: int
) -> list[LakeFile]:
    """Write rows of one bucket to files that are durable on return.

    ``batches`` have the table's columns, then the sequence number and the change type. The keys of a partition strictly
    ascend over all batches. ``offsets`` are those of the underlying changes. Memory is bounded by a batch and a row
    group. Raises `LakeMismatchError` for a key that Paimon's libraries do not support.
    """
    spec = output.spec
    assert isinstance(spec, KeyValueFileSpec)
    splitter: PartitionSplitter | None = None
    written: list[LakeFile] = []
    writer: _RunWriter | None = None
    try:
        for batch in batches:
            extended = _add_keys(batch, spec.key_fields)
            splitter = splitter or PartitionSplitter(spec, extended.schema.names, bucket)
            for key, rows, _ in splitter.split(extended):
                if writer is None or writer.key != key:
                    written += writer.close() if writer is not None else ()
                    writer = _RunWriter(output, spec.key_fields, bucket, key, offsets, level)
                writer.add(rows)
        return written + (writer.close() if writer is not None else [])
    except BaseException as error:
        if writer is not None:
            writer.abandon(error)
        raise


class _RunWriter:
    """Writes the consecutive files of one bucket and partition. Their keys ascend."""

    def __init__(
        self,
        output: FileOutput,
        key_fields: Sequence[DataField],
        bucket: int,
        key: PartitionKey,
        offsets: OffsetRange,
        level: int,
    ) -> None:
        self._output = output
        self._key_fields = key_fields
        self._bucket, self._offsets, self._level = bucket, offsets, level
        self.key = key
        self._file: PartitionFile | None = None
        self._statistics = _RunStatistics(key_fields)
        self._written: list[LakeFile] = []

    def add(self, rows: pa.RecordBatch) -> None:
        for start in range(0, rows.num_rows, BATCH_ROWS):
            part = rows.slice(start, BATCH_ROWS)
            file = self._open()
            self._statistics.add(part)
            file.add(part, None)
            if file.row_group_is_full:
                file.write_row_group()
                if file.size_bytes >= self._output.context.target_file_bytes:
                    self._close()

    def close(self) -> list[LakeFile]:
        self._close()
        return self._written

    def abandon(self, error: BaseException) -> None:
        if self._file is not None:
            self._file.abandon(error)

    def _open(self) -> PartitionFile:
        if self._file is None:
            suffix = f"{self._offsets.end:020d}-{self._output.ids.new_uuid()}"
            self._file = PartitionFile(self._output, self._bucket, self.key, self._offsets, suffix)
        return self._file

    def _close(self) -> None:
        if self._file is not None:
            keys = self._statistics.describe(self._level)
            file, self._file, self._statistics = self._file, None, _RunStatistics(self._key_fields)
            self._written.append(replace(file.close(), keys=keys))


class _RunStatistics:
    """Collects statistics of the rows of a file while they are written."""

    def __init__(self, key_fields: Sequence[DataField]) -> None:
        self._fields = key_fields
        self._first: list[Any] | None = None
        self._last: list[Any] = []
        self._bounds: list[tuple[Any, Any]] = []
        self._sequences: list[tuple[int, int]] = []
        self._num_deleted = 0

    def add(self, rows: pa.RecordBatch) -> None:
        keys = [rows.column(KEY_PREFIX + field.name) for field in self._fields]
        sequences = rows.column(SEQUENCE.name).to_numpy()
        self._first = self._first or [column[0] for column in keys]
        self._last = [column[-1] for column in keys]
        min_max = [pc.min_max(column) for column in keys]
        bounds = [(bound["min"], bound["max"]) for bound in min_max]
        self._bounds = [_widen_bounds(*bounds_pair) for bounds_pair in zip(self._bounds or bounds, bounds, strict=True)]
        self._sequences.append((int(sequences.min()), int(sequences.max())))
        kinds = rows.column(KIND.name).to_numpy()
        self._num_deleted += int(np.count_nonzero(kinds == np.int8(ChangeType.DELETE)))

    def describe(self, level: int) -> KeyRange:
        assert self._first is not None
        lows, highs = zip(*self._sequences, strict=True)
        return KeyRange(
            lowest=self._encode(self._first),
            highest=self._encode(self._last),
            lower=self._encode([low for low, _ in self._bounds]),
            upper=self._encode([high for _, high in self._bounds]),
            sequences=OffsetRange(min(lows), max(highs) + 1),
            num_deleted=self._num_deleted,
            level=level,
        )

    def _encode(self, key: Sequence[Any]) -> tuple[bytes, ...]:
        return tuple(_key_bytes(value, field) for value, field in zip(key, self._fields, strict=True))


def _widen_bounds(left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return bounds that cover both pairs of bounds."""
    low = pc.min(pa.array([left[0], right[0]], left[0].type)) if left[0] != right[0] else left[0]
    high = pc.max(pa.array([left[1], right[1]], left[1].type)) if left[1] != right[1] else left[1]
    return low, high


def _key_bytes(value: pa.Scalar, field: DataField) -> bytes:
    data = encoded_scalar(value, field, "primary key")
    assert data is not None, "keys are not null"
    return data


def describe_keyed_file(meta: DataFileMeta, keys: KeyRange, schema: PaimonSchema) -> DataFileMeta:
    """Return Paimon's description of a file, with its merge tree metadata."""
    fields = key_fields(schema)

    def row(values: Sequence[bytes]) -> GenericRow:
        return GenericRow([decode_field(value, field) for value, field in zip(values, fields, strict=True)], fields)

    return replace(
        meta,
        min_key=row(keys.lowest),
        max_key=row(keys.highest),
        key_stats=SimpleStats(row(keys.lower), row(keys.upper), [0] * len(fields)),
        min_sequence_number=keys.sequences.start,
        max_sequence_number=keys.sequences.end - 1,
        delete_row_count=keys.num_deleted,
        level=keys.level,
        file_source=_COMPACTED if keys.level else 0,
    )


def add_sequences(rows: pa.Table, sequences: npt.NDArray[np.int64], deleted: npt.NDArray[np.bool_]) -> pa.Table:
    """Return the rows with the additional columns that `write_key_values` expects."""
    kinds = np.where(deleted, np.int8(ChangeType.DELETE), np.int8(ChangeType.INSERT))
    with_numbers = rows.append_column(_file_field(SEQUENCE, pa.int64()), pa.array(sequences))
    return with_numbers.append_column(_file_field(KIND, pa.int8()), pa.array(kinds))


def _add_keys(batch: pa.RecordBatch, key_fields: Sequence[DataField]) -> pa.RecordBatch:
    fields, arrays = list(batch.schema), list(batch.columns)
    for field in key_fields:
        index = batch.schema.get_field_index(field.name)
        fields.append(batch.schema.field(index).with_name(KEY_PREFIX + field.name))
        arrays.append(batch.column(index))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _key_field(value: pa.Field, field: DataField) -> pa.Field:
    field_id = SYSTEM_FIELD_ID_START + field.id
    return value.with_name(KEY_PREFIX + field.name).with_metadata({FIELD_ID: str(field_id).encode()})


def _file_field(field: DataField, arrow: pa.DataType) -> pa.Field:
    return pa.field(field.name, arrow, nullable=False, metadata={FIELD_ID: str(field.id).encode()})


def write_changes(
    context: WriteContext,
    files_at: FilesAt,
    ids: Ids,
    bucket: int,
    offsets: OffsetRange,
    changes: Iterable[pa.RecordBatch],
) -> list[LakeFile]:
    """Write data files of level 0, which are durable on return.

    ``changes`` have the change type and the columns, in the order of ``offsets``. Memory is bounded by the range.
    """
    spec = KeyValueFileSpec.from_json(context.lake)
    last = LatestChanges.of(changes, context.schema.arrow, context.key_indexes)
    sequences = last.places.astype(np.int64) + (offsets.start + spec.sequence_offset_gaps.get(bucket, 0))
    rows = add_sequences(last.rows, sequences, last.deleted)
    output = FileOutput(context, spec, files_at(spec.data_location), ids)
    return write_key_values(output, bucket, offsets, combine_small_chunks(rows).to_batches(), level=0)


def sequence_offset_gaps(entries: Sequence[ManifestEntry], offsets: Mapping[int, int]) -> Mapping[int, int]:
    """Return, per bucket, how far sequence numbers of changes after ``offsets`` are above their offsets, if at all.

    ``entries`` are the live files of the snapshot with these offsets.
    """
    gaps = {bucket: highest + 1 - offsets.get(bucket, 0) for bucket, highest in _highest_sequences(entries).items()}
    return {bucket: gap for bucket, gap in gaps.items() if gap > 0}


def require_newest(location: str, entries: Sequence[ManifestEntry], files: Sequence[LakeFile]) -> None:
    """Require that the rows of the files are newer than all stored rows. Raises `CommitConflictError`."""
    highest = _highest_sequences(entries)
    for file in files:
        if file.keys is not None and file.keys.sequences.start <= highest.get(file.bucket, -1):
            raise CommitConflictError(
                f"lake table {location}: another writer added rows to bucket {file.bucket} with sequence numbers up to "
                f"{highest[file.bucket]}, expected at most {file.keys.sequences.start - 1}; retry"
            )


def _highest_sequences(entries: Sequence[ManifestEntry]) -> dict[int, int]:
    """Return the largest sequence number of each bucket, over all partitions."""
    highest: dict[int, int] = {}
    for entry in entries:
        highest[entry.bucket] = max(highest.get(entry.bucket, -1), entry.file.max_sequence_number)
    return highest
