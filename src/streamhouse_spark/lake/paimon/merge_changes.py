"""A tiering task of a primary-key Paimon table: turns a range of changes into sorted files.

Writes only the last change of each key in the range, deletions included. Older files are not searched: readers merge,
and take the row with the largest sequence number. That number is the change's offset in its log bucket, so it only
grows, and a truncation never reuses one. A foreign writer takes the numbers after the largest that it finds, which are
offsets of later changes: then all later numbers of the bucket are shifted above its.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from pypaimon.manifest.schema.manifest_entry import ManifestEntry

from streamhouse_spark.core.arrow_chunking import combine_small_chunks
from streamhouse_spark.core.clock import Ids
from streamhouse_spark.core.types import OffsetRange
from streamhouse_spark.errors import CommitConflictError
from streamhouse_spark.keys.latest_per_key import LatestChanges
from streamhouse_spark.lake.model.values import LakeFile, WriteContext
from streamhouse_spark.lake.paimon.merge_tree_files import KeyValueFileSpec, add_sequences, write_key_values
from streamhouse_spark.lake.parquet.reader import FilesAt


def write_changes(
    context: WriteContext,
    files_at: FilesAt,
    ids: Ids,
    bucket: int,
    offsets: OffsetRange,
    changes: Iterable[pa.RecordBatch],
) -> list[LakeFile]:
    """Write data files of level 0. They are durable on return.

    ``changes`` are those of ``offsets``, in order: the change type, then the table's columns. Memory is bounded by the
    range.
    """
    spec = KeyValueFileSpec.from_json(context.lake)
    last = LatestChanges.of(changes, context.schema.arrow, context.key_indexes)
    sequences = last.places.astype(np.int64) + (offsets.start + spec.sequence_shifts.get(bucket, 0))
    rows = add_sequences(last.rows, sequences, last.deleted)
    files = files_at(spec.data_location)
    batches = combine_small_chunks(rows).to_batches()
    return write_key_values(context, spec, files, ids, bucket, offsets, batches, level=0)


def sequence_shifts(entries: Sequence[ManifestEntry], offsets: Mapping[int, int]) -> Mapping[int, int]:
    """Return, per bucket, how far sequence numbers of changes after ``offsets`` are shifted above their offsets, if not
    0.

    ``entries`` are the live files of the snapshot that holds ``offsets``.
    """
    shifts = {bucket: highest + 1 - offsets.get(bucket, 0) for bucket, highest in _highest_sequences(entries).items()}
    return {bucket: shift for bucket, shift in shifts.items() if shift > 0}


def require_newest(location: str, entries: Sequence[ManifestEntry], files: Sequence[LakeFile]) -> None:
    """Require that the rows of the files are newer than all stored ones. Raises `CommitConflictError`."""
    highest = _highest_sequences(entries)
    for file in files:
        if file.keys is not None and file.keys.sequences.start <= highest.get(file.bucket, -1):
            raise CommitConflictError(
                f"lake table {location}: another writer added rows to bucket {file.bucket} with sequence numbers up to "
                f"{highest[file.bucket]}, those of this round begin at {file.keys.sequences.start}; try again"
            )


def _highest_sequences(entries: Sequence[ManifestEntry]) -> dict[int, int]:
    """Return the largest sequence number of each bucket, over all partitions."""
    highest: dict[int, int] = {}
    for entry in entries:
        highest[entry.bucket] = max(highest.get(entry.bucket, -1), entry.file.max_sequence_number)
    return highest
