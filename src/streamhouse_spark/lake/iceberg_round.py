"""One tiering round in the lake: what its tasks are told, and the commit that is fenced by the offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

from streamhouse_spark.errors import CommitConflictError, LakeRolledBackError, ObjectNotFoundError
from streamhouse_spark.lake.base import LakeFile, LakeSnapshot, WriteContext
from streamhouse_spark.lake.iceberg_commit import Change, commit_snapshot, not_before_ms
from streamhouse_spark.lake.iceberg_data_file import WriteShape
from streamhouse_spark.lake.iceberg_offsets import OFFSETS_PROPERTY, newest_offsets, offsets_text
from streamhouse_spark.lake.iceberg_place import IcebergPlace
from streamhouse_spark.lake.parallel import in_parallel


def write_context(place: IcebergPlace) -> WriteContext:
    table = place.require()
    place.require_owner(table.metadata)
    data = table.properties.get("write.data.path", f"{table.location().rstrip('/')}/data")
    properties = {k: v for k, v in table.properties.items() if k.startswith(("write.parquet.", "write.metadata."))}
    shape = WriteShape(table.schema(), table.spec(), data.rstrip("/"), properties, place.storage.now_ms())
    return WriteContext(place.spec.table_uuid, place.spec.schema, place.spec.target_file_bytes, shape.to_json())


def commit_round(
    place: IcebergPlace,
    files: Sequence[LakeFile],
    expected: Mapping[int, int],
    new: Mapping[int, int],
    context: WriteContext,
) -> LakeSnapshot | None:
    """See `LakeTable.commit`."""
    if not files and all(new.get(b, 0) == expected.get(b, 0) for b in {*new, *expected}):
        return None
    _require_dense(files, expected, new)
    shape = WriteShape.from_json(context.lake)
    summary = {OFFSETS_PROPERTY: offsets_text(place.spec.table_uuid, new)}

    def validated(metadata: TableMetadata) -> Change:
        place.require_owner(metadata)
        require_shape(metadata, shape)
        _require_offsets(metadata, expected, place.spec.table_uuid)
        require_written(place, metadata, files, shape)
        return Change(Operation.APPEND, added=files, summary=summary)

    snapshot = commit_snapshot(place.catalog, place.identifier, validated, place.world)
    return LakeSnapshot(snapshot.snapshot_id, dict(new), snapshot.timestamp_ms)


def require_shape(metadata: TableMetadata, shape: WriteShape) -> None:
    here = (metadata.current_schema_id, metadata.default_spec_id)
    planned = (shape.schema.schema_id, shape.spec.spec_id)
    if here != planned or metadata.schema() != shape.schema or metadata.spec() != shape.spec:
        raise CommitConflictError(
            f"lake table {metadata.location}: schema and partition spec are {here} now, the files were written for "
            f"{planned}; tier again"
        )


def _require_offsets(metadata: TableMetadata, expected: Mapping[int, int], table_uuid: str) -> None:
    found = newest_offsets(metadata, table_uuid)
    here = found.offsets if found else {}
    moved = {b: here.get(b, 0) for b in {*here, *expected} if here.get(b, 0) != expected.get(b, 0)}
    if not moved:
        return
    bucket = min(moved)
    text = (
        f"lake table {metadata.location}: bucket {bucket} is at offset {moved[bucket]} in the lake, this round "
        f"began at {expected.get(bucket, 0)}"
    )
    if any(offset < expected.get(b, 0) for b, offset in moved.items()):
        raise LakeRolledBackError(f"{text}: the lake went back; roll it forward, or drop it and tier again")
    raise CommitConflictError(f"{text}: another tiering service was faster; plan again")


def require_written(place: IcebergPlace, metadata: TableMetadata, files: Sequence[LakeFile], shape: WriteShape) -> None:
    """The files are there as they were written, and no cleaning since then took them for left over."""
    if shape.planned_ms < not_before_ms(metadata):
        raise CommitConflictError(
            f"lake table {metadata.location}: this round was planned at {shape.planned_ms} ms, and files from before "
            f"{not_before_ms(metadata)} ms that nothing needed were cleaned up; tier again"
        )

    def check(file: LakeFile) -> None:
        access = place.files_at(file.location)
        try:
            with access.open_input(file.location) as opened:
                size_bytes = opened.size()
        except ObjectNotFoundError as error:
            raise CommitConflictError(
                f"lake file {file.location} was deleted before it was committed; tier again"
            ) from error
        if size_bytes != file.size_bytes:
            raise CommitConflictError(
                f"lake file {file.location} has {size_bytes} bytes, {file.size_bytes} were written; tier again"
            )

    for _ in in_parallel(check, files):
        pass


def _require_dense(files: Sequence[LakeFile], expected: Mapping[int, int], new: Mapping[int, int]) -> None:
    """Each bucket's files hold as many rows as its offsets advance."""
    rows: dict[int, int] = {}
    for file in files:
        rows[file.bucket] = rows.get(file.bucket, 0) + file.num_rows
    for bucket in {*rows, *new, *expected}:
        advance = new.get(bucket, 0) - expected.get(bucket, 0)
        if advance != rows.get(bucket, 0):
            raise ValueError(f"bucket {bucket}: {rows.get(bucket, 0)} rows for an advance of {advance} offsets")
