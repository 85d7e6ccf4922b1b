"""A tiering task of a primary-key table: turns a range of changes into rows and deletes.

The range is compacted by key, and the remaining rows are written in key order. Every older row of a changed key is
searched in the bucket's data files and deleted by position, even if the range starts with an insert of the key. So a
bucket is repaired if another engine added a key twice or deleted rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamhouse_spark.core.clock import Ids
from streamhouse_spark.core.concurrency import parallel_map
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.keys.change_type import ChangeType
from streamhouse_spark.keys.changelog_merge import MergedChangelog
from streamhouse_spark.lake.column_map import map_by_name
from streamhouse_spark.lake.iceberg.file_spec import IcebergFileSpec
from streamhouse_spark.lake.iceberg.key_index import KeyedFilter
from streamhouse_spark.lake.iceberg.position_deletes import write_deletes
from streamhouse_spark.lake.iceberg.scan import projection
from streamhouse_spark.lake.model.data_files import LiveFile
from streamhouse_spark.lake.model.values import LakeFile, LakeProjection, LakeSplit, WriteContext
from streamhouse_spark.lake.parquet.bucket_writer import write_rows
from streamhouse_spark.lake.parquet.key_lookup import find_rows
from streamhouse_spark.lake.parquet.parquet_io import FileAccess
from streamhouse_spark.lake.parquet.reader import BATCH_ROWS, FilesAt


def write_changes(
    context: WriteContext,
    files_at: FilesAt,
    ids: Ids,
    bucket: int,
    offsets: OffsetRange,
    changes: Iterable[pa.RecordBatch],
    live: Sequence[LiveFile],
    files_ahead: Callable[[Sequence[LakeSplit]], FileAccess],
) -> list[LakeFile]:
    """Write data files and position delete files. They are durable on return.

    ``changes`` are those of ``offsets``, in order: the change type, then the table's columns. ``live`` are the bucket's
    data files; ``files_ahead`` reads those that may hold a key. Memory is bounded by the range: its rows and the
    positions that it deletes.
    """
    spec = IcebergFileSpec.from_json(context.lake)
    chosen = KeyedFilter(spec, context.schema, context.primary_key)
    tail = MergedChangelog.of(
        _collect_keys(changes, context.schema.arrow, chosen), context.schema.arrow, context.key_indexes, sort=True
    )
    files = files_at(spec.data_location)
    rows = tail.rows.to_batches(max_chunksize=BATCH_ROWS)
    written = write_rows(context, spec, files, ids, bucket, offsets, rows)
    how = key_projection(context, spec)
    candidates = [file for file in live if chosen.may_contain_keys(file, tail.keys)]
    probe = chosen.probe()
    older = files_ahead([LakeSplit(f.location, f.size_bytes, f.num_rows, None, f.deletes) for f in candidates])
    hits = list(parallel_map(lambda file: find_rows(older, file, tail.keys, how, probe), candidates))
    is_matched = np.zeros(len(tail.keys), np.bool_)
    deletes = [
        write_deletes(
            spec,
            files,
            ids,
            bucket,
            offsets,
            f.file,
            f.deleted,
            num_duplicates=_count_duplicates(f.key_indexes, is_matched),
        )
        for f in hits
        if f is not None
    ]
    return [*written, *deletes]


def _count_duplicates(key_indexes: npt.NDArray[np.int64], is_matched: npt.NDArray[np.bool_]) -> int:
    """Return the number of rows that are not the first of their key. ``is_matched`` marks keys that had a row, and is
    updated.
    """
    distinct = np.unique(key_indexes)
    num_first = int(np.count_nonzero(~is_matched[distinct]))
    is_matched[distinct] = True
    return len(key_indexes) - num_first


def key_projection(context: WriteContext, spec: IcebergFileSpec) -> LakeProjection:
    """Return the projection of the key columns, in key order."""
    fields = [(field.field_id, field.name) for field in spec.schema.fields]  # their names equal the columns'
    mapping = map_by_name(fields, context.schema)  # key columns never change inside
    return projection(spec.schema, mapping, context.schema, context.primary_key, context.schema)


def _collect_keys(
    changes: Iterable[pa.RecordBatch], schema: pa.Schema, chosen: KeyedFilter
) -> Iterator[pa.RecordBatch]:
    """Yield the changes without update-before rows, and add their keys to the filter."""
    with_change = pa.schema([pa.field("change", pa.int8()), *schema])
    for batch in changes:
        after = batch.column(0).to_numpy() != int(ChangeType.UPDATE_BEFORE)
        counting = batch if after.all() else batch.filter(pa.array(after))
        chosen.add_keys(pa.RecordBatch.from_arrays(counting.columns[1:], schema=schema))
        yield pa.RecordBatch.from_arrays(counting.columns, schema=with_change)
