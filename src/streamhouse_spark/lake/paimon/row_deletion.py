"""Deletion of single rows in a Paimon lake of a log table: rewrites files without them.

Every Paimon reader reads such files correctly. Deletion vectors would cost less, but Paimon's streaming readers ignore
that table option.

**Commit point:** that of the round, whose snapshot removes the files, adds their replacements and holds the offsets.
Every attempt fails if one of the files is no longer live, because then the rows are elsewhere. Rows keep their offsets;
those of deleted rows are in no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pypaimon.manifest.schema.manifest_entry import ManifestEntry

from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.lake.file_access import offset_files
from streamhouse_spark.lake.model.data_files import DeletedRows
from streamhouse_spark.lake.model.pending_deletes import RewrittenRows
from streamhouse_spark.lake.model.values import LakeFile, LakeSplit, WriteContext
from streamhouse_spark.lake.paimon.file_io import PaimonFiles
from streamhouse_spark.lake.paimon.file_spec import PaimonFileSpec
from streamhouse_spark.lake.paimon.manifests import MetadataReader
from streamhouse_spark.lake.paimon.scan import own_projection
from streamhouse_spark.lake.paimon.schema import UNAWARE_BUCKETS
from streamhouse_spark.lake.paimon.table_binding import PaimonTable, PaimonTableBinding
from streamhouse_spark.lake.parquet.compaction import write_groups
from streamhouse_spark.lake.parquet.copy_on_write import FileRewrite, rewrite_without_rows
from streamhouse_spark.lake.parquet.file_writer import parse_file_offsets

_NO_ROWS: Final = OffsetSet.dense(0, 0)


def rewrite_files_without(
    place: PaimonTableBinding, context: WriteContext, rows: Mapping[int, OffsetSet]
) -> tuple[list[LakeFile], RewrittenRows]:
    """Rewrite the files of the latest snapshot that have rows at these offsets, without these rows.

    Returns the new files with one entry for each removed file, see `DeletedRows`, and the rows that may be in files
    without offsets. The files are durable on return.
    """
    table = place.require()
    if table.snapshot is None or not rows:
        return [], RewrittenRows({}, None)
    spec, how = PaimonFileSpec.from_json(context.lake), own_projection(table, place.spec)
    files = place.files_at(spec.data_location)

    def write(file: FileRewrite) -> list[LakeFile]:
        written = rewrite_without_rows(file, context, spec, how, files, place.world.ids)
        return [*written, _file_to_rewrite(file, spec)]

    touched, moved = _find_touched_files(place, table, spec, rows)
    return [file for of_group in write_groups(place.storage, touched, write) for file in of_group], moved


def _file_to_rewrite(file: FileRewrite, spec: PaimonFileSpec) -> LakeFile:
    location, num_dropped = file.split.location, file.removed_offsets.num_rows
    return LakeFile(
        location=location,
        bucket=file.offsets.bucket,
        offsets=file.removed_offsets.range,
        num_rows=num_dropped,
        size_bytes=0,
        schema_id=spec.schema_id,
        spec_id=spec.spec_id,
        partition=(),
        deletes=DeletedRows(location, num_dropped=num_dropped, num_moved=file.retained_offsets.num_rows),
    )


def _find_touched_files(
    place: PaimonTableBinding, table: PaimonTable, spec: PaimonFileSpec, rows: Mapping[int, OffsetSet]
) -> tuple[list[FileRewrite], RewrittenRows]:
    """Find the files that have some of the rows. Reads only footers of files that can have some by their names."""
    reader = MetadataReader(table, PaimonFiles(place.files))
    candidates: list[LakeSplit] = []
    foreign: str | None = None
    for entry in reader.live_entries(table.snapshot):
        location = reader.location(entry)
        named = parse_file_offsets(location)
        if named is None:
            foreign = location if _may_hold_rows(entry, spec, rows) else foreign
        elif rows.get(named[0], _NO_ROWS).within(named[1]):
            candidates.append(LakeSplit(location, entry.file.file_size, entry.file.row_count))
    sizes = {split.location: split.size_bytes for split in candidates}
    footers = offset_files(place.storage, place.settings, sizes, place.spec.writers, list(sizes))
    left = dict(rows)
    touched: list[FileRewrite] = []
    for split, own in zip(candidates, footers, strict=True):
        if own is None:
            foreign = split.location
        elif deleted := own.runs.common(left.get(own.bucket, _NO_ROWS)):
            left[own.bucket] = left[own.bucket].without(deleted)
            touched.append(FileRewrite(split, own, deleted))
    moved = {bucket: runs for bucket, runs in left.items() if runs} if foreign is not None else {}
    return touched, RewrittenRows(moved, foreign)


def _may_hold_rows(entry: ManifestEntry, spec: PaimonFileSpec, rows: Mapping[int, OffsetSet]) -> bool:
    """Return whether a file of another engine may be of a bucket with some of the rows."""
    is_bucketed = spec.num_buckets != UNAWARE_BUCKETS and entry.total_buckets == spec.num_buckets
    return not is_bucketed or entry.bucket in rows
